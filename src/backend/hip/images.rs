//! The kernels that the build embedded, one code object an architecture; `build/hip.rs` writes what is included here.

include!(concat!(env!("OUT_DIR"), "/hip_images.rs"));

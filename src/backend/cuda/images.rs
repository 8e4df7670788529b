//! The kernels that the build embedded; `build/cuda.rs` writes what is included here.

include!(concat!(env!("OUT_DIR"), "/cuda_images.rs"));

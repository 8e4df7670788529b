//! Compiles the kernels of the backends that are switched on. See `build/` for each of them.

mod build {
    #[cfg(feature = "cpu")]
    pub(crate) mod cpu;
    #[cfg(feature = "cuda")]
    pub(crate) mod cuda;
    #[cfg(any(feature = "cuda", feature = "rocm"))]
    pub(crate) mod gpu;
    #[cfg(feature = "rocm")]
    pub(crate) mod hip;
    pub(crate) mod toolchain;
}

use std::path::Path;

use build::toolchain::{self, Kernels};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(crossccl_no_kernels)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CROSSCCL_KERNELS");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    // For backends elsewhere: DEP_CROSSCCL_KERNELS in their build scripts.
    if let Ok(root) = std::env::var("CARGO_MANIFEST_DIR") {
        println!("cargo::metadata=kernels={root}/kernels-common");
    }
    let choice = toolchain::kernels(|name| std::env::var(name).ok(), Path::is_dir);
    if let Err(why) = choice.and_then(|kernels| bring(&kernels)) {
        for line in why.lines() {
            println!("cargo::error={line}");
        }
    }
}

fn bring(kernels: &Kernels) -> Result<(), String> {
    if *kernels == Kernels::Off {
        println!("cargo::rustc-cfg=crossccl_no_kernels");
    }
    #[cfg(feature = "cpu")]
    if *kernels != Kernels::Off {
        build::cpu::compile()?;
    }
    #[cfg(feature = "cuda")]
    match kernels {
        Kernels::Compile => build::cuda::compile()?,
        Kernels::Prebuilt(folder) => build::cuda::take(folder)?,
        Kernels::Off => build::cuda::leave_out()?,
    }
    #[cfg(feature = "rocm")]
    match kernels {
        Kernels::Compile => build::hip::compile()?,
        Kernels::Prebuilt(folder) => build::hip::take(folder)?,
        Kernels::Off => build::hip::leave_out()?,
    }
    Ok(())
}

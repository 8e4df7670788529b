//! Compiles the kernels of the backends that are switched on. See `build/` for each of them.

mod build {
    #[cfg(feature = "cpu")]
    pub(crate) mod cpu;
    pub(crate) mod toolchain;
}

fn main() {
    println!("cargo::rustc-check-cfg=cfg(crossccl_no_kernels)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CROSSCCL_KERNELS");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    let choice = build::toolchain::kernels(|name| std::env::var(name).ok());
    match choice {
        Ok(build::toolchain::Kernels::Compile) => {
            #[cfg(feature = "cpu")]
            build::cpu::compile();
        }
        Ok(build::toolchain::Kernels::Off) => println!("cargo::rustc-cfg=crossccl_no_kernels"),
        Err(why) => println!("cargo::error={why}"),
    }
}

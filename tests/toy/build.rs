//! Compiles the toy's kernels: its own target, the algorithms from where crossccl's build script says they are.

fn main() {
    println!("cargo::rerun-if-changed=kernels.cc");
    let Ok(algorithms) = std::env::var("DEP_CROSSCCL_KERNELS") else {
        println!("cargo::error=DEP_CROSSCCL_KERNELS is not set: the package must depend on crossccl itself");
        return;
    };
    println!("cargo::rerun-if-changed={algorithms}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file("kernels.cc")
        .include(&algorithms)
        // Its speed is of no interest, and this is the quickest to compile.
        .opt_level(0)
        .warnings(true)
        .extra_warnings(true)
        // The numerics contract.
        .flag_if_supported("-ffp-contract=off")
        .flag_if_supported("-fno-fast-math")
        .flag_if_supported("-fno-exceptions")
        .flag_if_supported("-fno-rtti")
        .cpp_link_stdlib(None)
        .compile("crossccl_toy_kernels");
    println!("cargo::rustc-link-lib=m");
}

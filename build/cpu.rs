//! The CPU's kernels, by the C++ compiler that the `cc` crate finds (`CXX` overrides).

use super::toolchain;

/// Compiles `kernels-cpu` into a static library.
pub(crate) fn compile() -> Result<(), String> {
    for folder in ["kernels-common", "kernels-cpu"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .file("kernels-cpu/kernels.cc")
        // Always optimised: debug builds of the host code shall not make the kernels, and with them
        // the test suite, slow.
        .opt_level(3)
        .warnings(true)
        .extra_warnings(true)
        // The numerics contract: the same bits as every other target.
        .flag_if_supported("-ffp-contract=off")
        .flag_if_supported("-fno-fast-math")
        // The kernels need no C++ run-time library, so nothing has to be linked besides libc.
        .flag_if_supported("-fno-exceptions")
        .flag_if_supported("-fno-rtti")
        .cpp_link_stdlib(None)
        .try_compile("crossccl_kernels_cpu")
        .map_err(|why| toolchain::no_cxx(&why.to_string()))?;
    println!("cargo::rustc-link-lib=m");
    Ok(())
}

//! The library's name, by which whoever looks for `libamdhip64.so` finds it once it is loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libamdhip64.so");
}

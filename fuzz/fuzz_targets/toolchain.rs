//! What the build script reads: lists of architectures from the environment, and what compilers say.
#![no_main]

#[path = "../../build/toolchain.rs"]
#[allow(dead_code)]
mod toolchain;

use libfuzzer_sys::fuzz_target;
use toolchain::{cuda, gpu, hip, kernels};

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fuzz_target!(|text: &str| {
    let variable = |name: &'static str| move |asked: &str| (asked == name).then(|| text.to_owned());
    match cuda::architectures(variable("CUDA_ARCH_LIST")) {
        // Each becomes an argument of a compiler.
        Ok(list) => assert!(!list.is_empty() && list.iter().all(|one| is_word(&one.to_string())), "{list:?}"),
        Err(error) => assert!(error.contains("CUDA_ARCH_LIST"), "{error}"),
    }
    match hip::targets(variable("GPU_TARGETS")) {
        Ok(list) => assert!(!list.is_empty() && list.iter().all(|one| is_word(&one.name)), "{list:?}"),
        Err(error) => assert!(error.contains("GPU_TARGETS"), "{error}"),
    }
    let _ = kernels(variable("CROSSCCL_KERNELS"), |_| false);
    let _ = cuda::release(text);
    let _ = cuda::resources(text);
    let _ = hip::resources("gfx942", text);
    let _ = gpu::prebuilt(text, 1);
    let _ = gpu::constant(text, "kLine");
});

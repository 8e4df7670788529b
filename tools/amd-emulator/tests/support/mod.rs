//! What the tests share: kernels compiled by clang, and HIP's calls with an answer that says what failed.

#![allow(dead_code)]

use std::{
    ffi::{CString, c_void},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use amdhip64::*;

/// A call that must succeed.
macro_rules! ok {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the tests' arguments are what HIP asks for.
        let code = unsafe { $function($($argument),*) };
        assert_eq!(code, 0, "{}", stringify!($function));
    }};
}
pub(crate) use ok;

/// Tests take turns: they share the process's devices. Faults are answers here, where they else end the process.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: under the lock, before the first call of the emulator, which reads it once.
    unsafe {
        std::env::set_var("CROSSCCL_EMULATOR_FAULTS", "error");
        std::env::set_var("CROSSCCL_EMULATOR_STEPS", "50000000");
    }
    turn
}

/// The target of this run, as the emulator reads it.
pub(crate) fn target() -> String {
    let set = std::env::var("CROSSCCL_EMULATOR_TARGET").ok().filter(|v| !v.is_empty());
    set.unwrap_or_else(|| "gfx942".to_owned())
}

/// Compiles `kernels/NAME.hip` with these macros set; a code object.
pub(crate) fn compile(name: &str, defines: &[&str]) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(name).with_extension("hip");
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{name}-{}-{}-{}.co",
        target(),
        defines.join("-"),
        std::process::id()
    ));
    let compiler = std::env::var("CROSSCCL_EMULATOR_CLANG").unwrap_or_else(|_| "clang++-19".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc"]);
    command.args(["--no-gpu-bundle-output", "-O3", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]);
    command.arg(format!("--offload-arch={}", target()));
    command.args(defines.iter().map(|d| format!("-D{d}"))).arg(&source).arg("-o").arg(&output);
    let done = command.output();
    let done =
        done.unwrap_or_else(|e| panic!("{compiler}: {e}; install clang-19 and lld-19, or set CROSSCCL_EMULATOR_CLANG"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let object = std::fs::read(&output).expect("just written");
    let _ = std::fs::remove_file(&output);
    object
}

/// A function of a code object on a device.
pub(crate) fn function(device: usize, object: &[u8], name: &str) -> *mut c_void {
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    let name = CString::new(name).expect("no zero");
    ok!(hipSetDevice(device as i32));
    ok!(hipModuleLoadData(&raw mut module, object.as_ptr().cast()));
    ok!(hipModuleGetFunction(&raw mut function, module, name.as_ptr()));
    function
}

/// Memory of a device.
pub(crate) fn memory(device: usize, bytes: usize) -> *mut c_void {
    let mut address = std::ptr::null_mut();
    ok!(hipSetDevice(device as i32));
    ok!(hipMalloc(&raw mut address, bytes));
    address
}

/// Memory that is not cached.
pub(crate) fn uncached(device: usize, bytes: usize) -> *mut c_void {
    let mut address = std::ptr::null_mut();
    ok!(hipSetDevice(device as i32));
    ok!(hipExtMallocWithFlags(&raw mut address, bytes, 3));
    address
}

pub(crate) fn stream(device: usize) -> *mut c_void {
    let mut stream = std::ptr::null_mut();
    ok!(hipSetDevice(device as i32));
    ok!(hipStreamCreateWithFlags(&raw mut stream, 1));
    stream
}

pub(crate) fn write<T>(to: *mut c_void, data: &[T]) {
    ok!(hipMemcpy(to, data.as_ptr().cast(), size_of_val(data), 4));
}

pub(crate) fn read<T: Clone + Default>(from: *mut c_void, count: usize) -> Vec<T> {
    let mut data = vec![T::default(); count];
    ok!(hipMemcpy(data.as_mut_ptr().cast(), from, size_of_val(&data[..]), 4));
    data
}

/// Launches; the answer is HIP's.
pub(crate) fn launch<T>(function: *mut c_void, blocks: u32, threads: u32, stream: *mut c_void, arguments: &T) -> i32 {
    let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast()];
    let nothing = std::ptr::null_mut();
    // SAFETY: the kernels of these tests take one structure.
    unsafe { hipModuleLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters.as_mut_ptr(), nothing) }
}

/// Splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

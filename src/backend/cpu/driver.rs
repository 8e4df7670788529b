//! The functions that `kernels-cpu/kernels.cc` exports.

use super::super::Fault;
use crate::abi::Arguments;

/// A kernel's entry point: runs one block to its end on the calling thread.
pub(super) type Entry = unsafe extern "C" fn(*const Arguments, u32, u32);

cfg_if::cfg_if! {
    if #[cfg(crossccl_no_kernels)] {
        pub(super) fn kernels() -> Result<Vec<(&'static str, Entry)>, Fault> {
            Err(Fault::new("load", 0, "this build has no kernels (CROSSCCL_KERNELS=off)"))
        }

        pub(super) fn begin_thread() {}

        #[cfg(test)]
        pub(crate) fn probe(_what: u32, _x: u64, _y: u32, _z: u32) -> u64 {
            u64::MAX
        }
    } else {
        unsafe extern "C" {
            fn crossccl_cpu_kernel_count() -> usize;
            fn crossccl_cpu_kernel_name(index: usize) -> *const std::ffi::c_char;
            fn crossccl_cpu_kernel_entry(index: usize) -> Entry;
            fn crossccl_cpu_thread_begin();
            #[cfg(test)]
            fn crossccl_cpu_probe(what: u32, x: u64, y: u32, z: u32) -> u64;
        }

        /// Every kernel with its name.
        pub(super) fn kernels() -> Result<Vec<(&'static str, Entry)>, Fault> {
            // SAFETY: a constant.
            let count = unsafe { crossccl_cpu_kernel_count() };
            (0..count)
                .map(|index| {
                    // SAFETY: `index` is below the count; names are string literals.
                    let name = unsafe { std::ffi::CStr::from_ptr(crossccl_cpu_kernel_name(index)) };
                    let name = name.to_str().map_err(|e| Fault::new("load", 0, e.to_string()))?;
                    // SAFETY: `index` is below the count.
                    Ok((name, unsafe { crossccl_cpu_kernel_entry(index) }))
                })
                .collect()
        }

        /// To be called once on every thread that runs kernels.
        pub(super) fn begin_thread() {
            // SAFETY: sets the calling thread's floating-point mode, nothing else.
            unsafe { crossccl_cpu_thread_begin() }
        }

        #[cfg(test)]
        pub(crate) fn probe(what: u32, x: u64, y: u32, z: u32) -> u64 {
            // SAFETY: pure arithmetic; the tests give parts above 0 where it divides.
            unsafe { crossccl_cpu_probe(what, x, y, z) }
        }
    }
}

//! The functions that `kernels-cpu/kernels.cc` exports.

use super::super::Fault;
use crate::abi::Arguments;

/// A kernel's entry point: runs one block to its end on the calling thread.
pub(super) type Entry = unsafe extern "C" fn(*const Arguments, u32, u32);

cfg_if::cfg_if! {
    if #[cfg(crossccl_no_kernels)] {
        pub(super) fn kernels() -> Result<Vec<(&'static str, Entry)>, Fault> {
            Err(Fault::no_kernels("cpu"))
        }

        pub(super) fn begin_thread() {}

        pub(super) fn with_default_mode<R>(body: impl FnOnce() -> R) -> R {
            body()
        }

        #[cfg(test)]
        pub(crate) fn probe(_what: u32, _x: u64, _y: u32, _z: u32) -> u64 {
            u64::MAX
        }

        #[cfg(test)]
        pub(crate) fn facts() -> Vec<(String, u64)> {
            Vec::new()
        }
    } else {
        unsafe extern "C" {
            fn crossccl_cpu_kernel_count() -> usize;
            fn crossccl_cpu_kernel_name(index: usize) -> *const std::ffi::c_char;
            fn crossccl_cpu_kernel_entry(index: usize) -> Entry;
            fn crossccl_cpu_thread_begin();
            fn crossccl_cpu_mode_bytes() -> usize;
            fn crossccl_cpu_mode_default(before: *mut u8);
            fn crossccl_cpu_mode_restore(before: *const u8);
            #[cfg(test)]
            fn crossccl_cpu_probe(what: u32, x: u64, y: u32, z: u32) -> u64;
            #[cfg(test)]
            fn crossccl_cpu_fact_count() -> usize;
            #[cfg(test)]
            fn crossccl_cpu_fact_name(index: usize) -> *const std::ffi::c_char;
            #[cfg(test)]
            fn crossccl_cpu_fact_value(index: usize) -> u64;
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

        /// Runs `body` on a thread of the caller's: flush-to-zero there must not change results, and is
        /// as it was afterwards.
        pub(super) fn with_default_mode<R>(body: impl FnOnce() -> R) -> R {
            let mut before = Mode([0; 64]);
            // SAFETY: the mode fits, or nothing is done.
            let fits = unsafe { crossccl_cpu_mode_bytes() } <= before.0.len();
            if fits {
                // SAFETY: room for the mode, aligned.
                unsafe { crossccl_cpu_mode_default(before.0.as_mut_ptr()) };
            }
            let result = body();
            if fits {
                // SAFETY: written by the call above, on this thread.
                unsafe { crossccl_cpu_mode_restore(before.0.as_ptr()) };
            }
            result
        }

        #[repr(align(16))]
        struct Mode([u8; 64]);

        #[cfg(test)]
        pub(crate) fn probe(what: u32, x: u64, y: u32, z: u32) -> u64 {
            // SAFETY: pure arithmetic; the tests give parts above 0 where it divides.
            unsafe { crossccl_cpu_probe(what, x, y, z) }
        }

        /// Constants, sizes and offsets of the header, by name.
        #[cfg(test)]
        pub(crate) fn facts() -> Vec<(String, u64)> {
            let one = |index| {
                // SAFETY: `index` is below the count; names are string literals.
                let name = unsafe { std::ffi::CStr::from_ptr(crossccl_cpu_fact_name(index)) };
                // SAFETY: `index` is below the count.
                (name.to_string_lossy().into_owned(), unsafe { crossccl_cpu_fact_value(index) })
            };
            // SAFETY: a constant.
            (0..unsafe { crossccl_cpu_fact_count() }).map(one).collect()
        }
    }
}

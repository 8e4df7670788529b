//! Host memory for every kind: all virtual devices share it coherently.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use super::super::Fault;

const ALIGNMENT: usize = 128;

pub(super) fn allocate(bytes: usize) -> Result<u64, Fault> {
    let fault = |name: &str| Fault::new("allocate", 12, format!("{bytes} bytes: {name}"));
    let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| fault("more than an address space holds"))?;
    if bytes == 0 {
        return Err(fault("nothing to allocate"));
    }
    // SAFETY: the layout's size is not zero.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() { Err(fault("out of memory")) } else { Ok(pointer as u64) }
}

/// # Safety
/// `address` came from `allocate(bytes)`, is given back once, and nothing uses it any more.
pub(super) unsafe fn free(address: u64, bytes: usize) {
    if let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) {
        // SAFETY: the caller's promise; the layout is the one it was allocated with.
        unsafe { dealloc(address as *mut u8, layout) }
    }
}

//! Memory. Device memory comes from a pool of our own: taking from it and giving back wait for nobody, where
//! `cuMemFree` waits for the whole device, on which a collective may spin for a peer whose launch comes later
//! from this very thread.

use std::{
    ffi::{c_int, c_void},
    sync::{Mutex, PoisonError},
};

use super::{
    super::Fault,
    device::CudaDevice,
    driver::{self, MemoryLocation, PoolAccess, PoolProperties, Relaxed, call, sys},
};

/// A device's memory pool and the stream in whose order it gives and takes.
pub(super) struct Pool {
    /// Null where the device has no pools; plain allocation then.
    pool: sys::CUmemoryPool,
    stream: sys::CUstream,
    granted: Mutex<Vec<sys::CUdevice>>,
}

impl Pool {
    /// For the device whose context is current.
    pub(super) fn new(device: sys::CUdevice, ordinal: c_int) -> Result<Self, Fault> {
        let supported =
            driver::attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0;
        let (mut pool, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: locals; the properties have the driver's layout.
        unsafe {
            call!(cuStreamCreate(&raw mut stream, flags))?;
            if supported {
                let properties = PoolProperties {
                    allocation: driver::PINNED,
                    handles: 0,
                    location: MemoryLocation { kind: driver::ON_DEVICE, id: ordinal },
                    security: std::ptr::null_mut(),
                    reserved: [0; 64],
                };
                call!(cuMemPoolCreate(&raw mut pool, (&raw const properties).cast()))?;
                // What is given back stays here for the next: returning it to the driver waits for the device.
                let mut keep = u64::MAX;
                let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                call!(cuMemPoolSetAttribute(pool, which, (&raw mut keep).cast()))?;
            }
        }
        Ok(Pool { pool, stream, granted: Mutex::new(Vec::new()) })
    }

    /// Lets kernels of `device` touch what comes from here. Peer access alone does not cover pools.
    pub(super) fn grant(&self, device: sys::CUdevice) -> Result<(), Fault> {
        if self.pool.is_null() {
            return Ok(());
        }
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        if granted.contains(&device) {
            return Ok(());
        }
        let access =
            PoolAccess { location: MemoryLocation { kind: driver::ON_DEVICE, id: device }, flags: driver::READ_WRITE };
        // SAFETY: one description of the driver's layout.
        unsafe { call!(cuMemPoolSetAccess(self.pool, (&raw const access).cast(), 1))? };
        granted.push(device);
        Ok(())
    }
}

pub(super) fn allocate(device: &CudaDevice, bytes: usize) -> Result<u64, Fault> {
    let Pool { pool, stream, .. } = *device.pool();
    let _current = device.enter()?;
    let _relaxed = Relaxed::enter()?;
    let mut address = 0;
    // SAFETY: locals; the memory is new, and used by others after the wait only.
    unsafe {
        if pool.is_null() {
            call!(cuMemAlloc_v2(&raw mut address, bytes))?;
        } else {
            call!(cuMemAllocFromPoolAsync(&raw mut address, bytes, pool, stream))?;
        }
        let zeroed =
            call!(cuMemsetD8Async(address, 0, bytes, stream)).and_then(|()| call!(cuStreamSynchronize(stream)));
        if let Err(fault) = zeroed {
            release(pool, stream, address);
            return Err(fault);
        }
    }
    Ok(address)
}

/// # Safety
/// As for [`Backend::free`](crate::Backend::free).
pub(super) unsafe fn free(device: &CudaDevice, address: u64) {
    let Pool { pool, stream, .. } = *device.pool();
    let (Ok(_current), Ok(_relaxed)) = (device.enter(), Relaxed::enter()) else { return };
    // SAFETY: the caller's promise.
    unsafe { release(pool, stream, address) }
}

/// # Safety
/// As for [`free`].
unsafe fn release(pool: sys::CUmemoryPool, stream: sys::CUstream, address: u64) {
    // SAFETY: the caller's promise. A failure here is the driver's end, of which others tell.
    let _ =
        unsafe { if pool.is_null() { call!(cuMemFree_v2(address)) } else { call!(cuMemFreeAsync(address, stream)) } };
}

/// Pinned host memory that was given back: addresses and sizes. The driver waits for devices when it frees
/// such memory, and there is little of it (one control structure a rank), so it is kept for the next.
static PINNED: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());

pub(super) fn allocate_host(device: &CudaDevice, bytes: usize) -> Result<u64, Fault> {
    let mut kept = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let address = match kept.iter().position(|(_, size)| *size == bytes) {
        Some(at) => kept.swap_remove(at).0,
        None => {
            drop(kept);
            let _current = device.enter()?;
            let _relaxed = Relaxed::enter()?;
            let mut address: *mut c_void = std::ptr::null_mut();
            // Reachable from every device, under its own address.
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
            // SAFETY: a local.
            unsafe { call!(cuMemHostAlloc(&raw mut address, bytes, flags))? };
            address as u64
        }
    };
    // SAFETY: host memory of this size, that nobody else has.
    unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes) };
    Ok(address)
}

pub(super) fn free_host(address: u64, bytes: usize) {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).push((address, bytes));
}

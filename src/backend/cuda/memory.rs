//! Memory. Device memory comes from a pool of our own: taking from it and giving back wait for nobody, where
//! `cuMemFree` waits for the whole device, on which a collective may spin for a peer whose launch comes later
//! from this very thread.

use std::{
    ffi::{c_int, c_uint, c_void},
    sync::{Mutex, PoisonError},
};

use super::{
    super::{Fault, Unfit},
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
        // SAFETY: locals; the properties have the driver's layout; what was made is given back once, if not all was.
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
                call!(cuMemPoolCreate(&raw mut pool, (&raw const properties).cast())).inspect_err(|_| {
                    let _ = call!(cuStreamDestroy_v2(stream));
                })?;
                // What is given back stays here for the next: returning it to the driver waits for the device.
                let mut keep = u64::MAX;
                let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                call!(cuMemPoolSetAttribute(pool, which, (&raw mut keep).cast())).inspect_err(|_| {
                    let _ = (call!(cuMemPoolDestroy(pool)), call!(cuStreamDestroy_v2(stream)));
                })?;
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
        let_in(self.pool, device)?;
        granted.push(device);
        Ok(())
    }
}

/// Lets kernels of `device` touch what comes from `pool`, which the driver gave or named.
fn let_in(pool: sys::CUmemoryPool, device: sys::CUdevice) -> Result<(), Fault> {
    let location = MemoryLocation { kind: driver::ON_DEVICE, id: device };
    let access = PoolAccess { location, flags: driver::READ_WRITE };
    // SAFETY: one description of the driver's layout.
    unsafe { call!(cuMemPoolSetAccess(pool, (&raw const access).cast(), 1)) }
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

/// The driver's answers about an address, each defaulting to nothing where it knows none.
#[derive(Default)]
struct Known {
    kind: c_uint,
    ordinal: c_int,
    start: sys::CUdeviceptr,
    bytes: usize,
    pool: u64,
}

fn ask(address: u64) -> Result<Known, Fault> {
    use sys::CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE as KIND,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as POOL, CU_POINTER_ATTRIBUTE_RANGE_SIZE as BYTES,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as START,
    };
    let mut known = Known::default();
    let mut attributes = [KIND, ORDINAL, START, BYTES, POOL];
    let mut answers: [*mut c_void; 5] = [
        (&raw mut known.kind).cast(),
        (&raw mut known.ordinal).cast(),
        (&raw mut known.start).cast(),
        (&raw mut known.bytes).cast(),
        (&raw mut known.pool).cast(),
    ];
    // SAFETY: as many attributes as answers, each of the type that the driver writes.
    unsafe {
        call!(cuPointerGetAttributes(answers.len() as u32, attributes.as_mut_ptr(), answers.as_mut_ptr(), address))?;
    }
    Ok(known)
}

/// Memory of the caller's: on the device, long enough, and reachable by the peers. Memory of a pool is not, by
/// peer access alone: its pool is asked to let them in.
pub(super) fn check(device: &CudaDevice, peers: &[&CudaDevice], address: u64, bytes: usize) -> Result<(), Unfit> {
    let wrong = |got: String| Unfit::Wrong { expected: format!("memory of device {}", device.ordinal()), got };
    // Of an address that it does not know the driver says so without an error.
    let known = device.enter().and_then(|_current| ask(address)).map_err(Unfit::Unknown)?;
    // CU_MEMORYTYPE_DEVICE; 0 is memory that the driver does not know.
    match known.kind {
        2 => {}
        0 => return Err(wrong(format!("{address:#x}, which no device knows"))),
        1 => return Err(wrong(format!("host memory at {address:#x}"))),
        other => return Err(wrong(format!("memory of type {other} at {address:#x}"))),
    }
    if usize::try_from(known.ordinal) != Ok(device.ordinal()) {
        return Err(wrong(format!("memory of device {} at {address:#x}", known.ordinal)));
    }
    let end = known.start.saturating_add(known.bytes as u64);
    if known.bytes > 0 && address.saturating_add(bytes as u64) > end {
        let expected = format!("{bytes} bytes within one allocation");
        return Err(Unfit::Wrong { expected, got: format!("{} bytes from {address:#x} on", end - address.min(end)) });
    }
    if known.pool == 0 || known.pool == device.pool().pool as u64 {
        return Ok(());
    }
    for (peer, other) in peers.iter().enumerate().filter(|(_, other)| **other != device) {
        let_in(known.pool as sys::CUmemoryPool, other.handle())
            .map_err(|fault| Unfit::Unreachable { peer, reason: format!("{}: {}", fault.call, fault.name) })?;
    }
    Ok(())
}

//! Memory. Device memory comes from a pool of our own: taking from it and giving back wait for nobody, where
//! `cuMemFree` waits for the whole device, on which a collective may spin for a peer whose launch comes later
//! from this very thread.

use std::{
    collections::HashMap,
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
    let _relaxed = Relaxed::enter()?;
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

/// What the driver says of an address in one question: enough to know an allocation again.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Allocated {
    start: sys::CUdeviceptr,
    /// Of mapped memory, the reserved range with its holes.
    bytes: usize,
    pool: u64,
    /// No other allocation of the process has it, before or after.
    id: u64,
    /// 1 for what `cuMemAlloc` gives, never for mapped memory.
    plain: u64,
}

/// What it says of the piece of memory around an address.
#[derive(Default)]
struct Piece {
    kind: c_uint,
    ordinal: c_int,
    managed: u64,
    start: sys::CUdeviceptr,
    bytes: usize,
}

/// Asks for several attributes at once. An address that the driver does not know is no error: it answers zeros.
///
/// # Safety
/// Each answer has room for what the driver writes.
unsafe fn ask<const N: usize>(
    address: u64,
    mut attributes: [sys::CUpointer_attribute; N],
    mut answers: [*mut c_void; N],
) -> Result<(), Fault> {
    // SAFETY: as many attributes as answers; the caller's promise.
    unsafe { call!(cuPointerGetAttributes(N as u32, attributes.as_mut_ptr(), answers.as_mut_ptr(), address)) }
}

impl Allocated {
    fn of(address: u64) -> Result<Self, Fault> {
        use sys::CUpointer_attribute::{
            CU_POINTER_ATTRIBUTE_BUFFER_ID as ID, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as PLAIN,
            CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as POOL, CU_POINTER_ATTRIBUTE_RANGE_SIZE as BYTES,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as START,
        };
        let mut one = Allocated::default();
        let answers = [
            (&raw mut one.start).cast(),
            (&raw mut one.bytes).cast(),
            (&raw mut one.pool).cast(),
            (&raw mut one.id).cast(),
            (&raw mut one.plain).cast(),
        ];
        // SAFETY: of the types that the driver writes, or larger.
        unsafe { ask(address, [START, BYTES, POOL, ID, PLAIN], answers)? };
        Ok(one)
    }

    /// Whether all of it is reached by whoever reaches one address of it, as long as it exists. Mapped memory is
    /// granted and taken back piece by piece, whatever its id is.
    fn is_whole(&self) -> bool {
        self.id != 0 && (self.pool != 0 || self.plain != 0)
    }

    fn check_length(&self, address: u64, bytes: usize) -> Result<(), Unfit> {
        let end = self.start.saturating_add(self.bytes as u64);
        if self.bytes > 0 && address.saturating_add(bytes as u64) > end {
            let got = format!("{} bytes from {address:#x} on", end - address.min(end));
            return Err(Unfit::Wrong { expected: format!("{bytes} bytes within one allocation"), got });
        }
        Ok(())
    }
}

impl Piece {
    fn of(address: u64) -> Result<Self, Fault> {
        use sys::CUpointer_attribute::{
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED as MANAGED,
            CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR as START, CU_POINTER_ATTRIBUTE_MAPPING_SIZE as BYTES,
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE as KIND,
        };
        let mut one = Piece::default();
        let answers = [
            (&raw mut one.kind).cast(),
            (&raw mut one.ordinal).cast(),
            (&raw mut one.managed).cast(),
            (&raw mut one.start).cast(),
            (&raw mut one.bytes).cast(),
        ];
        // SAFETY: of the types that the driver writes, or larger.
        unsafe { ask(address, [KIND, ORDINAL, MANAGED, START, BYTES], answers)? };
        Ok(one)
    }

    /// It must be memory of the device, to which pages do not move from others while kernels wait for each other.
    fn check_place(&self, device: &CudaDevice, address: u64) -> Result<(), Unfit> {
        let got = match self.kind {
            // CU_MEMORYTYPE_DEVICE; 0 is memory that the driver does not know.
            _ if self.managed != 0 => format!("managed memory at {address:#x}"),
            2 if usize::try_from(self.ordinal) == Ok(device.ordinal()) => return Ok(()),
            2 => format!("memory of device {} at {address:#x}", self.ordinal),
            0 => format!("{address:#x}, which no device knows"),
            1 => format!("host memory at {address:#x}"),
            other => format!("memory of type {other} at {address:#x}"),
        };
        Err(Unfit::Wrong { expected: format!("memory of device {}", device.ordinal()), got })
    }
}

/// Allocations of a device whose reach was seen, and by which devices' kernels, as bits.
#[derive(Default)]
pub(super) struct Proven(Mutex<HashMap<u64, (Allocated, u64)>>);

impl Proven {
    /// Old ones are not missed for long: to see the reach again takes a microsecond.
    const MOST: usize = 4096;

    fn holds(&self, one: &Allocated, readers: u64) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&one.id).is_some_and(|(same, reached)| same == one && reached & readers == readers)
    }

    fn add(&self, one: Allocated, readers: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::MOST {
            known.clear();
        }
        let (same, reached) = known.entry(one.id).or_insert((one, 0));
        *reached = if *same == one { *reached | readers } else { readers };
        *same = one;
    }
}

/// Those whose kernels may touch a rank's memory: its device, and those of its peers, each once.
struct Readers<'a> {
    device: &'a CudaDevice,
    peers: &'a [&'a CudaDevice],
}

impl Readers<'_> {
    /// One bit each; `None` where they do not fit.
    fn bits(&self) -> Option<u64> {
        let all = std::iter::once(&self.device).chain(self.peers);
        all.map(|one| 1u64.checked_shl(one.ordinal() as u32)).try_fold(0, |bits, one| Some(bits | one?))
    }

    /// `None` is the device itself.
    fn each(&self, mut body: impl FnMut(Option<usize>, &CudaDevice) -> Result<(), Unfit>) -> Result<(), Unfit> {
        body(None, self.device)?;
        let others = self.peers.iter().enumerate();
        let mut first = others.filter(|(at, one)| **one != self.device && !self.peers[..*at].contains(one));
        first.try_for_each(|(at, one)| body(Some(at), one))
    }

    fn refused(&self, who: Option<usize>, address: u64, reason: String) -> Unfit {
        match who {
            Some(peer) => Unfit::Unreachable { peer, reason },
            None => Unfit::Wrong {
                expected: format!("memory that kernels of device {} reach", self.device.ordinal()),
                got: format!("{address:#x}, which they do not reach ({reason})"),
            },
        }
    }
}

/// Whether kernels in the device's context reach an address. The right question for plain memory and pools.
fn reaches(reader: &CudaDevice, address: u64) -> Result<bool, Fault> {
    use sys::CUresult::{
        CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, CUDA_SUCCESS,
    };
    let _current = reader.enter()?;
    let mut there: sys::CUdeviceptr = 0;
    let which = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
    // SAFETY: a local of the type that the driver writes.
    match unsafe { sys::cuPointerGetAttribute((&raw mut there).cast(), which, address) } {
        CUDA_SUCCESS => Ok(there == address),
        CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_INVALID_CONTEXT | CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => Ok(false),
        result => Err(driver::fault("cuPointerGetAttribute", result)),
    }
}

/// Whether kernels of the device were granted mapped memory. Of any other memory the driver says no.
fn is_granted(reader: &CudaDevice, address: u64) -> Result<bool, Fault> {
    let location = MemoryLocation { kind: driver::ON_DEVICE, id: reader.handle() };
    let mut flags = 0;
    // SAFETY: a local, and a location of the driver's layout.
    match unsafe { sys::cuMemGetAccess(&raw mut flags, (&raw const location).cast(), address) } {
        sys::CUresult::CUDA_ERROR_INVALID_VALUE => Ok(false),
        result => driver::check("cuMemGetAccess", result).map(|()| flags == u64::from(driver::READ_WRITE)),
    }
}

/// Lets kernels of the device into one mapped piece. Pieces are granted whole.
fn grant_mapped(reader: &CudaDevice, piece: &Piece) -> Result<(), Fault> {
    let location = MemoryLocation { kind: driver::ON_DEVICE, id: reader.handle() };
    let access = PoolAccess { location, flags: driver::READ_WRITE };
    let _relaxed = Relaxed::enter()?;
    // SAFETY: one description of the driver's layout.
    unsafe { call!(cuMemSetAccess(piece.start, piece.bytes, (&raw const access).cast(), 1)) }
}

fn no_address(reader: &CudaDevice) -> String {
    format!("the driver has no address of it for device {}", reader.ordinal())
}

fn said(fault: &Fault) -> String {
    format!("{}: {}", fault.call, fault.name)
}

/// Memory of the caller's: on the device, long enough, and reachable by its kernels and by the peers'. A pool, and
/// memory that a framework maps, is asked to let them in: peer access does not cover either, and a kernel that touches
/// what it cannot reach ends the contexts of the whole process.
pub(super) fn check(device: &CudaDevice, peers: &[&CudaDevice], address: u64, bytes: usize) -> Result<(), Unfit> {
    let _current = device.enter().map_err(Unfit::Unknown)?;
    let readers = Readers { device, peers };
    let one = Allocated::of(address).map_err(Unfit::Unknown)?;
    let bits = if one.is_whole() { readers.bits() } else { None };
    if bits.is_some_and(|bits| device.proven().holds(&one, bits)) {
        return one.check_length(address, bytes);
    }
    let piece = Piece::of(address).map_err(Unfit::Unknown)?;
    piece.check_place(device, address)?;
    one.check_length(address, bytes)?;
    if one.pool != 0 {
        readers.each(|who, reader| check_pool(&readers, &one, address, who, reader))?;
    } else if one.plain != 0 {
        readers.each(|who, reader| check_plain(&readers, address, who, reader))?;
    } else {
        check_pieces(&readers, piece, address, bytes)?;
    }
    if let Some(bits) = bits {
        device.proven().add(one, bits);
    }
    Ok(())
}

fn check_pool(
    readers: &Readers<'_>,
    one: &Allocated,
    address: u64,
    who: Option<usize>,
    reader: &CudaDevice,
) -> Result<(), Unfit> {
    if reaches(reader, address).map_err(Unfit::Unknown)? {
        return Ok(());
    }
    let_in(one.pool as sys::CUmemoryPool, reader.handle()).map_err(|fault| readers.refused(who, address, said(&fault)))
}

fn check_plain(readers: &Readers<'_>, address: u64, who: Option<usize>, reader: &CudaDevice) -> Result<(), Unfit> {
    if reaches(reader, address).map_err(Unfit::Unknown)? {
        return Ok(());
    }
    Err(readers.refused(who, address, no_address(reader)))
}

/// Memory that a framework maps, piece by piece and with holes; or what is told from it by its own device's answer
/// alone: imported memory, and plain memory where nothing can be exported.
fn check_pieces(readers: &Readers<'_>, first: Piece, address: u64, bytes: usize) -> Result<(), Unfit> {
    let end = address.saturating_add(bytes as u64);
    let (mut piece, mut at) = (first, address);
    loop {
        let granted = is_granted(readers.device, at).map_err(Unfit::Unknown)?;
        if !granted && reaches(readers.device, at).map_err(Unfit::Unknown)? {
            return readers.each(|who, reader| check_plain(readers, at, who, reader));
        }
        readers.each(|who, reader| {
            let granted = if who.is_none() { Ok(granted) } else { is_granted(reader, at) };
            if granted.map_err(Unfit::Unknown)? {
                return Ok(());
            }
            grant_mapped(reader, &piece).map_err(|fault| readers.refused(who, at, said(&fault)))
        })?;
        let next = piece.start.saturating_add(piece.bytes as u64);
        if next <= at || next >= end {
            return Ok(());
        }
        at = next;
        piece = Piece::of(at).map_err(Unfit::Unknown)?;
        if piece.kind == 0 {
            let got = format!("{} bytes from {address:#x} on", at - address);
            return Err(Unfit::Wrong { expected: format!("{bytes} mapped bytes"), got });
        }
        piece.check_place(readers.device, at)?;
    }
}

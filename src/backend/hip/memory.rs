//! Memory. What is given back is kept for the next: `hipFree` waits for the whole device, on which a collective may
//! spin for a peer whose launch comes later from this very thread. Peer access covers all of what is allocated here.

use std::{
    collections::HashMap,
    ffi::c_void,
    sync::{Mutex, PoisonError},
};

use super::{
    super::{Fault, MemoryKind, Unfit},
    device::HipDevice,
    driver::{self, Relaxed, call},
    sys,
};

/// A device's memory that waits to be used again, and the stream in which it is zeroed.
pub(super) struct Memory {
    stream: sys::Stream,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    kept: Vec<(MemoryKind, u64)>,
    /// Of every block there is.
    sizes: HashMap<u64, usize>,
}

impl Blocks {
    fn size(&self, address: u64) -> usize {
        self.sizes.get(&address).copied().unwrap_or(0)
    }

    /// The smallest that was kept, of this kind and of `from` to `to` bytes.
    fn take(&mut self, kind: MemoryKind, from: usize, to: usize) -> Option<u64> {
        let fits = |(of, address): &(MemoryKind, u64)| *of == kind && (from..=to).contains(&self.size(*address));
        let fitting = self.kept.iter().enumerate().filter(|(_, block)| fits(block));
        let (at, _) = fitting.min_by_key(|(_, (_, address))| self.size(*address))?;
        Some(self.kept.swap_remove(at).1)
    }
}

/// Sizes are rounded up so that memory fits again: to 4 KiB, and to an eighth of the size at most.
fn rounded(bytes: usize) -> usize {
    let step = bytes.checked_next_power_of_two().map_or(4096, |power| (power / 16).max(4096));
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

impl Memory {
    /// For the device that is current.
    pub(super) fn new() -> Result<Self, Fault> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a local.
        unsafe { call!(hipStreamCreateWithFlags(&raw mut stream, sys::STREAM_NON_BLOCKING))? };
        Ok(Memory { stream, blocks: Mutex::new(Blocks::default()) })
    }

    fn with<R>(&self, body: impl FnOnce(&mut Blocks) -> R) -> R {
        body(&mut self.blocks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The device is current.
    fn take(&self, device: &HipDevice, kind: MemoryKind, bytes: usize) -> Result<u64, Fault> {
        let size = rounded(bytes);
        if let Some(address) = self.with(|blocks| blocks.take(kind, size, size)) {
            return Ok(address);
        }
        let new = if kind == MemoryKind::Signal { coherent(device, size) } else { plain(size) };
        match new {
            Ok(address) => {
                self.with(|blocks| blocks.sizes.insert(address, size));
                Ok(address)
            }
            Err(fault) if fault.code == i64::from(sys::OUT_OF_MEMORY) => {
                // What is kept cannot be exchanged for another size without a wait for the device.
                let larger =
                    |blocks: &mut Blocks| blocks.take(kind, size, usize::MAX).ok_or_else(|| blocks.bytes_kept());
                self.with(larger).map_err(|kept| Fault {
                    name: format!(
                        "{} for {bytes} bytes; {kept} bytes are kept from buffers that were dropped",
                        fault.name
                    ),
                    ..fault
                })
            }
            Err(fault) => Err(fault),
        }
    }

    fn keep(&self, kind: MemoryKind, address: u64) {
        self.with(|blocks| blocks.kept.push((kind, address)));
    }
}

impl Blocks {
    fn bytes_kept(&self) -> usize {
        self.kept.iter().map(|(_, address)| self.size(*address)).sum()
    }
}

fn plain(bytes: usize) -> Result<u64, Fault> {
    let mut address: *mut c_void = std::ptr::null_mut();
    // SAFETY: a local.
    unsafe { call!(hipMalloc(&raw mut address, bytes))? };
    Ok(address as u64)
}

/// Memory that peers' kernels see and write while kernels run: never cached where the runtime offers that, otherwise
/// fine-grained (case E6).
fn coherent(device: &HipDevice, bytes: usize) -> Result<u64, Fault> {
    let allocate = |flags| {
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: a local.
        unsafe { call!(hipExtMallocWithFlags(&raw mut address, bytes, flags))? };
        Ok(address as u64)
    };
    // By its codes for flags that it does not know, or a device that cannot.
    let refused = |fault: &Fault| [sys::INVALID_VALUE, sys::NOT_SUPPORTED].map(i64::from).contains(&fault.code);
    match allocate(sys::UNCACHED) {
        Err(fault) if refused(&fault) => {}
        other => return other,
    }
    // A device without it may be given ordinary memory instead. Where the runtime does not tell, it is believed.
    if driver::attribute(device.number(), sys::FINE_GRAIN_SUPPORT).is_ok_and(|supported| supported == 0) {
        let name = format!("neither uncached nor fine-grained memory on {}", device.architecture());
        return Err(Fault::not_coherent("hipExtMallocWithFlags", 0, name));
    }
    allocate(sys::FINE_GRAINED)
        .map_err(|fault| if refused(&fault) { Fault::not_coherent(fault.call, fault.code, fault.name) } else { fault })
}

pub(super) fn allocate(device: &HipDevice, kind: MemoryKind, bytes: usize) -> Result<u64, Fault> {
    let memory = device.memory();
    let _current = device.enter()?;
    let _relaxed = Relaxed::enter()?;
    let address = memory.take(device, kind, bytes)?;
    let stream = memory.stream;
    // SAFETY: the memory is of this size at least, and used by others after the wait only.
    let zeroed = unsafe {
        call!(hipMemsetAsync(address as *mut c_void, 0, bytes, stream))
            .and_then(|()| call!(hipStreamSynchronize(stream)))
    };
    // The next that gets it zeroes it in the same stream, behind this.
    zeroed.map(|()| address).inspect_err(|_| memory.keep(kind, address))
}

pub(super) fn free(device: &HipDevice, kind: MemoryKind, address: u64) {
    device.memory().keep(kind, address);
}

/// Pinned host memory that was given back: addresses and sizes. The runtime waits for devices when it frees
/// such memory, and there is little of it (one control structure a rank), so it is kept for the next.
static PINNED: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());

pub(super) fn allocate_host(device: &HipDevice, bytes: usize) -> Result<u64, Fault> {
    let mut kept = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let address = match kept.iter().position(|(_, size)| *size == bytes) {
        Some(at) => kept.swap_remove(at).0,
        None => {
            drop(kept);
            let _current = device.enter()?;
            let _relaxed = Relaxed::enter()?;
            let mut address: *mut c_void = std::ptr::null_mut();
            // Reachable from every device, under its own address, and coherent whatever HIP_HOST_COHERENT says.
            let flags = sys::HOST_PORTABLE | sys::HOST_MAPPED | sys::HOST_COHERENT;
            // SAFETY: a local.
            unsafe { call!(hipHostMalloc(&raw mut address, bytes, flags))? };
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

/// What the runtime knows of an address: type, device and whether it is managed, or nothing.
fn ask(address: u64) -> Result<Option<(i32, i32, bool)>, Fault> {
    let driver = driver::driver()?;
    let mut known = sys::PointerAttributes::NOTHING;
    // SAFETY: a local, larger than the structure.
    match unsafe { (driver.functions.hipPointerGetAttributes)(&raw mut known, address as *const c_void) } {
        // HIP 5; later ones have a type for that.
        sys::INVALID_VALUE => {
            driver.forget_last_error();
            Ok(None)
        }
        code => {
            let answer = (known.kind, known.device, known.managed != 0);
            driver.check("hipPointerGetAttributes", code).map(|()| Some(answer))
        }
    }
}

fn range(address: u64) -> Result<(u64, usize), Fault> {
    let (mut start, mut bytes): (*mut c_void, usize) = (std::ptr::null_mut(), 0);
    // SAFETY: locals.
    unsafe { call!(hipMemGetAddressRange(&raw mut start, &raw mut bytes, address as *mut c_void))? };
    Ok((start as u64, bytes))
}

/// It must be memory of the device, to which pages do not move from others while kernels wait for each other. False
/// where the runtime knows no memory there.
fn check_place(device: &HipDevice, address: u64) -> Result<bool, Unfit> {
    let (host, plain) = sys::memory_types(driver::driver().map_err(Unfit::Unknown)?.version);
    let got = match ask(address).map_err(Unfit::Unknown)? {
        None => return Ok(false),
        Some((_, _, true)) => format!("managed memory at {address:#x}"),
        Some((kind, on, _)) if kind == plain && on == device.number() => return Ok(true),
        Some((kind, on, _)) if kind == plain => format!("memory of device {on} at {address:#x}"),
        Some((kind, ..)) if kind == host => format!("host memory at {address:#x}"),
        // In HIP 5 that number is the host's.
        Some((sys::MEMORY_UNREGISTERED, ..)) => return Ok(false),
        Some((kind, ..)) => format!("memory of type {kind} at {address:#x}"),
    };
    Err(Unfit::Wrong { expected: format!("memory of device {}", device.ordinal()), got })
}

/// Whether kernels of the device were granted mapped memory. `None` of any other memory, or where the runtime has none.
fn granted(reader: &HipDevice, address: u64) -> Result<Option<bool>, Fault> {
    let driver = driver::driver()?;
    let Some(get_access) = driver.functions.hipMemGetAccess else { return Ok(None) };
    let location = sys::MemoryAccess::of(reader.number()).location;
    let mut flags = 0;
    // SAFETY: locals.
    match unsafe { get_access(&raw mut flags, &raw const location, address as *mut c_void) } {
        sys::INVALID_VALUE | sys::NOT_SUPPORTED => {
            driver.forget_last_error();
            Ok(None)
        }
        code => driver.check("hipMemGetAccess", code).map(|()| Some(flags == sys::MEMORY_READ_WRITE as u64)),
    }
}

/// Lets kernels of the device into one mapped piece, which is granted whole.
fn grant(reader: &HipDevice, (start, bytes): (u64, usize)) -> Result<(), Fault> {
    let driver = driver::driver()?;
    let Some(set_access) = driver.functions.hipMemSetAccess else {
        return Err(Fault::new("hipMemSetAccess", sys::NOT_SUPPORTED.into(), "the runtime does not have it"));
    };
    let access = sys::MemoryAccess::of(reader.number());
    let _relaxed = Relaxed::enter()?;
    // SAFETY: a local.
    driver.check("hipMemSetAccess", unsafe { set_access(start as *mut c_void, bytes, &raw const access, 1) })
}

/// Lets kernels of `reader` into the pools from which `hipMallocAsync` takes memory of `device` by itself: peer access
/// does not cover them, and of an address the runtime does not tell the pool.
pub(super) fn let_into_pools(reader: &HipDevice, device: &HipDevice) -> Result<(), Fault> {
    let driver = driver::driver()?;
    let functions = &driver.functions;
    let Some(set_access) = functions.hipMemPoolSetAccess else { return Ok(()) };
    let access = sys::MemoryAccess::of(reader.number());
    let default = ("hipDeviceGetDefaultMemPool", functions.hipDeviceGetDefaultMemPool);
    let mut before = std::ptr::null_mut();
    for (name, get) in [default, ("hipDeviceGetMemPool", functions.hipDeviceGetMemPool)] {
        let Some(get) = get else { continue };
        let mut pool: sys::Pool = std::ptr::null_mut();
        // SAFETY: a local.
        match unsafe { get(&raw mut pool, device.number()) } {
            // The device has none.
            sys::NOT_SUPPORTED => driver.forget_last_error(),
            code => driver.check(name, code)?,
        }
        if pool.is_null() || pool == before {
            continue;
        }
        before = pool;
        // SAFETY: the pool is the runtime's; a local.
        driver.check("hipMemPoolSetAccess", unsafe { set_access(pool, &raw const access, 1) })?;
    }
    Ok(())
}

/// Memory of the caller's: on the device, and long enough. Peers reach it by peer access; memory that a framework maps
/// piece by piece is granted to them, since peer access does not cover it. Of other pools than the device's own the
/// runtime does not tell.
pub(super) fn check(device: &HipDevice, peers: &[&HipDevice], address: u64, bytes: usize) -> Result<(), Unfit> {
    let _current = device.enter().map_err(Unfit::Unknown)?;
    let (mut at, end) = (address, address.saturating_add(bytes as u64));
    let short = |at: u64, what: &str| {
        let got = format!("{} bytes from {address:#x} on", at - address.min(at));
        Err(Unfit::Wrong { expected: format!("{bytes} {what}"), got })
    };
    loop {
        if !check_place(device, at)? {
            let expected = format!("memory of device {}", device.ordinal());
            let unknown = Unfit::Wrong { expected, got: format!("{address:#x}, which no device knows") };
            return if at == address { Err(unknown) } else { short(at, "mapped bytes") };
        }
        let piece = range(at).map_err(Unfit::Unknown)?;
        let next = piece.0.saturating_add(piece.1 as u64);
        if !check_piece(device, peers, at, piece)? {
            return if end > next { short(next, "bytes within one allocation") } else { Ok(()) };
        }
        if next >= end || next <= at {
            return Ok(());
        }
        at = next;
    }
}

/// Lets the device and its peers into a mapped piece; false of memory that is not mapped.
fn check_piece(device: &HipDevice, peers: &[&HipDevice], address: u64, piece: (u64, usize)) -> Result<bool, Unfit> {
    match granted(device, address).map_err(Unfit::Unknown)? {
        None => return Ok(false),
        Some(true) => {}
        Some(false) => match grant(device, piece) {
            Ok(()) => {}
            // Some runtimes say so of plain memory, which cannot be granted.
            Err(fault) if [sys::INVALID_VALUE, sys::NOT_SUPPORTED].map(i64::from).contains(&fault.code) => {
                return Ok(false);
            }
            Err(fault) => return Err(Unfit::Unknown(fault)),
        },
    }
    for (at, peer) in peers.iter().enumerate() {
        if *peer != device && granted(peer, address).map_err(Unfit::Unknown)? != Some(true) {
            let reason = |fault: Fault| format!("{}: {}", fault.call, fault.name);
            grant(peer, piece).map_err(|fault| Unfit::Unreachable { peer: at, reason: reason(fault) })?;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_by_an_eighth_at_most() {
        for bytes in [1, 4095, 4096, 4097, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 999_999_999, usize::MAX] {
            let size = rounded(bytes);
            assert!(size >= bytes && size - bytes < (bytes / 8).max(4096), "{bytes}: {size}");
            assert_eq!(rounded(size), size, "{bytes}");
        }
    }

    #[test]
    fn what_was_kept_is_found_by_kind_and_size() {
        let mut blocks = Blocks::default();
        for (kind, address, size) in
            [(MemoryKind::Device, 1, 4096), (MemoryKind::Device, 2, 12_288), (MemoryKind::Signal, 3, 8192)]
        {
            blocks.sizes.insert(address, size);
            blocks.kept.push((kind, address));
        }
        assert_eq!(blocks.bytes_kept(), 24_576);
        assert_eq!(blocks.take(MemoryKind::Device, 8192, 8192), None);
        assert_eq!(blocks.take(MemoryKind::Device, 8192, usize::MAX), Some(2));
        assert_eq!(blocks.take(MemoryKind::Signal, 8192, 8192), Some(3));
        assert_eq!(blocks.take(MemoryKind::Signal, 0, usize::MAX), None);
        assert_eq!(blocks.take(MemoryKind::Device, 0, usize::MAX), Some(1));
        assert_eq!(blocks.bytes_kept(), 0);
    }
}

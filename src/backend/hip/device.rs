//! Devices: what they are, their kernels and their memory, one of each a device and process.

use std::{
    ffi::{CString, c_int},
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use super::{
    super::{Fault, Link, Properties},
    driver::{self, Current, Relaxed, call},
    images,
    memory::{self, Memory},
    sys,
};
use crate::plan::{Blocks, Kernel, Packets};

/// More are for callers who ask: two communicators on one device shall fit together.
const PREFERRED_BLOCKS: u32 = 64;

/// What the clock that the kernels read does, in kHz, where the runtime does not tell: the constant reference clock
/// of gfx9 and later.
const CLOCK_RATE: c_int = 100_000;

/// A device of the HIP backend. Clones, and two that were opened by one ordinal, are the same.
#[derive(Clone)]
pub struct HipDevice {
    inner: Arc<Inner>,
}

struct Inner {
    number: c_int,
    name: String,
    /// With features: `gfx942:sramecc+:xnack-`.
    architecture: String,
    memory: Memory,
    functions: OnceLock<Vec<HipFunction>>,
    loading: Mutex<()>,
    events: Mutex<Vec<EventHandle>>,
}

/// A kernel of the HIP backend.
#[derive(Clone, Copy, Debug)]
pub struct HipFunction(pub(super) sys::Function);

// SAFETY: handles of the runtime, which may be used from any thread.
unsafe impl Send for HipFunction {}
// SAFETY: as above.
unsafe impl Sync for HipFunction {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// An event of the runtime's that waits to be used again.
pub(super) struct EventHandle(pub(super) sys::Event);

// SAFETY: as above.
unsafe impl Send for EventHandle {}

impl HipDevice {
    pub(super) fn count() -> Result<usize, Fault> {
        let mut count = 0;
        // SAFETY: a local.
        let counted = unsafe { call!(hipGetDeviceCount(&raw mut count)) };
        // No device is an error of the runtime's, by one code here and by the other nearly everywhere else.
        counted.map_err(|fault| match fault.code.try_into() {
            Ok(sys::NO_DEVICE | sys::INVALID_DEVICE) => Fault {
                name: format!(
                    "{}; an AMD GPU, its kernel driver (amdgpu) and access to /dev/kfd and /dev/dri are needed",
                    fault.name
                ),
                ..fault
            },
            _ => fault,
        })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn open(ordinal: usize) -> Result<Self, Fault> {
        static DEVICES: Mutex<Vec<HipDevice>> = Mutex::new(Vec::new());
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.iter().find(|d| d.ordinal() == ordinal) {
            return Ok(device.clone());
        }
        let number = c_int::try_from(ordinal)
            .map_err(|_| Fault::new("hipSetDevice", 0, format!("no device has the number {ordinal}")))?;
        let (name, architecture) = driver::names(number)?;
        let memory = Current::enter(number).and_then(|_current| Memory::new())?;
        let inner = Inner {
            number,
            name,
            architecture,
            memory,
            functions: OnceLock::new(),
            loading: Mutex::new(()),
            events: Mutex::new(Vec::new()),
        };
        let device = HipDevice { inner: Arc::new(inner) };
        devices.push(device.clone());
        Ok(device)
    }

    pub(super) fn ordinal(&self) -> usize {
        // It came from an ordinal.
        self.inner.number as usize
    }

    pub(super) fn number(&self) -> c_int {
        self.inner.number
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    pub(super) fn enter(&self) -> Result<Current, Fault> {
        Current::enter(self.inner.number)
    }

    pub(super) fn events(&self) -> &Mutex<Vec<EventHandle>> {
        &self.inner.events
    }

    /// By which code objects are named: without features.
    pub(super) fn architecture(&self) -> &str {
        plain(&self.inner.architecture)
    }

    pub(super) fn properties(&self, sharing: usize) -> Result<Properties, Fault> {
        let each = (self.processors()? / sharing.max(1) as u32).clamp(1, PREFERRED_BLOCKS);
        let cache = driver::attribute(self.inner.number, sys::L2_CACHE)?;
        // Runtimes before HIP 5.5 or so do not know the question.
        let rate = driver::attribute(self.inner.number, sys::WALL_CLOCK_RATE).ok().filter(|rate| *rate > 0);
        let name = match &*self.inner.name {
            "" => self.inner.architecture.clone(),
            name => format!("{name} ({})", self.inner.architecture),
        };
        Ok(Properties {
            name,
            // As on NVIDIA's; nothing was measured.
            preferred_blocks: Blocks { broadcast: each, reduce_scatter: each, low_latency: each },
            tile: images::TILE,
            least_tile: images::LEAST_TILE,
            one_block: 0,
            packets: Packets::when_asked(4 << 10),
            threads: images::THREADS,
            // Of memory that `hipMalloc` gives, AMD promises that to kernels that begin later only.
            coherent: false,
            ticks_per_second: rate.unwrap_or(CLOCK_RATE) as u64 * 1000,
            cache: cache.max(0) as u64,
            emulated: driver::driver()?.emulated,
            known_faults: driver::known_faults(driver::driver()?.version),
        })
    }

    pub(super) fn can_access(&self, peer: &HipDevice) -> Result<bool, Fault> {
        let mut can = 0;
        // SAFETY: a local.
        unsafe { call!(hipDeviceCanAccessPeer(&raw mut can, self.inner.number, peer.inner.number))? };
        Ok(can != 0)
    }

    pub(super) fn link(&self, peer: &HipDevice) -> Result<Link, Fault> {
        if self == peer {
            return Ok(Link::Memory);
        }
        let (mut kind, mut hops) = (0, 0);
        let (one, other) = (self.inner.number, peer.inner.number);
        // SAFETY: locals.
        unsafe { call!(hipExtGetLinkTypeAndHopCount(one, other, &raw mut kind, &raw mut hops))? };
        // How many lie side by side, or how fast they are, the runtime does not tell.
        Ok(match kind {
            sys::LINK_XGMI if hops <= 1 => Link::Direct { lanes: 1, rate: None },
            _ => Link::Bus { atomics: None, class: hops },
        })
    }

    /// Kernels of this device may touch memory of `peer`: what was allocated plainly, and by `hipMallocAsync`.
    pub(super) fn enable_access(&self, peer: &HipDevice) -> Result<(), Fault> {
        let driver = driver::driver()?;
        let _current = self.enter()?;
        // SAFETY: it has no pointers.
        match unsafe { (driver.functions.hipDeviceEnablePeerAccess)(peer.inner.number, 0) } {
            sys::PEER_ACCESS_ALREADY_ENABLED => driver.forget_last_error(),
            code => driver.check("hipDeviceEnablePeerAccess", code)?,
        }
        memory::let_into_pools(self, peer)
    }

    /// Every kernel, in the order of [`Kernel::all`], loaded onto the device now: a first launch that loads
    /// one would wait for a device on which a peer spins (case A1).
    pub(super) fn load(&self) -> Result<Vec<HipFunction>, Fault> {
        let _turn = self.inner.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(functions) = self.inner.functions.get() {
            return Ok(functions.clone());
        }
        if images::IMAGES.is_empty() {
            return Err(Fault::no_kernels("rocm"));
        }
        let Some(image) = choose(images::IMAGES, &self.inner.architecture) else {
            return Err(self.not_loaded(Fault::new("load", 0, "no kernels for this device")));
        };
        let _current = self.enter()?;
        let _relaxed = Relaxed::enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is a code object, whole, aligned, and stays as long as the process.
        let loaded = unsafe { call!(hipModuleLoadData(&raw mut module, image.as_ptr().cast())) };
        loaded.map_err(|fault| self.not_loaded(fault))?;
        let functions = Kernel::all().map(|kernel| find(module, kernel)).collect::<Result<Vec<_>, Fault>>();
        let functions = functions.inspect_err(|_| {
            // SAFETY: loaded above; nothing of it was launched.
            let _ = unsafe { call!(hipModuleUnload(module)) };
        })?;
        Ok(self.inner.functions.get_or_init(|| functions).clone())
    }

    fn not_loaded(&self, fault: Fault) -> Fault {
        let version = driver::driver().map_or(0, |d| d.version);
        let built: Vec<_> = images::IMAGES.iter().map(|(name, _)| *name).collect();
        Fault {
            name: format!(
                "{}; the device {} is {}, the runtime is HIP {}, the kernels are built for {}",
                fault.name,
                self.inner.name,
                self.inner.architecture,
                driver::dotted(version),
                built.join(" "),
            ),
            ..fault
        }
    }

    pub(super) fn resident_blocks(&self, function: HipFunction) -> Result<u32, Fault> {
        let _current = self.enter()?;
        let mut blocks = 0;
        // SAFETY: a local; the function is one of the device's.
        unsafe {
            call!(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                function.0,
                images::THREADS as c_int,
                0
            ))?;
        }
        Ok(blocks.max(0) as u32 * self.processors()?)
    }

    fn processors(&self) -> Result<u32, Fault> {
        driver::attribute(self.inner.number, sys::MULTIPROCESSORS).map(|n| n.max(0) as u32)
    }
}

/// `gfx942` of `gfx942:sramecc+:xnack-`.
fn plain(architecture: &str) -> &str {
    architecture.split(':').next().unwrap_or_default()
}

/// The code object for a device. The kernels are built for any setting of its features.
fn choose<'a>(images: &[(&str, &'a [u8])], architecture: &str) -> Option<&'a [u8]> {
    images.iter().find(|(name, _)| *name == plain(architecture)).map(|(_, image)| *image)
}

fn find(module: sys::Module, kernel: Kernel) -> Result<HipFunction, Fault> {
    let name = kernel.name();
    let symbol = CString::new(name.as_str()).map_err(|e| Fault::new("load", 0, e.to_string()))?;
    let mut function = std::ptr::null_mut();
    // SAFETY: locals; the module is loaded.
    unsafe { call!(hipModuleGetFunction(&raw mut function, module, symbol.as_ptr())) }
        .map_err(|fault| Fault { name: format!("{} for the kernel {name}", fault.name), ..fault })?;
    Ok(HipFunction(function))
}

impl PartialEq for HipDevice {
    fn eq(&self, other: &Self) -> bool {
        self.inner.number == other.inner.number
    }
}

impl fmt::Debug for HipDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HipDevice({}: {})", self.inner.number, self.inner.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_chosen_by_the_whole_name_without_features() {
        let images: [(&str, &[u8]); 3] = [("gfx90a", b"a"), ("gfx942", b"b"), ("gfx94", b"c")];
        assert_eq!(choose(&images, "gfx942:sramecc+:xnack-"), Some(&b"b"[..]));
        assert_eq!(choose(&images, "gfx90a"), Some(&b"a"[..]));
        assert_eq!(choose(&images, "gfx94"), Some(&b"c"[..]));
        for none in ["gfx90", "gfx9", "gfx1100", "", ":xnack-"] {
            assert_eq!(choose(&images, none), None, "{none}");
        }
    }
}

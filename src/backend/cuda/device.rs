//! Devices: primary contexts, kernels and memory pools, one of each a device and process.

use std::{
    ffi::{CString, c_char, c_int},
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use super::{
    super::{Fault, Properties},
    driver::{self, Current, Relaxed, call, sys},
    images,
    memory::{Pool, Proven},
};
use crate::{
    abi::MAX_BLOCKS,
    plan::{Blocks, Kernel, Packets},
};

/// More are for callers who ask: two communicators on one device shall fit together.
const PREFERRED_BLOCKS: u32 = 64;

/// Programmatic dependent launch came with this compute capability; kernels-cuda/target_cuda.h waits from it on.
const OVERLAPPING: c_int = 90;

/// A device of the CUDA backend. Clones, and two that were opened by one ordinal, are the same.
#[derive(Clone)]
pub struct CudaDevice {
    inner: Arc<Inner>,
}

struct Inner {
    ordinal: usize,
    device: sys::CUdevice,
    /// The primary context, retained once and for good: memory of a kernel that cannot be stopped stays
    /// valid, and a static that is dropped late finds it.
    context: sys::CUcontext,
    name: String,
    pool: Pool,
    proven: Proven,
    functions: OnceLock<Vec<CudaFunction>>,
    loading: Mutex<()>,
    events: Mutex<Vec<EventHandle>>,
}

/// A kernel of the CUDA backend.
#[derive(Clone, Copy, Debug)]
pub struct CudaFunction {
    pub(super) handle: sys::CUfunction,
    /// Whether its code waits for the launch before it: only then may it be started before that one is over.
    pub(super) overlaps: bool,
}

// SAFETY: handles of the driver, which may be used from any thread.
unsafe impl Send for CudaFunction {}
// SAFETY: as above.
unsafe impl Sync for CudaFunction {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// An event of the driver's that waits to be used again.
pub(super) struct EventHandle(pub(super) sys::CUevent);

// SAFETY: as above.
unsafe impl Send for EventHandle {}

impl CudaDevice {
    pub(super) fn count() -> Result<usize, Fault> {
        driver::driver()?;
        let mut count = 0;
        // SAFETY: a local.
        unsafe { call!(cuDeviceGetCount(&raw mut count))? };
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn open(ordinal: usize) -> Result<Self, Fault> {
        static DEVICES: Mutex<Vec<CudaDevice>> = Mutex::new(Vec::new());
        driver::driver()?;
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.iter().find(|d| d.ordinal() == ordinal) {
            return Ok(device.clone());
        }
        let number = c_int::try_from(ordinal)
            .map_err(|_| Fault::new("cuDeviceGet", 0, format!("no device has the number {ordinal}")))?;
        let (mut device, mut context) = (0, std::ptr::null_mut());
        let mut name = [0 as c_char; 128];
        // SAFETY: locals; the name's length is given.
        unsafe {
            call!(cuDeviceGet(&raw mut device, number))?;
            call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
            call!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        }
        let name = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect::<Vec<_>>();
        let pool = Current::enter(context).and_then(|_current| Pool::new(device, number)).inspect_err(|_| {
            // SAFETY: retained above, and nothing of it is left. A second failure says no more than the first.
            let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(device)) };
        })?;
        let inner = Inner {
            ordinal,
            device,
            context,
            name: String::from_utf8_lossy(&name).into_owned(),
            pool,
            proven: Proven::default(),
            functions: OnceLock::new(),
            loading: Mutex::new(()),
            events: Mutex::new(Vec::new()),
        };
        let device = CudaDevice { inner: Arc::new(inner) };
        devices.push(device.clone());
        Ok(device)
    }

    pub(super) fn ordinal(&self) -> usize {
        self.inner.ordinal
    }

    pub(super) fn handle(&self) -> sys::CUdevice {
        self.inner.device
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// The caller's allocations on the device that were looked at.
    pub(super) fn proven(&self) -> &Proven {
        &self.inner.proven
    }

    pub(super) fn context(&self) -> sys::CUcontext {
        self.inner.context
    }

    pub(super) fn enter(&self) -> Result<Current, Fault> {
        Current::enter(self.inner.context)
    }

    pub(super) fn events(&self) -> &Mutex<Vec<EventHandle>> {
        &self.inner.events
    }

    pub(super) fn properties(&self, sharing: usize) -> Result<Properties, Fault> {
        // 64 fill a link between two H200. Ranks that share a device: one block a multiprocessor for all that work, which
        // of a broadcast's are all but the root.
        let most = if sharing > 1 { MAX_BLOCKS } else { PREFERRED_BLOCKS };
        let processors = self.processors()?;
        let among = |ranks: usize| (processors / ranks.max(1) as u32).clamp(1, most);
        // The largest size measured at which packets were ahead of the pull (benches/record/2026-11-29-h200.md): all that a
        // slot takes between two devices, less among ranks that share one. In 4 KiB each thread has one access.
        let packets = if sharing > 1 { 16 << 10 } else { 64 << 10 };
        Ok(Properties {
            name: self.inner.name.clone(),
            preferred_blocks: Blocks {
                broadcast: among(sharing.saturating_sub(1)),
                reduce_scatter: among(sharing),
                low_latency: among(sharing),
            },
            tile: images::TILE,
            least_tile: images::LEAST_TILE,
            one_block: 0,
            packets: Packets { capacity: u64::MAX, broadcast: packets, reduce_scatter: packets, tile: 4 << 10 },
            threads: images::THREADS,
            coherent: true,
            emulated: false,
            known_faults: Vec::new(),
            // The kernels read the nanoseconds that the whole device shares.
            ticks_per_second: 1_000_000_000,
            cache: self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.max(0) as u64,
        })
    }

    pub(super) fn can_access(&self, peer: &CudaDevice) -> Result<bool, Fault> {
        let mut can = 0;
        // SAFETY: a local.
        unsafe { call!(cuDeviceCanAccessPeer(&raw mut can, self.inner.device, peer.inner.device))? };
        Ok(can != 0)
    }

    /// Kernels of this device may touch memory of `peer`: what was allocated plainly, and its pool.
    pub(super) fn enable_access(&self, peer: &CudaDevice) -> Result<(), Fault> {
        let _current = self.enter()?;
        // SAFETY: both contexts are alive for good.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.inner.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
            result => driver::check("cuCtxEnablePeerAccess", result)?,
        }
        peer.inner.pool.grant(self.inner.device)
    }

    /// Compute capability, 90 for 9.0.
    fn capability(&self) -> Result<i32, Fault> {
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        Ok(10 * self.attribute(MAJOR)? + self.attribute(MINOR)?)
    }

    /// Every kernel, in the order of [`Kernel::all`], loaded onto the device now: a first launch that loads
    /// one would wait for a device on which a peer spins (case A1).
    pub(super) fn load(&self) -> Result<Vec<CudaFunction>, Fault> {
        let _turn = self.inner.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(functions) = self.inner.functions.get() {
            return Ok(functions.clone());
        }
        let _current = self.enter()?;
        let _relaxed = Relaxed::enter()?;
        let Some(image) = images::IMAGE else {
            return Err(Fault::no_kernels("cuda"));
        };
        let new = self.capability()? >= OVERLAPPING;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is one of nvcc's, whole, aligned, and stays as long as the process.
        let loaded = unsafe { call!(cuModuleLoadData(&raw mut module, image.as_ptr().cast())) };
        loaded.map_err(|fault| self.not_loaded(fault))?;
        let functions = Kernel::all().map(|kernel| find(module, kernel, new)).collect::<Result<Vec<_>, Fault>>();
        let functions = functions.inspect_err(|_| {
            // SAFETY: loaded above; nothing of it was launched.
            let _ = unsafe { call!(cuModuleUnload(module)) };
        })?;
        Ok(self.inner.functions.get_or_init(|| functions).clone())
    }

    fn not_loaded(&self, fault: Fault) -> Fault {
        let capability = self.capability().unwrap_or(0);
        let version = driver::driver().map_or(0, |d| d.version);
        Fault {
            name: format!(
                "{}; the device {} is of compute capability {}.{}, the driver of CUDA {}.{}, the kernels are built for {}",
                fault.name,
                self.inner.name,
                capability / 10,
                capability % 10,
                version / 1000,
                version % 1000 / 10,
                images::ARCHITECTURES.join(" "),
            ),
            ..fault
        }
    }

    pub(super) fn resident_blocks(&self, function: CudaFunction) -> Result<u32, Fault> {
        let _current = self.enter()?;
        let mut blocks = 0;
        // SAFETY: a local; the function is one of the device's.
        unsafe {
            call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                function.handle,
                images::THREADS as c_int,
                0
            ))?;
        }
        Ok(blocks.max(0) as u32 * self.processors()?)
    }

    fn processors(&self) -> Result<u32, Fault> {
        self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map(|n| n.max(0) as u32)
    }

    fn attribute(&self, which: sys::CUdevice_attribute) -> Result<i32, Fault> {
        driver::attribute(self.inner.device, which)
    }

    /// The device's place on the bus, by which other libraries know it.
    pub(super) fn bus_id(&self) -> Result<String, Fault> {
        let mut text = [0 as c_char; 32];
        // SAFETY: a local, whose length is given.
        unsafe { call!(cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, self.inner.device))? };
        Ok(text.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect())
    }

    pub(super) fn peer_attribute(&self, to: &CudaDevice, which: sys::CUdevice_P2PAttribute) -> Result<i32, Fault> {
        let mut value = 0;
        // SAFETY: a local.
        unsafe { call!(cuDeviceGetP2PAttribute(&raw mut value, which, self.inner.device, to.inner.device))? };
        Ok(value)
    }
}

/// `new`: whether the device can start launches before the one before them is over.
fn find(module: sys::CUmodule, kernel: Kernel, new: bool) -> Result<CudaFunction, Fault> {
    let name = kernel.name();
    let fault = |fault: Fault| Fault { name: format!("{} for the kernel {name}", fault.name), ..fault };
    let symbol = CString::new(name.as_str()).map_err(|e| Fault::new("load", 0, e.to_string()))?;
    let mut function = std::ptr::null_mut();
    // SAFETY: locals; the module is loaded.
    unsafe { call!(cuModuleGetFunction(&raw mut function, module, symbol.as_ptr())) }.map_err(fault)?;
    touch(function).map_err(fault)?;
    // Code that the driver made of older PTX has no wait in it, whatever the device.
    let overlaps =
        new && asked(function, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION).map_err(fault)? >= OVERLAPPING;
    Ok(CudaFunction { handle: function, overlaps })
}

fn asked(function: sys::CUfunction, which: sys::CUfunction_attribute) -> Result<c_int, Fault> {
    let mut answer = 0;
    // SAFETY: the function is one of a loaded module; a local.
    unsafe { call!(cuFuncGetAttribute(&raw mut answer, which, function))? };
    Ok(answer)
}

/// Loads the function now, whatever `CUDA_MODULE_LOADING` says.
fn touch(function: sys::CUfunction) -> Result<(), Fault> {
    match driver::driver()?.func_load {
        // SAFETY: the function is one of a loaded module.
        Some(load) => driver::check("cuFuncLoad", unsafe { load(function) }),
        None => asked(function, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS).map(drop),
    }
}

impl PartialEq for CudaDevice {
    fn eq(&self, other: &Self) -> bool {
        self.inner.ordinal == other.inner.ordinal
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({}: {})", self.inner.ordinal, self.inner.name)
    }
}

//! The driver library: looked for and checked before the first call, since the bindings panic where it, or a
//! function of it, is missing. Then calls whose answers are [`Fault`]s.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    marker::PhantomData,
    sync::OnceLock,
};

pub(super) use cudarc::driver::sys;

use super::super::Fault;

/// Where the library is looked for, in the bindings' order: what is checked here must be the library that they take,
/// where a folder has one name of another driver, or of a toolkit's stub. (They try more names, which no driver has.)
const LIBRARIES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// CUDA 12.0: everything used here is in it but what [`Driver`] holds.
const OLDEST: c_int = 12_000;

/// Every function that is called through the bindings.
const FUNCTIONS: [&str; 55] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetP2PAttribute",
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolSetAccess",
    "cuMemPoolSetAttribute",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamSynchronize",
    "cuStreamIsCapturing",
    "cuStreamGetFlags",
    "cuStreamGetCtx",
    "cuCtxGetDevice",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuLaunchKernelEx",
    "cuPointerGetAttributes",
    "cuPointerGetAttribute",
    "cuMemGetAccess",
    "cuMemSetAccess",
];

type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
type FuncLoad = unsafe extern "C" fn(sys::CUfunction) -> sys::CUresult;

/// The driver, found and initialised.
pub(super) struct Driver {
    /// As `cuDriverGetVersion` tells it: 1000 * major + 10 * minor.
    pub(super) version: c_int,
    /// The bindings have a later form of it, which drivers of CUDA 12.7 and before have not.
    pub(super) elapsed: ElapsedTime,
    /// Loads a kernel at once; CUDA 12.4 and later.
    pub(super) func_load: Option<FuncLoad>,
}

/// The driver, or why there is none. The answer does not change while the process lives.
pub(super) fn driver() -> Result<&'static Driver, Fault> {
    static DRIVER: OnceLock<Result<Driver, Fault>> = OnceLock::new();
    DRIVER.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Driver, Fault> {
    let mut reasons = Vec::new();
    let library = LIBRARIES.iter().find_map(|name| {
        // SAFETY: the driver's library has initialisers of its own and no requirements.
        match unsafe { libloading::Library::new(*name) } {
            Ok(library) => Some(library),
            Err(error) => {
                // The loader's own words, which name the file.
                let loader = std::error::Error::source(&error).map(ToString::to_string);
                reasons.push(loader.unwrap_or_else(|| format!("{name}: {error}")));
                None
            }
        }
    });
    let Some(library) = library else {
        let text = format!("no driver library; install the NVIDIA driver ({})", reasons.join("; "));
        return Err(Fault::new("dlopen", 0, text));
    };
    let missing: Vec<_> = (FUNCTIONS.iter())
        // SAFETY: looked for only.
        .filter(|name| unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err())
        .copied()
        .collect();
    if !missing.is_empty() {
        let text =
            format!("the driver is too old, it has no {}; install one of CUDA 12.0 or later", missing.join(", "));
        return Err(Fault::new("dlsym", 0, text));
    }
    let mut version = 0;
    // SAFETY: the functions are there; the pointer is to a local.
    unsafe {
        check("cuInit", sys::cuInit(0))?;
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&raw mut version))?;
    }
    if version < OLDEST {
        let has = format!("{}.{}", version / 1000, version % 1000 / 10);
        let text = format!("the driver is of CUDA {has}; install one of CUDA 12.0 or later");
        return Err(Fault::new("cuDriverGetVersion", version.into(), text));
    }
    // SAFETY: the type is that of the CUDA driver API.
    let elapsed = unsafe { library.get::<ElapsedTime>(b"cuEventElapsedTime") };
    let elapsed =
        *elapsed.map_err(|e| Fault::new("dlsym", 0, format!("{e}; install a driver of CUDA 12.0 or later")))?;
    // SAFETY: as above.
    let func_load = unsafe { library.get::<FuncLoad>(b"cuFuncLoad") }.ok().map(|f| *f);
    // Never unloaded: the driver does not survive that.
    std::mem::forget(library);
    Ok(Driver { version, elapsed, func_load })
}

/// The driver's answer.
pub(super) fn check(call: &'static str, result: sys::CUresult) -> Result<(), Fault> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(fault(call, result)) }
}

pub(super) fn fault(call: &'static str, result: sys::CUresult) -> Fault {
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: whoever has a result has a driver; the text is the driver's own and constant.
    let text = unsafe {
        match sys::cuGetErrorName(result, &raw mut name) {
            sys::CUresult::CUDA_SUCCESS if !name.is_null() => CStr::from_ptr(name).to_string_lossy().into_owned(),
            _ => "an error that the driver has no name for".to_owned(),
        }
    };
    Fault::new(call, result as i64, text)
}

/// A call of the driver: its arguments are checked by the compiler, its answer becomes a `Result`.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::backend::cuda::driver::check(
            stringify!($function),
            $crate::backend::cuda::driver::sys::$function($($argument),*),
        )
    };
}
pub(super) use call;

/// Makes a context current, and the caller's again when it goes.
pub struct Current {
    before: Option<sys::CUcontext>,
    /// It is this thread's.
    _thread: PhantomData<*const ()>,
}

impl Current {
    pub(super) fn enter(context: sys::CUcontext) -> Result<Self, Fault> {
        let mut before = std::ptr::null_mut();
        // SAFETY: contexts are primary ones that are never given back, or that of a caller's stream, which is there.
        unsafe {
            call!(cuCtxGetCurrent(&raw mut before))?;
            if before == context {
                return Ok(Current { before: None, _thread: PhantomData });
            }
            call!(cuCtxSetCurrent(context))?;
        }
        Ok(Current { before: Some(before), _thread: PhantomData })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: it was current when this began. A failure cannot be told from here, and the next call
            // of whoever is concerned tells it.
            let _ = unsafe { call!(cuCtxSetCurrent(before)) };
        }
    }
}

/// The ordinal of a context's device.
pub(super) fn ordinal_of(context: sys::CUcontext) -> Result<usize, Fault> {
    let _current = Current::enter(context)?;
    let mut device: sys::CUdevice = 0;
    // SAFETY: a local.
    unsafe { call!(cuCtxGetDevice(&raw mut device))? };
    usize::try_from(device).map_err(|_| Fault::new("cuCtxGetDevice", 0, format!("a device numbered {device}")))
}

/// Lets this thread allocate while another captures a stream in the global mode, in which an innocent
/// allocation would end the capture with an error.
pub(super) struct Relaxed {
    before: sys::CUstreamCaptureMode,
}

impl Relaxed {
    pub(super) fn enter() -> Result<Self, Fault> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a local.
        unsafe { call!(cuThreadExchangeStreamCaptureMode(&raw mut mode))? };
        Ok(Relaxed { before: mode })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: a local.
        let _ = unsafe { call!(cuThreadExchangeStreamCaptureMode(&raw mut self.before)) };
    }
}

pub(super) fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, Fault> {
    let mut value: c_int = 0;
    // SAFETY: a local; the device is one that the driver gave.
    unsafe { call!(cuDeviceGetAttribute(&raw mut value, which, device))? };
    Ok(value)
}

// Declared here because the bindings' fields differ by toolkit version; sizes and meaning do not.

#[repr(C)]
pub(super) struct MemoryLocation {
    pub(super) kind: c_uint,
    pub(super) id: c_int,
}

#[repr(C)]
pub(super) struct PoolProperties {
    pub(super) allocation: c_uint,
    pub(super) handles: c_uint,
    pub(super) location: MemoryLocation,
    pub(super) security: *mut c_void,
    pub(super) reserved: [u8; 64],
}

#[repr(C)]
pub(super) struct PoolAccess {
    pub(super) location: MemoryLocation,
    pub(super) flags: c_uint,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
pub(super) const PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub(super) const ON_DEVICE: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
pub(super) const READ_WRITE: c_uint = 3;

const _: () = assert!(size_of::<PoolProperties>() == size_of::<sys::CUmemPoolProps>());
const _: () = assert!(size_of::<PoolAccess>() == size_of::<sys::CUmemAccessDesc>());
const _: () = assert!(size_of::<MemoryLocation>() == size_of::<sys::CUmemLocation>());

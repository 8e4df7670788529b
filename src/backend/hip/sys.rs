//! The HIP runtime's functions, types and constants, as far as they are used. Declared here because no binding crate
//! fits: theirs abort or panic without the library, or hold the answers in closed enums, to which a newer runtime adds.
//!
//! `scripts/check-hip-abi` compares constants and layouts with the headers, `tests/hip-sys-check` the functions with the
//! crate `hip-sys`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `hipError_t`. Any number is legal.
pub(super) type Code = c_int;

macro_rules! handles {
    ($($name:ident $object:ident)*) => { $(
        pub(super) enum $object {}
        pub(super) type $name = *mut $object;
    )* };
}
handles! {
    Stream StreamObject
    Event EventObject
    Module ModuleObject
    Function FunctionObject
    Graph GraphObject
    GraphExec GraphExecObject
    GraphNode GraphNodeObject
    Pool PoolObject
}

/// Hands every function to the macro `$then`: the one list. Required ones are in HIP 5.2 and later.
macro_rules! for_each_function {
    ($then:ident) => {
        $then! {
            required {
                hipRuntimeGetVersion(version: *mut c_int) -> Code;
                hipGetErrorName(code: Code) -> *const c_char;
                hipGetLastError() -> Code;
                hipGetDeviceCount(count: *mut c_int) -> Code;
                hipGetDevice(device: *mut c_int) -> Code;
                hipSetDevice(device: c_int) -> Code;
                hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Code;
                hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Code;
                hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> Code;
                hipExtGetLinkTypeAndHopCount(one: c_int, other: c_int, kind: *mut u32, hops: *mut u32) -> Code;
                hipMalloc(address: *mut *mut c_void, bytes: usize) -> Code;
                hipExtMallocWithFlags(address: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code;
                hipHostMalloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code;
                hipMemcpyAsync(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int, stream: Stream) -> Code;
                hipMemsetAsync(to: *mut c_void, byte: c_int, bytes: usize, stream: Stream) -> Code;
                hipPointerGetAttributes(attributes: *mut PointerAttributes, address: *const c_void) -> Code;
                hipMemGetAddressRange(start: *mut *mut c_void, bytes: *mut usize, address: *mut c_void) -> Code;
                hipModuleLoadData(module: *mut Module, image: *const c_void) -> Code;
                hipModuleUnload(module: Module) -> Code;
                hipModuleGetFunction(function: *mut Function, module: Module, name: *const c_char) -> Code;
                hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                    blocks: *mut c_int, function: Function, threads: c_int, shared: usize) -> Code;
                hipModuleLaunchKernel(
                    function: Function,
                    grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
                    block_x: c_uint, block_y: c_uint, block_z: c_uint,
                    shared: c_uint, stream: Stream, parameters: *mut *mut c_void, extra: *mut *mut c_void) -> Code;
                hipStreamCreateWithFlags(stream: *mut Stream, flags: c_uint) -> Code;
                hipStreamDestroy(stream: Stream) -> Code;
                hipStreamWaitEvent(stream: Stream, event: Event, flags: c_uint) -> Code;
                hipStreamSynchronize(stream: Stream) -> Code;
                hipStreamGetFlags(stream: Stream, flags: *mut c_uint) -> Code;
                hipStreamIsCapturing(stream: Stream, status: *mut c_int) -> Code;
                hipThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Code;
                hipStreamBeginCapture(stream: Stream, mode: c_int) -> Code;
                hipStreamEndCapture(stream: Stream, graph: *mut Graph) -> Code;
                hipGraphInstantiate(
                    executable: *mut GraphExec, graph: Graph, wrong: *mut GraphNode,
                    text: *mut c_char, bytes: usize) -> Code;
                hipGraphLaunch(executable: GraphExec, stream: Stream) -> Code;
                hipGraphDestroy(graph: Graph) -> Code;
                hipGraphExecDestroy(executable: GraphExec) -> Code;
                hipEventCreateWithFlags(event: *mut Event, flags: c_uint) -> Code;
                hipEventRecord(event: Event, stream: Stream) -> Code;
                hipEventQuery(event: Event) -> Code;
                hipEventDestroy(event: Event) -> Code;
                hipEventElapsedTime(milliseconds: *mut f32, start: Event, stop: Event) -> Code;
            }
            // One of the first two: the structure grew in HIP 6, and got another symbol. The others are not in all of
            // HIP 5.
            optional {
                hipGetDeviceProperties(properties: *mut DeviceProperties, device: c_int) -> Code;
                hipGetDevicePropertiesR0600(properties: *mut DeviceProperties, device: c_int) -> Code;
                hipStreamGetDevice(stream: Stream, device: *mut c_int) -> Code;
                hipMemGetAccess(flags: *mut u64, location: *const MemoryLocation, address: *mut c_void) -> Code;
                hipMemSetAccess(
                    address: *mut c_void, bytes: usize, access: *const MemoryAccess, count: usize) -> Code;
                hipDeviceGetDefaultMemPool(pool: *mut Pool, device: c_int) -> Code;
                hipDeviceGetMemPool(pool: *mut Pool, device: c_int) -> Code;
                hipMemPoolSetAccess(pool: Pool, access: *const MemoryAccess, count: usize) -> Code;
            }
        }
    };
}

macro_rules! table {
    (
        required { $($name:ident($($argument:ident: $kind:ty),* $(,)?) -> $answer:ty;)* }
        optional { $($other:ident($($other_argument:ident: $other_kind:ty),* $(,)?) -> $other_answer:ty;)* }
    ) => {
        /// Those that must be there.
        pub(super) const REQUIRED: &[&str] = &[$(stringify!($name)),*];

        /// The functions, found.
        #[allow(non_snake_case)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument: $kind),*) -> $answer,)*
            $(pub(super) $other: Option<unsafe extern "C" fn($($other_argument: $other_kind),*) -> $other_answer>,)*
        }

        impl Functions {
            /// Takes what `find` answers for each name; the names of those that are missing, if any is.
            ///
            /// # Safety
            /// What `find` answers is the function of that name of a HIP runtime.
            pub(super) unsafe fn new(find: impl Fn(&'static str) -> Option<*const ()>) -> Result<Self, Vec<&'static str>> {
                let missing: Vec<_> = REQUIRED.iter().filter(|name| find(name).is_none()).copied().collect();
                if !missing.is_empty() {
                    return Err(missing);
                }
                let there = |name| find(name).ok_or_else(|| vec![name]);
                // SAFETY: the caller's promise.
                Ok(unsafe {
                    Functions {
                        $($name: std::mem::transmute::<*const (), unsafe extern "C" fn($($kind),*) -> $answer>(
                            there(stringify!($name))?
                        ),)*
                        $($other: find(stringify!($other)).map(|found| {
                            std::mem::transmute::<*const (), unsafe extern "C" fn($($other_kind),*) -> $other_answer>(found)
                        }),)*
                    }
                })
            }

            /// The functions of the runtime that the program is linked with.
            #[cfg(feature = "hip-sys")]
            pub(super) fn linked() -> Result<Self, Vec<&'static str>> {
                let find = |name: &str| match name {
                    $(stringify!($name) => Some(hip_sys::hiprt::$name as *const ()),)*
                    // The older one alone: the bindings are of HIP 5.
                    "hipGetDeviceProperties" => Some(hip_sys::hiprt::hipGetDeviceProperties as *const ()),
                    "hipGetDevicePropertiesR0600" => None,
                    // Not in the bindings. The runtime that is linked may be newer, and is in the process already.
                    // SAFETY: looked for only.
                    other => unsafe { libloading::os::unix::Library::this().get::<*const ()>(other) }.ok().map(|f| *f),
                };
                // SAFETY: by these names; that the types are those of the bindings, tests/hip-sys-check checks.
                unsafe { Functions::new(find) }
            }
        }
    };
}
for_each_function!(table);

/// `hipSuccess`
pub(super) const SUCCESS: Code = 0;
/// `hipErrorInvalidValue`
pub(super) const INVALID_VALUE: Code = 1;
/// `hipErrorOutOfMemory`
pub(super) const OUT_OF_MEMORY: Code = 2;
/// `hipErrorNoDevice`
pub(super) const NO_DEVICE: Code = 100;
/// `hipErrorInvalidDevice`: what most functions answer where there is no device at all.
pub(super) const INVALID_DEVICE: Code = 101;
/// `hipErrorNotReady`
pub(super) const NOT_READY: Code = 600;
/// `hipErrorPeerAccessAlreadyEnabled`
pub(super) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
/// `hipErrorNotSupported`
pub(super) const NOT_SUPPORTED: Code = 801;

/// `hipDeviceAttributeMultiprocessorCount`
pub(super) const MULTIPROCESSORS: c_int = 63;
/// `hipDeviceAttributeL2CacheSize`
pub(super) const L2_CACHE: c_int = 19;
/// `hipDeviceAttributeFineGrainSupport`
pub(super) const FINE_GRAIN_SUPPORT: c_int = 10016;
/// `hipDeviceAttributeWallClockRate`, in kHz. Not in HIP 5.2.
pub(super) const WALL_CLOCK_RATE: c_int = 10017;

/// `HSA_AMD_LINK_INFO_TYPE_XGMI`, of the library below the runtime: links between devices.
pub(super) const LINK_XGMI: c_uint = 4;

/// `hipStreamNonBlocking`
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `hipStreamPerThread`, as a handle.
pub(super) const STREAM_PER_THREAD: usize = 2;
/// `hipEventDisableTiming`
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;

/// `hipDeviceMallocFinegrained`
pub(super) const FINE_GRAINED: c_uint = 1;
/// `hipDeviceMallocUncached`. In HIP 6 and later; before, an invalid value.
pub(super) const UNCACHED: c_uint = 3;
/// `hipHostMallocPortable`
pub(super) const HOST_PORTABLE: c_uint = 1;
/// `hipHostMallocMapped`
pub(super) const HOST_MAPPED: c_uint = 2;
/// `hipHostMallocCoherent`
pub(super) const HOST_COHERENT: c_uint = 0x4000_0000;
/// `hipMemcpyDefault`: whose an address is, the runtime knows.
pub(super) const COPY_DEFAULT: c_int = 4;

/// `hipStreamCaptureStatusNone`
pub(super) const CAPTURE_NONE: c_int = 0;
/// `hipStreamCaptureModeThreadLocal`
pub(super) const CAPTURE_THREAD_LOCAL: c_int = 1;
/// `hipStreamCaptureModeRelaxed`
pub(super) const CAPTURE_RELAXED: c_int = 2;

/// `hipMemLocationTypeDevice`
pub(super) const MEMORY_ON_DEVICE: c_int = 1;
/// `hipMemAccessFlagsProtReadWrite`
pub(super) const MEMORY_READ_WRITE: c_int = 3;

/// `hipMemLocation`
#[repr(C)]
pub(super) struct MemoryLocation {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// `hipMemAccessDesc`
#[repr(C)]
pub(super) struct MemoryAccess {
    pub(super) location: MemoryLocation,
    pub(super) flags: c_int,
}

impl MemoryAccess {
    /// All of it, for kernels of a device.
    pub(super) const fn of(device: c_int) -> Self {
        MemoryAccess { location: MemoryLocation { kind: MEMORY_ON_DEVICE, id: device }, flags: MEMORY_READ_WRITE }
    }
}

/// `hipPointerAttribute_t`, and room.
#[repr(C)]
pub(super) struct PointerAttributes {
    /// `hipMemoryType`, which was renumbered: see [`memory_types`].
    pub(super) kind: c_int,
    pub(super) device: c_int,
    pub(super) device_address: *mut c_void,
    pub(super) host_address: *mut c_void,
    pub(super) managed: c_int,
    pub(super) flags: c_uint,
    pub(super) room: [u64; 28],
}

impl PointerAttributes {
    pub(super) const NOTHING: Self = PointerAttributes {
        kind: -1,
        device: -1,
        device_address: std::ptr::null_mut(),
        host_address: std::ptr::null_mut(),
        managed: 0,
        flags: 0,
        room: [0; 28],
    };
}

/// `hipMemoryTypeUnregistered` of HIP 6 and later. HIP 5 answers an error for what it does not know.
pub(super) const MEMORY_UNREGISTERED: c_int = 0;

/// `hipMemoryTypeHost` until HIP 6 made room for "unregistered".
pub(super) const MEMORY_HOST_HIP5: c_int = 0;
/// `hipMemoryTypeDevice` until then.
pub(super) const MEMORY_DEVICE_HIP5: c_int = 1;
/// `hipMemoryTypeHost`
pub(super) const MEMORY_HOST: c_int = 1;
/// `hipMemoryTypeDevice`
pub(super) const MEMORY_DEVICE: c_int = 2;

/// Host and device, for a runtime of this version.
pub(super) const fn memory_types(version: c_int) -> (c_int, c_int) {
    if version < 60_000_000 { (MEMORY_HOST_HIP5, MEMORY_DEVICE_HIP5) } else { (MEMORY_HOST, MEMORY_DEVICE) }
}

/// `hipDeviceProp_t` of any version, and room. Read by the offsets below only.
#[repr(C, align(8))]
pub(super) struct DeviceProperties(pub(super) [u8; PROPERTIES_BYTES]);

/// More than any version's structure has.
pub(super) const PROPERTIES_BYTES: usize = 4096;

/// Where the device's name is, in all versions.
pub(super) const NAME_AT: usize = 0;
/// Where `gcnArchName` is for `hipGetDeviceProperties`, whose structure has 792 bytes.
pub(super) const ARCHITECTURE_AT: usize = 396;
/// Where it is for `hipGetDevicePropertiesR0600`, whose structure has 1472 bytes.
pub(super) const ARCHITECTURE_AT_R0600: usize = 1160;
/// Bytes of either name.
pub(super) const NAME_BYTES: usize = 256;

// What `scripts/check-hip-abi` holds against the headers.
const _: () = assert!(std::mem::offset_of!(PointerAttributes, flags) == 28 && size_of::<PointerAttributes>() == 256);
const _: () = assert!(size_of::<MemoryLocation>() == 8 && size_of::<MemoryAccess>() == 12);

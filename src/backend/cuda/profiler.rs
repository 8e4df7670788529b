//! NVTX: where a profiler has named its library to this process, as NVIDIA's tools do for what they start, ranges go
//! there. Nothing else is loaded or looked for.
//!
//! NVTX has no library of its own: its header is compiled into each user, and that part is here, of version 3. It loads
//! the profiler's library and hands it tables of empty slots, into which that writes the functions that it wants called.

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void},
    ptr::null_mut,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use super::super::profiler::{Profiler, name};

/// NVTX's own variable: the profiler's library.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";
const INITIALIZE: &[u8] = b"InitializeInjectionNvtx2";
/// Ranges of this crate can be told from the program's, and left out, by it.
const DOMAIN: &CStr = c"crossccl";

/// `NVTX_VERSION`
const VERSION: u32 = 3;
/// `NVTX_ETID_CALLBACKS`
const CALLBACKS: u32 = 1;
/// `NVTX_ETID_VERSIONINFO`
const VERSION_INFO: u32 = 3;

/// The modules' numbers of functions, `NVTX_CBID_*_SIZE`, by `NvtxCallbackModule`: none, core, CUDA, OpenCL, CUDA runtime,
/// core 2, synchronisation. Tools ask for all, and take the lack of one for a failure.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MOST: usize = 16;
/// `NVTX_CB_MODULE_CORE2`, and of its functions those that are called.
const CORE2: usize = 5;
const DOMAIN_RANGE_PUSH: usize = 4;
const DOMAIN_RANGE_POP: usize = 5;
const DOMAIN_CREATE: usize = 12;

type Domain = *mut c_void;
type DomainCreate = unsafe extern "C" fn(*const c_char) -> Domain;
type DomainRangePush = unsafe extern "C" fn(Domain, *const EventAttributes) -> c_int;
type DomainRangePop = unsafe extern "C" fn(Domain) -> c_int;
type ExportTable = extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(ExportTable) -> c_int;

type Slot = *mut *mut c_void;

/// Each function of each module, as the profiler set it.
static SLOTS: [[AtomicPtr<c_void>; MOST]; SIZES.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; MOST] }; SIZES.len()];

/// Where the slots are: what a profiler is given of a module. One more than functions, as in the header.
struct Tables([[Slot; MOST + 1]; SIZES.len()]);

// SAFETY: addresses that never change; what they lead to is atomic.
unsafe impl Sync for Tables {}

static TABLES: Tables = {
    let mut tables = [[null_mut(); MOST + 1]; SIZES.len()];
    let mut module = 0;
    while module < SIZES.len() {
        let mut function = 1;
        while function < SIZES[module] {
            tables[module][function] = SLOTS[module][function].as_ptr();
            function += 1;
        }
        module += 1;
    }
    Tables(tables)
};

/// `NvtxExportTableCallbacks`
#[repr(C)]
struct Callbacks {
    bytes: usize,
    module_functions: extern "C" fn(c_int, *mut *const Slot, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`
#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_version: extern "C" fn(u32),
}

/// `nvtxEventAttributes_v2`
#[repr(C)]
struct EventAttributes {
    version: u16,
    bytes: u16,
    category: u32,
    color_type: i32,
    color: u32,
    /// `NVTX_PAYLOAD_TYPE_UNSIGNED_INT64`
    payload_type: i32,
    reserved: i32,
    payload: u64,
    /// `NVTX_MESSAGE_TYPE_ASCII`
    message_type: i32,
    message: *const c_char,
}

// What NVIDIA's header has.
const _: () = assert!(size_of::<EventAttributes>() == 48 && std::mem::offset_of!(EventAttributes, message) == 40);

extern "C" fn module_functions(module: c_int, table: *mut *const Slot, size: *mut c_uint) -> c_int {
    let Some(module) = usize::try_from(module).ok().filter(|module| (1..SIZES.len()).contains(module)) else {
        return 0;
    };
    // SAFETY: a profiler's locals, or null.
    unsafe {
        if let Some(table) = table.as_mut() {
            *table = TABLES.0[module].as_ptr();
        }
        if let Some(size) = size.as_mut() {
            *size = SIZES[module] as c_uint;
        }
    }
    1
}

extern "C" fn set_version(_version: u32) {}

extern "C" fn export_table(which: u32) -> *const c_void {
    static CALLBACKS_TABLE: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), module_functions };
    static VERSION_TABLE: VersionInfo =
        VersionInfo { bytes: size_of::<VersionInfo>(), version: VERSION, reserved: 0, set_version };
    match which {
        CALLBACKS => (&raw const CALLBACKS_TABLE).cast(),
        VERSION_INFO => (&raw const VERSION_TABLE).cast(),
        _ => std::ptr::null(),
    }
}

/// A profiler that takes ranges.
struct Nvtx {
    domain: Domain,
    push: DomainRangePush,
    pop: DomainRangePop,
}

// SAFETY: functions that may be called on any thread, and a handle for them.
unsafe impl Send for Nvtx {}
// SAFETY: as above.
unsafe impl Sync for Nvtx {}

/// The profiler, looked for once.
pub(super) fn profiler() -> Option<&'static dyn Profiler> {
    static NVTX: OnceLock<Option<Nvtx>> = OnceLock::new();
    let found = NVTX.get_or_init(|| {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        attach(&path)
            .inspect_err(|why| tracing::warn!(target: "crossccl", "no ranges for a profiler: {VARIABLE}={}: {why}", path.display()))
            .ok()
    });
    found.as_ref().map(|nvtx| nvtx as &dyn Profiler)
}

fn attach(path: &OsStr) -> Result<Nvtx, String> {
    // SAFETY: the user has it loaded; its initialisers are the profiler's business.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| {
        // The loader's own words, which name the file.
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })?;
    // SAFETY: the type is that of NVTX.
    let initialize = unsafe { library.get::<Initialize>(INITIALIZE) }.map_err(|_| "no library of a profiler")?;
    // SAFETY: it is given what NVTX gives, and this is done once.
    if unsafe { initialize(export_table) } == 0 {
        return Err("the profiler does not take part".into());
    }
    // Never unloaded: its functions are called from now on.
    std::mem::forget(library);
    let function = |which: usize| {
        let address = SLOTS[CORE2][which].load(Ordering::Acquire);
        if address.is_null() { Err("the profiler takes no ranges") } else { Ok(address) }
    };
    let (push, pop, create) = (
        function(DOMAIN_RANGE_PUSH)?,
        function(DOMAIN_RANGE_POP)?,
        SLOTS[CORE2][DOMAIN_CREATE].load(Ordering::Acquire),
    );
    // SAFETY: these slots are of functions of these types. A profiler that makes no domains has the null one for all.
    unsafe {
        let create = (!create.is_null()).then(|| std::mem::transmute::<*mut c_void, DomainCreate>(create));
        Ok(Nvtx {
            domain: create.map_or(null_mut(), |create| create(DOMAIN.as_ptr())),
            push: std::mem::transmute::<*mut c_void, DomainRangePush>(push),
            pop: std::mem::transmute::<*mut c_void, DomainRangePop>(pop),
        })
    }
}

impl Profiler for Nvtx {
    fn begin(&self, operation: &str, label: &str, bytes: u64) {
        // Whose it is, the domain says.
        let message = name("", operation, label);
        let attributes = EventAttributes {
            version: VERSION as u16,
            bytes: size_of::<EventAttributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 1,
            reserved: 0,
            payload: bytes,
            message_type: 1,
            message: message.as_ptr(),
        };
        // SAFETY: attributes and text outlive the call, in which a profiler reads them.
        unsafe { (self.push)(self.domain, &raw const attributes) };
    }

    fn end(&self) {
        // SAFETY: the domain is the profiler's.
        unsafe { (self.pop)(self.domain) };
    }
}

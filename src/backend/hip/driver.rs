//! The HIP runtime, `libamdhip64`: looked for when it is first needed, never at the start of the program. Then calls
//! whose answers are [`Fault`]s. The functions that must be there, their types and the constants are in `sys.rs`.

use std::{
    ffi::{CStr, c_int},
    marker::PhantomData,
    path::Path,
    sync::OnceLock,
};

use super::{
    super::Fault,
    sys::{self, Code, Functions},
};

/// Names by which a runtime is installed: those with a version are the programs', the bare one comes with headers.
/// Newer ones first.
const LIBRARIES: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];

/// Where ROCm is installed, beside what the loader knows: folders in variables, and the usual one.
const FOLDERS: [&str; 2] = ["ROCM_PATH", "HIP_PATH"];
const USUAL_FOLDER: &str = "/opt/rocm";

/// A library instead of all those: a file or a name for the loader.
const VARIABLE: &str = "CROSSCCL_HIP_LIBRARY";

/// HIP 5.2. As `hipRuntimeGetVersion` tells it: 10_000_000 * major + 100_000 * minor + patch.
const OLDEST: c_int = 50_200_000;

/// What an emulator exports and no runtime of real devices does.
const EMULATOR: &str = "crossccl_emulator_version";

/// The runtime, found.
pub(super) struct Driver {
    pub(super) functions: Functions,
    /// As `hipRuntimeGetVersion` tells it.
    pub(super) version: c_int,
    /// Whether it says that it is an emulator.
    pub(super) emulated: bool,
}

/// The runtime, or why there is none. The answer does not change while the process lives.
pub(super) fn driver() -> Result<&'static Driver, Fault> {
    static DRIVER: OnceLock<Result<Driver, Fault>> = OnceLock::new();
    DRIVER.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Driver, Fault> {
    let (functions, emulated) = find()?;
    let driver = Driver { functions, version: 0, emulated };
    let mut version = 0;
    // SAFETY: a local.
    driver.check("hipRuntimeGetVersion", unsafe { (driver.functions.hipRuntimeGetVersion)(&raw mut version) })?;
    if version < OLDEST {
        let text = format!("the runtime is HIP {}; install ROCm 5.2 or later", dotted(version));
        return Err(Fault::new("hipRuntimeGetVersion", version.into(), text));
    }
    Ok(Driver { version, ..driver })
}

fn find() -> Result<(Functions, bool), Fault> {
    let (library, name) = library()?;
    // SAFETY: looked for only. A name of ours has no zero in it.
    let address = |name: &str| unsafe { library.get::<*const ()>(name) }.ok().map(|found| *found);
    // SAFETY: the types are those of HIP 5.2 to 7, of which the names are.
    let functions = unsafe { Functions::new(address) }.map_err(|missing| {
        Fault::new("dlsym", 0, format!("{name} has no {}; install ROCm 5.2 or later", missing.join(", ")))
    })?;
    if functions.hipGetDeviceProperties.is_none() && functions.hipGetDevicePropertiesR0600.is_none() {
        let text = format!("{name} has neither hipGetDevicePropertiesR0600 nor hipGetDeviceProperties");
        return Err(Fault::new("dlsym", 0, format!("{text}; install ROCm 5.2 or later")));
    }
    let emulated = address(EMULATOR).is_some();
    // Never unloaded: the runtime does not survive that.
    std::mem::forget(library);
    Ok((functions, emulated))
}

type Library = libloading::os::unix::Library;

/// The library, and the name that led to it.
fn library() -> Result<(Library, String), Fault> {
    use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};
    /// Finds what the process has loaded and loads nothing. Of Linux, as ROCm is.
    const RTLD_NOLOAD: c_int = 4;
    // SAFETY: the runtime's library has initialisers of its own and no requirements.
    let load = |name: &str, flags: c_int| unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flags) };
    // The loader's own words, which name the file.
    let words = |name: &str, error: libloading::Error| {
        let loader = std::error::Error::source(&error).map(ToString::to_string);
        loader.unwrap_or_else(|| format!("{name}: {error}"))
    };
    let set = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
    if let Some(name) = set(VARIABLE) {
        return match load(&name, 0) {
            Ok(library) => Ok((library, name)),
            Err(error) => Err(Fault::new("dlopen", 0, format!("{VARIABLE}={name}: {}", words(&name, error)))),
        };
    }
    // The one that a framework in this process uses, whichever it is: handles of one mean nothing to another.
    if let Some((library, name)) = LIBRARIES.iter().find_map(|name| Some((load(name, RTLD_NOLOAD).ok()?, *name))) {
        return Ok((library, name.to_owned()));
    }
    let mut names: Vec<_> = LIBRARIES.iter().map(|name| (*name).to_owned()).collect();
    for folder in FOLDERS.iter().filter_map(|f| set(f)).chain([USUAL_FOLDER.to_owned()]) {
        let there = LIBRARIES.iter().map(|name| Path::new(&folder).join("lib").join(name)).filter(|p| p.exists());
        names.extend(there.map(|path| path.display().to_string()));
    }
    let mut reasons = Vec::new();
    for name in names {
        match load(&name, 0) {
            Ok(library) => return Ok((library, name)),
            Err(error) => reasons.push(words(&name, error)),
        }
    }
    let text = format!(
        "no HIP runtime; install ROCm, or set {VARIABLE} to its libamdhip64 ({}; nor in lib of ROCM_PATH, HIP_PATH, {USUAL_FOLDER})",
        reasons.join("; ")
    );
    Err(Fault::new("dlopen", 0, text))
}

/// 5.2.21153 for 50221153.
pub(super) fn dotted(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000)
}

impl Driver {
    /// The runtime's answer.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<(), Fault> {
        if code == sys::SUCCESS { Ok(()) } else { Err(self.fault(call, code)) }
    }

    /// What `code` says. This thread's last error is forgotten: it is told here, and a framework that asks for it
    /// would take it for one of its own.
    pub(super) fn fault(&self, call: &'static str, code: Code) -> Fault {
        // SAFETY: the text is the runtime's own and constant.
        let name = unsafe {
            (self.functions.hipGetLastError)();
            let name = (self.functions.hipGetErrorName)(code);
            if name.is_null() { None } else { Some(CStr::from_ptr(name).to_string_lossy().into_owned()) }
        };
        Fault::new(call, code.into(), name.unwrap_or_else(|| "an error that the runtime has no name for".to_owned()))
    }

    /// After an answer that was expected and is no error.
    pub(super) fn forget_last_error(&self) {
        // SAFETY: it has no arguments.
        unsafe { (self.functions.hipGetLastError)() };
    }
}

/// A call of the runtime: its arguments are checked by the compiler, its answer becomes a `Result`.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match $crate::backend::hip::driver::driver() {
            Ok(driver) => driver.check(stringify!($function), (driver.functions.$function)($($argument),*)),
            Err(fault) => Err(fault),
        }
    };
}
pub(super) use call;

/// Makes a device current, and the caller's again when it goes.
pub struct Current {
    before: Option<c_int>,
    /// It is this thread's.
    _thread: PhantomData<*const ()>,
}

impl Current {
    pub(super) fn enter(device: c_int) -> Result<Self, Fault> {
        let mut before = 0;
        // SAFETY: a local.
        unsafe {
            call!(hipGetDevice(&raw mut before))?;
            if before == device {
                return Ok(Current { before: None, _thread: PhantomData });
            }
            call!(hipSetDevice(device))?;
        }
        Ok(Current { before: Some(before), _thread: PhantomData })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: it has no pointers. A failure cannot be told from here, and the next call of whoever is
            // concerned tells it.
            let _ = unsafe { call!(hipSetDevice(before)) };
        }
    }
}

/// Lets this thread allocate while another captures a stream in the global mode, in which an innocent
/// allocation would end the capture with an error.
pub(super) struct Relaxed {
    before: c_int,
}

impl Relaxed {
    pub(super) fn enter() -> Result<Self, Fault> {
        let mut mode = sys::CAPTURE_RELAXED;
        // SAFETY: a local.
        unsafe { call!(hipThreadExchangeStreamCaptureMode(&raw mut mode))? };
        Ok(Relaxed { before: mode })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: a local.
        let _ = unsafe { call!(hipThreadExchangeStreamCaptureMode(&raw mut self.before)) };
    }
}

/// What the device says of itself: its name and its architecture with features, `gfx942:sramecc+:xnack-`.
pub(super) fn names(device: c_int) -> Result<(String, String), Fault> {
    let driver = driver()?;
    let mut properties = sys::DeviceProperties([0; 4096]);
    let (call, get, at) = match (driver.functions.hipGetDevicePropertiesR0600, driver.functions.hipGetDeviceProperties)
    {
        (Some(get), _) => ("hipGetDevicePropertiesR0600", get, sys::ARCHITECTURE_AT_R0600),
        (None, Some(get)) => ("hipGetDeviceProperties", get, sys::ARCHITECTURE_AT),
        (None, None) => return Err(Fault::new("hipGetDeviceProperties", 0, "the runtime does not have it")),
    };
    // SAFETY: a local, larger than the structure of any version.
    driver.check(call, unsafe { get(&raw mut properties, device) })?;
    let text = |at: usize| {
        let bytes = &properties.0[at..at + sys::NAME_BYTES];
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    Ok((text(sys::NAME_AT), text(at)))
}

pub(super) fn attribute(device: c_int, which: c_int) -> Result<c_int, Fault> {
    let mut value = 0;
    // SAFETY: a local.
    unsafe { call!(hipDeviceGetAttribute(&raw mut value, which, device))? };
    Ok(value)
}

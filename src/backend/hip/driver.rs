//! The HIP runtime, found and checked when it is first needed. Then calls whose answers are [`Fault`]s. The functions
//! that must be there, their types and the constants are in `sys.rs`; how they are found is in `library.rs`.

use std::{
    ffi::{CStr, c_int},
    marker::PhantomData,
    sync::OnceLock,
};

#[cfg(not(feature = "hip-sys"))]
use super::library::find;
use super::{
    super::Fault,
    sys::{self, Code, Functions},
};

/// HIP 5.2. As `hipRuntimeGetVersion` tells it: 10_000_000 * major + 100_000 * minor + patch.
const OLDEST: c_int = 50_200_000;

/// What is wrong with runtimes before some version, for users of this crate.
const KNOWN_FAULTS: [(c_int, &str); 1] = [
    // ROCm 7.2.1; AMD's rocm-systems#3195, pytorch#177309.
    (
        70_253_211,
        "before ROCm 7.2.1, asking for an event (which waiting for a collective does) breaks off what another thread \
         captures, whatever the capture's mode; update it, or let no thread wait while another captures",
    ),
];

/// Of the runtime's version.
pub(super) fn known_faults(version: c_int) -> Vec<&'static str> {
    KNOWN_FAULTS.iter().filter(|(mended, _)| version < *mended).map(|(_, text)| *text).collect()
}

/// What an emulator exports and no runtime of real devices does.
pub(super) const EMULATOR: &str = "crossccl_emulator_version";

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
    if functions.hipGetDeviceProperties.is_none() && functions.hipGetDevicePropertiesR0600.is_none() {
        let text = "neither hipGetDevicePropertiesR0600 nor hipGetDeviceProperties; install ROCm 5.2 or later";
        return Err(Fault::new("dlsym", 0, text));
    }
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

/// As linked: the library was found when the program started.
#[cfg(feature = "hip-sys")]
fn find() -> Result<(Functions, bool), Fault> {
    let missing = |missing: Vec<_>| Fault::new("link", 0, format!("hip-sys has no {}", missing.join(", ")));
    let functions = Functions::linked().map_err(missing)?;
    // SAFETY: looked for only, in what the program is made of.
    let emulated = unsafe { libloading::os::unix::Library::this().get::<*const ()>(EMULATOR) }.is_ok();
    Ok((functions, emulated))
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
    let mut properties = sys::DeviceProperties([0; sys::PROPERTIES_BYTES]);
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

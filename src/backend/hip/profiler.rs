//! ROCTX: ranges go to its library where the process has it already, by a profiler that preloads it or a framework that is
//! linked with it. Otherwise it is loaded only where a variable names it.

use std::{
    ffi::{c_char, c_int},
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::super::profiler::{Profiler, name};

/// A library to load: a file or a name for the loader.
const VARIABLE: &str = "CROSSCCL_ROCTX";
/// Those that may be there: ROCprofiler-SDK's of ROCm 7 and 6, and ROCTracer's before, of which newer profilers hear nothing.
const LIBRARIES: [&str; 3] = ["librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "libroctx64.so.4"];
/// Finds what the process has loaded and loads nothing. Of Linux, as ROCm is.
const RTLD_NOLOAD: c_int = 4;

struct Roctx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// The profiler, looked for once.
pub(super) fn profiler() -> Option<&'static dyn Profiler> {
    static ROCTX: OnceLock<Option<Roctx>> = OnceLock::new();
    ROCTX.get_or_init(find).as_ref().map(|roctx| roctx as &dyn Profiler)
}

fn find() -> Option<Roctx> {
    // SAFETY: the library's initialisers are the profiler's business, and the user has it loaded or wants it.
    let load = |name: &str, flags: c_int| unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flags) };
    let library = match std::env::var(VARIABLE).ok().filter(|value| !value.is_empty()) {
        None => LIBRARIES.iter().find_map(|name| load(name, RTLD_NOLOAD).ok())?,
        Some(name) => {
            let warn = |why: &str| {
                tracing::warn!(target: "crossccl", "no ranges for a profiler: {VARIABLE}={name}: {why}");
            };
            // The loader's own words, which name the file.
            let words = |error: &libloading::Error| {
                warn(&std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string));
            };
            load(&name, 0).inspect_err(words).ok()?
        }
    };
    // SAFETY: the types are those of ROCTX, of which the names are.
    let functions = unsafe {
        let push = library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"roctxRangePushA");
        let pop = library.get::<unsafe extern "C" fn() -> c_int>(b"roctxRangePop");
        push.and_then(|push| Ok(Roctx { push: *push, pop: *pop? }))
    };
    let functions = functions.inspect_err(|error| {
        tracing::warn!(target: "crossccl", "no ranges for a profiler: a library of ROCTX without its functions: {error}");
    });
    // Never unloaded: its functions are called from now on.
    std::mem::forget(library);
    functions.ok()
}

impl Profiler for Roctx {
    fn begin(&self, operation: &str, label: &str, _bytes: u64) {
        let message = name("crossccl ", operation, label);
        // SAFETY: the text outlives the call, which copies it.
        unsafe { (self.push)(message.as_ptr()) };
    }

    fn end(&self) {
        // SAFETY: no arguments.
        unsafe { (self.pop)() };
    }
}

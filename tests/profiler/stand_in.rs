//! The stand-in for a profiler's libraries (`stand_in_profiler.cc`), for the tests of the backends on stand-ins.

use std::{
    ffi::{CStr, c_char},
    path::Path,
    process::Command,
    sync::OnceLock,
};

/// Where it lies, under the name that ROCm's library of ranges has.
pub(crate) fn library() -> &'static str {
    static LIBRARY: OnceLock<String> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("profiler");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/profiler/build-stand-in");
        let output = Command::new(script).arg(&folder).output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.join("librocprofiler-sdk-roctx.so.1").display().to_string()
    })
}

/// The stand-in, as the process that runs a body has it.
pub(crate) struct StandInProfiler(libloading::Library);

impl StandInProfiler {
    pub(crate) fn new(path: &str) -> Self {
        // SAFETY: its initialisers do nothing.
        StandInProfiler(unsafe { libloading::Library::new(path) }.expect("the stand-in"))
    }

    /// What it was told since the last time.
    pub(crate) fn told(&self) -> Vec<String> {
        // SAFETY: as the stand-in declares it; the text is the stand-in's until it is asked again.
        let text = unsafe {
            let lines = self.0.get::<unsafe extern "C" fn() -> *const c_char>(b"profiler_lines").expect("a function");
            CStr::from_ptr(lines())
        };
        text.to_str().expect("text").lines().map(str::to_owned).collect()
    }
}

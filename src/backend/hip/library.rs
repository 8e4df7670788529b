//! The library of the HIP runtime, `libamdhip64`: looked for when it is first needed, never at the start of the program.

use std::{ffi::c_int, path::Path};

use super::{super::Fault, sys::Functions};

/// Names by which a runtime is installed: those with a version are the programs', the bare one comes with headers.
/// Newer ones first.
const LIBRARIES: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];

/// Where ROCm is installed, beside what the loader knows: folders in variables, and the usual one.
const FOLDERS: [&str; 2] = ["ROCM_PATH", "HIP_PATH"];
const USUAL_FOLDER: &str = "/opt/rocm";

/// A library instead of all those: a file or a name for the loader.
const VARIABLE: &str = "CROSSCCL_HIP_LIBRARY";

/// The functions, and whether the library says that it is an emulator.
pub(super) fn find() -> Result<(Functions, bool), Fault> {
    let (library, name) = library()?;
    // SAFETY: looked for only. A name of ours has no zero in it.
    let address = |name: &str| unsafe { library.get::<*const ()>(name) }.ok().map(|found| *found);
    // SAFETY: the types are those of HIP 5.2 to 7, of which the names are.
    let functions = unsafe { Functions::new(address) }.map_err(|missing| {
        Fault::new("dlsym", 0, format!("{name} has no {}; install ROCm 5.2 or later", missing.join(", ")))
    })?;
    let emulated = address(super::driver::EMULATOR).is_some();
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

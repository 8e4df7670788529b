//! What the builds of all GPUs' kernels share: files, compilers, what cargo is told.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::toolchain::gpu;

/// Declares what the build depends on (`variables`, and `PATH` unless one of `instead` of it is set) and answers the
/// number of the sources: headers, lists and files named `extension` in `folders`.
pub(crate) fn sources(folders: &[&str], extension: &str, variables: &[&str], instead: &[&str]) -> Result<u64, String> {
    // PATH differs from shell to shell: it counts only where the compiler comes from it.
    let by_path = instead.iter().all(|name| std::env::var_os(name).is_none());
    for name in variables.iter().chain(by_path.then_some(&"PATH")) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let mut files = Vec::new();
    for folder in folders {
        println!("cargo::rerun-if-changed={folder}");
        let entries = fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
        for entry in entries {
            let path = entry.map_err(|e| format!("{folder}: {e}"))?.path();
            // Prose is no source.
            if path.extension().is_some_and(|e| e == "h" || e == extension || e == "def") {
                let contents = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                files.push((path.display().to_string(), contents));
            }
        }
    }
    files.sort();
    Ok(gpu::fingerprint(files.iter().map(|(name, contents)| (name.as_str(), contents.as_slice()))))
}

/// What a block of a target is.
pub(crate) struct Geometry {
    threads: u64,
    tile: u64,
    least_tile: u64,
}

/// By the target's header.
pub(crate) fn geometry(path: &str) -> Result<Geometry, String> {
    let header = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let constant = |name: &str| gpu::constant(&header, name).ok_or_else(|| format!("{path}: no constant {name}"));
    Ok(Geometry { threads: constant("kThreads")?, tile: constant("kTile")?, least_tile: constant("kLeastTile")? })
}

impl Geometry {
    /// As constants for the backend.
    pub(crate) fn text(&self) -> String {
        let Geometry { threads, tile, least_tile } = self;
        format!(
            "/// Threads of every block: no launch may have another number.\n\
             pub(crate) const THREADS: u32 = {threads};\n\
             /// Bytes that a block takes at a time.\n\
             pub(crate) const TILE: u64 = {tile};\n\
             /// Bytes that it takes at least, where no other rank depends on which block moves what.\n\
             pub(crate) const LEAST_TILE: u64 = {least_tile};\n"
        )
    }
}

/// Variables of a compiler's environment: set, or taken away.
pub(crate) type Variables = [(&'static str, Option<&'static str>)];

/// Runs a compiler: whether it was content, and all that it said.
pub(crate) fn run(program: &Path, arguments: &[String], variables: &Variables) -> Result<(bool, String), String> {
    let mut command = Command::new(program);
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.args(arguments).output().map_err(|e| format!("{}: {e}", program.display()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.success(), text(&output.stdout) + &text(&output.stderr)))
}

pub(crate) fn out_dir() -> Result<PathBuf, String> {
    std::env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| "OUT_DIR is not set: this is for cargo".into())
}

pub(crate) fn write(name: &str, text: &str) -> Result<(), String> {
    let path = out_dir()?.join(name);
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

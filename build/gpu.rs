//! What the builds of all GPUs' kernels share: files, compilers, what cargo is told.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{self, Command},
};

use super::toolchain::gpu;

/// Declares what the build depends on (`variables`, and `PATH` unless one of `instead` of it is set) and answers the
/// number of the sources: headers, lists and files named `extension` in `folders`.
pub(crate) fn sources(folders: &[&str], extension: &str, variables: &[&str], instead: &[&str]) -> Result<u64, String> {
    println!("cargo::rerun-if-env-changed=CROSSCCL_KERNEL_CACHE");
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

/// A compiler, and what decides beside its arguments what it makes.
pub(crate) struct Compiler<'a> {
    pub(crate) program: &'a Path,
    /// What it says of its version.
    pub(crate) version: &'a str,
    pub(crate) variables: &'a Variables,
    /// Variables that it reads, where they are left to it.
    pub(crate) reads: &'a [&'a str],
}

impl Compiler<'_> {
    /// Makes `image` of the sources with this number: whether the compiler was content, and all that it said. Where
    /// `CROSSCCL_KERNEL_CACHE` names a folder, what is there already is taken, and what is made is kept there. Builds may use one
    /// folder at a time: an image appears under its name whole, and after what was said of it.
    pub(crate) fn make(&self, sources: u64, arguments: &[String], image: &Path) -> Result<(bool, String), String> {
        let env = |name: &str| std::env::var(name).ok();
        let Some(folder) = gpu::cache(env)? else { return run(self.program, arguments, self.variables) };
        let surroundings: Vec<_> = self.reads.iter().map(|name| (*name, env(name).unwrap_or_default())).collect();
        let key = gpu::key(sources, self.version, &surroundings, arguments, &image.display().to_string());
        let (kept, said) = (folder.join(format!("{key}.image")), folder.join(format!("{key}.said")));
        let wrong = |path: &Path, e: io::Error| format!("CROSSCCL_KERNEL_CACHE: {}: {e}", path.display());
        // Where warnings are errors, an image that came with some is made again, to fail.
        let fits = |text: &String| !(gpu::deny_warnings(env) && text.contains("warning"));
        let text = if kept.is_file() { Some(fs::read_to_string(&said).map_err(|e| wrong(&said, e))?) } else { None };
        if let Some(text) = text.filter(fits) {
            fs::copy(&kept, image).map_err(|e| wrong(&kept, e))?;
            return Ok((true, text));
        }
        let (good, text) = run(self.program, arguments, self.variables)?;
        if good {
            fs::create_dir_all(&folder).map_err(|e| wrong(&folder, e))?;
            let new = folder.join(format!("{key}.{}", process::id()));
            fs::write(&new, &text).and_then(|()| fs::rename(&new, &said)).map_err(|e| wrong(&said, e))?;
            fs::copy(image, &new).and_then(|_| fs::rename(&new, &kept)).map_err(|e| wrong(&kept, e))?;
        }
        Ok((good, text))
    }
}

pub(crate) fn out_dir() -> Result<PathBuf, String> {
    std::env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| "OUT_DIR is not set: this is for cargo".into())
}

pub(crate) fn write(name: &str, text: &str) -> Result<(), String> {
    let path = out_dir()?.join(name);
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

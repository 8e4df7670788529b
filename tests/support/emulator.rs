//! The stand-in for AMD's runtime and devices (`tools/amd-emulator`), where there are none: built and loaded before
//! the backend looks for a runtime, which takes the one that the process has.

use std::{path::Path, process::Command, sync::Once};

/// Loads the emulator, once, unless there is hardware, another library is named, or the emulator is not wanted.
pub(crate) fn load() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let set = |variable: &str| std::env::var(variable).ok().filter(|v| !v.is_empty());
        let hardware = Path::new("/dev/kfd").exists();
        let unwanted = set("CROSSCCL_HIP_LIBRARY").is_some() || set("CROSSCCL_EMULATOR").is_some_and(|v| v == "off");
        if !hardware
            && !unwanted
            && let Err(why) = build_and_load()
        {
            println!("no AMD emulator: {why}");
        }
    });
}

fn build_and_load() -> Result<(), String> {
    let test = std::env::current_exe().map_err(|e| e.to_string())?;
    // TARGET/PROFILE/deps/TEST
    let target = test.ancestors().nth(3).ok_or("the test is not where cargo puts tests")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    build.args(["build", "--quiet", "--package", "crossccl-amd-emulator", "--target-dir"]).arg(target);
    let built = build.output().map_err(|e| format!("cargo: {e}"))?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    let library = target.join("debug/libamdhip64.so");
    // SAFETY: its initialisers do nothing.
    let library = unsafe { libloading::Library::new(&library) }.map_err(|e| format!("{}: {e}", library.display()))?;
    // It stays as long as the process.
    std::mem::forget(library);
    Ok(())
}

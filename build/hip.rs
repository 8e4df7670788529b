//! AMD's kernels, by hipcc or clang: one code object a target, and a Rust file that embeds them.
//!
//! `OUT_DIR` gets `crossccl_hip.TARGET.co`, `crossccl_hip.txt` (what they were made from, what each kernel takes) and
//! `hip_images.rs`. All but the last, copied to a folder, are what `CROSSCCL_KERNELS=FOLDER` takes.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{
    gpu::{self as shared, Compiler, out_dir, write},
    toolchain::{gpu, hip},
};

const FOLDERS: [&str; 2] = ["kernels-common", "kernels-hip"];
const REPORT: &str = "crossccl_hip.txt";
const VARIABLES: &shared::Variables = &[
    // A hipcc that sees nvcc takes it, unless it is told.
    ("HIP_PLATFORM", Some("amd")),
    // These are added to the command line: one of them could switch fast-math on.
    ("HIPCC_COMPILE_FLAGS_APPEND", None),
    ("HIPCC_LINK_FLAGS_APPEND", None),
    ("CCC_OVERRIDE_OPTIONS", None),
];

fn image(target: &str) -> String {
    format!("crossccl_hip.{target}.co")
}

fn run(compiler: &Path, arguments: &[String]) -> Result<(bool, String), String> {
    shared::run(compiler, arguments, VARIABLES)
}

/// Compiles `kernels-hip`.
pub(crate) fn compile() -> Result<(), String> {
    let env = |name: &str| std::env::var(name).ok();
    let sources = sources()?;
    let compilers = hip::compilers(env, Path::is_file)?;
    let targets = hip::targets(env)?;
    let folder = out_dir()?;
    write("question.hip", hip::QUESTION)?;
    let question = folder.join("question.hip");
    let knows =
        |compiler: &Path, target: &str| matches!(run(compiler, &hip::question(target, &question)), Ok((true, _)));
    let assigned = hip::assign(&targets, &compilers, knows)?;

    let jobs = env("NUM_JOBS").and_then(|n| n.parse().ok()).unwrap_or(1).clamp(1, assigned.len());
    let deny = gpu::deny_warnings(env);
    let next = AtomicUsize::new(0);
    let outputs = Mutex::new(vec![Err("not compiled".to_owned()); assigned.len()]);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some((target, compiler)) = assigned.get(i) else { break };
            let to = folder.join(image(target));
            let arguments = hip::arguments(target, deny, Path::new("kernels-hip/kernels.hip"), &to);
            let output = run(compiler, &["--version".into()]).and_then(|(_, version)| {
                let compiler = Compiler { program: compiler, version: &version, variables: VARIABLES, reads: &[] };
                compiler.make(sources, &arguments, &to)
            });
            let output = output.and_then(|(good, output)| {
                if good {
                    Ok((arguments.clone(), output))
                } else {
                    Err(format!("{} {} failed:\n{output}", compiler.display(), arguments.join(" ")))
                }
            });
            outputs.lock().unwrap_or_else(PoisonError::into_inner)[i] = output;
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    let outputs = outputs.into_inner().unwrap_or_else(PoisonError::into_inner);

    let (mut compiled, mut resources) = (Vec::new(), Vec::new());
    for ((target, compiler), output) in assigned.iter().zip(outputs) {
        let (arguments, output) = output?;
        for warning in output.lines().filter(|line| line.contains(" warning: ")) {
            println!("cargo::warning={warning}");
        }
        resources.extend(hip::resources(target, &output)?);
        let (_, version) = run(compiler, &["--version".into()])?;
        let version = version.lines().find(|line| line.contains("clang version")).unwrap_or_default().to_owned();
        compiled.push((target.clone(), version, arguments));
    }
    // Written before the verdict: who mends a kernel wants to read it.
    write(REPORT, &hip::report(sources, &compiled, &resources))?;
    let list: Vec<_> = assigned.into_iter().map(|(target, _)| target).collect();
    hip::verdict(&resources, &list)?;
    embed(&list)
}

/// Takes the images from `folder`.
pub(crate) fn take(folder: &Path) -> Result<(), String> {
    let wrong = |path: &Path, why: &str| format!("CROSSCCL_KERNELS={}: {}: {why}", folder.display(), path.display());
    let report = folder.join(REPORT);
    println!("cargo::rerun-if-changed={}", report.display());
    let text = fs::read_to_string(&report).map_err(|e| wrong(&report, &e.to_string()))?;
    let list = gpu::prebuilt(&text, sources()?).map_err(|why| wrong(&report, &why))?;
    for target in &list {
        let from = folder.join(image(target));
        println!("cargo::rerun-if-changed={}", from.display());
        fs::copy(&from, out_dir()?.join(image(target))).map_err(|e| wrong(&from, &e.to_string()))?;
    }
    write(REPORT, &text)?;
    embed(&list)
}

/// Builds without kernels.
pub(crate) fn leave_out() -> Result<(), String> {
    embed(&[])
}

/// Declares what the build depends on and answers the number of the sources.
fn sources() -> Result<u64, String> {
    // Clang comes from PATH unless it is named.
    shared::sources(&FOLDERS, "hip", &hip::VARIABLES, &["HIP_CLANG"])
}

fn embed(targets: &[String]) -> Result<(), String> {
    let geometry = shared::geometry("kernels-hip/target_hip.h")?.text();
    let (mut list, mut statics) = (String::new(), String::new());
    for target in targets {
        let path = out_dir()?.join(image(target));
        let bytes = fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?.len();
        let name = target.to_uppercase();
        let _ = write!(list, "({target:?}, &{name}.0), ");
        let _ = writeln!(statics, "static {name}: Aligned<{bytes}> = Aligned(*include_bytes!({path:?}));");
    }
    if !targets.is_empty() {
        // Where a loader maps a code object instead of copying it.
        statics.insert_str(0, "#[repr(C, align(4096))]\nstruct Aligned<const BYTES: usize>([u8; BYTES]);\n");
    }
    let text = format!(
        "// Written by build/hip.rs.\n\
         /// The kernels: the target's name, as the driver says it before the first colon, and its code object. Empty:\n\
         /// built without.\n\
         pub(crate) static IMAGES: &[(&str, &[u8])] = &[{}];\n\
         {statics}\
         {geometry}",
        list.trim_end_matches(", ")
    );
    write("hip_images.rs", &text)
}

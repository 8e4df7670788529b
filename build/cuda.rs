//! NVIDIA's kernels, by nvcc: one fatbin with machine code and PTX, and a Rust file that embeds it.
//!
//! `OUT_DIR` gets `crossccl_cuda.fatbin`, `crossccl_cuda.txt` (what it was made from, what each kernel takes) and
//! `cuda_images.rs`. The first two, copied to a folder, are what `CROSSCCL_KERNELS=FOLDER` takes.

use std::{fs, path::Path};

use super::{
    gpu::{self as shared, Compiler, out_dir, write},
    toolchain::{
        cuda::{self, Architecture},
        gpu,
    },
};

const FOLDERS: [&str; 2] = ["kernels-common", "kernels-cuda"];
const IMAGE: &str = "crossccl_cuda.fatbin";
const REPORT: &str = "crossccl_cuda.txt";
/// nvcc adds these to its command line: one of them could switch fast-math on.
const VARIABLES: &shared::Variables = &[("NVCC_PREPEND_FLAGS", None), ("NVCC_APPEND_FLAGS", None)];

/// Compiles `kernels-cuda`.
pub(crate) fn compile() -> Result<(), String> {
    let env = |name: &str| std::env::var(name).ok();
    let sources = sources()?;
    let nvcc = cuda::nvcc(env, Path::is_file)?;
    let architectures = cuda::architectures(env)?;
    let (_, version) = shared::run(&nvcc, &["--version".into()], VARIABLES)?;
    let release =
        cuda::release(&version).ok_or_else(|| format!("{} --version names no release: {version}", nvcc.display()))?;
    let image = out_dir()?.join(IMAGE);
    let jobs = env("NUM_JOBS").and_then(|n| n.parse().ok()).unwrap_or(1);
    let arguments = cuda::arguments(
        &architectures,
        release,
        jobs,
        gpu::deny_warnings(env),
        Path::new("kernels-cuda/kernels.cu"),
        &image,
    );
    let compiler = Compiler { program: &nvcc, version: &version, variables: VARIABLES, reads: &["NVCC_CCBIN"] };
    let (good, output) = compiler.make(sources, &arguments, &image)?;
    if !good {
        let hint = if output.contains("nsupported gpu architecture") {
            "\nThis compiler is older or newer than an architecture of the list; CUDA_ARCH_LIST names others (sm_100 \
             needs CUDA 12.8)."
        } else {
            ""
        };
        return Err(format!("{} {} failed:\n{output}{hint}", nvcc.display(), arguments.join(" ")));
    }
    for warning in output.lines().filter(|line| line.contains("warning")) {
        println!("cargo::warning={warning}");
    }
    let machine_code = architectures.iter().any(|a| matches!(a, Architecture::Machine(_)));
    // PTX alone is judged by the driver that compiles it, on a machine that is not here.
    let resources = if machine_code { cuda::resources(&output)? } else { Vec::new() };
    let compiler = version.lines().find(|line| line.contains("release ")).unwrap_or_default();
    // Written before the verdict: who mends a kernel wants to read it.
    let report = cuda::report(sources, compiler, &arguments, &architectures, &resources);
    write(REPORT, &report)?;
    cuda::verdict(&resources, &architectures)?;
    let list: Vec<_> = architectures.iter().map(ToString::to_string).collect();
    embed(Some(&image), &list)
}

/// Takes the image from `folder`.
pub(crate) fn take(folder: &Path) -> Result<(), String> {
    let (from, report) = (folder.join(IMAGE), folder.join(REPORT));
    println!("cargo::rerun-if-changed={}", from.display());
    println!("cargo::rerun-if-changed={}", report.display());
    let wrong = |path: &Path, why: &str| format!("CROSSCCL_KERNELS={}: {}: {why}", folder.display(), path.display());
    let text = fs::read_to_string(&report).map_err(|e| wrong(&report, &e.to_string()))?;
    let list = gpu::prebuilt(&text, sources()?).map_err(|why| wrong(&report, &why))?;
    let image = out_dir()?.join(IMAGE);
    fs::copy(&from, &image).map_err(|e| wrong(&from, &e.to_string()))?;
    write(REPORT, &text)?;
    embed(Some(&image), &list)
}

/// Builds without kernels.
pub(crate) fn leave_out() -> Result<(), String> {
    embed(None, &[])
}

/// Declares what the build depends on and answers the number of the sources.
fn sources() -> Result<u64, String> {
    shared::sources(&FOLDERS, "cu", &cuda::VARIABLES, &["NVCC", "CUDA_HOME", "CUDA_PATH"])
}

fn embed(image: Option<&Path>, architectures: &[String]) -> Result<(), String> {
    let geometry = shared::geometry("kernels-cuda/target_cuda.h")?.text();
    let image = match image {
        None => "pub(crate) static IMAGE: Option<&[u8]> = None;".to_owned(),
        Some(path) => {
            let bytes = fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?.len();
            format!(
                "pub(crate) static IMAGE: Option<&[u8]> = Some(&ALIGNED.0);\n\
                 #[repr(C, align(64))]\n\
                 struct Aligned([u8; {bytes}]);\n\
                 static ALIGNED: Aligned = Aligned(*include_bytes!({path:?}));"
            )
        }
    };
    let text = format!(
        "// Written by build/cuda.rs.\n\
         /// The kernels as one fatbin, from which the driver takes what fits the device; `None`: built without.\n\
         {image}\n\
         /// What the image holds: `sm_` is machine code, `compute_` is PTX.\n\
         pub(crate) const ARCHITECTURES: &[&str] = &{architectures:?};\n\
         {geometry}"
    );
    write("cuda_images.rs", &text)
}

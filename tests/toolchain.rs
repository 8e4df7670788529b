//! The decisions of the build script, which cargo itself does not test.

#[path = "../build/toolchain.rs"]
#[allow(dead_code)]
mod toolchain;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use toolchain::{
    Kernels,
    cuda::{self, Architecture, Resources},
    gpu, kernels,
};

type Environment = HashMap<String, String>;

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn choose(variables: &[(&str, &str)]) -> Result<Kernels, String> {
    let env = environment(variables);
    kernels(|name| env.get(name).cloned(), |path| path == Path::new("/images"))
}

#[test]
fn kernels_are_compiled_unless_something_says_otherwise() {
    assert_eq!(choose(&[]), Ok(Kernels::Compile));
    assert_eq!(choose(&[("CROSSCCL_KERNELS", "")]), Ok(Kernels::Compile));
    assert_eq!(choose(&[("CROSSCCL_KERNELS", "off")]), Ok(Kernels::Off));
    assert_eq!(choose(&[("CROSSCCL_KERNELS", "/images")]), Ok(Kernels::Prebuilt("/images".into())));
    assert_eq!(choose(&[("DOCS_RS", "1"), ("CROSSCCL_KERNELS", "/images")]), Ok(Kernels::Off));
    assert_eq!(
        choose(&[("CROSSCCL_KERNELS", "of")]).unwrap_err(),
        "CROSSCCL_KERNELS=of: expected `off` (build without kernels), a folder of prebuilt images (as an absolute \
         path), or nothing; there is no such folder"
    );
}

fn nvcc(variables: &[(&str, &str)], files: &[&str]) -> Result<PathBuf, String> {
    let env = environment(variables);
    cuda::nvcc(|name| env.get(name).cloned(), |path| files.iter().any(|file| path == Path::new(file)))
}

#[test]
fn nvcc_is_looked_for_in_the_documented_order() {
    let files = ["/a/nvcc", "/b/bin/nvcc", "/c/bin/nvcc", "/d/nvcc"];
    let mut variables = vec![("PATH", "/nowhere::/d"), ("CUDA_PATH", "/c"), ("CUDA_HOME", "/b"), ("NVCC", "/a/nvcc")];
    for expected in ["/a/nvcc", "/b/bin/nvcc", "/c/bin/nvcc", "/d/nvcc"] {
        assert_eq!(nvcc(&variables, &files), Ok(expected.into()), "{variables:?}");
        variables.pop();
    }
    // By name, and set to nothing, which is not set.
    assert_eq!(nvcc(&[("NVCC", "nvcc"), ("PATH", "/d")], &files), Ok("/d/nvcc".into()));
    assert_eq!(nvcc(&[("NVCC", ""), ("CUDA_HOME", ""), ("PATH", "/d")], &files), Ok("/d/nvcc".into()));
}

#[test]
fn without_nvcc_the_error_names_every_place_and_what_helps() {
    assert_eq!(
        nvcc(&[("PATH", "/usr/bin:/bin")], &[]).unwrap_err(),
        "the feature `cuda` compiles kernels-cuda with nvcc, and none was found. Looked at, in this order:\n  \
         NVCC: not set\n  CUDA_HOME: not set\n  CUDA_PATH: not set\n  PATH=/usr/bin:/bin: no nvcc\n\
         Set NVCC to the compiler, or CUDA_HOME to the folder of the CUDA toolkit. Where there is no toolkit, \
         `scripts/install-cuda-compiler FOLDER` brings a compiler from PyPI (the wheels nvidia-cuda-nvcc, nvidia-nvvm, \
         nvidia-cuda-crt and nvidia-cuda-runtime, of one release). CROSSCCL_KERNELS=off builds without kernels, \
         CROSSCCL_KERNELS=FOLDER takes prebuilt ones."
    );
}

/// Another compiler than the one asked for would be a surprise.
#[test]
fn a_variable_that_leads_nowhere_is_an_error() {
    let why = nvcc(&[("CUDA_HOME", "/old"), ("PATH", "/d")], &["/d/nvcc"]).unwrap_err();
    assert!(why.contains("\n  CUDA_HOME=/old: no /old/bin/nvcc\n"), "{why}");
    let why = nvcc(&[("NVCC", "/a/nvcc"), ("PATH", "/d")], &["/d/nvcc"]).unwrap_err();
    assert!(why.contains("\n  NVCC=/a/nvcc: no such file\n"), "{why}");
}

fn architectures(list: &str) -> Result<Vec<String>, String> {
    cuda::architectures(|name| (name == "CUDA_ARCH_LIST").then(|| list.to_owned()))
        .map(|found| found.iter().map(ToString::to_string).collect())
}

#[test]
fn architectures_are_the_documented_default_or_what_is_asked_for() {
    assert_eq!(architectures("").unwrap(), ["sm_80", "sm_90", "sm_100", "compute_80"]);
    assert_eq!(architectures("90").unwrap(), ["sm_90"]);
    assert_eq!(architectures("8.0; 9.0a 10.0+PTX").unwrap(), ["sm_80", "sm_90a", "sm_100", "compute_100"]);
    assert_eq!(architectures("sm_90,compute_80,90").unwrap(), ["sm_90", "compute_80"]);
    for wrong in ["native", "60", "sm_", "90ab", "compute_80+PTX", "80,+PTX"] {
        let why = architectures(wrong).unwrap_err();
        assert!(why.starts_with(&format!("CUDA_ARCH_LIST={wrong}: `")), "{why}");
    }
}

fn command(release: (u32, u32), deny: bool) -> String {
    let architectures = [Architecture::Machine("90".into()), Architecture::Portable("80".into())];
    cuda::arguments(&architectures, release, 2, deny, Path::new("k.cu"), Path::new("/out/k.fatbin")).join(" ")
}

#[test]
fn the_command_line_holds_the_numerics_contract() {
    assert_eq!(
        command((13, 0), true),
        "-fatbin -std=c++17 -O3 --fmad=false --ftz=false --prec-div=true --prec-sqrt=true \
         -gencode arch=compute_90,code=sm_90 -gencode arch=compute_80,code=compute_80 -Xptxas -v -Werror all-warnings \
         -compress-mode=size --threads 2 -o /out/k.fatbin k.cu"
    );
    let older = command((12, 4), false);
    assert!(!older.contains("-compress-mode") && !older.contains("-Werror"), "{older}");
}

#[test]
fn warnings_are_errors_where_ci_says_so() {
    for (value, expected) in [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true)] {
        assert_eq!(gpu::deny_warnings(|_| value.map(Into::into)), expected, "{value:?}");
    }
}

#[test]
fn releases_are_read() {
    let text = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n";
    assert_eq!(cuda::release(text), Some((13, 0)));
    assert_eq!(cuda::release("clang version 19"), None);
}

/// As ptxas 13.0 prints it.
const REPORT: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 55 registers, used 1 barriers
ptxas info    : Compile time = 268.761 ms
ptxas info    : Compiling entry function 'two' for 'sm_80'
ptxas info    : Function properties for two
    64 bytes stack frame, 84 bytes spill stores, 248 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 64 bytes cumulative stack size, 32 bytes smem, 1040 bytes cmem[0]
";

fn resources(architecture: &str, kernel: &str) -> Resources {
    Resources { architecture: architecture.into(), kernel: kernel.into(), registers: 55, ..Resources::default() }
}

#[test]
fn the_report_of_ptxas_is_read() {
    let two = Resources {
        registers: 64,
        stack: 64,
        spill_stores: 84,
        spill_loads: 248,
        shared: 32,
        ..resources("sm_80", "two")
    };
    assert_eq!(cuda::resources(REPORT).unwrap(), [resources("sm_90", "one"), two]);
}

#[test]
fn a_report_that_is_not_understood_is_no_permission() {
    for missing in ["stack frame", "Used", "Compiling"] {
        let cut: Vec<_> = REPORT.lines().filter(|line| !line.contains(missing)).collect();
        let why = cuda::resources(&cut.join("\n")).unwrap_err();
        assert!(why.starts_with("the report of ptxas is not understood: "), "{why}");
    }
    assert!(cuda::resources("").is_err());
}

#[test]
fn a_stack_frame_or_a_spill_is_an_error() {
    let both = [Architecture::Machine("80".into()), Architecture::Machine("90".into())];
    let good = [resources("sm_80", "one"), resources("sm_90", "one")];
    assert_eq!(cuda::verdict(&good, &both), Ok(()));
    for (stack, spill_stores, spill_loads) in [(8, 0, 0), (0, 4, 0), (0, 0, 4)] {
        let bad = Resources { stack, spill_stores, spill_loads, ..resources("sm_90", "one") };
        let why = cuda::verdict(&[good[0].clone(), bad], &both).unwrap_err();
        assert!(why.starts_with("one for sm_90: ") && why.contains("no stack frame and no spill (I12"), "{why}");
    }
    let why = cuda::verdict(&good[..1], &both).unwrap_err();
    assert_eq!(why, "sm_90 has 0 kernels and sm_80 1: they must be the same");
}

#[test]
fn constants_are_read_out_of_a_header() {
    let header = "// kTile = 1\nconstexpr uint32_t kThreads = 512;\nconstexpr uint64_t kTile = 16 * 1024;\n\
                  constexpr uint32_t kOdd = sizeof(int);\n";
    assert_eq!(gpu::constant(header, "kThreads"), Some(512));
    assert_eq!(gpu::constant(header, "kTile"), Some(16384));
    assert_eq!(gpu::constant(header, "kOdd"), None);
    assert_eq!(gpu::constant(header, "kNone"), None);
}

#[test]
fn prebuilt_images_belong_to_their_sources() {
    let sources = gpu::fingerprint([("a.h", "x".as_bytes()), ("b.h", "".as_bytes())]);
    // Neither a moved byte nor a moved name is the same.
    assert_ne!(sources, gpu::fingerprint([("a.h", "".as_bytes()), ("b.h", "x".as_bytes())]));
    assert_ne!(sources, gpu::fingerprint([("a.hx", "".as_bytes()), ("b.h", "".as_bytes())]));
    let architectures = [Architecture::Machine("90".into()), Architecture::Portable("80".into())];
    let report = cuda::report(sources, "13.0", &["-O3".into()], &architectures, &[resources("sm_90", "one")]);
    assert!(report.ends_with("\nsm_90 one 55 0 0 0 0\n"), "{report}");
    assert_eq!(gpu::prebuilt(&report, sources).unwrap(), ["sm_90", "compute_80"]);
    let why = gpu::prebuilt(&report, sources + 1).unwrap_err();
    assert!(why.contains("it belongs to another version"), "{why}");
    assert!(gpu::prebuilt("", sources).is_err());
}

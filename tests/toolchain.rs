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
    gpu,
    hip::{self, Target},
    kernels,
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
    for wrong in ["native", "60", "sm_", "90ab", "compute_80+PTX", "80,+PTX", "+80"] {
        let why = architectures(wrong).unwrap_err();
        assert!(why.starts_with(&format!("CUDA_ARCH_LIST={wrong}: `")), "{why}");
    }
    // An image for nothing would be found out by whoever runs it.
    let nothing = architectures(" ,;").unwrap_err();
    assert_eq!(
        nothing,
        "CUDA_ARCH_LIST= ,;: names no architecture; leave it unset for the default 80,90,100,compute_80"
    );
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

fn hip_compilers(variables: &[(&str, &str)], files: &[&str]) -> Result<Vec<PathBuf>, String> {
    let env = environment(variables);
    hip::compilers(|name| env.get(name).cloned(), |path| files.iter().any(|file| path == Path::new(file)))
}

#[test]
fn hipcc_and_clang_are_looked_for_in_the_documented_order() {
    let files = ["/a/hipcc", "/b/bin/hipcc", "/c/bin/hipcc", "/d/hipcc", "/d/clang++-19", "/e/clang"];
    let mut variables = vec![("PATH", "/nowhere::/d"), ("HIP_PATH", "/c"), ("ROCM_PATH", "/b"), ("HIPCC", "/a/hipcc")];
    for expected in ["/a/hipcc", "/b/bin/hipcc", "/c/bin/hipcc", "/d/hipcc"] {
        assert_eq!(
            hip_compilers(&variables, &files),
            Ok(vec![expected.into(), "/d/clang++-19".into()]),
            "{variables:?}"
        );
        variables.pop();
    }
    // By name; either alone; the newest on PATH, whatever folder it is in, and none that is too old.
    let found = hip_compilers(&[("HIPCC", "hipcc"), ("HIP_CLANG", "/e/clang"), ("PATH", "/d")], &files);
    assert_eq!(found, Ok(vec!["/d/hipcc".into(), "/e/clang".into()]));
    assert_eq!(hip_compilers(&[("HIP_CLANG", "/e/clang")], &files), Ok(vec!["/e/clang".into()]));
    let clangs = ["/x/clang++-18", "/x/clang-20", "/x/clang++-19", "/y/clang-22", "/y/clang++-22", "/x/clang++"];
    assert_eq!(hip_compilers(&[("PATH", "/x:/y")], &clangs), Ok(vec!["/y/clang++-22".into()]));
    assert_eq!(hip_compilers(&[("PATH", "/x")], &clangs), Ok(vec!["/x/clang-20".into()]));
    assert!(hip_compilers(&[("PATH", "/x")], &["/x/clang++-18", "/x/clang++"]).is_err());
}

#[test]
fn without_hipcc_and_clang_the_error_names_every_place_and_what_helps() {
    assert_eq!(
        hip_compilers(&[("PATH", "/usr/bin:/bin")], &[]).unwrap_err(),
        "the feature `rocm` compiles kernels-hip with hipcc or with clang, and none was found. Looked at, in this \
         order:\n  \
         HIPCC: not set\n  ROCM_PATH: not set\n  HIP_PATH: not set\n  PATH=/usr/bin:/bin: no hipcc\n  \
         HIP_CLANG: not set\n  PATH=/usr/bin:/bin: no clang++-NN or clang-NN, NN from 19 up\n\
         Set HIPCC to the compiler, or ROCM_PATH to the folder of ROCm, or HIP_CLANG to a clang of version 19 or newer, \
         whose AMD target and lld are all that the kernels need. Debian has one in the packages clang-19, lld-19 and \
         llvm-19 (`scripts/install-hip-compiler` installs them). CROSSCCL_KERNELS=off builds without kernels, \
         CROSSCCL_KERNELS=FOLDER takes prebuilt ones."
    );
}

#[test]
fn a_variable_of_rocm_that_leads_nowhere_is_an_error() {
    let files = ["/d/hipcc", "/d/clang++-19"];
    for (name, value, said) in [
        ("HIPCC", "/a/hipcc", "HIPCC=/a/hipcc: no such file"),
        ("ROCM_PATH", "/old", "ROCM_PATH=/old: no /old/bin/hipcc"),
        ("HIP_PATH", "/old", "HIP_PATH=/old: no /old/bin/hipcc"),
        ("HIP_CLANG", "clang++-77", "HIP_CLANG=clang++-77: no such file"),
    ] {
        let why = hip_compilers(&[(name, value), ("PATH", "/d")], &files).unwrap_err();
        assert!(why.contains(&format!("\n  {said}\n")), "{why}");
    }
}

fn hip_targets(list: &str) -> Result<Vec<(String, bool)>, String> {
    let targets = hip::targets(|name| (name == "GPU_TARGETS").then(|| list.to_owned()))?;
    Ok(targets.into_iter().map(|Target { name, optional }| (name, optional)).collect())
}

#[test]
fn targets_are_the_documented_default_or_what_is_asked_for() {
    let names = |list: &str, optional| {
        hip_targets(list).unwrap().into_iter().filter(|t| t.1 == optional).map(|t| t.0).collect::<Vec<_>>()
    };
    assert_eq!(names("", false), ["gfx90a", "gfx942", "gfx1100"]);
    assert_eq!(names(" ", true), ["gfx950", "gfx1201"]);
    assert_eq!(names("gfx942; gfx1030,gfx942 gfx950", false), ["gfx942", "gfx1030", "gfx950"]);
    assert!(names("gfx950", true).is_empty(), "what is asked for is not optional");
    let nothing = hip_targets(";").unwrap_err();
    assert_eq!(nothing, "GPU_TARGETS=;: names no target; leave it unset for the default gfx90a,gfx942,gfx1100");
    for wrong in ["native", "gfx", "gfx803", "gfx9-generic", "gfx90a:xnack-", "sm_90", "gfx1300", "942", "gfx94"] {
        let why = hip_targets(wrong).unwrap_err();
        assert!(why.starts_with(&format!("GPU_TARGETS={wrong}: `{wrong}` is no target; ")), "{why}");
    }
}

#[test]
fn each_target_goes_to_the_first_compiler_that_knows_it() {
    let target = |name: &str, optional| Target { name: name.into(), optional };
    let compilers = ["/hipcc".into(), "/clang".into()];
    let knows = |compiler: &Path, target: &str| match target {
        "gfx90a" => true,
        "gfx942" => compiler == Path::new("/clang"),
        _ => false,
    };
    let targets = [target("gfx90a", false), target("gfx942", false), target("gfx950", true)];
    assert_eq!(
        hip::assign(&targets, &compilers, knows),
        Ok(vec![("gfx90a".into(), "/hipcc".into()), ("gfx942".into(), "/clang".into())])
    );
    let why = hip::assign(&[target("gfx950", false)], &compilers, knows).unwrap_err();
    assert_eq!(
        why,
        "no compiler is new enough for the target gfx950: asked /hipcc, /clang. That takes clang 19, or a hipcc made of \
         it, and 20 for gfx950: name one by HIP_CLANG, or leave the target out of GPU_TARGETS"
    );
}

#[test]
fn the_command_line_of_hip_holds_the_numerics_contract() {
    let command = |deny| hip::arguments("gfx942", deny, Path::new("k.hip"), Path::new("/out/k.co")).join(" ");
    assert_eq!(
        command(true),
        "-x hip --cuda-device-only --offload-arch=gfx942 -nogpulib -nogpuinc -std=c++17 --no-gpu-bundle-output -O3 \
         -fno-fast-math -ffp-contract=off -fno-gpu-flush-denormals-to-zero -fhip-fp32-correctly-rounded-divide-sqrt \
         -Wall -Wextra -Wno-pass-failed -Werror -Rpass-analysis=kernel-resource-usage -o /out/k.co k.hip"
    );
    assert!(!command(false).contains("-Werror"));
    assert_eq!(
        hip::question("gfx942", Path::new("/out/q.hip")).join(" "),
        "-x hip --cuda-device-only --offload-arch=gfx942 -nogpulib -nogpuinc -std=c++17 -fsyntax-only /out/q.hip"
    );
}

/// As clang 19 prints it; RDNA has no accumulation registers.
const REMARKS: &str = "\
k.hip:1:1: remark: Function Name: one [-Rpass-analysis=kernel-resource-usage]
    1 | CROSSCCL_KERNEL(one, (one))
k.hip:1:1: remark:     SGPRs: 106 [-Rpass-analysis=kernel-resource-usage]
k.hip:1:1: remark:     VGPRs: 44 [-Rpass-analysis=kernel-resource-usage]
k.hip:1:1: remark:     AGPRs: 2 [-Rpass-analysis=kernel-resource-usage]
k.hip:1:1: remark:     ScratchSize [bytes/lane]: 48 [-Rpass-analysis=kernel-resource-usage]
k.hip:1:1: remark:     Dynamic Stack: False [-Rpass-analysis=kernel-resource-usage]
k.hip:1:1: remark:     Occupancy [waves/SIMD]: 7 [-Rpass-analysis=kernel-resource-usage]
k.hip:1:1: remark:     SGPRs Spill: 40 [-Rpass-analysis=kernel-resource-usage]
k.hip:1:1: remark:     VGPRs Spill: 12 [-Rpass-analysis=kernel-resource-usage]
k.hip:1:1: remark:     LDS Size [bytes/block]: 32 [-Rpass-analysis=kernel-resource-usage]
";

fn hip_resources(target: &str, kernel: &str) -> hip::Resources {
    hip::Resources { target: target.into(), kernel: kernel.into(), vector: 44, ..hip::Resources::default() }
}

#[test]
fn the_remarks_of_clang_are_read() {
    let one = hip::Resources {
        accumulation: 2,
        scalar: 106,
        scratch: 48,
        spills: 12,
        scalar_spills: 40,
        shared: 32,
        waves: 7,
        ..hip_resources("gfx942", "one")
    };
    assert_eq!(hip::resources("gfx942", REMARKS).unwrap(), std::slice::from_ref(&one));
    let without: Vec<_> = REMARKS.lines().filter(|line| !line.contains("AGPRs")).collect();
    let one = hip::Resources { accumulation: 0, ..one };
    assert_eq!(hip::resources("gfx942", &without.join("\n")).unwrap(), [one]);
}

#[test]
fn remarks_that_are_not_understood_are_no_permission() {
    for missing in ["SGPRs:", "VGPRs:", "Scratch", "Occupancy", "SGPRs Spill", "VGPRs Spill", "LDS", "Function Name"] {
        let cut: Vec<_> = REMARKS.lines().filter(|line| !line.contains(missing)).collect();
        let why = hip::resources("gfx942", &cut.join("\n")).unwrap_err();
        assert!(why.starts_with("the compiler's report on resources for gfx942 is not understood: "), "{why}");
    }
    let why = hip::resources("gfx942", &REMARKS.replace("lane]: 48", "lane]: some")).unwrap_err();
    assert!(why.contains("no number in "), "{why}");
    assert!(hip::resources("gfx942", "").is_err());
}

#[test]
fn scratch_or_a_spill_is_an_error_and_waiting_scalars_are_not() {
    let both = ["gfx90a".to_owned(), "gfx942".to_owned()];
    let mut good = [hip_resources("gfx90a", "one"), hip_resources("gfx942", "one")];
    good[0].scalar_spills = 30;
    assert_eq!(hip::verdict(&good, &both), Ok(()));
    for (scratch, spills) in [(8, 0), (0, 4)] {
        let bad = hip::Resources { scratch, spills, ..hip_resources("gfx942", "one") };
        let why = hip::verdict(&[good[0].clone(), bad], &both).unwrap_err();
        assert!(why.starts_with("one for gfx942: ") && why.contains("no stack frame and no spill (I12"), "{why}");
    }
    let why = hip::verdict(&good[..1], &both).unwrap_err();
    assert_eq!(why, "gfx942 has 0 kernels and gfx90a 1: they must be the same");
}

#[test]
fn prebuilt_code_objects_belong_to_their_sources() {
    let compiled = [("gfx942".to_owned(), "clang version 19".to_owned(), vec!["-O3".to_owned()])];
    let report = hip::report(7, &compiled, &[hip_resources("gfx942", "one")]);
    assert!(report.ends_with("\ngfx942 one 44 0 0 0 0 0 0 0\n"), "{report}");
    assert!(report.contains("\ncompiler gfx942 clang version 19\narguments gfx942 -O3\n"), "{report}");
    assert_eq!(gpu::prebuilt(&report, 7).unwrap(), ["gfx942"]);
    assert!(gpu::prebuilt(&report, 8).unwrap_err().contains("it belongs to another version"));
}

#[test]
fn a_missing_cxx_is_told_with_what_to_do() {
    let text = toolchain::no_cxx("failed to find tool \"c++\"");
    for part in ["feature cpu", "failed to find tool \"c++\"", "g++", "CXX", "CROSSCCL_KERNELS=off", "default-features"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_is_kept_has_a_name_by_all_that_it_is_made_of() {
    let text = |arguments: &str| arguments.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let name = |sources, compiler, ccbin: &str, arguments: &str, output| {
        gpu::key(sources, compiler, &[("NVCC_CCBIN", ccbin.into())], &text(arguments), output)
    };
    let one = name(1, "release 13.0", "", "-O3 --threads 2 -o /a/k k.cu", "/a/k");
    // Where it goes, by how many threads, and whether warnings would have been errors makes no difference.
    assert_eq!(one, name(1, "release 13.0", "", "-O3 -Werror all-warnings --threads 1 -o /b/k k.cu", "/b/k"));
    let others = [
        name(2, "release 13.0", "", "-O3 --threads 2 -o /a/k k.cu", "/a/k"),
        name(1, "release 13.1", "", "-O3 --threads 2 -o /a/k k.cu", "/a/k"),
        name(1, "release 13.0", "g++-12", "-O3 --threads 2 -o /a/k k.cu", "/a/k"),
        name(1, "release 13.0", "", "-O2 --threads 2 -o /a/k k.cu", "/a/k"),
        name(1, "release 13.0", "", "-O3 --threads 2 -o /a/k -g k.cu", "/a/k"),
    ];
    assert!(others.iter().all(|other| *other != one), "{one} {others:?}");
    let folder = |value: &str| gpu::cache(|_| Some(value.to_owned()));
    assert_eq!((folder(""), folder("/kept")), (Ok(None), Ok(Some("/kept".into()))));
    assert!(folder("kept").is_err_and(|text| text.contains("an absolute path")));
}

//! Decisions of the build, as pure functions: environment and files in, command lines and verdicts out.
//! Tested by `tests/toolchain.rs`.

use std::path::{Path, PathBuf};

/// What to do about kernels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// Compile them with the backend's compiler.
    Compile,
    /// Take the images of the GPU backends from this folder; the CPU's kernels are compiled.
    Prebuilt(PathBuf),
    /// Build without kernels: documentation, or a check on a machine without compilers. Opening a
    /// communicator then answers an error that says so.
    Off,
}

/// Reads `CROSSCCL_KERNELS` (`off`, a folder, or unset) and `DOCS_RS` (set: documentation needs no compiler).
pub(crate) fn kernels(
    env: impl Fn(&str) -> Option<String>,
    is_folder: impl Fn(&Path) -> bool,
) -> Result<Kernels, String> {
    if env("DOCS_RS").is_some() {
        return Ok(Kernels::Off);
    }
    match env("CROSSCCL_KERNELS").as_deref() {
        None | Some("") => Ok(Kernels::Compile),
        Some("off") => Ok(Kernels::Off),
        Some(folder) if is_folder(Path::new(folder)) => Ok(Kernels::Prebuilt(folder.into())),
        Some(other) => Err(format!(
            "CROSSCCL_KERNELS={other}: expected `off` (build without kernels), a folder of prebuilt images (as an \
             absolute path), or nothing; there is no such folder"
        )),
    }
}

/// What the kernels of all GPUs share.
#[cfg(any(feature = "cuda", feature = "rocm", test))]
pub(crate) mod gpu {
    /// Whether `CROSSCCL_DENY_WARNINGS` makes warnings errors. Stack frames and spills always are.
    pub(crate) fn deny_warnings(env: impl Fn(&str) -> Option<String>) -> bool {
        env("CROSSCCL_DENY_WARNINGS").is_some_and(|value| !value.is_empty() && value != "0")
    }

    /// The value of `constexpr T name = value;` in a header, where value is a product of numbers. The header
    /// owns it; the host's copy is written from it.
    pub(crate) fn constant(header: &str, name: &str) -> Option<u64> {
        let pattern = format!(" {name} = ");
        let line = header.lines().find(|line| line.starts_with("constexpr ") && line.contains(&pattern))?;
        let value = line.split(&pattern).nth(1)?.split(';').next()?;
        value.split('*').try_fold(1u64, |product, factor| Some(product * factor.trim().parse::<u64>().ok()?))
    }

    /// A number of the sources, so that prebuilt images of other ones are refused (FNV-1a over names and
    /// contents; the same on every machine).
    pub(crate) fn fingerprint<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for (name, contents) in files {
            for part in [name.as_bytes(), contents] {
                for byte in part.len().to_le_bytes().iter().chain(part) {
                    hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
                }
            }
        }
        hash
    }

    /// The architectures of a prebuilt image by its report, if it was made from these sources.
    pub(crate) fn prebuilt(report: &str, sources: u64) -> Result<Vec<String>, String> {
        let line = |name: &str| report.lines().find_map(|line| line.strip_prefix(name));
        let theirs = line("sources ").ok_or("the report names no sources")?;
        let ours = format!("{sources:016x}");
        if theirs != ours {
            return Err(format!(
                "the image was made from sources {theirs}, this is {ours}: it belongs to another version"
            ));
        }
        let list = line("architectures ").ok_or("the report names no architectures")?;
        Ok(list.split(' ').map(Into::into).collect())
    }
}

/// NVIDIA's kernels.
#[cfg(any(feature = "cuda", test))]
pub(crate) mod cuda {
    use std::{
        fmt,
        path::{Path, PathBuf},
    };

    /// Machine code for the data-center parts that collectives meet (Ampere, Hopper, Blackwell) and the
    /// portable form of the oldest, which a driver compiles for everything newer.
    const DEFAULT_ARCHITECTURES: &str = "80,90,100,compute_80";

    /// Every variable that the decisions here, or nvcc itself, read; besides PATH.
    pub(crate) const VARIABLES: [&str; 6] =
        ["NVCC", "CUDA_HOME", "CUDA_PATH", "CUDA_ARCH_LIST", "NVCC_CCBIN", "CROSSCCL_DENY_WARNINGS"];

    /// Finds nvcc by `NVCC`, `CUDA_HOME`, `CUDA_PATH`, then `PATH`. A variable that is set and leads nowhere
    /// is an error, not a reason to take another compiler than was asked for.
    pub(crate) fn nvcc(
        env: impl Fn(&str) -> Option<String>,
        is_file: impl Fn(&Path) -> bool,
    ) -> Result<PathBuf, String> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let path = set("PATH").unwrap_or_default();
        let on_path = |program: &str| {
            path.split(':').filter(|folder| !folder.is_empty()).map(|f| Path::new(f).join(program)).find(|p| is_file(p))
        };
        let mut looked = Vec::new();
        match set("NVCC") {
            None => looked.push("NVCC: not set".to_owned()),
            Some(named) => {
                let found = if named.contains('/') {
                    Some(PathBuf::from(&named)).filter(|p| is_file(p))
                } else {
                    on_path(&named)
                };
                looked.push(format!("NVCC={named}: no such file"));
                return found.ok_or_else(|| missing(&looked));
            }
        }
        for name in ["CUDA_HOME", "CUDA_PATH"] {
            let Some(folder) = set(name) else {
                looked.push(format!("{name}: not set"));
                continue;
            };
            let found = Path::new(&folder).join("bin/nvcc");
            if is_file(&found) {
                return Ok(found);
            }
            looked.push(format!("{name}={folder}: no {}", found.display()));
            return Err(missing(&looked));
        }
        looked.push(format!("PATH={path}: no nvcc"));
        on_path("nvcc").ok_or_else(|| missing(&looked))
    }

    fn missing(looked: &[String]) -> String {
        format!(
            "the feature `cuda` compiles kernels-cuda with nvcc, and none was found. Looked at, in this order:\n  {}\n\
             Set NVCC to the compiler, or CUDA_HOME to the folder of the CUDA toolkit. Where there is no toolkit, \
             `scripts/install-cuda-compiler FOLDER` brings a compiler from PyPI (the wheels nvidia-cuda-nvcc, \
             nvidia-nvvm, nvidia-cuda-crt and nvidia-cuda-runtime, of one release). CROSSCCL_KERNELS=off builds \
             without kernels, CROSSCCL_KERNELS=FOLDER takes prebuilt ones.",
            looked.join("\n  ")
        )
    }

    /// A target of the compiler.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum Architecture {
        /// `sm_90`: machine code of one generation.
        Machine(String),
        /// `compute_80`: PTX, compiled by the driver where there is no machine code.
        Portable(String),
    }

    impl fmt::Display for Architecture {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Architecture::Machine(number) => write!(f, "sm_{number}"),
                Architecture::Portable(number) => write!(f, "compute_{number}"),
            }
        }
    }

    /// Reads `CUDA_ARCH_LIST`: items separated by commas, semicolons or spaces. `90`, `9.0`, `90a` and `sm_90`
    /// ask for machine code, `compute_90` for PTX, `90+PTX` for both.
    pub(crate) fn architectures(env: impl Fn(&str) -> Option<String>) -> Result<Vec<Architecture>, String> {
        let list = env("CUDA_ARCH_LIST").filter(|l| !l.trim().is_empty()).unwrap_or(DEFAULT_ARCHITECTURES.into());
        let mut found = Vec::new();
        for item in list.split([',', ';', ' ']).filter(|item| !item.is_empty()) {
            let (name, both) = item.strip_suffix("+PTX").map_or((item, false), |name| (name, true));
            let (number, portable) = match name.strip_prefix("compute_") {
                Some(number) => (number, true),
                None => (name.strip_prefix("sm_").unwrap_or(name), false),
            };
            let number = number.replacen('.', "", 1);
            let digits = number.trim_end_matches(['a', 'f']);
            let known = digits.parse().is_ok_and(|n: u32| n >= 70) && number.len() - digits.len() <= 1;
            if !known || (portable && both) {
                return Err(format!(
                    "CUDA_ARCH_LIST={list}: `{item}` is no architecture; expected items like 90, 9.0, 90a, sm_90, \
                     compute_80 or 90+PTX, 70 or newer, separated by commas (default {DEFAULT_ARCHITECTURES})"
                ));
            }
            let mut add = |architecture| {
                if !found.contains(&architecture) {
                    found.push(architecture);
                }
            };
            if !portable {
                add(Architecture::Machine(number.clone()));
            }
            if portable || both {
                add(Architecture::Portable(number));
            }
        }
        Ok(found)
    }

    /// The release of a compiler from what `nvcc --version` prints.
    pub(crate) fn release(text: &str) -> Option<(u32, u32)> {
        let rest = text.split("release ").nth(1)?;
        let (major, rest) = rest.split_once('.')?;
        let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some((major.trim().parse().ok()?, minor.parse().ok()?))
    }

    /// nvcc's arguments: one fatbin of all architectures, the numerics contract in force, ptxas's report on.
    pub(crate) fn arguments(
        architectures: &[Architecture],
        release: (u32, u32),
        jobs: usize,
        deny_warnings: bool,
        source: &Path,
        output: &Path,
    ) -> Vec<String> {
        let mut arguments: Vec<String> = ["-fatbin", "-std=c++17", "-O3"].map(Into::into).into();
        // The numerics contract: the same bits as every other target.
        arguments.extend(["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"].map(Into::into));
        for architecture in architectures {
            let (Architecture::Machine(number) | Architecture::Portable(number)) = architecture;
            arguments.push("-gencode".into());
            arguments.push(format!("arch=compute_{number},code={architecture}"));
        }
        arguments.extend(["-Xptxas", "-v"].map(Into::into));
        if deny_warnings {
            arguments.extend(["-Werror", "all-warnings"].map(Into::into));
        }
        if release >= (12, 8) {
            arguments.push("-compress-mode=size".into());
        }
        arguments.extend(["--threads".into(), jobs.max(1).to_string()]);
        arguments.extend(["-o".into(), output.display().to_string(), source.display().to_string()]);
        arguments
    }

    /// What a kernel takes on one architecture.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Resources {
        pub(crate) architecture: String,
        pub(crate) kernel: String,
        pub(crate) registers: u32,
        pub(crate) stack: u32,
        pub(crate) spill_stores: u32,
        pub(crate) spill_loads: u32,
        pub(crate) shared: u32,
    }

    /// Reads ptxas's report. Every kernel has its three lines, or the report is not understood: a build that
    /// cannot see spills would let them pass.
    pub(crate) fn resources(report: &str) -> Result<Vec<Resources>, String> {
        let mut all: Vec<Resources> = Vec::new();
        let (mut properties, mut used) = (0, 0);
        for line in report.lines() {
            let mut quoted = line.split('\'');
            if line.contains("Compiling entry function") {
                let kernel = quoted.nth(1).unwrap_or_default().to_owned();
                let architecture = quoted.nth(1).unwrap_or_default().to_owned();
                all.push(Resources { architecture, kernel, ..Resources::default() });
            } else if let (true, Some(last)) = (line.contains("bytes stack frame"), all.last_mut()) {
                properties += 1;
                // A function that was not inlined has a line of its own; the worst counts.
                last.stack = last.stack.max(before(line, " bytes stack frame")?);
                last.spill_stores = last.spill_stores.max(before(line, " bytes spill stores")?);
                last.spill_loads = last.spill_loads.max(before(line, " bytes spill loads")?);
            } else if let (true, Some(last)) = (line.contains(": Used "), all.last_mut()) {
                used += 1;
                last.registers = before(line, " registers")?;
                last.shared = if line.contains(" bytes smem") { before(line, " bytes smem")? } else { 0 };
            }
        }
        if all.is_empty() || used != all.len() || properties < all.len() || all.iter().any(|k| k.kernel.is_empty()) {
            return Err(format!(
                "the report of ptxas is not understood: {} kernels, {properties} lines on stack frames, {used} on \
                 registers; this version of nvcc is not known, tell the maintainers",
                all.len()
            ));
        }
        Ok(all)
    }

    fn before(line: &str, what: &str) -> Result<u32, String> {
        let head = line.split(what).next().unwrap_or_default();
        let number = head.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        number
            .parse()
            .map_err(|_| format!("the report of ptxas is not understood: no number before `{what}` in `{line}`"))
    }

    /// I12, and that every architecture has the same kernels.
    ///
    /// A stack frame is more than slow: a launch may have to wait for memory that it can get only when the
    /// device is idle, while a peer spins and waits for this launch.
    pub(crate) fn verdict(all: &[Resources], architectures: &[Architecture]) -> Result<(), String> {
        let mut wrong: Vec<String> = Vec::new();
        for k in all {
            if (k.stack, k.spill_stores, k.spill_loads) != (0, 0, 0) {
                wrong.push(format!(
                    "{} for {}: {} bytes of stack frame, {} of spill stores, {} of spill loads, {} registers; kernels \
                     must have no stack frame and no spill (I12 in kernels-common/README.md)",
                    k.kernel, k.architecture, k.stack, k.spill_stores, k.spill_loads, k.registers
                ));
            }
        }
        let names = |architecture: &str| {
            let mut names: Vec<_> =
                all.iter().filter(|k| k.architecture == architecture).map(|k| k.kernel.as_str()).collect();
            names.sort_unstable();
            names
        };
        let machine: Vec<String> =
            architectures.iter().filter(|a| matches!(a, Architecture::Machine(_))).map(ToString::to_string).collect();
        if let Some(first) = machine.first() {
            for other in &machine {
                if names(other).is_empty() || names(other) != names(first) {
                    wrong.push(format!(
                        "{other} has {} kernels and {first} {}: they must be the same",
                        names(other).len(),
                        names(first).len()
                    ));
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// What stands beside an image: what it was made from and what its kernels take.
    pub(crate) fn report(
        sources: u64,
        compiler: &str,
        arguments: &[String],
        architectures: &[Architecture],
        resources: &[Resources],
    ) -> String {
        let list: Vec<_> = architectures.iter().map(ToString::to_string).collect();
        let mut text = format!(
            "sources {sources:016x}\narchitectures {}\ncompiler {compiler}\narguments {}\n\n\
             architecture kernel registers stack spill_stores spill_loads shared\n",
            list.join(" "),
            arguments.join(" ")
        );
        for k in resources {
            text += &format!(
                "{} {} {} {} {} {} {}\n",
                k.architecture, k.kernel, k.registers, k.stack, k.spill_stores, k.spill_loads, k.shared
            );
        }
        text
    }
}

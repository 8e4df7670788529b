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

/// What to do where the C++ compiler that `cc` found cannot be run, or did not compile the kernels: `why` is its word.
#[cfg_attr(not(feature = "cpu"), allow(dead_code))]
pub(crate) fn no_cxx(why: &str) -> String {
    format!(
        "the kernels of the feature cpu were not compiled: {why}\nThe feature cpu needs a C++17 compiler: install g++ or \
         clang++, or name one by the variable CXX. CROSSCCL_KERNELS=off builds without kernels; without the feature \
         (default-features = false) no C++ compiler is needed."
    )
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
    use std::path::{Path, PathBuf};

    /// Looks for programs and remembers where, for the error message.
    pub(crate) struct Search<E, F> {
        env: E,
        is_file: F,
        /// One line a place.
        pub(crate) looked: Vec<String>,
    }

    /// A variable is set and leads nowhere: an error, not a reason to take another compiler than was asked for.
    #[derive(Debug)]
    pub(crate) struct Nowhere;

    impl<E: Fn(&str) -> Option<String>, F: Fn(&Path) -> bool> Search<E, F> {
        pub(crate) fn new(env: E, is_file: F) -> Self {
            Search { env, is_file, looked: Vec::new() }
        }

        fn set(&self, variable: &str) -> Option<String> {
            (self.env)(variable).filter(|value| !value.is_empty())
        }

        fn in_path(&self, program: &str) -> Option<PathBuf> {
            let path = self.set("PATH").unwrap_or_default();
            let folders = path.split(':').filter(|folder| !folder.is_empty());
            folders.map(|folder| Path::new(folder).join(program)).find(|p| (self.is_file)(p))
        }

        /// The program that a variable names, by a path or by a name on `PATH`.
        pub(crate) fn named(&mut self, variable: &str) -> Result<Option<PathBuf>, Nowhere> {
            let Some(value) = self.set(variable) else {
                self.looked.push(format!("{variable}: not set"));
                return Ok(None);
            };
            let found = if value.contains('/') {
                Some(value.clone().into()).filter(|p: &PathBuf| (self.is_file)(p))
            } else {
                self.in_path(&value)
            };
            self.looked.push(format!("{variable}={value}: no such file"));
            found.map(Some).ok_or(Nowhere)
        }

        /// The program `file` in the folder that a variable names.
        pub(crate) fn below(&mut self, variable: &str, file: &str) -> Result<Option<PathBuf>, Nowhere> {
            let Some(folder) = self.set(variable) else {
                self.looked.push(format!("{variable}: not set"));
                return Ok(None);
            };
            let found = Path::new(&folder).join(file);
            self.looked.push(format!("{variable}={folder}: no {}", found.display()));
            if (self.is_file)(&found) { Ok(Some(found)) } else { Err(Nowhere) }
        }

        /// The first of `programs` on `PATH`; `what` says which, in short.
        pub(crate) fn on_path(&mut self, programs: &[String], what: &str) -> Option<PathBuf> {
            self.looked.push(format!("PATH={}: no {what}", self.set("PATH").unwrap_or_default()));
            programs.iter().find_map(|program| self.in_path(program))
        }
    }

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

    /// The folder that keeps what was compiled, for builds of other profiles and features: `CROSSCCL_KERNEL_CACHE`.
    pub(crate) fn cache(env: impl Fn(&str) -> Option<String>) -> Result<Option<PathBuf>, String> {
        match env("CROSSCCL_KERNEL_CACHE").filter(|folder| !folder.is_empty()) {
            None => Ok(None),
            Some(folder) if Path::new(&folder).is_absolute() => Ok(Some(folder.into())),
            Some(folder) => Err(format!(
                "CROSSCCL_KERNEL_CACHE={folder}: expected an absolute path, since cargo runs build scripts in a folder of its own"
            )),
        }
    }

    /// The name under which an image is kept: what it was made from (`sources`), by whom (`compiler`, what it says of its
    /// version, and `surroundings`, variables that it reads), and how (`arguments`, less `output`, the path that it goes to, and
    /// what changes nothing in the image: threads, and whether warnings are errors).
    pub(crate) fn key(
        sources: u64,
        compiler: &str,
        surroundings: &[(&str, String)],
        arguments: &[String],
        output: &str,
    ) -> String {
        let sources = sources.to_le_bytes();
        let mut parts: Vec<(&str, &[u8])> = vec![("sources", &sources), ("compiler", compiler.as_bytes())];
        parts.extend(surroundings.iter().map(|(name, value)| (*name, value.as_bytes())));
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--threads" => drop(rest.next()),
                "-Werror" | "all-warnings" => {}
                path if path == output => {}
                argument => parts.push(("argument", argument.as_bytes())),
            }
        }
        format!("{:016x}", fingerprint(parts))
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

    use super::gpu::{Nowhere, Search};

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
        let mut search = Search::new(env, is_file);
        let mut find = || {
            if let Some(found) = search.named("NVCC")? {
                return Ok(Some(found));
            }
            for variable in ["CUDA_HOME", "CUDA_PATH"] {
                if let Some(found) = search.below(variable, "bin/nvcc")? {
                    return Ok(Some(found));
                }
            }
            Ok::<_, Nowhere>(search.on_path(&["nvcc".into()], "nvcc"))
        };
        find().ok().flatten().ok_or_else(|| missing(&search.looked))
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
            // `u32::from_str` would take a plus sign.
            let plain = digits.bytes().all(|b| b.is_ascii_digit());
            let known = plain && digits.parse().is_ok_and(|n: u32| n >= 70) && number.len() - digits.len() <= 1;
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
        if found.is_empty() {
            return Err(format!(
                "CUDA_ARCH_LIST={list}: names no architecture; leave it unset for the default {DEFAULT_ARCHITECTURES}"
            ));
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

/// AMD's kernels.
#[cfg(any(feature = "rocm", test))]
pub(crate) mod hip {
    use std::{
        fmt::Write as _,
        path::{Path, PathBuf},
    };

    use super::gpu::{Nowhere, Search};

    /// What is compiled unless `GPU_TARGETS` says otherwise: CDNA 2, CDNA 3, RDNA 3.
    const DEFAULT_TARGETS: [&str; 3] = ["gfx90a", "gfx942", "gfx1100"];
    /// And these where a compiler knows them: CDNA 4 (clang 20), RDNA 4 (clang 19).
    const NEWER_TARGETS: [&str; 2] = ["gfx950", "gfx1201"];
    /// The clangs that are looked for on `PATH`. Older ones do not know gfx942.
    const CLANGS: std::ops::RangeInclusive<u32> = 19..=39;

    /// Every variable that the decisions here read; besides PATH.
    pub(crate) const VARIABLES: [&str; 6] =
        ["HIPCC", "ROCM_PATH", "HIP_PATH", "HIP_CLANG", "GPU_TARGETS", "CROSSCCL_DENY_WARNINGS"];

    /// Finds the compilers to ask for each target, in this order: hipcc by `HIPCC`, `ROCM_PATH`, `HIP_PATH`, then
    /// `PATH`; for targets that it does not know clang by `HIP_CLANG`, then `PATH`: `clang++-NN`, `clang-NN`, the newest
    /// first. One of the two is enough. A variable that is set and leads nowhere is an error, not a reason to take
    /// another compiler than was asked for.
    pub(crate) fn compilers(
        env: impl Fn(&str) -> Option<String>,
        is_file: impl Fn(&Path) -> bool,
    ) -> Result<Vec<PathBuf>, String> {
        let mut search = Search::new(env, is_file);
        let mut hipcc = || {
            if let Some(found) = search.named("HIPCC")? {
                return Ok(Some(found));
            }
            for variable in ["ROCM_PATH", "HIP_PATH"] {
                if let Some(found) = search.below(variable, "bin/hipcc")? {
                    return Ok(Some(found));
                }
            }
            Ok::<_, Nowhere>(search.on_path(&["hipcc".into()], "hipcc"))
        };
        let hipcc = hipcc().map_err(|Nowhere| missing(&search.looked))?;
        let clang = match search.named("HIP_CLANG") {
            Err(Nowhere) => return Err(missing(&search.looked)),
            Ok(Some(found)) => Some(found),
            Ok(None) => {
                let names: Vec<_> = CLANGS.rev().flat_map(|n| [format!("clang++-{n}"), format!("clang-{n}")]).collect();
                search.on_path(&names, &format!("clang++-NN or clang-NN, NN from {} up", CLANGS.start()))
            }
        };
        let found: Vec<_> = hipcc.into_iter().chain(clang).collect();
        if found.is_empty() { Err(missing(&search.looked)) } else { Ok(found) }
    }

    fn missing(looked: &[String]) -> String {
        format!(
            "the feature `rocm` compiles kernels-hip with hipcc or with clang, and none was found. Looked at, in this \
             order:\n  {}\n\
             Set HIPCC to the compiler, or ROCM_PATH to the folder of ROCm, or HIP_CLANG to a clang of version {} or \
             newer, whose AMD target and lld are all that the kernels need. Debian has one in the packages clang-19, \
             lld-19 and llvm-19 (`scripts/install-hip-compiler` installs them). CROSSCCL_KERNELS=off builds without \
             kernels, CROSSCCL_KERNELS=FOLDER takes prebuilt ones.",
            looked.join("\n  "),
            CLANGS.start()
        )
    }

    /// A target to compile for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Target {
        /// As compilers and the driver call it: `gfx942`.
        pub(crate) name: String,
        /// Left out where no compiler knows it.
        pub(crate) optional: bool,
    }

    /// Reads `GPU_TARGETS`: names like `gfx942`, separated by commas, semicolons or spaces.
    pub(crate) fn targets(env: impl Fn(&str) -> Option<String>) -> Result<Vec<Target>, String> {
        let target = |name: &str, optional| Target { name: name.into(), optional };
        let Some(list) = env("GPU_TARGETS").filter(|list| !list.trim().is_empty()) else {
            let newer = NEWER_TARGETS.map(|name| target(name, true));
            return Ok(DEFAULT_TARGETS.map(|name| target(name, false)).into_iter().chain(newer).collect());
        };
        let mut found = Vec::new();
        for item in list.split([',', ';', ' ']).filter(|item| !item.is_empty()) {
            let number = item.strip_prefix("gfx").unwrap_or_default();
            let hexadecimal = number.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
            // The kernels' waits are written for GFX9 (with 64 lanes a wave) and GFX10 to 12 (with 32).
            let family = if number.len() == 3 {
                number.starts_with('9')
            } else {
                matches!(number.get(..2), Some("10" | "11" | "12"))
            };
            if !hexadecimal || !family || !(3..=4).contains(&number.len()) {
                return Err(format!(
                    "GPU_TARGETS={list}: `{item}` is no target; expected names like gfx942, of GFX9 to GFX12 and without \
                     features (no `:xnack-`), separated by commas (default {}, and {} where the compiler knows them)",
                    DEFAULT_TARGETS.join(","),
                    NEWER_TARGETS.join(",")
                ));
            }
            if !found.contains(&target(item, false)) {
                found.push(target(item, false));
            }
        }
        if found.is_empty() {
            return Err(format!(
                "GPU_TARGETS={list}: names no target; leave it unset for the default {}",
                DEFAULT_TARGETS.join(",")
            ));
        }
        Ok(found)
    }

    /// Who compiles what: for each target the first compiler that knows it.
    pub(crate) fn assign(
        targets: &[Target],
        compilers: &[PathBuf],
        knows: impl Fn(&Path, &str) -> bool,
    ) -> Result<Vec<(String, PathBuf)>, String> {
        let mut assigned = Vec::new();
        for target in targets {
            match compilers.iter().find(|compiler| knows(compiler, &target.name)) {
                Some(compiler) => assigned.push((target.name.clone(), compiler.clone())),
                None if target.optional => {}
                None => {
                    let list: Vec<_> = compilers.iter().map(|compiler| compiler.display().to_string()).collect();
                    return Err(format!(
                        "no compiler is new enough for the target {}: asked {}. That takes clang 19, or a hipcc made of it, and 20 for \
                         gfx950: name one by HIP_CLANG, or leave the target out of GPU_TARGETS",
                        target.name,
                        list.join(", ")
                    ));
                }
            }
        }
        Ok(assigned)
    }

    /// The arguments, of hipcc and of clang alike, that make device code without headers and libraries.
    fn device_only(target: &str) -> Vec<String> {
        let mut arguments: Vec<String> = ["-x", "hip", "--cuda-device-only"].map(Into::into).into();
        arguments.push(format!("--offload-arch={target}"));
        arguments.extend(["-nogpulib", "-nogpuinc", "-std=c++17"].map(Into::into));
        arguments
    }

    /// A file that says no to clangs that are too old, which a hipcc may wrap (Debian's is 15): 16 copies the kernels'
    /// arguments to scratch.
    pub(crate) const QUESTION: &str = "#if __clang_major__ < 19\n#error\n#endif\n";

    /// The arguments that ask whether a compiler knows a target: `file` has `QUESTION`.
    pub(crate) fn question(target: &str, file: &Path) -> Vec<String> {
        let mut arguments = device_only(target);
        arguments.extend(["-fsyntax-only".into(), file.display().to_string()]);
        arguments
    }

    /// The compiler's arguments: one code object, the numerics contract in force, the report on resources on.
    pub(crate) fn arguments(target: &str, deny_warnings: bool, source: &Path, output: &Path) -> Vec<String> {
        let mut arguments = device_only(target);
        arguments.extend(["--no-gpu-bundle-output", "-O3"].map(Into::into));
        // The numerics contract: the same bits as every other target.
        arguments.extend(
            [
                "-fno-fast-math",
                "-ffp-contract=off",
                "-fno-gpu-flush-denormals-to-zero",
                "-fhip-fp32-correctly-rounded-divide-sqrt",
            ]
            .map(Into::into),
        );
        // A loop over ranks is asked to be unrolled, and is not where their number is known at run time only.
        arguments.extend(["-Wall", "-Wextra", "-Wno-pass-failed"].map(Into::into));
        if deny_warnings {
            arguments.push("-Werror".into());
        }
        arguments.push("-Rpass-analysis=kernel-resource-usage".into());
        arguments.extend(["-o".into(), output.display().to_string(), source.display().to_string()]);
        arguments
    }

    /// What a kernel takes on one target.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Resources {
        pub(crate) target: String,
        pub(crate) kernel: String,
        /// Registers of a lane: vector registers, and the accumulation registers of CDNA.
        pub(crate) vector: u32,
        pub(crate) accumulation: u32,
        pub(crate) scalar: u32,
        /// Bytes of memory of a lane's own.
        pub(crate) scratch: u32,
        pub(crate) spills: u32,
        /// Scalar registers that wait in lanes of a vector register: no memory, so no harm.
        pub(crate) scalar_spills: u32,
        /// Bytes of the block's memory.
        pub(crate) shared: u32,
        /// Waves that fit a SIMD.
        pub(crate) waves: u32,
    }

    /// Reads the remarks of clang. Every kernel has all its lines, or the report is not understood: a build that
    /// cannot see spills would let them pass.
    pub(crate) fn resources(target: &str, report: &str) -> Result<Vec<Resources>, String> {
        const REMARK: &str = " remark: ";
        let mut all: Vec<Resources> = Vec::new();
        let mut lines = Vec::new();
        for line in report.lines() {
            let Some((_, remark)) = line.split_once(REMARK) else { continue };
            let remark = remark.split(" [-Rpass").next().unwrap_or_default();
            let Some((name, value)) = remark.trim().split_once(": ") else { continue };
            if name == "Function Name" {
                all.push(Resources { target: target.into(), kernel: value.into(), ..Resources::default() });
                lines.push(0);
                continue;
            }
            let (Some(kernel), Some(count)) = (all.last_mut(), lines.last_mut()) else { continue };
            let field = match name {
                "VGPRs" => &mut kernel.vector,
                "AGPRs" => &mut kernel.accumulation,
                "SGPRs" | "TotalSGPRs" => &mut kernel.scalar,
                "ScratchSize [bytes/lane]" => &mut kernel.scratch,
                "VGPRs Spill" => &mut kernel.spills,
                "SGPRs Spill" => &mut kernel.scalar_spills,
                "LDS Size [bytes/block]" => &mut kernel.shared,
                "Occupancy [waves/SIMD]" => &mut kernel.waves,
                _ => continue,
            };
            *field = value
                .parse()
                .map_err(|_| format!("the compiler's report on resources is not understood: no number in `{line}`"))?;
            // Only CDNA has accumulation registers.
            *count += u32::from(name != "AGPRs");
        }
        if all.is_empty() || lines.iter().any(|count| *count != 7) {
            return Err(format!(
                "the compiler's report on resources for {target} is not understood: {} kernels, {} of them with other \
                 than 7 numbers; this version of clang is not known, tell the maintainers",
                all.len(),
                lines.iter().filter(|count| **count != 7).count()
            ));
        }
        Ok(all)
    }

    /// I12, and that every target has the same kernels.
    ///
    /// Scratch is more than slow: a launch may have to wait for memory that it can get only when the device is
    /// idle, while a peer spins and waits for this launch.
    pub(crate) fn verdict(all: &[Resources], targets: &[String]) -> Result<(), String> {
        let mut wrong: Vec<String> = Vec::new();
        for k in all {
            if (k.scratch, k.spills) != (0, 0) {
                wrong.push(format!(
                    "{} for {}: {} bytes of scratch a lane, {} vector registers spilled, {} used; kernels must have no \
                     stack frame and no spill (I12 in kernels-common/README.md)",
                    k.kernel, k.target, k.scratch, k.spills, k.vector
                ));
            }
        }
        let names = |target: &str| {
            let mut names: Vec<_> = all.iter().filter(|k| k.target == target).map(|k| k.kernel.as_str()).collect();
            names.sort_unstable();
            names
        };
        if let Some(first) = targets.first() {
            for other in targets {
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

    /// What stands beside the images: what they were made from and what their kernels take. `compiled` has a target,
    /// its compiler's version and the arguments.
    pub(crate) fn report(sources: u64, compiled: &[(String, String, Vec<String>)], resources: &[Resources]) -> String {
        let list: Vec<_> = compiled.iter().map(|(target, ..)| target.as_str()).collect();
        let mut text = format!("sources {sources:016x}\narchitectures {}\n", list.join(" "));
        for (target, compiler, arguments) in compiled {
            let _ = write!(text, "compiler {target} {compiler}\narguments {target} {}\n", arguments.join(" "));
        }
        text += "\ntarget kernel vector accumulation scalar scratch spills scalar_spills shared waves\n";
        for k in resources {
            let numbers = [k.vector, k.accumulation, k.scalar, k.scratch, k.spills, k.scalar_spills, k.shared, k.waves];
            let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "{} {} {}", k.target, k.kernel, numbers.join(" "));
        }
        text
    }
}

//! The ROCm backend without AMD's hardware. On AMD's own runtime where that is installed and finds no device; on files
//! that are none; and on a stand-in (`hip/stand_in_runtime.cc`), where any one of its calls can be made to fail.
//!
//! A runtime, and what a process knows of it, is for good: each test runs its body in a process of its own.
#![cfg(all(feature = "rocm", not(feature = "hip-sys"), not(crossccl_no_kernels), target_os = "linux"))]
#![allow(missing_docs)]

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crossccl::{
    Algorithm, Backend, BackendKind, Broadcast, Buffer, Communicator, DType, Error, Hip, HipStream, Rank, RawRank,
    ReduceOp, ReduceScatter, signal_buffer_bytes,
};

#[path = "support/foreign_stream.rs"]
mod foreign_stream;
#[path = "support/mapped_memory.rs"]
mod mapped_memory;
#[path = "profiler/stand_in.rs"]
mod profiler;
use mapped_memory::Mapper;
use profiler::StandInProfiler;

/// Names a library of ROCTX.
const ROCTX: &str = "CROSSCCL_ROCTX";
/// In the environment of a process that runs a test's body: the test.
const BODY: &str = "STANDIN_TEST_BODY";
/// Likewise, which of many.
const STEP: &str = "STANDIN_TEST_STEP";
/// Names the library that the backend takes.
const LIBRARY: &str = "CROSSCCL_HIP_LIBRARY";
/// A process that runs longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

fn temporary(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hip");
    fs::create_dir_all(&folder).expect("folder");
    folder.join(name)
}

fn stand_in() -> &'static str {
    static LIBRARY: OnceLock<String> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = temporary("stand-in");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hip/build-stand-in");
        let output = Command::new(script).arg(&folder).output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.join("libamdhip64.so.6").display().to_string()
    })
}

/// The stand-in with another name for `function`: whoever looks for it does not find it.
fn without(function: &str) -> String {
    let mut bytes = fs::read(stand_in()).expect("the stand-in");
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let places: Vec<_> = bytes.windows(name.len()).enumerate().filter(|(_, w)| *w == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the stand-in has no {function}");
    places.iter().for_each(|at| bytes[at + 1] = b'x');
    let path = temporary(&format!("without-{function}.so"));
    fs::write(&path, bytes).expect("library");
    path.display().to_string()
}

/// The test whose closure this is.
fn name_of<F>(_: &F) -> &'static str {
    let name = std::any::type_name::<F>();
    name.strip_prefix("hip_driver::").unwrap_or(name).trim_end_matches("::{{closure}}")
}

fn is_body() -> bool {
    env::var(BODY).is_ok()
}

/// Runs `body` in a process of its own, on the machine that the variables describe. What it says, if all is well.
fn alone_with<F: FnOnce()>(machine: &[(&str, &str)], body: F) -> String {
    let name = name_of(&body);
    if env::var(BODY).is_ok_and(|b| b == name) {
        std::thread::spawn(|| {
            std::thread::sleep(LIMIT);
            eprintln!("hangs");
            std::process::abort();
        });
        body();
        println!("the body is done");
        // With what the runtime does at the end of a process.
        std::process::exit(0);
    }
    let output = Command::new(env::current_exe().expect("this program"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(BODY, name)
        .env_remove(LIBRARY)
        .envs(machine.iter().copied())
        .output()
        .expect("this program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("the body is done"), "{machine:?}: {}\n{text}", output.status);
    text
}

/// On the stand-in.
fn alone<F: FnOnce()>(machine: &[(&str, &str)], body: F) -> String {
    let library = if is_body() { "" } else { stand_in() };
    alone_with(&[&[(LIBRARY, library)], machine].concat(), body)
}

fn step() -> String {
    env::var(STEP).expect("a step")
}

/// The stand-in, as the process that runs a body has it.
struct StandIn(libloading::Library);

impl StandIn {
    fn new() -> Self {
        // SAFETY: the stand-in's initialisers do nothing.
        StandIn(unsafe { libloading::Library::new(env::var(LIBRARY).expect("a library")) }.expect("the stand-in"))
    }

    /// # Safety
    /// `F` is the function's type.
    unsafe fn get<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's promise.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.expect(name)
    }

    /// Makes a call fail, by `STANDIN_FAIL`'s rules; "" ends that. Calls are counted anew.
    fn arm(&self, fault: &str) {
        let fault = CString::new(fault).expect("text");
        // SAFETY: as the stand-in declares it.
        unsafe { self.get::<unsafe extern "C" fn(*const c_char)>("runtime_arm")(fault.as_ptr()) }
    }

    /// The function that failed.
    fn fired(&self) -> String {
        // SAFETY: as the stand-in declares it; the text is the stand-in's until it is armed again.
        let text = unsafe { CStr::from_ptr(self.get::<unsafe extern "C" fn() -> *const c_char>("runtime_fired")()) };
        text.to_str().expect("text").to_owned()
    }

    fn calls(&self) -> u64 {
        // SAFETY: as the stand-in declares it.
        unsafe { self.get::<unsafe extern "C" fn() -> u64>("runtime_calls")() }
    }

    /// Calls of one function since the last `arm`.
    fn calls_of(&self, function: &str) -> u64 {
        let name = CString::new(function).expect("text");
        // SAFETY: as the stand-in declares it; the text outlives the call.
        unsafe { self.get::<unsafe extern "C" fn(*const c_char) -> u64>("runtime_calls_of")(name.as_ptr()) }
    }

    fn mapper(&self) -> Mapper {
        // SAFETY: it is the runtime.
        unsafe { Mapper::load(&self.0, "hip") }.expect("the stand-in maps memory")
    }

    fn alive(&self) -> Vec<(&'static str, u64)> {
        let names = ["streams", "events", "modules", "graphs", "allocations", "pinned"];
        // SAFETY: as the stand-in declares it.
        let count = unsafe { self.get::<unsafe extern "C" fn(*const c_char) -> u64>("runtime_alive") };
        let alive = names.map(|name| {
            let text = CString::new(name).expect("text");
            // SAFETY: likewise; the text outlives the call.
            (name, unsafe { count(text.as_ptr()) })
        });
        alive.to_vec()
    }

    /// What this thread has set: its device, its capture mode, its last error.
    fn thread(&self) -> [c_int; 3] {
        let mut thread = [0; 3];
        // SAFETY: as the stand-in declares it; a local.
        unsafe { self.get::<unsafe extern "C" fn(*mut c_int)>("runtime_thread")(thread.as_mut_ptr()) };
        thread
    }

    fn set_device(&self, device: c_int) {
        // SAFETY: as the runtime declares it.
        assert_eq!(unsafe { self.get::<unsafe extern "C" fn(c_int) -> c_int>("hipSetDevice")(device) }, 0);
    }
}

fn build(ranks: usize) -> Result<Communicator<Hip>, Error> {
    Communicator::<Hip>::builder(0..ranks).timeout(Duration::from_secs(20)).build()
}

/// A broadcast, and its result looked at.
fn works(comm: &Communicator<Hip>) {
    let mut data: Vec<_> = (0..comm.ranks()).map(|r| comm.buffer_from(r, &[r as u32; 1000]).expect("buffer")).collect();
    let root = comm.ranks() - 1;
    comm.broadcast_in_place(&mut data, root).expect("launch").wait().expect("outcome");
    assert!(data.iter().all(|b| b.to_vec().expect("read") == [root as u32; 1000]));
}

/// Why there is no device.
fn reason(outcome: Result<Communicator<Hip>, Error>) -> String {
    let outcome = outcome.map(drop);
    assert_eq!(build(2).map(drop), outcome, "the answer stays");
    match outcome {
        Err(Error::NoDevice { backend: "hip", reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// AMD's own runtime, where it is installed (on Debian, libamdhip64-5). Without a device: with one, other tests prove
/// more. `CROSSCCL_REQUIRE_HIP_RUNTIME=1` makes a missing runtime a failure.
#[test]
fn amds_runtime_without_a_device() {
    let body = || {
        let outcome = build(2).map(drop);
        assert_eq!(BackendKind::Rocm.check().is_ok(), Hip::device_count().is_ok());
        match outcome {
            Err(Error::NoDevice { reason, .. }) if reason.starts_with("dlopen: ") => {
                assert!(env::var_os("CROSSCCL_REQUIRE_HIP_RUNTIME").is_none(), "{reason}");
                println!("SKIPPED: {reason}");
            }
            Err(Error::NoDevice { reason, .. }) => {
                let names = ["hipErrorNoDevice", "hipErrorInvalidDevice"]
                    .map(|n| format!("hipGetDeviceCount: {n}; an AMD GPU, "));
                assert!(names.iter().any(|name| reason.starts_with(name)), "{reason}");
                // As often as somebody asks, from any thread.
                std::thread::scope(|s| (0..4).for_each(|_| drop(s.spawn(|| assert!(build(1).is_err())))));
                assert!(Hip::open(0).is_err());
                println!("AMD's runtime was loaded, and has no device");
            }
            other => println!("SKIPPED: there are devices: {other:?}"),
        }
    };
    let text = alone_with(&[], body);
    // Behind what the harness says.
    let said = text.lines().find_map(|line| line.find("SKIPPED").or(line.find("AMD's runtime")).map(|at| &line[at..]));
    println!("{}", said.expect("an outcome"));
}

#[test]
fn without_a_runtime_the_error_says_what_was_looked_for() {
    let nowhere = || {
        let text = reason(build(2));
        assert!(
            text.starts_with(
                "dlopen: CROSSCCL_HIP_LIBRARY=/nowhere/libamdhip64.so: /nowhere/libamdhip64.so: cannot open"
            ),
            "{text}"
        );
    };
    alone_with(&[(LIBRARY, "/nowhere/libamdhip64.so")], nowhere);
}

#[test]
fn a_runtime_that_is_no_library_is_an_error() {
    let path = temporary("broken.so");
    fs::write(&path, "This is no library, whatever its name says; it is longer than the header of one would be.")
        .expect("file");
    let broken = || {
        let text = reason(build(2));
        assert!(text.starts_with("dlopen: ") && text.ends_with("broken.so: invalid ELF header"), "{text}");
    };
    alone_with(&[(LIBRARY, path.to_str().expect("text"))], broken);
}

/// The names of the list in sys.rs, required and optional.
fn functions() -> [Vec<String>; 2] {
    let text = include_str!("../src/backend/hip/sys.rs");
    let (required, optional) =
        text.split_once("required {").and_then(|(_, t)| t.split_once("optional {")).expect("two lists");
    let optional = optional.split_once("macro_rules").expect("an end").0;
    [required, optional].map(|list| {
        let names = list.lines().filter_map(|line| line.trim().split_once('(')).map(|(name, _)| name.to_owned());
        names.filter(|name| name.starts_with("hip")).collect()
    })
}

#[test]
fn a_function_that_is_missing_is_named() {
    let missing = || {
        let text = reason(build(2));
        assert!(text.ends_with(&format!("has no {}; install ROCm 5.2 or later", step())), "{text}");
    };
    if is_body() {
        alone_with(&[], missing);
        return;
    }
    let [required, optional] = functions();
    assert!(required.len() > 30 && optional.len() == 8, "{required:?} {optional:?}");
    for function in required {
        let library = without(&function);
        alone_with(&[(LIBRARY, &library), (STEP, &function)], missing);
        fs::remove_file(library).expect("library");
    }
}

/// HIP 5 and HIP 6 have their properties under different names and in different places, and number memory differently.
#[test]
fn runtimes_of_before_and_after_hip_6_work() {
    let body = || {
        let comm = build(2).expect("communicator");
        works(&comm);
        let name = Hip::properties(&Hip::open(1).expect("device"), 2, 1).expect("properties").name;
        assert_eq!(name, "Stand-in 1 (gfx942:sramecc+:xnack-)");
        let ours: Vec<_> = (0..2).map(|r| comm.buffer::<u8>(r, 5000).expect("buffer")).collect();
        let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
        let on_host = [0u8; 64];
        let refused = |address: u64, count: usize, what: &str| {
            let raw = [RawRank::new(address, address), RawRank::new(ours[1].address(), ours[1].address())];
            // SAFETY: refused.
            let outcome = unsafe { comm.broadcast_raw(&raw, &streams, count, DType::U8, 1) }.map(drop);
            let Err(Error::InvalidArgument { argument: "output", got, .. }) = outcome else { panic!("{outcome:?}") };
            assert!(got.contains(what), "{got}");
        };
        refused(on_host.as_ptr() as u64, 64, "which no device knows");
        let there = comm.buffer::<u8>(1, 64).expect("buffer");
        refused(there.address(), 64, "memory of device 1");
        // Of 5000 bytes, which the backend rounds up.
        refused(ours[0].address() + 4096, 4097, "4096 bytes from ");
        let pinned = Hip::allocate(&Hip::open(0).expect("device"), crossccl::MemoryKind::Host, 64).expect("memory");
        refused(pinned, 64, "host memory at ");
    };
    if is_body() {
        alone_with(&[], body);
        return;
    }
    alone(&[("STANDIN_HIP_VERSION", "70125424")], body);
    let old = without("hipGetDevicePropertiesR0600");
    alone_with(&[(LIBRARY, &old), ("STANDIN_HIP_VERSION", "50221153"), ("STANDIN_NO_UNCACHED", "1")], body);
    let new = without("hipGetDeviceProperties");
    alone_with(&[(LIBRARY, &new), ("STANDIN_HIP_VERSION", "60000000")], body);
}

#[test]
fn a_runtime_that_is_too_old_is_an_error() {
    alone(&[("STANDIN_HIP_VERSION", "50120531")], || {
        assert_eq!(reason(build(2)), "hipRuntimeGetVersion: the runtime is HIP 5.1.20531; install ROCm 5.2 or later");
    });
}

/// Case H7.
#[test]
fn h7_a_runtime_that_is_known_to_be_wrong() {
    let body = || {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stdout).finish();
        tracing::subscriber::with_default(subscriber, || drop(build(2).expect("communicator")));
    };
    let warnings = |version| {
        let text = alone(&[("STANDIN_HIP_VERSION", version)], body);
        text.lines().filter(|line| line.contains("WARN") && line.contains("before ROCm 7.2.1")).count()
    };
    // ROCm 7.2.0 and 7.2.1.
    assert_eq!((warnings("70226015"), warnings("70253211")), (1, 0));
}

/// Case A2. One rank meets nobody.
#[test]
fn a2_launches_that_wait_for_their_kernels_are_refused() {
    let body = || {
        let variable = env::var(STEP).expect("a step");
        if variable.is_empty() {
            return works(&build(2).expect("communicator"));
        }
        let Err(Error::Unsupported { operation: "communicator", what }) = build(2).map(drop) else { panic!("built") };
        let why = "each launch would wait for its kernel, and that for the other ranks'; unset it";
        assert_eq!(what, format!("{variable}=3: {why}"));
        works(&build(1).expect("one rank"));
    };
    for variable in ["HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL"] {
        alone(&[(variable, "3"), (STEP, variable)], body);
        alone(&[(variable, "0"), (STEP, "")], body);
    }
}

#[test]
fn a_machine_without_a_device_is_an_error() {
    alone(&[("STANDIN_DEVICES", "0")], || {
        let expected = "hipGetDeviceCount: hipErrorNoDevice; an AMD GPU, its kernel driver (amdgpu) and access to /dev/kfd and /dev/dri are needed";
        assert_eq!(reason(build(2)), expected);
    });
}

/// Case H6.
#[test]
fn h6_a_device_that_no_kernels_were_built_for() {
    alone(&[("STANDIN_ARCHITECTURE", "gfx803")], || {
        let outcome = build(2).map(drop);
        let Err(Error::Driver { call: "load", name, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(name.starts_with("no kernels for this device; the device Stand-in 0 is gfx803, the runtime is HIP 7.1.0, the kernels are built for gfx"), "{name}");
    });
}

/// Case H6, where the runtime finds it out.
#[test]
fn h6_kernels_that_the_runtime_refuses() {
    alone(&[("STANDIN_FAIL", "hipModuleLoadData:1:209")], || {
        let outcome = build(2).map(drop);
        let Err(Error::Driver { call: "hipModuleLoadData", code: 209, name, .. }) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(
            name.starts_with("hipErrorNoBinaryForGpu; the device Stand-in 0 is gfx942:sramecc+:xnack-, "),
            "{name}"
        );
    });
}

/// Case E6: signals go to uncached memory, else to fine-grained.
#[test]
fn e6_signals_in_either_kind_of_coherent_memory_work() {
    for machine in [&[][..], &[("STANDIN_NO_UNCACHED", "1")], &[("STANDIN_NO_FINE_GRAINED", "1")]] {
        alone(machine, || works(&build(2).expect("communicator")));
    }
}

/// Case E6: where neither can be had, whether the runtime refuses or would give ordinary memory instead.
#[test]
fn e6_signals_in_memory_that_is_not_coherent_are_refused() {
    for fine in ["1", "2"] {
        alone(&[("STANDIN_NO_UNCACHED", "1"), ("STANDIN_NO_FINE_GRAINED", fine)], || {
            let outcome = build(2).map(drop);
            let Err(Error::SignalMemoryNotCoherent { backend: "hip", device: 0, rank: Some(Rank(0)), reason }) =
                outcome
            else {
                panic!("{outcome:?}")
            };
            assert!(reason.starts_with("hipExtMallocWithFlags answered "), "{reason}");
        });
    }
}

/// Case E6, with buffers of the caller's.
#[test]
fn e6_ordinary_buffers_as_signal_buffers_are_refused() {
    alone(&[], || {
        let streams: Vec<_> =
            (0..2).map(|d| Hip::create_stream(&Hip::open(d).expect("device")).expect("stream")).collect();
        let bytes = signal_buffer_bytes(2, crossccl::MAX_BLOCKS, 0);
        let build = |coherent: bool| {
            let make = if coherent { Buffer::<Hip, u8>::coherent } else { Buffer::new };
            let buffers = streams.iter().map(|s| make(s, bytes).expect("buffer")).collect::<Vec<_>>();
            Communicator::<Hip>::builder(0..2).streams(streams.clone()).payload_bytes(0).signal_buffers(buffers).build()
        };
        let error = build(false).map(drop).expect_err("ordinary memory");
        assert!(matches!(error, Error::SignalMemoryNotCoherent { rank: Some(Rank(0)), .. }), "{error}");
        works(&build(true).expect("communicator"));
    });
}

/// The direct broadcast reads from outputs what was written in the same launch: coherent memory, by opt-in.
#[test]
fn the_direct_broadcast_takes_coherent_memory_alone() {
    alone(&[], || {
        let direct = || Broadcast::from_root(0).algorithm(Algorithm::TwoStageDirect);
        let plain = build(2).expect("communicator");
        let two = Broadcast::from_root(0).algorithm(Algorithm::TwoStage);
        assert_eq!(
            plain.plan_broadcast(1000, DType::U8, two.clone()).expect("plan").algorithm,
            Algorithm::TwoStageStaged
        );
        assert!(matches!(plain.plan_broadcast(1000, DType::U8, direct()), Err(Error::Unsupported { .. })));
        let comm = Communicator::<Hip>::builder(0..2).coherent_buffers(true).build().expect("communicator");
        assert_eq!(comm.plan_broadcast(1000, DType::U8, two).expect("plan").algorithm, Algorithm::TwoStageDirect);
        let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 1000]).expect("buffer")).collect();
        comm.broadcast_in_place(&mut data, direct()).expect("launch").wait().expect("outcome");
        assert_eq!(data[1].to_vec().expect("read"), [0; 1000]);
        let plain = |r: usize| Buffer::from_slice(comm.stream(r).expect("a rank"), &[r as u8; 1000]).expect("buffer");
        let mut others: Vec<_> = (0..2).map(plain).collect();
        let error = comm.broadcast_in_place(&mut others, direct()).map(drop).expect_err("ordinary memory");
        assert_eq!(
            error.to_string(),
            "broadcast: output of rank 0: expected coherent memory for two-stage-direct: a buffer of this communicator, or by Buffer::coherent, got ordinary memory"
        );
        comm.broadcast_in_place(&mut others, 0).expect("launch").wait().expect("outcome");
        assert_eq!(others[1].to_vec().expect("read"), [0; 1000]);
    });
}

/// Codes that this version does not know are codes, with the runtime's name or without one.
#[test]
fn unknown_codes_are_errors_like_others() {
    for (code, name) in [("4711", "an error that the runtime has no name for"), ("916", "hipErrorUnknown")] {
        alone(&[("STANDIN_FAIL", &format!("hipMemsetAsync:1:{code}")), (STEP, name)], || {
            let outcome = build(2).map(drop);
            let Err(Error::Driver { call: "hipMemsetAsync", name, .. }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(name, step());
        });
    }
}

/// Access that another user of the process enabled is as good, and its error does not stay; any other answer is told.
#[test]
fn access_that_is_enabled_already_is_fine() {
    alone(&[], || {
        let runtime = StandIn::new();
        for (own, peer) in [(0, 1), (1, 0)] {
            runtime.set_device(own);
            // SAFETY: as the runtime declares it.
            let enable =
                unsafe { runtime.get::<unsafe extern "C" fn(c_int, u32) -> c_int>("hipDeviceEnablePeerAccess") };
            // SAFETY: likewise.
            assert_eq!(unsafe { enable(peer, 0) }, 0);
        }
        let devices = [0, 1].map(|d| Hip::open(d).expect("device"));
        assert_eq!(Hip::enable_peer_access(&devices[0], &devices[1]), Ok(()));
        assert_eq!(runtime.thread(), [1, 0, 0]);
        works(&build(2).expect("communicator"));
        runtime.arm("hipDeviceEnablePeerAccess:2:217");
        let outcome = build(2).map(drop);
        let Err(Error::PeerAccess { from: Rank(1), to: Rank(0), reason }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(reason, "hipDeviceEnablePeerAccess failed: hipErrorPeerAccessUnsupported");
        assert_eq!(runtime.thread(), [1, 0, 0]);
    });
}

/// As on CUDA: peer access does not cover memory that a framework maps, and a kernel that touches it without a grant
/// ends the process's contexts.
#[test]
fn mapped_memory_is_granted_to_peers() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let (runtime, comm) = (StandIn::new(), build(3).expect("communicator"));
        let algorithms = [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::LowLatency];
        mapped_memory::is_granted(&comm, &runtime.mapper(), &algorithms);
        works(&comm);
        assert_eq!(runtime.thread(), [0, 0, 0]);
    });
}

#[test]
fn mapped_memory_that_cannot_be_granted_is_refused() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let (runtime, comm) = (StandIn::new(), build(3).expect("communicator"));
        let (arm, calls_of) = (|fault: &str| runtime.arm(fault), |function: &str| runtime.calls_of(function));
        mapped_memory::is_refused(&comm, &runtime.mapper(), "hipMemSetAccess", "hipModuleLaunchKernel", arm, calls_of);
        works(&comm);
        assert_eq!(runtime.thread(), [0, 0, 0]);
    });
}

#[test]
fn a_kernel_that_may_not_touch_its_memory_ends_the_contexts() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        mapped_memory::ends_the_contexts(&build(3).expect("communicator"), &StandIn::new().mapper(), 700);
        println!("the body is done");
        // Not by way of the communicator, which could wait for what spins.
        std::process::exit(0);
    });
}

/// A runtime without the questions is believed, as before there was such memory.
#[test]
fn a_runtime_that_maps_no_memory() {
    let body = || works(&build(2).expect("communicator"));
    if is_body() {
        alone_with(&[], body);
        return;
    }
    for function in ["hipMemGetAccess", "hipMemPoolSetAccess", "hipDeviceGetDefaultMemPool", "hipDeviceGetMemPool"] {
        alone_with(&[(LIBRARY, &without(function)), ("STANDIN_DEVICES", "2")], body);
    }
    alone(&[("STANDIN_DEVICES", "2"), ("STANDIN_NO_POOLS", "1")], body);
}

/// The device's pool lets peers in since the communicator was built; managed memory is refused by name.
#[test]
fn memory_of_every_other_kind() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let (runtime, comm) = (StandIn::new(), build(3).expect("communicator"));
        let allocate = |rank: usize, function: &str, last: u64| {
            runtime.set_device(rank as c_int);
            let mut address = 0u64;
            // SAFETY: as the runtime declares those that are called so.
            let call = unsafe { runtime.get::<unsafe extern "C" fn(&mut u64, usize, u64) -> c_int>(function) };
            // SAFETY: likewise; a local.
            assert_eq!(unsafe { call(&mut address, 4096, last) }, 0, "{function}");
            runtime.set_device(0);
            address
        };
        let stream = |rank: usize| comm.stream(rank).expect("a rank");
        let pooled = [0, 1, 2].map(|rank| allocate(rank, "hipMallocAsync", stream(rank).handle()));
        mapped_memory::write::<Hip>(stream(1), pooled[1], 5, 1024);
        mapped_memory::broadcast(&comm, &pooled, 1024, 1).expect("outcome");
        assert!((0..3).all(|rank| mapped_memory::read::<Hip>(stream(rank), pooled[rank], 1024) == [5; 1024]));
        runtime.arm("");
        let managed = allocate(0, "hipMallocManaged", 1);
        let error = mapped_memory::broadcast(&comm, &[managed, pooled[1], pooled[2]], 1024, 1).expect_err("refused");
        assert_eq!((runtime.calls_of("hipModuleLaunchKernel"), comm.failure()), (0, None));
        let Error::InvalidArgument { argument: "output", rank: Some(Rank(0)), got, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(*got, format!("managed memory at {managed:#x}"));
        works(&comm);
        assert_eq!(runtime.thread(), [0, 0, 0]);
    });
}

/// Any one question about memory, or grant of it, fails.
#[test]
fn any_call_about_mapped_memory_may_fail() {
    for_each_call(|| {
        let (runtime, comm) = (StandIn::new(), build(2).expect("communicator"));
        works(&comm);
        let streams = [0, 1].map(|rank| comm.stream(rank).expect("a rank").clone());
        let mapper = runtime.mapper();
        let at = [0, 1].map(|rank| mapper.range(rank) + 2 * mapped_memory::PAGE as u64 - 2000);
        mapped_memory::write::<Hip>(&streams[1], at[1], 9, 1000);
        let raw = at.map(|at| RawRank::new(at, at));
        // SAFETY: the memory lives as long as the process.
        let call = || unsafe { comm.broadcast_raw(&raw, &streams, 1000, DType::U32, 1)?.wait() };
        let error = fails_once(&runtime, call);
        match comm.reset() {
            Ok(()) => {
                mapped_memory::broadcast(&comm, &at, 1000, 1).expect("the fault is over");
                assert_eq!(mapped_memory::read::<Hip>(&streams[0], at[0], 1000), [9; 1000]);
                drop((streams, comm));
                println!("alive: {:?}", runtime.alive());
            }
            Err(Error::Poisoned { cause }) => {
                assert_eq!(Some(*cause), error);
                println!("alive: not compared");
            }
            Err(other) => panic!("{other}"),
        }
    });
}

/// Case D13: whatever device the caller has, calls work on the rank's and leave the thread as it was, without an error.
#[test]
fn d13_the_callers_device_is_not_touched() {
    alone(&[("STANDIN_DEVICES", "3"), ("STANDIN_DELAY_US", "1000")], || {
        let runtime = StandIn::new();
        for own in [0, 2] {
            runtime.set_device(own);
            let same = |what: &str| assert_eq!(runtime.thread(), [own, 0, 0], "{what}");
            assert_eq!(Hip::device_count(), Ok(3));
            let comm = build(3).expect("communicator");
            same("build");
            works(&comm);
            same("a broadcast");
            let mut data: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[1u32; 300]).expect("buffer")).collect();
            comm.reduce_scatter_in_place(&mut data, ReduceOp::Sum).expect("launch").wait().expect("outcome");
            same("reduce_scatter");
            let streams: Vec<_> = (0..3).map(|r| comm.stream(r).expect("a rank").clone()).collect();
            let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
            // SAFETY: the buffers live until after the last wait.
            unsafe {
                let graph = comm.capture(&streams, || comm.broadcast_raw(&raw, &streams, 300, DType::U32, 0)?.wait());
                same("capture");
                graph.expect("graph").launch().expect("launch").wait().expect("outcome");
                same("a graph");
            }
            drop((data, streams, raw));
            comm.abort();
            comm.reset().expect("reset");
            drop(comm);
            same("the rest");
        }
    });
}

/// Streams of others: the null stream under both of its handles, and a thread's own.
#[test]
fn streams_by_handle() {
    alone(&[], || {
        let device = Hip::open(0).expect("device");
        // SAFETY: handles that every runtime knows, and one of ours that lives on.
        let named = |handle: u64| unsafe { crossccl::HipStream::from_raw(&device, handle) };
        let legacy = crossccl::HipStream::legacy(&device);
        assert_eq!((legacy.handle(), named(0), named(1)), (0, legacy.clone(), legacy));
        let own = crossccl::HipStream::per_thread(&device);
        assert_eq!((own.handle(), named(2)), (2, own.clone()));
        let fault = std::thread::scope(|s| s.spawn(|| Hip::record(&own)).join())
            .expect("no panic")
            .expect_err("another thread");
        assert!(fault.name.contains("on the thread alone"), "{fault:?}");
        let made = Hip::create_stream(&device).expect("stream");
        assert_eq!(named(made.handle()), made);
        for stream in [named(0), own] {
            assert!(!Hip::is_capturing(&stream).expect("an answer"));
            assert_eq!(Hip::wait(&Hip::record(&stream).expect("event"), None), Ok(true));
        }
    });
}

/// Runs a body once for each call that the runtime gets from it, and that call fails.
fn for_each_call<F: FnOnce() + Clone + Sync>(body: F) {
    if is_body() {
        alone_with(&[], body);
        return;
    }
    let run = |step: usize| {
        let step = step.to_string();
        // Work in streams begins late: what does not wait for it shows.
        alone(&[("STANDIN_DELAY_US", "1000"), (STEP, &step)], body.clone())
    };
    let told = |text: &str, what: &str| {
        let found = text.lines().find_map(|line| Some(line.split_once(what)?.1.to_owned()));
        found.unwrap_or_else(|| panic!("nowhere {what}\n{text}"))
    };
    let whole = run(0);
    let calls: usize = told(&whole, "calls: ").parse().expect("a number");
    let alive = told(&whole, "alive: ");
    assert!(calls > 20, "{calls} calls");
    let next = AtomicUsize::new(1);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let step = next.fetch_add(1, Ordering::Relaxed);
                    if step > calls {
                        return;
                    }
                    let text = run(step);
                    let left = told(&text, "alive: ");
                    assert!(
                        left == alive || left == "not compared",
                        "step {step}: {left}, without a fault {alive}\n{text}"
                    );
                }
            });
        }
    });
    println!("{calls} calls");
}

/// What `body` answers when the step's call fails: an error that names the call, and a thread that is as it was. Only
/// what gives the thread back may fail unnoticed: the caller has its result.
fn fails_once<T>(runtime: &StandIn, body: impl FnOnce() -> Result<T, Error>) -> Option<Error> {
    let step: u64 = step().parse().expect("a number");
    let before = runtime.thread();
    runtime.arm(&if step == 0 { String::new() } else { format!("*:{step}:719") });
    let outcome = body();
    let (calls, fired) = (runtime.calls(), runtime.fired());
    runtime.arm("");
    if step == 0 {
        println!("calls: {calls}");
    } else {
        println!("{fired}: {:?}", outcome.as_ref().err());
        assert!(!fired.is_empty(), "{calls} calls, fewer than without a fault");
    }
    let gives_back = ["hipSetDevice", "hipThreadExchangeStreamCaptureMode"].contains(&&*fired);
    // A question that is only asked for a better answer than the usual one.
    let optional = ["hipDeviceGetAttribute", "hipExtGetLinkTypeAndHopCount"].contains(&&*fired);
    match outcome {
        Ok(_) => {
            assert!(step == 0 || gives_back || optional, "{fired} failed and nobody says so");
            if gives_back {
                println!("alive: not compared\nthe body is done");
                std::process::exit(0);
            }
            assert_eq!(runtime.thread(), before);
            None
        }
        Err(error) => {
            let named = match &error {
                Error::Driver { backend: "hip", call, code: 719, name, .. } => {
                    assert!(name.starts_with("hipErrorLaunchFailure"), "{error}");
                    *call == fired
                }
                Error::PeerAccess { reason, .. }
                | Error::NoDevice { reason, .. }
                | Error::NotPeerAccessible { reason, .. } => reason.starts_with(&fired),
                _ => false,
            };
            assert!(named, "{fired} failed, and this is told: {error}");
            if fired == "hipGraphDestroy" {
                println!("alive: not compared");
            }
            assert_eq!(runtime.thread(), before, "{fired}");
            Some(error)
        }
    }
}

/// Cases G3, G12: any one call of the set-up fails. The error names it, and the next attempt works; in the end as much is
/// alive as without the fault.
#[test]
fn g3_any_call_of_the_set_up_may_fail() {
    for_each_call(|| {
        let runtime = StandIn::new();
        fails_once(&runtime, || build(2));
        let comm = build(2).expect("the fault is over");
        works(&comm);
        drop(comm);
        println!("alive: {:?}", runtime.alive());
    });
}

/// Any one call of the runtime in `call` fails: the error names it, and a reset makes the communicator whole, or says why
/// it does not.
fn any_call_may_fail<T>(
    by_address: bool,
    call: impl FnOnce(&Communicator<Hip>, &mut [Buffer<Hip, u32>], &mut [Buffer<Hip, u32>]) -> Result<T, Error>,
) {
    let runtime = StandIn::new();
    let comm = build(2).expect("communicator");
    works(&comm);
    let [mut data, mut others] =
        [0, 10].map(|x| [0, 1].map(|r| comm.buffer_from(r, &[x + r as u32; 1000]).expect("buffer")));
    let begin = Instant::now();
    let outcome = fails_once(&runtime, || call(&comm, &mut data, &mut others));
    assert!(begin.elapsed() < Duration::from_secs(5), "{outcome:?} took {:?}", begin.elapsed());
    let reset = comm.reset();
    match &reset {
        Ok(()) => works(&comm),
        // The end of a launch cannot be known: what it may touch is kept for good.
        Err(Error::Poisoned { cause }) => assert_eq!(Some(&**cause), outcome.as_ref()),
        Err(other) => panic!("{other}"),
    }
    if by_address && reset.is_err() {
        // Who gives addresses keeps their memory until a reset has returned.
        std::mem::forget(data);
    } else {
        drop(data);
    }
    drop((others, comm));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    match reset {
        Ok(()) => println!("alive: {:?}", runtime.alive()),
        Err(_) => println!("alive: not compared"),
    }
}

#[test]
fn any_call_of_a_broadcast_may_fail() {
    for_each_call(|| any_call_may_fail(false, |comm, data, _| comm.broadcast_in_place(data, 1)?.wait()));
}

#[test]
fn any_call_of_copies_reads_and_writes_may_fail() {
    for_each_call(|| {
        any_call_may_fail(false, |comm, data, others| {
            // Groups of one rank, which copy.
            comm.reduce_scatter(&*data, &mut *others, ReduceScatter::new(ReduceOp::Sum).group_size(1))?.wait()?;
            for (from, to) in data.iter().zip(others) {
                to.write(&from.to_vec()?)?;
                to.fill_bytes(1)?;
            }
            Ok(())
        })
    });
}

#[test]
fn any_call_of_a_capture_and_a_replay_may_fail() {
    for_each_call(|| {
        any_call_may_fail(true, |comm, data, _| {
            let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
            let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
            // SAFETY: the buffers live until after the reset, and nothing else uses them until then.
            unsafe {
                let graph =
                    comm.capture(&streams, || comm.broadcast_raw(&raw, &streams, 1000, DType::U32, 0)?.wait())?;
                graph.launch()?.wait()?;
                Ok(graph)
            }
        })
    });
}

/// Case A14: while one rank's kernel waits for another rank, whose launch comes later from the same thread, memory is
/// taken and given back, a communicator is built, and data is copied.
#[test]
fn a14_memory_comes_and_goes_while_a_rank_waits() {
    alone(&[], || {
        let ranks = build(2).expect("communicator").into_ranks();
        let other = build(2).expect("communicator");
        let mut data: Vec<_> = ranks.iter().map(|r| r.buffer_from(&[r.rank().0; 100]).expect("buffer")).collect();
        let [first, second] = &mut data[..] else { unreachable!("two ranks") };
        let flight = ranks[0].broadcast_in_place(first, 1).expect("launch");
        for rank in 0..2 {
            let buffer = other.buffer_from(rank, &[rank as u32; 5000]).expect("buffer");
            assert_eq!(buffer.to_vec().expect("read"), vec![rank as u32; 5000]);
        }
        works(&build(2).expect("communicator"));
        ranks[1].broadcast_in_place(second, 1).expect("launch").wait().expect("outcome");
        flight.wait().expect("outcome");
        assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
    });
}

/// Memory that was given back serves again; where there is no more, a larger block that was kept does.
#[test]
fn memory_is_kept_and_used_again() {
    alone(&[], || {
        let runtime = StandIn::new();
        let stream = Hip::create_stream(&Hip::open(0).expect("device")).expect("stream");
        let large = Buffer::<Hip, u8>::new(&stream, 1 << 20).expect("buffer").address();
        let allocations = runtime.alive();
        let again = Buffer::<Hip, u8>::new(&stream, (1 << 20) - 100).expect("buffer");
        assert_eq!((again.address(), runtime.alive()), (large, allocations));
        drop(again);
        runtime.arm("hipMalloc:1+:2");
        let smaller = Buffer::<Hip, u8>::new(&stream, 5000).expect("the block that was kept");
        assert_eq!(smaller.address(), large);
        assert_eq!(smaller.to_vec().expect("read"), [0; 5000]);
        let error = Buffer::<Hip, u8>::new(&stream, 5000).map(drop).expect_err("no memory");
        assert_eq!(
            error.to_string(),
            "hip device 0: hipMalloc failed with code 2: hipErrorOutOfMemory for 5000 bytes; 0 bytes are kept from buffers that were dropped"
        );
    });
}

/// ROCm's ranges, one a call under the caller's label, whatever becomes of it: by a library that is named, and by one that
/// the process has already. One that it has not is not loaded.
#[test]
fn a_profiler_sees_a_range_a_call() {
    let body = || {
        let path = env::var("STANDIN_PROFILER").expect("a library");
        let profiler = StandInProfiler::new(&path);
        let (runtime, comm) = (StandIn::new(), build(2).expect("communicator"));
        assert_eq!(profiler.told(), [""; 0], "building a communicator is no call");
        let mut data = [0, 1].map(|r| comm.buffer_from(r, &[r as u32; 100]).expect("buffer"));
        let labelled = |label: &'static str| Broadcast::from_root(0).label(label);
        comm.broadcast_in_place(&mut data, labelled("weights")).expect("launch").wait().expect("outcome");
        assert_eq!(profiler.told(), ["begin roctx|crossccl broadcast: weights|", "end roctx"]);
        let what = ReduceScatter::new(ReduceOp::Sum);
        comm.reduce_scatter_in_place(&mut data, what).expect("launch").wait().expect("outcome");
        assert_eq!(profiler.told(), ["begin roctx|crossccl reduce_scatter|", "end roctx"]);
        // What ends a string of C is left out.
        comm.broadcast_in_place(&mut data, labelled("la\0yer é")).expect("launch").wait().expect("outcome");
        assert_eq!(profiler.told(), ["begin roctx|crossccl broadcast: layer é|", "end roctx"]);
        // What is refused is no call; one whose second launch fails ends as any does.
        assert!(comm.broadcast_in_place(&mut data, 2).is_err());
        assert_eq!(profiler.told(), [""; 0]);
        runtime.arm("hipModuleLaunchKernel:2:719");
        assert!(comm.broadcast_in_place(&mut data, labelled("fails")).is_err());
        assert_eq!(runtime.fired(), "hipModuleLaunchKernel");
        runtime.arm("");
        assert_eq!(profiler.told(), ["begin roctx|crossccl broadcast: fails|", "end roctx"]);
        comm.reset().expect("reset");
        // Of one rank's call each rank has one, on its thread.
        std::thread::scope(|scope| {
            for rank in comm.into_ranks() {
                scope.spawn(move || {
                    let mut data = rank.buffer::<u32>(100).expect("buffer");
                    rank.broadcast_in_place(&mut data, labelled("a rank's")).expect("launch").wait().expect("outcome");
                });
            }
        });
        let mut told = profiler.told();
        told.sort();
        assert_eq!(told, [["begin roctx|crossccl broadcast: a rank's|"; 2], ["end roctx"; 2]].concat());
    };
    let library = if is_body() { "" } else { profiler::library() };
    let other = if is_body() { String::new() } else { temporary("roctx.so").display().to_string() };
    if !is_body() {
        fs::copy(library, &other).expect("library");
    }
    let two = ("STANDIN_DEVICES", "2");
    alone(&[two, ("STANDIN_PROFILER", library)], body);
    alone(&[two, ("STANDIN_PROFILER", &other), (ROCTX, &other)], body);
}

#[test]
fn a_profiler_that_takes_no_ranges() {
    let works_without = || {
        tracing_subscriber::fmt().with_ansi(false).init();
        assert!(Hip::profiler().is_none());
        works(&build(2).expect("communicator"));
        assert!(!fs::read_to_string("/proc/self/maps").expect("a list").contains("roctx"));
    };
    let library: &str = if is_body() { "" } else { profiler::library() };
    let folder = Path::new(library).parent().map_or(String::new(), |folder| folder.display().to_string());
    let none: [(&str, &[&str]); 3] = [
        // It lies where the loader looks.
        ("", &[]),
        ("/nonexistent", &["CROSSCCL_ROCTX=/nonexistent: ", "No such file"]),
        ("libc.so.6", &["a library of ROCTX without its functions"]),
    ];
    for (library, words) in none {
        let said = alone(&[("STANDIN_DEVICES", "2"), (ROCTX, library), ("LD_LIBRARY_PATH", &folder)], works_without);
        assert_eq!(said.matches("no ranges for a profiler").count(), words.len().min(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

#[test]
fn a_stream_of_another_device_is_refused() {
    alone(&[("STANDIN_DEVICES", "2")], || {
        let (runtime, comm) = (StandIn::new(), build(2).expect("communicator"));
        // SAFETY: the streams live as long as what is enqueued there.
        let take = |device: &_, stream: &HipStream| unsafe { HipStream::from_raw(device, stream.handle()) };
        foreign_stream::is_refused(&comm, "hipStreamGetDevice", take, |call| runtime.arm(call), || runtime.fired());
        works(&comm);
    });
}

/// A runtime before it could tell of a stream takes the caller's word.
#[test]
fn a_runtime_that_cannot_tell_of_streams() {
    let library = if is_body() { String::new() } else { without("hipStreamGetDevice") };
    alone_with(&[(LIBRARY, &library), ("STANDIN_DEVICES", "2")], || {
        let comm = build(2).expect("communicator");
        works(&comm);
        let device = |ordinal| Hip::open(ordinal).expect("device");
        let made = [0, 1].map(|ordinal| Hip::create_stream(&device(ordinal)).expect("stream"));
        let streams = [0, 1].map(|rank| {
            // SAFETY: it lives as long, and work on it is waited for.
            unsafe { HipStream::from_raw(&device(rank), made[rank].handle()) }
        });
        let data = [0, 1].map(|rank| comm.buffer_from(rank, &[rank as u8; 100]).expect("buffer"));
        let ranks = data.each_ref().map(|one| RawRank::new(one.address(), one.address()));
        // SAFETY: buffers of that size, which live until the end.
        unsafe { comm.broadcast_raw(&ranks, &streams, 100, DType::U8, 0) }.expect("launch").wait().expect("outcome");
        assert_eq!(data[1].to_vec(), Ok(vec![0; 100]));
    });
}

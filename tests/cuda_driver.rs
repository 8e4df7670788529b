//! The CUDA backend on a stand-in for NVIDIA's driver (`cuda/stand_in_driver.cc`): what happens without a driver, with
//! one that is too old, and when any one of its calls fails. No GPU is needed, and none is used where there is one.
//!
//! A driver, and what a process knows of it, is for good: each test runs its body in a process of its own.
#![cfg(all(feature = "cuda", not(crossccl_no_kernels), target_os = "linux"))]
#![allow(missing_docs)]

use std::{
    collections::BTreeSet,
    env,
    ffi::{CStr, CString, c_char, c_int, c_void},
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
    Algorithm, Backend, BackendKind, Broadcast, Buffer, Communicator, Cuda, CudaStream, DType, Error, Overlap, Rank,
    RawRank, ReduceOp, ReduceScatter, signal_buffer_bytes,
};

#[path = "support/foreign_stream.rs"]
mod foreign_stream;
#[path = "support/mapped_memory.rs"]
mod mapped_memory;
#[path = "profiler/stand_in.rs"]
mod profiler;
use mapped_memory::Mapper;
use profiler::StandInProfiler;

/// By it a profiler names its library.
const NVTX: &str = "NVTX_INJECTION64_PATH";
/// In the environment of a process that runs a test's body: the test.
const BODY: &str = "STANDIN_TEST_BODY";
/// Likewise, which of many.
const STEP: &str = "STANDIN_TEST_STEP";
/// A process that runs longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Where the stand-in lies under a driver's names.
fn stand_in() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/build-stand-in");
        let output = Command::new(script).arg(&folder).output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

/// A folder with libraries under a driver's names, each of the bytes given.
fn folder(name: &str, libraries: &[(&str, &[u8])]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drivers").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("folder");
    for (name, bytes) in libraries {
        fs::write(folder.join(name), bytes).expect("library");
    }
    folder
}

/// The stand-in with another name for `function`: whoever looks for it does not find it.
fn without(function: &str) -> Vec<u8> {
    let mut bytes = fs::read(stand_in().join("libcuda.so.1")).expect("the stand-in");
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let places: Vec<_> = bytes.windows(name.len()).enumerate().filter(|(_, w)| *w == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the stand-in has no {function}");
    places.iter().for_each(|at| bytes[at + 1] = b'x');
    bytes
}

/// The test whose closure this is.
fn name_of<F>(_: &F) -> &'static str {
    let name = std::any::type_name::<F>();
    name.strip_prefix("cuda_driver::").unwrap_or(name).trim_end_matches("::{{closure}}")
}

/// Runs `body` in a process of its own, on the driver in `folder` and the machine that the variables describe. What it
/// says, if all is well.
fn alone_with<F: FnOnce()>(folder: &Path, machine: &[(&str, &str)], body: F) -> String {
    let name = name_of(&body);
    if env::var(BODY).is_ok_and(|b| b == name) {
        std::thread::spawn(|| {
            std::thread::sleep(LIMIT);
            eprintln!("hangs");
            std::process::abort();
        });
        body();
        std::process::exit(0);
    }
    let output = Command::new(env::current_exe().expect("this program"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", folder)
        .env(BODY, name)
        .envs(machine.iter().copied())
        .output()
        .expect("this program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{machine:?}: {}\n{text}", output.status);
    text
}

fn alone<F: FnOnce()>(machine: &[(&str, &str)], body: F) -> String {
    let folder = if env::var(BODY).is_ok() { Path::new("") } else { stand_in() };
    alone_with(folder, machine, body)
}

/// The stand-in, as the process that runs a body has it.
struct StandIn(libloading::Library);

/// What is alive in the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alive(Vec<(&'static str, u64)>);

impl Alive {
    fn of(&self, what: &str) -> u64 {
        self.0.iter().find(|(name, _)| *name == what).expect("counted").1
    }
}

impl StandIn {
    fn new() -> Self {
        // SAFETY: the stand-in's initialisers do nothing.
        StandIn(unsafe { libloading::Library::new("libcuda.so.1") }.expect("the stand-in"))
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
        unsafe { self.get::<unsafe extern "C" fn(*const c_char)>("standin_arm")(fault.as_ptr()) }
    }

    /// The function that failed.
    fn fired(&self) -> String {
        // SAFETY: as the stand-in declares it; the text is the stand-in's until it is armed again.
        let text = unsafe { CStr::from_ptr(self.get::<unsafe extern "C" fn() -> *const c_char>("standin_fired")()) };
        text.to_str().expect("text").to_owned()
    }

    fn calls(&self) -> u64 {
        // SAFETY: as the stand-in declares it.
        unsafe { self.get::<unsafe extern "C" fn() -> u64>("standin_calls")() }
    }

    /// Calls of one function since the last `arm`.
    fn calls_of(&self, function: &str) -> u64 {
        let name = CString::new(function).expect("text");
        // SAFETY: as the stand-in declares it; the text outlives the call.
        unsafe { self.get::<unsafe extern "C" fn(*const c_char) -> u64>("standin_calls_of")(name.as_ptr()) }
    }

    fn mapper(&self) -> Mapper {
        // SAFETY: it is the driver.
        unsafe { Mapper::load(&self.0, "cu") }.expect("the stand-in maps memory")
    }

    fn alive(&self) -> Alive {
        let names = ["contexts", "pools", "streams", "events", "modules", "graphs", "allocations", "pinned"];
        // SAFETY: as the stand-in declares it.
        let count = unsafe { self.get::<unsafe extern "C" fn(*const c_char) -> u64>("standin_alive") };
        let alive = names.map(|name| {
            let text = CString::new(name).expect("text");
            // SAFETY: likewise; the text outlives the call.
            (name, unsafe { count(text.as_ptr()) })
        });
        Alive(alive.to_vec())
    }

    /// A context of another user's, made current.
    fn foreign(&self, device: c_int) {
        // SAFETY: as the stand-in and the driver declare them.
        unsafe {
            let context = self.get::<unsafe extern "C" fn(c_int) -> *mut c_void>("standin_context")(device);
            assert_eq!(self.get::<unsafe extern "C" fn(*mut c_void) -> c_int>("cuCtxSetCurrent")(context), 0);
        }
    }

    /// A device's primary context, once more.
    fn primary(&self, device: c_int) -> *mut c_void {
        let mut context = std::ptr::null_mut();
        // SAFETY: as the driver declares it; a local.
        let code = unsafe {
            self.get::<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>("cuDevicePrimaryCtxRetain")(
                &mut context,
                device,
            )
        };
        assert_eq!(code, 0);
        context
    }

    /// A function of a handle and flags (which one without flags does not look at).
    fn call(&self, function: &str, handle: *mut c_void, flags: c_int) {
        // SAFETY: as the driver declares those that are called so.
        let code = unsafe { self.get::<unsafe extern "C" fn(*mut c_void, c_int) -> c_int>(function)(handle, flags) };
        assert_eq!(code, 0, "{function}");
    }

    /// Memory of a new pool, which lets its own device in, as a framework has it.
    fn pool_memory(&self, stream: &<Cuda as Backend>::Stream, bytes: usize) -> u64 {
        let device = Cuda::ordinal(&Cuda::device_of(stream)) as c_int;
        let before = self.thread();
        self.call("cuCtxSetCurrent", self.primary(device), 0);
        let (mut pool, mut address) = (std::ptr::null_mut(), 0u64);
        // allocation, handles, kind and number of the location, the rest
        let mut properties = [0 as c_int; 24];
        properties[..4].copy_from_slice(&[1, 0, 1, device]);
        // SAFETY: as the driver declares them; locals.
        unsafe {
            type Create = unsafe extern "C" fn(*mut *mut c_void, *const c_int) -> c_int;
            assert_eq!(self.get::<Create>("cuMemPoolCreate")(&mut pool, properties.as_ptr()), 0);
            type Take = unsafe extern "C" fn(*mut u64, usize, *mut c_void, *mut c_void) -> c_int;
            let stream = stream.handle() as *mut c_void;
            assert_eq!(self.get::<Take>("cuMemAllocFromPoolAsync")(&mut address, bytes, pool, stream), 0);
        }
        self.call("cuCtxSetCurrent", before.0 as *mut c_void, 0);
        address
    }

    /// What this thread has set: its context and its capture mode.
    fn thread(&self) -> (usize, c_int) {
        let mut context = std::ptr::null_mut();
        // SAFETY: as the stand-in and the driver declare them; a local.
        unsafe {
            assert_eq!(self.get::<unsafe extern "C" fn(*mut *mut c_void) -> c_int>("cuCtxGetCurrent")(&mut context), 0);
            (context as usize, self.get::<unsafe extern "C" fn() -> c_int>("standin_capture_mode")())
        }
    }
}

fn step() -> u64 {
    env::var(STEP).expect("a step").parse().expect("a number")
}

fn build(ranks: usize) -> Result<Communicator<Cuda>, Error> {
    Communicator::<Cuda>::builder(0..ranks).timeout(Duration::from_secs(20)).build()
}

/// A broadcast, and its result looked at.
fn works(comm: &Communicator<Cuda>) {
    let mut data: Vec<_> = (0..comm.ranks()).map(|r| comm.buffer_from(r, &[r as u32; 1000]).expect("buffer")).collect();
    let root = comm.ranks() - 1;
    comm.broadcast_in_place(&mut data, root).expect("launch").wait().expect("outcome");
    assert!(data.iter().all(|b| b.to_vec().expect("read") == [root as u32; 1000]));
}

/// What stands behind `what` in what a body said.
fn told(text: &str, what: &str) -> String {
    let found = text.lines().find_map(|line| Some(line.split_once(what)?.1.to_owned()));
    found.unwrap_or_else(|| panic!("nowhere {what}\n{text}"))
}

/// Runs a body once for each call that the driver gets from it, and that call fails. The body does what it does with
/// [`fails_once`], and prints what is alive in the end.
fn for_each_call<F: FnOnce() + Clone + Sync>(ranks: &str, body: F) {
    // Work in streams begins late: what does not wait for it, and lets memory go, shows.
    let run = |step: usize| {
        let step = step.to_string();
        alone(&[("STANDIN_DEVICES", ranks), ("STANDIN_DELAY_US", "1000"), (STEP, &step)], body.clone())
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

/// What `body` answers when the step's call fails: an error that names the call. Only what gives the thread back as it
/// was may fail unnoticed: the caller has its result.
fn fails_once<T>(driver: &StandIn, body: impl FnOnce() -> Result<T, Error>) -> Option<Error> {
    let step = step();
    let before = driver.thread();
    driver.arm(&if step == 0 { String::new() } else { format!("*:{step}:719") });
    let outcome = body();
    let (calls, fired) = (driver.calls(), driver.fired());
    driver.arm("");
    if step == 0 {
        println!("calls: {calls}");
    } else {
        println!("{fired}: {:?}", outcome.as_ref().err());
        assert!(!fired.is_empty(), "{calls} calls, fewer than without a fault");
    }
    let gives_back = ["cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"].contains(&&*fired);
    // What joins two devices is asked for a better plan than the usual one.
    let optional = ["cuDeviceGetP2PAttribute", "cuDeviceGetPCIBusId"].contains(&&*fired);
    match outcome {
        Ok(_) => {
            assert!(step == 0 || gives_back || optional, "{fired} failed and nobody says so");
            if gives_back {
                // As it would be had the fault not been.
                println!("alive: not compared");
                std::process::exit(0);
            }
            assert_eq!(driver.thread(), before);
            None
        }
        Err(error) => {
            let named = match &error {
                Error::Driver { backend: "cuda", call, code: 719, name, .. } => {
                    assert!(name.starts_with("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
                    *call == fired
                }
                Error::PeerAccess { reason, .. }
                | Error::NoDevice { reason, .. }
                | Error::NotPeerAccessible { reason, .. } => reason.starts_with(&fired),
                _ => false,
            };
            assert!(named, "{fired} failed, and this is told: {error}");
            if fired == "cuGraphDestroy" {
                // What the driver does not take back stays.
                println!("alive: not compared");
            }
            assert_eq!(driver.thread(), before, "{fired}");
            Some(error)
        }
    }
}

fn tell(alive: &Alive) {
    println!("alive: {alive:?}");
}

#[test]
fn without_a_driver_the_error_says_what_was_looked_for() {
    let missing = || {
        // SAFETY: a driver's initialisers ask for nothing.
        let found = ["libcuda.so", "libcuda.so.1"].iter().any(|n| unsafe { libloading::Library::new(*n) }.is_ok());
        let outcome = build(2).map(drop);
        if found {
            // A machine with a driver of its own.
            assert!(!matches!(&outcome, Err(e) if e.to_string().contains("no driver library")), "{outcome:?}");
            return;
        }
        let Err(Error::NoDevice { backend: "cuda", reason }) = &outcome else { panic!("{outcome:?}") };
        assert!(reason.starts_with("dlopen: no driver library; install the NVIDIA driver (libcuda.so: "), "{reason}");
        assert!(reason.contains("; libcuda.so.1: "), "{reason}");
        assert_eq!(build(2).map(drop), outcome, "the answer stays");
        assert_eq!(BackendKind::Cuda.check(), outcome);
    };
    alone_with(&folder("none", &[]), &[], missing);
}

/// On any machine.
#[test]
fn a_driver_that_is_no_library_is_an_error() {
    let broken = || {
        let outcome = build(2).map(drop);
        let Err(Error::NoDevice { backend: "cuda", reason }) = outcome else { panic!("{outcome:?}") };
        assert!(reason.starts_with("dlopen: no driver library; "), "{reason}");
        for name in ["/libcuda.so: invalid ELF header", "/libcuda.so.1: invalid ELF header"] {
            assert!(reason.contains(name), "{reason}");
        }
    };
    let text = b"This is no library, whatever its name says; it is longer than the header of one would be.".as_slice();
    alone_with(&folder("broken", &[("libcuda.so", text), ("libcuda.so.1", text)]), &[], broken);
}

#[test]
fn a_driver_that_is_too_old_is_an_error() {
    let old = || {
        let outcome = build(2).map(drop);
        let Err(Error::NoDevice { backend: "cuda", reason }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(reason, "cuDriverGetVersion: the driver is of CUDA 11.8; install one of CUDA 12.0 or later");
    };
    alone(&[("STANDIN_VERSION", "11080")], old);
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
    const VARIABLE: &str = "CUDA_LAUNCH_BLOCKING";
    alone(&[(VARIABLE, "3"), (STEP, VARIABLE)], body);
    alone(&[(VARIABLE, "0"), (STEP, "")], body);
}

#[test]
fn a_machine_without_a_device_is_an_error() {
    let none = || {
        let outcome = build(2).map(drop);
        let Err(Error::NoDevice { backend: "cuda", reason }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(reason, "cuInit: CUDA_ERROR_NO_DEVICE");
    };
    alone(&[("STANDIN_DEVICES", "0")], none);
}

/// The names in driver.rs.
fn functions() -> BTreeSet<String> {
    let text = include_str!("../src/backend/cuda/driver.rs");
    let list = text.split_once("const FUNCTIONS").and_then(|(_, t)| t.split_once("];")).expect("a list").0;
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The bindings panic where a function is missing that they are asked for, so that all of those are looked for.
#[test]
fn every_function_that_is_called_is_looked_for() {
    let mut called = BTreeSet::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend/cuda")).expect("folder") {
        let text = fs::read_to_string(file.expect("file").path()).expect("text");
        for before in ["call!(", "sys::"] {
            for (at, _) in text.match_indices(before) {
                let name = text[at + before.len()..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
                let name = name.expect("a name");
                if name.starts_with("cu") && text[at + before.len() + name.len()..].starts_with('(') {
                    called.insert(name.to_owned());
                }
            }
        }
    }
    assert_eq!(called, functions());
}

#[test]
fn a_function_that_is_missing_is_named() {
    let missing = || {
        let function = env::var(STEP).expect("a function");
        let outcome = build(2).map(drop);
        let Err(Error::NoDevice { backend: "cuda", reason }) = outcome else { panic!("{outcome:?}") };
        let expected = format!("dlsym: the driver is too old, it has no {function}; install one of CUDA 12.0 or later");
        assert_eq!(reason, expected);
    };
    if env::var(BODY).is_ok() {
        alone(&[], missing);
    }
    for function in functions() {
        let library = without(&function);
        // The second name leads to a whole one, which must not be taken for the first.
        let whole = fs::read(stand_in().join("libcuda.so.1")).expect("the stand-in");
        let folder = folder(&function, &[("libcuda.so", &library), ("libcuda.so.1", &whole)]);
        alone_with(&folder, &[(STEP, &function)], missing);
        fs::remove_dir_all(folder).expect("folder");
    }
}

/// cuFuncLoad came later than all others. Without it kernels are still loaded before they are launched, of which the
/// stand-in makes sure.
#[test]
fn a_driver_without_cu_func_load_works() {
    let body = || works(&build(2).expect("communicator"));
    if env::var(BODY).is_ok() {
        alone(&[], body);
    }
    let library = without("cuFuncLoad");
    alone_with(&folder("no-func-load", &[("libcuda.so", &library), ("libcuda.so.1", &library)]), &[], body);
}

#[test]
fn devices_without_memory_pools_work() {
    alone(&[("STANDIN_NO_POOLS", "1"), ("STANDIN_DEVICES", "3")], || {
        let driver = StandIn::new();
        works(&build(3).expect("communicator"));
        let alive = driver.alive();
        assert_eq!((alive.of("pools"), alive.of("allocations")), (0, 0), "{alive:?}");
    });
}

/// Cases G3, G12: any one call of the set-up fails. The error names it, what was made so far is given back, and the
/// next attempt works; in the end as much is alive as without the fault.
#[test]
fn g3_any_call_of_the_set_up_may_fail() {
    for_each_call("2", || {
        let driver = StandIn::new();
        if step() % 2 == 1 {
            driver.foreign(1);
        }
        let outcome = fails_once(&driver, || build(2));
        let left = driver.alive();
        assert_eq!(left.of("allocations"), 0, "{outcome:?}: {left:?}");
        assert!(left.of("pools") <= left.of("contexts") && left.of("modules") <= left.of("contexts"), "{left:?}");
        if let Some(Error::NoDevice { reason, .. }) = &outcome
            && !reason.starts_with("cuDeviceGetCount")
        {
            // Whether there is a driver is asked once.
            assert_eq!(build(2).map(drop), Err(outcome.expect("an error")));
            println!("alive: not compared");
            return;
        }
        let comm = build(2).expect("the fault is over");
        works(&comm);
        drop(comm);
        tell(&driver.alive());
    });
}

/// Case G12: set-up is one call for all ranks, so that nobody waits for the rank that failed. It is named.
#[test]
fn g12_the_rank_that_fails_in_set_up_is_named() {
    const DEVICES: [usize; 4] = [2, 0, 3, 1];
    let fails = || {
        let (driver, rank) = (StandIn::new(), step() as usize);
        driver.arm(&format!("cuMemHostAlloc:{}:2", rank + 1));
        let begin = Instant::now();
        let outcome = Communicator::<Cuda>::builder(DEVICES).build().map(drop);
        let Err(Error::Driver { call, device, rank: named, code, name, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!((call, device, named, code), ("cuMemHostAlloc", DEVICES[rank], Some(Rank(rank as u32)), 2));
        assert_eq!(name, "CUDA_ERROR_OUT_OF_MEMORY");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        works(&Communicator::<Cuda>::builder(DEVICES).build().expect("the fault is over"));
    };
    for rank in ["0", "1", "2", "3"] {
        alone(&[("STANDIN_DEVICES", "4"), (STEP, rank)], fails);
    }
}

/// Any one call of the driver in `call` fails: the error names it, and a reset makes the communicator whole, or says
/// why it does not.
fn any_call_may_fail<T>(
    by_address: bool,
    call: impl FnOnce(&Communicator<Cuda>, &mut [Buffer<Cuda, u32>], &mut [Buffer<Cuda, u32>]) -> Result<T, Error>,
) {
    let driver = StandIn::new();
    let comm = build(2).expect("communicator");
    works(&comm);
    let [mut data, mut others] =
        [0, 10].map(|x| [0, 1].map(|r| comm.buffer_from(r, &[x + r as u32; 1000]).expect("buffer")));
    let begin = Instant::now();
    let outcome = fails_once(&driver, || call(&comm, &mut data, &mut others));
    assert!(begin.elapsed() < Duration::from_secs(5), "{outcome:?} took {:?}", begin.elapsed());
    let reset = comm.reset();
    match &reset {
        Ok(()) => works(&comm),
        // The end of a launch cannot be known: what it may touch is kept for good.
        Err(Error::Poisoned { cause }) => assert_eq!(Some(&**cause), outcome.as_ref()),
        Err(other) => panic!("{other}"),
    }
    let begin = Instant::now();
    if by_address && reset.is_err() {
        // Who gives addresses keeps their memory until a reset has returned.
        std::mem::forget(data);
    } else {
        drop(data);
    }
    drop((others, comm));
    assert!(begin.elapsed() < Duration::from_secs(5), "the drop took {:?}", begin.elapsed());
    if reset.is_ok() {
        tell(&driver.alive());
    } else {
        println!("alive: not compared");
    }
}

#[test]
fn any_call_of_a_broadcast_may_fail() {
    for_each_call("2", || any_call_may_fail(false, |comm, data, _| comm.broadcast_in_place(data, 1)?.wait()));
}

/// Groups of one rank, which copy.
#[test]
fn any_call_of_copies_may_fail() {
    for_each_call("2", || {
        any_call_may_fail(false, |comm, data, others| {
            let what = ReduceScatter::new(ReduceOp::Sum).group_size(1);
            comm.reduce_scatter(&*data, others, what)?.wait()
        })
    });
}

#[test]
fn any_call_of_reads_and_writes_may_fail() {
    for_each_call("2", || {
        any_call_may_fail(false, |_, data, others| {
            for (from, to) in data.iter().zip(others) {
                to.write(&from.to_vec()?)?;
                to.fill_bytes(1)?;
            }
            Ok(())
        })
    });
}

/// From some call on all fail, as after an error of the hardware: told, and over in bounded time.
#[test]
fn a_device_may_die_in_any_call_of_a_broadcast() {
    let dies = || {
        let driver = StandIn::new();
        let comm = build(2).expect("communicator");
        let mut data = [0, 1].map(|r| comm.buffer_from(r, &[r as u8; 1000]).expect("buffer"));
        let begin = Instant::now();
        driver.arm(&if step() == 0 { String::new() } else { format!("*:{}+:719", step()) });
        let outcome = comm.broadcast_in_place(&mut data, 1).and_then(|flight| flight.wait());
        if step() == 0 {
            println!("calls: {}", driver.calls());
            return;
        }
        let told = matches!(outcome, Err(Error::Driver { code: 719, .. }));
        // The last call but gives the thread back.
        assert!(told || driver.fired() == "cuCtxSetCurrent", "{} failed: {outcome:?}", driver.fired());
        assert!(comm.broadcast_in_place(&mut data, 1).is_err());
        assert!(comm.reset().is_err());
        drop((data, comm));
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    };
    let run = |step: u64| alone(&[("STANDIN_DELAY_US", "1000"), (STEP, &step.to_string())], dies);
    let calls: u64 = told(&run(0), "calls: ").parse().expect("a number");
    assert!(calls > 10, "{calls} calls");
    (1..=calls).for_each(|step| drop(run(step)));
}

#[test]
fn any_call_of_a_capture_and_a_replay_may_fail() {
    for_each_call("2", || {
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

/// Case A19: a launch that is refused on one rank is told, names the rank, and does not leave the others waiting.
#[test]
fn a19_a_launch_that_fails_frees_the_others() {
    alone(&[("STANDIN_DEVICES", "4")], || {
        let driver = StandIn::new();
        let comm = Communicator::<Cuda>::builder(0..4).timeout(None).build().expect("communicator");
        let mut data: Vec<_> = (0..4).map(|r| comm.buffer_from(r, &[r as u8; 999]).expect("buffer")).collect();
        for algorithm in [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect] {
            for rank in 0..4usize {
                driver.arm(&format!("cuLaunchKernelEx:{}", rank + 1));
                let begin = Instant::now();
                let what = Broadcast::from_root(3).algorithm(algorithm);
                let error = comm.broadcast_in_place(&mut data, what).map(drop).expect_err("a launch failed");
                assert!(begin.elapsed() < Duration::from_secs(1), "{algorithm}: {:?}", begin.elapsed());
                let Error::Driver { call: "cuLaunchKernelEx", rank: named, .. } = &error else { panic!("{error}") };
                assert_eq!(*named, Some(Rank(rank as u32)));
                driver.arm("");
                if rank > 0 {
                    // Of the ranks before, some had begun.
                    let next = comm.broadcast_in_place(&mut data, 0).map(drop).expect_err("poisoned");
                    assert_eq!(next, Error::Poisoned { cause: Box::new(error) });
                    comm.reset().expect("reset");
                }
                works(&comm);
            }
        }
    });
}

/// Case A19 with a handle a rank: nothing was launched on the rank that has the error, and nothing swallows it. The
/// others wait within their limit; the call, made again, frees them.
#[test]
fn a19_a_refused_launch_of_one_handle_can_be_made_again() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let driver = StandIn::new();
        let ranks = build(3).expect("communicator").into_ranks();
        let mut data: Vec<_> = ranks.iter().map(|r| r.buffer_from(&[r.rank().0; 100]).expect("buffer")).collect();
        let [first, second, third] = &mut data[..] else { unreachable!("three ranks") };
        driver.arm("cuLaunchKernelEx:3");
        let flights = [ranks[0].broadcast_in_place(first, 2), ranks[1].broadcast_in_place(second, 2)];
        let error = ranks[2].broadcast_in_place(&mut *third, 2).map(drop).expect_err("its launch failed");
        assert!(matches!(&error, Error::Driver { call: "cuLaunchKernelEx", rank: Some(Rank(2)), .. }), "{error}");
        ranks[2].broadcast_in_place(third, 2).expect("launch").wait().expect("outcome");
        flights.into_iter().for_each(|f| f.expect("launch").wait().expect("outcome"));
        assert!(data.iter().all(|d| d.to_vec().expect("read") == [2; 100]));
    });
}

/// Case D1: an error of another user's, or of an earlier call, is not taken for that of the next launch.
#[test]
fn d1_errors_of_before_do_not_stay() {
    alone(&[], || {
        let driver = StandIn::new();
        let comm = build(2).expect("communicator");
        driver.arm("cuStreamSynchronize:1:719");
        // SAFETY: as the driver declares it; the call is made to fail.
        let code = unsafe {
            driver.get::<unsafe extern "C" fn(*mut c_void) -> c_int>("cuStreamSynchronize")(std::ptr::null_mut())
        };
        assert_eq!(code, 719);
        works(&comm);
        driver.arm("cuLaunchKernelEx:1:1");
        let mut data = [0, 1].map(|r| comm.buffer_from(r, &[r as u8]).expect("buffer"));
        let error = comm.broadcast_in_place(&mut data, 1).map(drop).expect_err("a launch failed");
        assert!(matches!(error, Error::Driver { code: 1, .. }), "{error}");
        // Nothing was launched, so that nothing has to be reset.
        works(&comm);
    });
}

/// Cases D2, D4: the driver reports access and lets it be enabled, and what one device writes to another is lost, or what
/// it reads there is something else.
#[test]
fn d2_writes_that_are_lost_name_the_pair() {
    let body = || {
        let Err(Error::PeerSelfTest { from, to }) = build(3).map(drop) else { panic!("the self-test saw nothing") };
        let pair = env::var("STANDIN_LOST").or(env::var("STANDIN_UNREAD")).expect("a pair");
        assert_eq!(format!("{from}:{to}"), pair);
        // Other pairs work.
        let other = 3 - from.index() - to.index();
        works(&Communicator::<Cuda>::builder([from.index(), other]).build().expect("communicator"));
        works(&Communicator::<Cuda>::builder([to.index(), other]).build().expect("communicator"));
    };
    for pair in ["0:1", "0:2", "1:0", "1:2", "2:0", "2:1"] {
        for what in ["STANDIN_LOST", "STANDIN_UNREAD"] {
            alone(&[("STANDIN_DEVICES", "3"), (what, pair)], body);
        }
    }
}

/// Case D3: each ordered pair is asked for, and the one that lacks access is named.
#[test]
fn d3_the_pair_without_access_is_named() {
    let body = || {
        let driver = StandIn::new();
        let outcome = build(3).map(drop);
        let Err(Error::PeerAccess { from, to, reason }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(format!("{from}:{to}"), env::var("STANDIN_UNREACHABLE").expect("a pair"));
        assert_eq!(reason, "the driver reports no peer access");
        assert_eq!((driver.alive().of("allocations"), driver.alive().of("pinned")), (0, 0));
        let other = 3 - from.index() - to.index();
        works(&Communicator::<Cuda>::builder([from.index(), other]).build().expect("communicator"));
    };
    for pair in ["0:1", "0:2", "1:0", "1:2", "2:0", "2:1"] {
        alone(&[("STANDIN_DEVICES", "3"), ("STANDIN_UNREACHABLE", pair)], body);
    }
}

/// Access that another user of the process enabled is as good; any other answer is told.
#[test]
fn access_that_is_enabled_already_is_fine() {
    alone(&[], || {
        let driver = StandIn::new();
        let contexts = [0, 1].map(|device| driver.primary(device));
        for (own, peer) in [(contexts[0], contexts[1]), (contexts[1], contexts[0])] {
            driver.call("cuCtxSetCurrent", own, 0);
            driver.call("cuCtxEnablePeerAccess", peer, 0);
        }
        works(&build(2).expect("communicator"));
        works(&build(2).expect("both are enabled already"));
        driver.arm("cuCtxEnablePeerAccess:2:217");
        let outcome = build(2).map(drop);
        let Err(Error::PeerAccess { from: Rank(1), to: Rank(0), reason }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(reason, "cuCtxEnablePeerAccess failed: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
    });
}

/// Case D5: peers read memory of a pool only where that pool lets them, for which the backend asks.
#[test]
fn d5_memory_of_the_callers_pool() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let driver = StandIn::new();
        let comm = build(3).expect("communicator");
        let streams: Vec<_> = (0..3).map(|r| comm.stream(r).expect("a rank").clone()).collect();
        let memory: Vec<_> = streams.iter().map(|s| driver.pool_memory(s, 4000)).collect();
        let raw: Vec<_> = memory.iter().map(|at| RawRank::new(*at, *at)).collect();
        for algorithm in [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect] {
            let what = Broadcast::from_root(1).algorithm(algorithm);
            // SAFETY: the memory lives as long as the process.
            unsafe { comm.broadcast_raw(&raw, &streams, 1000, DType::F32, what) }
                .expect("launch")
                .wait()
                .expect("outcome");
        }
        // SAFETY: refused.
        let outcome = unsafe { comm.broadcast_raw(&raw, &streams, 1001, DType::F32, 1) }.map(drop);
        let Err(Error::InvalidArgument { argument, expected, got, .. }) = outcome else { panic!("{outcome:?}") };
        let here = format!("4000 bytes from {:#x} on", memory[0]);
        assert_eq!((argument, &*expected, &*got), ("output", "4004 bytes within one allocation", &*here));
    });
}

/// What PyTorch has with expandable_segments: peer access does not cover it, and a kernel that touches it without a
/// grant ends the contexts of the whole process.
#[test]
fn mapped_memory_is_granted_to_peers() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let (driver, comm) = (StandIn::new(), build(3).expect("communicator"));
        let algorithms =
            [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency];
        mapped_memory::is_granted(&comm, &driver.mapper(), &algorithms);
        works(&comm);
    });
}

/// The self-test would end the contexts before there is a communicator.
#[test]
fn signal_buffers_in_mapped_memory() {
    alone(&[("STANDIN_DEVICES", "2")], || {
        let driver = StandIn::new();
        let (mapper, bytes) = (driver.mapper(), signal_buffer_bytes(2, crossccl::MAX_BLOCKS, 0));
        let pages = bytes.div_ceil(mapped_memory::PAGE);
        let addresses = [0, 1].map(|rank| {
            let start = mapper.reserve(pages);
            mapper.map(start, pages, rank);
            mapper.set_access(start, pages, rank, 3);
            (start, bytes)
        });
        let build = || {
            let builder = Communicator::<Cuda>::builder(0..2).payload_bytes(0);
            // SAFETY: memory of that size that lives on, of one communicator at a time.
            unsafe { builder.signal_addresses(addresses) }.build()
        };
        driver.arm("cuMemSetAccess:2:801");
        let outcome = build().map(drop);
        let Err(Error::NotPeerAccessible { argument: "signal buffer", rank: Rank(1), peer: Rank(0), reason, .. }) =
            outcome
        else {
            panic!("{outcome:?}")
        };
        assert_eq!(reason, "cuMemSetAccess: CUDA_ERROR_NOT_SUPPORTED");
        driver.arm("");
        works(&build().expect("communicator"));
    });
}

#[test]
fn mapped_memory_that_cannot_be_granted_is_refused() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let (driver, comm) = (StandIn::new(), build(3).expect("communicator"));
        let (arm, calls_of) = (|fault: &str| driver.arm(fault), |function: &str| driver.calls_of(function));
        mapped_memory::is_refused(&comm, &driver.mapper(), "cuMemSetAccess", "cuLaunchKernelEx", arm, calls_of);
        works(&comm);
    });
}

#[test]
fn a_kernel_that_may_not_touch_its_memory_ends_the_contexts() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        mapped_memory::ends_the_contexts(&build(3).expect("communicator"), &StandIn::new().mapper(), 700);
        // Not by way of the communicator, which could wait for what spins.
        println!("over");
        std::process::exit(0);
    });
}

/// One rank's memory of `device 0`, given to a broadcast of three: why it is refused, with nothing launched on any.
fn refused(driver: &StandIn, comm: &Communicator<Cuda>, address: u64, bytes: usize) -> Error {
    let others = [1, 2].map(|rank| comm.buffer::<u8>(rank, bytes).expect("buffer"));
    driver.arm("");
    let at = [address, others[0].address(), others[1].address()];
    let error = mapped_memory::broadcast(comm, &at, bytes / 4, 1).expect_err("refused");
    assert_eq!((driver.calls_of("cuLaunchKernelEx"), comm.failure()), (0, None));
    error
}

/// Whatever else a driver knows: let in, or refused by name.
#[test]
fn memory_of_every_other_kind() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let (driver, comm) = (StandIn::new(), build(3).expect("communicator"));
        let primary = driver.primary(0);
        let wrong = |address: u64, bytes: usize, what: &str| {
            let error = refused(&driver, &comm, address, bytes);
            let Error::InvalidArgument { argument: "output", rank: Some(Rank(0)), got, .. } = &error else {
                panic!("{error}")
            };
            assert!(got.contains(what), "{error}");
        };
        let allocate = |function: &str, flags: c_int| {
            let mut address = 0u64;
            // SAFETY: as the driver declares those that are called so; one without flags does not look at them.
            let call = unsafe { driver.get::<unsafe extern "C" fn(&mut u64, usize, c_int) -> c_int>(function) };
            // SAFETY: likewise; a local.
            assert_eq!(unsafe { call(&mut address, 4096, flags) }, 0, "{function}");
            address
        };
        // Plain, two side by side in numbers at least.
        driver.call("cuCtxSetCurrent", primary, 0);
        let plain = allocate("cuMemAlloc_v2", 0);
        wrong(plain, 4100, "4096 bytes from ");
        wrong(plain + 4000, 100, "96 bytes from ");
        // Managed: its pages move between devices.
        wrong(allocate("cuMemAllocManaged", 1), 4096, "managed memory at ");
        // Of the host: pinned, and registered.
        let pinned = Cuda::allocate(&Cuda::open(0).expect("device"), crossccl::MemoryKind::Host, 4096).expect("memory");
        wrong(pinned, 4096, "host memory at ");
        let mut here = vec![0u8; 4096];
        // SAFETY: as the driver declares it; the vector lives on.
        unsafe {
            let register = driver.get::<unsafe extern "C" fn(*mut u8, usize, c_int) -> c_int>("cuMemHostRegister_v2");
            assert_eq!(register(here.as_mut_ptr(), here.len(), 0), 0);
        }
        wrong(here.as_ptr() as u64, 4096, "host memory at ");
        // Of another context, even on the device itself.
        driver.foreign(0);
        wrong(
            allocate("cuMemAlloc_v2", 0),
            4096,
            "which they do not reach (the driver has no address of it for device 0)",
        );
        // Imported from another process: what the rank's device opened, and no peer.
        driver.call("cuCtxSetCurrent", primary, 0);
        let mut imported = 0u64;
        // SAFETY: as the driver declares it; a local.
        unsafe {
            type Open = unsafe extern "C" fn(&mut u64, [u8; 64], c_int) -> c_int;
            assert_eq!(driver.get::<Open>("cuIpcOpenMemHandle_v2")(&mut imported, [0; 64], 1), 0);
        }
        let error = refused(&driver, &comm, imported, 4096);
        let Error::NotPeerAccessible { argument: "output", rank: Rank(0), peer: Rank(1), reason, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(reason, "the driver has no address of it for device 1");
        // It is enough for a rank that has no peers.
        let alone = Communicator::<Cuda>::builder(0..1).build().expect("communicator");
        assert_eq!(mapped_memory::broadcast(&alone, &[imported], 1000, 0), Ok(()));
        // A pool that is not let others in.
        driver.arm("");
        let pooled = driver.pool_memory(comm.stream(0).expect("a rank"), 4096);
        driver.arm("cuMemPoolSetAccess:1:801");
        let others = [1, 2].map(|rank| driver.pool_memory(comm.stream(rank).expect("a rank"), 4096));
        let error = mapped_memory::broadcast(&comm, &[pooled, others[0], others[1]], 1024, 1).expect_err("refused");
        assert_eq!((driver.calls_of("cuLaunchKernelEx"), comm.failure()), (0, None));
        let Error::NotPeerAccessible { rank: Rank(0), peer: Rank(1), reason, .. } = &error else { panic!("{error}") };
        assert_eq!(reason, "cuMemPoolSetAccess: CUDA_ERROR_NOT_SUPPORTED");
        mapped_memory::broadcast(&comm, &[pooled, others[0], others[1]], 1024, 1)
            .expect("asked again, it lets them in");
        assert_eq!(mapped_memory::broadcast(&comm, &[plain, others[0], others[1]], 1024, 1), Ok(()));
        works(&comm);
    });
}

/// An allocation is known again by one question, and mapped memory by one a reader more: this stands in front of each
/// launch. Another kind of memory at the same address is not taken for what was there.
#[test]
fn questions_about_memory_are_few() {
    alone(&[("STANDIN_DEVICES", "2")], || {
        let (driver, comm) = (StandIn::new(), build(2).expect("communicator"));
        let contexts = [0, 1].map(|device| driver.primary(device));
        let asked = |at: [u64; 2]| {
            for _ in 0..2 {
                driver.arm("");
                mapped_memory::broadcast(&comm, &at, 1000, 1).expect("outcome");
            }
            [
                "cuPointerGetAttributes",
                "cuPointerGetAttribute",
                "cuMemGetAccess",
                "cuMemSetAccess",
                "cuMemPoolSetAccess",
            ]
            .map(|function| driver.calls_of(function))
        };
        let mut plain = [0u64; 2];
        let allocate = |address: &mut u64| {
            // SAFETY: as the driver declares it.
            unsafe {
                let call = driver.get::<unsafe extern "C" fn(&mut u64, usize) -> c_int>("cuMemAlloc_v2");
                assert_eq!(call(address, 1 << 20), 0);
            }
        };
        for (device, address) in plain.iter_mut().enumerate() {
            driver.call("cuCtxSetCurrent", contexts[device], 0);
            allocate(address);
        }
        assert_eq!(asked(plain), [2, 0, 0, 0, 0]);
        assert_eq!(asked(plain.map(|at| at + 4096)), [2, 0, 0, 0, 0]);
        let pooled = [0, 1].map(|rank| driver.pool_memory(comm.stream(rank).expect("a rank"), 4000));
        assert_eq!(asked(pooled), [2, 0, 0, 0, 0]);
        let mapper = driver.mapper();
        let mapped = [0, 1].map(|rank| mapper.range(rank) + mapped_memory::PAGE as u64);
        assert_eq!(asked(mapped.map(|at| at + 2 * mapped_memory::PAGE as u64)), [4, 0, 4, 0, 0]);
        // Over two pieces.
        assert_eq!(asked(mapped.map(|at| at + 3000)), [6, 0, 8, 0, 0]);

        let other = comm.buffer::<u32>(1, 1000).expect("buffer");
        let found = (0..100).any(|_| {
            driver.call("cuCtxSetCurrent", contexts[0], 0);
            // SAFETY: as the driver declares it; nothing uses it any more.
            unsafe { assert_eq!(driver.get::<unsafe extern "C" fn(u64) -> c_int>("cuMemFree_v2")(plain[0]), 0) };
            let mut again = 0;
            driver.foreign(0);
            allocate(&mut again);
            if again != plain[0] {
                driver.call("cuCtxSetCurrent", contexts[0], 0);
                allocate(&mut plain[0]);
                mapped_memory::broadcast(&comm, &[plain[0], other.address()], 1000, 1).expect("outcome");
                return false;
            }
            let outcome = mapped_memory::broadcast(&comm, &[again, other.address()], 1000, 1);
            assert!(matches!(outcome, Err(Error::InvalidArgument { argument: "output", .. })), "{outcome:?}");
            true
        });
        assert!(found, "no memory came back under its old address");
        works(&comm);
    });
}

/// Any one question about memory, or grant of it, fails.
#[test]
fn any_call_about_mapped_and_pooled_memory_may_fail() {
    for_each_call("2", || {
        let (driver, comm) = (StandIn::new(), build(2).expect("communicator"));
        works(&comm);
        let stream = |rank| comm.stream(rank).expect("a rank").clone();
        let mapper = driver.mapper();
        let start = mapper.range(0);
        let at = [start + 2 * mapped_memory::PAGE as u64 - 2000, driver.pool_memory(&stream(1), 4000)];
        mapped_memory::write::<Cuda>(&stream(1), at[1], 9, 1000);
        let streams = [stream(0), stream(1)];
        let raw = at.map(|at| RawRank::new(at, at));
        // SAFETY: the memory lives as long as the process.
        let launched =
            fails_once(&driver, || unsafe { comm.broadcast_raw(&raw, &streams, 1000, DType::U32, 1)?.wait() });
        match comm.reset() {
            Ok(()) => {
                mapped_memory::broadcast(&comm, &at, 1000, 1).expect("the fault is over");
                assert_eq!(mapped_memory::read::<Cuda>(&stream(0), at[0], 1000), [9; 1000]);
                drop((streams, comm));
                tell(&driver.alive());
            }
            Err(Error::Poisoned { cause }) => {
                assert_eq!(Some(*cause), launched);
                println!("alive: not compared");
            }
            Err(other) => panic!("{other}"),
        }
    });
}

/// Case D13: whatever context the caller has, calls work on the rank's device and leave the thread as it was.
#[test]
fn d13_the_callers_context_is_not_touched() {
    alone(&[("STANDIN_DEVICES", "3")], || {
        let driver = StandIn::new();
        for own in [None, Some(2), Some(0)] {
            if let Some(device) = own {
                driver.foreign(device);
            }
            let before = driver.thread();
            let same = |what: &str| assert_eq!(driver.thread(), before, "{what}");
            assert_eq!(Cuda::device_count(), Ok(3));
            same("device_count");
            let devices: Vec<_> = (0..3).map(|d| Cuda::open(d).expect("device")).collect();
            same("open");
            let comm = Communicator::<Cuda>::builder([]).devices(devices.clone()).build().expect("communicator");
            same("build");
            let mut data: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[r as u32; 300]).expect("buffer")).collect();
            same("buffer_from");
            data[0].write(&[7; 300]).expect("write");
            same("write");
            data[0].fill_bytes(1).expect("fill");
            same("fill");
            let flight = comm.broadcast_in_place(&mut data, 1).expect("launch");
            same("broadcast");
            flight.wait().expect("outcome");
            same("wait");
            assert_eq!(data[2].to_vec().expect("read"), [1; 300]);
            same("read");
            comm.reduce_scatter_in_place(&mut data, ReduceOp::Sum).expect("launch").wait().expect("outcome");
            same("reduce_scatter");
            let streams: Vec<_> = devices.iter().map(|d| Cuda::create_stream(d).expect("stream")).collect();
            same("create_stream");
            let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
            // SAFETY: the buffers live until after the last wait.
            unsafe {
                comm.broadcast_raw(&raw, &streams, 300, DType::U32, 2).expect("launch").wait().expect("outcome");
                same("broadcast_raw");
                let graph = comm.capture(&streams, || comm.broadcast_raw(&raw, &streams, 300, DType::U32, 0)?.wait());
                same("capture");
                let graph = graph.expect("graph");
                graph.launch().expect("launch").wait().expect("outcome");
                same("launch of a graph");
                drop(graph);
                same("the drop of a graph");
            }
            comm.abort();
            same("abort");
            assert!(comm.broadcast_in_place(&mut data, 1).is_err());
            same("a refused call");
            comm.reset().expect("reset");
            same("reset");
            drop((data, streams));
            same("the drop of buffers and streams");
            let ranks = comm.into_ranks();
            let mut alone = ranks[0].buffer::<u8>(10).expect("buffer");
            drop(
                ranks[0].broadcast_in_place(
                    &mut alone,
                    crossccl::Broadcast::from_root(1).timeout(Duration::from_millis(50)),
                ),
            );
            same("a time-out");
            drop((alone, ranks));
            same("the drop of a communicator");
        }
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

/// Case H6.
#[test]
fn h6_kernels_that_are_not_built_for_the_device() {
    alone(&[], || {
        let driver = StandIn::new();
        driver.arm("cuModuleLoadData:1:209");
        let outcome = build(2).map(drop);
        let Err(Error::Driver { call: "cuModuleLoadData", name, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(name.starts_with("CUDA_ERROR_NO_BINARY_FOR_GPU; the device Stand-in 0 is of compute capability 9.0, the driver of CUDA 13.0, the kernels are built for "), "{name}");
    });
}

/// Launches that may start before the one before them is over: only where it was asked for, each rank has a device, and
/// the code that the driver took waits. (The stand-in ends the process for code that does not.)
#[test]
fn launches_overlap_where_their_code_waits() {
    let variants: [(&[(&str, &str)], &str); 4] = [
        (&[("STANDIN_DEVICES", "2")], "overlapping 4"),
        // The driver made the code of older PTX.
        (&[("STANDIN_DEVICES", "2"), ("STANDIN_PTX_VERSION", "80")], "overlapping 0"),
        (&[("STANDIN_DEVICES", "2"), ("STANDIN_CAPABILITY", "8")], "overlapping 0"),
        (&[("STANDIN_DEVICES", "1")], "overlapping 0"),
    ];
    for (machine, expected) in variants {
        let said = alone(machine, || {
            let comm =
                Communicator::<Cuda>::builder_for_ranks(2).timeout(Duration::from_secs(20)).build().expect("ranks");
            let mut data = [0, 1].map(|r| comm.buffer_from(r, &[r as u32; 100]).expect("buffer"));
            for overlap in [Overlap::Off, Overlap::AtEnd, Overlap::AtBeginning] {
                let what = Broadcast::from_root(1).overlap(overlap);
                comm.broadcast_in_place(&mut data, what).expect("launch").wait().expect("outcome");
            }
            assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
            // SAFETY: as the stand-in declares it.
            let count = unsafe { StandIn::new().get::<unsafe extern "C" fn() -> c_int>("standin_overlapping")() };
            println!("overlapping {count}");
        });
        assert!(said.contains(expected), "{machine:?}: {said}");
    }
}

/// A profiler that has named its library sees each call as one range, under the caller's label, whatever becomes of it.
#[test]
fn a_profiler_sees_a_range_a_call() {
    let library = if env::var(BODY).is_ok() { "" } else { profiler::library() };
    alone(&[("STANDIN_DEVICES", "2"), (NVTX, library)], || {
        let (driver, comm) = (StandIn::new(), build(2).expect("communicator"));
        let profiler = StandInProfiler::new(&env::var(NVTX).expect("a library"));
        assert_eq!(profiler.told(), [""; 0], "building a communicator is no call");
        let mut data = [0, 1].map(|r| comm.buffer_from(r, &[r as u32; 100]).expect("buffer"));
        let labelled = |label: &'static str| Broadcast::from_root(0).label(label);
        comm.broadcast_in_place(&mut data, labelled("weights")).expect("launch").wait().expect("outcome");
        assert_eq!(profiler.told(), ["domain crossccl", "begin crossccl|broadcast: weights|400", "end crossccl"]);
        let what = ReduceScatter::new(ReduceOp::Sum);
        comm.reduce_scatter_in_place(&mut data, what).expect("launch").wait().expect("outcome");
        assert_eq!(profiler.told(), ["begin crossccl|reduce_scatter|400", "end crossccl"]);
        // What ends a string of C is left out.
        comm.broadcast_in_place(&mut data, labelled("la\0yer é")).expect("launch").wait().expect("outcome");
        assert_eq!(profiler.told(), ["begin crossccl|broadcast: layer é|400", "end crossccl"]);
        // What is refused is no call; one whose second launch fails ends as any does.
        assert!(comm.broadcast_in_place(&mut data, 2).is_err());
        assert_eq!(profiler.told(), [""; 0]);
        driver.arm("cuLaunchKernelEx:2:719");
        assert!(comm.broadcast_in_place(&mut data, labelled("fails")).is_err());
        assert_eq!(driver.fired(), "cuLaunchKernelEx");
        driver.arm("");
        assert_eq!(profiler.told(), ["begin crossccl|broadcast: fails|400", "end crossccl"]);
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
        assert_eq!(told, [["begin crossccl|broadcast: a rank's|400"; 2], ["end crossccl"; 2]].concat());
    });
}

/// One that is not there, does not take part or takes no ranges: a warning, once, and all works.
#[test]
fn a_profiler_that_takes_no_ranges() {
    let works_without = || {
        tracing_subscriber::fmt().with_ansi(false).init();
        assert!(Cuda::profiler().is_none());
        works(&build(2).expect("communicator"));
    };
    let library = if env::var(BODY).is_ok() { "" } else { profiler::library() };
    let none: [(&str, &str, &[&str]); 5] = [
        ("", "", &[]),
        ("/nonexistent", "", &["NVTX_INJECTION64_PATH=/nonexistent: ", "No such file"]),
        ("libc.so.6", "", &["NVTX_INJECTION64_PATH=libc.so.6: no library of a profiler"]),
        (library, "absent", &["the profiler does not take part"]),
        (library, "marks", &["the profiler takes no ranges"]),
    ];
    for (library, kind, words) in none {
        let machine = [("STANDIN_DEVICES", "2"), (NVTX, library), ("STANDIN_PROFILER", kind)];
        let said = alone(&machine, works_without);
        assert_eq!(said.matches("no ranges for a profiler").count(), words.len().min(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

#[test]
fn a_stream_of_another_device_is_refused() {
    alone(&[("STANDIN_DEVICES", "2")], || {
        let (driver, comm) = (StandIn::new(), build(2).expect("communicator"));
        // SAFETY: the streams live as long as what is enqueued there.
        let take = |device: &_, stream: &CudaStream| unsafe { CudaStream::from_raw(device, stream.handle()) };
        foreign_stream::is_refused(&comm, "cuStreamGetCtx", take, |call| driver.arm(call), || driver.fired());
        works(&comm);
    });
}

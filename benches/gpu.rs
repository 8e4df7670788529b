//! Speed on the CUDA devices of this machine, by graph replay, so that no launch is in the numbers: the time of one
//! call is the difference between graphs of many calls and of few, divided by the calls between them, the median of
//! several. `cargo bench --features cuda --bench gpu -- [RANKS [BYTES [BLOCKS]]]`, each a list with commas: ranks
//! beyond the devices share them. Calls go round over places in larger memory, so that they find no data in a cache
//! that large calls would not.
//!
//! Beside the collectives, in the same run: the driver's copies that move the bytes of a broadcast, one after the other
//! in a graph; where ranks share one device and CROSSCCL_PLAIN names what nvcc made of `plain.cu` (`scripts/gpu-tests
//! pack` does), one kernel without a rendezvous that moves the same bytes, and as many empty ones as there are ranks;
//! where every rank has a device and CROSSCCL_NCCL names its library, NCCL, in graphs, with plain memory and with
//! registered windows; what a call costs the host, and what its parts do; how long it takes to set up.

use std::{
    ffi::{CString, c_int, c_void},
    time::{Duration, Instant},
};

use crossccl::{
    Algorithm, Backend, Broadcast, Communicator, Cuda, DType, Error, Fault, RawRank, ReduceOp, ReduceScatter, Result,
};
use cudarc::driver::sys;

type Stream = <Cuda as Backend>::Stream;

/// Bytes that a round over all places of a rank's memory goes through: twice what the cache of an H200 holds.
const COLD: usize = 128 << 20;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let list = |at: usize, default: &[usize]| -> Vec<usize> {
        let given = arguments.get(at).map(|text| text.split(',').filter_map(|n| n.parse().ok()).collect::<Vec<_>>());
        given.filter(|l| !l.is_empty()).unwrap_or_else(|| default.to_vec())
    };
    let sizes: Vec<usize> = (0..=10).map(|i| 1024 << (2 * i)).collect();
    let devices = match Cuda::device_count() {
        Ok(devices) => devices,
        Err(fault) => {
            println!("no CUDA device: {}: {}", fault.call, fault.name);
            return Ok(());
        }
    };
    println!("# {devices} devices; us a call in a graph; GB/s are bytes of the tensor over time");
    for ranks in list(0, &[2, 4, 8]) {
        let begin = Instant::now();
        let comm = Communicator::<Cuda>::builder_for_ranks(ranks).timeout(Duration::from_secs(10)).build()?;
        println!("# {ranks} ranks on {} devices: set up in {:?}", ranks.min(devices), begin.elapsed());
        let plain = if devices == 1 { Plain::load()? } else { None };
        let nccl = if devices >= ranks { Nccl::load(&comm)? } else { None };
        for bytes in list(1, &sizes) {
            for blocks in list(2, &[0]) {
                let every = [
                    Case::Broadcast(Algorithm::Auto),
                    Case::Broadcast(Algorithm::LowLatency),
                    Case::Broadcast(Algorithm::OneStage),
                    Case::Broadcast(Algorithm::TwoStageDirect),
                    Case::Broadcast(Algorithm::TwoStageStaged),
                    Case::ReduceScatter(DType::F32, Algorithm::Auto),
                    Case::ReduceScatter(DType::BF16, Algorithm::Auto),
                    Case::ReduceScatter(DType::F32, Algorithm::LowLatency),
                    Case::ReduceScatter(DType::F32, Algorithm::OneStage),
                ];
                let most = crossccl::low_latency_bytes(ranks);
                for case in every.iter().filter(|case| case.packet_bytes(bytes, ranks).is_none_or(|b| b <= most)) {
                    match row(&comm, bytes, blocks, case, plain.as_ref()) {
                        Ok(line) => println!("{line}"),
                        Err(error) => {
                            println!("{bytes} bytes, {blocks} blocks: {error}");
                            comm.reset()?;
                        }
                    }
                }
            }
            if let Some(nccl) = &nccl {
                for dtype in [None, Some(DType::F32), Some(DType::BF16)] {
                    println!("{}", nccl.row(&comm, bytes, dtype)?);
                }
            }
            let line =
                |name: String, time| println!("{ranks} ranks {bytes:>11} B  {name:<36} {:>10.2} us", micros(time));
            line(format!("{} copies in turn", ranks - 1), copies(&comm, bytes)?);
        }
        if let Some(plain) = &plain {
            let memory = Memory::new(&comm, 1024, 0, 1)?;
            let empty = |stream: &Stream, _: usize| plain.launch(stream, "plain_empty", 1, &[], &[], 0);
            let time = per_call(&memory.streams, 1024, |rank, call| empty(&memory.streams[rank], call))?;
            println!("{ranks} ranks, empty kernels: {:.2} us", micros(time));
        }
        host(&comm, plain.as_ref())?;
        for bytes in [1 << 10, 64 << 10, 1 << 20] {
            for dtype in [None, Some(DType::F32)] {
                println!("{}", eager(&comm, nccl.as_ref(), bytes, dtype)?);
            }
        }
    }
    Ok(())
}

fn told<T>(answer: std::result::Result<T, Fault>) -> Result<T> {
    answer.map_err(|f| Error::Unsupported { operation: "bench", what: format!("{}: {}", f.call, f.name) })
}

enum Case {
    Broadcast(Algorithm),
    ReduceScatter(DType, Algorithm),
}

impl Case {
    /// What its packets carry to one rank, of calls of `bytes` bytes.
    fn packet_bytes(&self, bytes: usize, ranks: usize) -> Option<usize> {
        match self {
            Case::Broadcast(Algorithm::LowLatency) => Some(bytes),
            Case::ReduceScatter(_, Algorithm::LowLatency) => Some(bytes.div_ceil(ranks)),
            _ => None,
        }
    }
}

/// Each rank's buffers, `places` times what a call needs.
struct Memory {
    streams: Vec<Stream>,
    send: Vec<u64>,
    recv: Vec<u64>,
    step: (usize, usize),
    places: usize,
    _buffers: Vec<crossccl::Buffer<Cuda, u8>>,
}

impl Memory {
    /// `recv` of 0: in place.
    fn new(comm: &Communicator<Cuda>, send: usize, recv: usize, places: usize) -> Result<Memory> {
        let step = (send.next_multiple_of(1024), recv.next_multiple_of(1024));
        let (mut inputs, mut outputs, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for rank in 0..comm.ranks() {
            let input = comm.buffer::<u8>(rank, step.0 * places)?;
            inputs.push(input.address());
            outputs.push(input.address());
            buffers.push(input);
            if recv > 0 {
                let output = comm.buffer::<u8>(rank, step.1 * places)?;
                outputs[rank] = output.address();
                buffers.push(output);
            }
        }
        let streams = (0..comm.ranks()).filter_map(|r| comm.stream(r).cloned()).collect();
        Ok(Memory { streams, send: inputs, recv: outputs, step, places, _buffers: buffers })
    }

    fn at(&self, call: usize) -> Vec<RawRank> {
        let place = call % self.places;
        let step = (self.step.0 * place, if self.step.1 == 0 { self.step.0 } else { self.step.1 } * place);
        let ranks = self.send.iter().zip(&self.recv);
        ranks.map(|(s, r)| RawRank::new(s + step.0 as u64, r + step.1 as u64)).collect()
    }
}

fn row(comm: &Communicator<Cuda>, bytes: usize, blocks: usize, case: &Case, plain: Option<&Plain>) -> Result<String> {
    let ranks = comm.ranks();
    let places = (COLD / bytes).clamp(1, calls(bytes).1);
    let (name, time, plan, beside) = match case {
        Case::Broadcast(algorithm) => {
            let memory = Memory::new(comm, bytes, 0, places)?;
            let mut what = Broadcast::from_root(0).algorithm(*algorithm);
            if blocks > 0 {
                what = what.max_blocks(blocks as u32);
            }
            let plan = comm.plan_broadcast(bytes, DType::U8, what.clone())?;
            let time = collective(comm, &memory, bytes, |call| {
                // SAFETY: the memory lives until after the waits.
                unsafe { comm.broadcast_raw(&memory.at(call), &memory.streams, bytes, DType::U8, what.clone())?.wait() }
            })?;
            let beside = plain.filter(|_| *algorithm == Algorithm::OneStage).map(|plain| {
                per_call(&memory.streams[..1], bytes, |_, call| {
                    let at = memory.at(call);
                    let to: Vec<u64> = at[1..].iter().map(|r| r.recv).collect();
                    let name = format!("plain_fan_out_{}", ranks - 1);
                    plain.launch(&memory.streams[0], &name, plain.blocks, &[at[0].send], &to, bytes)
                })
            });
            (format!("broadcast {}", how(*algorithm, plan.algorithm)), time, plan, beside.transpose()?)
        }
        Case::ReduceScatter(dtype, algorithm) => {
            let count = bytes / dtype.size();
            let memory = Memory::new(comm, bytes, bytes.div_ceil(ranks) + 16, places)?;
            let mut what = ReduceScatter::new(ReduceOp::Sum).algorithm(*algorithm);
            if blocks > 0 {
                what = what.max_blocks(blocks as u32);
            }
            let plan = comm.plan_reduce_scatter(0, count, *dtype, what.clone())?;
            let counts = vec![count; ranks];
            let time = collective(comm, &memory, bytes, |call| {
                let at = memory.at(call);
                // SAFETY: as above.
                unsafe { comm.reduce_scatter_raw(&at, &memory.streams, &counts, *dtype, what.clone())?.wait() }
            })?;
            let whole = plain.map(|_| Memory::new(comm, 1024, bytes, places)).transpose()?;
            let beside = plain.zip(whole.as_ref()).map(|(plain, whole)| {
                per_call(&memory.streams[..1], bytes, |_, call| {
                    let from: Vec<u64> = memory.at(call).iter().map(|r| r.send).collect();
                    let name = format!("plain_fan_in_{dtype}_{ranks}");
                    plain.launch(&memory.streams[0], &name, plain.blocks, &from, &[whole.at(call)[0].recv], bytes)
                })
            });
            (format!("reduce-scatter {dtype} {}", how(*algorithm, plan.algorithm)), time, plan, beside.transpose()?)
        }
    };
    let rate = bytes as f64 / time.as_secs_f64() / 1e9;
    let beside = beside.map_or_else(String::new, |p| {
        format!("  plain {:>9.2} us, {:.2} of it", micros(p), time.as_secs_f64() / p.as_secs_f64())
    });
    Ok(format!(
        "{ranks} ranks {bytes:>11} B  {name:<36} {:>10.2} us {rate:>9.1} GB/s  {:>3} blocks{beside}",
        micros(time),
        plan.blocks
    ))
}

/// What was asked for, and what that came to.
fn how(asked: Algorithm, chosen: Algorithm) -> String {
    if asked == Algorithm::Auto { format!("(auto: {chosen})") } else { chosen.to_string() }
}

/// A call of all ranks, eager, from one thread: bursts of 50, the last waited for; NCCL's beside it, grouped.
fn eager(comm: &Communicator<Cuda>, nccl: Option<&Nccl>, bytes: usize, dtype: Option<DType>) -> Result<String> {
    let ranks = comm.ranks();
    let memory = Memory::new(comm, bytes, dtype.map_or(0, |_| bytes.div_ceil(ranks) + 16), 1)?;
    let at = memory.at(0);
    let median = |call: &dyn Fn() -> Result<()>| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..21 {
            let begin = Instant::now();
            (0..50).try_for_each(|_| call())?;
            for stream in &memory.streams {
                told(Cuda::record(stream).and_then(|e| Cuda::wait(&e, None)))?;
            }
            times.push(micros(begin.elapsed()) / 50.0);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[10])
    };
    let counts = vec![bytes / dtype.map_or(1, DType::size); ranks];
    // SAFETY: the memory lives until after the waits.
    let ours = median(&|| unsafe {
        match dtype {
            None => comm.broadcast_raw(&at, &memory.streams, bytes, DType::U8, 0).map(drop),
            Some(dtype) => comm.reduce_scatter_raw(&at, &memory.streams, &counts, dtype, ReduceOp::Sum).map(drop),
        }
    })?;
    let theirs = nccl.map(|nccl| {
        median(&|| match dtype {
            None => nccl.broadcast(&at, &memory.streams, bytes),
            Some(dtype) => nccl.reduce_scatter(&at, &memory.streams, counts[0], dtype),
        })
    });
    let name = dtype.map_or_else(|| "broadcast".into(), |d| format!("reduce-scatter {d}"));
    Ok(format!(
        "{ranks} ranks {bytes:>11} B  eager {name:<30} {ours:>10.2} us{}",
        theirs.transpose()?.map_or_else(String::new, |t| format!(", NCCL {t:.2}"))
    ))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Calls of the shorter and of the longer graph.
fn calls(bytes: usize) -> (usize, usize) {
    match bytes {
        0..=0x10_0000 => (5, 45),
        0x10_0001..=0x400_0000 => (2, 12),
        _ => (1, 5),
    }
}

/// The median difference of `time` of many calls and of few, for one call.
fn difference(bytes: usize, mut time: impl FnMut(bool) -> Result<Duration>) -> Result<Duration> {
    let (few, many) = calls(bytes);
    for _ in 0..3 {
        time(false)?;
        time(true)?;
    }
    let mut times = Vec::new();
    for _ in 0..9 {
        let (a, b) = (time(false)?, time(true)?);
        times.push(b.saturating_sub(a) / (many - few) as u32);
    }
    times.sort();
    Ok(times[times.len() / 2])
}

fn collective(
    comm: &Communicator<Cuda>,
    memory: &Memory,
    bytes: usize,
    call: impl Fn(usize) -> Result<()>,
) -> Result<Duration> {
    let (few, many) = calls(bytes);
    // SAFETY: the caller keeps the memory.
    let graph = |calls: usize| unsafe { comm.capture(&memory.streams, || (0..calls).try_for_each(&call)) };
    let graphs = [graph(few)?, graph(many)?];
    difference(bytes, |long| {
        let begin = Instant::now();
        // SAFETY: as above.
        unsafe { graphs[usize::from(long)].launch()? }.wait()?;
        Ok(begin.elapsed())
    })
}

/// What `call(rank, number)` enqueues on the stream of each rank, likewise.
fn per_call(streams: &[Stream], bytes: usize, call: impl Fn(usize, usize) -> Result<()>) -> Result<Duration> {
    let (few, many) = calls(bytes);
    let graph = |calls: usize, rank: usize| {
        told(Cuda::begin_capture(&streams[rank]))?;
        let outcome = (0..calls).try_for_each(|n| call(rank, n));
        let graph = told(Cuda::end_capture(&streams[rank]));
        outcome.and(graph)
    };
    let graphs = [few, many].map(|calls| (0..streams.len()).map(|rank| graph(calls, rank)).collect::<Result<Vec<_>>>());
    let [few, many] = graphs;
    let graphs = [few?, many?];
    difference(bytes, |long| run_graphs(streams, &graphs[usize::from(long)]))
}

/// NCCL, by its C interface, from the library that CROSSCCL_NCCL names: a communicator a rank, all driven by this
/// thread.
struct Nccl {
    library: libloading::Library,
    comms: Vec<*mut c_void>,
}

impl Nccl {
    /// `None` where no library is named.
    fn load(comm: &Communicator<Cuda>) -> Result<Option<Nccl>> {
        let Some(path) = std::env::var_os("CROSSCCL_NCCL") else { return Ok(None) };
        let error = |e: libloading::Error| Error::Unsupported { operation: "CROSSCCL_NCCL", what: e.to_string() };
        // SAFETY: NCCL's library has initialisers of its own and no requirements.
        let library = unsafe { libloading::Library::new(&path) }.map_err(error)?;
        let mut nccl = Nccl { library, comms: vec![std::ptr::null_mut(); comm.ranks()] };
        let devices: Vec<c_int> = (0..comm.ranks())
            .filter_map(|r| comm.stream(r))
            .map(|s| Cuda::ordinal(&Cuda::device_of(s)) as c_int)
            .collect();
        type Init = unsafe extern "C" fn(*mut *mut c_void, c_int, *const c_int) -> c_int;
        let mut version = 0;
        // SAFETY: as NCCL's header declares them; as many places as ranks.
        unsafe {
            told_by_nccl(
                "ncclGetVersion",
                nccl.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion")?(&mut version),
            )?;
            let init = nccl.get::<Init>(b"ncclCommInitAll")?;
            let comms = nccl.comms.as_mut_ptr();
            told_by_nccl("ncclCommInitAll", init(comms, devices.len() as c_int, devices.as_ptr()))?;
        }
        println!("# NCCL {version}");
        Ok(Some(nccl))
    }

    /// # Safety
    /// `F` is the function's type.
    unsafe fn get<F: Copy>(&self, name: &[u8]) -> Result<F> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.library.get::<F>(name) };
        found.map(|f| *f).map_err(|e| Error::Unsupported { operation: "NCCL", what: e.to_string() })
    }

    /// Memory that can be registered.
    fn allocate(&self, device: &<Cuda as Backend>::Device, bytes: usize) -> Result<u64> {
        let _entered = told(Cuda::enter(device))?;
        let mut address = std::ptr::null_mut();
        // SAFETY: as NCCL's header declares it.
        unsafe {
            let allocate = self.get::<unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int>(b"ncclMemAlloc")?;
            told_by_nccl("ncclMemAlloc", allocate(&mut address, bytes))?;
        }
        Ok(address as u64)
    }

    fn group(&self, calls: impl FnOnce() -> Result<()>) -> Result<()> {
        type Plain = unsafe extern "C" fn() -> c_int;
        // SAFETY: as NCCL's header declares them.
        let (start, end) = unsafe { (self.get::<Plain>(b"ncclGroupStart")?, self.get::<Plain>(b"ncclGroupEnd")?) };
        // SAFETY: no requirements.
        told_by_nccl("ncclGroupStart", unsafe { start() })?;
        let outcome = calls();
        // SAFETY: likewise.
        told_by_nccl("ncclGroupEnd", unsafe { end() })?;
        outcome
    }

    /// Windows over `addresses`, one a rank, each of `bytes`.
    fn windows(&self, addresses: &[u64], bytes: usize) -> Result<()> {
        type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut *mut c_void, c_int) -> c_int;
        // SAFETY: as NCCL's header declares it.
        let register = unsafe { self.get::<Register>(b"ncclCommWindowRegister")? };
        let mut windows = vec![std::ptr::null_mut(); addresses.len()];
        self.group(|| {
            for (rank, window) in windows.iter_mut().enumerate() {
                // NCCL_WIN_COLL_SYMMETRIC
                // SAFETY: the memory is the rank's, of that size, and stays.
                let code = unsafe { register(self.comms[rank], addresses[rank] as *mut c_void, bytes, window, 1) };
                told_by_nccl("ncclCommWindowRegister", code)?;
            }
            Ok(())
        })
    }

    fn broadcast(&self, at: &[RawRank], streams: &[Stream], bytes: usize) -> Result<()> {
        type Call =
            unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
        // SAFETY: as NCCL's header declares it.
        let call = unsafe { self.get::<Call>(b"ncclBroadcast")? };
        self.group(|| {
            for (rank, one) in at.iter().enumerate() {
                let (send, recv) = (one.send as *const c_void, one.recv as *mut c_void);
                // SAFETY: the memory lives until the streams are at rest. ncclUint8 is 1.
                let code =
                    unsafe { call(send, recv, bytes, 1, 0, self.comms[rank], streams[rank].handle() as *mut c_void) };
                told_by_nccl("ncclBroadcast", code)?;
            }
            Ok(())
        })
    }

    fn reduce_scatter(&self, at: &[RawRank], streams: &[Stream], count: usize, dtype: DType) -> Result<()> {
        type Call =
            unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
        // SAFETY: as NCCL's header declares it.
        let call = unsafe { self.get::<Call>(b"ncclReduceScatter")? };
        // ncclFloat32, ncclBfloat16
        let number = if dtype == DType::F32 { 7 } else { 9 };
        self.group(|| {
            for (rank, one) in at.iter().enumerate() {
                let (send, recv) = (one.send as *const c_void, one.recv as *mut c_void);
                let (each, stream) = (count / at.len(), streams[rank].handle() as *mut c_void);
                // SAFETY: the memory lives until the streams are at rest. ncclSum is 0.
                let code = unsafe { call(send, recv, each, number, 0, self.comms[rank], stream) };
                told_by_nccl("ncclReduceScatter", code)?;
            }
            Ok(())
        })
    }

    /// A line of its times in graphs, with plain and with registered memory, and of its calls on the host.
    fn row(&self, comm: &Communicator<Cuda>, bytes: usize, dtype: Option<DType>) -> Result<String> {
        let ranks = comm.ranks();
        let places = (COLD / bytes).clamp(1, calls(bytes).1);
        let plain = Memory::new(comm, bytes, dtype.map_or(0, |_| bytes.div_ceil(ranks) + 16), places)?;
        let time = |memory: &Memory| {
            together(&memory.streams, bytes, |call| match dtype {
                None => self.broadcast(&memory.at(call), &memory.streams, bytes),
                Some(dtype) => self.reduce_scatter(&memory.at(call), &memory.streams, bytes / dtype.size(), dtype),
            })
        };
        let usual = time(&plain)?;
        let whole = plain.step.0 * plain.places + plain.step.1 * plain.places;
        let mut addresses = Vec::new();
        for rank in 0..ranks {
            let device = Cuda::device_of(&plain.streams[rank]);
            addresses.push(self.allocate(&device, whole.next_multiple_of(1 << 21))?);
        }
        self.windows(&addresses, whole.next_multiple_of(1 << 21))?;
        let recv = if dtype.is_some() { (plain.step.0 * plain.places) as u64 } else { 0 };
        let registered = Memory {
            send: addresses.clone(),
            recv: addresses.iter().map(|a| a + recv).collect(),
            _buffers: Vec::new(),
            streams: plain.streams.clone(),
            ..plain
        };
        let symmetric = time(&registered)?;
        let name = dtype.map_or_else(|| "broadcast".into(), |d| format!("reduce-scatter {d}"));
        Ok(format!(
            "{ranks} ranks {bytes:>11} B  NCCL {name:<31} {:>10.2} us, registered windows {:>9.2} us",
            micros(usual),
            micros(symmetric)
        ))
    }
}

fn told_by_nccl(call: &'static str, code: c_int) -> Result<()> {
    let fault = || Error::Unsupported { operation: call, what: format!("NCCL answered {code}") };
    (code == 0).then_some(()).ok_or_else(fault)
}

/// What `call(number)` enqueues on all streams at once, in graphs.
fn together(streams: &[Stream], bytes: usize, call: impl Fn(usize) -> Result<()>) -> Result<Duration> {
    let (few, many) = calls(bytes);
    let capture = |calls: usize| {
        streams.iter().try_for_each(|stream| told(Cuda::begin_capture(stream)))?;
        let outcome = (0..calls).try_for_each(&call);
        let graphs: Vec<_> = streams.iter().map(|stream| told(Cuda::end_capture(stream))).collect();
        outcome.and(graphs.into_iter().collect::<Result<Vec<_>>>())
    };
    let graphs = [capture(few)?, capture(many)?];
    difference(bytes, |long| run_graphs(streams, &graphs[usize::from(long)]))
}

fn run_graphs(streams: &[Stream], graphs: &[<Cuda as Backend>::Graph]) -> Result<Duration> {
    let begin = Instant::now();
    for (stream, graph) in streams.iter().zip(graphs) {
        // SAFETY: whoever captured it keeps the memory.
        told(unsafe { Cuda::launch_graph(stream, graph) })?;
    }
    for stream in streams {
        told(Cuda::record(stream).and_then(|e| Cuda::wait(&e, None)))?;
    }
    Ok(begin.elapsed())
}

/// As many plain copies as a broadcast has receivers, each from the root's memory on its own rank's stream.
fn copies(comm: &Communicator<Cuda>, bytes: usize) -> Result<Duration> {
    let memory = Memory::new(comm, bytes, 0, (COLD / bytes).clamp(1, calls(bytes).1))?;
    per_call(&memory.streams[1..], bytes, |rank, call| {
        let at = memory.at(call);
        // SAFETY: the memory lives until after the waits.
        told(unsafe { Cuda::copy(&memory.streams[rank + 1], at[rank + 1].recv, at[0].send, bytes) })
    })
}

/// The kernels of `plain.cu`, on device 0.
struct Plain {
    module: sys::CUmodule,
    blocks: u32,
}

#[repr(C)]
struct Argument {
    from: [u64; 8],
    to: [u64; 8],
    bytes: u64,
    unused: [u64; 72],
}

fn driver(call: &'static str, result: sys::CUresult) -> Result<()> {
    let fault = || Error::Unsupported { operation: call, what: format!("{result:?}") };
    (result == sys::CUresult::CUDA_SUCCESS).then_some(()).ok_or_else(fault)
}

impl Plain {
    fn load() -> Result<Option<Plain>> {
        let Some(path) = std::env::var_os("CROSSCCL_PLAIN") else { return Ok(None) };
        let image = std::fs::read(&path).map_err(|e| Error::Unsupported {
            operation: "CROSSCCL_PLAIN",
            what: format!("{}: {e}", path.display()),
        })?;
        let _entered = told(Cuda::enter(&told(Cuda::open(0))?))?;
        let mut module = std::ptr::null_mut();
        // SAFETY: a local; the image is one of nvcc's, whole, and outlives the call.
        driver("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) })?;
        Ok(Some(Plain { module, blocks: 132 * 4 }))
    }

    fn launch(&self, stream: &Stream, name: &str, blocks: u32, from: &[u64], to: &[u64], bytes: usize) -> Result<()> {
        let _entered = told(Cuda::enter(&Cuda::device_of(stream)))?;
        let mut argument = Argument { from: [0; 8], to: [0; 8], bytes: bytes as u64, unused: [0; 72] };
        argument.from[..from.len()].copy_from_slice(from);
        argument.to[..to.len()].copy_from_slice(to);
        let name = CString::new(name).unwrap_or_default();
        let mut function = std::ptr::null_mut();
        // SAFETY: a local; the module is loaded.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr()) };
        driver("cuModuleGetFunction", found)?;
        let mut parameters: [*mut c_void; 1] = [(&raw mut argument).cast()];
        let stream = stream.handle() as sys::CUstream;
        // SAFETY: the kernels take one argument of this layout.
        driver("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                256,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}

/// What enqueuing one call of all ranks costs the host and what its parts do, bare launches beside it, and a call with
/// its wait. Medians of bursts of 50, between which everything comes to rest.
fn host(comm: &Communicator<Cuda>, plain: Option<&Plain>) -> Result<()> {
    let ranks = comm.ranks();
    let memory = Memory::new(comm, 1024, 0, 1)?;
    let at = memory.at(0);
    // SAFETY: the memory lives until after the waits.
    let call = || unsafe { comm.broadcast_raw(&at, &memory.streams, 1024, DType::U8, 0) };
    let burst = |what: &dyn Fn() -> Result<()>| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..21 {
            let begin = Instant::now();
            (0..50).try_for_each(|_| what())?;
            times.push(micros(begin.elapsed()) / 50.0);
            for stream in &memory.streams {
                told(Cuda::record(stream).and_then(|e| Cuda::wait(&e, None)))?;
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[10])
    };
    let each = |what: &dyn Fn(usize) -> Result<()>| burst(&|| (0..ranks).try_for_each(what));
    let device = |rank: usize| Cuda::device_of(&memory.streams[rank]);
    let enqueued = burst(&|| call().map(drop))?;
    let record = each(&|rank| told(Cuda::record(&memory.streams[rank])).map(drop))?;
    let capturing = each(&|rank| told(Cuda::is_capturing(&memory.streams[rank])).map(drop))?;
    let enter = each(&|rank| told(Cuda::enter(&device(rank))).map(drop))?;
    let devices: Vec<_> = (0..ranks).map(device).collect();
    let peers: Vec<_> = devices.iter().collect();
    let check = each(&|rank| {
        Cuda::check_memory(peers[rank], &peers, at[rank].recv, 1024)
            .map_err(|e| Error::Unsupported { operation: "check", what: format!("{e:?}") })
    })?;
    let bare = plain
        .map(|plain| {
            // The functions are looked up each time; what that costs is taken off.
            let launch = each(&|rank| plain.launch(&memory.streams[rank], "plain_empty", 1, &[], &[], 0))?;
            let enter = each(&|rank| plain.found(&memory.streams[rank]))?;
            Ok::<_, Error>(launch - enter)
        })
        .transpose()?;
    let mut times = (0..101)
        .map(|_| {
            let begin = Instant::now();
            call()?.wait()?;
            Ok(micros(begin.elapsed()))
        })
        .collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    println!("{ranks} ranks, 1 KiB broadcast: enqueued in {enqueued:.2} us, with its wait {:.2} us", times[50]);
    println!(
        "{ranks} ranks, of that: {check:.2} us a check of one address, {record:.2} events, {capturing:.2} capture queries, \
         {enter:.2} contexts; bare launches {}",
        bare.map_or_else(|| "not measured".into(), |b| format!("{b:.2}, ratio {:.2}", enqueued / b))
    );
    Ok(())
}

impl Plain {
    /// All of [`launch`](Self::launch) but the launch.
    fn found(&self, stream: &Stream) -> Result<()> {
        let _entered = told(Cuda::enter(&Cuda::device_of(stream)))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: a local; the module is loaded.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, self.module, c"plain_empty".as_ptr()) };
        driver("cuModuleGetFunction", found)
    }
}

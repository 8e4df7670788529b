//! Speed on the CUDA devices of this machine, by graph replay, so that no launch is in the numbers: the time of one
//! call is the difference between graphs of many calls and of few, divided by the calls between them, the median of
//! several. `cargo bench --features cuda --bench gpu -- [RANKS [BYTES [BLOCKS]]]`, each a list with commas: ranks
//! beyond the devices share them. Beside the collectives, in the same run: plain copies that move the bytes of a
//! broadcast, one after the other in a graph; what a call costs the host; how long it takes to set up.

use std::time::{Duration, Instant};

use crossccl::{
    Algorithm, Backend, Broadcast, Communicator, Cuda, DType, Error, Graph, RawRank, ReduceOp, ReduceScatter, Result,
};

type Stream = <Cuda as Backend>::Stream;

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
        for bytes in list(1, &sizes) {
            for blocks in list(2, &[0]) {
                for line in [
                    row(&comm, bytes, blocks, &Case::Broadcast(Algorithm::OneStage)),
                    row(&comm, bytes, blocks, &Case::Broadcast(Algorithm::TwoStageDirect)),
                    row(&comm, bytes, blocks, &Case::Broadcast(Algorithm::TwoStageStaged)),
                    row(&comm, bytes, blocks, &Case::ReduceScatter(DType::F32)),
                    row(&comm, bytes, blocks, &Case::ReduceScatter(DType::BF16)),
                ] {
                    match line {
                        Ok(line) => println!("{line}"),
                        Err(error) => {
                            println!("{bytes} bytes, {blocks} blocks: {error}");
                            comm.reset()?;
                        }
                    }
                }
            }
            let copies = copies(&comm, bytes)?;
            println!(
                "{ranks} ranks {bytes:>11} B  {:<28} {:>10.2} us",
                format!("{} copies in turn", ranks - 1),
                micros(copies)
            );
        }
        host(&comm)?;
    }
    Ok(())
}

enum Case {
    Broadcast(Algorithm),
    ReduceScatter(DType),
}

struct Memory {
    streams: Vec<Stream>,
    raw: Vec<RawRank>,
    _buffers: Vec<crossccl::Buffer<Cuda, u8>>,
}

fn memory(comm: &Communicator<Cuda>, send: usize, recv: usize, in_place_root: Option<usize>) -> Result<Memory> {
    let (mut raw, mut buffers) = (Vec::new(), Vec::new());
    for rank in 0..comm.ranks() {
        let input = comm.buffer::<u8>(rank, send)?;
        let mut one = RawRank::new(input.address(), input.address());
        buffers.push(input);
        if in_place_root.is_none() {
            let output = comm.buffer::<u8>(rank, recv)?;
            one.recv = output.address();
            buffers.push(output);
        }
        raw.push(one);
    }
    let streams = (0..comm.ranks()).filter_map(|r| comm.stream(r).cloned()).collect();
    Ok(Memory { streams, raw, _buffers: buffers })
}

fn row(comm: &Communicator<Cuda>, bytes: usize, blocks: usize, case: &Case) -> Result<String> {
    let ranks = comm.ranks();
    let limit = |blocks: usize| (blocks > 0).then_some(blocks as u32);
    let (name, time, plan) = match case {
        Case::Broadcast(algorithm) => {
            let memory = memory(comm, bytes, 0, Some(0))?;
            let mut what = Broadcast::from_root(0).algorithm(*algorithm);
            if let Some(blocks) = limit(blocks) {
                what = what.max_blocks(blocks);
            }
            let plan = comm.plan_broadcast(bytes, DType::U8, what.clone())?;
            // SAFETY: the memory lives until after the waits.
            let call =
                || unsafe { comm.broadcast_raw(&memory.raw, &memory.streams, bytes, DType::U8, what.clone())?.wait() };
            (format!("broadcast {algorithm}"), per_call(comm, &memory.streams, bytes, call)?, plan)
        }
        Case::ReduceScatter(dtype) => {
            let count = bytes / dtype.size();
            let memory = memory(comm, bytes, bytes.div_ceil(ranks) + 16, None)?;
            let mut what = ReduceScatter::new(ReduceOp::Sum);
            if let Some(blocks) = limit(blocks) {
                what = what.max_blocks(blocks);
            }
            let plan = comm.plan_reduce_scatter(0, count, *dtype, what.clone())?;
            let counts = vec![count; ranks];
            // SAFETY: as above.
            let call = || unsafe {
                comm.reduce_scatter_raw(&memory.raw, &memory.streams, &counts, *dtype, what.clone())?.wait()
            };
            (format!("reduce-scatter {dtype}"), per_call(comm, &memory.streams, bytes, call)?, plan)
        }
    };
    let rate = bytes as f64 / time.as_secs_f64() / 1e9;
    Ok(format!(
        "{ranks} ranks {bytes:>11} B  {name:<28} {:>10.2} us {rate:>9.1} GB/s  {} blocks",
        micros(time),
        plan.blocks
    ))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Graphs of few and of many calls; the difference has no launch in it.
fn per_call(
    comm: &Communicator<Cuda>,
    streams: &[Stream],
    bytes: usize,
    call: impl Fn() -> Result<()>,
) -> Result<Duration> {
    let (few, many) = if bytes <= 1 << 20 {
        (5, 45)
    } else if bytes <= 64 << 20 {
        (2, 12)
    } else {
        (1, 5)
    };
    let graph = |calls: usize| -> Result<Graph<Cuda>> {
        // SAFETY: the caller keeps the memory.
        unsafe { comm.capture(streams, || (0..calls).try_for_each(|_| call())) }
    };
    let (few_graph, many_graph) = (graph(few)?, graph(many)?);
    let replay = |graph: &Graph<Cuda>| -> Result<Duration> {
        let begin = Instant::now();
        // SAFETY: as above.
        unsafe { graph.launch()? }.wait()?;
        Ok(begin.elapsed())
    };
    for _ in 0..3 {
        replay(&few_graph)?;
        replay(&many_graph)?;
    }
    let mut times = Vec::new();
    for _ in 0..9 {
        let (a, b) = (replay(&few_graph)?, replay(&many_graph)?);
        times.push(b.saturating_sub(a) / (many - few) as u32);
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// As many plain copies as a broadcast has receivers, each from the root's memory on its own rank's stream.
fn copies(comm: &Communicator<Cuda>, bytes: usize) -> Result<Duration> {
    let memory = memory(comm, bytes, 0, Some(0))?;
    let time = |repeat: usize| -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..repeat {
            for rank in 1..comm.ranks() {
                // SAFETY: the memory lives until after the waits.
                unsafe { Cuda::copy(&memory.streams[rank], memory.raw[rank].recv, memory.raw[0].send, bytes) }
                    .map_err(|f| Error::Unsupported { operation: "copy", what: f.name })?;
            }
        }
        for stream in &memory.streams {
            let done = Cuda::record(stream).and_then(|e| Cuda::wait(&e, None));
            done.map_err(|f| Error::Unsupported { operation: "copy", what: f.name })?;
        }
        Ok(begin.elapsed())
    };
    time(3)?;
    let mut times: Vec<_> = (0..7).map(|_| Ok((time(2)?, time(12)?))).collect::<Result<_>>()?;
    times.sort_by_key(|(a, b)| b.saturating_sub(*a));
    let (a, b) = times[times.len() / 2];
    Ok(b.saturating_sub(a) / 10)
}

/// What enqueuing one call of all ranks costs the host, and a call with its wait.
fn host(comm: &Communicator<Cuda>) -> Result<()> {
    let memory = memory(comm, 1024, 0, Some(0))?;
    // SAFETY: the memory lives until after the waits.
    let call = || unsafe { comm.broadcast_raw(&memory.raw, &memory.streams, 1024, DType::U8, 0) };
    for _ in 0..20 {
        call()?.wait()?;
    }
    let begin = Instant::now();
    let launched = (0..100).map(|_| call()).collect::<Result<Vec<_>>>()?;
    let enqueued = begin.elapsed() / 100;
    launched.iter().try_for_each(|l| l.wait())?;
    let mut times = (0..101)
        .map(|_| {
            let begin = Instant::now();
            call()?.wait()?;
            Ok(begin.elapsed())
        })
        .collect::<Result<Vec<_>>>()?;
    times.sort();
    println!(
        "{} ranks, 1 KiB broadcast: enqueued in {:.2} us, with its wait {:.2} us",
        comm.ranks(),
        micros(enqueued),
        micros(times[50])
    );
    Ok(())
}

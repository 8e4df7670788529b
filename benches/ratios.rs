//! The CPU backend against what the machine can do: medians and ratios, with the target beside each.
//!
//! Everything that is compared takes its turns in one run, so that a noisy machine is noisy to both. Prints,
//! and never fails for a slow result: numbers are read by people, and kept in `benches/record/`.
//!
//! ```sh
//! cargo bench --bench ratios                  # everything
//! cargo bench --bench ratios -- large linear  # some of: large linear small steady plan sizes
//! scripts/bench-cpu                           # all, and small messages against Open MPI
//! SIZES=only scripts/bench-cpu                # all sizes against Open MPI and plain copies
//! ```

use std::{
    error::Error,
    hint::black_box,
    sync::{
        Arc, Barrier, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossccl::{
    Algorithm, Broadcast, Buffer, Communicator, Cpu, DType, Element, RawRank, ReduceOp, ReduceScatter, half::bf16,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;
type Section = fn() -> Outcome;
type Buffers<T> = Vec<Buffer<Cpu, T>>;

const RANKS: usize = 4;
const LARGE: usize = 64 << 20;
/// Turns of everything that is compared at a large size.
const TURNS: usize = 31;

fn main() -> Outcome {
    // Cargo adds an option of its own.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let sections: [(&str, Section); 6] =
        [("large", large), ("linear", linear), ("small", small), ("steady", steady), ("plan", plan), ("sizes", sizes)];
    if let Some(unknown) = wanted.iter().find(|w| sections.iter().all(|(name, _)| name != w)) {
        return Err(
            format!("no section `{unknown}`; the sections are large, linear, small, steady, plan, sizes").into()
        );
    }
    for (name, section) in sections {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            section()?;
        }
    }
    Ok(())
}

/// Something that is timed: one call, and how long it took.
struct Contender<'a> {
    name: &'static str,
    call: Box<dyn FnMut() -> Outcome<Duration> + 'a>,
    times: Vec<Duration>,
    /// Processor time of the whole process, in clock ticks of 10 ms: the sum over the turns.
    ticks: u64,
}

impl<'a> Contender<'a> {
    fn new(name: &'static str, call: impl FnMut() -> Outcome<Duration> + 'a) -> Self {
        Contender { name, call: Box::new(call), times: Vec::new(), ticks: 0 }
    }

    fn cpu_ms(&self) -> f64 {
        self.ticks as f64 * 10.0 / self.times.len() as f64
    }

    fn median(&self) -> f64 {
        median(self.times.iter().map(Duration::as_secs_f64).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// User and system time of the process so far, of all its threads.
fn ticks() -> Outcome<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Fields 14 and 15, counted behind the name, which may hold anything.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    Ok(fields.skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?)
}

/// All take turns; who begins changes from turn to turn.
fn take_turns(contenders: &mut [Contender], turns: usize) -> Outcome {
    for turn in 0..turns + 2 {
        for at in 0..contenders.len() {
            let at = (at + turn) % contenders.len();
            let one = &mut contenders[at];
            let before = ticks()?;
            let time = (one.call)()?;
            // The first two turns touch memory and wake threads.
            if turn >= 2 {
                one.times.push(time);
                one.ticks += ticks()? - before;
            }
        }
    }
    Ok(())
}

/// The contenders' medians, and their ratios to the one `against`, from the same run.
fn print(title: &str, contenders: &[Contender], against: usize, target: &str) {
    println!("\n{title}");
    println!("  {:<32} {:>9} {:>6}  turn by turn  target   {:>6} {:>6}", "", "median ms", "ratio", "cpu ms", "ratio");
    let base = &contenders[against];
    for one in contenders {
        let mut ratios: Vec<f64> =
            one.times.iter().zip(&base.times).map(|(a, b)| a.as_secs_f64() / b.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        let quarter = |n: usize| ratios[n * (ratios.len() - 1) / 4];
        let (ms, ratio) = (one.median() * 1e3, one.median() / base.median());
        let spread = format!("{:.2} to {:.2}", quarter(1), quarter(3));
        let target = if std::ptr::eq(one, base) { "" } else { target };
        let (cpu, cpu_ratio) = (one.cpu_ms(), one.cpu_ms() / base.cpu_ms());
        println!("  {:<32} {ms:>9.2} {ratio:>6.2}  {spread:<12}  {target:>6}   {cpu:>6.1} {cpu_ratio:>6.2}", one.name);
    }
}

fn large() -> Outcome {
    println!("64 MiB, {RANKS} ranks: medians of {TURNS} turns; turn by turn: the middle half of the ratios;");
    println!("cpu: mean processor time of all threads, which other load on the machine leaves alone");
    large_broadcast()?;
    large_reduce_scatter::<f32>("f32", |i| (i % 1000) as f32, plain_sum_f32)?;
    large_reduce_scatter::<bf16>("bf16", |i| bf16::from_f32((i % 100) as f32), plain_sum_bf16)
}

fn communicator(ranks: usize) -> Outcome<Communicator<Cpu>> {
    Ok(Communicator::builder(0..ranks).build()?)
}

/// The time of one call with its wait.
fn timed(call: impl FnOnce() -> crossccl::Result<()>) -> Outcome<Duration> {
    let begin = Instant::now();
    call()?;
    Ok(begin.elapsed())
}

/// Threads that are started once and do the same work again and again, as the threads of a rank do: new ones
/// for each turn would be spread over the cores by the system, those that are woken up are not.
struct Crew {
    begin: Arc<Barrier>,
    end: Arc<Barrier>,
    over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Crew {
    fn new(work: impl IntoIterator<Item = impl FnMut() + Send + 'static>) -> Self {
        let work: Vec<_> = work.into_iter().collect();
        let barrier = || Arc::new(Barrier::new(work.len() + 1));
        let (begin, end, over) = (barrier(), barrier(), Arc::new(AtomicBool::new(false)));
        let threads = (work.into_iter())
            .map(|mut work| {
                let (begin, end, over) = (begin.clone(), end.clone(), over.clone());
                thread::spawn(move || {
                    while {
                        begin.wait();
                        !over.load(Ordering::Acquire)
                    } {
                        work();
                        end.wait();
                    }
                })
            })
            .collect();
        Crew { begin, end, over, threads }
    }

    /// All do their work once.
    fn work(&self) -> Duration {
        let begin = Instant::now();
        self.begin.wait();
        self.end.wait();
        begin.elapsed()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.begin.wait();
        for thread in self.threads.drain(..) {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

/// In place: the root's buffer into N - 1 others. Against as many plain copies, each on a thread.
fn large_broadcast() -> Outcome {
    let comm = communicator(RANKS)?;
    let content: Arc<Vec<u8>> = Arc::new((0..LARGE).map(|i| (i * 7 + i / 255) as u8).collect());
    let mut sets = [(); 3].map(|()| Vec::new());
    for set in &mut sets {
        for rank in 0..RANKS {
            set.push(if rank == 0 { comm.buffer_from(rank, &content)? } else { comm.buffer(rank, LARGE)? });
        }
    }
    let copies: Vec<_> = (1..RANKS).map(|_| Arc::new(Mutex::new(vec![1u8; LARGE]))).collect();
    let crew = Crew::new(copies.iter().map(|copy| {
        let (copy, content) = (copy.clone(), content.clone());
        move || held(&copy).copy_from_slice(black_box(&content))
    }));
    let call = |buffers: &mut Buffers<u8>, algorithm| {
        timed(|| comm.broadcast_in_place(buffers, Broadcast::from_root(0).algorithm(algorithm))?.wait())
    };
    let [one, staged, direct] = &mut sets;
    let mut contenders = [
        Contender::new("3 copies by 3 threads (memcpy)", || Ok(crew.work())),
        Contender::new("broadcast one-stage", || call(one, Algorithm::OneStage)),
        Contender::new("broadcast two-stage-staged", || call(staged, Algorithm::TwoStageStaged)),
        Contender::new("broadcast two-stage-direct", || call(direct, Algorithm::TwoStageDirect)),
    ];
    take_turns(&mut contenders, TURNS)?;
    print("broadcast against plain copies", &contenders[..2], 0, "1.0");
    print("two stages against one", &contenders[1..], 0, "1.5");
    drop(contenders);
    for buffer in sets.iter().flatten() {
        verify(buffer.to_vec()? == *content, "broadcast")?;
    }
    verify(copies.iter().all(|copy| *held(copy) == *content), "the plain copies")
}

/// Each rank gives 64 MiB. Against one pass over the same memory by as many threads: each reads a part of all
/// inputs and writes it.
fn large_reduce_scatter<T: Element + PartialEq>(
    name: &str,
    value: impl Fn(usize) -> T,
    plain: fn([&[T]; RANKS], &mut [T]),
) -> Outcome {
    let comm = communicator(RANKS)?;
    let count = LARGE / size_of::<T>();
    let inputs: Arc<Vec<Vec<T>>> =
        Arc::new((0..RANKS).map(|rank| (0..count).map(|i| value(i + rank)).collect()).collect());
    let sources = (0..RANKS).map(|rank| comm.buffer_from(rank, &inputs[rank])).collect::<Result<Buffers<T>, _>>()?;
    let mut outputs = (0..RANKS).map(|rank| comm.buffer(rank, count / RANKS)).collect::<Result<Buffers<T>, _>>()?;
    let results: Vec<_> = (0..RANKS).map(|_| Arc::new(Mutex::new(vec![inputs[0][0]; count / RANKS]))).collect();
    let crew = Crew::new(results.iter().enumerate().map(|(rank, result)| {
        let (result, inputs) = (result.clone(), inputs.clone());
        let part = rank * count / RANKS..(rank + 1) * count / RANKS;
        move || {
            let inputs: [&[T]; RANKS] = std::array::from_fn(|i| &inputs[i][part.clone()]);
            plain(black_box(inputs), &mut held(&result));
        }
    }));
    let mut contenders = [
        Contender::new("one pass by 4 threads", || Ok(crew.work())),
        Contender::new("reduce-scatter", || {
            timed(|| comm.reduce_scatter(&sources, &mut outputs, ReduceOp::Sum)?.wait())
        }),
    ];
    take_turns(&mut contenders, TURNS)?;
    print(&format!("reduce-scatter of {name} (sum) against one plain pass"), &contenders, 0, "1.3");
    drop(contenders);
    for (output, result) in outputs.iter().zip(&results) {
        verify(output.to_vec()? == *held(result), "reduce-scatter")?;
    }
    Ok(())
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn verify(right: bool, what: &str) -> Outcome {
    if right { Ok(()) } else { Err(format!("{what} gave a wrong result").into()) }
}

fn plain_sum_f32([a, b, c, d]: [&[f32]; RANKS], out: &mut [f32]) {
    for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *out = a + b + c + d;
    }
}

/// Without the contract's care for NaN: the additions and one rounding.
fn plain_sum_bf16([a, b, c, d]: [&[bf16]; RANKS], out: &mut [bf16]) {
    let widen = |x: &bf16| f32::from_bits(u32::from(x.to_bits()) << 16);
    for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let sum = (widen(a) + widen(b) + widen(c) + widen(d)).to_bits();
        *out = bf16::from_bits((sum.wrapping_add(0x7fff + (sum >> 16 & 1)) >> 16) as u16);
    }
}

/// Time a byte over sizes; at large sizes it should not depend on the size.
fn linear() -> Outcome {
    println!("\ncost by size, {RANKS} ranks, f32, ps a byte: medians of {} turns, all sizes in turn", TURNS / 2);
    let comm = communicator(RANKS)?;
    let sizes: Vec<usize> = (0..=8).map(|i| 1 << (20 + i)).collect();
    let (least, most) = (sizes[0] / 4, sizes[sizes.len() - 1] / 4);
    debug_assert!(least >= RANKS);
    let mut buffers =
        (0..RANKS).map(|rank| comm.buffer_from(rank, &vec![1f32; most])).collect::<Result<Buffers<f32>, _>>()?;
    let mut outputs =
        (0..RANKS).map(|rank| comm.buffer::<f32>(rank, most / RANKS)).collect::<Result<Buffers<f32>, _>>()?;
    let mut times = vec![[Vec::new(), Vec::new()]; sizes.len()];
    for turn in 0..TURNS / 2 + 1 {
        for (size, [broadcast, reduce]) in sizes.iter().zip(&mut times) {
            let count = size / 4;
            let inputs = buffers.iter().map(|b| b.slice(0..count)).collect::<Result<Vec<_>, _>>()?;
            let parts = outputs.iter_mut().map(|b| b.slice_mut(0..count / RANKS)).collect::<Result<Vec<_>, _>>()?;
            let reduced = timed(|| comm.reduce_scatter(inputs, parts, ReduceOp::Sum)?.wait())?;
            let whole = buffers.iter_mut().map(|b| b.slice_mut(0..count)).collect::<Result<Vec<_>, _>>()?;
            let sent = timed(|| comm.broadcast_in_place(whole, 0)?.wait())?;
            if turn > 0 {
                broadcast.push(sent.as_secs_f64());
                reduce.push(reduced.as_secs_f64());
            }
        }
    }
    println!("  {:>8} {:>12} {:>16}", "bytes", "broadcast", "reduce-scatter");
    for (size, [broadcast, reduce]) in sizes.iter().zip(times) {
        let per_byte = |times| median(times) / *size as f64 * 1e12;
        println!("  {:>4} MiB {:>12.0} {:>16.0}", size >> 20, per_byte(broadcast), per_byte(reduce));
    }
    Ok(())
}

/// 1 KiB: latency. Lines for `scripts/bench-cpu`, in the columns of `benches/peers/openmpi.c`.
fn small() -> Outcome {
    const BYTES: usize = 1024;
    const CALLS: usize = 2000;
    let count = BYTES / 4;
    println!("\nwho what ranks bytes how us: medians of 9 times {CALLS} calls");
    for ranks in [2, RANKS] {
        let comm = communicator(ranks)?;
        let sources =
            (0..ranks).map(|r| comm.buffer_from(r, &vec![1f32; count])).collect::<Result<Buffers<f32>, _>>()?;
        let mut buffers = (0..ranks).map(|r| comm.buffer::<f32>(r, count)).collect::<Result<Buffers<f32>, _>>()?;
        let mut parts =
            (0..ranks).map(|r| comm.buffer::<f32>(r, count / ranks)).collect::<Result<Buffers<f32>, _>>()?;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..10 {
            times[0].push(timed(|| (0..CALLS).try_for_each(|_| comm.broadcast_in_place(&mut buffers, 0)?.wait()))?);
            times[1].push(timed(|| {
                (0..CALLS).try_for_each(|_| comm.reduce_scatter(&sources, &mut parts, ReduceOp::Sum)?.wait())
            })?);
        }
        for (what, times) in ["broadcast", "reduce-scatter"].iter().zip(times) {
            let us = median(times[1..].iter().map(Duration::as_secs_f64).collect()) / CALLS as f64 * 1e6;
            println!("crossccl {what} {ranks} {BYTES} one-call {us:.2}");
        }
        drop((sources, buffers, parts));

        // A thread a rank, each at its own pace: a call, its wait, the next. With streams that have threads of their own and
        // with such that have none, in turn.
        let mut times = [(); 4].map(|()| Vec::new());
        for turn in 0..10 {
            for (which, times) in times.iter_mut().enumerate() {
                let comm = Communicator::builder(0..ranks).inline_streams(which >= 2).build()?;
                let time = thread_a_rank(comm, which % 2 == 0, count, CALLS)?;
                if turn > 0 {
                    times.push(time.as_secs_f64());
                }
            }
        }
        for (which, times) in times.into_iter().enumerate() {
            let what = ["broadcast", "reduce-scatter"][which % 2];
            let how = ["thread-a-rank", "inline"][which / 2];
            println!("crossccl {what} {ranks} {BYTES} {how} {:.2}", median(times) / CALLS as f64 * 1e6);
        }
    }
    Ok(())
}

/// The time of `calls` calls by each rank's thread, from the first to begin to the last to end.
fn thread_a_rank(comm: Communicator<Cpu>, broadcast: bool, count: usize, calls: usize) -> Outcome<Duration> {
    let ranks = comm.ranks();
    let begun = Barrier::new(ranks);
    let body = |rank: crossccl::RankComm<Cpu>| -> crossccl::Result<(Instant, Instant)> {
        let mut whole = rank.buffer_from(&vec![1f32; count])?;
        let mut part = rank.buffer::<f32>(count / ranks)?;
        begun.wait();
        let begin = Instant::now();
        for _ in 0..calls {
            match broadcast {
                true => rank.broadcast_in_place(&mut whole, 0)?.wait()?,
                false => rank.reduce_scatter(&whole, &mut part, ReduceOp::Sum)?.wait()?,
            }
        }
        Ok((begin, Instant::now()))
    };
    let spans = thread::scope(|scope| {
        let threads: Vec<_> = comm.into_ranks().into_iter().map(|rank| scope.spawn(|| body(rank))).collect();
        threads.into_iter().map(|t| t.join().map_err(|_| "a rank's thread panicked")).collect::<Result<Vec<_>, _>>()
    })?;
    let spans = spans.into_iter().collect::<crossccl::Result<Vec<_>>>()?;
    let begin = spans.iter().map(|s| s.0).min().ok_or("no ranks")?;
    let end = spans.iter().map(|s| s.1).max().ok_or("no ranks")?;
    Ok(end - begin)
}

/// 1 KiB to 256 MiB, a thread a rank, every call followed by a barrier, and plain copies likewise. Lines for
/// `scripts/bench-cpu`, in the columns of `benches/peers/openmpi.c`, which counts its calls in the same way.
fn sizes() -> Outcome {
    const MOST_CALLS: usize = 2000;
    println!("\nwho what ranks bytes how us: medians of 5 turns, every call followed by a barrier");
    for ranks in [2, 4, 8] {
        for bytes in (0..10).map(|i| 1024usize << (2 * i)) {
            let calls = if bytes <= 16 << 10 { MOST_CALLS } else { (MOST_CALLS * (16 << 10) / bytes).max(2) };
            let count = bytes / 4;
            for (who, what, how) in [
                ("crossccl", "broadcast", "inline"),
                ("crossccl", "broadcast", "thread-a-rank"),
                ("memcpy", "broadcast", "thread-a-rank"),
                ("crossccl", "reduce-scatter", "inline"),
                ("crossccl", "reduce-scatter", "thread-a-rank"),
            ] {
                let time = if who == "memcpy" {
                    copies_with_barriers(ranks, bytes, calls)?
                } else {
                    let comm = Communicator::builder(0..ranks).inline_streams(how == "inline").build()?;
                    with_barriers(comm, what == "broadcast", count, calls)?
                };
                println!("{who} {what} {ranks} {bytes} {how} {:.2}", time / calls as f64 * 1e6);
            }
        }
    }
    Ok(())
}

/// As many threads as `new` was told meet, again and again. Polls, then yields: the library's barriers sleep in the kernel,
/// which costs more than what is measured here; Open MPI's does not.
struct Meeting {
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
}

impl Meeting {
    fn new(threads: usize) -> Self {
        Meeting { threads, arrived: AtomicUsize::new(0), round: AtomicUsize::new(0) }
    }

    fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round + 1, Ordering::Release);
            return;
        }
        let mut polls = 0;
        while self.round.load(Ordering::Acquire) == round {
            polls += 1;
            if polls % 64 == 0 { thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

/// The median of five turns of `calls` times `call(rank's own, rank)` and a barrier, on a thread for each of `own`.
fn turns_of<T: Send>(own: Vec<T>, calls: usize, call: impl Fn(&mut T) -> Outcome + Sync) -> Outcome<f64> {
    let meeting = Meeting::new(own.len());
    let body = |mut mine: T| -> Result<Vec<f64>, String> {
        let (mut times, mut outcome) = (Vec::new(), Ok(()));
        for _ in 0..6 {
            meeting.wait();
            let begin = Instant::now();
            for _ in 0..calls {
                // After an error too it comes to the meetings, or the others would wait for good.
                outcome = outcome.and_then(|()| call(&mut mine).map_err(|e| e.to_string()));
                meeting.wait();
            }
            times.push(begin.elapsed().as_secs_f64());
        }
        outcome.map(|()| times)
    };
    let times = thread::scope(|scope| {
        let threads: Vec<_> = own.into_iter().map(|mine| scope.spawn(|| body(mine))).collect();
        threads.into_iter().map(|t| t.join().map_err(|_| "a thread panicked")).collect::<Result<Vec<_>, _>>()
    })?;
    let times = times.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(median(times.first().ok_or("no ranks")?[1..].to_vec()))
}

fn with_barriers(comm: Communicator<Cpu>, broadcast: bool, count: usize, calls: usize) -> Outcome<f64> {
    let ranks = comm.ranks();
    let own = comm.into_ranks().into_iter().map(|rank| {
        let whole = rank.buffer_from(&vec![1f32; count])?;
        let part = rank.buffer::<f32>(count / ranks)?;
        Ok((rank, whole, part))
    });
    let own = own.collect::<crossccl::Result<Vec<_>>>()?;
    turns_of(own, calls, |(rank, whole, part)| {
        match broadcast {
            true => rank.broadcast_in_place(whole, 0)?.wait()?,
            false => rank.reduce_scatter(&*whole, part, ReduceOp::Sum)?.wait()?,
        }
        Ok(())
    })
}

/// Every thread but the first copies the same bytes into memory of its own.
fn copies_with_barriers(ranks: usize, bytes: usize, calls: usize) -> Outcome<f64> {
    let source = vec![1u8; bytes];
    let own = (0..ranks).map(|rank| vec![0u8; if rank == 0 { 0 } else { bytes }]).collect();
    turns_of(own, calls, |mine: &mut Vec<u8>| {
        let of = &source[..mine.len()];
        black_box(&mut *mine).copy_from_slice(black_box(of));
        Ok(())
    })
}

/// A call costs what it cost ten thousand calls ago.
fn steady() -> Outcome {
    println!("\n1 KiB, {RANKS} ranks: medians of 100 calls in us, in five communicators one after the other");
    println!("  {:<16} {:>12} {:>18} {:>7}", "", "calls 1-100", "10,001-10,100", "ratio");
    let mut times = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for _ in 0..5 {
        let comm = communicator(RANKS)?;
        let sources = (0..RANKS).map(|r| comm.buffer_from(r, &[1f32; 256])).collect::<Result<Buffers<f32>, _>>()?;
        let mut buffers = (0..RANKS).map(|r| comm.buffer::<f32>(r, 256)).collect::<Result<Buffers<f32>, _>>()?;
        let mut parts = (0..RANKS).map(|r| comm.buffer::<f32>(r, 256 / RANKS)).collect::<Result<Buffers<f32>, _>>()?;
        for call in 0..10_100 {
            let late = match call {
                0..100 => 0,
                10_000.. => 1,
                _ => usize::MAX,
            };
            let sent = timed(|| comm.broadcast_in_place(&mut buffers, 0)?.wait())?;
            let reduced = timed(|| comm.reduce_scatter(&sources, &mut parts, ReduceOp::Sum)?.wait())?;
            if late < 2 {
                times[0][late].push(sent.as_secs_f64());
                times[1][late].push(reduced.as_secs_f64());
            }
        }
    }
    for (what, [early, late]) in ["broadcast", "reduce-scatter"].iter().zip(times) {
        let (early, late) = (median(early) * 1e6, median(late) * 1e6);
        println!("  {what:<16} {early:>12.1} {late:>18.1} {:>7.2}", late / early);
    }
    Ok(())
}

/// What choosing an algorithm costs the host, of what a call costs it: of one rank, enqueued and not run, on an inline
/// stream.
fn plan() -> Outcome {
    const CALLS: usize = 1000;
    println!("\nhost time of a rank's call without the collective itself, ns: medians of 9 times {CALLS} calls");
    println!("  {:<16} {:>5} {:>9} {:>8} {:>8} {:>8}", "", "ranks", "bytes", "enqueue", "named", "choice");
    for ranks in [4, 8] {
        for bytes in [1 << 10, 1 << 20, 64 << 20] {
            for what in [0, 1] {
                let mut times = [Vec::new(), Vec::new(), Vec::new()];
                for _ in 0..9 {
                    for (how, times) in times.iter_mut().enumerate() {
                        let comm = Communicator::<Cpu>::builder(0..ranks).inline_streams(true).build()?;
                        let name = if how == 1 { Algorithm::OneStage } else { Algorithm::Auto };
                        let broadcast = || Broadcast::from_root(0).algorithm(name);
                        let reduce = || ReduceScatter::new(ReduceOp::Sum).algorithm(name);
                        let time = if how == 2 {
                            timed(|| {
                                (0..CALLS).try_for_each(|_| {
                                    black_box(match what {
                                        0 => comm.plan_broadcast(bytes / 4, DType::F32, broadcast())?,
                                        _ => comm.plan_reduce_scatter(0, bytes / 4, DType::F32, reduce())?,
                                    });
                                    Ok(())
                                })
                            })?
                        } else {
                            let comms = comm.into_ranks();
                            let at = RawRank::new(4096, 4096 + 4 * bytes as u64);
                            let time = timed(|| {
                                (0..CALLS).try_for_each(|_| {
                                    // SAFETY: no other rank comes, without which nothing is read or written.
                                    drop(unsafe {
                                        match what {
                                            0 => comms[0].broadcast_raw(
                                                at,
                                                comms[0].stream(),
                                                bytes / 4,
                                                DType::F32,
                                                broadcast(),
                                            )?,
                                            _ => comms[0].reduce_scatter_raw(
                                                at,
                                                comms[0].stream(),
                                                bytes / 4,
                                                DType::F32,
                                                reduce(),
                                            )?,
                                        }
                                    });
                                    Ok(())
                                })
                            })?;
                            comms[0].abort();
                            time
                        };
                        times.push(time.as_secs_f64());
                    }
                }
                let [enqueue, named, choice] = times.map(|times| median(times) / CALLS as f64 * 1e9);
                let name = ["broadcast", "reduce-scatter"][what];
                println!("  {name:<16} {ranks:>5} {bytes:>9} {enqueue:>8.0} {named:>8.0} {choice:>8.0}");
            }
        }
    }
    Ok(())
}

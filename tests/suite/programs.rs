//! Random programs (`support/program.rs`) against the oracle: what succeeds has the right bits, what fails does so in
//! time and with the error that it must have, and after a reset all goes on.
//!
//! A failure prints the program's number, and what is left of the program once every step is gone that it fails without.
//! `CROSSCCL_PROGRAM=NUMBER` runs that one alone; `CROSSCCL_OPERATIONS=1000000` runs so many operations, from the
//! program `CROSSCCL_PROGRAM` on where that is set as well.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Barrier,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use crossccl::{
    Agreement, Algorithm, Backend, Broadcast, Communicator, DType, Destination, Error, InFlight, RankComm, RawRank, ReduceScatter, Result,
    Untyped,
};
use rstest::rstest;

use super::B;
use crate::support::{
    Guarded, POISON_BYTE, RankCell, assert_same, builder, cells, memory_for,
    program::{Call, Chain, Data, End, Link, Mistake, Program, Residual, Step, What},
};

/// Nobody waits so long unless something is wrong.
const LONG: Duration = Duration::from_secs(20);
/// For ranks that do not come.
const SHORT: Duration = Duration::from_millis(50);
/// What may pass beyond a limit, on a machine with other work.
const SLACK: Duration = Duration::from_secs(5);
/// A program that takes longer hangs.
const HANGS: Duration = Duration::from_secs(180);
/// How long a failing program is made smaller.
const SHRINKING: Duration = Duration::from_secs(30);

/// What ran, by kind.
#[derive(Default)]
struct Tally {
    operations: usize,
    kinds: BTreeMap<&'static str, usize>,
    /// The longest that a failure took beyond its limit.
    beyond: Duration,
}

/// The bytes of a call on the devices of some ranks.
struct Buffers {
    ranks: Vec<usize>,
    /// None for what is in place, and for receivers of a broadcast.
    inputs: Vec<Option<Guarded<B>>>,
    outputs: Vec<Guarded<B>>,
    residuals: Vec<Guarded<B>>,
}

impl Buffers {
    /// With outputs that are `longer` than they should be.
    fn new(call: &Call, data: &Data, streams: &[(usize, <B as Backend>::Stream)], longer: usize) -> Self {
        let [input, output, residual] = call.offsets;
        let ranks = streams.iter().map(|(rank, _)| *rank).collect();
        let inputs = (streams.iter())
            .map(|(rank, stream)| {
                let needed = match call.what {
                    What::Broadcast { root, .. } => *rank == root,
                    What::ReduceScatter { .. } => true,
                };
                (needed && !call.in_place).then(|| Guarded::with(stream, call.dtype, &data.inputs[*rank], input))
            })
            .collect();
        let outputs = (streams.iter())
            .map(|(rank, stream)| match call.residual() {
                _ if call.in_place => Guarded::with(stream, call.dtype, &data.inputs[*rank], output),
                Residual::Output if longer == 0 => Guarded::with(stream, data.to, &data.residuals[*rank], output),
                _ => Guarded::new(stream, data.to, data.expected[*rank].len() / data.to.size() + longer, output),
            })
            .collect();
        let residuals = (streams.iter())
            .filter(|_| call.residual() == Residual::Separate)
            .map(|(rank, stream)| Guarded::with(stream, data.to, &data.residuals[*rank], residual))
            .collect();
        Buffers { ranks, inputs, outputs, residuals }
    }

    /// The call of all ranks.
    fn launch(&mut self, comm: &Communicator<B>, call: &Call, limit: Limit) -> Result<InFlight<'_, B>> {
        let Buffers { inputs, outputs, residuals, .. } = self;
        let mut inputs = inputs.iter().flatten().map(Guarded::input);
        if let Some(what) = limit.of_broadcast(call) {
            return match inputs.next() {
                Some(input) => comm.broadcast(input, outputs.iter_mut().map(Guarded::output), what),
                None => comm.broadcast_in_place(outputs.iter_mut().map(Guarded::output), what),
            };
        }
        let what = limit.of_reduce_scatter(call, None);
        if call.in_place {
            comm.reduce_scatter_in_place(outputs.iter_mut().map(Guarded::output), what)
        } else if call.is_fused() {
            comm.reduce_scatter_fused(inputs, destinations(call, outputs, residuals), what)
        } else {
            comm.reduce_scatter(inputs, outputs.iter_mut().map(Guarded::output), what)
        }
    }

    /// The call of one rank.
    fn launch_one(&mut self, comm: &RankComm<B>, call: &Call, limit: Limit) -> Result<InFlight<'_, B>> {
        let Buffers { ranks, inputs, outputs, residuals } = self;
        let mut input = inputs[0].as_ref().map(Guarded::input);
        if let Some(what) = limit.of_broadcast(call) {
            return match call.in_place {
                true => comm.broadcast_in_place(outputs[0].output(), what),
                false => comm.broadcast(input, outputs[0].output(), what),
            };
        }
        let what = limit.of_reduce_scatter(call, Some(ranks[0]));
        if call.in_place {
            return comm.reduce_scatter_in_place(outputs[0].output(), what);
        }
        let input = input.take().expect("every rank of a reduce-scatter has one");
        if call.is_fused() {
            comm.reduce_scatter_fused(input, destinations(call, outputs, residuals).remove(0), what)
        } else {
            comm.reduce_scatter(input, outputs[0].output(), what)
        }
    }

    /// Right results, and nothing else written.
    fn check(&self, call: &Call, data: &Data) {
        for (rank, output) in self.ranks.iter().zip(&self.outputs) {
            assert_same(&format!("rank {rank} of {call:?}"), data.to, &output.data(), &data.expected[*rank]);
        }
        self.check_sources(call, data);
    }

    /// Nothing written but outputs.
    fn check_sources(&self, call: &Call, data: &Data) {
        for (rank, input) in self.ranks.iter().zip(&self.inputs) {
            if let Some(input) = input {
                assert_same(&format!("input of rank {rank} of {call:?}"), call.dtype, &input.data(), &data.inputs[*rank]);
            }
        }
        for (rank, residual) in self.ranks.iter().zip(&self.residuals) {
            let what = format!("residual of rank {rank} of {call:?}");
            assert_same(&what, data.to, &residual.data(), &data.residuals[*rank]);
        }
        // Looks at the guards.
        self.outputs.iter().for_each(|output| drop(output.data()));
    }

    /// Outputs as they were made.
    fn check_untouched(&self, call: &Call, data: &Data) {
        for (rank, output) in self.ranks.iter().zip(&self.outputs) {
            let before = match call.residual() {
                _ if call.in_place => data.inputs[*rank].clone(),
                Residual::Output if output.len * data.to.size() == data.residuals[*rank].len() => {
                    data.residuals[*rank].clone()
                }
                _ => vec![POISON_BYTE; output.len * data.to.size()],
            };
            assert_same(&format!("rank {rank}, which must not write, of {call:?}"), data.to, &output.data(), &before);
        }
        self.check_sources(call, data);
    }
}

fn destinations<'a>(
    call: &Call,
    outputs: &'a mut [Guarded<B>],
    residuals: &'a [Guarded<B>],
) -> Vec<Destination<'a, B, Untyped>> {
    let mut residuals = residuals.iter().map(Guarded::input);
    (outputs.iter_mut())
        .map(|output| match call.residual() {
            Residual::Output => Destination::accumulate(output.output()),
            Residual::Separate => Destination::new(output.output()).residual(residuals.next().expect("one a rank")),
            Residual::None => Destination::new(output.output()),
        })
        .collect()
}

/// A call's own time limit.
#[derive(Clone, Copy)]
enum Limit {
    Default,
    Of(Duration),
    None,
}

impl Limit {
    fn of_broadcast(self, call: &Call) -> Option<Broadcast> {
        let what = call.broadcast()?;
        Some(match self {
            Limit::Default => what,
            Limit::Of(limit) => what.timeout(limit),
            Limit::None => what.no_timeout(),
        })
    }

    fn of_reduce_scatter(self, call: &Call, rank: Option<usize>) -> ReduceScatter {
        let what = call.reduce_scatter(rank).expect("if no broadcast");
        match self {
            Limit::Default => what,
            Limit::Of(limit) => what.timeout(limit),
            Limit::None => what.no_timeout(),
        }
    }
}

/// Why the first rank failed.
fn cause(error: &Error) -> &Error {
    match error {
        Error::Poisoned { cause } => cause,
        error => error,
    }
}

/// Runs `body` for each of some ranks on a thread of its own; all begin at the same time. A panic stays one.
fn on_threads<R: Send>(ranks: &[(usize, &RankCell<B>)], body: impl Fn(usize, &RankComm<B>) -> R + Sync) -> Vec<R> {
    let start = Barrier::new(ranks.len());
    std::thread::scope(|scope| {
        let (body, start) = (&body, &start);
        let threads: Vec<_> = (ranks.iter())
            .map(|(rank, cell)| {
                scope.spawn(move || {
                    let comm = cell.lock();
                    start.wait();
                    body(*rank, &comm)
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        ended.into_iter().map(|e| e.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

fn come_late(call: &Call, rank: usize) {
    if let Some((late, micros)) = call.late
        && late == rank
    {
        std::thread::sleep(Duration::from_micros(micros));
    }
}

/// What came of a rank's call that may fail.
struct Attempt<'a> {
    rank: usize,
    outcome: Result<()>,
    buffers: Buffers,
    /// When it was made.
    came: Instant,
    /// Calls that were enqueued behind.
    queued: Vec<(&'a Call, Result<()>, Buffers)>,
}

/// The communicator of a program, and how its calls are made.
enum World {
    Together(Communicator<B>),
    Apart(Vec<RankCell<B>>, Vec<<B as Backend>::Stream>),
}

impl World {
    fn streams(&self) -> Vec<(usize, <B as Backend>::Stream)> {
        match self {
            World::Together(comm) => {
                (0..comm.ranks()).map(|r| (r, comm.stream(r).expect("a rank").clone())).collect()
            }
            World::Apart(_, streams) => streams.iter().cloned().enumerate().collect(),
        }
    }

    fn handles(&self) -> Vec<(usize, &RankCell<B>)> {
        match self {
            World::Together(_) => Vec::new(),
            World::Apart(cells, _) => cells.iter().enumerate().collect(),
        }
    }

    fn reset(&self) {
        match self {
            World::Together(comm) => comm.reset().expect("reset"),
            World::Apart(..) => {
                on_threads(&self.handles(), |_, comm| comm.reset(LONG)).into_iter().for_each(|o| o.expect("reset"));
            }
        }
    }

    /// A call of every rank is refused with the cause that is known.
    fn refuses(&self, call: &Call, data: &Data, fits: impl Fn(&Error) -> bool + Sync) {
        let check = |outcome: Result<()>| {
            let error = outcome.expect_err("the communicator is poisoned");
            assert!(matches!(&error, Error::Poisoned { cause } if fits(cause)), "refused with {error}");
        };
        let streams = self.streams();
        match self {
            World::Together(comm) => {
                let mut buffers = Buffers::new(call, data, &streams, 0);
                check(buffers.launch(comm, call, Limit::Default).map(drop));
                buffers.check_untouched(call, data);
            }
            World::Apart(..) => {
                on_threads(&self.handles(), |rank, comm| {
                    let mut buffers = Buffers::new(call, data, &streams[rank..=rank], 0);
                    check(buffers.launch_one(comm, call, Limit::Default).map(drop));
                    buffers.check_untouched(call, data);
                });
            }
        }
    }

    fn calls(&self, calls: &[Call]) {
        let streams = self.streams();
        let data: Vec<Data> = calls.iter().map(|call| call.data(streams.len())).collect();
        match self {
            World::Together(comm) => {
                let mut buffers: Vec<_> =
                    calls.iter().zip(&data).map(|(call, data)| Buffers::new(call, data, &streams, 0)).collect();
                let flights: Vec<_> = (buffers.iter_mut().zip(calls))
                    .map(|(buffers, call)| buffers.launch(comm, call, Limit::Default).expect("launch"))
                    .collect();
                flights.into_iter().for_each(|flight| flight.wait().expect("outcome"));
                (buffers.iter().zip(calls).zip(&data)).for_each(|((buffers, call), data)| buffers.check(call, data));
            }
            World::Apart(..) => {
                on_threads(&self.handles(), |rank, comm| {
                    let mine = &streams[rank..=rank];
                    let mut buffers: Vec<_> =
                        calls.iter().zip(&data).map(|(call, data)| Buffers::new(call, data, mine, 0)).collect();
                    let flights: Vec<_> = (buffers.iter_mut().zip(calls))
                        .map(|(buffers, call)| {
                            come_late(call, rank);
                            buffers.launch_one(comm, call, Limit::Default).expect("launch")
                        })
                        .collect();
                    flights.into_iter().for_each(|flight| flight.wait().expect("outcome"));
                    (buffers.iter().zip(calls).zip(&data)).for_each(|((buffers, call), data)| buffers.check(call, data));
                });
            }
        }
    }

    fn chain(&self, chain: &Chain) {
        let streams = self.streams();
        let (first, last) = chain.data(streams.len());
        let mut buffers: Vec<_> = (streams.iter().zip(&first))
            .map(|((_, stream), data)| Guarded::<B>::with(stream, chain.dtype, data, chain.offset))
            .collect();
        let addresses: Vec<u64> = buffers.iter().map(Guarded::address).collect();
        let streams: Vec<_> = streams.into_iter().map(|(_, stream)| stream).collect();
        let in_place = |group: Option<usize>, rank: usize| {
            let part = group.map_or(0, |group| chain.part(group, rank).start as u64);
            RawRank::new(addresses[rank], addresses[rank] + part)
        };
        let (dtype, count) = (chain.dtype, chain.count);
        match self {
            World::Together(comm) if chain.recorded => {
                let mut recording = comm.record();
                for link in &chain.links {
                    let all = buffers.iter_mut().map(Guarded::output);
                    match what(link) {
                        (Some(what), _) => recording.broadcast_in_place(all, what).expect("recorded"),
                        (None, what) => recording.reduce_scatter_in_place(all, what).expect("recorded"),
                    };
                }
                let replay = recording.finish().expect("replay");
                let flights: Vec<_> = (0..chain.times).map(|_| replay.launch().expect("launch")).collect();
                flights.into_iter().for_each(|flight| flight.wait().expect("outcome"));
            }
            World::Together(comm) => {
                let mut launched = Vec::new();
                for link in (0..chain.times).flat_map(|_| &chain.links) {
                    let group = group_of(link);
                    let ranks: Vec<_> = (0..streams.len()).map(|rank| in_place(group, rank)).collect();
                    // SAFETY: the buffers live until after the waits.
                    launched.push(unsafe {
                        match what(link) {
                            (Some(what), _) => comm.broadcast_raw(&ranks, &streams, count, dtype, what),
                            (None, what) => {
                                comm.reduce_scatter_raw(&ranks, &streams, &vec![count; ranks.len()], dtype, what)
                            }
                        }
                    });
                }
                launched.into_iter().for_each(|one| one.expect("launch").wait().expect("outcome"));
            }
            World::Apart(..) => {
                on_threads(&self.handles(), |rank, comm| {
                    let mut launched = Vec::new();
                    for link in (0..chain.times).flat_map(|_| &chain.links) {
                        let mine = in_place(group_of(link), rank);
                        // SAFETY: as above.
                        launched.push(unsafe {
                            match what(link) {
                                (Some(what), _) => comm.broadcast_raw(mine, comm.stream(), count, dtype, what),
                                (None, what) => comm.reduce_scatter_raw(mine, comm.stream(), count, dtype, what),
                            }
                        });
                    }
                    launched.into_iter().for_each(|one| one.expect("launch").wait().expect("outcome"));
                });
            }
        }
        for (rank, (buffer, expected)) in buffers.iter().zip(&last).enumerate() {
            assert_same(&format!("rank {rank} of {chain:?}"), dtype, &buffer.data(), expected);
        }
    }

    fn refused(&self, right: &Call, wrong: &Call, mistake: Mistake) {
        let streams = self.streams();
        let data = right.data(streams.len());
        let longer = usize::from(mistake == Mistake::Output);
        let limit = if mistake == Mistake::Limit { Limit::Of(Duration::ZERO) } else { Limit::Default };
        let check = |outcome: Result<()>| {
            let error = outcome.expect_err("refused");
            let fits = match (&error, mistake) {
                (Error::Unsupported { .. }, Mistake::Epilogue) => true,
                (Error::InvalidArgument { argument, .. }, mistake) => {
                    *argument
                        == match mistake {
                            Mistake::Root => "root",
                            Mistake::Blocks => "max_blocks",
                            Mistake::Limit => "timeout",
                            Mistake::Group => "group_size",
                            Mistake::Axis => "axis",
                            Mistake::Lengths => "lengths",
                            Mistake::Output => "output",
                            Mistake::Epilogue => "",
                        }
                }
                _ => false,
            };
            assert!(fits, "{mistake:?} was refused with {error}");
        };
        match self {
            World::Together(comm) => {
                let mut buffers = Buffers::new(right, &data, &streams, longer);
                check(buffers.launch(comm, wrong, limit).map(drop));
                buffers.check_untouched(right, &data);
            }
            World::Apart(..) => {
                on_threads(&self.handles(), |rank, comm| {
                    let mut buffers = Buffers::new(right, &data, &streams[rank..=rank], longer);
                    check(buffers.launch_one(comm, wrong, limit).map(drop));
                    buffers.check_untouched(right, &data);
                });
            }
        }
    }

    /// Every rank's outcome of a call that may fail, and of what it enqueues behind.
    fn attempt<'a>(
        &self,
        ranks: &[usize],
        limit: Limit,
        queued: &'a [Call],
        call: impl Fn(usize) -> &'a Call + Sync,
    ) -> Vec<Attempt<'a>> {
        let streams = self.streams();
        let handles: Vec<_> = self.handles().into_iter().filter(|(rank, _)| ranks.contains(rank)).collect();
        on_threads(&handles, |rank, comm| {
            let calls: Vec<&Call> = std::iter::once(call(rank)).chain(queued).collect();
            let mut buffers: Vec<Buffers> = (calls.iter())
                .map(|call| Buffers::new(call, &call.data(streams.len()), &streams[rank..=rank], 0))
                .collect();
            let came = Instant::now();
            let flights: Vec<_> =
                buffers.iter_mut().zip(&calls).map(|(buffers, call)| buffers.launch_one(comm, call, limit)).collect();
            let outcomes: Vec<_> =
                flights.into_iter().map(|flight| flight.and_then(|flight| flight.wait())).collect();
            let mut ran = calls.into_iter().zip(outcomes).zip(buffers).map(|((c, o), b)| (c, o, b));
            let (_, outcome, buffers) = ran.next().expect("the first");
            Attempt { rank, outcome, buffers, came, queued: ran.collect() }
        })
    }

    /// What was enqueued behind a call that failed: right, or stopped by what `fits`.
    fn check_queued(attempts: &[Attempt<'_>], ranks: usize, fits: impl Fn(&Error) -> bool) {
        for Attempt { rank, queued, .. } in attempts {
            for (call, outcome, buffers) in queued {
                match outcome {
                    Ok(()) => buffers.check(call, &call.data(ranks)),
                    Err(error) => {
                        assert!(fits(cause(error)), "rank {rank}, behind a failure, in {call:?}: {error}");
                        buffers.check_sources(call, &call.data(ranks));
                    }
                }
            }
        }
    }

    /// A rank that is not there: those that depend on it fail, with what `fits`; the others may have been stopped.
    fn without(&self, call: &Call, absent: usize, abort: Option<u64>, queued: &[Call], strict: bool, tally: &mut Tally) {
        let ranks: Vec<usize> = (0..self.streams().len()).filter(|rank| *rank != absent).collect();
        let data = call.data(ranks.len() + 1);
        let limit = if abort.is_some() { Limit::None } else { Limit::Of(SHORT) };
        // A rank that is done with the call would miss those in the next that still wait in this one, and say so.
        let all_fail = ranks.iter().all(|rank| call.depends(*rank, absent, strict));
        let queued = if all_fail || abort.is_some() { queued } else { &[] };
        let begin = Instant::now();
        let attempts = std::thread::scope(|scope| {
            if let Some(micros) = abort {
                let handle = self.handles()[absent].1.lock().abort_handle();
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_micros(micros));
                    handle.abort();
                });
            }
            self.attempt(&ranks, limit, queued, |_| call)
        });
        let most = if abort.is_some() { Duration::ZERO } else { SHORT };
        let beyond = begin.elapsed().saturating_sub(most);
        assert!(beyond < SLACK, "a failure after {:?}", begin.elapsed());
        tally.beyond = tally.beyond.max(beyond);
        // A thread that was started late was missed, too.
        let came = attempts.iter().map(|attempt| attempt.came);
        let spread = came.clone().max().zip(came.min()).map_or(Duration::ZERO, |(last, first)| last - first);
        let fits = |error: &Error| match (abort, error) {
            (Some(_), Error::Aborted) => true,
            (None, Error::Timeout { missing, waited, .. }) => {
                *waited >= SHORT && !missing.is_empty() && (spread > SHORT / 2 || missing.contains(&absent.into()))
            }
            _ => false,
        };
        for Attempt { rank, outcome, queued, .. } in &attempts {
            let outcomes = queued.iter().map(|(call, outcome, _)| (*call, outcome));
            for (call, outcome) in std::iter::once((call, outcome)).chain(outcomes) {
                match outcome {
                    Ok(()) => assert!(!call.depends(*rank, absent, strict), "rank {rank} did without {absent}: {call:?}"),
                    Err(error) => assert!(fits(cause(error)), "rank {rank} without {absent}: {error}"),
                }
            }
        }
        self.refuses(call, &data, fits);
        self.reset();
        for Attempt { outcome, buffers, .. } in &attempts {
            match outcome {
                Ok(()) => buffers.check(call, &data),
                Err(_) => buffers.check_sources(call, &data),
            }
        }
        World::check_queued(&attempts, ranks.len() + 1, fits);
    }

    fn disagree(&self, call: &Call, odd: usize, other: &Call, field: &str, queued: &[Call]) {
        let ranks: Vec<usize> = (0..self.streams().len()).collect();
        let mine = |rank: usize| if rank == odd { other } else { call };
        let begin = Instant::now();
        let attempts = self.attempt(&ranks, Limit::Default, queued, mine);
        assert!(begin.elapsed() < SLACK, "a disagreement took {:?}", begin.elapsed());
        // A rank that is done with the call may meet, in the next one, what the odd rank sent by packets in this one: another
        // field may differ then.
        let fits = |error: &Error| {
            matches!(error, Error::Mismatch { field: named, values, .. }
                if (*named == field || !queued.is_empty()) && values.iter().any(|(_, value)| *value != values[0].1))
        };
        assert!(attempts[odd].outcome.is_err(), "rank {odd} has another {field}, and nobody minds");
        for Attempt { rank, outcome, .. } in &attempts {
            if let Err(error) = outcome {
                assert!(fits(cause(error)), "rank {rank}, where rank {odd} has another {field}: {error}");
            }
        }
        self.refuses(call, &call.data(ranks.len()), fits);
        self.reset();
        for Attempt { rank, outcome, buffers, .. } in &attempts {
            let data = mine(*rank).data(ranks.len());
            match outcome {
                Ok(()) => buffers.check(mine(*rank), &data),
                Err(_) if *rank == odd => buffers.check_untouched(other, &data),
                Err(_) => buffers.check_sources(call, &data),
            }
        }
        World::check_queued(&attempts, ranks.len(), fits);
    }

    fn hurried(&self, call: &Call, micros: u64) -> bool {
        let World::Together(comm) = self else { panic!("for one thread") };
        let streams = self.streams();
        let data = call.data(streams.len());
        let mut buffers = Buffers::new(call, &data, &streams, 0);
        let begin = Instant::now();
        let limit = Limit::Of(Duration::from_micros(micros));
        let outcome = buffers.launch(comm, call, limit).and_then(|flight| flight.wait());
        assert!(begin.elapsed() < SLACK, "a limit of {micros} us took {:?}", begin.elapsed());
        match outcome {
            Ok(()) => buffers.check(call, &data),
            Err(error) => {
                let fits = |error: &Error| matches!(error, Error::Timeout { .. });
                assert!(fits(cause(&error)), "within {micros} us: {error}");
                self.refuses(call, &data, fits);
                self.reset();
                buffers.check_sources(call, &data);
                return false;
            }
        }
        true
    }

    fn reset_without(&self, absent: usize) {
        let present: Vec<_> = self.handles().into_iter().filter(|(rank, _)| *rank != absent).collect();
        for outcome in on_threads(&present, |_, comm| comm.reset(SHORT)) {
            let error = outcome.expect_err("a handle is missing");
            let Error::Timeout { operation: "reset", missing, .. } = &error else { panic!("{error}") };
            assert!(missing.contains(&absent.into()), "{error}");
        }
    }

    fn step(&self, step: &Step, strict: bool, tally: &mut Tally) {
        let kind = match step {
            Step::Calls(calls) => {
                self.calls(calls);
                "calls"
            }
            Step::Chain(chain) => {
                self.chain(chain);
                if chain.recorded && matches!(self, World::Together(_)) { "replayed calls" } else { "calls by address" }
            }
            Step::Refused(right, wrong, mistake) => {
                self.refused(right, wrong, *mistake);
                "refused"
            }
            Step::Missing(call, absent, queued) => {
                self.without(call, *absent, None, queued, strict, tally);
                "timed out"
            }
            Step::Aborted(call, absent, micros, queued) => {
                self.without(call, *absent, Some(*micros), queued, strict, tally);
                "aborted"
            }
            Step::Disagree(call, odd, other, field, queued) => {
                self.disagree(call, *odd, other, field, queued);
                "mismatched"
            }
            Step::Hurried(call, micros) => match self.hurried(call, *micros) {
                true => "hurried and right",
                false => "hurried and timed out",
            },
            Step::ResetWithout(absent) => {
                self.reset_without(*absent);
                "resets that miss a rank"
            }
        };
        tally.operations += step.operations();
        *tally.kinds.entry(kind).or_default() += step.operations();
    }

    /// Goes, with a call in flight or without.
    fn end(self, how: End) {
        let begin = Instant::now();
        if how != End::Idle {
            let streams = self.streams();
            let mut data: Vec<_> = (streams.iter())
                .map(|(_, stream)| Guarded::<B>::new(stream, DType::U8, 100, 1))
                .collect();
            match &self {
                World::Together(comm) => {
                    let flight = comm.broadcast_in_place(data.iter_mut().map(Guarded::output), 0).expect("launch");
                    if how == End::Aborted {
                        comm.abort();
                    }
                    drop(self);
                    drop(flight);
                }
                World::Apart(cells, _) => {
                    // The last rank does not come, if there are two.
                    let what = Broadcast::from_root(cells.len() - 1).timeout(SHORT);
                    let comm = cells[0].lock();
                    let flight = comm.broadcast_in_place(data[0].output(), what).expect("launch");
                    if how == End::Aborted {
                        comm.abort();
                    }
                    drop(comm);
                    drop(self);
                    drop(flight);
                }
            }
            // Looks at the guards: with the communicator the buffers are free.
            data.iter().for_each(|buffer| drop(buffer.data()));
        }
        assert!(begin.elapsed() < SLACK, "the drops took {:?}", begin.elapsed());
    }
}

/// The collectives of a chain, in place.
fn what((link, blocks): &(Link, Option<u32>)) -> (Option<Broadcast>, ReduceScatter) {
    match *link {
        Link::Broadcast { root, algorithm } => {
            let what = Broadcast::from_root(root).algorithm(algorithm);
            let what = if let Some(blocks) = blocks { what.max_blocks(*blocks) } else { what };
            (Some(what), ReduceScatter::new(crossccl::ReduceOp::Sum))
        }
        Link::ReduceScatter { op, group } => {
            let what = ReduceScatter::new(op).group_size(group);
            (None, if let Some(blocks) = blocks { what.max_blocks(*blocks) } else { what })
        }
    }
}

fn group_of((link, _): &(Link, Option<u32>)) -> Option<usize> {
    match link {
        Link::Broadcast { .. } => None,
        Link::ReduceScatter { group, .. } => Some(*group),
    }
}

/// Runs a program, without the steps that `without` says; panics where something is wrong.
fn run(program: &Program, without: &[usize], tally: &mut Tally) {
    memory_for(if program.coherent { Algorithm::TwoStageDirect } else { Algorithm::Auto });
    let agreement = if program.strict { Agreement::Strict } else { Agreement::Dependent };
    let comm = builder::<B>((0..program.ranks).rev())
        .timeout(LONG)
        .agreement(agreement)
        .payload_bytes(program.payload)
        .build()
        .expect("communicator");
    let mut steps = program.steps.clone();
    // What this memory or this payload does not offer is left to the planner.
    for (algorithm, count, dtype) in steps.iter_mut().flat_map(Step::algorithms) {
        let what = Broadcast::from_root(0).algorithm(*algorithm);
        if let Err(error) = comm.plan_broadcast(count, dtype, what) {
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            *algorithm = Algorithm::Auto;
        }
    }
    let world = if program.together {
        World::Together(comm)
    } else {
        let streams = (0..comm.ranks()).map(|r| comm.stream(r).expect("a rank").clone()).collect();
        World::Apart(cells(comm.into_ranks()), streams)
    };
    for (_, step) in steps.iter().enumerate().filter(|(at, _)| !without.contains(at)) {
        world.step(step, program.strict, tally);
    }
    world.end(program.end);
}

/// Ends the process where a program hangs.
fn watched<R>(program: &Program, body: impl FnOnce() -> R) -> R {
    let (done, wait): (Sender<()>, Receiver<()>) = channel();
    let seed = program.seed;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(HANGS) == Err(RecvTimeoutError::Timeout) {
                eprintln!("program {seed} of {} hangs; again: CROSSCCL_PROGRAM={seed}", B::NAME);
                std::process::abort();
            }
        });
        let result = body();
        drop(done);
        result
    })
}

fn fails(program: &Program, without: &[usize], tally: &mut Tally) -> Option<String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| watched(program, || run(program, without, tally))));
    let panic = outcome.err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
}

/// The steps that a failing program still fails without, and what it then says.
fn shrink(program: &Program, mut says: String) -> (Vec<usize>, String) {
    let begin = Instant::now();
    let mut without: Vec<usize> = Vec::new();
    let mut piece = program.steps.len().div_ceil(2).max(1);
    loop {
        for start in (0..program.steps.len()).step_by(piece) {
            let more: Vec<usize> = (start..program.steps.len().min(start + piece)).filter(|at| !without.contains(at)).collect();
            if more.is_empty() || begin.elapsed() > SHRINKING {
                continue;
            }
            let tried = [&without[..], &more].concat();
            if let Some(text) = fails(program, &tried, &mut Tally::default()) {
                (without, says) = (tried, text);
            }
        }
        if piece == 1 {
            return (without, says);
        }
        piece = piece.div_ceil(2);
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: expected a number")))
}

fn programs(seeds: impl IntoIterator<Item = u64>, operations: usize) -> Tally {
    let begin = Instant::now();
    let (mut tally, mut programs) = (Tally::default(), 0);
    for seed in seeds {
        let program = Program::new(seed);
        if let Some(says) = fails(&program, &[], &mut tally) {
            let (without, says) = shrink(&program, says);
            let steps = program.steps.iter().enumerate().filter(|(at, _)| !without.contains(at));
            let left: Vec<_> = steps.map(|(at, step)| format!("  {at}: {step:?}")).collect();
            panic!(
                "program {seed} fails: {} ranks, {}, strict: {}, payload {}, coherent: {}, end {:?}; with\n{}\n{says}\n\
                 again: CROSSCCL_PROGRAM={seed} cargo test --test matrix {}::programs",
                program.ranks,
                if program.together { "together" } else { "a thread each" },
                program.strict,
                program.payload,
                program.coherent,
                program.end,
                left.join("\n"),
                B::NAME
            );
        }
        programs += 1;
        if tally.operations >= operations {
            break;
        }
        if programs % 500 == 0 {
            eprintln!("{programs} programs to number {seed}, {} operations, {:.0?}", tally.operations, begin.elapsed());
        }
    }
    println!(
        "{}: {programs} programs, {} operations in {:.1?}: {:?}; failures came at most {:.0?} after their limit",
        B::NAME, tally.operations, begin.elapsed(), tally.kinds, tally.beyond
    );
    tally
}

/// In four parts, which `cargo test` runs at the same time.
#[rstest]
fn random_programs(#[values(0, 1, 2, 3)] quarter: u64) {
    needs_device!(8);
    // The stand-ins run the same kernels; on hardware more ranks than devices share them.
    let least = if B::NAME == "cpu" { 5000 } else { 1000 };
    let (first, operations) = (number("CROSSCCL_PROGRAM"), number("CROSSCCL_OPERATIONS"));
    let tally = match (first, operations) {
        (Some(first), None) => return drop(programs([first], usize::MAX)),
        (first, Some(operations)) => {
            let first = first.unwrap_or(1_000_000) + quarter;
            programs((first..).step_by(4), operations as usize / 4)
        }
        (None, None) => programs((quarter..).step_by(4), least),
    };
    assert!(tally.operations >= least, "{} operations ran", tally.operations);
    for kind in ["calls", "replayed calls", "calls by address", "refused", "timed out", "aborted", "mismatched"] {
        assert!(tally.kinds.contains_key(kind), "no {kind}: {:?}", tally.kinds);
    }
}

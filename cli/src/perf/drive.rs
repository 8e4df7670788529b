//! Who calls: one thread for all ranks, or a thread for each.

use std::{sync::mpsc, thread, time::Duration, time::Instant};

use crossccl::{Backend, Communicator, RankComm};

use super::repeat::Repeat;
use crate::error::CliError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Drive {
    OneCall,
    ThreadARank,
    Inline,
}

impl Drive {
    /// What the JSON document calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Drive::OneCall => "one-call",
            Drive::ThreadARank => "thread-a-rank",
            Drive::Inline => "inline",
        }
    }

    /// What people read.
    pub(crate) fn told(self) -> &'static str {
        match self {
            Drive::OneCall => "one call for all",
            Drive::ThreadARank => "a thread each",
            Drive::Inline => "a thread each, which runs the rank's blocks itself",
        }
    }
}

/// The ranks in the hands of who calls.
pub(crate) enum Ranks<B: Backend> {
    OneCall(Communicator<B>),
    Threads(Vec<RankComm<B>>),
}

impl<B: Backend> Ranks<B> {
    pub(crate) fn new(comm: Communicator<B>, drive: Drive) -> Self {
        match drive {
            Drive::OneCall => Ranks::OneCall(comm),
            Drive::ThreadARank | Drive::Inline => Ranks::Threads(comm.into_ranks()),
        }
    }

    pub(crate) fn caller(&mut self) -> Caller<'_, B> {
        match self {
            Ranks::OneCall(comm) => Caller::OneCall(comm),
            Ranks::Threads(ranks) => Caller::Threads(ranks),
        }
    }
}

/// Who calls.
pub(crate) enum Caller<'r, B: Backend> {
    OneCall(&'r Communicator<B>),
    Threads(&'r mut [RankComm<B>]),
}

/// One rank's part of a call, and its wait.
pub(crate) type RankCall<'b, B> = Box<dyn FnMut(&RankComm<B>) -> crossccl::Result<()> + Send + 'b>;

/// Calls of each rank by a thread of its own, each at its own pace: `warmup` of them, then as often as `repeat` asks for
/// `row` in a row, after `before` each time. A row's time is from the first rank to begin to the last to end; what it
/// takes a call is told.
pub(crate) fn timed<B: Backend>(
    ranks: &mut [RankComm<B>],
    calls: Vec<RankCall<'_, B>>,
    (warmup, row): (u32, u32),
    repeat: Repeat,
    mut before: impl FnMut() -> Result<(), CliError>,
) -> Result<Vec<Duration>, CliError> {
    thread::scope(|scope| {
        // Without its order a thread ends: it does when this one leaves, for whatever reason.
        let (told, ends) = mpsc::channel();
        let mut threads: Vec<mpsc::Sender<u32>> = Vec::new();
        for (rank, mut call) in ranks.iter_mut().zip(calls) {
            let (order, orders) = mpsc::channel();
            let told = told.clone();
            let work = move || {
                for calls in orders {
                    if told.send(in_a_row(rank, &mut call, calls)).is_err() {
                        break;
                    }
                }
            };
            thread::Builder::new()
                .spawn_scoped(scope, work)
                .map_err(|error| CliError::no_thread("a thread for each rank", &error))?;
            threads.push(order);
        }
        drop(told);
        let together = |calls: u32| -> Result<Duration, CliError> {
            for order in &threads {
                order.send(calls).map_err(|_| CliError::Failure("the thread of a rank has ended early".into()))?;
            }
            let mut ends: Vec<crossccl::Result<_>> = ends.iter().take(threads.len()).collect();
            // Why a rank failed says more than that another one was refused for it.
            ends.sort_by_key(|end| matches!(end, Err(crossccl::Error::Poisoned { .. })));
            let spans = ends.into_iter().collect::<crossccl::Result<Vec<(Instant, Instant)>>>()?;
            let begin = spans.iter().map(|(begin, _)| *begin).min();
            let end = spans.iter().map(|(_, end)| *end).max();
            Ok(begin.zip(end).map_or(Duration::ZERO, |(begin, end)| end - begin))
        };
        if warmup > 0 {
            together(warmup)?;
        }
        let begin = Instant::now();
        repeat.samples(
            || begin.elapsed(),
            || {
                before()?;
                Ok(together(row)? / row)
            },
        )
    })
}

fn in_a_row<B: Backend>(
    rank: &RankComm<B>,
    call: &mut RankCall<'_, B>,
    calls: u32,
) -> crossccl::Result<(Instant, Instant)> {
    let begin = Instant::now();
    for _ in 0..calls {
        call(rank)?;
    }
    Ok((begin, Instant::now()))
}

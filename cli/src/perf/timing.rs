//! How the time of a call is taken, and what lies in the caches before it.

use std::time::{Duration, Instant};

use crossccl::{Backend, Buffer, Communicator, Replay};

use super::{
    Clock, CommonArguments,
    drive::{self, Caller},
    job::{Job, Place},
    repeat::Repeat,
};
use crate::error::CliError;

/// Calls in the shorter and in the longer graph: enough of them that what a graph costs by itself does not count, few
/// enough that a sample of a large size does not take seconds.
fn graph_calls(bytes: u64) -> (usize, usize) {
    match bytes {
        0..=0x10_0000 => (5, 45),
        0x10_0001..=0x400_0000 => (2, 12),
        _ => (1, 4),
    }
}

/// Calls of a thread a rank in a row: as many as it takes that who begins first does not count; one, where it lasts or is
/// to find its data in no cache.
fn row(bytes: u64, cold: bool) -> u32 {
    match bytes {
        _ if cold => 1,
        0..=0x1_0000 => 40,
        0x1_0001..=0x10_0000 => 10,
        _ => 1,
    }
}

pub(crate) struct Timing {
    clock: Clock,
    warmup: u32,
    pub(crate) repeat: Repeat,
    calls: (usize, usize),
    row: u32,
    places: usize,
}

impl Timing {
    /// For calls of `bytes`, on devices whose caches hold `cache` (0: they need not be cold).
    pub(crate) fn new(clock: Clock, common: &CommonArguments, bytes: u64, cache: u64) -> Self {
        let calls = graph_calls(bytes);
        // Nothing can be done between the calls of a graph: each finds its data where none has been before it.
        let places = if clock == Clock::Graph { cache.div_ceil(bytes.max(1)).clamp(1, calls.1 as u64) } else { 1 };
        let row = row(bytes, cache > 0);
        Timing { clock, warmup: common.warmup, repeat: common.repeat(), calls, row, places: places as usize }
    }

    /// Places that each buffer must have.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// The timed calls, or in graphs and of threads their averages.
    pub(crate) fn samples<B: Backend>(
        &self,
        caller: Caller<'_, B>,
        job: &mut dyn Job<B>,
        place: Place,
        caches: &mut Option<Caches<B>>,
    ) -> Result<Vec<Duration>, CliError> {
        let mut flush = || caches.as_mut().map_or(Ok(()), Caches::flush);
        let comm = match caller {
            Caller::OneCall(comm) => comm,
            Caller::Threads(ranks) => {
                return drive::timed(ranks, job.calls(place), (self.warmup, self.row), self.repeat, flush);
            }
        };
        for _ in 0..self.warmup {
            job.call(comm, place, 0)?.wait()?;
        }
        match self.clock {
            Clock::Host => self.timed(|| {
                flush()?;
                let begin = Instant::now();
                job.call(comm, place, 0)?.wait()?;
                Ok(begin.elapsed())
            }),
            Clock::Events => self.timed(|| {
                flush()?;
                let begin = events(comm)?;
                let flight = job.call(comm, place, 0)?;
                let end = events(comm)?;
                flight.wait()?;
                elapsed::<B>(&begin, &end)
            }),
            Clock::Graph => {
                let (few, many) = self.calls;
                let (short, long) = (self.graph(comm, job, place, few)?, self.graph(comm, job, place, many)?);
                let mut time = |replay: &Replay<B>| -> Result<Duration, CliError> {
                    flush()?;
                    let begin = Instant::now();
                    replay.launch()?.wait()?;
                    Ok(begin.elapsed())
                };
                // The first launch of each carries it to the devices.
                time(&short)?;
                time(&long)?;
                self.timed(|| {
                    let (short, long) = (time(&short)?, time(&long)?);
                    Ok(long.saturating_sub(short) / (many - few) as u32)
                })
            }
        }
    }

    /// As often as was asked for.
    fn timed(&self, sample: impl FnMut() -> Result<Duration, CliError>) -> Result<Vec<Duration>, CliError> {
        let begin = Instant::now();
        self.repeat.samples(|| begin.elapsed(), sample)
    }

    fn graph<B: Backend>(
        &self,
        comm: &Communicator<B>,
        job: &mut dyn Job<B>,
        place: Place,
        calls: usize,
    ) -> Result<Replay<B>, CliError> {
        let mut recording = comm.record();
        (0..calls).try_for_each(|call| job.record(place, call % self.places, &mut recording))?;
        Ok(recording.finish()?)
    }
}

/// An event on each rank's stream.
fn events<B: Backend>(comm: &Communicator<B>) -> Result<Vec<B::Event>, CliError> {
    (0..comm.ranks()).filter_map(|rank| comm.stream(rank)).map(|stream| told(B::record_timed(stream))).collect()
}

/// What the slowest rank took.
fn elapsed<B: Backend>(begin: &[B::Event], end: &[B::Event]) -> Result<Duration, CliError> {
    let mut slowest = Duration::ZERO;
    for (begin, end) in begin.iter().zip(end) {
        told(B::wait(end, None))?;
        slowest = slowest.max(told(B::elapsed(begin, end))?);
    }
    Ok(slowest)
}

fn told<T>(answer: Result<T, crossccl::Fault>) -> Result<T, CliError> {
    answer.map_err(|fault| CliError::Failure(format!("{} answered {} ({})", fault.call, fault.name, fault.code)))
}

/// Memory on each device to fill its caches with.
pub(crate) struct Caches<B: Backend> {
    /// Of the largest.
    pub(crate) bytes: u64,
    fill: Vec<Buffer<B, u8>>,
    byte: u8,
}

impl<B: Backend> Caches<B> {
    /// On the devices of one rank a stream.
    pub(crate) fn new(streams: &[B::Stream]) -> Result<Self, CliError> {
        let (mut bytes, mut fill, mut devices) = (0, Vec::new(), Vec::new());
        for stream in streams {
            let device = B::device_of(stream);
            if devices.contains(&device) {
                continue;
            }
            let cache = told(B::properties(&device, streams.len(), 1))?.cache;
            // Twice, as caches do not forget what is oldest strictly.
            fill.push(Buffer::new(stream, 2 * cache as usize)?);
            devices.push(device);
            bytes = cache.max(bytes);
        }
        Ok(Caches { bytes, fill, byte: 0 })
    }

    fn flush(&mut self) -> Result<(), CliError> {
        self.byte = self.byte.wrapping_add(1);
        self.fill.iter_mut().try_for_each(|buffer| Ok(buffer.fill_bytes(self.byte)?))
    }
}

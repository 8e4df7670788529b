//! One collective at one size: its buffers, one call, and whether the call did what it should.
//!
//! Every allocation begins with the elements asked for by `--unalign` and ends with guard elements. They
//! and every output hold a poison before a call, and all of the allocation is compared after it: so what
//! was not written and what was written in the wrong place both count.

use std::ops::Range;

use crossccl::{Backend, Broadcast, Buffer, Communicator, InFlight, Recording, ReduceScatter, SliceMut, Untyped};

use super::{
    cases::Case,
    check::{Oracle, Part, Tally},
    drive::RankCall,
    values::{Source, Values},
};
use crate::{
    backend::{is_host, memory_of_ranks},
    error::CliError,
    memory,
};

/// What takes less memory.
const LOWER: &str = "--max-bytes or --ranks";
const POISON: u8 = 0xa7;
/// Elements behind the data of each buffer.
const GUARD: usize = 16;
/// Elements: at least a line of any memory.
const ALIGNED: usize = 256;

/// What is in the inputs while calls are timed.
pub(crate) const TIMING: Source = Source { seed: 1, values: Values::Plain };

/// What is in them when the result is verified: other values than before, in each place, so that no
/// result of an earlier call can pass for the new one.
pub(crate) fn verifying(place: Place) -> Source {
    Source { seed: 2 + place as u64, values: Values::Hard }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Out,
    In,
}

/// A collective that can be called again and again, on one of several places of its buffers, so that a call can find
/// its data where the calls before have not been.
pub(crate) trait Job<B: Backend> {
    /// Fills the inputs from `source` and everything else with poison.
    fn prepare(&mut self, place: Place, source: Source) -> Result<(), CliError>;
    /// One call for all ranks.
    fn call(&mut self, comm: &Communicator<B>, place: Place, at: usize) -> Result<InFlight<'_, B>, CliError>;
    /// Each rank's part of a call at 0, for a thread of its own.
    fn calls(&mut self, place: Place) -> Vec<RankCall<'_, B>>;
    /// One call, recorded.
    fn record(&mut self, place: Place, at: usize, into: &mut Recording<B>) -> Result<(), CliError>;
    /// Compares all memory after one call at 0 with what it should be.
    fn verify(&mut self, place: Place, source: Source) -> Result<Tally, CliError>;
    /// What the bus bandwidth is, in algorithm bandwidths.
    fn bus_factor(&self) -> f64;
}

/// What the jobs share.
pub(crate) struct Bench<'c, B: Backend> {
    /// One a rank.
    streams: &'c [B::Stream],
    oracle: Oracle,
    case: Case,
    unalign: usize,
    /// How many places each buffer has.
    places: usize,
    want: Vec<u8>,
    got: Vec<u8>,
}

impl<'c, B: Backend> Bench<'c, B> {
    pub(crate) fn new(streams: &'c [B::Stream], case: &Case, unalign: usize, places: usize) -> Result<Self, CliError> {
        let oracle = Oracle::new(case.dtype, case.op)?;
        Ok(Bench { streams, oracle, case: *case, unalign, places, want: Vec::new(), got: Vec::new() })
    }

    fn buffer(&self, rank: usize, count: usize) -> Result<Buffer<B, Untyped>, CliError> {
        let Some(stream) = self.streams.get(rank) else {
            return Err(CliError::Usage(format!(
                "there is no rank {rank}; the ranks are 0 to {}",
                self.streams.len().saturating_sub(1)
            )));
        };
        Ok(Buffer::with_dtype(stream, self.case.dtype, self.len(count))?)
    }

    /// Elements of a buffer for calls on `count` of them.
    fn len(&self, count: usize) -> usize {
        // A sum that does not fit is refused as too large like any other.
        let len = self.step(count).saturating_mul(self.places - 1).saturating_add(count);
        len.saturating_add(self.unalign).saturating_add(GUARD)
    }

    /// Refuses buffers for these numbers of elements, and what verifies them, if the host has no memory for them. That
    /// devices have some, their drivers say.
    pub(crate) fn fits(&self, counts: &[usize]) -> Result<(), CliError> {
        let (ranks, size) = (self.streams.len(), self.case.dtype.size() as u64);
        let bytes = |count: usize| (self.len(count) as u64).saturating_mul(size);
        let buffers = if is_host::<B>() { counts } else { &[] };
        // What is expected of a buffer, and what was found.
        let verifying = bytes(self.case.count).saturating_mul(2);
        let needed = buffers.iter().fold(verifying, |sum, count| sum.saturating_add(bytes(*count)));
        let (case, dtype) = (self.case.bytes, self.case.dtype);
        let what = format!("{case} bytes of {dtype} for {ranks} ranks");
        memory::check(&what, needed.saturating_add(memory_of_ranks::<B>(ranks)), LOWER)
    }

    /// Elements from one place to the next: all are aligned alike.
    fn step(&self, count: usize) -> usize {
        count.saturating_add(GUARD).checked_next_multiple_of(ALIGNED).unwrap_or(usize::MAX)
    }

    /// The elements of a buffer that one call works on, `count` of them: the first place is between what was skipped
    /// and a guard.
    fn data(&self, count: usize, at: usize) -> Range<usize> {
        let start = self.unalign + self.step(count) * at;
        start..start + count
    }

    /// What `buffer` should hold: `fill` writes the data, the rest is poison.
    fn expect(
        &mut self,
        buffer: &Buffer<B, Untyped>,
        count: usize,
        fill: impl FnOnce(&Oracle, &mut [u8]),
    ) -> Result<(), CliError> {
        memory::resize(&mut self.want, buffer.size_in_bytes(), LOWER)?;
        self.want.fill(POISON);
        let (data, size) = (self.data(count, 0), self.case.dtype.size());
        fill(&self.oracle, &mut self.want[data.start * size..data.end * size]);
        Ok(())
    }

    fn put(
        &mut self,
        buffer: &mut Buffer<B, Untyped>,
        count: usize,
        fill: impl FnOnce(&Oracle, &mut [u8]),
    ) -> Result<(), CliError> {
        self.expect(buffer, count, fill)?;
        Ok(buffer.write_bytes(&self.want)?)
    }

    /// Compares `buffer` with what was last expected.
    fn compare(&mut self, buffer: &Buffer<B, Untyped>, tally: &mut Tally) -> Result<(), CliError> {
        memory::resize(&mut self.got, buffer.size_in_bytes(), LOWER)?;
        buffer.read_bytes(&mut self.got)?;
        tally.compare(&self.want, &self.got, self.case.dtype.size());
        Ok(())
    }
}

pub(crate) struct BroadcastJob<'c, B: Backend> {
    bench: Bench<'c, B>,
    what: Broadcast,
    root: usize,
    /// On the root.
    input: Buffer<B, Untyped>,
    outputs: Vec<Buffer<B, Untyped>>,
}

impl<'c, B: Backend> BroadcastJob<'c, B> {
    pub(crate) fn new(bench: Bench<'c, B>, what: Broadcast) -> Result<Self, CliError> {
        let (root, count) = (bench.case.root.unwrap_or(0), bench.case.count);
        let input = bench.buffer(root, count)?;
        let outputs = (0..bench.streams.len()).map(|rank| bench.buffer(rank, count)).collect::<Result<_, _>>()?;
        Ok(BroadcastJob { bench, what, root, input, outputs })
    }

    /// A broadcast must not look at what it moves.
    fn fill(&self, source: Source) -> impl FnOnce(&Oracle, &mut [u8]) + use<B> {
        let (source, root) = (Source { values: Values::Bits, ..source }, self.root);
        move |oracle, data| oracle.input(source, root, 0, data)
    }
}

impl<B: Backend> Job<B> for BroadcastJob<'_, B> {
    fn prepare(&mut self, place: Place, source: Source) -> Result<(), CliError> {
        let (fill, count) = (self.fill(source), self.bench.case.count);
        for output in &mut self.outputs {
            self.bench.put(output, count, |_, _| ())?;
        }
        self.bench.put(if place == Place::Out { &mut self.input } else { &mut self.outputs[self.root] }, count, fill)
    }

    fn call(&mut self, comm: &Communicator<B>, place: Place, at: usize) -> Result<InFlight<'_, B>, CliError> {
        let (what, data) = (self.what.clone(), self.bench.data(self.bench.case.count, at));
        let outputs = slices_mut(self.outputs.iter_mut().map(|output| (output, data.clone())))?;
        Ok(match place {
            Place::Out => comm.broadcast(self.input.slice(data)?, outputs, what)?,
            Place::In => comm.broadcast_in_place(outputs, what)?,
        })
    }

    fn calls(&mut self, place: Place) -> Vec<RankCall<'_, B>> {
        let (what, data, root) = (&self.what, self.bench.data(self.bench.case.count, 0), self.root);
        let mut calls: Vec<RankCall<'_, B>> = Vec::new();
        for (rank, output) in self.outputs.iter_mut().enumerate() {
            let (input, data) = ((rank == root).then_some(&self.input), data.clone());
            calls.push(Box::new(move |comm| match place {
                Place::Out => {
                    let input = input.map(|input| input.slice(data.clone())).transpose()?;
                    comm.broadcast(input, output.slice_mut(data.clone())?, what.clone())?.wait()
                }
                Place::In => comm.broadcast_in_place(output.slice_mut(data.clone())?, what.clone())?.wait(),
            }));
        }
        calls
    }

    fn record(&mut self, place: Place, at: usize, into: &mut Recording<B>) -> Result<(), CliError> {
        let (what, data) = (self.what.clone(), self.bench.data(self.bench.case.count, at));
        let outputs = slices_mut(self.outputs.iter_mut().map(|output| (output, data.clone())))?;
        match place {
            Place::Out => into.broadcast(self.input.slice(data)?, outputs, what)?,
            Place::In => into.broadcast_in_place(outputs, what)?,
        };
        Ok(())
    }

    fn verify(&mut self, place: Place, source: Source) -> Result<Tally, CliError> {
        let mut tally = Tally::default();
        // All buffers are alike, the input included.
        let fill = self.fill(source);
        self.bench.expect(&self.input, self.bench.case.count, fill)?;
        for output in &self.outputs {
            self.bench.compare(output, &mut tally)?;
        }
        if place == Place::Out {
            self.bench.compare(&self.input, &mut tally)?;
        }
        Ok(tally)
    }

    fn bus_factor(&self) -> f64 {
        1.0
    }
}

/// A part of each buffer, as outputs.
fn slices_mut<'b, B: Backend>(
    parts: impl Iterator<Item = (&'b mut Buffer<B, Untyped>, Range<usize>)>,
) -> Result<Vec<SliceMut<'b, B, Untyped>>, CliError> {
    parts.map(|(buffer, range)| Ok(buffer.slice_mut(range)?)).collect()
}

pub(crate) struct ReduceScatterJob<'c, B: Backend> {
    bench: Bench<'c, B>,
    what: ReduceScatter,
    group_size: usize,
    parts: Vec<Part>,
    inputs: Vec<Buffer<B, Untyped>>,
    outputs: Vec<Buffer<B, Untyped>>,
}

impl<'c, B: Backend> ReduceScatterJob<'c, B> {
    /// `axis` is one of `shape`; `group_size` divides the number of ranks.
    pub(crate) fn new(
        bench: Bench<'c, B>,
        what: ReduceScatter,
        shape: &[usize],
        axis: usize,
        group_size: usize,
    ) -> Result<Self, CliError> {
        let ranks = 0..bench.streams.len();
        let parts: Vec<Part> = ranks.clone().map(|r| Part::new(shape, axis, group_size, r % group_size)).collect();
        let inputs = ranks.clone().map(|r| bench.buffer(r, bench.case.count)).collect::<Result<_, _>>()?;
        let outputs = ranks.map(|r| bench.buffer(r, parts[r].count())).collect::<Result<_, _>>()?;
        Ok(ReduceScatterJob { bench, what, group_size, parts, inputs, outputs })
    }

    fn group(&self, rank: usize) -> Range<usize> {
        let first = rank / self.group_size * self.group_size;
        first..first + self.group_size
    }
}

impl<B: Backend> ReduceScatterJob<'_, B> {
    fn input_data(&self, at: usize) -> Range<usize> {
        self.bench.data(self.bench.case.count, at)
    }

    fn output_data(&self, at: usize) -> Vec<Range<usize>> {
        self.parts.iter().map(|part| self.bench.data(part.count(), at)).collect()
    }
}

impl<B: Backend> Job<B> for ReduceScatterJob<'_, B> {
    fn prepare(&mut self, place: Place, source: Source) -> Result<(), CliError> {
        let count = self.bench.case.count;
        for (rank, input) in self.inputs.iter_mut().enumerate() {
            self.bench.put(input, count, |oracle, data| oracle.input(source, rank, 0, data))?;
        }
        if place == Place::Out {
            for (output, part) in self.outputs.iter_mut().zip(&self.parts) {
                self.bench.put(output, part.count(), |_, _| ())?;
            }
        }
        Ok(())
    }

    fn call(&mut self, comm: &Communicator<B>, place: Place, at: usize) -> Result<InFlight<'_, B>, CliError> {
        let what = self.what.clone();
        let (data, parts) = (self.input_data(at), self.output_data(at));
        if place == Place::In {
            let buffers = slices_mut(self.inputs.iter_mut().map(|buffer| (buffer, data.clone())))?;
            return Ok(comm.reduce_scatter_in_place(buffers, what)?);
        }
        let inputs = self.inputs.iter().map(|input| input.slice(data.clone())).collect::<Result<Vec<_>, _>>()?;
        Ok(comm.reduce_scatter(inputs, slices_mut(self.outputs.iter_mut().zip(parts))?, what)?)
    }

    fn calls(&mut self, place: Place) -> Vec<RankCall<'_, B>> {
        let (data, parts, what) = (self.input_data(0), self.output_data(0), &self.what);
        let mut calls: Vec<RankCall<'_, B>> = Vec::new();
        for ((input, output), part) in self.inputs.iter_mut().zip(&mut self.outputs).zip(parts) {
            let data = data.clone();
            calls.push(Box::new(move |comm| match place {
                Place::Out => {
                    let output = output.slice_mut(part.clone())?;
                    comm.reduce_scatter(input.slice(data.clone())?, output, what.clone())?.wait()
                }
                Place::In => comm.reduce_scatter_in_place(input.slice_mut(data.clone())?, what.clone())?.wait(),
            }));
        }
        calls
    }

    fn record(&mut self, place: Place, at: usize, into: &mut Recording<B>) -> Result<(), CliError> {
        let what = self.what.clone();
        let (data, parts) = (self.input_data(at), self.output_data(at));
        if place == Place::In {
            let buffers = slices_mut(self.inputs.iter_mut().map(|buffer| (buffer, data.clone())))?;
            into.reduce_scatter_in_place(buffers, what)?;
            return Ok(());
        }
        let inputs = self.inputs.iter().map(|input| input.slice(data.clone())).collect::<Result<Vec<_>, _>>()?;
        into.reduce_scatter(inputs, slices_mut(self.outputs.iter_mut().zip(parts))?, what)?;
        Ok(())
    }

    fn verify(&mut self, place: Place, source: Source) -> Result<Tally, CliError> {
        let mut tally = Tally::default();
        let (count, size) = (self.bench.case.count, self.bench.case.dtype.size());
        for (rank, part) in self.parts.iter().enumerate() {
            let group = self.group(rank);
            let input = |oracle: &Oracle, data: &mut [u8]| oracle.input(source, rank, 0, data);
            match place {
                Place::Out => {
                    self.bench.expect(&self.outputs[rank], part.count(), |oracle, data| {
                        // An empty part has no runs to speak of.
                        for (row, run) in data.chunks_exact_mut((part.run * size).max(1)).enumerate() {
                            oracle.reduced(source, group.clone(), part.offset + row * part.stride, run);
                        }
                    })?;
                    self.bench.compare(&self.outputs[rank], &mut tally)?;
                    self.bench.expect(&self.inputs[rank], count, input)?;
                }
                // Along axis 0 a part is one run.
                Place::In => self.bench.expect(&self.inputs[rank], count, |oracle, data| {
                    input(oracle, data);
                    let own = &mut data[part.offset * size..(part.offset + part.run) * size];
                    oracle.reduced(source, group, part.offset, own);
                })?,
            }
            self.bench.compare(&self.inputs[rank], &mut tally)?;
        }
        Ok(tally)
    }

    fn bus_factor(&self) -> f64 {
        (self.group_size - 1) as f64 / self.group_size as f64
    }
}

//! Broadcast: the root's input to every rank's output.

use smallvec::SmallVec;

use super::{
    Options, Prepared, Span, bytes_of, check_address, check_len, check_overlaps, check_view, invalid, option_setters,
};
use crate::{
    backend::{Backend, MemoryKind},
    buffer::View,
    communicator::Shared,
    dtype::DType,
    error::Result,
    plan::{
        Algorithm, Explanation, Plan,
        request::{Collective, Request},
    },
    rank::Rank,
    raw::RawRank,
};

const OPERATION: &str = "broadcast";

/// A broadcast from one rank to all. Any dtype, any element-aligned address, any length; every bit
/// pattern arrives unchanged.
///
/// A rank number is enough where the options are left alone:
/// `comm.broadcast(&input, &mut outputs, 0)`.
#[derive(Clone, Debug)]
pub struct Broadcast {
    pub(crate) root: Rank,
    pub(crate) options: Options,
}

impl Broadcast {
    /// A broadcast from `root`.
    pub fn from_root(root: impl Into<Rank>) -> Self {
        Broadcast { root: root.into(), options: Options::default() }
    }

    option_setters!();
}

impl From<usize> for Broadcast {
    fn from(root: usize) -> Self {
        Broadcast::from_root(root)
    }
}

impl From<Rank> for Broadcast {
    fn from(root: Rank) -> Self {
        Broadcast::from_root(root)
    }
}

impl Broadcast {
    fn root<B: Backend>(&self, shared: &Shared<B>) -> Result<usize> {
        let ranks = shared.ranks.len();
        if self.root.index() < ranks {
            return Ok(self.root.index());
        }
        Err(invalid(OPERATION, None, "root", format!("a rank from 0 to {}", ranks - 1), self.root))
    }

    fn request<B: Backend>(&self, shared: &Shared<B>, root: usize, count: u64, dtype: DType) -> Request {
        Request { ranks: shared.ranks.len(), dtype, count, collective: Collective::Broadcast { root } }
    }

    /// The plan for `count` elements, without buffers.
    pub(crate) fn plan<B: Backend>(&self, shared: &Shared<B>, count: u64, dtype: DType) -> Result<Plan> {
        let root = self.root(shared)?;
        bytes_of(OPERATION, root, count, dtype)?;
        self.options.plan(shared, &self.request(shared, root, count, dtype))
    }

    /// Why that plan.
    pub(crate) fn explain<B: Backend>(&self, shared: &Shared<B>, count: u64, dtype: DType) -> Result<Explanation> {
        let root = self.root(shared)?;
        bytes_of(OPERATION, root, count, dtype)?;
        self.options.explain(shared, &self.request(shared, root, count, dtype))
    }

    /// All ranks at once: `input` is the root's, `outputs` are one a rank. An output of the root
    /// that equals the input is in place.
    pub(crate) fn prepare_all<B: Backend>(
        &self,
        shared: &Shared<B>,
        input: &View<B>,
        outputs: &[View<B>],
    ) -> Result<SmallVec<[Prepared; 8]>> {
        let root = self.root(shared)?;
        check_len(OPERATION, "outputs", shared.ranks.len(), outputs.len())?;
        check_view(shared, OPERATION, root, "input", input, input.dtype)?;
        for (rank, output) in outputs.iter().enumerate() {
            check_view(shared, OPERATION, rank, "output", output, input.dtype)?;
            if output.count != input.count {
                let expected = format!("{} elements, as the input of the root", input.count);
                return Err(invalid(OPERATION, Some(rank), "output", expected, output.count));
            }
        }
        let ranks: SmallVec<[RawRank; 8]> = outputs.iter().map(|o| RawRank::new(input.address, o.address)).collect();
        let prepared = self.prepare_all_raw(shared, &ranks, input.count, input.dtype)?;
        for (one, output) in prepared.iter().zip(outputs) {
            check_coherence(shared, one, output)?;
        }
        Ok(prepared)
    }

    /// All ranks at once, by address.
    pub(crate) fn prepare_all_raw<B: Backend>(
        &self,
        shared: &Shared<B>,
        ranks: &[RawRank],
        count: u64,
        dtype: DType,
    ) -> Result<SmallVec<[Prepared; 8]>> {
        let root = self.root(shared)?;
        check_len(OPERATION, "ranks", shared.ranks.len(), ranks.len())?;
        let bytes = bytes_of(OPERATION, root, count, dtype)?;
        check_address(OPERATION, root, "input", Span { address: ranks[root].send, bytes }, dtype)?;
        for (rank, raw) in ranks.iter().enumerate() {
            check_output(rank, *raw, bytes, dtype)?;
        }
        let request = self.request(shared, root, count, dtype);
        let planned = self.options.planned(shared, &request)?;
        let one = |(rank, raw): (usize, &RawRank)| {
            let addresses = RawRank::new(if rank == root { raw.send } else { 0 }, raw.recv);
            self.options.prepare(shared, rank, shared.ranks.len(), request.clone(), &planned, addresses)
        };
        let prepared: SmallVec<[Prepared; 8]> = ranks.iter().enumerate().map(one).collect();
        check_overlaps(&prepared.iter().collect::<SmallVec<[_; 8]>>())?;
        Ok(prepared)
    }

    /// One rank's part: `input` is looked at on the root only.
    pub(crate) fn prepare_one<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        input: Option<&View<B>>,
        output: &View<B>,
    ) -> Result<Prepared> {
        let root = self.root(shared)?;
        let dtype = output.dtype;
        check_view(shared, OPERATION, rank, "output", output, dtype)?;
        let mut raw = RawRank::new(0, output.address);
        if rank == root {
            let Some(input) = input else {
                return Err(invalid(OPERATION, Some(rank), "input", "one, since this rank is the root", "none"));
            };
            check_view(shared, OPERATION, rank, "input", input, dtype)?;
            if input.count != output.count {
                let expected = format!("{} elements, as the output", output.count);
                return Err(invalid(OPERATION, Some(rank), "input", expected, input.count));
            }
            raw.send = input.address;
        }
        let prepared = self.prepare_one_raw(shared, rank, raw, output.count, dtype)?;
        check_coherence(shared, &prepared, output)?;
        Ok(prepared)
    }

    /// One rank's part, by address.
    pub(crate) fn prepare_one_raw<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        raw: RawRank,
        count: u64,
        dtype: DType,
    ) -> Result<Prepared> {
        let root = self.root(shared)?;
        let bytes = bytes_of(OPERATION, rank, count, dtype)?;
        check_output(rank, raw, bytes, dtype)?;
        let send = if rank == root { raw.send } else { 0 };
        if rank == root {
            check_address(OPERATION, rank, "input", Span { address: send, bytes }, dtype)?;
        }
        let request = self.request(shared, root, count, dtype);
        let planned = self.options.planned(shared, &request)?;
        let addresses = RawRank::new(send, raw.recv);
        let prepared = self.options.prepare(shared, rank, shared.ranks.len(), request, &planned, addresses);
        check_overlaps(&[&prepared])?;
        Ok(prepared)
    }
}

/// The direct form reads from outputs what was written there in the same launch: where the communicator has to make
/// its buffers of coherent memory for that, others must be as well.
fn check_coherence<B: Backend>(shared: &Shared<B>, prepared: &Prepared, output: &View<B>) -> Result<()> {
    let kind = output.memory.kind();
    if prepared.plan.algorithm != Algorithm::TwoStageDirect
        || shared.buffers == MemoryKind::Device
        || kind == shared.buffers
    {
        return Ok(());
    }
    let expected = "coherent memory for two-stage-direct: a buffer of this communicator, or by Buffer::coherent";
    Err(invalid(OPERATION, Some(prepared.rank), "output", expected, "ordinary memory"))
}

/// Where a rank's copy goes.
fn check_output(rank: usize, raw: RawRank, bytes: u64, dtype: DType) -> Result<()> {
    let output = Span { address: raw.recv, bytes };
    check_address(OPERATION, rank, "output", output, dtype)?;
    if raw.residual != 0 {
        return Err(invalid(
            OPERATION,
            Some(rank),
            "residual",
            "0: a broadcast adds nothing",
            format!("{:#x}", raw.residual),
        ));
    }
    Ok(())
}

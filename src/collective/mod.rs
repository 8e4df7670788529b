//! What was asked: request types, validation for all ranks, and the way from a request to launches.
//! Generic over the backend and free of `cfg`.

mod broadcast;
mod reduce_scatter;

use std::{borrow::Cow, fmt, time::Duration};

pub use broadcast::Broadcast;
pub use reduce_scatter::ReduceScatter;
use smallvec::SmallVec;

use crate::{
    backend::{Backend, profiler::Watched},
    buffer::View,
    communicator::Shared,
    dtype::DType,
    error::{Error, Result},
    plan::{
        Explanation, Plan,
        request::{Collective, Request},
        select::{NoPlan, Wishes},
    },
    rank::Rank,
    raw::RawRank,
};

/// Which peers must have come with the same operation before a rank touches anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Agreement {
    /// Those that the rank depends on: a broadcast's receiver waits for the root alone. A rank whose
    /// dependencies all came may return `Ok` although another pair disagrees; its next call then
    /// returns [`Error::Poisoned`].
    #[default]
    Dependent,
    /// All ranks of the group: on a disagreement every rank fails. Costs the wait for the last rank.
    Strict,
}

/// Options that every collective has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) wishes: Wishes,
    /// `Some(None)`: no limit.
    pub(crate) timeout: Option<Option<Duration>>,
    pub(crate) agreement: Option<Agreement>,
    pub(crate) label: Cow<'static, str>,
    pub(crate) target: Cow<'static, str>,
}

/// The setters of [`Options`], for each request type.
macro_rules! option_setters {
    () => {
        /// Forces an algorithm. Default: the planner chooses.
        pub fn algorithm(mut self, algorithm: crate::plan::Algorithm) -> Self {
            self.options.wishes.algorithm = algorithm;
            self
        }

        /// The most blocks of each rank's launch; from 1 to the communicator's own limit.
        pub fn max_blocks(mut self, blocks: u32) -> Self {
            self.options.wishes.max_blocks = Some(blocks);
            self
        }

        /// How far the launches may overlap with their neighbours in the stream. Default: not at all. Two
        /// communicators that share devices must not both use it: their early launches could keep out each other's.
        pub fn overlap(mut self, overlap: crate::plan::Overlap) -> Self {
            self.options.wishes.overlap = overlap;
            self
        }

        /// How long a rank waits for another before it fails. Default: the communicator's.
        pub fn timeout(mut self, limit: std::time::Duration) -> Self {
            self.options.timeout = Some(Some(limit));
            self
        }

        /// Waits for ever. Only [`abort`](crate::Communicator::abort) ends such a wait.
        pub fn no_timeout(mut self) -> Self {
            self.options.timeout = Some(None);
            self
        }

        /// Which peers must agree first. Default: the communicator's.
        pub fn agreement(mut self, agreement: crate::Agreement) -> Self {
            self.options.agreement = Some(agreement);
            self
        }

        /// A name for traces.
        pub fn label(mut self, label: impl Into<std::borrow::Cow<'static, str>>) -> Self {
            self.options.label = label.into();
            self
        }

        /// What the result is for, for traces.
        pub fn target(mut self, target: impl Into<std::borrow::Cow<'static, str>>) -> Self {
            self.options.target = target.into();
            self
        }
    };
}
pub(crate) use option_setters;

/// A range of device memory, as a collective's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Span {
    pub(crate) fn lies_within(self, other: Span) -> bool {
        self.address >= other.address
            && self.address.saturating_add(self.bytes) <= other.address.saturating_add(other.bytes)
    }

    fn overlaps(self, other: Span) -> bool {
        self.bytes > 0
            && other.bytes > 0
            && self.address < other.address.saturating_add(other.bytes)
            && other.address < self.address.saturating_add(self.bytes)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

/// One rank's launch, validated: nothing but the driver can refuse it any more.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) rank: usize,
    pub(crate) group_size: usize,
    pub(crate) request: Request,
    pub(crate) plan: Plan,
    pub(crate) addresses: RawRank,
    pub(crate) limit: Option<Duration>,
    pub(crate) strict: bool,
    /// Entered while the launch is enqueued.
    pub(crate) span: tracing::Span,
    /// Likewise, of the call in a profiler.
    pub(crate) watched: Option<Watched>,
}

/// A plan, and what is told of the call that it is for.
struct Planned {
    plan: Plan,
    span: tracing::Span,
    watched: Option<Watched>,
}

pub(crate) fn invalid(
    operation: &'static str,
    rank: Option<usize>,
    argument: &'static str,
    expected: impl Into<String>,
    got: impl ToString,
) -> Error {
    Error::InvalidArgument {
        operation,
        rank: rank.map(Rank::from_index),
        argument,
        expected: expected.into(),
        got: got.to_string(),
    }
}

fn no_plan(request: &Request, NoPlan(what): NoPlan) -> Error {
    Error::Unsupported { operation: request.name(), what }
}

impl Options {
    /// Chooses the plan and checks the options that belong to it.
    fn plan<B: Backend>(&self, shared: &Shared<B>, request: &Request) -> Result<Plan> {
        self.check(shared, request)?;
        let plan = shared.planner.select(request, self.wishes).map_err(|no| no_plan(request, no))?;
        tracing::debug!(target: "crossccl", %plan, ranks = request.ranks, bytes = request.bytes(), "plan");
        Ok(plan)
    }

    fn explain<B: Backend>(&self, shared: &Shared<B>, request: &Request) -> Result<Explanation> {
        self.check(shared, request)?;
        shared.planner.explain(request, self.wishes).map_err(|no| no_plan(request, no))
    }

    fn check<B: Backend>(&self, shared: &Shared<B>, request: &Request) -> Result<()> {
        let most = shared.planner.facts.max_blocks;
        if let Some(blocks) = self.wishes.max_blocks.filter(|b| *b == 0 || *b > most) {
            return Err(invalid(request.name(), None, "max_blocks", format!("1 to {most}"), blocks));
        }
        if self.timeout.flatten().is_some_and(|t| t.is_zero()) {
            return Err(invalid(request.name(), None, "timeout", "more than zero (or no_timeout)", "0 s"));
        }
        Ok(())
    }

    fn planned<B: Backend>(&self, shared: &Shared<B>, request: &Request) -> Result<Planned> {
        let plan = self.plan(shared, request)?;
        let watched = Watched::new::<B>(request.name(), &self.label, request.bytes());
        Ok(Planned { plan, span: self.span(request, &plan, shared), watched })
    }

    fn span<B: Backend>(&self, request: &Request, plan: &Plan, shared: &Shared<B>) -> tracing::Span {
        tracing::info_span!(
            target: "crossccl",
            "collective",
            operation = request.name(),
            backend = B::NAME,
            ranks = shared.ranks.len(),
            bytes = request.bytes(),
            algorithm = plan.algorithm.name(),
            label = &*self.label,
            target = &*self.target,
        )
    }

    fn prepare<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        group_size: usize,
        request: Request,
        planned: &Planned,
        addresses: RawRank,
    ) -> Prepared {
        Prepared {
            rank,
            group_size,
            request,
            plan: planned.plan,
            addresses,
            limit: self.timeout.unwrap_or(shared.limit),
            span: planned.span.clone(),
            watched: planned.watched.clone(),
            strict: self.agreement.unwrap_or(shared.agreement) == Agreement::Strict,
        }
    }
}

/// The bytes of `count` elements, which must fit into an address space (case B3).
fn bytes_of(operation: &'static str, rank: usize, count: u64, dtype: DType) -> Result<u64> {
    let most = (usize::MAX / 2) as u64 / dtype.size() as u64;
    if count > most {
        return Err(invalid(operation, Some(rank), "count", format!("at most {most} elements of {dtype}"), count));
    }
    Ok(count * dtype.size() as u64)
}

/// A raw pointer's alignment and presence.
fn check_address(operation: &'static str, rank: usize, argument: &'static str, span: Span, dtype: DType) -> Result<()> {
    if span.bytes == 0 {
        return Ok(());
    }
    if span.address == 0 {
        return Err(invalid(operation, Some(rank), argument, format!("an address for {} bytes", span.bytes), "null"));
    }
    if !span.address.is_multiple_of(dtype.size() as u64) {
        let expected = format!("an address aligned to the {} bytes of {dtype}", dtype.size());
        return Err(invalid(operation, Some(rank), argument, expected, format!("{:#x}", span.address)));
    }
    Ok(())
}

/// A typed argument belongs to the rank's stream: then reading it later is ordered after the call.
fn check_view<B: Backend>(
    shared: &Shared<B>,
    operation: &'static str,
    rank: usize,
    argument: &'static str,
    view: &View<B>,
    dtype: DType,
) -> Result<()> {
    let stream = &shared.ranks[rank].stream;
    if view.stream != *stream {
        let (device, other) = (&shared.ranks[rank].device, B::device_of(&view.stream));
        let expected = format!("a buffer of rank {rank} of this communicator, on device {}", B::ordinal(device));
        let got = match shared.ranks.iter().position(|one| one.stream == view.stream) {
            Some(owner) => format!("one of rank {owner}"),
            None if other == *device => "one of another communicator or stream on the same device".to_owned(),
            None => format!("one of another communicator or stream, on device {}", B::ordinal(&other)),
        };
        return Err(invalid(operation, Some(rank), argument, expected, got));
    }
    if view.dtype != dtype {
        return Err(invalid(operation, Some(rank), argument, format!("elements of {dtype}"), view.dtype));
    }
    if view.memory.is_in_flight() || view.memory.is_borrowed() {
        // Why it is, says more, where this communicator is the reason.
        shared.refuse_if_poisoned()?;
    }
    if argument == "output" && view.memory.is_in_flight() {
        return Err(Error::Busy {
            operation,
            what: format!("{} may still use the output of rank {rank}; wait for it first", view.memory.user()),
        });
    }
    if view.memory.is_borrowed() {
        return Err(Error::Busy {
            operation,
            what: format!(
                "a collective that failed may still use the {argument} of rank {rank}; call reset on all ranks first"
            ),
        });
    }
    Ok(())
}

/// What was given besides the one input, where `outputs` are one per rank.
fn check_len(operation: &'static str, argument: &'static str, ranks: usize, got: usize) -> Result<()> {
    if got == ranks {
        return Ok(());
    }
    Err(invalid(operation, None, argument, format!("one for each of the {ranks} ranks"), got))
}

/// What a rank's launch touches, on its own device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    pub(crate) input: Span,
    pub(crate) output: Span,
    /// Empty where there is none.
    pub(crate) residual: Span,
}

impl Prepared {
    pub(crate) fn spans(&self) -> Spans {
        let RawRank { send, recv, residual } = self.addresses;
        let bytes = self.request.bytes();
        let (input, output) = match &self.request.collective {
            // Of the others' inputs nothing is read.
            Collective::Broadcast { root } => (if *root == self.rank { bytes } else { 0 }, bytes),
            Collective::ReduceScatter { partition, output, .. } => {
                (bytes, partition.part(self.rank % self.group_size).count() * output.size() as u64)
            }
        };
        Spans {
            input: Span { address: send, bytes: input },
            output: Span { address: recv, bytes: output },
            residual: Span { address: residual, bytes: if residual == 0 { 0 } else { output } },
        }
    }

    /// Whether the output stands where the call is in place: at the root's input, or at the rank's part of its own input,
    /// which must be one run.
    fn is_in_place(&self) -> bool {
        let RawRank { send, recv, .. } = self.addresses;
        match &self.request.collective {
            Collective::Broadcast { .. } => send == recv,
            Collective::ReduceScatter { axis, partition, output, .. } => {
                let dtype = self.request.dtype;
                let offset = partition.part(self.rank % self.group_size).offset * dtype.size() as u64;
                *output == dtype && *axis == 0 && recv == send.wrapping_add(offset)
            }
        }
    }
}

/// What one call of several ranks, or of one, writes: no output may overlap another output, nor what any of them reads, except
/// for the in-place forms and a residual that is the output itself. Every way to call for several ranks at once comes through
/// here. (Groups of C once did not, and gave wrong results without an error.)
pub(crate) fn check_overlaps(calls: &[&Prepared]) -> Result<()> {
    let spans: SmallVec<[Spans; 8]> = calls.iter().map(|one| one.spans()).collect();
    for (at, me) in calls.iter().enumerate() {
        let output = spans[at].output;
        let refuse = |what: String| {
            Err(invalid(me.request.name(), Some(me.rank), "output", format!("no overlap with {what}"), output))
        };
        for (other_at, other) in calls.iter().enumerate() {
            let (rank, theirs) = (other.rank, spans[other_at]);
            if other_at < at && output.overlaps(theirs.output) {
                return refuse(format!("the output of rank {rank} ({})", theirs.output));
            }
            if output.overlaps(theirs.input) && !(at == other_at && me.is_in_place()) {
                return refuse(format!("the input of rank {rank} ({}) other than the in-place form", theirs.input));
            }
            if output.overlaps(theirs.residual) && !(at == other_at && output == theirs.residual) {
                return refuse(format!(
                    "the residual of rank {rank} ({}) other than the output itself",
                    theirs.residual
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges that touch do not overlap, nor does an empty one with anything; the end of the address space is an end.
    #[test]
    fn overlaps_of_spans() {
        let span = |address, bytes| Span { address, bytes };
        let last = u64::MAX;
        for (one, other, overlap) in [
            (span(100, 10), span(110, 10), false),
            (span(100, 10), span(109, 10), true),
            (span(100, 10), span(100, 10), true),
            (span(100, 10), span(103, 2), true),
            (span(100, 10), span(105, 0), false),
            (span(0, 0), span(0, 0), false),
            (span(last - 5, 100), span(last - 1, 1), true),
            (span(last - 5, 100), span(10, 10), false),
        ] {
            assert_eq!(one.overlaps(other), overlap, "{one} and {other}");
            assert_eq!(other.overlaps(one), overlap, "{other} and {one}");
        }
    }
}

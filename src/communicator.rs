//! The communicator: what is set up once, what its ranks share, how it fails and recovers.

mod blame;
mod builder;
mod called;
mod diagnosis;
#[cfg(all(test, feature = "cpu"))]
mod reset_tests;

use std::{
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

pub use builder::Builder;
pub(crate) use called::{Called, Launches};
use smallvec::SmallVec;

use crate::{
    abi::{LINE, control},
    backend::{Backend, Fault, MemoryKind, memory::Allocation, process},
    buffer::{Buffer, Destination, Slice, SliceMut, Untyped, View},
    collective::{Agreement, Broadcast, Prepared, ReduceScatter},
    dtype::{DType, Element},
    error::{Error, Result},
    graph::Graph,
    in_flight::InFlight,
    plan::{Explanation, Part, Plan, Planner, Topology},
    rank::Rank,
    rank_comm::RankComm,
    raw::{self, RawRank},
    replay::Recording,
    signal::SignalLayout,
};

/// How long drops and resets wait for kernels that were told to stop.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// For waits that are begun again.
const LONG: Duration = Duration::from_secs(3600);

/// How long the drop of a collective without a time limit waits before it aborts: the default limit.
const DROP_LIMIT: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(30) };

/// The ranks of one process, used together: one call drives every rank.
///
/// [`into_ranks`](Self::into_ranks) takes it apart for one thread a rank.
pub struct Communicator<B: Backend> {
    shared: Arc<Shared<B>>,
}

impl<B: Backend> Communicator<B> {
    /// Starts to build a communicator whose rank r is on the r-th of `devices`, given by ordinal.
    pub fn builder(devices: impl IntoIterator<Item = usize>) -> Builder<B> {
        Builder::new(devices.into_iter().collect())
    }

    /// Starts to build a communicator of `ranks` ranks, each on a device of its own while there are devices;
    /// those beyond share them in turn, as [`virtual_ranks`](Builder::virtual_ranks) allows.
    pub fn builder_for_ranks(ranks: usize) -> Builder<B> {
        // Without devices `build` says so.
        let devices = B::device_count().unwrap_or(0).max(1);
        Builder::new((0..ranks).map(|rank| rank % devices).collect()).virtual_ranks(ranks > devices)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.shared.ranks.len()
    }

    /// The stream of `rank`, for buffers and raw calls. `None` where there is no such rank.
    pub fn stream(&self, rank: impl Into<Rank>) -> Option<&B::Stream> {
        self.shared.ranks.get(rank.into().index()).map(|r| &r.stream)
    }

    /// A buffer of `len` zeros on the device of `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is no such rank; [`Error::Driver`] where the memory
    /// cannot be had.
    pub fn buffer<T: Element>(&self, rank: impl Into<Rank>, len: usize) -> Result<Buffer<B, T>> {
        Buffer::of_kind(&self.shared.rank("buffer", rank.into())?.stream, self.shared.buffers, len)
    }

    /// A buffer with a copy of `elements` on the device of `rank`.
    ///
    /// # Errors
    /// As for [`buffer`](Self::buffer).
    pub fn buffer_from<T: Element>(&self, rank: impl Into<Rank>, elements: &[T]) -> Result<Buffer<B, T>> {
        self.buffer(rank, elements.len())?.filled(elements)
    }

    /// A buffer of `len` zeros of a dtype known at run time on the device of `rank`.
    ///
    /// # Errors
    /// As for [`buffer`](Self::buffer).
    pub fn buffer_with_dtype(&self, rank: impl Into<Rank>, dtype: DType, len: usize) -> Result<Buffer<B, Untyped>> {
        Buffer::of(&self.shared.rank("buffer", rank.into())?.stream, self.shared.buffers, dtype, len)
    }

    /// Broadcasts `input`, on the root, to `outputs`, one on each rank (the root's included).
    ///
    /// Returns as soon as everything is enqueued: [`InFlight::wait`] waits and tells the outcome. A
    /// count of 0 does nothing.
    ///
    /// ```
    /// use crossccl::{Communicator, Cpu};
    ///
    /// # fn main() -> crossccl::Result<()> {
    /// let comm = Communicator::<Cpu>::builder(0..4).build()?;
    /// let input = comm.buffer_from(1, &[1.0f32, 2.0, 3.0])?;
    /// let mut outputs = (0..4).map(|r| comm.buffer(r, 3)).collect::<Result<Vec<_>, _>>()?;
    /// comm.broadcast(&input, &mut outputs, 1)?.wait()?;
    /// assert_eq!(outputs[3].to_vec()?, [1.0, 2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a root out of range, unequal lengths, buffers of another rank,
    /// options out of range; [`Error::Unsupported`] for an algorithm that is not built;
    /// [`Error::Busy`] for buffers that a leaked or failed call may still use; [`Error::Poisoned`] after a
    /// failure. Nothing has been launched then. Where the driver refuses a launch ([`Error::Driver`]), or a
    /// failure shows while the ranks are being launched, those launched before are stopped first.
    pub fn broadcast<'a, T: 'a>(
        &self,
        input: impl Into<Slice<'a, B, T>>,
        outputs: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
        what: impl Into<Broadcast>,
    ) -> Result<InFlight<'a, B>> {
        let input = input.into().view;
        let outputs = mutable_views(outputs);
        let prepared = what.into().prepare_all(&self.shared, &input, &outputs)?;
        self.launch(&prepared, outputs.into_iter().chain([input]))
    }

    /// Broadcasts the root's buffer into the others'.
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast).
    pub fn broadcast_in_place<'a, T: 'a>(
        &self,
        buffers: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
        what: impl Into<Broadcast>,
    ) -> Result<InFlight<'a, B>> {
        let what = what.into();
        let buffers = mutable_views(buffers);
        let input = root_view(&self.shared, &what, &buffers)?;
        let prepared = what.prepare_all(&self.shared, &input, &buffers)?;
        self.launch(&prepared, buffers.into_iter())
    }

    /// Reduces `inputs`, one on each rank, and scatters the result into `outputs`: rank r of a group
    /// gets part r. See [`ReduceScatter`] for axes, shapes and groups, [`part`](Self::part) for sizes.
    ///
    /// Returns as soon as everything is enqueued. Groups with a count of 0 do nothing.
    ///
    /// ```
    /// use crossccl::{Communicator, Cpu, ReduceOp};
    ///
    /// # fn main() -> crossccl::Result<()> {
    /// let comm = Communicator::<Cpu>::builder(0..2).build()?;
    /// let inputs = [comm.buffer_from(0, &[1i32, 2, 3])?, comm.buffer_from(1, &[10, 20, 30])?];
    /// let mut outputs = [comm.buffer(0, 2)?, comm.buffer(1, 1)?];
    /// comm.reduce_scatter(&inputs, &mut outputs, ReduceOp::Sum)?.wait()?;
    /// assert_eq!(outputs[0].to_vec()?, [11, 22]);
    /// assert_eq!(outputs[1].to_vec()?, [33]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for shapes, axes, groups, lengths or buffers that do not fit;
    /// [`Error::Unsupported`] for strides or an algorithm that is not offered; otherwise as for
    /// [`broadcast`](Self::broadcast).
    pub fn reduce_scatter<'a, T: 'a>(
        &self,
        inputs: impl IntoIterator<Item = impl Into<Slice<'a, B, T>>>,
        outputs: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<InFlight<'a, B>> {
        let inputs: SmallVec<[View<B>; 8]> = inputs.into_iter().map(|i| i.into().view).collect();
        let outputs = mutable_views(outputs);
        let prepared = what.into().prepare_all(&self.shared, &inputs, &outputs, &[])?;
        self.launch(&prepared, outputs.into_iter().chain(inputs))
    }

    /// A reduce-scatter whose results are converted to the outputs' dtype, and added to residuals, in the
    /// accumulator, before the one rounding: `destinations`, one on each rank, are outputs with or without a
    /// residual. Sums and averages of floats; f16, bf16 and f32 can become each other, f64 stays f64.
    ///
    /// ```
    /// use crossccl::{Communicator, Cpu, Destination, ReduceOp, ReduceScatter, half::bf16};
    ///
    /// # fn main() -> crossccl::Result<()> {
    /// let comm = Communicator::<Cpu>::builder(0..2).build()?;
    /// let inputs = [comm.buffer_from(0, &[1.0f32, 2.0])?, comm.buffer_from(1, &[3.0f32, 6.0])?];
    /// let residual = comm.buffer_from(1, &[bf16::from_f32(0.5)])?;
    /// let mut outputs = [comm.buffer::<bf16>(0, 1)?, comm.buffer::<bf16>(1, 1)?];
    /// let [first, second] = &mut outputs;
    /// let destinations = [Destination::new(first), Destination::new(second).residual(&residual)];
    /// let what = ReduceScatter::new(ReduceOp::Average).factor(2.0);
    /// comm.reduce_scatter_fused(&inputs, destinations, what)?.wait()?;
    /// assert_eq!(outputs[0].to_vec()?[0].to_f32(), 4.0);
    /// assert_eq!(outputs[1].to_vec()?[0].to_f32(), 8.5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for operations or dtypes without an epilogue; [`Error::InvalidArgument`] also
    /// for a residual that overlaps an output other than its own; otherwise as for
    /// [`reduce_scatter`](Self::reduce_scatter).
    pub fn reduce_scatter_fused<'a, T: 'a, U: 'a>(
        &self,
        inputs: impl IntoIterator<Item = impl Into<Slice<'a, B, T>>>,
        destinations: impl IntoIterator<Item = impl Into<Destination<'a, B, U>>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<InFlight<'a, B>> {
        let inputs: SmallVec<[View<B>; 8]> = inputs.into_iter().map(|i| i.into().view).collect();
        let (outputs, residuals) = fused_views(destinations);
        let what = what.into().for_outputs(outputs.first().map(|o| o.dtype));
        let prepared = what.prepare_all(&self.shared, &inputs, &outputs, &residuals)?;
        self.launch(&prepared, outputs.into_iter().chain(inputs).chain(residuals.into_iter().flatten()))
    }

    /// Reduce-scatter along axis 0 within one buffer a rank: each rank's result replaces its part of
    /// its own input, the rest of the buffer stays as it is.
    ///
    /// # Errors
    /// As for [`reduce_scatter`](Self::reduce_scatter); [`Error::Unsupported`] for another axis.
    pub fn reduce_scatter_in_place<'a, T: 'a>(
        &self,
        buffers: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<InFlight<'a, B>> {
        let what = what.into();
        let inputs = mutable_views(buffers);
        let outputs = what.all_in_place_outputs(&self.shared, &inputs)?;
        let prepared = what.prepare_all(&self.shared, &inputs, &outputs, &[])?;
        self.launch(&prepared, inputs.into_iter())
    }

    /// The part of an input of `count` elements that `rank` gets from `what`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where they do not fit.
    pub fn part(&self, rank: impl Into<Rank>, count: usize, what: impl Into<ReduceScatter>) -> Result<Part> {
        let rank = rank.into();
        self.shared.rank("reduce_scatter", rank)?;
        what.into().part(&self.shared, rank.index(), count as u64)
    }

    /// How a broadcast of `count` elements would be done, without doing it.
    ///
    /// ```
    /// use crossccl::{Algorithm, Broadcast, Communicator, Cpu, DType};
    ///
    /// # fn main() -> crossccl::Result<()> {
    /// let comm = Communicator::<Cpu>::builder(0..4).build()?;
    /// let two_stage = Broadcast::from_root(0).algorithm(Algorithm::TwoStage);
    /// assert_eq!(comm.plan_broadcast(1 << 20, DType::F32, two_stage)?.algorithm, Algorithm::TwoStageDirect);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`broadcast`](Self::broadcast) that do not depend on the buffers.
    pub fn plan_broadcast(&self, count: usize, dtype: DType, what: impl Into<Broadcast>) -> Result<Plan> {
        what.into().plan(&self.shared, count as u64, dtype)
    }

    /// How a reduce-scatter would be done in the group of `rank` with inputs of `count` elements, without
    /// doing it.
    ///
    /// # Errors
    /// Those of [`reduce_scatter`](Self::reduce_scatter) that do not depend on the buffers.
    pub fn plan_reduce_scatter(
        &self,
        rank: impl Into<Rank>,
        count: usize,
        dtype: DType,
        what: impl Into<ReduceScatter>,
    ) -> Result<Plan> {
        let rank = rank.into();
        self.shared.rank("reduce_scatter", rank)?;
        what.into().plan(&self.shared, rank.index(), count as u64, dtype)
    }

    /// How a broadcast of `count` elements would be done, why, and what else there is, each with what the cost model says
    /// that it takes.
    ///
    /// ```
    /// use crossccl::{Algorithm, Broadcast, Communicator, Cpu, DType, Reason};
    ///
    /// # fn main() -> crossccl::Result<()> {
    /// let comm = Communicator::<Cpu>::builder(0..4).build()?;
    /// let why = comm.explain_broadcast(1 << 20, DType::F32, 0)?;
    /// assert_eq!((why.plan.algorithm, &why.reason), (Algorithm::OneStage, &Reason::Model));
    /// println!("{why}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`plan_broadcast`](Self::plan_broadcast).
    pub fn explain_broadcast(&self, count: usize, dtype: DType, what: impl Into<Broadcast>) -> Result<Explanation> {
        what.into().explain(&self.shared, count as u64, dtype)
    }

    /// How a reduce-scatter would be done in the group of `rank` with inputs of `count` elements, why, and what else
    /// there is.
    ///
    /// # Errors
    /// As for [`plan_reduce_scatter`](Self::plan_reduce_scatter).
    pub fn explain_reduce_scatter(
        &self,
        rank: impl Into<Rank>,
        count: usize,
        dtype: DType,
        what: impl Into<ReduceScatter>,
    ) -> Result<Explanation> {
        let rank = rank.into();
        self.shared.rank("reduce_scatter", rank)?;
        what.into().explain(&self.shared, rank.index(), count as u64, dtype)
    }

    /// How its devices are joined, as far as drivers tell and tuning files and the builder know better.
    pub fn topology(&self) -> Topology {
        self.shared.planner.topology
    }

    /// [`broadcast`](Self::broadcast) by address: `ranks` and `streams` are one a rank, the root's
    /// `send` is the input. Enqueues only; nothing keeps the memory alive, and dropping the returned
    /// [`Launched`] does not wait.
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast), misaligned and overlapping addresses included.
    ///
    /// # Safety
    /// From now until the launches are complete on their streams, and after an error until `reset`
    /// returned: every address is valid on its rank's device for `count` elements and reachable by
    /// the peers; nobody else writes the root's input, and nobody else uses the outputs. Streams
    /// belong to the ranks' devices.
    #[allow(unsafe_code)]
    pub unsafe fn broadcast_raw(
        &self,
        ranks: &[RawRank],
        streams: &[B::Stream],
        count: usize,
        dtype: DType,
        what: impl Into<Broadcast>,
    ) -> Result<Launched<B>> {
        let prepared = what.into().prepare_all_raw(&self.shared, ranks, count as u64, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_raw(&prepared, streams) }
    }

    /// [`reduce_scatter`](Self::reduce_scatter) by address: `counts` are the elements of each rank's
    /// input, equal within a group.
    ///
    /// # Errors
    /// As for [`reduce_scatter`](Self::reduce_scatter), misaligned and overlapping addresses included.
    ///
    /// # Safety
    /// As for [`broadcast_raw`](Self::broadcast_raw): every `send` is valid for the rank's count, every
    /// `recv` for its part.
    #[allow(unsafe_code)]
    pub unsafe fn reduce_scatter_raw(
        &self,
        ranks: &[RawRank],
        streams: &[B::Stream],
        counts: &[usize],
        dtype: DType,
        what: impl Into<ReduceScatter>,
    ) -> Result<Launched<B>> {
        let counts: SmallVec<[u64; 8]> = counts.iter().map(|c| *c as u64).collect();
        let prepared = what.into().prepare_all_raw(&self.shared, ranks, &counts, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_raw(&prepared, streams) }
    }

    /// Captures the collectives that `calls` enqueues on `streams`, one a rank, with the `*_raw` forms, to be
    /// run again and again by [`Graph::launch`]. Everything was loaded and allocated when the communicator was
    /// built, so that a first call can be captured.
    ///
    /// # Errors
    /// Those of `calls`; [`Error::Driver`] on a backend without graphs, or where the driver ends the capture.
    /// No stream is left capturing.
    ///
    /// # Safety
    /// What the captured calls ask of their addresses holds for every launch of the graph, and launches of it
    /// and other calls of the communicator keep one order on all ranks.
    #[allow(unsafe_code)]
    pub unsafe fn capture(&self, streams: &[B::Stream], calls: impl FnOnce() -> Result<()>) -> Result<Graph<B>> {
        if streams.len() != self.ranks() {
            let expected = format!("one for each of the {} ranks", self.ranks());
            return Err(crate::collective::invalid("capture", None, "streams", expected, streams.len()));
        }
        let ranks: Vec<_> = streams.iter().cloned().enumerate().collect();
        Graph::capture(&self.shared, &ranks, calls)
    }

    /// Begins to record collectives, to be run again and again by [`Replay::launch`](crate::Replay::launch).
    pub fn record(&self) -> Recording<B> {
        Recording::new(self.shared.clone())
    }

    /// Ends every wait in flight with [`Error::Aborted`], within about a millisecond. Afterwards only
    /// [`reset`](Self::reset) is of use.
    pub fn abort(&self) {
        self.shared.abort(Error::Aborted);
    }

    /// A handle that can [`abort`](Self::abort) from another thread.
    pub fn abort_handle(&self) -> AbortHandle<B> {
        AbortHandle::new(self.shared.clone())
    }

    /// Why the communicator refuses work, without waiting for what is in flight: for who orders by streams, and seldom
    /// calls [`Launched::wait`]. `None` while no failure has shown on any rank.
    ///
    /// ```
    /// use crossccl::{Communicator, Cpu, Error};
    ///
    /// # fn main() -> crossccl::Result<()> {
    /// let comm = Communicator::<Cpu>::builder(0..2).build()?;
    /// assert_eq!(comm.failure(), None);
    /// comm.abort();
    /// assert_eq!(comm.failure(), Some(Error::Aborted));
    /// comm.reset()?;
    /// assert_eq!(comm.failure(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure()
    }

    /// Makes the communicator usable again after a failure: waits for what is still running, then
    /// raises the launch epochs of all ranks to a common value and forgets the failure.
    ///
    /// # Errors
    /// [`Error::Busy`] where a stream does not come to rest in time (work of your own in it, say); the
    /// communicator then stays poisoned, and `reset` can be called again.
    pub fn reset(&self) -> Result<()> {
        let _turn = self.shared.turn();
        self.shared.reset()
    }

    /// One handle a rank, each for a thread of its own.
    pub fn into_ranks(self) -> Vec<RankComm<B>> {
        (0..self.ranks()).map(|rank| RankComm::new(self.shared.clone(), rank)).collect()
    }

    fn launch<'a>(&self, prepared: &[Prepared], owners: impl Iterator<Item = View<B>>) -> Result<InFlight<'a, B>> {
        let busy = non_empty(prepared);
        let _turn = self.shared.turn();
        let mut flight = InFlight::new(self.shared.clone(), owners.map(|v| v.memory).collect(), PhantomData);
        match raw::enqueue_owned(&self.shared, &busy, flight.launches()) {
            Ok(()) => Ok(flight),
            Err(error) => Err(flight.give_up(error)),
        }
    }

    /// # Safety
    /// As for the `*_raw` methods.
    #[allow(unsafe_code)]
    unsafe fn launch_raw(&self, prepared: &[Prepared], streams: &[B::Stream]) -> Result<Launched<B>> {
        let operation = prepared.first().map_or("raw call", |p| p.request.name());
        if streams.len() != self.ranks() {
            let expected = format!("one for each of the {} ranks", self.ranks());
            return Err(crate::collective::invalid(operation, None, "streams", expected, streams.len()));
        }
        for (rank, stream) in streams.iter().enumerate() {
            raw::check_stream(&self.shared, operation, rank, stream)?;
        }
        raw::check_streams::<B>(operation, streams, |rank, fault| self.shared.driver_error(rank, fault))?;
        let busy = non_empty(prepared);
        busy.iter().try_for_each(|one| raw::check_memory(&self.shared, one))?;
        let _turn = self.shared.turn();
        let mut launched = Launched { shared: self.shared.clone(), launches: SmallVec::new() };
        // SAFETY: the caller's promise.
        let outcome =
            unsafe { raw::enqueue_all(&self.shared, &busy, |rank| streams[rank].clone(), &mut launched.launches) };
        match outcome {
            Ok(()) => Ok(launched),
            Err(error) => Err(launched.give_up(error).0),
        }
    }
}

/// A group that moves nothing has nothing to agree on when one call speaks for all its ranks.
pub(crate) fn non_empty(prepared: &[Prepared]) -> SmallVec<[Prepared; 8]> {
    prepared.iter().filter(|p| p.request.count > 0).cloned().collect()
}

/// The root's buffer; a root out of range is told of later, like any other.
pub(crate) fn root_view<B: Backend>(shared: &Shared<B>, what: &Broadcast, buffers: &[View<B>]) -> Result<View<B>> {
    buffers.get(what.root.index()).or(buffers.first()).cloned().ok_or_else(|| {
        let expected = format!("one for each of the {} ranks", shared.ranks.len());
        crate::collective::invalid("broadcast", None, "outputs", expected, 0)
    })
}

/// Outputs and residuals.
#[allow(clippy::type_complexity)]
pub(crate) fn fused_views<'a, B: Backend, U: 'a>(
    destinations: impl IntoIterator<Item = impl Into<Destination<'a, B, U>>>,
) -> (SmallVec<[View<B>; 8]>, SmallVec<[Option<View<B>>; 8]>) {
    destinations.into_iter().map(|d| d.into().views()).unzip()
}

pub(crate) fn mutable_views<'a, B: Backend, T: 'a>(
    slices: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
) -> SmallVec<[View<B>; 8]> {
    slices.into_iter().map(|s| s.into().view).collect()
}

impl<B: Backend> fmt::Debug for Communicator<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator({} ranks on {})", self.ranks(), B::NAME)
    }
}

/// Can abort a communicator from any thread.
pub struct AbortHandle<B: Backend> {
    shared: Arc<Shared<B>>,
}

impl<B: Backend> AbortHandle<B> {
    pub(crate) fn new(shared: Arc<Shared<B>>) -> Self {
        AbortHandle { shared }
    }

    /// As [`Communicator::abort`].
    pub fn abort(&self) {
        self.shared.abort(Error::Aborted);
    }
}

impl<B: Backend> Clone for AbortHandle<B> {
    fn clone(&self) -> Self {
        AbortHandle { shared: self.shared.clone() }
    }
}

impl<B: Backend> fmt::Debug for AbortHandle<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AbortHandle")
    }
}

/// Launches of a raw call, or of one rank. Dropping it does nothing; what was launched goes on.
#[must_use = "the outcome is told by `wait` alone"]
pub struct Launched<B: Backend> {
    pub(crate) shared: Arc<Shared<B>>,
    pub(crate) launches: SmallVec<[Launch<B>; 8]>,
}

impl<B: Backend> Launched<B> {
    /// Waits until all of it is complete, and tells the outcome.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Mismatch`] or [`Error::Aborted`] where this call failed;
    /// [`Error::Poisoned`] where an earlier one had.
    pub fn wait(&self) -> Result<()> {
        self.shared.outcome(&self.launches)
    }

    /// Waits until all of it is complete, or until the deadline: whether it is. The outcome is not told.
    #[cfg(feature = "capi")]
    pub(crate) fn passed_by(&self, deadline: Option<Instant>) -> Result<bool> {
        self.shared.refuse_in_a_fork()?;
        for launch in &self.launches {
            if !launch.passed_by(deadline).map_err(|f| self.shared.driver_error(launch.rank, f))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`wait`](Self::wait), but never without limit: what does not end by its own limit (it has none, or
    /// stands behind other work in its stream) is aborted in the end. False where even that does not help.
    pub(crate) fn wait_bounded(&self) -> (Result<()>, bool) {
        for launch in &self.launches {
            let deadline = Instant::now().checked_add(launch.limit.unwrap_or_default().saturating_add(DROP_LIMIT));
            let passed = match (launch.passed_by(deadline), deadline) {
                // An inline stream has something in front, or this very call, that may take longer.
                (Ok(false), Some(deadline)) if Instant::now() < deadline => self.run_until(launch, deadline),
                (passed, _) => passed.unwrap_or(false),
            };
            if !passed {
                self.shared.abort(Error::Aborted);
                break;
            }
        }
        self.wait_stopped()
    }

    /// Does what an inline stream has to do up to `launch`. As this thread is in there, another one aborts it at the
    /// deadline.
    fn run_until(&self, launch: &Launch<B>, deadline: Instant) -> bool {
        let shared = &self.shared;
        thread::scope(|scope| {
            let (done, over) = mpsc::channel::<()>();
            let watch = move || {
                let left = deadline.saturating_duration_since(Instant::now());
                if over.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
                    shared.abort(Error::Aborted);
                }
            };
            if thread::Builder::new().spawn_scoped(scope, watch).is_err() {
                shared.abort(Error::Aborted);
            }
            let passed = launch.passed_by(None).unwrap_or(false);
            drop(done);
            passed
        })
    }

    /// Waits for launches that were aborted, or are over.
    fn wait_stopped(&self) -> (Result<()>, bool) {
        let deadline = Instant::now() + STOP_LIMIT;
        if self.shared.is_lost() || !self.launches.iter().all(|l| l.passed_by(Some(deadline)).unwrap_or(false)) {
            self.shared.abort(Error::Aborted);
            return (Err(Error::Aborted), false);
        }
        (self.wait(), true)
    }

    /// After `error` in the middle of the ranks' launches: frees those that were launched from their wait, and
    /// waits for them. The error to tell, and whether all are at rest.
    pub(crate) fn give_up(&self, error: Error) -> (Error, bool) {
        if self.launches.is_empty() && !self.shared.is_lost() {
            return (error, true);
        }
        self.shared.abort(error.clone());
        match self.wait_stopped() {
            // Why this very call failed says more than that the communicator refused the rest of it.
            (Err(own), at_rest)
                if matches!(error, Error::Poisoned { .. }) && !matches!(own, Error::Poisoned { .. }) =>
            {
                (own, at_rest)
            }
            (_, at_rest) => (error, at_rest),
        }
    }
}

impl<B: Backend> fmt::Debug for Launched<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launched({} ranks)", self.launches.len())
    }
}

/// One rank's launch.
#[derive(Clone, Debug)]
pub(crate) struct Launch<B: Backend> {
    pub(crate) rank: usize,
    pub(crate) call: u64,
    /// The point after it; `None` for one that was captured into a graph instead of run.
    pub(crate) event: Option<B::Event>,
    /// It was captured into a graph that is not the communicator's.
    pub(crate) foreign: bool,
    /// Which life of the communicator, counted by resets, it belongs to.
    pub(crate) generation: u64,
    pub(crate) limit: Option<Duration>,
    /// Of a graph: its kernels carry the number of the call that was captured, not this one's.
    pub(crate) replay: bool,
}

impl<B: Backend> Launch<B> {
    fn passed_by(&self, deadline: Option<Instant>) -> Result<bool, Fault> {
        self.event.as_ref().map_or(Ok(true), |event| B::wait(event, deadline))
    }
}

/// What the ranks share. Owned by every handle; memory that peers or kernels touch goes with the last.
#[derive(Debug)]
pub(crate) struct Shared<B: Backend> {
    pub(crate) ranks: Vec<RankShared<B>>,
    pub(crate) layout: SignalLayout,
    /// Group sizes with a domain of their own, by number of the domain.
    pub(crate) domains: SmallVec<[usize; 12]>,
    pub(crate) planner: Planner,
    /// What the communicator makes buffers of.
    pub(crate) buffers: MemoryKind,
    pub(crate) limit: Option<Duration>,
    pub(crate) agreement: Agreement,
    /// Held while one call launches all ranks: two threads' calls must not interleave between the ranks, or
    /// equal ones would get each other's data. Calls of one rank do not take it.
    turn: Mutex<()>,
    poison: Mutex<Option<Error>>,
    poisoned: AtomicBool,
    /// Whether any rank's handle was dropped: [`RankShared::gone`] says which.
    any_gone: AtomicBool,
    /// The process that it was built in, as [`process::forks`] counts.
    process: u64,
    generation: AtomicU64,
    rendezvous: Mutex<ResetRendezvous>,
    arrived: Condvar,
}

#[derive(Debug)]
pub(crate) struct RankShared<B: Backend> {
    pub(crate) device: B::Device,
    pub(crate) stream: B::Stream,
    pub(crate) signal: Arc<Allocation<B>>,
    pub(crate) control: Arc<Allocation<B>>,
    pub(crate) functions: Vec<B::Function>,
    ticks_per_second: u64,
    /// The number of the thread that called for this rank last, on an inline stream.
    caller: AtomicU64,
    /// By domain: the launch epoch of the last launch that was enqueued. Device memory holds that of the last that began.
    launched: SmallVec<[AtomicU64; 12]>,
    /// A graph that is not the communicator's holds launches of this rank: `launched` does not know how often they run.
    uncounted: AtomicBool,
    /// Who can call for the rank: its handle, and each graph that was captured for it.
    callers: AtomicUsize,
    /// A [`Gone`], as a number.
    gone: AtomicU8,
    state: Mutex<RankState<B>>,
}

#[derive(Debug)]
pub(crate) struct RankState<B: Backend> {
    pub(crate) next_call: u64,
    /// The stream of the last launch, and the point after it.
    pub(crate) last: Option<(B::Stream, B::Event)>,
    /// The last few calls that were launched, for error messages.
    history: VecDeque<Called>,
    /// While the communicator captures this rank's stream: what is in the capture so far.
    pub(crate) counting: Option<Launches>,
    /// Calls that failed before a reset, for those who ask later: from, up to, why.
    failed: VecDeque<(u64, u64, Error)>,
    /// Calls up to this one may have failed without a record left in `failed`.
    forgotten: u64,
    /// A kernel was launched whose end cannot be known.
    pub(crate) lost: bool,
    /// Memory that a failed call may still touch.
    quarantine: Vec<Arc<Allocation<B>>>,
}

/// Why a rank's handle is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Dropped = 1,
    Panicked,
}

impl Gone {
    fn from_number(number: u8) -> Option<Self> {
        [Gone::Dropped, Gone::Panicked].into_iter().find(|gone| *gone as u8 == number)
    }

    fn reason(self) -> &'static str {
        match self {
            Gone::Dropped => "its handle was dropped",
            Gone::Panicked => "its handle was dropped by a panic of its thread",
        }
    }
}

const HISTORY: usize = 4;
const FAILURES_KEPT: usize = if cfg!(test) { 2 } else { 1024 };

#[derive(Debug, Default)]
struct ResetRendezvous {
    arrived: Vec<usize>,
    round: u64,
    outcome: Option<Result<()>>,
}

/// A handle's part in a reset of all handles, from when it came until the reset is done or the handle leaves.
#[derive(Debug)]
pub(crate) struct Resetting {
    rank: usize,
    round: u64,
    since: Instant,
}

/// A number of this thread that no other has, or had.
fn this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = 1 + THREADS.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these; a caller's panic in between changes nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: Backend> RankShared<B> {
    pub(crate) fn ticks(&self, limit: Duration) -> u64 {
        let ticks = limit.as_nanos().saturating_mul(u128::from(self.ticks_per_second)) / 1_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
    }

    fn duration(&self, ticks: u64) -> Duration {
        Duration::from_secs_f64(ticks as f64 / self.ticks_per_second as f64)
    }

    /// Counts `launches` that were enqueued in `domain`: the epoch of the last.
    pub(crate) fn count(&self, domain: usize, launches: u64) -> u64 {
        // The rank's own thread alone writes it, under the lock of the state.
        let epoch = self.launched[domain].load(Ordering::Relaxed) + launches;
        self.launched[domain].store(epoch, Ordering::Release);
        epoch
    }

    fn launched(&self, domain: usize) -> u64 {
        self.launched[domain].load(Ordering::Acquire)
    }

    pub(crate) fn gone(&self) -> Option<Gone> {
        Gone::from_number(self.gone.load(Ordering::SeqCst))
    }

    fn load(&self, offset: u64) -> u64 {
        self.control.word(offset).map_or(0, |w| w.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.control.word(offset) {
            word.store(value, Ordering::Release);
        }
    }
}

impl<B: Backend> RankState<B> {
    fn new() -> Self {
        RankState {
            next_call: 1,
            last: None,
            history: VecDeque::with_capacity(HISTORY),
            counting: None,
            failed: VecDeque::new(),
            forgotten: 0,
            lost: false,
            quarantine: Vec::new(),
        }
    }

    pub(crate) fn remember(&mut self, called: Called) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(called);
    }
}

impl<B: Backend> Shared<B> {
    pub(crate) fn rank(&self, operation: &'static str, rank: Rank) -> Result<&RankShared<B>> {
        self.ranks.get(rank.index()).ok_or_else(|| {
            let expected = format!("a rank from 0 to {}", self.ranks.len() - 1);
            crate::collective::invalid(operation, None, "rank", expected, rank)
        })
    }

    pub(crate) fn driver_error(&self, rank: usize, fault: Fault) -> Error {
        Error::Driver {
            backend: B::NAME,
            call: fault.call,
            device: B::ordinal(&self.ranks[rank].device),
            rank: Some(Rank::from_index(rank)),
            code: fault.code,
            name: fault.name,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// See the field.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// The domain of groups of `size`.
    pub(crate) fn domain_of(&self, size: usize) -> usize {
        self.domains.iter().position(|s| *s == size).unwrap_or(0)
    }

    /// A child of the process that built it has neither its threads nor its devices, and its locks as they were: calls that
    /// went ahead waited for the limit, and named the other ranks.
    fn refuse_in_a_fork(&self) -> Result<()> {
        if self.process == process::forks() {
            return Ok(());
        }
        let what = "this process is a fork of the one that built the communicator, whose threads and devices are not here; \
                    build a communicator in this process";
        Err(Error::Unsupported { operation: "communicator", what: what.into() })
    }

    /// The rank's state, if the communicator takes work.
    pub(crate) fn begin(&self, rank: usize) -> Result<MutexGuard<'_, RankState<B>>> {
        self.refuse_in_a_fork()?;
        // Before the lock: to tell what the others did last, it takes theirs.
        self.notice_failures();
        let state = lock(&self.ranks[rank].state);
        self.refuse_if_poisoned()?;
        Ok(state)
    }

    /// The number of a rank's next call, as it is now.
    pub(crate) fn next_call(&self, rank: usize) -> u64 {
        lock(&self.ranks[rank].state).next_call
    }

    /// The stream of a rank's last launch and the point after it, where that is `call` or a later one.
    pub(crate) fn launched_from(&self, rank: usize, call: u64) -> Option<(B::Stream, B::Event)> {
        let state = lock(&self.ranks[rank].state);
        (state.next_call > call).then(|| state.last.clone()).flatten()
    }

    /// On an inline stream, the thread that calls for a rank is the rank's: while it has not waited for what it called for
    /// another one, it would wait for itself. No lock is taken where every rank has a thread of its own.
    pub(crate) fn refuse_two_ranks_of_one_thread(&self, operation: &'static str, rank: usize) -> Result<()> {
        let me = this_thread();
        for (other, theirs) in self.ranks.iter().enumerate() {
            if other == rank || theirs.caller.load(Ordering::Relaxed) != me {
                continue;
            }
            let to_do = match &lock(&theirs.state).last {
                Some((stream, event)) if B::is_inline(stream) => {
                    !B::wait(event, Some(Instant::now())).map_err(|f| self.driver_error(other, f))?
                }
                _ => false,
            };
            if to_do {
                let what = format!(
                    "this thread has not waited for what it called for rank {other}, whose stream is inline, and would wait \
                     for itself; give each rank a thread of its own"
                );
                return Err(Error::Unsupported { operation, what });
            }
        }
        // Only where it changes: the others look at it.
        let mine = &self.ranks[rank].caller;
        if mine.load(Ordering::Relaxed) != me {
            mine.store(me, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn refuse_if_poisoned(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire)
            && let Some(cause) = &*lock(&self.poison)
        {
            return Err(Error::poisoned(cause));
        }
        Ok(())
    }

    /// Why work is refused.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.notice_failures();
        lock(&self.poison).clone()
    }

    /// A failure that nobody has waited for stands in a status record.
    fn notice_failures(&self) {
        if self.poisoned.load(Ordering::Acquire) {
            return;
        }
        let generation = self.generation();
        if let Some(rank) = (0..self.ranks.len()).find(|r| self.ranks[*r].load(control::STATE) != 0) {
            let cause = self.diagnose(rank);
            self.set_poison(cause, generation);
        }
    }

    /// False, and nothing done, where a reset came since `generation` was read: what failed before it must
    /// not poison what comes after.
    fn set_poison(&self, cause: Error, generation: u64) -> bool {
        let mut poison = lock(&self.poison);
        if generation != self.generation() {
            return false;
        }
        poison.get_or_insert(cause);
        self.poisoned.store(true, Ordering::Release);
        true
    }

    /// Whether a kernel was launched whose end cannot be known.
    pub(crate) fn is_lost(&self) -> bool {
        self.refuse_in_a_fork().is_err() || self.ranks.iter().any(|r| lock(&r.state).lost)
    }

    /// Refuses further work and ends the waits in flight.
    pub(crate) fn abort(&self, cause: Error) {
        self.set_poison(cause, self.generation());
        for rank in &self.ranks {
            rank.store(control::ABORT, 1);
        }
    }

    /// Refuses further work, and waits until nothing runs any more. (Who hears of a failure from a peer tells that, not that
    /// it was stopped.)
    pub(crate) fn stop(&self) -> Result<()> {
        self.refuse_in_a_fork()?;
        self.abort(Error::Aborted);
        let deadline = Instant::now() + STOP_LIMIT;
        for (rank, me) in self.ranks.iter().enumerate() {
            // `begin` looks for the poison under this lock: what gets past it stands in `last` by now.
            let (lost, last) = {
                let state = lock(&me.state);
                (state.lost, state.last.as_ref().map(|(_, event)| event.clone()))
            };
            let passed = last.map_or(Ok(true), |event| B::wait(&event, Some(deadline)));
            if lost || !passed.map_err(|f| self.driver_error(rank, f))? {
                return Err(Error::Busy {
                    operation: "stop",
                    what: format!(
                        "the stream of rank {rank} does not come to rest; finish the work in it and call stop again"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Waits for launches and tells their common outcome: the first failure, those of this call
    /// before those of earlier ones.
    pub(crate) fn outcome(&self, launches: &[Launch<B>]) -> Result<()> {
        let mut worst: Result<()> = Ok(());
        for launch in launches {
            match (&worst, self.outcome_of(launch)) {
                (Ok(()), outcome) => worst = outcome,
                (Err(Error::Poisoned { .. }), Err(error)) => worst = Err(error),
                _ => {}
            }
        }
        worst
    }

    fn outcome_of(&self, launch: &Launch<B>) -> Result<()> {
        self.refuse_in_a_fork()?;
        let rank = &self.ranks[launch.rank];
        if launch.foreign {
            let what = format!(
                "what rank {} called was captured into a graph, and has not run; wait for a launch of the graph",
                launch.rank
            );
            return Err(Error::Busy { operation: "wait", what });
        }
        if launch.event.is_none() {
            return Ok(());
        }
        launch.passed_by(None).map_err(|f| self.driver_error(launch.rank, f))?;
        // In this order: a reset counts itself before it clears the state.
        let state = rank.load(control::STATE);
        if state == 0 && launch.generation == self.generation() {
            return Ok(());
        }
        // A reset may have come in between: its record of what had failed decides then.
        if launch.generation != self.generation() {
            let state = lock(&rank.state);
            let failed = state.failed.iter().find(|(from, to, _)| (*from..=*to).contains(&launch.call));
            return match failed {
                Some((from, _, cause)) if *from == launch.call => Err(cause.clone()),
                Some((_, _, cause)) => Err(Error::poisoned(cause)),
                None if launch.call <= state.forgotten => Err(Error::poisoned(&Error::Aborted)),
                None => Ok(()),
            };
        }
        let failing = rank.load(control::CALL);
        if failing != 0 && launch.call < failing && !launch.replay {
            return Ok(());
        }
        let cause = self.diagnose(launch.rank);
        if !self.set_poison(cause.clone(), launch.generation) {
            return self.outcome_of(launch);
        }
        if launch.call > failing && !launch.replay { Err(Error::poisoned(&cause)) } else { Err(cause) }
    }

    /// Memory of a failed call: a late rank may touch it until reset. After a reset it is free.
    pub(crate) fn quarantine(&self, launch: &Launch<B>, memory: impl Iterator<Item = Arc<Allocation<B>>>) {
        let mut state = lock(&self.ranks[launch.rank].state);
        if launch.generation != self.generation() {
            memory.for_each(|one| one.land());
            return;
        }
        for one in memory {
            one.set_borrowed(true);
            state.quarantine.push(one);
        }
    }

    /// One handle's part of a reset of all handles that there are; one of them does it when all have come.
    pub(crate) fn reset_together(&self, rank: usize, limit: Duration) -> Result<()> {
        self.refuse_in_a_fork()?;
        let mine = self.come_to_reset(rank);
        let outcome = self.reset_by(&mine, Instant::now().checked_add(limit));
        outcome.unwrap_or_else(|| self.leave_reset(&mine))
    }

    /// The handle of `rank` has come to a reset, and counts as there until it is over or
    /// [`leave_reset`](Self::leave_reset).
    pub(crate) fn come_to_reset(&self, rank: usize) -> Resetting {
        let mut meeting = lock(&self.rendezvous);
        if !meeting.arrived.contains(&rank) {
            meeting.arrived.push(rank);
        }
        self.arrived.notify_all();
        Resetting { rank, round: meeting.round, since: Instant::now() }
    }

    /// The outcome of the reset, once all have come; `None` if the deadline passed first.
    pub(crate) fn reset_by(&self, mine: &Resetting, deadline: Option<Instant>) -> Option<Result<()>> {
        if let Err(error) = self.refuse_in_a_fork() {
            return Some(Err(error));
        }
        let mut meeting = lock(&self.rendezvous);
        while meeting.round == mine.round {
            if self.absent(&meeting).is_empty() {
                meeting.outcome = Some(self.reset());
                meeting.arrived.clear();
                meeting.round += 1;
                self.arrived.notify_all();
                break;
            }
            let left = deadline.map_or(LONG, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            meeting = self.arrived.wait_timeout(meeting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(meeting.outcome.clone().unwrap_or(Ok(())))
    }

    /// The ranks whose handles are there and have not come.
    fn absent(&self, meeting: &ResetRendezvous) -> Vec<Rank> {
        let absent = |rank: &usize| !meeting.arrived.contains(rank) && self.ranks[*rank].gone().is_none();
        (0..self.ranks.len()).filter(absent).map(Rank::from_index).collect()
    }

    /// The handle waits no longer: who has not come, unless all have meanwhile.
    pub(crate) fn leave_reset(&self, mine: &Resetting) -> Result<()> {
        let mut meeting = lock(&self.rendezvous);
        if meeting.round != mine.round {
            return meeting.outcome.clone().unwrap_or(Ok(()));
        }
        let missing = self.absent(&meeting);
        meeting.arrived.retain(|r| *r != mine.rank);
        Err(Error::Timeout {
            operation: "reset",
            rank: Rank::from_index(mine.rank),
            sequence: mine.round + 1,
            missing,
            waited: mine.since.elapsed(),
            note: "every handle must call reset".into(),
        })
    }

    pub(crate) fn reset(&self) -> Result<()> {
        self.refuse_in_a_fork()?;
        let outcome = self.try_reset();
        // The abort words are set: whoever goes on must be refused, whatever was the matter.
        if outcome.is_err() {
            self.set_poison(Error::Aborted, self.generation());
        }
        outcome
    }

    fn try_reset(&self) -> Result<()> {
        // Nobody enqueues meanwhile.
        let mut states: Vec<_> = self.ranks.iter().map(|r| lock(&r.state)).collect();
        for rank in &self.ranks {
            rank.store(control::ABORT, 1);
        }
        if states.iter().any(|s| s.lost) {
            return Err(Error::poisoned(&lock(&self.poison).clone().unwrap_or(Error::Aborted)));
        }
        let deadline = Instant::now() + STOP_LIMIT;
        for (rank, state) in states.iter().enumerate() {
            let fault = |f| self.driver_error(rank, f);
            // The stream of the last launch, and the rank's own, in which the epochs are written.
            let own = B::record(&self.ranks[rank].stream).map_err(fault)?;
            let mut at_rest = B::wait(&own, Some(deadline)).map_err(fault)?;
            if let Some((_, event)) = &state.last {
                at_rest &= B::wait(event, Some(deadline)).map_err(fault)?;
            }
            if !at_rest {
                return Err(Error::Busy {
                    operation: "reset",
                    what: format!(
                        "the stream of rank {rank} does not come to rest; finish the work in it and call reset again"
                    ),
                });
            }
        }
        let causes: Vec<Option<(u64, Error)>> = (0..self.ranks.len())
            .map(|r| {
                (self.ranks[r].load(control::STATE) != 0)
                    .then(|| (self.ranks[r].load(control::CALL), self.diagnose_locked(r, &states)))
            })
            .collect();
        self.raise_epochs()?;
        // Under the lock that set_poison looks at the generation with.
        let mut poison = lock(&self.poison);
        self.generation.fetch_add(1, Ordering::AcqRel);
        for ((rank, state), cause) in self.ranks.iter().zip(&mut states).zip(causes) {
            if let Some((from, cause)) = cause {
                if state.failed.len() == FAILURES_KEPT
                    && let Some((_, to, _)) = state.failed.pop_front()
                {
                    state.forgotten = to;
                }
                let last = state.next_call - 1;
                state.failed.push_back((from, last, cause));
            }
            for memory in state.quarantine.drain(..) {
                memory.set_borrowed(false);
                memory.land();
            }
            rank.store(control::CALL, 0);
            rank.store(control::STATE, 0);
            rank.store(control::ABORT, 0);
        }
        *poison = None;
        self.poisoned.store(false, Ordering::Release);
        Ok(())
    }

    /// Epochs and sequences of all ranks go to a common value above all that were used: raised, never
    /// zeroed, so that no flag of before can be taken for one of after (case A11).
    fn raise_epochs(&self) -> Result<()> {
        let word = |rank: usize, offset: u64| -> Result<u64> {
            let mut bytes = [0; 8];
            let me = &self.ranks[rank];
            me.signal.read(&me.stream, offset as usize, &mut bytes).map_err(|f| self.driver_error(rank, f))?;
            Ok(u64::from_ne_bytes(bytes))
        };
        let set = |rank: usize, offset: u64, bytes: &[u8]| -> Result<()> {
            let me = &self.ranks[rank];
            me.signal.write(&me.stream, offset as usize, bytes).map_err(|f| self.driver_error(rank, f))
        };
        let ranks = 0..self.ranks.len();
        for domain in 0..self.layout.domains {
            for offset in [self.layout.epoch(domain), self.layout.sequence(domain)] {
                let values: Vec<u64> = ranks.clone().map(|r| word(r, offset)).collect::<Result<_>>()?;
                let base = values.into_iter().max().unwrap_or(0) + 1;
                for rank in ranks.clone() {
                    set(rank, offset, &base.to_ne_bytes())?;
                    if offset == self.layout.epoch(domain) {
                        self.ranks[rank].launched[domain as usize].store(base, Ordering::Release);
                    }
                }
            }
            let at = self.layout.packets(domain);
            let launches: Vec<u64> = ranks.clone().map(|r| word(r, at)).collect::<Result<_>>()?;
            let base = launches.into_iter().max().unwrap_or(0) + 1;
            for rank in ranks.clone() {
                set(rank, self.layout.ticket(domain), &[0; LINE as usize])?;
                set(rank, at, &base.to_ne_bytes())?;
                set(rank, self.layout.acks(domain), &base.to_ne_bytes().repeat(self.ranks.len()))?;
            }
        }
        let poison = vec![0; self.layout.cause as usize];
        // No flag is 0: whatever number comes next, nothing of before passes for it, however far it is raised.
        let inboxes = self.layout.inbox..self.layout.payload;
        for rank in ranks {
            let me = &self.ranks[rank];
            me.signal.clear(&me.stream, inboxes.clone()).map_err(|f| self.driver_error(rank, f))?;
            set(rank, 0, &poison)?;
        }
        Ok(())
    }

    /// Gives up on ever freeing what kernels touch.
    pub(crate) fn leak(&self) {
        for rank in &self.ranks {
            rank.signal.leak();
            rank.control.leak();
            for memory in &lock(&rank.state).quarantine {
                memory.leak();
            }
        }
    }
}

impl<B: Backend> Drop for Shared<B> {
    fn drop(&mut self) {
        if self.refuse_in_a_fork().is_err() {
            // Nothing of it is this process's to wait for or to free.
            for rank in &self.ranks {
                rank.signal.leak();
                rank.control.leak();
            }
            return;
        }
        for rank in &self.ranks {
            rank.store(control::ABORT, 1);
        }
        let deadline = Instant::now() + STOP_LIMIT;
        let at_rest = self.ranks.iter().all(|rank| match &*lock(&rank.state) {
            RankState { lost: true, .. } => false,
            RankState { last: Some((_, event)), .. } => B::wait(event, Some(deadline)).unwrap_or(false),
            _ => true,
        });
        if !at_rest {
            // What cannot be stopped keeps its memory: leaked, never freed under a running kernel.
            self.leak();
            return;
        }
        // No late rank can touch the buffers of failed calls any more.
        for rank in &self.ranks {
            for memory in lock(&rank.state).quarantine.drain(..) {
                memory.set_borrowed(false);
                memory.land();
            }
        }
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;
    use crate::Cpu;

    /// A drop does not wait without limit, even for a call that does.
    #[test]
    fn dropping_a_call_without_limit_aborts_it_in_the_end() {
        for inline in [false, true] {
            let builder = Communicator::<Cpu>::builder(0..2).timeout(None).inline_streams(inline);
            let ranks = builder.build().unwrap().into_ranks();
            let mut data = ranks[0].buffer::<u8>(10).unwrap();
            let begin = Instant::now();
            drop(ranks[0].broadcast_in_place(&mut data, 1).unwrap());
            assert!(begin.elapsed() >= DROP_LIMIT && begin.elapsed() < 5 * DROP_LIMIT);
            let error = ranks[0].broadcast_in_place(&mut data, 1).unwrap_err();
            assert_eq!(error, Error::Poisoned { cause: Box::new(Error::Aborted) });
        }
    }

    /// A leaked handle leaves memory that peers may still read: the host cannot write it.
    #[test]
    fn a_leaked_handle_keeps_writers_away() {
        let comm = Communicator::<Cpu>::builder(0..2).build().unwrap();
        let mut data = [0, 1].map(|r| comm.buffer_from(r, &[r as u8; 10]).unwrap());
        std::mem::forget(comm.broadcast_in_place(&mut data, 1).unwrap());
        assert_eq!(data[0].to_vec().unwrap(), [1; 10]);
        let refused = data[1].write(&[2; 10]).unwrap_err().to_string();
        assert!(
            refused.contains("a collective whose handle was leaked, or is still there, may still use"),
            "{refused}"
        );
        assert!(matches!(data[1].fill_bytes(2), Err(Error::Busy { .. })));
        assert!(matches!(data[1].write_at(0, &[2]), Err(Error::Busy { .. })));
    }

    /// Behind a call without limit in the same stream, one with a limit does not end by it.
    #[test]
    fn dropping_a_call_that_is_stuck_behind_another_is_bounded() {
        for inline in [false, true] {
            let ranks = Communicator::<Cpu>::builder(0..2).inline_streams(inline).build().unwrap().into_ranks();
            let mut data = [0, 1].map(|_| ranks[0].buffer::<u8>(10).unwrap());
            let [first, second] = &mut data;
            let endless = crate::Broadcast::from_root(1).no_timeout();
            let held = ranks[0].broadcast_in_place(first, endless).unwrap();
            let limited = crate::Broadcast::from_root(1).timeout(Duration::from_millis(100));
            let begin = Instant::now();
            drop(ranks[0].broadcast_in_place(second, limited).unwrap());
            assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
            assert_eq!(held.wait(), Err(Error::Aborted));
        }
    }

    /// Case A13: launch epochs and sequences pass the border of 32 bits like any other number. An ordered compare of
    /// 32 bits would wait for nothing from there on, or for ever.
    #[test]
    fn a13_epochs_beyond_32_bits() {
        use crate::{Algorithm, ReduceOp};
        let comm = Communicator::<Cpu>::builder(0..4).timeout(Duration::from_secs(5)).build().unwrap();
        let shared = &comm.shared;
        for me in &shared.ranks {
            for domain in 0..shared.layout.domains {
                for at in [shared.layout.epoch(domain), shared.layout.sequence(domain)] {
                    me.signal.write(&me.stream, at as usize, &0xffff_fffe_u64.to_ne_bytes()).unwrap();
                }
            }
        }
        let mut data = [0, 1, 2, 3].map(|r| comm.buffer::<u32>(r, 1000).unwrap());
        let algorithms = [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect];
        for call in 0..6 {
            let root = call % 4;
            data[root].write(&[call as u32 + 1; 1000]).unwrap();
            let what = Broadcast::from_root(root).algorithm(algorithms[call % 3]);
            comm.broadcast_in_place(&mut data, what).unwrap().wait().unwrap();
            assert!(data.iter().all(|d| d.to_vec().unwrap() == [call as u32 + 1; 1000]), "call {call}");
            let pairs = ReduceScatter::new(ReduceOp::Sum).group_size(2);
            comm.reduce_scatter_in_place(&mut data, pairs).unwrap().wait().unwrap();
            assert_eq!(data[3].to_vec().unwrap()[500..], [2 * (call as u32 + 1); 500], "call {call}");
        }
        let mut epoch = [0; 8];
        let (me, layout) = (&shared.ranks[0], &shared.layout);
        me.signal.read(&me.stream, layout.epoch(0) as usize, &mut epoch).unwrap();
        assert_eq!(u64::from_ne_bytes(epoch), 0xffff_fffe + 6);
    }

    /// I9: flags of packets repeat after 2^31 launches of a domain; at each 2^30th all words are stamped anew. Words that
    /// have waited for this launch's flag since then, as far as they tell, are not taken for its data.
    #[test]
    fn i9_flags_of_packets_are_stamped_anew() {
        use crate::{Algorithm, ReduceOp, low_latency_bytes};
        const BORDER: u64 = 3 << 30;
        let comm = Communicator::<Cpu>::builder(0..3).timeout(Duration::from_secs(5)).build().unwrap();
        let (shared, layout) = (&comm.shared, &comm.shared.layout);
        for me in &shared.ranks {
            let set = |at: u64, bytes: &[u8]| me.signal.write(&me.stream, at as usize, bytes).unwrap();
            set(layout.packets(0), &(BORDER - 2).to_ne_bytes());
            set(layout.acks(0), &(BORDER - 2).to_ne_bytes().repeat(3));
            for slot in 0..6u64 {
                // Behind the header, which every launch writes.
                let number = BORDER + 1 + (BORDER + 1 + slot) % 2;
                let word = ((number | 1 << 31) << 32 | 0xbad).to_ne_bytes();
                set(layout.inbox + slot * layout.slot + 64, &word.repeat(layout.slot as usize / 8 - 8));
            }
        }
        let ranks = comm.into_ranks();
        // Words here look 2^31 launches old, which none is: those that are stamped anew each 2^30th time have as long again
        // for it. So all ranks are through with that launch before the next, where a receiver looks for a sender that it
        // had not to wait for (without this, the test took such words for data one time in three).
        let stamped = std::sync::Barrier::new(3);
        let stamped = &stamped;
        std::thread::scope(|scope| {
            for rank in ranks {
                scope.spawn(move || {
                    let me = rank.rank().index();
                    for (call, count) in [2, 2, 16_000, 16_000, 16_000].into_iter().enumerate() {
                        if call == 2 {
                            stamped.wait();
                        }
                        // The receivers look for their packets long before they come.
                        if call > 1 && me == call % 3 {
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        let mut data = rank.buffer_from(&vec![(10 * me + call) as u32; count]).unwrap();
                        let what = Broadcast::from_root(call % 3).algorithm(Algorithm::LowLatency).max_blocks(8);
                        rank.broadcast_in_place(&mut data, what).unwrap().wait().unwrap();
                        assert_eq!(data.to_vec().unwrap(), vec![(10 * (call % 3) + call) as u32; count], "call {call}");
                    }
                    let mut data = rank.buffer_from(&vec![me as u32; low_latency_bytes(3) / 4 * 3]).unwrap();
                    let what = ReduceScatter::new(ReduceOp::Sum).algorithm(Algorithm::LowLatency);
                    rank.reduce_scatter_in_place(&mut data, what).unwrap().wait().unwrap();
                    let part = low_latency_bytes(3) / 4;
                    assert_eq!(data.to_vec().unwrap()[me * part..(me + 1) * part], vec![3; part]);
                });
            }
        });
    }

    /// A failure that is asked for very late is never told as success.
    #[test]
    fn failures_are_not_forgotten() {
        let comm = Communicator::<Cpu>::builder(0..2).timeout(Duration::from_millis(20)).build().unwrap();
        let ranks = comm.into_ranks();
        let mut data: Vec<_> = (0..5).map(|_| ranks[0].buffer::<u8>(10).unwrap()).collect();
        let mut flights = Vec::new();
        for buffer in &mut data {
            flights.push(ranks[0].broadcast_in_place(buffer, 1).unwrap());
            std::thread::sleep(Duration::from_millis(60));
            ranks[0].shared().reset().unwrap();
        }
        let told: Vec<_> = flights.into_iter().map(|f| f.wait()).collect();
        assert!(told.iter().all(Result::is_err), "{told:?}");
        assert!(matches!(told[4], Err(Error::Timeout { .. })), "{told:?}");
    }
}

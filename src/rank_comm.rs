//! One rank's handle, for one thread a rank.

use std::{cell::Cell, fmt, marker::PhantomData, sync::Arc, time::Duration};

use smallvec::smallvec;

use crate::{
    backend::Backend,
    buffer::{Buffer, Destination, Slice, SliceMut, View},
    collective::{Broadcast, Prepared, ReduceScatter},
    communicator::{AbortHandle, Gone, Launched, Shared},
    dtype::{DType, Element},
    error::{Error, Result},
    graph::Graph,
    in_flight::InFlight,
    plan::Part,
    rank::Rank,
    raw::{self, RawRank},
};

/// One rank of a communicator. It may move to another thread, but is used by one at a time: the order
/// of a rank's calls is part of what the ranks agree on.
///
/// Every rank of a group makes the matching call. A call only enqueues; a rank that does not come is
/// named by the error that [`InFlight::wait`] returns on those that depend on it.
///
/// # Dropping a handle
///
/// What the rank has enqueued goes on. If a peer waits for a call that the rank did not make, that wait ends at once with
/// [`Error::RankGone`], and a later call that needs the rank is refused with the same error. So a thread that panics or returns
/// early does not cost its peers the time limit. Afterwards calls of groups without the rank still work, after a
/// [`reset`](Self::reset) by the handles that are left if a wait was ended. [`stop`](Self::stop) works as well. Anything that
/// needs the rank needs a new communicator. A [`Graph`] of the rank counts as its handle. (One that somebody else captured is not
/// seen: there the limit ends the wait.)
///
/// ```
/// use crossccl::{Communicator, Cpu};
///
/// # fn main() -> crossccl::Result<()> {
/// let ranks = Communicator::<Cpu>::builder(0..3).build()?.into_ranks();
/// std::thread::scope(|scope| {
///     for rank in ranks {
///         scope.spawn(move || -> crossccl::Result<()> {
///             let mut weights = rank.buffer_from(&[rank.rank().0 as f32; 1000])?;
///             rank.broadcast_in_place(&mut weights, 2)?.wait()?;
///             assert_eq!(weights.to_vec()?, [2.0; 1000]);
///             Ok(())
///         });
///     }
/// });
/// # Ok(())
/// # }
/// ```
pub struct RankComm<B: Backend> {
    shared: Arc<Shared<B>>,
    rank: usize,
    /// Not `Sync`.
    _one_thread: PhantomData<Cell<()>>,
}

impl<B: Backend> RankComm<B> {
    pub(crate) fn new(shared: Arc<Shared<B>>, rank: usize) -> Self {
        RankComm { shared, rank, _one_thread: PhantomData }
    }

    #[cfg(any(feature = "capi", all(test, feature = "cpu")))]
    pub(crate) fn shared(&self) -> &Arc<Shared<B>> {
        &self.shared
    }

    /// Which rank this is.
    pub fn rank(&self) -> Rank {
        Rank::from_index(self.rank)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.shared.ranks.len()
    }

    /// The rank's stream.
    pub fn stream(&self) -> &B::Stream {
        &self.shared.ranks[self.rank].stream
    }

    /// A buffer of `len` zeros on the rank's device.
    ///
    /// # Errors
    /// [`Error::Driver`] where the memory cannot be had.
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<B, T>> {
        Buffer::of_kind(self.stream(), self.shared.buffers, len)
    }

    /// A buffer with a copy of `elements` on the rank's device.
    ///
    /// # Errors
    /// [`Error::Driver`] where the memory cannot be had.
    pub fn buffer_from<T: Element>(&self, elements: &[T]) -> Result<Buffer<B, T>> {
        self.buffer(elements.len())?.filled(elements)
    }

    /// This rank's part of a broadcast: `input` is needed on the root and ignored elsewhere.
    ///
    /// # Errors
    /// As for [`Communicator::broadcast`](crate::Communicator::broadcast).
    pub fn broadcast<'a, T: 'a>(
        &self,
        input: Option<impl Into<Slice<'a, B, T>>>,
        output: impl Into<SliceMut<'a, B, T>>,
        what: impl Into<Broadcast>,
    ) -> Result<InFlight<'a, B>> {
        let input = input.map(|i| i.into().view);
        let output = output.into().view;
        let prepared = what.into().prepare_one(&self.shared, self.rank, input.as_ref(), &output)?;
        self.launch(prepared, [Some(output), input, None])
    }

    /// This rank's part of a broadcast from the root's buffer into the others'.
    ///
    /// # Errors
    /// As for [`Communicator::broadcast`](crate::Communicator::broadcast).
    pub fn broadcast_in_place<'a, T: 'a>(
        &self,
        buffer: impl Into<SliceMut<'a, B, T>>,
        what: impl Into<Broadcast>,
    ) -> Result<InFlight<'a, B>> {
        let buffer = buffer.into().view;
        let prepared = what.into().prepare_one(&self.shared, self.rank, Some(&buffer), &buffer)?;
        self.launch(prepared, [Some(buffer), None, None])
    }

    /// This rank's part of a reduce-scatter. A [`ReduceScatter`] with one shape means this rank's group.
    ///
    /// # Errors
    /// As for [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    pub fn reduce_scatter<'a, T: 'a>(
        &self,
        input: impl Into<Slice<'a, B, T>>,
        output: impl Into<SliceMut<'a, B, T>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<InFlight<'a, B>> {
        let (input, output) = (input.into().view, output.into().view);
        let prepared = what.into().prepare_one(&self.shared, self.rank, &input, &output, None)?;
        self.launch(prepared, [Some(output), Some(input), None])
    }

    /// This rank's part of a reduce-scatter with a fused epilogue. The dtype of the outputs is agreed on; a
    /// residual and a factor are this rank's own.
    ///
    /// # Errors
    /// As for [`Communicator::reduce_scatter_fused`](crate::Communicator::reduce_scatter_fused).
    pub fn reduce_scatter_fused<'a, T: 'a, U: 'a>(
        &self,
        input: impl Into<Slice<'a, B, T>>,
        destination: impl Into<Destination<'a, B, U>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<InFlight<'a, B>> {
        let input = input.into().view;
        let (output, residual) = destination.into().views();
        let what = what.into().for_outputs(Some(output.dtype));
        let prepared = what.prepare_one(&self.shared, self.rank, &input, &output, residual.as_ref())?;
        self.launch(prepared, [Some(output), Some(input), residual])
    }

    /// This rank's part of a reduce-scatter along axis 0 whose result replaces the rank's part of its
    /// own input.
    ///
    /// # Errors
    /// As for [`Communicator::reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place).
    pub fn reduce_scatter_in_place<'a, T: 'a>(
        &self,
        buffer: impl Into<SliceMut<'a, B, T>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<InFlight<'a, B>> {
        let what = what.into();
        let buffer = buffer.into().view;
        let output = what.in_place_outputs(&self.shared, self.rank, &buffer)?;
        let prepared = what.prepare_one(&self.shared, self.rank, &buffer, &output, None)?;
        self.launch(prepared, [Some(buffer), None, None])
    }

    /// The part of an input of `count` elements that this rank gets from `what`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where they do not fit.
    pub fn part(&self, count: usize, what: impl Into<ReduceScatter>) -> Result<Part> {
        what.into().part(&self.shared, self.rank, count as u64)
    }

    /// [`broadcast`](Self::broadcast) by address, on a stream of yours (or the rank's).
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast), misaligned and overlapping addresses included.
    ///
    /// # Safety
    /// From now until the launch is complete on `stream`, and after an error until `reset` or `stop` returned `Ok`:
    /// `recv`, and on the root `send`, is valid on the rank's device for `count` elements and reachable
    /// by the peers; nobody else writes `send`, and nobody else uses `recv`.
    #[allow(unsafe_code)]
    pub unsafe fn broadcast_raw(
        &self,
        addresses: RawRank,
        stream: &B::Stream,
        count: usize,
        dtype: DType,
        what: impl Into<Broadcast>,
    ) -> Result<Launched<B>> {
        let prepared = what.into().prepare_one_raw(&self.shared, self.rank, addresses, count as u64, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_raw(prepared, stream) }
    }

    /// [`reduce_scatter`](Self::reduce_scatter) by address; `count` elements of input.
    ///
    /// # Errors
    /// As for [`reduce_scatter`](Self::reduce_scatter), misaligned and overlapping addresses included.
    ///
    /// # Safety
    /// As for [`broadcast_raw`](Self::broadcast_raw): `send` is valid for `count` elements, `recv`
    /// and `residual` for the rank's part.
    #[allow(unsafe_code)]
    pub unsafe fn reduce_scatter_raw(
        &self,
        addresses: RawRank,
        stream: &B::Stream,
        count: usize,
        dtype: DType,
        what: impl Into<ReduceScatter>,
    ) -> Result<Launched<B>> {
        let prepared = what.into().prepare_one_raw(&self.shared, self.rank, addresses, count as u64, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_raw(prepared, stream) }
    }

    /// As [`Communicator::capture`](crate::Communicator::capture), for this rank.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[allow(unsafe_code)]
    pub unsafe fn capture(&self, stream: &B::Stream, calls: impl FnOnce() -> Result<()>) -> Result<Graph<B>> {
        Graph::capture(&self.shared, &[(self.rank, stream.clone())], calls)
    }

    /// As [`Communicator::abort`](crate::Communicator::abort).
    pub fn abort(&self) {
        self.shared.abort(Error::Aborted);
    }

    /// Refuses further work, as [`abort`](Self::abort), and returns when no rank's launches run any more: memory that raw
    /// calls were given is the caller's again, without a meeting of all handles. Only [`reset`](Self::reset) makes the
    /// communicator usable. For who is told of a failure and cannot keep the memory until then. (Of graphs that you captured
    /// and launch yourself it knows nothing.)
    ///
    /// # Errors
    /// [`Error::Busy`] where a stream does not come to rest within a second: it has work of yours in front, or a kernel
    /// cannot be stopped. The memory stays borrowed then. [`Error::Driver`] where the driver does not say.
    pub fn stop(&self) -> Result<()> {
        self.shared.stop()
    }

    /// A handle that can abort from another thread.
    pub fn abort_handle(&self) -> AbortHandle<B> {
        AbortHandle::new(self.shared.clone())
    }

    /// As [`Communicator::failure`](crate::Communicator::failure).
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure()
    }

    /// Makes the communicator usable again after a failure. Every rank's handle that was not dropped must call it; it
    /// returns when all have, or after `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the handles that did not come; [`Error::Busy`] where a stream does not
    /// come to rest. The communicator then stays poisoned, and `reset` can be called again.
    pub fn reset(&self, limit: Duration) -> Result<()> {
        self.shared.reset_together(self.rank, limit)
    }

    fn launch<'a>(&self, prepared: Prepared, owners: [Option<View<B>>; 3]) -> Result<InFlight<'a, B>> {
        let owners = owners.into_iter().flatten().map(|v| v.memory).collect();
        let mut flight = InFlight::new(self.shared.clone(), owners, PhantomData);
        match raw::enqueue_owned(&self.shared, &[prepared], flight.launches()) {
            Ok(()) => Ok(flight),
            Err(error) => Err(flight.give_up(error)),
        }
    }

    /// # Safety
    /// As for the `*_raw` methods.
    #[allow(unsafe_code)]
    unsafe fn launch_raw(&self, prepared: Prepared, stream: &B::Stream) -> Result<Launched<B>> {
        raw::check_stream(&self.shared, prepared.request.name(), self.rank, stream)?;
        raw::check_memory(&self.shared, &prepared)?;
        // SAFETY: the caller's promise.
        let launch = unsafe { raw::enqueue(&self.shared, &prepared, stream)? };
        Ok(Launched { shared: self.shared.clone(), launches: smallvec![launch] })
    }
}

impl<B: Backend> Drop for RankComm<B> {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { Gone::Panicked } else { Gone::Dropped };
        self.shared.leave(self.rank, how);
    }
}

impl<B: Backend> fmt::Debug for RankComm<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RankComm({} of {} on {})", self.rank, self.ranks(), B::NAME)
    }
}

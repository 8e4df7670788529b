//! Collectives on buffers of ours that are recorded once and run again and again.

use std::{fmt, marker::PhantomData, sync::Arc};

use smallvec::SmallVec;

use crate::{
    backend::{Backend, memory::Allocation},
    buffer::{Destination, Slice, SliceMut, View},
    collective::{Broadcast, Prepared, ReduceScatter},
    communicator::{Shared, fused_views, mutable_views, non_empty, root_view},
    error::{Error, Result},
    graph::{Captured, Graph},
    in_flight::InFlight,
    raw,
};

/// Collectives that are being recorded: everything is checked and planned now, nothing is launched. Made by
/// [`Communicator::record`](crate::Communicator::record).
///
/// A call borrows its buffers only until it returns; the recording, and the [`Replay`] made of it, own their memory
/// besides.
pub struct Recording<B: Backend> {
    shared: Arc<Shared<B>>,
    calls: Vec<Prepared>,
    owners: Vec<Arc<Allocation<B>>>,
}

impl<B: Backend> Recording<B> {
    pub(crate) fn new(shared: Arc<Shared<B>>) -> Self {
        Recording { shared, calls: Vec::new(), owners: Vec::new() }
    }

    /// As [`Communicator::broadcast`](crate::Communicator::broadcast).
    ///
    /// # Errors
    /// As there, but for those of launches.
    pub fn broadcast<'a, T: 'a>(
        &mut self,
        input: impl Into<Slice<'a, B, T>>,
        outputs: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
        what: impl Into<Broadcast>,
    ) -> Result<&mut Self> {
        let input = input.into().view;
        let outputs = mutable_views(outputs);
        let prepared = what.into().prepare_all(&self.shared, &input, &outputs)?;
        Ok(self.add(&prepared, outputs.into_iter().chain([input])))
    }

    /// As [`Communicator::broadcast_in_place`](crate::Communicator::broadcast_in_place).
    ///
    /// # Errors
    /// As there, but for those of launches.
    pub fn broadcast_in_place<'a, T: 'a>(
        &mut self,
        buffers: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
        what: impl Into<Broadcast>,
    ) -> Result<&mut Self> {
        let what = what.into();
        let buffers = mutable_views(buffers);
        let input = root_view(&self.shared, &what, &buffers)?;
        let prepared = what.prepare_all(&self.shared, &input, &buffers)?;
        Ok(self.add(&prepared, buffers.into_iter()))
    }

    /// As [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    ///
    /// # Errors
    /// As there, but for those of launches.
    pub fn reduce_scatter<'a, T: 'a>(
        &mut self,
        inputs: impl IntoIterator<Item = impl Into<Slice<'a, B, T>>>,
        outputs: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<&mut Self> {
        let inputs: SmallVec<[View<B>; 8]> = inputs.into_iter().map(|i| i.into().view).collect();
        let outputs = mutable_views(outputs);
        let prepared = what.into().prepare_all(&self.shared, &inputs, &outputs, &[])?;
        Ok(self.add(&prepared, outputs.into_iter().chain(inputs)))
    }

    /// As [`Communicator::reduce_scatter_fused`](crate::Communicator::reduce_scatter_fused).
    ///
    /// # Errors
    /// As there, but for those of launches.
    pub fn reduce_scatter_fused<'a, T: 'a, U: 'a>(
        &mut self,
        inputs: impl IntoIterator<Item = impl Into<Slice<'a, B, T>>>,
        destinations: impl IntoIterator<Item = impl Into<Destination<'a, B, U>>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<&mut Self> {
        let inputs: SmallVec<[View<B>; 8]> = inputs.into_iter().map(|i| i.into().view).collect();
        let (outputs, residuals) = fused_views(destinations);
        let what = what.into().for_outputs(outputs.first().map(|o| o.dtype));
        let prepared = what.prepare_all(&self.shared, &inputs, &outputs, &residuals)?;
        Ok(self.add(&prepared, outputs.into_iter().chain(inputs).chain(residuals.into_iter().flatten())))
    }

    /// As [`Communicator::reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place).
    ///
    /// # Errors
    /// As there, but for those of launches.
    pub fn reduce_scatter_in_place<'a, T: 'a>(
        &mut self,
        buffers: impl IntoIterator<Item = impl Into<SliceMut<'a, B, T>>>,
        what: impl Into<ReduceScatter>,
    ) -> Result<&mut Self> {
        let what = what.into();
        let inputs = mutable_views(buffers);
        let outputs = what.all_in_place_outputs(&self.shared, &inputs)?;
        let prepared = what.prepare_all(&self.shared, &inputs, &outputs, &[])?;
        Ok(self.add(&prepared, inputs.into_iter()))
    }

    /// Ends the recording. On a backend with graphs each rank's calls become one, which is one launch for the host; on
    /// the others they are enqueued one by one each time.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failure; [`Error::Driver`] where the driver refuses.
    pub fn finish(self) -> Result<Replay<B>> {
        let Recording { shared, calls, owners } = self;
        if !B::GRAPHS || calls.is_empty() {
            return Ok(Replay { shared, owners, work: Work::Calls(calls) });
        }
        let mut ranks = Vec::with_capacity(shared.ranks.len());
        for (rank, me) in shared.ranks.iter().enumerate() {
            let (graph, launches) = raw::capture_owned(&shared, rank, calls.iter().filter(|c| c.rank == rank))?;
            ranks.push(Captured { rank, stream: me.stream.clone(), graph, launches });
        }
        let graph = Graph::of(&shared, ranks);
        Ok(Replay { shared, owners, work: Work::Graph(graph) })
    }

    fn add(&mut self, prepared: &[Prepared], owners: impl Iterator<Item = View<B>>) -> &mut Self {
        self.calls.extend(non_empty(prepared));
        for view in owners {
            if !self.owners.iter().any(|one| Arc::ptr_eq(one, &view.memory)) {
                self.owners.push(view.memory);
            }
        }
        self
    }
}

impl<B: Backend> fmt::Debug for Recording<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recording({} launches on {})", self.calls.len(), B::NAME)
    }
}

/// Recorded collectives, to be run again and again on the data that their buffers hold by then.
///
/// ```
/// use crossccl::{Communicator, Cpu, ReduceOp};
///
/// # fn main() -> crossccl::Result<()> {
/// let comm = Communicator::<Cpu>::builder(0..2).build()?;
/// let mut data = [comm.buffer::<i32>(0, 4)?, comm.buffer::<i32>(1, 4)?];
/// let mut recording = comm.record();
/// recording.broadcast_in_place(&mut data, 0)?.reduce_scatter_in_place(&mut data, ReduceOp::Sum)?;
/// let replay = recording.finish()?;
/// for step in 1..4 {
///     data[0].write(&[step; 4])?;
///     replay.launch()?.wait()?;
///     assert_eq!(data[1].to_vec()?, [step, step, 2 * step, 2 * step]);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Replay<B: Backend> {
    shared: Arc<Shared<B>>,
    owners: Vec<Arc<Allocation<B>>>,
    work: Work<B>,
}

enum Work<B: Backend> {
    Graph(Graph<B>),
    Calls(Vec<Prepared>),
}

impl<B: Backend> Replay<B> {
    /// Enqueues all of it. Several launches may be in flight; they are done in order.
    ///
    /// The buffers can be read meanwhile, which waits for what was enqueued; writing them from the host is
    /// [`Error::Busy`] until each launch was waited for, or its handle dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] while the host writes one of the buffers, or a failed call may still use it;
    /// [`Error::Poisoned`] after a failure, until `reset`; [`Error::Driver`] where the driver refuses: what was launched
    /// before is stopped then.
    pub fn launch(&self) -> Result<InFlight<'static, B>> {
        self.shared.refuse_if_poisoned()?;
        let busy = |what: &str| Error::Busy { operation: "replay", what: what.into() };
        if self.owners.iter().any(|memory| memory.is_borrowed()) {
            return Err(busy("a collective that failed may still use a buffer; call reset on all ranks first"));
        }
        let owners = self.owners.iter().cloned();
        let Some(mut flight) = InFlight::try_new(self.shared.clone(), owners.collect(), PhantomData) else {
            return Err(busy("the host writes one of its buffers; launch it after that"));
        };
        let outcome = match &self.work {
            Work::Graph(graph) => graph.launch_owned(flight.launches()),
            Work::Calls(calls) => {
                let _turn = self.shared.turn();
                raw::enqueue_owned(&self.shared, calls, flight.launches())
            }
        };
        match outcome {
            Ok(()) => Ok(flight),
            Err(error) => Err(flight.give_up(error)),
        }
    }
}

impl<B: Backend> fmt::Debug for Replay<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            Work::Graph(graph) => write!(f, "Replay({graph:?})"),
            Work::Calls(calls) => write!(f, "Replay({} launches on {})", calls.len(), B::NAME),
        }
    }
}

//! Collectives that were captured, to be run again and again.

#![allow(unsafe_code)]

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{
    backend::Backend,
    communicator::{Called, Gone, Launch, Launched, Launches, Shared},
    error::Result,
    raw,
};

/// What was captured on some ranks' streams. It keeps the communicator alive.
pub struct Graph<B: Backend> {
    shared: Arc<Shared<B>>,
    ranks: Vec<Captured<B>>,
}

/// One rank's part of a graph.
pub(crate) struct Captured<B: Backend> {
    pub(crate) rank: usize,
    /// Where it was captured, and is launched.
    pub(crate) stream: B::Stream,
    pub(crate) graph: B::Graph,
    /// The last launch of each domain in it, and how many of that domain there are.
    pub(crate) launches: Launches,
}

/// Captures that were begun around a caller's code. They end with it, whatever way it ends: a panic in it once left the
/// streams capturing, so that later calls went into a graph that nobody had, and were told as done.
struct Capturing<'a, B: Backend> {
    shared: &'a Shared<B>,
    ranks: SmallVec<[(usize, B::Stream); 8]>,
}

impl<B: Backend> Capturing<'_, B> {
    fn begin(&mut self, rank: usize, stream: &B::Stream) -> Result<()> {
        B::begin_capture(stream).map_err(|f| self.shared.driver_error(rank, f))?;
        self.ranks.push((rank, stream.clone()));
        self.shared.begin_counting(rank);
        Ok(())
    }

    /// Ends every capture; the first failure is told.
    fn end(&mut self) -> Result<Vec<Captured<B>>> {
        let mut captured = Ok(Vec::with_capacity(self.ranks.len()));
        for (rank, stream) in self.ranks.drain(..) {
            let launches = self.shared.end_counting(rank);
            let graph = B::end_capture(&stream).map_err(|f| self.shared.driver_error(rank, f));
            match (&mut captured, graph) {
                (Ok(all), Ok(graph)) => all.push(Captured { rank, stream, graph, launches }),
                (Ok(_), Err(error)) => captured = Err(error),
                (Err(_), _) => {}
            }
        }
        captured
    }
}

impl<B: Backend> Drop for Capturing<'_, B> {
    fn drop(&mut self) {
        // After `end` there is nothing left. Otherwise the caller's code panicked, or a later capture could not be begun.
        if let Err(error) = self.end() {
            tracing::warn!(target: "crossccl", %error, "a capture that was given up could not be ended");
        }
    }
}

impl<B: Backend> Graph<B> {
    /// Captures what `calls` enqueues on the streams of `ranks`. Every capture that was begun is ended,
    /// whatever happens.
    pub(crate) fn capture(
        shared: &Arc<Shared<B>>,
        ranks: &[(usize, B::Stream)],
        calls: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        for (rank, stream) in ranks {
            raw::check_stream(shared, "capture", *rank, stream)?;
        }
        let mut capturing = Capturing { shared, ranks: SmallVec::new() };
        for (rank, stream) in ranks {
            capturing.begin(*rank, stream)?;
        }
        let outcome = calls();
        let captured = capturing.end();
        // Why the calls failed says more than that their capture did.
        outcome?;
        Ok(Graph::of(shared, captured?))
    }

    /// Of graphs that were captured for `ranks`, to be launched on their streams.
    pub(crate) fn of(shared: &Arc<Shared<B>>, ranks: Vec<Captured<B>>) -> Self {
        ranks.iter().for_each(|one| shared.join(one.rank));
        Graph { shared: shared.clone(), ranks }
    }

    /// Enqueues what was captured, on the streams on which it was.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) after a failure, until `reset`; [`Error::Driver`](crate::Error::Driver) where the driver refuses: the
    /// ranks launched before are stopped then.
    ///
    /// # Safety
    /// As for the calls that were captured, each time.
    pub unsafe fn launch(&self) -> Result<Launched<B>> {
        let mut launched = Launched { shared: self.shared.clone(), launches: SmallVec::new() };
        // SAFETY: the caller's promise.
        match unsafe { self.launch_into(&mut launched.launches) } {
            Ok(()) => Ok(launched),
            Err(error) => Err(launched.give_up(error).0),
        }
    }

    /// As [`launch`](Self::launch), the launches put into `launches` one by one, also before an error.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn launch_into(&self, launches: &mut SmallVec<[Launch<B>; 8]>) -> Result<()> {
        // As every call that launches all ranks; those of one rank do not take it.
        let _turn = (self.ranks.len() == self.shared.ranks.len()).then(|| self.shared.turn());
        for one in &self.ranks {
            // SAFETY: the caller's promise.
            launches.push(unsafe { self.launch_one(one)? });
        }
        Ok(())
    }

    /// What a replay recorded: it owns the memory, keeps writes from the host away until the launches are waited for, and
    /// after a failure until reset.
    pub(crate) fn launch_owned(&self, launches: &mut SmallVec<[Launch<B>; 8]>) -> Result<()> {
        // SAFETY: as said.
        unsafe { self.launch_into(launches) }
    }

    /// # Safety
    /// As for [`launch`](Self::launch).
    unsafe fn launch_one(&self, captured: &Captured<B>) -> Result<Launch<B>> {
        let shared = &self.shared;
        let Captured { rank, stream, graph, launches } = captured;
        let rank = *rank;
        let fault = |f| shared.driver_error(rank, f);
        let mut state = shared.begin(rank)?;
        for (called, count) in launches {
            shared.refuse_without(rank, called.request.name(), called.domain, *count)?;
        }
        if let Some((last, event)) = &state.last
            && last != stream
        {
            B::wait_event(stream, event).map_err(fault)?;
        }
        // SAFETY: the caller's promise.
        unsafe { B::launch_graph(stream, graph) }.map_err(fault)?;
        let call = state.next_call;
        state.next_call += 1;
        for (called, count) in launches {
            let epoch = shared.ranks[rank].count(called.domain, *count);
            state.remember(Called { call, epoch, generation: shared.generation(), ..called.clone() });
        }
        let event = Some(raw::mark_end(shared, rank, state, stream)?);
        let (generation, limit) = (shared.generation(), shared.limit);
        Ok(Launch { rank, call, event, foreign: false, generation, limit, replay: true })
    }
}

impl<B: Backend> Drop for Graph<B> {
    fn drop(&mut self) {
        self.ranks.iter().for_each(|one| self.shared.leave(one.rank, Gone::Dropped));
    }
}

impl<B: Backend> fmt::Debug for Graph<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} ranks on {})", self.ranks.len(), B::NAME)
    }
}

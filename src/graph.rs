//! Collectives that were captured, to be run again and again.

#![allow(unsafe_code)]

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{
    backend::Backend,
    communicator::{Launch, Launched, Shared},
    error::Result,
    raw,
};

/// What was captured on some ranks' streams. It keeps the communicator alive.
pub struct Graph<B: Backend> {
    shared: Arc<Shared<B>>,
    ranks: Vec<(usize, B::Stream, B::Graph)>,
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
        let mut outcome = Ok(());
        let mut begun = 0;
        for (rank, stream) in ranks {
            outcome = B::begin_capture(stream).map_err(|f| shared.driver_error(*rank, f));
            if outcome.is_err() {
                break;
            }
            begun += 1;
        }
        if outcome.is_ok() {
            outcome = calls();
        }
        let mut captured = Vec::with_capacity(begun);
        for (rank, stream) in &ranks[..begun] {
            match B::end_capture(stream).map_err(|f| shared.driver_error(*rank, f)) {
                Ok(graph) => captured.push((*rank, stream.clone(), graph)),
                // Why the calls failed says more.
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| Graph { shared: shared.clone(), ranks: captured })
    }

    /// Of graphs that were captured for `ranks`, to be launched on their streams.
    pub(crate) fn of(shared: &Arc<Shared<B>>, ranks: Vec<(usize, B::Stream, B::Graph)>) -> Self {
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
        for (rank, stream, graph) in &self.ranks {
            // SAFETY: the caller's promise.
            launches.push(unsafe { self.launch_one(*rank, stream, graph)? });
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
    unsafe fn launch_one(&self, rank: usize, stream: &B::Stream, graph: &B::Graph) -> Result<Launch<B>> {
        let shared = &self.shared;
        let fault = |f| shared.driver_error(rank, f);
        let mut state = shared.begin(rank)?;
        if let Some((last, event)) = &state.last
            && last != stream
        {
            B::wait_event(stream, event).map_err(fault)?;
        }
        // SAFETY: the caller's promise.
        unsafe { B::launch_graph(stream, graph) }.map_err(fault)?;
        let call = state.next_call;
        state.next_call += 1;
        let event = Some(raw::mark_end(shared, rank, state, stream)?);
        Ok(Launch { rank, call, event, generation: shared.generation(), limit: shared.limit, replay: true })
    }
}

impl<B: Backend> fmt::Debug for Graph<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} ranks on {})", self.ranks.len(), B::NAME)
    }
}

//! A collective that was enqueued.

use std::{fmt, marker::PhantomData, sync::Arc};

use smallvec::SmallVec;

use crate::{
    backend::{Backend, memory::Allocation},
    communicator::{Launch, Launched, Shared},
    error::{Error, Result},
};

/// A collective in flight. It borrows the buffers: they can be used again after
/// [`wait`](Self::wait), or after it was dropped, which waits as well.
///
/// Leaking an `InFlight` is safe: the collective itself keeps the memory alive, host reads go through the
/// rank's stream, and host writes to such a buffer answer [`Error::Busy`](crate::Error::Busy).
#[must_use = "the outcome is told by `wait` alone; dropping it waits"]
pub struct InFlight<'a, B: Backend> {
    launched: Launched<B>,
    owners: SmallVec<[Arc<Allocation<B>>; 16]>,
    waited: bool,
    _buffers: PhantomData<&'a mut ()>,
}

impl<'a, B: Backend> InFlight<'a, B> {
    /// Before anything is launched, where borrows do not keep the host from writing: `None` while it does.
    pub(crate) fn try_new(
        shared: Arc<Shared<B>>,
        owners: SmallVec<[Arc<Allocation<B>>; 16]>,
        buffers: PhantomData<&'a mut ()>,
    ) -> Option<Self> {
        if let Some(at) = owners.iter().position(|memory| !memory.try_take_off()) {
            owners[..at].iter().for_each(|memory| memory.land());
            return None;
        }
        let launched = Launched { shared, launches: SmallVec::new() };
        Some(InFlight { launched, owners, waited: false, _buffers: buffers })
    }

    /// Before anything is launched.
    pub(crate) fn new(
        shared: Arc<Shared<B>>,
        owners: SmallVec<[Arc<Allocation<B>>; 16]>,
        buffers: PhantomData<&'a mut ()>,
    ) -> Self {
        for memory in &owners {
            memory.take_off();
        }
        let launched = Launched { shared, launches: SmallVec::new() };
        InFlight { launched, owners, waited: false, _buffers: buffers }
    }

    pub(crate) fn launches(&mut self) -> &mut SmallVec<[Launch<B>; 8]> {
        &mut self.launched.launches
    }

    /// After an error in the middle of the launches.
    pub(crate) fn give_up(mut self, error: Error) -> Error {
        self.waited = true;
        let (error, at_rest) = self.launched.give_up(error);
        self.land(true, at_rest);
        error
    }

    /// Waits until it is complete on the ranks of this handle, and tells the outcome.
    ///
    /// After an error the outputs hold nothing of use, and the buffers cannot be used until `reset`. After
    /// [`Error::Mismatch`](crate::Error::Mismatch) the outputs of the ranks that disagree are untouched; a rank
    /// that agreed with those it depends on may have written some of its output before it was stopped.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) names the ranks that did not come,
    /// [`Error::Mismatch`](crate::Error::Mismatch) what they disagree on;
    /// [`Error::Aborted`](crate::Error::Aborted) after an abort;
    /// [`Error::Poisoned`](crate::Error::Poisoned) where an earlier collective had failed.
    pub fn wait(mut self) -> Result<()> {
        self.waited = true;
        let outcome = self.launched.wait();
        self.land(outcome.is_err(), true);
        outcome
    }

    fn land(&mut self, failed: bool, at_rest: bool) {
        if !at_rest {
            // A kernel that cannot be stopped may use the memory for good.
            self.owners.iter().for_each(|memory| memory.leak());
        }
        match self.launched.launches.first() {
            Some(launch) if failed => self.launched.shared.quarantine(launch, self.owners.drain(..)),
            _ if at_rest => self.owners.drain(..).for_each(|memory| memory.land()),
            _ => self.owners.clear(),
        }
    }
}

impl<B: Backend> Drop for InFlight<'_, B> {
    fn drop(&mut self) {
        if self.waited {
            return;
        }
        let (outcome, at_rest) = self.launched.wait_bounded();
        self.land(outcome.is_err(), at_rest);
        if let Err(error) = outcome {
            tracing::warn!(target: "crossccl", %error, "a collective that nobody waited for failed");
        }
    }
}

impl<B: Backend> fmt::Debug for InFlight<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlight({} ranks)", self.launched.launches.len())
    }
}

//! A collective that was enqueued.

use std::{fmt, marker::PhantomData, sync::Arc};

use smallvec::SmallVec;

use crate::{
    backend::{Backend, memory::Allocation},
    communicator::Launched,
    error::Result,
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
    pub(crate) fn new(
        launched: Launched<B>,
        owners: SmallVec<[Arc<Allocation<B>>; 16]>,
        buffers: PhantomData<&'a mut ()>,
    ) -> Self {
        for memory in &owners {
            memory.take_off();
        }
        InFlight { launched, owners, waited: false, _buffers: buffers }
    }

    /// Waits until it is complete on the ranks of this handle, and tells the outcome.
    ///
    /// After an error the outputs hold nothing of use (after [`Error::Mismatch`](crate::Error::Mismatch)
    /// they are untouched), and the buffers cannot be used until `reset`.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) names the ranks that did not come,
    /// [`Error::Mismatch`](crate::Error::Mismatch) what they disagree on;
    /// [`Error::Aborted`](crate::Error::Aborted) after an abort;
    /// [`Error::Poisoned`](crate::Error::Poisoned) where an earlier collective had failed.
    pub fn wait(mut self) -> Result<()> {
        self.waited = true;
        let outcome = self.launched.wait();
        self.land(&outcome);
        outcome
    }

    fn land(&mut self, outcome: &Result<()>) {
        match (outcome, self.launched.launches.first()) {
            (Err(_), Some(launch)) => self.launched.shared.quarantine(launch, self.owners.drain(..)),
            _ => self.owners.drain(..).for_each(|memory| memory.land()),
        }
    }
}

impl<B: Backend> Drop for InFlight<'_, B> {
    fn drop(&mut self) {
        if self.waited {
            return;
        }
        let outcome = self.launched.wait_bounded();
        self.land(&outcome);
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

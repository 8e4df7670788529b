//! What ranks called, as the host counts it: for errors that name who is missing, and for ranks that are gone.

use std::{
    sync::{MutexGuard, TryLockError, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{Gone, RankState, Shared, lock};
use crate::{
    backend::Backend,
    collective::Prepared,
    error::{Error, Result},
    plan::{
        Algorithm,
        request::{Collective, Request},
    },
    rank::Rank,
};

/// One launch of a rank's.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    /// The rank's number of the call.
    pub(crate) call: u64,
    pub(crate) group_size: usize,
    pub(crate) request: Request,
    pub(crate) domain: usize,
    /// Its launch epoch in the domain; 0 in a capture.
    pub(crate) epoch: u64,
    /// Which life of the communicator, counted by resets, it belongs to.
    pub(crate) generation: u64,
    /// The only rank that it waits for, where that is not all of the group.
    pub(crate) waits_for: Option<usize>,
}

/// Launches of a graph: the last one of each domain, and how many of the domain there are.
pub(crate) type Launches = SmallVec<[(Called, u64); 2]>;

impl Called {
    pub(crate) fn new<B: Backend>(call: u64, prepared: &Prepared, shared: &Shared<B>) -> Self {
        let Prepared { rank, group_size, request, plan, strict, .. } = prepared;
        let pulls = matches!(plan.algorithm, Algorithm::OneStage | Algorithm::LowLatency) && !strict;
        let waits_for = match request.collective {
            Collective::Broadcast { root } if pulls && root != *rank => Some(root),
            _ => None,
        };
        Called {
            call,
            group_size: *group_size,
            request: request.clone(),
            domain: shared.domain_of(*group_size),
            epoch: 0,
            generation: shared.generation(),
            waits_for,
        }
    }

    /// Whether `rank`, which made the call, waits in it for `other`.
    pub(crate) fn needs(&self, rank: usize, other: usize) -> bool {
        other != rank
            && other / self.group_size == rank / self.group_size
            && self.waits_for.is_none_or(|only| only == other)
    }
}

impl<B: Backend> Shared<B> {
    /// A capture of the rank's stream begins.
    pub(crate) fn begin_counting(&self, rank: usize) {
        lock(&self.ranks[rank].state).counting = Some(Launches::new());
    }

    /// It is over: what is in it.
    pub(crate) fn end_counting(&self, rank: usize) -> Launches {
        lock(&self.ranks[rank].state).counting.take().unwrap_or_default()
    }

    /// A launch went into a capture: the communicator's, or somebody else's, whose launches cannot be counted.
    pub(crate) fn count_captured(&self, state: &mut RankState<B>, called: Called, rank: usize) {
        let Some(launches) = &mut state.counting else {
            self.ranks[rank].uncounted.store(true, Ordering::Release);
            return;
        };
        match launches.iter_mut().find(|(other, _)| other.domain == called.domain) {
            Some((last, count)) => {
                *last = called;
                *count += 1;
            }
            None => launches.push((called, 1)),
        }
    }

    /// Whether the host knows how many launches each rank of the communicator has enqueued.
    pub(crate) fn is_counted(&self) -> bool {
        self.ranks.iter().all(|rank| !rank.uncounted.load(Ordering::Acquire))
    }

    /// Refuses `launches` more of `rank` in `domain` where a rank of its group is gone that has not made them. To be asked
    /// under the lock of the rank's state: [`leave`](Self::leave) takes it after it has said that the rank is gone.
    pub(crate) fn refuse_without(
        &self,
        rank: usize,
        operation: &'static str,
        domain: usize,
        launches: u64,
    ) -> Result<()> {
        if !self.any_gone.load(Ordering::SeqCst) || !self.is_counted() {
            return Ok(());
        }
        let size = self.domains[domain];
        let epoch = self.ranks[rank].launched(domain) + launches;
        let absent = |other: &usize| self.ranks[*other].gone().is_some() && self.ranks[*other].launched(domain) < epoch;
        let first = rank / size * size;
        match (first..first + size).find(absent) {
            None => Ok(()),
            Some(gone) => Err(self.rank_gone(operation, rank, gone)),
        }
    }

    /// How many launches `rank` has enqueued in groups of `size`, where the host knows it of all ranks.
    #[cfg(feature = "capi")]
    pub(crate) fn enqueued(&self, rank: usize, size: usize) -> Option<u64> {
        self.is_counted().then(|| self.ranks[rank].launched(self.domain_of(size)))
    }

    fn rank_gone(&self, operation: &'static str, rank: usize, gone: usize) -> Error {
        let reason = self.ranks[gone].gone().unwrap_or(Gone::Dropped).reason();
        Error::RankGone {
            operation,
            rank: Rank::from_index(rank),
            gone: Rank::from_index(gone),
            reason: reason.to_owned(),
        }
    }

    /// A graph can call for `rank`, like its handle.
    pub(crate) fn join(&self, rank: usize) {
        self.ranks[rank].callers.fetch_add(1, Ordering::Relaxed);
    }

    /// The handle of `rank` is dropped, or a graph. If that was the last of them, who waits for a call that the rank did not
    /// make is told at once, and who would wait is refused. (Once they waited for the limit, were told to call reset, which
    /// could never succeed, and that others were missing.)
    pub(crate) fn leave(&self, rank: usize, how: Gone) {
        if self.ranks[rank].callers.fetch_sub(1, Ordering::AcqRel) > 1 || self.refuse_in_a_fork().is_err() {
            return;
        }
        self.ranks[rank].gone.store(how as u8, Ordering::SeqCst);
        self.any_gone.store(true, Ordering::SeqCst);
        // A reset that waits for this handle goes on without it.
        drop(lock(&self.rendezvous));
        self.arrived.notify_all();
        if !self.is_counted() {
            return;
        }
        let waiting = (0..self.ranks.len()).find_map(|other| {
            let operation = self.waits_for(other, rank)?;
            Some(self.rank_gone(operation, other, rank))
        });
        if let Some(error) = waiting {
            self.abort(error);
        }
    }

    /// The rank's state, unless a call of it takes longer than calls do: a drop must not wait for one that waits.
    fn state_soon(&self, rank: usize) -> Option<MutexGuard<'_, RankState<B>>> {
        let deadline = Instant::now() + Duration::from_millis(50);
        loop {
            match self.ranks[rank].state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::yield_now(),
                Err(TryLockError::WouldBlock) => return None,
            }
        }
    }

    /// What `rank` has in flight that waits for a call which `other` did not make.
    fn waits_for(&self, rank: usize, other: usize) -> Option<&'static str> {
        let Some(state) = self.state_soon(rank) else {
            // It waits in a call for room in its stream: for this rank, if that is behind.
            let behind = |domain: &usize| {
                let size = self.domains[*domain];
                rank / size == other / size && self.ranks[other].launched(*domain) < self.ranks[rank].launched(*domain)
            };
            return (0..self.domains.len()).find(behind).map(|_| "collective");
        };
        let (_, event) = state.last.as_ref()?;
        let behind = |called: &&Called| {
            called.generation == self.generation()
                && called.needs(rank, other)
                && self.ranks[other].launched(called.domain) < called.epoch
        };
        let called = state.history.iter().find(behind)?;
        // What a driver does not say is taken for over: the limit ends it, if it is not.
        let over = B::wait(event, Some(Instant::now())).unwrap_or(true);
        (!over).then_some(called.request.name())
    }
}

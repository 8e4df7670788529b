//! The handles of ranks: a table of them by number, and what the C interface does with a rank whatever its backend.

use std::{
    collections::BTreeMap,
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    crosscclBackend_t, crosscclComm_t,
    outcome::{Failure, Result},
};
use crate::{
    collective::{Prepared, invalid},
    dtype::DType,
    error::Error,
    op::ReduceOp,
    raw::RawRank,
};

/// What calls of one rank need, of any backend. One thread at a time.
pub(super) trait Seat: Send {
    /// Everything that can be checked before a launch.
    fn broadcast(
        &mut self,
        addresses: RawRank,
        count: u64,
        dtype: DType,
        root: usize,
        stream: usize,
    ) -> Result<Prepared>;
    /// As [`broadcast`](Self::broadcast); `count` elements of input.
    fn reduce_scatter(
        &mut self,
        addresses: RawRank,
        count: u64,
        dtype: DType,
        op: ReduceOp,
        stream: usize,
    ) -> Result<Prepared>;
    /// # Safety
    /// As for [`enqueue`](crate::raw::enqueue); `stream` is the one that was checked.
    unsafe fn launch(&mut self, prepared: &Prepared, stream: usize) -> Result<()>;
    /// Waits for the last launch, and so for those before it: a rank has one in flight.
    fn wait(&mut self) -> Result<()>;
    /// Whether the last launch is complete by the deadline, `None` for no limit. The outcome is not told.
    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<bool>;
    /// As [`wait`](Self::wait), never without limit; what was told before is not told again.
    fn finish(&mut self) -> Result<()>;
    /// This rank's part of a reset in which every rank's thread takes part.
    fn reset(&mut self, limit: Duration) -> Result<()>;
    /// The same, waiting until the deadline: whether it is over. While it is not, the rank counts as there.
    fn reset_until(&mut self, deadline: Option<Instant>) -> Result<bool>;
    /// The reset of all ranks, whose seats the caller has.
    fn reset_all(&mut self) -> Result<()>;
    /// What was launched before a reset is over.
    fn forget(&mut self);
}

/// What can be asked of a communicator from any thread while its ranks are in calls.
pub(super) trait Watch: Send + Sync {
    /// Ends the waits in flight, and refuses further work.
    fn abort(&self, cause: Error);
    /// Why the communicator refuses work.
    fn failure(&self) -> Option<Error>;
    /// Tells communicators apart.
    fn identity(&self) -> usize;
    /// How many launches `rank` has made in groups of `size`, where that is known.
    fn launched(&self, rank: usize, size: usize) -> Option<u64>;
    /// Whether the handle of `rank` was destroyed.
    fn is_gone(&self, rank: usize) -> bool;
}

/// A rank, as C has it.
pub(super) struct Handle {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) backend: crosscclBackend_t,
    pub(super) device: usize,
    /// The rank's own stream.
    pub(super) stream: usize,
    watch: Box<dyn Watch>,
    /// `None` once it was destroyed by another thread, or inside a group.
    seat: Mutex<Option<Box<dyn Seat>>>,
}

/// Written where communicators are made and destroyed alone. Calls only read it: ranks do not wait for each other here.
static HANDLES: RwLock<BTreeMap<usize, Arc<Handle>>> = RwLock::new(BTreeMap::new());

/// Not taken twice. No address of a process is like it, so that neither is taken for the other.
static NEXT: AtomicUsize = AtomicUsize::new(0xcc1_0000_0000_0001_u64.rotate_right(12) as usize);

impl Handle {
    pub(super) fn new(
        (rank, ranks): (usize, usize),
        (backend, device): (crosscclBackend_t, usize),
        stream: usize,
        watch: Box<dyn Watch>,
        seat: Box<dyn Seat>,
    ) -> Self {
        Handle { rank, ranks, backend, device, stream, watch, seat: Mutex::new(Some(seat)) }
    }

    pub(super) fn abort(&self, cause: Error) {
        self.watch.abort(cause);
    }

    pub(super) fn failure(&self) -> Option<Error> {
        self.watch.failure()
    }

    /// Tells communicators apart.
    pub(super) fn identity(&self) -> usize {
        self.watch.identity()
    }

    /// Whether they are ranks of one communicator.
    pub(super) fn is_peer_of(&self, other: &Handle) -> bool {
        self.identity() == other.identity()
    }

    /// How many launches the rank has made in groups of `size`, where that is known.
    pub(super) fn launched(&self, size: usize) -> Option<u64> {
        self.watch.launched(self.rank, size)
    }

    /// Calls of a rank have an order, which two threads at once would not: refused, not made to wait.
    fn seat(&self, call: &'static str) -> Result<MutexGuard<'_, Option<Box<dyn Seat>>>> {
        match self.seat.try_lock() {
            Ok(seat) => Ok(seat),
            Err(TryLockError::Poisoned(seat)) => Ok(seat.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let rank = self.rank;
                let what =
                    format!("another thread is in a call with the handle of rank {rank}; use it in one at a time");
                Err(Error::Busy { operation: call, what }.into())
            }
        }
    }

    pub(super) fn with<T>(&self, call: &'static str, body: impl FnOnce(&mut dyn Seat) -> Result<T>) -> Result<T> {
        match &mut *self.seat(call)? {
            Some(seat) => body(&mut **seat),
            None => Err(gone(call, "one that was destroyed")),
        }
    }
}

fn gone(call: &'static str, got: &str) -> Failure {
    invalid(call, None, "comm", "a communicator's handle that was not destroyed", got).into()
}

pub(super) fn register(handle: Handle) -> crosscclComm_t {
    let number = NEXT.fetch_add(16, Ordering::Relaxed);
    HANDLES.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(handle));
    ptr::without_provenance_mut(number)
}

pub(super) fn find(call: &'static str, comm: crosscclComm_t) -> Result<Arc<Handle>> {
    let found = HANDLES.read().unwrap_or_else(PoisonError::into_inner).get(&comm.addr()).cloned();
    found.ok_or_else(|| gone(call, &if comm.is_null() { "null".to_owned() } else { format!("{comm:p}") }))
}

pub(super) fn destroy(call: &'static str, comm: crosscclComm_t) -> Result<()> {
    let handle = find(call, comm)?;
    super::group::refuse_end_of(call, &handle)?;
    let Some(mut seat) = handle.seat(call)?.take() else { return Err(gone(call, "one that was destroyed")) };
    // Found until it is over: another thread may abort what this one waits for.
    let outcome = seat.finish();
    HANDLES.write().unwrap_or_else(PoisonError::into_inner).remove(&comm.addr());
    outcome
}

pub(super) fn reset_all(call: &'static str, comms: &[crosscclComm_t]) -> Result<()> {
    let handles = comms.iter().map(|comm| find(call, *comm)).collect::<Result<Vec<_>>>()?;
    let first = &handles[0];
    let mut missing: Vec<usize> = (0..first.ranks).collect();
    for handle in &handles {
        let expected = "handles of one communicator";
        if !handle.is_peer_of(first) {
            return Err(invalid(call, None, "comms", expected, "one of another").into());
        }
        missing.retain(|rank| *rank != handle.rank);
    }
    missing.retain(|rank| !first.watch.is_gone(*rank));
    if let Some(rank) = missing.first() {
        let expected = format!("the handles of all {} ranks that were not destroyed", first.ranks);
        return Err(invalid(call, None, "comms", expected, format!("none of rank {rank}")).into());
    }
    // A handle that is there twice is found in use, by this very call.
    let mut seats = handles.iter().map(|handle| handle.seat(call)).collect::<Result<Vec<_>>>()?;
    let mut seats: Vec<_> = seats.iter_mut().filter_map(|seat| seat.as_mut()).collect();
    if seats.len() != handles.len() {
        return Err(gone(call, "one that was destroyed"));
    }
    seats[0].reset_all()?;
    seats.iter_mut().for_each(|seat| seat.forget());
    Ok(())
}

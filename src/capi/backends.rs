//! From the backend that a configuration names to handles that no longer show it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::smallvec;

use super::{
    config::Options,
    crosscclBackend_t, crosscclResult_t,
    handle::{Handle, Seat, Watch},
    outcome::{Failure, Result},
};
use crate::{
    any::BackendKind,
    backend::Backend,
    collective::{Broadcast, Prepared, ReduceScatter, invalid},
    communicator::{Communicator, Launched, Resetting, Shared},
    dtype::DType,
    error::Error,
    op::ReduceOp,
    rank_comm::RankComm,
    raw::{self, RawRank},
};

/// What C sees of a backend: its number, and streams by handle.
trait Streams: Backend {
    const NUMBER: crosscclBackend_t;
    /// The stream that a caller's handle means for a rank whose own is `own`; `None` where it cannot be one.
    ///
    /// # Safety
    /// A handle that is not 0 is a stream of that device, and stays one while clones of this exist.
    unsafe fn stream(own: &Self::Stream, handle: usize) -> Option<Self::Stream>;
    /// The handle that means a rank's own stream.
    fn handle(own: &Self::Stream) -> usize;
    /// Whether another thread means another stream by the same handle.
    fn is_of_thread(handle: usize) -> bool;
}

#[cfg(feature = "cpu")]
impl Streams for crate::Cpu {
    const NUMBER: crosscclBackend_t = crosscclBackend_t::crosscclBackendCpu;

    unsafe fn stream(own: &Self::Stream, handle: usize) -> Option<Self::Stream> {
        (handle == 0 || handle == Self::handle(own)).then(|| own.clone())
    }

    fn handle(own: &Self::Stream) -> usize {
        // Only compared. It stands in the communicator, which does not move it.
        std::ptr::from_ref(own).addr()
    }

    fn is_of_thread(_handle: usize) -> bool {
        false
    }
}

/// The same for the backends whose streams have handles of their driver's.
#[cfg(any(feature = "cuda", feature = "rocm"))]
macro_rules! streams_of_a_driver {
    ($backend:ty, $number:ident, $stream:ty) => {
        impl Streams for $backend {
            const NUMBER: crosscclBackend_t = crosscclBackend_t::$number;

            unsafe fn stream(own: &Self::Stream, handle: usize) -> Option<Self::Stream> {
                // SAFETY: the caller's promise.
                Some(unsafe { <$stream>::from_raw(&Self::device_of(own), handle as u64) })
            }

            fn handle(own: &Self::Stream) -> usize {
                own.handle() as usize
            }

            fn is_of_thread(handle: usize) -> bool {
                // As `from_raw` says.
                handle == 2
            }
        }
    };
}
#[cfg(feature = "cuda")]
streams_of_a_driver!(crate::Cuda, crosscclBackendCuda, crate::CudaStream);
#[cfg(feature = "rocm")]
streams_of_a_driver!(crate::Hip, crosscclBackendRocm, crate::HipStream);

// Without any backend there is nothing to give them to.
#[cfg_attr(not(any(feature = "cpu", feature = "cuda", feature = "rocm")), allow(unused_variables))]
pub(super) fn build(devices: &[usize], options: &Options) -> Result<Vec<Handle>> {
    let kind = match options.backend {
        Some(kind) => kind,
        None => automatic()?,
    };
    kind.check()?;
    match kind {
        #[cfg(feature = "cpu")]
        BackendKind::Cpu => build_on::<crate::Cpu>(devices, options),
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => build_on::<crate::Cuda>(devices, options),
        #[cfg(feature = "rocm")]
        BackendKind::Rocm => build_on::<crate::Hip>(devices, options),
        #[cfg(not(all(feature = "cpu", feature = "cuda", feature = "rocm")))]
        other => Err(Error::NotCompiled { feature: other.name(), kernels: false }.into()),
    }
}

/// Kernels of the CPU would touch addresses of a GPU, which ends the process: so the CPU is chosen by a library alone that
/// knows nothing else.
fn automatic() -> Result<BackendKind> {
    let compiled = || [BackendKind::Cuda, BackendKind::Rocm].into_iter().filter(|kind| kind.is_compiled());
    if let Some(kind) = compiled().find(|kind| kind.check().is_ok()) {
        return Ok(kind);
    }
    // The first one says what is missing.
    Ok(compiled().next().unwrap_or(BackendKind::Cpu))
}

#[cfg_attr(not(any(feature = "cpu", feature = "cuda", feature = "rocm")), allow(dead_code))]
fn build_on<B: Streams>(devices: &[usize], options: &Options) -> Result<Vec<Handle>> {
    let mut builder = Communicator::<B>::builder(devices.iter().copied())
        .agreement(options.agreement)
        .virtual_ranks(options.virtual_ranks);
    if let Some(limit) = options.timeout {
        builder = builder.timeout(limit);
    }
    if let Some(blocks) = options.max_blocks {
        builder = builder.max_blocks(blocks);
    }
    if let Some(bytes) = options.payload_bytes {
        builder = builder.payload_bytes(bytes);
    }
    Ok(builder.build()?.into_ranks().into_iter().map(handle_of).collect())
}

fn handle_of<B: Streams>(comm: RankComm<B>) -> Handle {
    let place = (comm.rank().index(), comm.ranks());
    let (device, stream) = (B::ordinal(&B::device_of(comm.stream())), B::handle(comm.stream()));
    let watch = Box::new(comm.shared().clone());
    Handle::new(
        place,
        (B::NUMBER, device),
        stream,
        watch,
        Box::new(Seated { comm, stream: None, last: None, captured: None, told: true, resetting: None }),
    )
}

impl<B: Backend> Watch for Arc<Shared<B>> {
    fn abort(&self, cause: Error) {
        Shared::abort(self, cause);
    }

    fn failure(&self) -> Option<Error> {
        Shared::failure(self)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(self).addr()
    }

    fn launched(&self, rank: usize, size: usize) -> Option<u64> {
        Shared::enqueued(self, rank, size)
    }

    fn is_gone(&self, rank: usize) -> bool {
        self.ranks[rank].gone().is_some()
    }
}

/// A rank of a backend.
struct Seated<B: Streams> {
    comm: RankComm<B>,
    /// The caller's stream of the last call, with its handle.
    stream: Option<(usize, B::Stream)>,
    /// The last launch. A rank has one in flight, and after a failure none: its outcome is that of all before it.
    last: Option<Launched<B>>,
    /// The stream of the last call, where that went into a capture.
    captured: Option<B::Stream>,
    /// Whether the outcome of `last` was asked for.
    told: bool,
    /// A reset that this rank has come to, and that is not over.
    resetting: Option<Resetting>,
}

impl<B: Streams> Seated<B> {
    fn stream(&mut self, call: &'static str, handle: usize) -> Result<B::Stream> {
        if let Some((last, stream)) = &self.stream
            && *last == handle
        {
            return Ok(stream.clone());
        }
        // SAFETY: as crosscclStream_t says.
        let Some(stream) = (unsafe { B::stream(self.comm.stream(), handle) }) else {
            let rank = self.comm.rank().index();
            let expected = "NULL, or what crosscclCommStream wrote for the rank";
            return Err(invalid(call, Some(rank), "stream", expected, format!("{handle:#x}")).into());
        };
        if !B::is_of_thread(handle) {
            self.stream = Some((handle, stream.clone()));
        }
        Ok(stream)
    }

    /// What went into a capture that goes on has not run: it is not told as done.
    fn refuse_in_a_capture(&mut self) -> Result<()> {
        let Some(stream) = &self.captured else { return Ok(()) };
        let rank = self.comm.rank().index();
        if B::is_capturing(stream).map_err(|fault| self.comm.shared().driver_error(rank, fault))? {
            let what = format!(
                "the last call of rank {rank} went into a capture that is not over, and has not run; launch the graph, and \
                 wait for that"
            );
            return Err(Error::Busy { operation: "crosscclCommSynchronize", what }.into());
        }
        self.captured = None;
        Ok(())
    }

    fn check(&mut self, prepared: Prepared, stream: usize) -> Result<Prepared> {
        if self.resetting.is_some() {
            let rank = self.comm.rank().index();
            let what = format!("rank {rank} is in a reset; call crosscclCommResetWait or crosscclCommReset first");
            return Err(Error::Busy { operation: prepared.request.name(), what }.into());
        }
        let stream = self.stream(prepared.request.name(), stream)?;
        let shared = self.comm.shared();
        raw::check_stream(shared, prepared.request.name(), prepared.rank, &stream)?;
        raw::check_memory(shared, &prepared)?;
        Ok(prepared)
    }

    /// For a rank that does not wait for a reset any more, whatever becomes of it.
    fn leave_reset(&mut self) {
        if let Some(mine) = self.resetting.take() {
            let _ = self.comm.shared().leave_reset(&mine);
        }
    }
}

/// The outcome of all launches up to the last. Where one before it failed, that is what the caller has not been told.
fn told(outcome: crate::Result<()>) -> Result<()> {
    outcome.map_err(|error| match error {
        Error::Poisoned { cause } => (*cause).into(),
        other => other.into(),
    })
}

impl<B: Streams> Seat for Seated<B> {
    fn broadcast(
        &mut self,
        addresses: RawRank,
        count: u64,
        dtype: DType,
        root: usize,
        stream: usize,
    ) -> Result<Prepared> {
        let rank = self.comm.rank().index();
        let what = Broadcast::from_root(root);
        let prepared = what.prepare_one_raw(self.comm.shared(), rank, addresses, count, dtype)?;
        self.check(prepared, stream)
    }

    fn reduce_scatter(
        &mut self,
        addresses: RawRank,
        count: u64,
        dtype: DType,
        op: ReduceOp,
        stream: usize,
    ) -> Result<Prepared> {
        let rank = self.comm.rank().index();
        let what = ReduceScatter::new(op);
        let prepared = what.prepare_one_raw(self.comm.shared(), rank, addresses, count, dtype)?;
        self.check(prepared, stream)
    }

    unsafe fn launch(&mut self, prepared: &Prepared, stream: usize) -> Result<()> {
        let stream = self.stream(prepared.request.name(), stream)?;
        let shared = self.comm.shared();
        // SAFETY: the caller's promise.
        let launch = unsafe { raw::enqueue(shared, prepared, &stream)? };
        // What was captured has not run.
        self.captured = launch.event.is_none().then_some(stream);
        if launch.event.is_some() {
            self.last = Some(Launched { shared: shared.clone(), launches: smallvec![launch] });
            self.told = false;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        self.refuse_in_a_capture()?;
        let Some(last) = &self.last else { return Ok(()) };
        let outcome = last.wait();
        self.told = true;
        told(outcome)
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<bool> {
        self.refuse_in_a_capture()?;
        Ok(self.last.as_ref().map_or(Ok(true), |last| last.passed_by(deadline))?)
    }

    fn finish(&mut self) -> Result<()> {
        self.leave_reset();
        let last = self.last.take();
        let (outcome, at_rest) = last.map_or((Ok(()), true), |last| last.wait_bounded());
        // A launch whose end cannot be known is not in `last`.
        if !at_rest || self.comm.shared().is_lost() {
            let text = format!(
                "crosscclCommDestroy: the stream of rank {} did not come to rest: what the rank's calls read and write stays \
                 in use until the work in front of them in that stream is over",
                self.comm.rank().index()
            );
            return Err(Failure::new(crosscclResult_t::crosscclAborted, text));
        }
        if self.told { Ok(()) } else { told(outcome) }
    }

    fn reset(&mut self, limit: Duration) -> Result<()> {
        match self.resetting.take() {
            None => self.comm.reset(limit)?,
            Some(mine) => {
                let shared = self.comm.shared();
                let outcome = shared.reset_by(&mine, Instant::now().checked_add(limit));
                outcome.unwrap_or_else(|| shared.leave_reset(&mine))?;
            }
        }
        self.forget();
        Ok(())
    }

    fn reset_until(&mut self, deadline: Option<Instant>) -> Result<bool> {
        let shared = self.comm.shared();
        let mine = self.resetting.take().unwrap_or_else(|| shared.come_to_reset(self.comm.rank().index()));
        let Some(outcome) = shared.reset_by(&mine, deadline) else {
            self.resetting = Some(mine);
            return Ok(false);
        };
        outcome?;
        self.forget();
        Ok(true)
    }

    fn reset_all(&mut self) -> Result<()> {
        let shared = self.comm.shared();
        let _turn = shared.turn();
        Ok(shared.reset()?)
    }

    fn forget(&mut self) {
        self.leave_reset();
        self.last = None;
        self.told = true;
    }
}

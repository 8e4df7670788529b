//! Streams and events.

use std::{
    fmt,
    sync::{Arc, OnceLock, PoisonError},
    thread::ThreadId,
    time::{Duration, Instant},
};

use super::{
    super::Fault,
    device::{CudaDevice, CudaFunction, EventHandle},
    driver::{self, call, sys},
    images,
};
use crate::{abi::Arguments, plan::Overlap};

/// A stream of the CUDA backend: one of ours, or the engine's.
#[derive(Clone)]
pub struct CudaStream {
    inner: Arc<Inner>,
}

struct Inner {
    device: CudaDevice,
    handle: sys::CUstream,
    owned: bool,
    /// Of the per-thread default stream, which is another one on another thread.
    thread: Option<ThreadId>,
    /// The ordinal that the driver told.
    told: OnceLock<usize>,
}

// SAFETY: handles of the driver, which may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

impl CudaStream {
    pub(super) fn new(device: &CudaDevice) -> Result<Self, Fault> {
        let _current = device.enter()?;
        let mut handle = std::ptr::null_mut();
        // Blocking ones would wait for the legacy stream of a framework that does not know of us.
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a local.
        unsafe { call!(cuStreamCreate(&raw mut handle, flags))? };
        Ok(Self::with(device, handle, true, None))
    }

    /// The legacy default stream of the device. Another rank on the same device cannot have a stream that waits for it:
    /// the default stream of a thread, or one made without the flag that makes it non-blocking.
    pub fn legacy(device: &CudaDevice) -> Self {
        Self::with(device, LEGACY as sys::CUstream, false, None)
    }

    /// The default stream of the calling thread. It can be used on this thread alone: enqueuing on another
    /// one is an error, since it would be another stream.
    pub fn per_thread(device: &CudaDevice) -> Self {
        Self::with(device, PER_THREAD as sys::CUstream, false, Some(std::thread::current().id()))
    }

    /// A stream of the engine's, by its `CUstream` or `cudaStream_t`: 0 and 1 are the legacy default
    /// stream, 2 is that of the calling thread.
    ///
    /// # Safety
    /// `handle` is a stream and stays one until the calls that this is given to are complete (the clone that a communicator
    /// keeps is compared with later ones, and not used); given to [`Builder::streams`](crate::Builder::streams), while the
    /// communicator and its buffers exist. It should be of the device's primary context: one of another device
    /// is refused by what takes it.
    pub unsafe fn from_raw(device: &CudaDevice, handle: u64) -> Self {
        match handle as usize {
            0 | LEGACY => Self::legacy(device),
            PER_THREAD => Self::per_thread(device),
            other => Self::with(device, other as sys::CUstream, false, None),
        }
    }

    fn with(device: &CudaDevice, handle: sys::CUstream, owned: bool, thread: Option<ThreadId>) -> Self {
        CudaStream { inner: Arc::new(Inner { device: device.clone(), handle, owned, thread, told: OnceLock::new() }) }
    }

    /// The `CUstream`.
    pub fn handle(&self) -> u64 {
        self.inner.handle as u64
    }

    pub(super) fn device(&self) -> &CudaDevice {
        &self.inner.device
    }

    /// The ordinal of the device that it is of, by the driver: asked once.
    pub(super) fn ordinal(&self) -> Result<usize, Fault> {
        let device = &self.inner.device;
        // Default streams are those of whatever is current.
        if self.inner.owned || self.inner.handle as usize <= PER_THREAD {
            return Ok(device.ordinal());
        }
        if let Some(told) = self.inner.told.get() {
            return Ok(*told);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: a local; the handle is a stream, by the promise of who gave it.
        let told = match unsafe { sys::cuStreamGetCtx(self.inner.handle, &raw mut context) } {
            // It cannot tell of this one.
            sys::CUresult::CUDA_ERROR_NOT_SUPPORTED => device.ordinal(),
            result => {
                driver::check("cuStreamGetCtx", result)?;
                // Mostly it is the device's own.
                if context == device.context() { device.ordinal() } else { driver::ordinal_of(context)? }
            }
        };
        Ok(*self.inner.told.get_or_init(|| told))
    }

    /// The handle, on a thread where it means this stream.
    pub(super) fn here(&self) -> Result<sys::CUstream, Fault> {
        match self.inner.thread {
            Some(thread) if thread != std::thread::current().id() => Err(Fault::new(
                "stream",
                0,
                "a per-thread default stream is used on the thread alone on which it was named",
            )),
            _ => Ok(self.inner.handle),
        }
    }

    /// Whether this is the legacy default stream, which waits for each of the device's streams that were not made
    /// otherwise, and they for it, and `other` is one of those.
    pub(super) fn is_legacy_beside(&self, other: &CudaStream) -> Result<bool, Fault> {
        let legacy = |stream: &CudaStream| stream.inner.handle as usize == LEGACY;
        if self.inner.device != other.inner.device || !legacy(self) {
            return Ok(false);
        }
        let handle = other.here()?;
        let _current = self.inner.device.enter()?;
        let mut flags = 0;
        // SAFETY: a local.
        unsafe { call!(cuStreamGetFlags(handle, &raw mut flags))? };
        Ok(flags & sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32 == 0)
    }

    pub(super) fn launch(&self, function: CudaFunction, blocks: u32, arguments: &Arguments) -> Result<(), Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let overlaps = function.overlaps && arguments.overlap != Overlap::Off as u64;
        let config = sys::CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: images::THREADS,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: overlaps.into(),
        };
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast()];
        // SAFETY: every kernel takes one `Arguments` by value, which the driver copies.
        unsafe {
            call!(cuLaunchKernelEx(&raw const config, function.handle, parameters.as_mut_ptr(), std::ptr::null_mut()))
        }
    }

    /// # Safety
    /// As for [`Backend::copy`](crate::Backend::copy).
    pub(super) unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        // SAFETY: the caller's promise; with unified addressing the driver knows whose each address is.
        unsafe { call!(cuMemcpyAsync(to, from, bytes, stream)) }
    }

    /// # Safety
    /// As for [`Backend::fill`](crate::Backend::fill).
    pub(super) unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemsetD8Async(to, byte, bytes, stream)) }
    }

    pub(super) fn is_capturing(&self) -> Result<bool, Fault> {
        let stream = self.here()?;
        // The legacy stream cannot be captured, and asking about it ends captures elsewhere.
        if stream as usize == LEGACY {
            return Ok(false);
        }
        let _current = self.inner.device.enter()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a local.
        unsafe { call!(cuStreamIsCapturing(stream, &raw mut status))? };
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    pub(super) fn record(&self) -> Result<CudaEvent, Fault> {
        self.record_as(false)
    }

    pub(super) fn record_timed(&self) -> Result<CudaEvent, Fault> {
        self.record_as(true)
    }

    fn record_as(&self, timed: bool) -> Result<CudaEvent, Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        let event = CudaEvent::new(&self.inner.device, timed)?;
        // SAFETY: event and stream are of one context.
        unsafe { call!(cuEventRecord(event.inner.handle.0, stream))? };
        Ok(event)
    }

    pub(super) fn wait_event(&self, event: &CudaEvent) -> Result<(), Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        // SAFETY: both are alive.
        unsafe { call!(cuStreamWaitEvent(stream, event.inner.handle.0, 0)) }
    }
}

impl PartialEq for CudaStream {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.inner, &other.inner);
        a.handle == b.handle && a.device == b.device && a.thread == b.thread
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaStream({:#x} on device {})", self.handle(), self.inner.device.ordinal())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_current) = self.device.enter()
        {
            // SAFETY: it was created by us; the driver keeps what is still enqueued.
            let _ = unsafe { call!(cuStreamDestroy_v2(self.handle)) };
        }
    }
}

/// A point in a stream.
#[derive(Clone)]
pub struct CudaEvent {
    inner: Arc<EventInner>,
}

struct EventInner {
    device: CudaDevice,
    handle: EventHandle,
    /// Takes the time, and is not used again: measurements alone have such.
    timed: bool,
}

// SAFETY: as for streams.
unsafe impl Sync for EventInner {}

impl CudaEvent {
    /// One that was used before, or a new one. The device's context is current.
    fn new(device: &CudaDevice, timed: bool) -> Result<Self, Fault> {
        let mut pool = device.events().lock().unwrap_or_else(PoisonError::into_inner);
        let kept = if timed { None } else { pool.pop() };
        drop(pool);
        let handle = match kept {
            Some(handle) => handle,
            None => {
                let mut handle = std::ptr::null_mut();
                let flags = if timed { 0 } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 };
                // SAFETY: a local.
                unsafe { call!(cuEventCreate(&raw mut handle, flags))? };
                EventHandle(handle)
            }
        };
        Ok(CudaEvent { inner: Arc::new(EventInner { device: device.clone(), handle, timed }) })
    }

    pub(super) fn elapsed(&self, to: &CudaEvent) -> Result<Duration, Fault> {
        let _current = self.inner.device.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: a local; both events are alive.
        let result =
            unsafe { (driver::driver()?.elapsed)(&raw mut milliseconds, self.inner.handle.0, to.inner.handle.0) };
        driver::check("cuEventElapsedTime", result)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    fn passed(&self) -> Result<bool, Fault> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.inner.handle.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => driver::check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Asks again and again: a wait inside the driver could hold a lock that the launch of a peer needs.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<bool, Fault> {
        let _current = self.inner.device.enter()?;
        let begin = Instant::now();
        loop {
            if self.passed()? {
                return Ok(true);
            }
            let now = Instant::now();
            if deadline.is_some_and(|d| now >= d) {
                return self.passed();
            }
            match now - begin {
                waited if waited < Duration::from_micros(200) => std::hint::spin_loop(),
                waited if waited < Duration::from_millis(2) => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

impl Drop for EventInner {
    fn drop(&mut self) {
        let handle = EventHandle(self.handle.0);
        if self.timed {
            if let Ok(_current) = self.device.enter() {
                // SAFETY: it is given back once; the driver keeps it until it has passed.
                let _ = unsafe { call!(cuEventDestroy_v2(handle.0)) };
            }
            return;
        }
        self.device.events().lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaEvent({:?} of device {})", self.inner.handle.0, self.inner.device.ordinal())
    }
}

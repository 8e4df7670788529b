//! Streams and events.

use std::{
    ffi::c_void,
    fmt,
    sync::{Arc, OnceLock, PoisonError},
    thread::ThreadId,
    time::{Duration, Instant},
};

use super::{
    super::Fault,
    device::{EventHandle, HipDevice, HipFunction},
    driver::{self, call},
    images, sys,
};
use crate::abi::Arguments;

/// A stream of the HIP backend: one of ours, or the engine's.
#[derive(Clone)]
pub struct HipStream {
    inner: Arc<Inner>,
}

struct Inner {
    device: HipDevice,
    handle: sys::Stream,
    owned: bool,
    /// Of the per-thread default stream, which is another one on another thread.
    thread: Option<ThreadId>,
    /// The ordinal that the runtime told.
    told: OnceLock<usize>,
}

// SAFETY: handles of the runtime, which may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// `hipStreamLegacy`: the null stream by another name, which runtimes before HIP 6 do not know.
const LEGACY: usize = 1;

impl HipStream {
    pub(super) fn new(device: &HipDevice) -> Result<Self, Fault> {
        let _current = device.enter()?;
        let mut handle = std::ptr::null_mut();
        // Blocking ones would wait for the legacy stream of a framework that does not know of us.
        // SAFETY: a local.
        unsafe { call!(hipStreamCreateWithFlags(&raw mut handle, sys::STREAM_NON_BLOCKING))? };
        Ok(Self::with(device, handle, true, None))
    }

    /// The legacy default stream of the device, the null stream.
    pub fn legacy(device: &HipDevice) -> Self {
        Self::with(device, std::ptr::null_mut(), false, None)
    }

    /// The default stream of the calling thread. It can be used on this thread alone: enqueuing on another
    /// one is an error, since it would be another stream.
    pub fn per_thread(device: &HipDevice) -> Self {
        Self::with(device, sys::STREAM_PER_THREAD as sys::Stream, false, Some(std::thread::current().id()))
    }

    /// A stream of the engine's, by its `hipStream_t`: 0 and 1 are the legacy default stream, 2 is that of the calling
    /// thread.
    ///
    /// # Safety
    /// `handle` is a stream and stays one until the calls that this is given to are complete (the clone that a communicator
    /// keeps is compared with later ones, and not used); given to [`Builder::streams`](crate::Builder::streams), while the
    /// communicator and its buffers exist. It should be of the device: one of another is refused by what takes it,
    /// where the runtime can tell (it has `hipStreamGetDevice`).
    pub unsafe fn from_raw(device: &HipDevice, handle: u64) -> Self {
        match handle as usize {
            0 | LEGACY => Self::legacy(device),
            sys::STREAM_PER_THREAD => Self::per_thread(device),
            other => Self::with(device, other as sys::Stream, false, None),
        }
    }

    fn with(device: &HipDevice, handle: sys::Stream, owned: bool, thread: Option<ThreadId>) -> Self {
        HipStream { inner: Arc::new(Inner { device: device.clone(), handle, owned, thread, told: OnceLock::new() }) }
    }

    /// The `hipStream_t`.
    pub fn handle(&self) -> u64 {
        self.inner.handle as u64
    }

    pub(super) fn device(&self) -> &HipDevice {
        &self.inner.device
    }

    /// The ordinal of the device that it is of, by the runtime, where it can tell: asked once.
    pub(super) fn ordinal(&self) -> Result<usize, Fault> {
        let device = &self.inner.device;
        // Default streams are those of whatever is current.
        if self.inner.owned || self.inner.handle as usize <= sys::STREAM_PER_THREAD {
            return Ok(device.ordinal());
        }
        if let Some(told) = self.inner.told.get() {
            return Ok(*told);
        }
        const CALL: &str = "hipStreamGetDevice";
        let driver = driver::driver()?;
        let Some(device_of) = driver.functions.hipStreamGetDevice else { return Ok(device.ordinal()) };
        let mut ordinal = 0;
        // SAFETY: a local; the handle is a stream, by the promise of who gave it.
        let code = unsafe { device_of(self.inner.handle, &raw mut ordinal) };
        let told = match driver.check(CALL, code) {
            // It cannot tell of this one.
            Err(fault) if fault.code == i64::from(sys::NOT_SUPPORTED) => device.ordinal(),
            Err(fault) => return Err(fault),
            Ok(()) => {
                usize::try_from(ordinal).map_err(|_| Fault::new(CALL, 0, format!("a device numbered {ordinal}")))?
            }
        };
        Ok(*self.inner.told.get_or_init(|| told))
    }

    /// The handle, on a thread where it means this stream.
    pub(super) fn here(&self) -> Result<sys::Stream, Fault> {
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
    pub(super) fn is_legacy_beside(&self, other: &HipStream) -> Result<bool, Fault> {
        if self.inner.device != other.inner.device || !self.inner.handle.is_null() {
            return Ok(false);
        }
        let handle = other.here()?;
        let _current = self.inner.device.enter()?;
        let mut flags = 0;
        // SAFETY: a local.
        unsafe { call!(hipStreamGetFlags(handle, &raw mut flags))? };
        Ok(flags & sys::STREAM_NON_BLOCKING == 0)
    }

    pub(super) fn launch(&self, function: HipFunction, blocks: u32, arguments: &Arguments) -> Result<(), Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        // The number of blocks besides: what the kernels would ask the runtime's hidden arguments for.
        let mut parameters: [*mut c_void; 2] =
            [std::ptr::from_ref(arguments).cast_mut().cast(), (&raw const blocks).cast_mut().cast()];
        let (grid, block) = ((blocks, 1, 1), (images::THREADS, 1, 1));
        // SAFETY: every kernel takes an `Arguments` and a u32 by value, which the runtime copies.
        unsafe {
            call!(hipModuleLaunchKernel(
                function.0,
                grid.0,
                grid.1,
                grid.2,
                block.0,
                block.1,
                block.2,
                0,
                stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut()
            ))
        }
    }

    /// # Safety
    /// As for [`Backend::copy`](crate::Backend::copy).
    pub(super) unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        let (to, from) = (to as *mut c_void, from as *const c_void);
        // SAFETY: the caller's promise; with unified addressing the runtime knows whose each address is.
        unsafe { call!(hipMemcpyAsync(to, from, bytes, sys::COPY_DEFAULT, stream)) }
    }

    /// # Safety
    /// As for [`Backend::fill`](crate::Backend::fill).
    pub(super) unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        // SAFETY: the caller's promise.
        unsafe { call!(hipMemsetAsync(to as *mut c_void, byte.into(), bytes, stream)) }
    }

    pub(super) fn is_capturing(&self) -> Result<bool, Fault> {
        let stream = self.here()?;
        // The legacy stream cannot be captured, and asking about it ends captures elsewhere.
        if stream.is_null() {
            return Ok(false);
        }
        let _current = self.inner.device.enter()?;
        let mut status = sys::CAPTURE_NONE;
        // SAFETY: a local.
        unsafe { call!(hipStreamIsCapturing(stream, &raw mut status))? };
        Ok(status != sys::CAPTURE_NONE)
    }

    pub(super) fn record(&self) -> Result<HipEvent, Fault> {
        self.record_as(false)
    }

    pub(super) fn record_timed(&self) -> Result<HipEvent, Fault> {
        self.record_as(true)
    }

    fn record_as(&self, timed: bool) -> Result<HipEvent, Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        let event = HipEvent::new(&self.inner.device, timed)?;
        // SAFETY: event and stream are of one device.
        unsafe { call!(hipEventRecord(event.inner.handle.0, stream))? };
        Ok(event)
    }

    pub(super) fn wait_event(&self, event: &HipEvent) -> Result<(), Fault> {
        let stream = self.here()?;
        let _current = self.inner.device.enter()?;
        // SAFETY: both are alive.
        unsafe { call!(hipStreamWaitEvent(stream, event.inner.handle.0, 0)) }
    }
}

impl PartialEq for HipStream {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.inner, &other.inner);
        a.handle == b.handle && a.device == b.device && a.thread == b.thread
    }
}

impl fmt::Debug for HipStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HipStream({:#x} on device {})", self.handle(), self.inner.device.ordinal())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_current) = self.device.enter()
        {
            // SAFETY: it was created by us; the runtime keeps what is still enqueued.
            let _ = unsafe { call!(hipStreamDestroy(self.handle)) };
        }
    }
}

/// A point in a stream.
#[derive(Clone)]
pub struct HipEvent {
    inner: Arc<EventInner>,
}

struct EventInner {
    device: HipDevice,
    handle: EventHandle,
    /// Takes the time, and is not used again: measurements alone have such.
    timed: bool,
}

// SAFETY: as for streams.
unsafe impl Sync for EventInner {}

impl HipEvent {
    /// One that was used before, or a new one. The device is current.
    fn new(device: &HipDevice, timed: bool) -> Result<Self, Fault> {
        let mut pool = device.events().lock().unwrap_or_else(PoisonError::into_inner);
        let kept = if timed { None } else { pool.pop() };
        drop(pool);
        let handle = match kept {
            Some(handle) => handle,
            None => {
                let mut handle = std::ptr::null_mut();
                let flags = if timed { 0 } else { sys::EVENT_DISABLE_TIMING };
                // SAFETY: a local.
                unsafe { call!(hipEventCreateWithFlags(&raw mut handle, flags))? };
                EventHandle(handle)
            }
        };
        Ok(HipEvent { inner: Arc::new(EventInner { device: device.clone(), handle, timed }) })
    }

    pub(super) fn elapsed(&self, to: &HipEvent) -> Result<Duration, Fault> {
        let _current = self.inner.device.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: a local; both events are alive.
        unsafe { call!(hipEventElapsedTime(&raw mut milliseconds, self.inner.handle.0, to.inner.handle.0))? };
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    /// Asks again and again: a wait inside the runtime could hold a lock that the launch of a peer needs.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<bool, Fault> {
        let driver = driver::driver()?;
        let _current = self.inner.device.enter()?;
        let begin = Instant::now();
        let mut was_early = false;
        let outcome = loop {
            // Before the question, so that one comes after the deadline.
            let now = Instant::now();
            // SAFETY: the event is alive.
            match unsafe { (driver.functions.hipEventQuery)(self.inner.handle.0) } {
                sys::NOT_READY => was_early = true,
                code => break driver.check("hipEventQuery", code).map(|()| true),
            }
            if deadline.is_some_and(|d| now >= d) {
                break Ok(false);
            }
            match now - begin {
                waited if waited < Duration::from_micros(200) => std::hint::spin_loop(),
                waited if waited < Duration::from_millis(2) => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        };
        if was_early {
            // "Not ready" is an error to the runtime, and the framework's next question would find it.
            driver.forget_last_error();
        }
        outcome
    }
}

impl Drop for EventInner {
    fn drop(&mut self) {
        let handle = EventHandle(self.handle.0);
        if self.timed {
            if let Ok(_current) = self.device.enter() {
                // SAFETY: it is given back once; the runtime keeps it until it has passed.
                let _ = unsafe { call!(hipEventDestroy(handle.0)) };
            }
            return;
        }
        self.device.events().lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }
}

impl fmt::Debug for HipEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HipEvent({:?} of device {})", self.inner.handle.0, self.inner.device.ordinal())
    }
}

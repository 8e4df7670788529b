//! Owned memory of any backend.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use super::{Backend, Fault, MemoryKind};

/// Memory of one device, given back when the last owner goes, unless it is the caller's.
#[derive(Debug)]
pub(crate) struct Allocation<B: Backend> {
    device: B::Device,
    kind: MemoryKind,
    address: u64,
    bytes: usize,
    /// Collectives that may read it from other ranks: in flight, leaked, or failed and not reset. The
    /// host must not write it meanwhile.
    flights: AtomicUsize,
    /// Whether the last of them was a replay's.
    by_replay: AtomicBool,
    /// Writes from the host that go on.
    writers: AtomicUsize,
    /// Set while a failed collective may still touch it: until `reset`.
    borrowed: AtomicBool,
    /// Never give it back: a kernel that cannot be stopped may use it, or it is not ours.
    leaked: AtomicBool,
}

impl<B: Backend> Allocation<B> {
    pub(crate) fn new(device: &B::Device, kind: MemoryKind, bytes: usize) -> Result<Arc<Self>, Fault> {
        let address = if bytes == 0 { 0 } else { B::allocate(device, kind, bytes)? };
        Ok(Arc::new(Self::at(device, kind, address, bytes, false)))
    }

    /// Memory of the caller's, which is never given back.
    ///
    /// # Safety
    /// It is memory of that device, kind and size, and stays so while this lives; nobody else uses it.
    pub(crate) unsafe fn of_caller(device: &B::Device, kind: MemoryKind, address: u64, bytes: usize) -> Arc<Self> {
        Arc::new(Self::at(device, kind, address, bytes, true))
    }

    fn at(device: &B::Device, kind: MemoryKind, address: u64, bytes: usize, leaked: bool) -> Self {
        Allocation {
            device: device.clone(),
            kind,
            address,
            bytes,
            flights: AtomicUsize::new(0),
            by_replay: AtomicBool::new(false),
            writers: AtomicUsize::new(0),
            borrowed: AtomicBool::new(false),
            leaked: AtomicBool::new(leaked),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.kind
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn take_off(&self) {
        self.by_replay.store(false, Ordering::Relaxed);
        self.flights.fetch_add(1, Ordering::SeqCst);
    }

    /// The same for a replay, where no borrow keeps writers away: false, and nothing done, while the host writes.
    pub(crate) fn try_take_off(&self) -> bool {
        self.by_replay.store(true, Ordering::Relaxed);
        self.flights.fetch_add(1, Ordering::SeqCst);
        let free = self.writers.load(Ordering::SeqCst) == 0;
        if !free {
            self.land();
        }
        free
    }

    /// Keeps what takes off later away while the answer lives; `None` where something is in flight. Whoever of the
    /// two comes second sees the first.
    pub(crate) fn write_from_host(&self) -> Option<Writing<'_, B>> {
        self.writers.fetch_add(1, Ordering::SeqCst);
        let writing = Writing(self);
        (self.flights.load(Ordering::SeqCst) == 0).then_some(writing)
    }

    pub(crate) fn land(&self) {
        self.flights.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.flights.load(Ordering::Acquire) > 0
    }

    /// What is in flight, for an error that says so.
    pub(crate) fn user(&self) -> &'static str {
        match self.by_replay.load(Ordering::Relaxed) {
            true => "a replay that was launched, and not waited for,",
            false => "a collective whose handle was leaked, or is still there,",
        }
    }

    pub(crate) fn set_borrowed(&self, borrowed: bool) {
        self.borrowed.store(borrowed, Ordering::Release);
    }

    pub(crate) fn is_borrowed(&self) -> bool {
        self.borrowed.load(Ordering::Acquire)
    }

    pub(crate) fn leak(&self) {
        self.leaked.store(true, Ordering::Release);
    }

    /// Copies `to.len()` bytes from `offset` on, after everything enqueued on `stream`.
    pub(crate) fn read(&self, stream: &B::Stream, offset: usize, to: &mut [u8]) -> Result<(), Fault> {
        self.check(offset, to.len())?;
        if to.is_empty() {
            return Ok(());
        }
        // First: a driver copies into ordinary host memory while it waits in this thread, with locks held that
        // the launch of a peer may need.
        finish::<B>(stream)?;
        // SAFETY: the range was checked; `to` and `self` outlive the wait.
        unsafe { B::copy(stream, to.as_mut_ptr() as u64, self.address + offset as u64, to.len())? };
        self.settle(stream)
    }

    /// Copies `from` to `offset`, after everything enqueued on `stream`.
    pub(crate) fn write(&self, stream: &B::Stream, offset: usize, from: &[u8]) -> Result<(), Fault> {
        self.check(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { B::copy(stream, self.address + offset as u64, from.as_ptr() as u64, from.len())? };
        self.settle(stream)
    }

    /// Fills the whole with one byte, after everything enqueued on `stream`.
    pub(crate) fn fill(&self, stream: &B::Stream, byte: u8) -> Result<(), Fault> {
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the whole allocation, which outlives the wait.
        unsafe { B::fill(stream, self.address, byte, self.bytes)? };
        self.settle(stream)
    }

    /// Fills a range, in bytes, with zeros, after everything enqueued on `stream`.
    pub(crate) fn clear(&self, stream: &B::Stream, range: std::ops::Range<u64>) -> Result<(), Fault> {
        let bytes = range.end.saturating_sub(range.start) as usize;
        self.check(range.start as usize, bytes)?;
        // SAFETY: inside the allocation, which outlives the wait.
        unsafe { B::fill(stream, self.address + range.start, 0, bytes)? };
        self.settle(stream)
    }

    /// Waits for what was enqueued on this memory. Where that fails, a second time; where that fails too, the work
    /// may still be going on, and the memory is never given back.
    fn settle(&self, stream: &B::Stream) -> Result<(), Fault> {
        finish::<B>(stream).inspect_err(|_| {
            if finish::<B>(stream).is_err() {
                self.leak();
            }
        })
    }

    /// A 64-bit word of host memory, shared with the device. `None` outside, or for other memory.
    pub(crate) fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let inside = offset.checked_add(8).is_some_and(|end| end <= self.bytes as u64);
        if self.kind != MemoryKind::Host || !inside || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: inside the allocation, aligned (the base is to 128), host memory, alive as long as
        // the reference, and all parties use atomic accesses.
        Some(unsafe { AtomicU64::from_ptr((self.address + offset) as *mut u64) })
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<(), Fault> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Fault::new("copy", 0, format!("{bytes} bytes at {offset} of an allocation of {}", self.bytes))),
        }
    }
}

/// See [`Allocation::write_from_host`].
pub(crate) struct Writing<'a, B: Backend>(&'a Allocation<B>);

impl<B: Backend> Drop for Writing<'_, B> {
    fn drop(&mut self) {
        self.0.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn finish<B: Backend>(stream: &B::Stream) -> Result<(), Fault> {
    // Without a limit: a copy must not outlive the slice it works on. Collectives in front of it
    // have their own limit.
    B::wait(&B::record(stream)?, None).map(drop)
}

impl<B: Backend> Drop for Allocation<B> {
    fn drop(&mut self) {
        if self.bytes > 0 && !self.leaked.load(Ordering::Acquire) {
            // SAFETY: it came from `allocate` with these arguments; collectives that use it hold an
            // owner of their own until they are complete.
            unsafe { B::free(&self.device, self.kind, self.address, self.bytes) };
        }
    }
}

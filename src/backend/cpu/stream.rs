//! A stream is a thread that works off a queue, and a crew of further threads for launches of more
//! than one block. Threads are started once and parked; a stream that is dropped finishes its queue
//! and goes.
//!
//! Who waits for an event without a limit takes the stream's next job itself, unless the thread has it
//! already: with more ranks than cores every hand-over from thread to thread costs more than a small
//! collective does. One job at a time, in order, whoever runs it.
//!
//! An inline stream has no thread at all: who waits runs its jobs, always, and nobody is woken up for them. A launch of more
//! than one block has a crew there as well, since blocks of one rank cannot run one after another: those that send packets
//! wait for headers that other blocks of their peers send, which wait in turn.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    super::Fault,
    device::CpuDevice,
    driver::{self, Entry},
};
use crate::abi::{Arguments, control};

/// The jobs, of about a kilobyte each, that a stream takes before whoever enqueues the next waits until one is done. (Without
/// an end 200,000 calls ahead of a late peer took 211 MB a rank.) A GPU's driver has a limit of its own.
const MOST_JOBS: usize = 8192;

/// An ordered queue of work of one virtual device.
#[derive(Clone)]
pub struct CpuStream {
    owner: Arc<Owner>,
}

/// The point in a stream after its `ticket`-th job.
#[derive(Clone, Debug)]
pub struct CpuEvent {
    queue: Arc<Queue>,
    ticket: u64,
}

/// Ends the thread when the last clone of the stream goes.
struct Owner {
    device: CpuDevice,
    queue: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    /// Nobody but who waits runs its jobs.
    inline: bool,
    pending: Mutex<Pending>,
    /// The worker waits for jobs here, others for their completion.
    changed: Condvar,
    completed: AtomicU64,
}

#[derive(Debug, Default)]
struct Pending {
    jobs: VecDeque<Job>,
    submitted: u64,
    ended: bool,
    worker_sleeps: bool,
    /// A job was taken and is not complete: the next one may not begin.
    running: bool,
    sleepers: usize,
    crew: Vec<Arc<Helper>>,
}

// Launches are by far the most frequent jobs: a box would be an allocation for each.
#[allow(clippy::large_enum_variant)]
enum Job {
    Launch { entry: Entry, blocks: u32, arguments: Arguments, crew: Vec<Arc<Helper>> },
    Copy { to: u64, from: u64, bytes: usize },
    Fill { to: u64, byte: u8, bytes: usize },
    Wait(CpuEvent),
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Job::Launch { .. } => "Launch",
            Job::Copy { .. } => "Copy",
            Job::Fill { .. } => "Fill",
            Job::Wait(_) => "Wait",
        })
    }
}

impl fmt::Debug for CpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inline = if self.is_inline() { ", inline" } else { "" };
        write!(f, "CpuStream(device {}{inline})", self.owner.device.ordinal())
    }
}

impl PartialEq for CpuStream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner)
    }
}

/// A panic cannot leave the queue half changed, so a poisoned lock is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    thread::Builder::new()
        .name(name)
        .spawn(move || {
            driver::begin_thread();
            body();
        })
        .map(drop)
        .map_err(|e| {
            let raise = "raise the limit of processes and threads (`ulimit -u`, or pids.max of a container)";
            Fault::new("thread", e.raw_os_error().unwrap_or(0).into(), format!("{e}; {raise}, or use fewer ranks"))
        })
}

impl CpuStream {
    pub(super) fn new(device: &CpuDevice) -> Result<Self, Fault> {
        let stream = CpuStream::with_queue(device, false);
        let worker = stream.owner.queue.clone();
        spawn(format!("crossccl cpu {}", device.ordinal()), move || worker.work())?;
        Ok(stream)
    }

    pub(super) fn inline(device: &CpuDevice) -> Self {
        CpuStream::with_queue(device, true)
    }

    fn with_queue(device: &CpuDevice, inline: bool) -> Self {
        let queue = Arc::new(Queue {
            inline,
            pending: Mutex::new(Pending { jobs: VecDeque::with_capacity(16), ..Pending::default() }),
            changed: Condvar::new(),
            completed: AtomicU64::new(0),
        });
        CpuStream { owner: Arc::new(Owner { device: device.clone(), queue }) }
    }

    pub(super) fn is_inline(&self) -> bool {
        self.owner.queue.inline
    }

    pub(super) fn device(&self) -> CpuDevice {
        self.owner.device.clone()
    }

    pub(super) fn launch(&self, entry: Entry, blocks: u32, arguments: &Arguments) -> Result<(), Fault> {
        let queue = &self.owner.queue;
        let mut pending = lock(&queue.pending);
        while pending.crew.len() + 1 < blocks as usize {
            let number = pending.crew.len() + 1;
            pending.crew.push(Helper::start(self.owner.device.ordinal(), number)?);
        }
        let crew = pending.crew[..blocks.saturating_sub(1) as usize].to_vec();
        queue.push(pending, Job::Launch { entry, blocks, arguments: arguments.clone(), crew });
        Ok(())
    }

    pub(super) fn copy(&self, to: u64, from: u64, bytes: usize) {
        self.submit(Job::Copy { to, from, bytes });
    }

    pub(super) fn fill(&self, to: u64, byte: u8, bytes: usize) {
        self.submit(Job::Fill { to, byte, bytes });
    }

    pub(super) fn wait_event(&self, event: &CpuEvent) {
        if !Arc::ptr_eq(&event.queue, &self.owner.queue) {
            self.submit(Job::Wait(event.clone()));
        }
    }

    pub(super) fn record(&self) -> CpuEvent {
        let ticket = lock(&self.owner.queue.pending).submitted;
        CpuEvent { queue: self.owner.queue.clone(), ticket }
    }

    fn submit(&self, job: Job) {
        let queue = &self.owner.queue;
        queue.push(lock(&queue.pending), job);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        lock(&self.queue.pending).ended = true;
        self.queue.changed.notify_all();
    }
}

impl CpuEvent {
    fn passed(&self) -> bool {
        self.queue.completed.load(Ordering::Acquire) >= self.ticket
    }

    pub(super) fn wait(&self, deadline: Option<Instant>) -> bool {
        if self.queue.inline {
            return self.queue.run_up_to(self, deadline);
        }
        // Not with a limit: a job, once begun, has to be seen through.
        if deadline.is_none() {
            while !self.passed()
                && let Some(job) = self.queue.take()
            {
                driver::with_default_mode(|| job.run(None));
                self.queue.complete();
            }
        }
        // A short collective is over before a sleep would have begun.
        for _ in 0..64 {
            if self.passed() {
                return true;
            }
            thread::yield_now();
        }
        let mut pending = lock(&self.queue.pending);
        while !self.passed() {
            let Some(left) = left(deadline) else { return false };
            pending = self.queue.sleep(pending, left);
        }
        true
    }
}

/// `None` once the deadline has passed.
fn left(deadline: Option<Instant>) -> Option<Duration> {
    match deadline {
        None => Some(Duration::from_secs(3600)),
        Some(deadline) => deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()),
    }
}

impl Queue {
    fn push<'q>(&'q self, mut pending: MutexGuard<'q, Pending>, job: Job) {
        while pending.jobs.len() >= MOST_JOBS {
            pending = self.make_room(pending);
        }
        pending.jobs.push_back(job);
        pending.submitted += 1;
        let wake = pending.worker_sleeps;
        drop(pending);
        if wake {
            self.changed.notify_all();
        }
    }

    /// Waits until a job is done. On an inline stream, whose jobs nobody does who is not waiting, it is done here.
    fn make_room<'q>(&'q self, mut pending: MutexGuard<'q, Pending>) -> MutexGuard<'q, Pending> {
        let next = if self.inline { pending.take() } else { None };
        let Some(job) = next else { return self.sleep(pending, Duration::from_secs(3600)) };
        drop(pending);
        driver::with_default_mode(|| job.run(None));
        self.complete();
        lock(&self.pending)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            job.run(None);
            self.complete();
        }
        // Only now: jobs that were still queued when the stream was dropped needed them.
        lock(&self.pending).end_crew();
    }

    /// On an inline stream: runs the jobs up to the event's. Where there is a deadline, only those that are over by then
    /// whatever others do; false as soon as one is not.
    fn run_up_to(&self, event: &CpuEvent, deadline: Option<Instant>) -> bool {
        while !event.passed() {
            let mut pending = lock(&self.pending);
            if pending.running {
                let Some(left) = left(deadline) else { return false };
                drop(self.sleep(pending, left));
                continue;
            }
            let ends = pending.jobs.front().is_some_and(|job| job.ends_by(deadline));
            let Some(job) = ends.then(|| pending.take()).flatten() else { return event.passed() };
            drop(pending);
            if !driver::with_default_mode(|| job.run(deadline)) {
                self.give_back(job);
                return false;
            }
            self.complete();
        }
        true
    }

    fn sleep<'q>(&self, mut pending: MutexGuard<'q, Pending>, most: Duration) -> MutexGuard<'q, Pending> {
        pending.sleepers += 1;
        pending = self.changed.wait_timeout(pending, most).unwrap_or_else(PoisonError::into_inner).0;
        pending.sleepers -= 1;
        pending
    }

    /// The next job, if none is under way. Whoever takes it runs it and calls [`complete`](Self::complete).
    fn take(&self) -> Option<Job> {
        lock(&self.pending).take()
    }

    /// The job that was taken could not be done yet.
    fn give_back(&self, job: Job) {
        let mut pending = lock(&self.pending);
        pending.jobs.push_front(job);
        pending.running = false;
        drop(pending);
        self.changed.notify_all();
    }

    /// The job that was taken is done.
    fn complete(&self) {
        self.completed.fetch_add(1, Ordering::Release);
        // Under the lock, or a sleeper that has just looked would miss it.
        let mut pending = lock(&self.pending);
        pending.running = false;
        let wake = pending.sleepers > 0 || (pending.worker_sleeps && (pending.ended || !pending.jobs.is_empty()));
        drop(pending);
        if wake {
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut pending = lock(&self.pending);
        for _ in 0..64 {
            if let Some(job) = pending.take() {
                return Some(job);
            }
            if pending.is_over() {
                return None;
            }
            drop(pending);
            thread::yield_now();
            pending = lock(&self.pending);
        }
        loop {
            if let Some(job) = pending.take() {
                return Some(job);
            }
            if pending.is_over() {
                return None;
            }
            pending.worker_sleeps = true;
            pending = self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner);
            pending.worker_sleeps = false;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Of an inline stream: whoever waits for an event of it after it was dropped needs them.
        self.pending.get_mut().unwrap_or_else(PoisonError::into_inner).end_crew();
    }
}

impl Pending {
    fn take(&mut self) -> Option<Job> {
        if self.running {
            return None;
        }
        let job = self.jobs.pop_front()?;
        self.running = true;
        Some(job)
    }

    fn end_crew(&mut self) {
        for helper in self.crew.drain(..) {
            helper.set(HelperState::Ended);
        }
    }

    fn is_over(&self) -> bool {
        self.ended && !self.running && self.jobs.is_empty()
    }
}

impl Job {
    /// Whether it is over by then, whatever others do, or can be left: what another stream is to do is waited for no longer.
    fn ends_by(&self, deadline: Option<Instant>) -> bool {
        let (Some(deadline), Job::Launch { arguments, .. }) = (deadline, self) else { return true };
        // The self-test has none, and waits for nobody.
        if arguments.control == 0 {
            return true;
        }
        // SAFETY: whoever enqueued the launch promised that the control record is valid until it is complete; the word is
        // aligned, and all parties use atomic accesses.
        let abort = unsafe { AtomicU64::from_ptr((arguments.control + control::ABORT) as *mut u64) };
        let limit = Duration::from_nanos(arguments.limit);
        abort.load(Ordering::Acquire) != 0
            || !limit.is_zero() && Instant::now().checked_add(limit).is_some_and(|end| end <= deadline)
    }

    /// False where a deadline passed before an event of another stream: it can be run again.
    fn run(&self, deadline: Option<Instant>) -> bool {
        match self {
            Job::Launch { entry, blocks, arguments, crew } => {
                for (helper, block) in crew.iter().zip(1..) {
                    helper.begin(Piece { entry: *entry, arguments, block, blocks: *blocks });
                }
                // SAFETY: whoever enqueued the launch promised that what the arguments point to is
                // valid until it is complete.
                unsafe { entry(arguments, 0, *blocks) };
                for helper in crew {
                    helper.join();
                }
            }
            Job::Copy { to, from, bytes } => {
                // SAFETY: whoever enqueued the copy promised that both ranges are valid; `copy`
                // allows them to overlap.
                unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes) };
            }
            Job::Fill { to, byte, bytes } => {
                // SAFETY: whoever enqueued the fill promised that the range is valid.
                unsafe { std::ptr::write_bytes(*to as *mut u8, *byte, *bytes) };
            }
            Job::Wait(event) => return event.wait(deadline),
        }
        true
    }
}

/// A thread that runs one block of its stream's launches.
#[derive(Debug, Default)]
struct Helper {
    state: Mutex<HelperState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
enum HelperState {
    #[default]
    Idle,
    Work(Piece),
    Working,
    Ended,
}

#[derive(Debug)]
struct Piece {
    entry: Entry,
    arguments: *const Arguments,
    block: u32,
    blocks: u32,
}

// SAFETY: the arguments are owned by the stream's thread, which waits for the helper before it lets
// them go, and are only read.
unsafe impl Send for Piece {}

impl Helper {
    fn start(device: usize, number: usize) -> Result<Arc<Self>, Fault> {
        let helper = Arc::new(Helper::default());
        let worker = helper.clone();
        spawn(format!("crossccl cpu {device}.{number}"), move || worker.work())?;
        Ok(helper)
    }

    fn begin(&self, piece: Piece) {
        self.set(HelperState::Work(piece));
    }

    fn join(&self) {
        let mut state = lock(&self.state);
        while !matches!(*state, HelperState::Idle) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn set(&self, to: HelperState) {
        *lock(&self.state) = to;
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            match std::mem::replace(&mut *state, HelperState::Working) {
                HelperState::Work(piece) => {
                    drop(state);
                    // SAFETY: as for the stream's own block.
                    unsafe { (piece.entry)(piece.arguments, piece.block, piece.blocks) };
                    state = lock(&self.state);
                    *state = HelperState::Idle;
                    self.changed.notify_all();
                }
                HelperState::Ended => {
                    *state = HelperState::Ended;
                    return;
                }
                other => *state = other,
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

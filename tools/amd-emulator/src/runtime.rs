//! The runtime's side: allocations, streams, events, captures and graphs, and the thread that runs the devices.
//!
//! One thread runs everything. It takes commands from the front of the streams under a lock, and runs the devices
//! without it, in slices short enough that no caller waits long.

use std::{
    alloc::Layout,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    code_object::CodeObject,
    codes,
    machine::{Finished, Machine, Settings, Slice, Spec},
    memory::{Allocation, Kind, LINE, Map},
    settings,
};

/// Wave-instructions so far.
pub(crate) static STEPS: AtomicU64 = AtomicU64::new(0);

/// The process's runtime.
pub(crate) struct Runtime {
    core: Mutex<Core>,
    /// There is something to do.
    work: Condvar,
    /// Something has been done.
    done: Condvar,
    pub(crate) settings: Settings,
}

/// What streams do.
#[derive(Clone)]
pub(crate) enum Command {
    Launch(Box<Spec>),
    Copy { to: u64, from: u64, bytes: usize },
    Fill { to: u64, byte: u8, bytes: usize },
    Record { event: u64, generation: u64 },
    Await { event: u64, generation: u64 },
    Graph(Arc<Graph>),
}

/// A captured graph: a branch for each stream that took part. Events are numbers of its own.
#[derive(Default)]
pub(crate) struct Graph {
    branches: Vec<(u32, Vec<Command>)>,
    events: u64,
}

pub(crate) struct Stream {
    pub(crate) device: u32,
    /// Waits for the default stream, and that for it.
    blocking: bool,
    queue: VecDeque<Command>,
    running: Option<u64>,
    /// What became of its work, if anything failed.
    error: i32,
    pub(crate) capture: Option<u64>,
    destroyed: bool,
    /// A branch of a running graph: that one's token.
    parent: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Event {
    pub(crate) device: u32,
    /// Times it was recorded, and of those how many have passed.
    recorded: u64,
    passed: u64,
    /// When it last did.
    pub(crate) at: Option<std::time::Instant>,
    error: i32,
    /// Recorded in a capture last: the capture and the event's number in it.
    captured: Option<(u64, u64)>,
}

struct Capture {
    origin: u64,
    mode: i32,
    thread: std::thread::ThreadId,
    /// Streams in the order in which they joined, with their commands.
    branches: Vec<(u64, u32, Vec<Command>)>,
    events: u64,
    /// By the event's number in the capture: the branch and how many commands it had then; who awaited it.
    records: Vec<(u64, usize)>,
    awaited: Vec<u64>,
    broken: bool,
}

pub(crate) struct Module {
    pub(crate) object: Arc<CodeObject>,
    pub(crate) device: u32,
    pub(crate) base: u64,
}

#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) kernel: String,
}

pub(crate) struct Core {
    pub(crate) map: Map,
    /// Of the map, to know when it has changed.
    version: u64,
    blocks: HashMap<u64, (*mut u8, Layout)>,
    /// Given back, but perhaps seen by the running slice.
    retired: Vec<(*mut u8, Layout)>,
    used: Vec<u64>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) modules: HashMap<u64, Module>,
    pub(crate) functions: HashMap<u64, Function>,
    pub(crate) graphs: HashMap<u64, Arc<Graph>>,
    captures: HashMap<u64, Capture>,
    per_thread: HashMap<(std::thread::ThreadId, u32), u64>,
    /// Branches left of a running graph.
    graphs_running: HashMap<u64, usize>,
    next: u64,
    /// That the devices shall follow from now on.
    pub(crate) seed: Option<u64>,
}

// SAFETY: the pointers are to memory that this owns.
unsafe impl Send for Core {}

pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    static THREAD: OnceLock<()> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let settings = settings::read();
        Runtime { core: Mutex::new(Core::new(&settings)), work: Condvar::new(), done: Condvar::new(), settings }
    });
    THREAD.get_or_init(|| {
        let spawned = std::thread::Builder::new().name("amd-emulator".to_owned()).spawn(|| runtime.serve());
        if let Err(error) = spawned {
            settings::end(&format!("no thread to run the devices: {error}"));
        }
    });
    runtime
}

/// The default stream of a device, as a number that no other stream has.
pub(crate) fn default_stream(device: u32) -> u64 {
    8 + u64::from(device)
}

impl Runtime {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread that there is work.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }

    /// Waits until `ready` answers something.
    pub(crate) fn wait<R>(&self, mut ready: impl FnMut(&mut Core) -> Option<R>) -> R {
        let mut core = self.lock();
        loop {
            if let Some(answer) = ready(&mut core) {
                return answer;
            }
            core = self.done.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn serve(&self) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run_for_ever()));
        if result.is_err() {
            settings::end("a panic in the emulator itself: see above");
        }
    }

    fn run_for_ever(&self) {
        let mut machine = Machine::new(self.settings.clone());
        let (mut map, mut version, mut slice) = (Map::default(), u64::MAX, Slice::Idle);
        let mut finished: Vec<Finished> = Vec::new();
        let (mut busy, mut next_report) = (Duration::ZERO, Duration::from_secs(1));
        loop {
            let mut core = self.lock();
            let mut changed = !finished.is_empty();
            for one in finished.drain(..) {
                core.finish(one, self.settings.abort, machine.seed());
            }
            if let Some(seed) = core.seed.take() {
                machine.reseed(seed);
            }
            changed |= core.advance(&mut machine);
            if changed {
                self.done.notify_all();
            }
            if version != core.version {
                (map, version) = (core.map.clone(), core.version);
                for (block, layout) in std::mem::take(&mut core.retired) {
                    // SAFETY: allocated with this layout; nobody has it any more.
                    unsafe { std::alloc::dealloc(block, layout) };
                }
            }
            let wait = match slice {
                _ if changed => None,
                Slice::Busy => None,
                // The threads that are waited for may need the processor.
                Slice::Polling => Some(Duration::from_micros(50)),
                Slice::Idle => Some(Duration::from_secs(1)),
            };
            if let Some(time) = wait {
                // Launches that came in the meantime are taken by the next turn.
                let (guard, _) = self.work.wait_timeout(core, time).unwrap_or_else(PoisonError::into_inner);
                core = guard;
                if let Some(seed) = core.seed.take() {
                    machine.reseed(seed);
                }
                if core.advance(&mut machine) {
                    self.done.notify_all();
                }
                if version != core.version {
                    slice = Slice::Busy;
                    continue;
                }
            }
            drop(core);
            let begin = Instant::now();
            slice = machine.run(&map, Duration::from_micros(500));
            busy += begin.elapsed();
            if self.settings.report && busy >= next_report {
                next_report += Duration::from_secs(1);
                let (steps, seconds) = (machine.steps, busy.as_secs_f64());
                eprintln!(
                    "crossccl emulator: {steps} instructions in {seconds:.1} s, {:.1} M/s",
                    steps as f64 / seconds / 1e6
                );
            }
            finished = machine.finished();
            STEPS.store(machine.steps, Ordering::Relaxed);
        }
    }
}

impl Core {
    fn new(settings: &Settings) -> Self {
        let devices = settings.devices;
        let stream = |device: usize| (default_stream(device as u32), Stream::new(device as u32, true));
        Core {
            map: Map { reach: (0..devices).map(|d| 1 << d).collect(), ..Map::default() },
            version: 0,
            blocks: HashMap::new(),
            retired: Vec::new(),
            used: vec![0; devices],
            streams: (0..devices).map(stream).collect(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            captures: HashMap::new(),
            per_thread: HashMap::new(),
            graphs_running: HashMap::new(),
            next: 0x1000,
            seed: None,
        }
    }

    /// A number for a handle; none that a stream's special handle has.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 16;
        self.next
    }

    pub(crate) fn allocate(
        &mut self,
        kind: Kind,
        device: u32,
        flags: u32,
        bytes: usize,
        settings: &Settings,
    ) -> Result<u64, i32> {
        let whole = bytes.checked_next_multiple_of(LINE as usize).ok_or(codes::OUT_OF_MEMORY)?;
        let used = &mut self.used[device as usize];
        if whole as u64 > settings.bytes - *used {
            return Err(codes::OUT_OF_MEMORY);
        }
        // Behind it is nobody's, so that whoever goes on finds no allocation.
        let layout = Layout::from_size_align(whole + 256, 256).map_err(|_| codes::OUT_OF_MEMORY)?;
        // SAFETY: the layout is not empty.
        let block = unsafe { std::alloc::alloc(layout) };
        if block.is_null() {
            return Err(codes::OUT_OF_MEMORY);
        }
        // Whoever reads what nobody wrote shall not find zeros.
        // SAFETY: of this size.
        unsafe { block.write_bytes(0xcd, whole) };
        *used += whole as u64;
        let start = block as u64;
        let at = self.map.allocations.partition_point(|a| a.start < start);
        let allocation = Allocation { start, end: start + bytes as u64, kind, device, flags };
        self.map.allocations.insert(at, allocation);
        self.map.freed.retain(|(from, to)| *to <= start || *from >= start + whole as u64);
        self.blocks.insert(start, (block, layout));
        self.version += 1;
        Ok(start)
    }

    /// Gives an allocation back.
    pub(crate) fn release(&mut self, start: u64) -> Result<(), i32> {
        let at = self.map.allocations.iter().position(|a| a.start == start).ok_or(codes::INVALID_VALUE)?;
        let gone = self.map.allocations.remove(at);
        if let Some((block, layout)) = self.blocks.remove(&start) {
            self.used[gone.device as usize] -= layout.size() as u64 - 256;
            // SAFETY: still ours; what is read after this is meant to look wrong.
            unsafe { block.write_bytes(0xdd, layout.size() - 256) };
            self.retired.push((block, layout));
        }
        self.map.freed.push((gone.start, gone.end));
        if self.map.freed.len() > 1000 {
            self.map.freed.remove(0);
        }
        self.version += 1;
        Ok(())
    }

    /// Lets kernels of `device` touch memory of `peer`; false if they could already.
    pub(crate) fn reach(&mut self, device: u32, peer: u32) -> bool {
        let word = &mut self.map.reach[device as usize];
        let new = *word >> peer & 1 == 0;
        *word |= 1 << peer;
        self.version += 1;
        new
    }

    /// A new stream.
    /// Whether a stream waits for the default one, and that for it.
    pub(crate) fn is_blocking(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|s| s.blocking)
    }

    pub(crate) fn open_stream(&mut self, device: u32, blocking: bool) -> u64 {
        let number = self.number();
        self.streams.insert(number, Stream::new(device, blocking));
        number
    }

    /// The stream that a handle means on this thread.
    pub(crate) fn stream(&mut self, handle: u64, device: u32) -> Result<u64, i32> {
        match handle {
            0 | 1 => Ok(default_stream(device)),
            2 => {
                let key = (std::thread::current().id(), device);
                if let Some(known) = self.per_thread.get(&key) {
                    return Ok(*known);
                }
                let new = self.open_stream(device, true);
                self.per_thread.insert(key, new);
                Ok(new)
            }
            other => match self.streams.get(&other) {
                Some(s) if !s.destroyed && s.parent.is_none() && other > 0x1000 => Ok(other),
                _ => Err(codes::CONTEXT_IS_DESTROYED),
            },
        }
    }

    /// Enqueues, or adds to the capture that the stream takes part in.
    pub(crate) fn enqueue(&mut self, stream: u64, command: Command) -> Result<(), i32> {
        if let Some(capture) = self.streams[&stream].capture {
            let capture = self.captures.get_mut(&capture).ok_or(codes::INVALID_VALUE)?;
            if capture.broken {
                return Err(codes::CAPTURE_INVALIDATED);
            }
            capture.branch(stream).push(command);
            return Ok(());
        }
        // The default stream and blocking ones wait for each other.
        let (device, blocking) = (self.streams[&stream].device, self.streams[&stream].blocking);
        let default = default_stream(device);
        if blocking {
            let others: Vec<u64> = if stream == default {
                let of_device = self.streams.iter().filter(|(k, s)| s.device == device && s.blocking && **k != default);
                of_device.map(|(k, _)| *k).collect()
            } else {
                vec![default]
            };
            for other in others {
                if self.streams[&other].is_idle() || self.streams[&other].capture.is_some() {
                    continue;
                }
                let event = self.number();
                self.events.insert(event, Event { device, recorded: 1, ..Event::default() });
                let push = |core: &mut Core, stream, command| {
                    if let Some(s) = core.streams.get_mut(stream) {
                        s.queue.push_back(command);
                    }
                };
                push(self, &other, Command::Record { event, generation: 1 });
                push(self, &stream, Command::Await { event, generation: 1 });
            }
        }
        if let Some(s) = self.streams.get_mut(&stream) {
            s.queue.push_back(command);
        }
        Ok(())
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64) -> Result<(), i32> {
        let of = self.streams[&stream].device;
        let capture = self.streams[&stream].capture;
        let e = self.events.get_mut(&event).ok_or(codes::INVALID_HANDLE)?;
        if e.device != of {
            return Err(codes::INVALID_HANDLE);
        }
        if let Some(number) = capture {
            let capture = self.captures.get_mut(&number).ok_or(codes::INVALID_VALUE)?;
            let own = capture.events;
            capture.events += 1;
            e.captured = Some((number, own));
            let branch = capture.branch(stream);
            branch.push(Command::Record { event: own, generation: 1 });
            let length = branch.len();
            capture.records.push((stream, length));
            return Ok(());
        }
        e.captured = None;
        e.recorded += 1;
        let generation = e.recorded;
        self.enqueue(stream, Command::Record { event, generation })
    }

    pub(crate) fn await_event(&mut self, stream: u64, event: u64) -> Result<(), i32> {
        let e = self.events.get(&event).ok_or(codes::INVALID_HANDLE)?;
        let (generation, captured) = (e.recorded, e.captured);
        match (self.streams[&stream].capture, captured) {
            (None, None) if generation == 0 => Ok(()),
            (None, None) => self.enqueue(stream, Command::Await { event, generation }),
            // Work outside of the capture, which its replays would not wait for.
            (Some(number), None) => {
                if let Some(capture) = self.captures.get_mut(&number) {
                    capture.broken = true;
                }
                Err(codes::CAPTURE_ISOLATION)
            }
            (joined, Some((number, own))) => {
                if joined.is_some_and(|j| j != number) {
                    return Err(codes::CAPTURE_MERGE);
                }
                let device = self.streams[&stream].device;
                let Some(capture) = self.captures.get_mut(&number) else { return Err(codes::CAPTURED_EVENT) };
                if joined.is_none() {
                    capture.branches.push((stream, device, Vec::new()));
                }
                capture.awaited.push(own);
                capture.branch(stream).push(Command::Await { event: own, generation: 1 });
                if let Some(s) = self.streams.get_mut(&stream) {
                    s.capture = Some(number);
                }
                Ok(())
            }
        }
    }

    /// Whether an event has passed: what it says of the work before it.
    pub(crate) fn query(&self, event: u64) -> Result<bool, i32> {
        let e = self.events.get(&event).ok_or(codes::INVALID_HANDLE)?;
        if e.captured.is_some() {
            return Err(codes::CAPTURED_EVENT);
        }
        if e.passed < e.recorded {
            return Ok(false);
        }
        if e.error != 0 { Err(e.error) } else { Ok(true) }
    }

    /// Whether a stream has nothing to do: what it says of its work.
    pub(crate) fn is_done(&self, stream: u64) -> Option<Result<(), i32>> {
        let s = self.streams.get(&stream)?;
        s.is_idle().then_some(if s.error != 0 { Err(s.error) } else { Ok(()) })
    }

    /// Whether nothing runs or waits on a device.
    pub(crate) fn is_idle(&self, device: u32) -> bool {
        self.streams.values().all(|s| s.device != device || s.is_idle())
    }

    /// Ends captures that a call like `hipMalloc` of this thread, in this mode, is not allowed in.
    pub(crate) fn unsafe_call(&mut self, mode: i32) -> Result<(), i32> {
        let this = std::thread::current().id();
        let mut hit = false;
        for capture in self.captures.values_mut() {
            let mine = capture.thread == this;
            let concerned = match mode {
                codes::CAPTURE_GLOBAL => {
                    capture.mode == codes::CAPTURE_GLOBAL || (mine && capture.mode != codes::CAPTURE_RELAXED)
                }
                codes::CAPTURE_THREAD_LOCAL => mine && capture.mode != codes::CAPTURE_RELAXED,
                _ => false,
            };
            capture.broken |= concerned;
            hit |= concerned;
        }
        if hit { Err(codes::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// A call that a stream under capture does not allow.
    pub(crate) fn break_capture(&mut self, stream: u64) -> Result<(), i32> {
        let Some(number) = self.streams[&stream].capture else { return Ok(()) };
        if let Some(capture) = self.captures.get_mut(&number) {
            capture.broken = true;
        }
        Err(codes::CAPTURE_UNSUPPORTED)
    }

    pub(crate) fn capture_status(&self, stream: u64) -> i32 {
        let capture = self.streams[&stream].capture.and_then(|c| self.captures.get(&c));
        capture.map_or(0, |c| if c.broken { 2 } else { 1 })
    }

    pub(crate) fn begin_capture(&mut self, stream: u64, mode: i32) -> Result<(), i32> {
        let number = self.number();
        let Some(s) = self.streams.get_mut(&stream) else { return Err(codes::INVALID_HANDLE) };
        if stream < 0x1000 {
            return Err(codes::CAPTURE_UNSUPPORTED);
        }
        if s.capture.is_some() {
            return Err(codes::ILLEGAL_STATE);
        }
        s.capture = Some(number);
        let device = s.device;
        self.captures.insert(
            number,
            Capture {
                origin: stream,
                mode,
                thread: std::thread::current().id(),
                branches: vec![(stream, device, Vec::new())],
                events: 0,
                records: Vec::new(),
                awaited: Vec::new(),
                broken: false,
            },
        );
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: u64) -> Result<u64, i32> {
        let number = self.streams[&stream].capture.ok_or(codes::ILLEGAL_STATE)?;
        if self.captures.get(&number).is_some_and(|c| c.origin != stream) {
            return Err(codes::CAPTURE_UNMATCHED);
        }
        let capture = self.captures.remove(&number).ok_or(codes::ILLEGAL_STATE)?;
        for s in self.streams.values_mut().filter(|s| s.capture == Some(number)) {
            s.capture = None;
        }
        if capture.mode != codes::CAPTURE_RELAXED && capture.thread != std::thread::current().id() {
            return Err(codes::CAPTURE_WRONG_THREAD);
        }
        if capture.broken {
            return Err(codes::CAPTURE_INVALIDATED);
        }
        // The last thing of every other branch is a record that somebody awaits.
        let joined = capture.branches.iter().skip(1).all(|(stream, _, commands)| {
            capture.records.iter().enumerate().any(|(own, (of, length))| {
                of == stream && *length == commands.len() && capture.awaited.contains(&(own as u64))
            })
        });
        if !joined {
            return Err(codes::CAPTURE_UNJOINED);
        }
        let branches = capture.branches.into_iter().map(|(_, device, commands)| (device, commands)).collect();
        let graph = Arc::new(Graph { branches, events: capture.events });
        let handle = self.number();
        self.graphs.insert(handle, graph);
        Ok(handle)
    }

    /// Takes what can be done from the streams; whether anything was.
    fn advance(&mut self, machine: &mut Machine) -> bool {
        let mut any = false;
        loop {
            let mut changed = false;
            let streams: Vec<u64> = self.streams.keys().copied().collect();
            for number in streams {
                while self.advance_stream(number, machine) {
                    changed = true;
                }
            }
            if !changed {
                return any;
            }
            any = true;
        }
    }

    fn advance_stream(&mut self, number: u64, machine: &mut Machine) -> bool {
        let token = self.next + 16;
        let Some(s) = self.streams.get_mut(&number) else { return false };
        if s.running.is_some() {
            return false;
        }
        let Some(command) = s.queue.front() else {
            let (parent, error) = (s.parent, s.error);
            if s.destroyed || parent.is_some() {
                self.streams.remove(&number);
            }
            if let Some(parent) = parent {
                self.branch_ended(parent, error);
                return true;
            }
            return false;
        };
        if let Command::Await { event, generation } = command {
            let (event, generation) = (*event, *generation);
            if self.events.get(&event).is_some_and(|e| e.passed < generation) {
                return false;
            }
            s.queue.pop_front();
            return true;
        }
        let Some(command) = s.queue.pop_front() else { return false };
        let error = s.error;
        match command {
            Command::Record { event, generation } => {
                if let Some(e) = self.events.get_mut(&event) {
                    e.passed = e.passed.max(generation);
                    e.at = Some(std::time::Instant::now());
                    e.error = error;
                }
            }
            // After a fault nothing of the stream is done any more.
            _ if error != 0 => {}
            Command::Launch(spec) => {
                self.next = token;
                s.running = Some(token);
                machine.start(*spec, token, &self.map);
            }
            Command::Copy { to, from, bytes } => {
                // SAFETY: whoever enqueued it promised that both are valid until it is done.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            }
            Command::Fill { to, byte, bytes } => {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(to as *mut u8, byte, bytes) };
            }
            Command::Graph(graph) => {
                self.next = token;
                s.running = Some(token);
                self.start_graph(&graph, token);
            }
            Command::Await { .. } => {}
        }
        true
    }

    fn start_graph(&mut self, graph: &Graph, token: u64) {
        let first = self.next + 16;
        self.next += 16 * (graph.events + 1);
        let event = |own: u64| first + 16 * own;
        for own in 0..graph.events {
            self.events.insert(event(own), Event { recorded: 1, ..Event::default() });
        }
        self.graphs_running.insert(token, graph.branches.len());
        for (device, commands) in &graph.branches {
            let mut branch = Stream::new(*device, false);
            branch.parent = Some(token);
            branch.queue = (commands.iter().cloned())
                .map(|command| match command {
                    Command::Record { event: own, .. } => Command::Record { event: event(own), generation: 1 },
                    Command::Await { event: own, .. } => Command::Await { event: event(own), generation: 1 },
                    other => other,
                })
                .collect();
            let number = self.number();
            self.streams.insert(number, branch);
        }
    }

    fn branch_ended(&mut self, token: u64, error: i32) {
        let Some(left) = self.graphs_running.get_mut(&token) else { return };
        *left -= 1;
        let ended = *left == 0;
        if ended {
            self.graphs_running.remove(&token);
        }
        if let Some(s) = self.streams.values_mut().find(|s| s.running == Some(token)) {
            s.error = if s.error == 0 { error } else { s.error };
            if ended {
                s.running = None;
            }
        }
    }

    fn finish(&mut self, finished: Finished, abort: bool, seed: u64) {
        let error = match &finished.fault {
            None => 0,
            Some(text) => {
                let text = format!("{text}\n  again with CROSSCCL_EMULATOR_SEED={seed}");
                if abort {
                    settings::end(&text);
                }
                eprintln!("crossccl emulator: {text}");
                codes::LAUNCH_FAILURE
            }
        };
        if let Some(s) = self.streams.values_mut().find(|s| s.running == Some(finished.token)) {
            s.running = None;
            s.error = if s.error == 0 { error } else { s.error };
        }
    }

    /// Nothing is enqueued to a stream any more; what it has is done.
    pub(crate) fn destroy_stream(&mut self, stream: u64) -> Result<(), i32> {
        if stream < 0x1000 {
            return Err(codes::INVALID_HANDLE);
        }
        self.break_capture(stream)?;
        if let Some(s) = self.streams.get_mut(&stream) {
            s.destroyed = true;
        }
        Ok(())
    }
}

impl Event {
    pub(crate) fn new(device: u32) -> Self {
        Event { device, ..Event::default() }
    }
}

impl Stream {
    fn new(device: u32, blocking: bool) -> Self {
        Stream {
            device,
            blocking,
            queue: VecDeque::new(),
            running: None,
            error: 0,
            capture: None,
            destroyed: false,
            parent: None,
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_none()
    }
}

impl Capture {
    fn branch(&mut self, stream: u64) -> &mut Vec<Command> {
        let at = self.branches.iter().position(|(s, ..)| *s == stream).unwrap_or(0);
        &mut self.branches[at].2
    }
}

//! A backend that fails when it is told to: the CPU's, any call of which can be made to answer a fault, and whose ranks
//! can be kept from reaching each other's memory. It counts what is alive, and sees memory that is given back while a
//! kernel may still touch it.
//!
//! There is one such machine in a process, which tests use in turns ([`Machine::turn`]).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use crossccl::{
    Arguments, Backend, Cpu, CpuDevice, CpuEvent, CpuFunction, CpuStream, Fault, Kernel, Link, MAX_RANKS, MemoryKind,
    Properties, Unfit,
};

/// The code of every fault that was asked for.
pub(crate) const CODE: i64 = 719;

macro_rules! methods {
    ($($method:ident = $name:literal;)*) => {
        /// What can fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Method { $($method),* }

        impl Method {
            pub(crate) const ALL: &[Method] = &[$(Method::$method),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Method::$method => $name),* }
            }
        }
    };
}

methods! {
    Count = "device_count";
    Open = "open";
    Properties = "properties";
    CanAccess = "can_access_peer";
    EnableAccess = "enable_peer_access";
    CheckMemory = "check_memory";
    AllocateDevice = "allocate of device memory";
    AllocateSignal = "allocate of signal memory";
    AllocateHost = "allocate of host memory";
    Load = "load";
    Resident = "resident_blocks";
    Enter = "enter";
    Stream = "create_stream";
    OrdinalOf = "ordinal_of";
    Serialized = "serialized";
    Launch = "launch";
    Copy = "copy";
    Fill = "fill";
    Record = "record";
    WaitEvent = "wait_event";
    Capturing = "is_capturing";
    Wait = "wait";
}

/// Which calls fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Which {
    /// That call alone, counted from 1.
    Only(usize),
    /// That one and all after it, of whatever method: the device is dead.
    From(usize),
}

/// What one rank's kernels do with another's signal buffer, instead of using it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cut {
    /// Nothing that they write arrives, from the first launch on.
    Lost,
    /// In the self-test, what they read back is this byte over and over.
    Reads(u8),
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    ordinal: usize,
    kind: MemoryKind,
    bytes: usize,
}

/// A launch, a copy or a fill that may not be over: the words that may be addresses of what it touches.
#[derive(Debug)]
struct Work {
    end: CpuEvent,
    words: Vec<u64>,
}

#[derive(Debug, Default)]
struct State {
    armed: Option<(Method, Which)>,
    not_coherent: bool,
    calls: BTreeMap<Method, usize>,
    /// The first fault, and the device it was on.
    fired: Option<(Method, Option<usize>)>,
    dead: bool,
    alive: BTreeMap<u64, Memory>,
    working: Vec<Work>,
    wrong: Vec<String>,
    unreachable: Option<(usize, usize)>,
    cut: Option<(usize, usize, Cut)>,
    /// What is used in the place of a buffer that is cut off. Never given back.
    decoy: u64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static STREAMS: AtomicUsize = AtomicUsize::new(0);

fn state<R>(body: impl FnOnce(&mut State) -> R) -> R {
    body(STATE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Answers a fault where the call was to fail.
fn called(method: Method, ordinal: Option<usize>) -> Result<(), Fault> {
    state(|s| {
        let calls = s.calls.entry(method).or_default();
        *calls += 1;
        let fails = s.dead
            || s.armed.is_some_and(|(armed, which)| {
                armed == method && matches!(which, Which::Only(n) | Which::From(n) if n == *calls)
            });
        if !fails {
            return Ok(());
        }
        s.dead = matches!(s.armed, Some((_, Which::From(_))));
        s.fired = s.fired.or(Some((method, ordinal)));
        let name = "a fault that was asked for";
        Err(match method {
            Method::AllocateSignal if s.not_coherent => Fault::not_coherent(method.name(), CODE, name),
            _ => Fault::new(method.name(), CODE, name),
        })
    })
}

/// The machine, for who has the turn.
pub(crate) struct Machine(#[allow(dead_code)] MutexGuard<'static, ()>);

/// What there is of memory and streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alive {
    pub(crate) allocations: usize,
    pub(crate) bytes: usize,
    pub(crate) streams: usize,
}

impl Machine {
    pub(crate) fn turn() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // What a test left that failed, or that had to leave it.
        *STATE.lock().unwrap_or_else(PoisonError::into_inner) = None;
        STREAMS.store(0, Ordering::Relaxed);
        Machine(turn)
    }

    /// From now on, with calls counted anew. Without a fault, none fails any more.
    pub(crate) fn arm(&self, fault: Option<(Method, Which)>) {
        state(|s| {
            (s.armed, s.fired, s.dead) = (fault, None, false);
            s.calls.clear();
        });
    }

    /// Faults of signal memory say that there is none that is coherent.
    pub(crate) fn without_coherent_memory(&self) {
        state(|s| s.not_coherent = true);
    }

    pub(crate) fn unreachable(&self, from: usize, to: usize) {
        state(|s| s.unreachable = Some((from, to)));
    }

    pub(crate) fn cut(&self, cut: Option<(usize, usize, Cut)>) {
        state(|s| s.cut = cut);
    }

    /// How many calls of each method there were since it was armed.
    pub(crate) fn calls(&self) -> BTreeMap<Method, usize> {
        state(|s| s.calls.clone())
    }

    /// Says how many there are of `method`: for who counts those of a part alone.
    pub(crate) fn count(&self, method: Method, calls: usize) {
        state(|s| s.calls.insert(method, calls));
    }

    /// What failed first, and on which device.
    pub(crate) fn fired(&self) -> Option<(Method, Option<usize>)> {
        state(|s| s.fired)
    }

    pub(crate) fn alive(&self) -> Alive {
        state(|s| Alive {
            allocations: s.alive.len(),
            bytes: s.alive.values().map(|memory| memory.bytes).sum(),
            streams: STREAMS.load(Ordering::Relaxed),
        })
    }

    /// How many allocations there are of a kind.
    pub(crate) fn alive_of(&self, kind: MemoryKind) -> usize {
        state(|s| s.alive.values().filter(|memory| memory.kind == kind).count())
    }

    /// Memory that was given back too early, or twice, or not as it was taken.
    pub(crate) fn wrong(&self) -> Vec<String> {
        state(|s| s.wrong.clone())
    }
}

/// The backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faulty;

/// A stream of the CPU's that is counted.
#[derive(Clone, Debug)]
pub(crate) struct FaultyStream(CpuStream, #[allow(dead_code)] Arc<Counted>);

#[derive(Debug)]
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        STREAMS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PartialEq for FaultyStream {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// Remembers what `stream` works on until it is at this point.
fn works_on(stream: &CpuStream, words: Vec<u64>) -> Result<(), Fault> {
    let end = Cpu::record(stream)?;
    state(|s| s.working.push(Work { end, words }));
    Ok(())
}

/// Memory of `bytes` bytes in the place of another rank's signal buffer.
fn decoy(s: &mut State, bytes: usize, byte: u8) -> u64 {
    if s.decoy == 0 {
        s.decoy = Box::leak(vec![0u64; bytes.div_ceil(8) + 16].into_boxed_slice()).as_mut_ptr() as u64;
        s.decoy = s.decoy.next_multiple_of(128);
    }
    // SAFETY: it was made so long, and is never given back; kernels that use it are of a rank that is cut off.
    unsafe { std::ptr::write_bytes(s.decoy as *mut u8, byte, bytes) };
    s.decoy
}

/// The arguments for a rank that does not reach all others.
fn cut_off(ordinal: usize, kernel: Kernel, arguments: &Arguments) -> Arguments {
    let mut arguments = arguments.clone();
    state(|s| {
        let Some((_, to, how)) = s.cut.filter(|(from, ..)| *from == ordinal) else { return };
        let byte = match (how, kernel) {
            (Cut::Lost, _) => 0,
            (Cut::Reads(byte), Kernel::SelfTestRead) => byte,
            (Cut::Reads(_), _) => return,
        };
        let signal = s.alive.iter().find(|(_, m)| m.kind == MemoryKind::Signal && m.ordinal == to);
        let Some((address, bytes)) = signal.map(|(address, memory)| (*address, memory.bytes)) else { return };
        // SAFETY: they begin with the addresses of the ranks' signal buffers (`Arguments` in abi.h), and have no padding
        // before them.
        let signals = unsafe { &mut *(&raw mut arguments).cast::<[u64; MAX_RANKS]>() };
        for signal in signals.iter_mut().filter(|signal| **signal == address) {
            *signal = decoy(s, bytes, byte);
        }
    });
    arguments
}

// SAFETY: it hands on to the CPU's, which keeps the promises; what it does not hand on answers a fault, and what it hands
// on with other arguments names memory of its own.
unsafe impl Backend for Faulty {
    const NAME: &'static str = "faulty";
    type Device = CpuDevice;
    type Stream = FaultyStream;
    type Event = CpuEvent;
    type Function = CpuFunction;
    type Entered = ();
    type Graph = std::convert::Infallible;

    fn device_count() -> Result<usize, Fault> {
        called(Method::Count, None)?;
        Cpu::device_count()
    }

    fn open(ordinal: usize) -> Result<CpuDevice, Fault> {
        called(Method::Open, Some(ordinal))?;
        Cpu::open(ordinal)
    }

    fn ordinal(device: &CpuDevice) -> usize {
        Cpu::ordinal(device)
    }

    fn properties(device: &CpuDevice, ranks: usize, sharing: usize) -> Result<Properties, Fault> {
        called(Method::Properties, Some(Cpu::ordinal(device)))?;
        Cpu::properties(device, ranks, sharing)
    }

    fn can_access_peer(from: &CpuDevice, to: &CpuDevice) -> Result<bool, Fault> {
        called(Method::CanAccess, Some(Cpu::ordinal(from)))?;
        Ok(state(|s| s.unreachable) != Some((Cpu::ordinal(from), Cpu::ordinal(to))))
    }

    fn link(from: &CpuDevice, to: &CpuDevice) -> Result<Link, Fault> {
        Cpu::link(from, to)
    }

    fn enable_peer_access(from: &CpuDevice, to: &CpuDevice) -> Result<(), Fault> {
        called(Method::EnableAccess, Some(Cpu::ordinal(from)))?;
        Cpu::enable_peer_access(from, to)
    }

    fn check_memory(device: &CpuDevice, peers: &[&CpuDevice], address: u64, bytes: usize) -> Result<(), Unfit> {
        called(Method::CheckMemory, Some(Cpu::ordinal(device))).map_err(Unfit::Unknown)?;
        Cpu::check_memory(device, peers, address, bytes)
    }

    fn allocate(device: &CpuDevice, kind: MemoryKind, bytes: usize) -> Result<u64, Fault> {
        let method = match kind {
            MemoryKind::Device => Method::AllocateDevice,
            MemoryKind::Signal => Method::AllocateSignal,
            _ => Method::AllocateHost,
        };
        let ordinal = Cpu::ordinal(device);
        called(method, Some(ordinal))?;
        let address = Cpu::allocate(device, kind, bytes)?;
        state(|s| s.alive.insert(address, Memory { ordinal, kind, bytes }));
        Ok(address)
    }

    unsafe fn free(device: &CpuDevice, kind: MemoryKind, address: u64, bytes: usize) {
        let taken = state(|s| {
            let now = Instant::now();
            s.working.retain(|work| !matches!(Cpu::wait(&work.end, Some(now)), Ok(true)));
            let range = address..address + bytes as u64;
            if let Some(work) = s.working.iter().find(|work| work.words.iter().any(|word| range.contains(word))) {
                s.wrong.push(format!(
                    "{bytes} bytes of {kind:?} memory were given back while {:?} may use them",
                    work.end
                ));
            }
            let memory = s.alive.remove(&address);
            let ordinal = Cpu::ordinal(device);
            let fits = memory.is_some_and(|m| (m.ordinal, m.kind, m.bytes) == (ordinal, kind, bytes));
            if !fits {
                s.wrong
                    .push(format!("{bytes} bytes of {kind:?} memory of device {ordinal} were given back: {memory:?}"));
            }
            fits
        });
        if taken {
            // SAFETY: the caller's promise, which was looked at.
            unsafe { Cpu::free(device, kind, address, bytes) }
        }
    }

    fn load(device: &CpuDevice) -> Result<Vec<CpuFunction>, Fault> {
        called(Method::Load, Some(Cpu::ordinal(device)))?;
        Cpu::load(device)
    }

    fn resident_blocks(device: &CpuDevice, function: CpuFunction) -> Result<u32, Fault> {
        called(Method::Resident, Some(Cpu::ordinal(device)))?;
        Cpu::resident_blocks(device, function)
    }

    fn enter(device: &CpuDevice) -> Result<(), Fault> {
        called(Method::Enter, Some(Cpu::ordinal(device)))
    }

    fn create_stream(device: &CpuDevice) -> Result<FaultyStream, Fault> {
        called(Method::Stream, Some(Cpu::ordinal(device)))?;
        let stream = Cpu::create_stream(device)?;
        STREAMS.fetch_add(1, Ordering::Relaxed);
        Ok(FaultyStream(stream, Arc::new(Counted)))
    }

    fn serialized(one: &FaultyStream, other: &FaultyStream) -> Result<bool, Fault> {
        called(Method::Serialized, Some(Cpu::ordinal(&Cpu::device_of(&one.0))))?;
        Cpu::serialized(&one.0, &other.0)
    }

    fn device_of(stream: &FaultyStream) -> CpuDevice {
        Cpu::device_of(&stream.0)
    }

    fn ordinal_of(stream: &FaultyStream) -> Result<usize, Fault> {
        let ordinal = Cpu::ordinal(&Cpu::device_of(&stream.0));
        called(Method::OrdinalOf, Some(ordinal))?;
        Ok(ordinal)
    }

    unsafe fn launch(
        stream: &FaultyStream,
        kernel: Kernel,
        function: CpuFunction,
        blocks: u32,
        arguments: &Arguments,
    ) -> Result<(), Fault> {
        let ordinal = Cpu::ordinal(&Cpu::device_of(&stream.0));
        called(Method::Launch, Some(ordinal))?;
        let arguments = cut_off(ordinal, kernel, arguments);
        // SAFETY: plain words without padding (`Arguments` in abi.h), of which those are looked at that are whole.
        let words = unsafe {
            std::slice::from_raw_parts((&raw const arguments).cast::<u64>(), size_of::<Arguments>() / size_of::<u64>())
        };
        // SAFETY: the caller's promise; another signal buffer is as long as the one it stands for.
        unsafe { Cpu::launch(&stream.0, kernel, function, blocks, &arguments)? };
        works_on(&stream.0, words.to_vec())
    }

    unsafe fn copy(stream: &FaultyStream, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        called(Method::Copy, Some(Cpu::ordinal(&Cpu::device_of(&stream.0))))?;
        // SAFETY: the caller's promise.
        unsafe { Cpu::copy(&stream.0, to, from, bytes)? };
        works_on(&stream.0, vec![to, from])
    }

    unsafe fn fill(stream: &FaultyStream, to: u64, byte: u8, bytes: usize) -> Result<(), Fault> {
        called(Method::Fill, Some(Cpu::ordinal(&Cpu::device_of(&stream.0))))?;
        // SAFETY: the caller's promise.
        unsafe { Cpu::fill(&stream.0, to, byte, bytes)? };
        works_on(&stream.0, vec![to])
    }

    fn record(stream: &FaultyStream) -> Result<CpuEvent, Fault> {
        called(Method::Record, Some(Cpu::ordinal(&Cpu::device_of(&stream.0))))?;
        Cpu::record(&stream.0)
    }

    fn wait_event(stream: &FaultyStream, event: &CpuEvent) -> Result<(), Fault> {
        called(Method::WaitEvent, Some(Cpu::ordinal(&Cpu::device_of(&stream.0))))?;
        Cpu::wait_event(&stream.0, event)
    }

    fn is_capturing(stream: &FaultyStream) -> Result<bool, Fault> {
        called(Method::Capturing, Some(Cpu::ordinal(&Cpu::device_of(&stream.0))))?;
        Ok(false)
    }

    fn wait(event: &CpuEvent, deadline: Option<Instant>) -> Result<bool, Fault> {
        called(Method::Wait, None)?;
        Cpu::wait(event, deadline)
    }
}

//! What a backend is.
//!
//! The contract in prose, for whoever writes one:
//!
//! * A backend does what it is told and nothing else: it opens devices, allocates, loads kernels,
//!   orders work on streams. It does no arithmetic on elements and knows no collective. Everything
//!   that can be foreseen was validated above, once, for all backends; a backend reports only what
//!   could not be foreseen, as a [`Fault`]: which call, which code, what it is called.
//! * Nothing panics. Nothing waits without being asked to. Errors are what the driver answered, the same for
//!   every method: see [`Fault`].
//! * Handles are cheap to clone and usable from any thread. The caller's current device or context
//!   is as it was when a method returns.
//! * Work on one stream is done in order. A launch returns as soon as it is enqueued. All blocks of
//!   a launch run at the same time: the layers above ask [`Backend::resident_blocks`] first.
//! * Memory of [`MemoryKind::Signal`] is coherent between all devices while kernels run; memory of
//!   [`MemoryKind::Host`] likewise between host and device.

#![allow(unsafe_code)]

use std::{
    fmt,
    time::{Duration, Instant},
};

pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod profiler;

cfg_if::cfg_if! {
    if #[cfg(feature = "cpu")] {
        pub(crate) mod cpu;
    }
}
cfg_if::cfg_if! {
    if #[cfg(feature = "cuda")] {
        pub(crate) mod cuda;
    }
}
cfg_if::cfg_if! {
    if #[cfg(feature = "rocm")] {
        pub(crate) mod hip;
    }
}

pub use profiler::Profiler;

use crate::{
    abi::Arguments,
    plan::{Blocks, Kernel, Packets},
};

/// What a driver or the operating system answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The call.
    pub call: &'static str,
    /// Its code.
    pub code: i64,
    /// The code's name or text.
    pub name: String,
    /// Memory of [`MemoryKind::Signal`] was asked for, and the device has none that is coherent.
    pub not_coherent: bool,
    /// The backend was built without kernels: the cargo feature that brings it.
    pub no_kernels: Option<&'static str>,
}

impl Fault {
    /// A fault of `call`.
    pub fn new(call: &'static str, code: i64, name: impl Into<String>) -> Self {
        Fault { call, code, name: name.into(), not_coherent: false, no_kernels: None }
    }

    /// That the device has no coherent memory for signals, by the answer of `call`.
    pub fn not_coherent(call: &'static str, code: i64, name: impl Into<String>) -> Self {
        Fault { not_coherent: true, ..Fault::new(call, code, name) }
    }

    /// That the backend of `feature` was built without its kernels.
    pub fn no_kernels(feature: &'static str) -> Self {
        let name = "this build has no kernels (CROSSCCL_KERNELS=off)";
        Fault { no_kernels: Some(feature), ..Fault::new("load", 0, name) }
    }
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Data of one device, readable by its peers.
    Device,
    /// Signal buffers: written by peers while kernels poll it.
    Signal,
    /// Host memory that the device reaches while kernels run.
    Host,
}

/// Why memory of the caller's cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// It is not what it must be.
    Wrong {
        /// What it must be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// Its driver did not answer.
    Unknown(Fault),
    /// A peer, by its place in the list given, cannot reach it.
    Unreachable {
        /// Which.
        peer: usize,
        /// What the driver says.
        reason: String,
    },
}

/// Facts about a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Properties {
    /// For people.
    pub name: String,
    /// Blocks that a launch should have at most, of each rank on the device, when nothing was asked for.
    pub preferred_blocks: Blocks,
    /// Bytes that one block takes at a time (`kTile` of the target).
    pub tile: u64,
    /// Bytes that it takes at least, of short messages, where no other rank depends on which block moves what
    /// (`kLeastTile`).
    pub least_tile: u64,
    /// Bytes of a message, or of each rank's input, below which one block does a rank's part sooner than several, since the
    /// others must be woken; 0 where all begin at once.
    pub one_block: u64,
    /// What the low-latency algorithm is good for here; the capacity is the communicator's.
    pub packets: Packets,
    /// Threads of a block.
    pub threads: u32,
    /// Whether a peer's kernel sees, while it runs, what this device's kernel wrote to
    /// [`MemoryKind::Device`] and released.
    pub coherent: bool,
    /// Rate of the device clock.
    pub ticks_per_second: u64,
    /// Bytes of the cache that all blocks share: what lies outside of the last so many bytes moved is cold.
    pub cache: u64,
    /// Whether its driver says that software plays the device: what runs on it proves nothing of hardware.
    pub emulated: bool,
    /// What is known to be wrong with the driver's version, and what to do about it. Building a communicator warns of it.
    pub known_faults: Vec<&'static str>,
}

impl Properties {
    /// Those of a device of which nothing is known but its name, what `kTile` is in its kernels' target, in bytes, and
    /// how often a second their clock ticks: blocks of one thread, one a rank; packets for who asks for them; memory that is
    /// not coherent. What is known besides is set in the fields.
    pub fn new(name: impl Into<String>, tile: u64, ticks_per_second: u64) -> Self {
        Properties {
            name: name.into(),
            preferred_blocks: Blocks { broadcast: 1, reduce_scatter: 1, low_latency: 1 },
            tile,
            least_tile: tile,
            one_block: 0,
            packets: Packets::when_asked(tile),
            threads: 1,
            coherent: false,
            ticks_per_second,
            cache: 0,
            emulated: false,
            known_faults: Vec::new(),
        }
    }
}

/// The first of some variables that is set to something other than 0, with its value.
#[cfg(any(feature = "cuda", feature = "rocm"))]
fn switched_on(variables: &[&str]) -> Option<String> {
    let value = |name| std::env::var(name).ok().filter(|v: &String| !v.is_empty() && v != "0");
    variables.iter().find_map(|name| Some(format!("{name}={}", value(*name)?)))
}

/// What joins two devices, as far as the driver tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// They share their memory.
    Memory,
    /// Links of their own, or to a switch that joins them.
    Direct {
        /// How many of the device have a peer at their other end.
        lanes: u32,
        /// All of them, bytes a second and direction. `None` where nobody tells.
        rate: Option<u64>,
    },
    /// The machine's bus, or links of which the driver does not tell.
    Bus {
        /// Whether atomic operations of one device work on the other's memory. `None` where nobody tells.
        atomics: Option<bool>,
        /// The driver's measure of the way between them: its order of ways, 0 for the fastest, or the hops.
        class: u32,
    },
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Memory => f.write_str("shared memory"),
            Link::Direct { lanes, rate: Some(rate) } => {
                write!(f, "{lanes} direct links, {:.1} GB/s each way", *rate as f64 / 1e9)
            }
            Link::Direct { lanes, rate: None } => write!(f, "{lanes} direct links"),
            Link::Bus { atomics, class } => {
                let atomics = match atomics {
                    Some(true) => ", with atomics",
                    Some(false) => ", without atomics",
                    None => "",
                };
                write!(f, "bus (class {class}{atomics})")
            }
        }
    }
}

/// A kind of device: how to open, allocate, order and launch.
///
/// Addresses are `u64`: device memory has no Rust provenance, and a pointer type would invite a
/// dereference.
///
/// # Safety
/// What the methods promise is relied on for memory safety: `allocate` returns memory of its own, of that size,
/// alignment and kind; streams do their work in order; an event passes only after the work before it; `load`
/// returns the kernels asked for.
pub unsafe trait Backend: Sized + fmt::Debug + Send + Sync + 'static {
    /// `cpu`, `cuda`, `hip`.
    const NAME: &'static str;
    /// An opened device.
    type Device: Clone + fmt::Debug + PartialEq + Send + Sync;
    /// An ordered queue of work of one device.
    type Stream: Clone + fmt::Debug + PartialEq + Send + Sync;
    /// A point in a stream.
    type Event: Clone + fmt::Debug + Send + Sync;
    /// A loaded kernel of one device.
    type Function: Copy + fmt::Debug + Send + Sync;
    /// What [`enter`](Self::enter) gives.
    type Entered;
    /// Work that was captured and can be enqueued again and again.
    type Graph: fmt::Debug + Send;
    /// Whether there is such a thing: the methods that capture answer errors otherwise.
    const GRAPHS: bool = false;

    /// How many devices [`open`](Self::open) knows. No device at all is an error that says what was
    /// looked for.
    ///
    /// # Errors
    /// The driver's answer.
    fn device_count() -> Result<usize, Fault>;
    /// Opens a device; `ordinal` is below the count.
    ///
    /// # Errors
    /// The driver's answer.
    fn open(ordinal: usize) -> Result<Self::Device, Fault>;
    /// The ordinal it was opened with.
    fn ordinal(device: &Self::Device) -> usize;
    /// Facts about it, for a communicator of `ranks` ranks on this machine, `sharing` of them on this device.
    ///
    /// # Errors
    /// The driver's answer.
    fn properties(device: &Self::Device, ranks: usize, sharing: usize) -> Result<Properties, Fault>;
    /// Whether kernels of `from` can read and write memory of `to`.
    ///
    /// # Errors
    /// The driver's answer.
    fn can_access_peer(from: &Self::Device, to: &Self::Device) -> Result<bool, Fault>;
    /// What joins them.
    ///
    /// # Errors
    /// The driver's answer.
    fn link(from: &Self::Device, to: &Self::Device) -> Result<Link, Fault>;
    /// Makes it so: kernels of `from` can read and write memory of `to`. Already enabled is success.
    ///
    /// # Errors
    /// The driver's answer.
    fn enable_peer_access(from: &Self::Device, to: &Self::Device) -> Result<(), Fault>;

    /// Checks memory of the caller's: `bytes` (above 0) at `address` on `device`, for kernels of it and of
    /// `peers`; makes it reachable for them where that takes something.
    ///
    /// # Errors
    /// What is wrong with it. A backend that cannot tell finds nothing wrong.
    fn check_memory(
        _device: &Self::Device,
        _peers: &[&Self::Device],
        _address: u64,
        _bytes: usize,
    ) -> Result<(), Unfit> {
        Ok(())
    }

    /// Zeroed memory of at least `bytes` (above 0), aligned to 128 bytes.
    ///
    /// # Errors
    /// The driver's answer; [`Fault::not_coherent`] rather than signal memory that is not coherent.
    fn allocate(device: &Self::Device, kind: MemoryKind, bytes: usize) -> Result<u64, Fault>;
    /// Gives memory back.
    ///
    /// # Safety
    /// `address` came from [`allocate`](Self::allocate) with the same other arguments, is given back
    /// once, and nothing uses it any more.
    unsafe fn free(device: &Self::Device, kind: MemoryKind, address: u64, bytes: usize);

    /// Loads every kernel, so that no first use loads one while a peer spins (case A1). In the order
    /// of [`Kernel::all`].
    ///
    /// # Errors
    /// The driver's answer.
    fn load(device: &Self::Device) -> Result<Vec<Self::Function>, Fault>;
    /// Blocks of `function` that the device can run at the same time.
    ///
    /// # Errors
    /// The driver's answer.
    fn resident_blocks(device: &Self::Device, function: Self::Function) -> Result<u32, Fault>;

    /// Makes the device ready for the calls of this thread while the answer lives: a backend that has a current
    /// device or context sets it here once, instead of in each call.
    ///
    /// # Errors
    /// The driver's answer.
    fn enter(device: &Self::Device) -> Result<Self::Entered, Fault>;
    /// A new stream.
    ///
    /// # Errors
    /// The driver's answer.
    fn create_stream(device: &Self::Device) -> Result<Self::Stream, Fault>;
    /// Whether there are inline streams.
    const INLINE: bool = false;
    /// A new inline stream: nobody works it off but who waits for an event of it, or for an event behind one in
    /// another stream, and nothing is done before. Nothing is handed to another thread then, which is what a short
    /// collective takes longest for where cores are few; but a thread that waits for one rank does nothing for another.
    ///
    /// [`wait`](Self::wait) with a deadline begins only what is over by then whatever other ranks do, and answers false
    /// where something else stands in front of the event.
    ///
    /// # Errors
    /// A backend that has none says so.
    fn create_inline_stream(_device: &Self::Device) -> Result<Self::Stream, Fault> {
        Err(Fault::new("create_inline_stream", 0, format!("the {} backend has no inline streams", Self::NAME)))
    }
    /// Whether a stream is one.
    fn is_inline(_stream: &Self::Stream) -> bool {
        false
    }
    /// Whether work on one of two streams waits for work on the other, though nobody asked for it: two ranks cannot
    /// meet on them.
    ///
    /// # Errors
    /// The driver's answer.
    fn serialized(one: &Self::Stream, other: &Self::Stream) -> Result<bool, Fault> {
        Ok(one == other)
    }
    /// The variable of the process's environment, with its value, for which each launch waits until its kernel is done:
    /// ranks that one thread drives would never meet.
    fn blocking_launches() -> Option<String> {
        None
    }
    /// The device of a stream.
    fn device_of(stream: &Self::Stream) -> Self::Device;
    /// The ordinal of the device on which the driver has a stream: another one than that of
    /// [`device_of`](Self::device_of) where a caller took a handle for what it is not. A backend that cannot tell answers the
    /// latter.
    ///
    /// # Errors
    /// The driver's answer.
    fn ordinal_of(stream: &Self::Stream) -> Result<usize, Fault> {
        Ok(Self::ordinal(&Self::device_of(stream)))
    }
    /// Enqueues a launch.
    ///
    /// # Errors
    /// The driver's answer.
    ///
    /// # Safety
    /// What the arguments point to is valid until the launch is complete.
    unsafe fn launch(
        stream: &Self::Stream,
        kernel: Kernel,
        function: Self::Function,
        blocks: u32,
        arguments: &Arguments,
    ) -> Result<(), Fault>;
    /// Enqueues a copy between any two addresses, host or device.
    ///
    /// # Errors
    /// The driver's answer.
    ///
    /// # Safety
    /// Both ranges are valid until it is complete.
    unsafe fn copy(stream: &Self::Stream, to: u64, from: u64, bytes: usize) -> Result<(), Fault>;
    /// Enqueues a fill with one byte.
    ///
    /// # Errors
    /// The driver's answer.
    ///
    /// # Safety
    /// The range is valid until it is complete.
    unsafe fn fill(stream: &Self::Stream, to: u64, byte: u8, bytes: usize) -> Result<(), Fault>;
    /// The point after everything enqueued so far.
    ///
    /// # Errors
    /// The driver's answer.
    fn record(stream: &Self::Stream) -> Result<Self::Event, Fault>;
    /// Whether events can tell the time between them.
    const TIMED: bool = false;
    /// As [`record`](Self::record), for [`elapsed`](Self::elapsed).
    ///
    /// # Errors
    /// The driver's answer.
    fn record_timed(stream: &Self::Stream) -> Result<Self::Event, Fault> {
        Self::record(stream)
    }
    /// The time on the device between two events of [`record_timed`](Self::record_timed) that have passed, of one
    /// device.
    ///
    /// # Errors
    /// The driver's answer; a backend whose events take no time says so.
    fn elapsed(_from: &Self::Event, _to: &Self::Event) -> Result<Duration, Fault> {
        Err(Fault::new("elapsed", 0, format!("events of the {} backend take no time", Self::NAME)))
    }
    /// Makes what is enqueued on `stream` from now on wait for `event`, of any stream.
    ///
    /// # Errors
    /// The driver's answer.
    fn wait_event(stream: &Self::Stream, event: &Self::Event) -> Result<(), Fault>;
    /// Whether what is enqueued on `stream` now is captured into a graph instead.
    ///
    /// # Errors
    /// The driver's answer.
    fn is_capturing(_stream: &Self::Stream) -> Result<bool, Fault> {
        Ok(false)
    }
    /// Begins to capture what this thread enqueues on `stream`.
    ///
    /// # Errors
    /// The driver's answer; a backend without graphs says so.
    fn begin_capture(_stream: &Self::Stream) -> Result<(), Fault> {
        Err(Fault::new("capture", 0, format!("the {} backend has no graphs", Self::NAME)))
    }
    /// Ends it.
    ///
    /// # Errors
    /// The driver's answer, also where something ended the capture before.
    fn end_capture(_stream: &Self::Stream) -> Result<Self::Graph, Fault> {
        Err(Fault::new("capture", 0, format!("the {} backend has no graphs", Self::NAME)))
    }
    /// Enqueues what was captured, on any stream of the device.
    ///
    /// # Errors
    /// The driver's answer.
    ///
    /// # Safety
    /// As for the calls that were captured, each time.
    unsafe fn launch_graph(_stream: &Self::Stream, _graph: &Self::Graph) -> Result<(), Fault> {
        Err(Fault::new("capture", 0, format!("the {} backend has no graphs", Self::NAME)))
    }
    /// The profiler that shows ranges of this program's time, if one does: each call is one then, while it is enqueued. Asked
    /// in every call, so the answer is kept.
    fn profiler() -> Option<&'static dyn Profiler> {
        None
    }
    /// Blocks until the event has passed; false if `deadline` passed first.
    ///
    /// # Errors
    /// The driver's answer.
    fn wait(event: &Self::Event, deadline: Option<Instant>) -> Result<bool, Fault>;
}

//! A backend that is no part of crossccl: one file of Rust and one of C++, which see of the crate what every other program
//! does. Eight devices of heap memory, whose owner the machine knows; a stream is a thread that takes its work from a
//! channel, a launch a thread a block. It is for the tests, and for reading: see `crossccl::guide::backends`.

use std::{
    collections::BTreeMap,
    ffi::{CString, c_char},
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use crossccl::{Arguments, Backend, Fault, Kernel, Link, MAX_BLOCKS, MemoryKind, Properties, Unfit};

const DEVICES: usize = 8;

/// The backend.
#[derive(Clone, Copy, Debug)]
pub struct Toy;

/// One of the machine's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToyDevice(usize);

/// Runs one block to its end on the calling thread.
type Entry = unsafe extern "C" fn(*const Arguments, u32, u32);

/// A kernel.
#[derive(Clone, Copy, Debug)]
pub struct ToyFunction(Entry);

unsafe extern "C" {
    fn crossccl_toy_kernel(name: *const c_char) -> Option<Entry>;
    fn crossccl_toy_arguments_bytes() -> usize;
}

/// A line of memory, as aligned as memory must be.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u64; 16]);

struct Owned {
    device: ToyDevice,
    kind: MemoryKind,
    lines: Vec<Line>,
}

/// Whose memory is whose, by address.
static MEMORY: Mutex<BTreeMap<u64, Owned>> = Mutex::new(BTreeMap::new());

/// Nothing panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An ordered queue of work: a thread ends with its last clone, when all of it is done.
#[derive(Clone)]
pub struct ToyStream(Arc<Stream>);

struct Stream {
    device: ToyDevice,
    work: Sender<Box<dyn FnOnce() + Send>>,
}

impl PartialEq for ToyStream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for ToyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToyStream({:p} of device {})", Arc::as_ptr(&self.0), self.0.device.0)
    }
}

impl ToyStream {
    fn enqueue(&self, work: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
        self.0.work.send(Box::new(work)).map_err(|_| Fault::new("enqueue", 0, "the stream's thread is gone"))
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, Fault> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| Fault::new("thread", e.raw_os_error().unwrap_or(0).into(), e.to_string()))
}

/// A value that is set once, and can be waited for: an event when it has passed, whether a block may begin.
#[derive(Debug)]
struct Once<T> {
    value: Mutex<Option<T>>,
    changed: Condvar,
}

impl<T: Copy> Once<T> {
    fn new() -> Arc<Self> {
        Arc::new(Once { value: Mutex::new(None), changed: Condvar::new() })
    }

    fn set(&self, value: T) {
        *lock(&self.value) = Some(value);
        self.changed.notify_all();
    }

    fn wait(&self, deadline: Option<Instant>) -> Option<T> {
        let mut value = lock(&self.value);
        loop {
            if value.is_some() {
                return *value;
            }
            let left = match deadline {
                None => Duration::from_secs(3600),
                Some(deadline) => deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?,
            };
            value = self.changed.wait_timeout(value, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A point in a stream: when it was passed.
#[derive(Clone, Debug)]
pub struct ToyEvent(Arc<Once<Instant>>);

// SAFETY: memory is vectors of its own, zeroed, aligned by their elements' type and dropped when it is given back; a
// stream's one thread does its work in order and sets an event when it comes to it; kernels are found by name.
unsafe impl Backend for Toy {
    const NAME: &'static str = "toy";
    type Device = ToyDevice;
    type Stream = ToyStream;
    type Event = ToyEvent;
    type Function = ToyFunction;
    type Entered = ();
    type Graph = std::convert::Infallible;
    const TIMED: bool = true;

    fn device_count() -> Result<usize, Fault> {
        Ok(DEVICES)
    }

    fn open(ordinal: usize) -> Result<ToyDevice, Fault> {
        if ordinal < DEVICES { Ok(ToyDevice(ordinal)) } else { Err(Fault::new("open", 1, "no such device")) }
    }

    fn ordinal(device: &ToyDevice) -> usize {
        device.0
    }

    fn properties(device: &ToyDevice, _ranks: usize, _sharing: usize) -> Result<Properties, Fault> {
        // kTile, and the rate of clock_ticks.
        let mut properties = Properties::new(format!("toy {}", device.0), 4 << 10, 1_000_000);
        // kLeastTile
        properties.least_tile = 1 << 10;
        // Several, where the CPU has one.
        properties.preferred_blocks.broadcast = 3;
        properties.preferred_blocks.reduce_scatter = 2;
        properties.coherent = true;
        properties.emulated = true;
        Ok(properties)
    }

    fn can_access_peer(_from: &ToyDevice, _to: &ToyDevice) -> Result<bool, Fault> {
        Ok(true)
    }

    fn link(from: &ToyDevice, to: &ToyDevice) -> Result<Link, Fault> {
        Ok(if from == to { Link::Memory } else { Link::Bus { atomics: Some(true), class: 1 } })
    }

    fn enable_peer_access(_from: &ToyDevice, _to: &ToyDevice) -> Result<(), Fault> {
        Ok(())
    }

    fn check_memory(device: &ToyDevice, _peers: &[&ToyDevice], address: u64, bytes: usize) -> Result<(), Unfit> {
        let memory = lock(&MEMORY);
        let wrong =
            |got: String| Unfit::Wrong { expected: format!("{bytes} bytes in the memory of device {}", device.0), got };
        let Some((start, owned)) = memory.range(..=address).next_back() else {
            return Err(wrong(format!("{address:#x}, which no device gave")));
        };
        let room = (start + size_of_val(&owned.lines[..]) as u64).saturating_sub(address);
        match owned.device {
            _ if room < bytes as u64 => Err(wrong(format!("{room} at {address:#x}"))),
            owner if owner != *device => Err(wrong(format!("memory of device {}", owner.0))),
            _ => Ok(()),
        }
    }

    fn allocate(device: &ToyDevice, kind: MemoryKind, bytes: usize) -> Result<u64, Fault> {
        let count = bytes.div_ceil(size_of::<Line>());
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).map_err(|e| Fault::new("allocate", 12, format!("{bytes} bytes: {e}")))?;
        lines.resize(count, Line([0; 16]));
        let address = lines.as_mut_ptr() as u64;
        lock(&MEMORY).insert(address, Owned { device: *device, kind, lines });
        Ok(address)
    }

    unsafe fn free(device: &ToyDevice, kind: MemoryKind, address: u64, _bytes: usize) {
        let owned = lock(&MEMORY).remove(&address);
        debug_assert!(owned.is_some_and(|o| (o.device, o.kind) == (*device, kind)), "{address:#x} is given back");
    }

    fn load(_device: &ToyDevice) -> Result<Vec<ToyFunction>, Fault> {
        // SAFETY: a constant.
        let theirs = unsafe { crossccl_toy_arguments_bytes() };
        if theirs != size_of::<Arguments>() {
            return Err(Fault::new("load", 0, "the kernels are of another version of crossccl"));
        }
        Kernel::all()
            .map(|kernel| {
                let name = CString::new(kernel.name()).map_err(|e| Fault::new("load", 0, e.to_string()))?;
                // SAFETY: a string that ends with a zero.
                let entry = unsafe { crossccl_toy_kernel(name.as_ptr()) };
                entry.map(ToyFunction).ok_or_else(|| Fault::new("load", 0, format!("no kernel {}", kernel.name())))
            })
            .collect()
    }

    fn resident_blocks(_device: &ToyDevice, _function: ToyFunction) -> Result<u32, Fault> {
        Ok(MAX_BLOCKS)
    }

    fn enter(_device: &ToyDevice) -> Result<(), Fault> {
        Ok(())
    }

    fn create_stream(device: &ToyDevice) -> Result<ToyStream, Fault> {
        let (work, taken) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        spawn("toy stream", move || taken.into_iter().for_each(|job| job()))?;
        Ok(ToyStream(Arc::new(Stream { device: *device, work })))
    }

    fn device_of(stream: &ToyStream) -> ToyDevice {
        stream.0.device
    }

    unsafe fn launch(
        stream: &ToyStream,
        _kernel: Kernel,
        function: ToyFunction,
        blocks: u32,
        arguments: &Arguments,
    ) -> Result<(), Fault> {
        let arguments = Arc::new(arguments.clone());
        let run = move |arguments: &Arguments, block| {
            // SAFETY: the kernel reads its arguments while it runs; what they point to is valid by the caller's promise.
            unsafe { function.0(arguments, block, blocks) }
        };
        // All but the first have a thread each from now on, so that a thread too few is an error and no wait.
        let begin = Once::new();
        let others: Result<Vec<_>, Fault> = (1..blocks)
            .map(|block| {
                let (begin, arguments) = (begin.clone(), arguments.clone());
                spawn("toy block", move || {
                    if begin.wait(None) == Some(true) {
                        run(&arguments, block);
                    }
                })
            })
            .collect();
        let others = others.inspect_err(|_| begin.set(false))?;
        stream.enqueue(move || {
            begin.set(true);
            run(&arguments, 0);
            others.into_iter().for_each(|other| drop(other.join()));
        })
    }

    unsafe fn copy(stream: &ToyStream, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise; the two may overlap.
        stream.enqueue(move || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) })
    }

    unsafe fn fill(stream: &ToyStream, to: u64, byte: u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        stream.enqueue(move || unsafe { std::ptr::write_bytes(to as *mut u8, byte, bytes) })
    }

    fn record(stream: &ToyStream) -> Result<ToyEvent, Fault> {
        let event = ToyEvent(Once::new());
        let passed = event.clone();
        stream.enqueue(move || passed.0.set(Instant::now()))?;
        Ok(event)
    }

    fn elapsed(from: &ToyEvent, to: &ToyEvent) -> Result<Duration, Fault> {
        let now = Some(Instant::now());
        match (from.0.wait(now), to.0.wait(now)) {
            (Some(from), Some(to)) => Ok(to.saturating_duration_since(from)),
            _ => Err(Fault::new("elapsed", 1, "an event has not passed")),
        }
    }

    fn wait_event(stream: &ToyStream, event: &ToyEvent) -> Result<(), Fault> {
        let event = event.clone();
        stream.enqueue(move || _ = event.0.wait(None))
    }

    fn wait(event: &ToyEvent, deadline: Option<Instant>) -> Result<bool, Fault> {
        Ok(event.0.wait(deadline).is_some())
    }
}

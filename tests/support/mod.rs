//! What the suites share: guarded buffers, random data, the naive oracle.

#![allow(dead_code)]

pub(crate) mod axes;
#[cfg(feature = "rocm")]
pub(crate) mod emulator;
pub(crate) mod oracle;
pub(crate) mod program;

use std::{
    cell::Cell,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossccl::{Algorithm, Backend, Buffer, Builder, Communicator, DType, RankComm, Slice, SliceMut, Untyped};

/// Elements of guard before and after every buffer.
const GUARD: usize = 32;
const GUARD_BYTE: u8 = 0xA5;
/// What outputs hold before a call, so that an element that was not written shows.
pub(crate) const POISON_BYTE: u8 = 0xAB;

/// The most ranks that the tests put on one device: beyond, their streams would share the device's queues, in
/// which one rank's kernel waits behind another's that waits for it.
const RANKS_ON_ONE_DEVICE: usize = 8;

/// Whether the communicators and guarded buffers of the test whose turn it is are of coherent memory.
static COHERENT: AtomicBool = AtomicBool::new(false);

/// Makes this test's communicators offer `algorithm`: the direct broadcast takes coherent memory, which ordinary memory
/// is not on every backend. All other tests keep to ordinary memory, as callers do.
pub(crate) fn memory_for(algorithm: Algorithm) {
    COHERENT.store(algorithm == Algorithm::TwoStageDirect, Ordering::Relaxed);
}

/// What `CROSSCCL_REQUIRE` asks of this backend, and whether its devices may be emulated: `hip:8` is for hardware alone,
/// `hip-emulated:8` takes any.
fn required<B: Backend>() -> Option<(usize, bool)> {
    let text = std::env::var("CROSSCCL_REQUIRE").ok()?;
    let (backend, devices) = text.split_once(':')?;
    let emulated = backend.strip_suffix("-emulated");
    (emulated.unwrap_or(backend) == B::NAME)
        .then(|| (devices.parse().expect("CROSSCCL_REQUIRE: a backend, a colon, a number"), emulated.is_some()))
}

/// Whether the devices are played by software. One answers for all.
pub(crate) fn is_emulated<B: Backend>() -> bool {
    B::open(0).and_then(|device| B::properties(&device, 1, 1)).is_ok_and(|properties| properties.emulated)
}

/// How often something is done where software plays the devices, or else.
pub(crate) fn as_often<B: Backend>(by_software: usize, by_hardware: usize) -> usize {
    if B::NAME == "cpu" || is_emulated::<B>() { by_software } else { by_hardware }
}

/// Whether a test of `ranks` ranks can run on this machine, and its turn: on backends with real devices, tests take
/// turns. A test that cannot is told of in one line (SKIPPED), and so is one on devices that are no hardware (EMULATED);
/// `scripts/gpu-tests` and `scripts/count-tests` count both. With `CROSSCCL_REQUIRE=cuda:8` (a backend, and how many
/// devices of it) it fails instead.
pub(crate) fn turn<B: Backend>(ranks: usize) -> Option<Option<MutexGuard<'static, ()>>> {
    static TURN: Mutex<()> = Mutex::new(());
    #[cfg(feature = "rocm")]
    if B::NAME == "hip" {
        emulator::load();
    }
    let (devices, why) = match B::device_count() {
        Ok(count) => (count, format!("{count} devices")),
        Err(fault) => (0, format!("{}: {}", fault.call, fault.name)),
    };
    let emulated = devices > 0 && is_emulated::<B>();
    if let Some((needed, may_be_emulated)) = required::<B>() {
        assert!(devices >= needed, "CROSSCCL_REQUIRE asks for {needed} devices of {}: {why}", B::NAME);
        assert!(
            may_be_emulated || !emulated,
            "CROSSCCL_REQUIRE asks for hardware: the {why} of {} are emulated",
            B::NAME
        );
    }
    if devices == 0 || ranks > devices * RANKS_ON_ONE_DEVICE {
        println!("SKIPPED {} with {ranks} ranks: {why}", B::NAME);
        return None;
    }
    if emulated {
        println!("EMULATED {} with {ranks} ranks", B::NAME);
    }
    // The CPU's devices are as many as asked for, and so are its tests at a time.
    let turn = (B::NAME != "cpu").then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    memory_for(Algorithm::Auto);
    Some(turn)
}

/// Stamps the suite once for each backend; `path` says where it stands.
#[allow(unused_macros)]
macro_rules! for_each_backend {
    ($($(#[$attribute:meta])* $name:ident: $backend:ty $(, which has $more:ident)?;)*) => { $(
        $(#[$attribute])*
        mod $name {
            pub(crate) type B = $backend;
            mod arguments;
            mod broadcast;
            mod cases;
            mod epilogue;
            mod failures;
            mod graphs;
            mod missing;
            mod numbers;
            mod packets;
            mod programs;
            mod rank_arguments;
            mod ranks;
            mod recovery;
            mod reduce_scatter;
            mod stress;
            $(mod $more;)?
        }
    )* };
}

/// To begin a test with: leaves it where its devices are missing.
#[allow(unused_macros)]
macro_rules! needs_device {
    () => {
        needs_device!(1)
    };
    ($ranks:expr) => {
        let Some(_turn) = crate::support::turn::<B>($ranks) else { return };
    };
}

/// Around tests that drive several ranks by one call, or by one thread: not for inline streams, with which there is no
/// such thing (`matrix.rs`, where this is another one then).
#[allow(unused_macros)]
macro_rules! one_call {
    ($($tests:tt)*) => { $($tests)* };
}

thread_local!(static INLINE: Cell<bool> = const { Cell::new(false) });

/// While it lives, the communicators that this thread builds have inline streams.
pub(crate) struct Inline(());

impl Drop for Inline {
    fn drop(&mut self) {
        INLINE.set(false);
    }
}

pub(crate) fn inline_streams() -> Inline {
    INLINE.set(true);
    Inline(())
}

/// The device that stands for `wanted`.
pub(crate) fn device<B: Backend>(wanted: usize) -> B::Device {
    B::open(wanted % B::device_count().expect("a device")).expect("device")
}

/// A builder for ranks on these devices: on a machine that has fewer, they stand for those that it has, in turn.
pub(crate) fn builder<B: Backend>(devices: impl IntoIterator<Item = usize>) -> Builder<B> {
    let count = B::device_count().expect("a device");
    let wanted: Vec<usize> = devices.into_iter().collect();
    let shared = wanted.iter().any(|d| *d >= count);
    Communicator::builder(wanted.into_iter().map(|d| d % count))
        .virtual_ranks(shared)
        .inline_streams(INLINE.get())
        .coherent_buffers(COHERENT.load(Ordering::Relaxed))
}

/// A communicator whose waits end soon: a test that hangs is a failure with a name.
pub(crate) fn communicator<B: Backend>(ranks: usize) -> Communicator<B> {
    builder::<B>(0..ranks).timeout(Duration::from_secs(20)).build().expect("communicator")
}

/// The same, one handle a rank, with a short limit for tests of missing ranks.
pub(crate) fn rank_handles<B: Backend>(ranks: usize, limit: Duration) -> Vec<RankComm<B>> {
    builder::<B>(0..ranks).timeout(limit).build().expect("communicator").into_ranks()
}

/// Runs `body` for every rank on a thread of its own.
pub(crate) fn on_threads<B: Backend, R: Send>(
    ranks: &[RankCell<B>],
    body: impl Fn(usize, &RankComm<B>) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ranks
            .iter()
            .enumerate()
            .map(|(rank, cell)| scope.spawn(move || body(rank, &cell.0.lock().expect("one thread a rank"))))
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

/// Handles are not `Sync`; a lock lends each to its thread.
pub(crate) struct RankCell<B: Backend>(std::sync::Mutex<RankComm<B>>);

impl<B: Backend> RankCell<B> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, RankComm<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn cells<B: Backend>(ranks: Vec<RankComm<B>>) -> Vec<RankCell<B>> {
    ranks.into_iter().map(|r| RankCell(std::sync::Mutex::new(r))).collect()
}

/// A buffer between guards, `offset` elements away from where a vector would be aligned.
pub(crate) struct Guarded<B: Backend> {
    pub(crate) buffer: Buffer<B, Untyped>,
    start: usize,
    pub(crate) len: usize,
}

impl<B: Backend> Guarded<B> {
    pub(crate) fn new(stream: &B::Stream, dtype: DType, len: usize, offset: usize) -> Self {
        Self::with(stream, dtype, &vec![POISON_BYTE; len * dtype.size()], offset)
    }

    pub(crate) fn with(stream: &B::Stream, dtype: DType, data: &[u8], offset: usize) -> Self {
        let len = data.len() / dtype.size();
        let new = if COHERENT.load(Ordering::Relaxed) { Buffer::coherent_with_dtype } else { Buffer::with_dtype };
        let mut buffer = new(stream, dtype, GUARD + offset + len + GUARD).expect("buffer");
        let mut bytes = vec![GUARD_BYTE; buffer.size_in_bytes()];
        let (from, to) = ((GUARD + offset) * dtype.size(), (GUARD + offset + len) * dtype.size());
        bytes[from..to].copy_from_slice(data);
        buffer.write_bytes(&bytes).expect("write");
        Guarded { buffer, start: GUARD + offset, len }
    }

    pub(crate) fn set(&mut self, data: &[u8]) {
        let mut bytes = vec![0; self.buffer.size_in_bytes()];
        self.buffer.read_bytes(&mut bytes).expect("read");
        let from = self.start * self.buffer.dtype().size();
        bytes[from..from + data.len()].copy_from_slice(data);
        self.buffer.write_bytes(&bytes).expect("write");
    }

    pub(crate) fn input(&self) -> Slice<'_, B, Untyped> {
        self.buffer.slice(self.start..self.start + self.len).expect("inside")
    }

    /// Of the first element between the guards.
    pub(crate) fn address(&self) -> u64 {
        self.buffer.address() + (self.start * self.buffer.dtype().size()) as u64
    }

    pub(crate) fn output(&mut self) -> SliceMut<'_, B, Untyped> {
        self.buffer.slice_mut(self.start..self.start + self.len).expect("inside")
    }

    /// The data; panics where a guard was overwritten (I13).
    pub(crate) fn data(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.buffer.size_in_bytes()];
        self.buffer.read_bytes(&mut bytes).expect("read");
        let size = self.buffer.dtype().size();
        let (from, to) = (self.start * size, (self.start + self.len) * size);
        if let Some(at) = (0..from).chain(to..bytes.len()).find(|i| bytes[*i] != GUARD_BYTE) {
            panic!("byte {at} outside {from}..{to} was overwritten with {:#x}", bytes[at]);
        }
        bytes[from..to].to_vec()
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.data().iter().all(|b| *b == POISON_BYTE)
    }
}

/// Splitmix64: small, good enough, the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[self.below(N)]
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Elements of every kind: any bits (NaN, infinities, huge), small numbers whose sums are
    /// interesting, denormals, zeros of both signs.
    pub(crate) fn elements(&mut self, dtype: DType, count: usize) -> Vec<u8> {
        let size = dtype.size();
        let mut bytes = Vec::with_capacity(count * size);
        let (sign, one): (u64, u64) = match dtype {
            DType::F16 => (1 << 15, 0x3c00),
            DType::BF16 => (1 << 15, 0x3f80),
            DType::F32 => (1 << 31, 0x3f80_0000),
            DType::F64 => (1 << 63, 0x3ff0_0000_0000_0000),
            _ => (0, 0),
        };
        for _ in 0..count {
            let r = self.next();
            let value = if sign == 0 {
                r >> 8
            } else {
                let bits = self.next();
                match r % 16 {
                    0 => bits,
                    1 => bits & sign,
                    2 => bits & (sign | 0x7f),
                    // Around 1, with any mantissa, of both signs.
                    _ => (bits & sign) | (one + (bits & (sign >> 1)) / 64),
                }
            };
            bytes.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        bytes
    }
}

/// Says where two byte strings of elements differ first.
pub(crate) fn assert_same(what: &str, dtype: DType, got: &[u8], expected: &[u8]) {
    assert_eq!(got.len(), expected.len(), "{what}: lengths");
    let size = dtype.size();
    if got == expected {
        return;
    }
    let wrong: Vec<usize> =
        (0..got.len() / size).filter(|i| got[i * size..][..size] != expected[i * size..][..size]).collect();
    if let Some(first) = wrong.first() {
        let at = first * size..(first + 1) * size;
        panic!(
            "{what}: {} of {} elements wrong, the first at {first}: got {:02x?}, expected {:02x?} (little endian)",
            wrong.len(),
            got.len() / size,
            &got[at.clone()],
            &expected[at]
        );
    }
}

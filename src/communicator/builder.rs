//! Setting up a communicator: devices, peer access, signal buffers, kernels, the peer self-test.

use std::{
    collections::BTreeSet,
    marker::PhantomData,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize},
    time::Duration,
    time::Instant,
};

use super::{Communicator, RankShared, RankState, Shared};
use crate::{
    abi::{LINE, MAX_BLOCKS, MAX_RANKS, VECTOR, control},
    backend::{Backend, Fault, Link, MemoryKind, Unfit, memory::Allocation, process},
    buffer::Buffer,
    collective::{Agreement, invalid},
    error::{Error, Result},
    plan::{Blocks, Facts, Kernel, Packets, Planner, Topology, Tuning, topology::Way},
    rank::Rank,
    raw,
    signal::{SignalLayout, domain_sizes, low_latency_bytes, signal_buffer_bytes},
};

const OPERATION: &str = "communicator";
/// How long the peer self-test may take: its kernels wait for nobody.
const SELF_TEST_LIMIT: Duration = Duration::from_secs(10);

/// Options of a communicator that is being built.
#[derive(Debug)]
pub struct Builder<B: Backend> {
    ordinals: Vec<usize>,
    devices: Vec<B::Device>,
    streams: Vec<B::Stream>,
    inline_streams: bool,
    signal_buffers: Vec<Buffer<B, u8>>,
    /// Addresses and bytes of the caller's, who promised what `signal_addresses` asks.
    signal_addresses: Vec<(u64, usize)>,
    virtual_ranks: bool,
    limit: Option<Duration>,
    max_blocks: u32,
    payload_bytes: usize,
    coherent_buffers: bool,
    agreement: Agreement,
    topology: Option<Topology>,
    tuning: Option<Tuning>,
    _backend: PhantomData<B>,
}

impl<B: Backend> Builder<B> {
    pub(super) fn new(ordinals: Vec<usize>) -> Self {
        Builder {
            ordinals,
            devices: Vec::new(),
            streams: Vec::new(),
            inline_streams: false,
            signal_buffers: Vec::new(),
            signal_addresses: Vec::new(),
            virtual_ranks: false,
            limit: Some(Duration::from_secs(30)),
            max_blocks: MAX_BLOCKS,
            payload_bytes: 2 << 20,
            coherent_buffers: false,
            agreement: Agreement::default(),
            topology: None,
            tuning: None,
            _backend: PhantomData,
        }
    }

    /// Devices that are open already, one a rank, instead of the ordinals.
    pub fn devices(mut self, devices: impl IntoIterator<Item = B::Device>) -> Self {
        self.devices = devices.into_iter().collect();
        self
    }

    /// Streams of your own, one a rank. Default: new ones.
    pub fn streams(mut self, streams: impl IntoIterator<Item = B::Stream>) -> Self {
        self.streams = streams.into_iter().collect();
        self
    }

    /// Streams whose work is done by the thread that waits for it, and by nobody else, for one thread a rank: a short
    /// collective is then over without another thread being woken up. What a thread has called is begun when it
    /// waits (or drops the [`InFlight`](crate::InFlight), or reads a buffer), and its peers wait for that. Each rank is
    /// called for by a thread of its own, by [`into_ranks`](Communicator::into_ranks): one that waits for one rank does
    /// nothing for the others, so that calls for all ranks are [`Error::Unsupported`], and so is a call for a
    /// rank by a thread that has not waited for what it called for another. What cannot be seen beforehand ends with
    /// [`Error::Timeout`]. Default: false. Streams that are given are taken as they are.
    pub fn inline_streams(mut self, inline: bool) -> Self {
        self.inline_streams = inline;
        self
    }

    /// Signal buffers of your own, one a rank, each of at least
    /// [`signal_buffer_bytes`] bytes and, where [`Properties::coherent`](crate::Properties::coherent) is false, made by
    /// [`Buffer::coherent`]. Default: new ones. They are zeroed.
    pub fn signal_buffers(mut self, buffers: impl IntoIterator<Item = Buffer<B, u8>>) -> Self {
        self.signal_buffers = buffers.into_iter().collect();
        self
    }

    /// The same by address, for an engine that allocates them itself: address and bytes, one a rank, aligned to 128. They are
    /// zeroed; nothing of them has to be registered.
    ///
    /// # Safety
    /// Each is memory of its rank's device that the peers' devices can read and write, coherent while kernels run (where
    /// [`Properties::coherent`](crate::Properties::coherent) is false: fine-grained or uncached). Until the communicator and
    /// everything that was made of it is dropped, it stays so, and nobody else uses it: after a stream that did not come to
    /// rest by then, for good.
    #[allow(unsafe_code)]
    pub unsafe fn signal_addresses(mut self, addresses: impl IntoIterator<Item = (u64, usize)>) -> Self {
        self.signal_addresses = addresses.into_iter().collect();
        self
    }

    /// Allows several ranks on one device. Default: that is an error, since it is a mistake more
    /// often than not.
    pub fn virtual_ranks(mut self, allowed: bool) -> Self {
        self.virtual_ranks = allowed;
        self
    }

    /// How long a rank waits for another before it fails; `None` waits for ever. Default: 30 s.
    pub fn timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.limit = limit.into();
        self
    }

    /// The most blocks that any call may ask for, from 1 to [`MAX_BLOCKS`]. Default: that.
    pub fn max_blocks(mut self, blocks: u32) -> Self {
        self.max_blocks = blocks;
        self
    }

    /// Bytes of each signal buffer that the staged two-stage broadcast uses as its two halves, rounded
    /// down to two whole vectors; 0 turns that algorithm off. Default: 2 MiB.
    pub fn payload_bytes(mut self, bytes: usize) -> Self {
        self.payload_bytes = bytes;
        self
    }

    /// Offers the direct two-stage broadcast where ordinary memory is not coherent between devices while kernels run:
    /// the communicator makes its buffers of coherent memory instead, which is slower for all else. Outputs
    /// of that broadcast that come from elsewhere must be by [`Buffer::coherent`], which is checked, or, as addresses,
    /// be such memory (fine-grained or uncached), which cannot be: else a rank may read what was there before.
    /// Default: false. Changes nothing where ordinary memory is coherent.
    pub fn coherent_buffers(mut self, coherent: bool) -> Self {
        self.coherent_buffers = coherent;
        self
    }

    /// Which peers must agree before a rank touches anything, where a call does not say.
    pub fn agreement(mut self, agreement: Agreement) -> Self {
        self.agreement = agreement;
        self
    }

    /// How the devices are joined, where that is known better than drivers and tuning files tell it: what
    /// [`Algorithm::Auto`](crate::Algorithm::Auto) and the number of slices follow from. Default: as found.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Measured rows that decide before the file that `CROSSCCL_TUNING` names, which does before what is built in. What
    /// they choose is chosen for all ranks. Default: none of the program's own.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = Some(tuning);
        self
    }

    /// Opens the devices, enables and tests peer access between every ordered pair, allocates, and
    /// loads every kernel.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for options out of range; [`Error::NoDevice`] without devices;
    /// [`Error::PeerAccess`] or [`Error::PeerSelfTest`] for pairs that cannot reach each other;
    /// [`Error::SignalMemoryNotCoherent`] where signals would not be seen;
    /// [`Error::Unsupported`] where a variable of the environment, which it names, makes launches wait for their kernels,
    /// and for inline streams on a backend that has none;
    /// [`Error::Tuning`] for a tuning file that cannot be used;
    /// [`Error::Driver`] for what the driver refused. Nothing stays behind.
    pub fn build(mut self) -> Result<Communicator<B>> {
        self.check()?;
        let tuning = match self.tuning.take() {
            Some(own) => own.over(Tuning::of_environment()?),
            None => Tuning::of_environment()?,
        };
        process::count_forks();
        let devices = self.open()?;
        let ranks = devices.len();
        if ranks > 1
            && let Some(variable) = B::blocking_launches()
        {
            let what =
                format!("{variable}: each launch would wait for its kernel, and that for the other ranks'; unset it");
            return Err(Error::Unsupported { operation: OPERATION, what });
        }
        connect::<B>(&devices)?;
        let layout = SignalLayout::new(ranks, self.max_blocks);
        let payload_half = self.payload_bytes as u64 / 2 / VECTOR * VECTOR;
        let needed = signal_buffer_bytes(ranks, self.max_blocks, 2 * payload_half as usize);
        self.check_own_objects(&devices, needed)?;

        let mut shared = Vec::with_capacity(ranks);
        let mut apart = true;
        let (mut names, mut host) = (Vec::with_capacity(ranks), true);
        let capacity = low_latency_bytes(ranks) as u64;
        let mut packets = Packets { capacity, broadcast: u64::MAX, reduce_scatter: u64::MAX, tile: u64::MAX };
        let (mut default_blocks, mut resident, mut coherent) = (Blocks::MOST, Blocks::MOST, true);
        let (mut tile, mut least_tile, mut one_block) = (0, 0, 0);
        let mut known_faults = BTreeSet::new();
        for (rank, device) in devices.iter().enumerate() {
            let error = |f| driver_error::<B>(device, rank, f);
            let sharing = devices.iter().filter(|d| *d == device).count() as u32;
            apart &= sharing == 1;
            let properties = B::properties(device, ranks, sharing as usize).map_err(error)?;
            let functions = B::load(device).map_err(error)?;
            for (kernel, function) in Kernel::all().zip(&functions) {
                resident.limit(kernel, B::resident_blocks(device, *function).map_err(error)? / sharing);
            }
            default_blocks = default_blocks.min(properties.preferred_blocks);
            (tile, least_tile) = (properties.tile, properties.least_tile);
            one_block = properties.one_block.max(one_block);
            packets = packets.min(properties.packets);
            coherent &= properties.coherent;
            known_faults.extend(properties.known_faults);
            // Blocks of one thread are threads of the machine's processors.
            host &= properties.threads <= 1;
            let stream = match self.streams.get(rank) {
                Some(stream) => stream.clone(),
                None if self.inline_streams => B::create_inline_stream(device).map_err(error)?,
                None => B::create_stream(device).map_err(error)?,
            };
            let signal = match self.signal_buffers.get(rank) {
                None if !self.signal_addresses.is_empty() => self.signal_of_caller(rank, device),
                Some(buffer) if !properties.coherent && buffer.memory().kind() != MemoryKind::Signal => {
                    return Err(Error::SignalMemoryNotCoherent {
                        backend: B::NAME,
                        device: B::ordinal(device),
                        rank: Some(Rank::from_index(rank)),
                        reason: "the signal buffer given is ordinary memory".into(),
                    });
                }
                Some(buffer) => buffer.memory().clone(),
                None => Allocation::new(device, MemoryKind::Signal, needed).map_err(error)?,
            };
            // A stream of the caller's may hold work that does not end.
            let rest = B::record(&stream).map_err(error)?;
            if !B::wait(&rest, Some(Instant::now() + SELF_TEST_LIMIT)).map_err(error)? {
                return Err(Error::Busy {
                    operation: OPERATION,
                    what: format!(
                        "the stream given for rank {rank} does not come to rest; finish the work in it first"
                    ),
                });
            }
            signal.fill(&stream, 0).map_err(error)?;
            let control = Allocation::new(device, MemoryKind::Host, control::BYTES as usize).map_err(error)?;
            shared.push(RankShared {
                device: device.clone(),
                stream,
                signal,
                control,
                functions,
                ticks_per_second: properties.ticks_per_second.max(1),
                caller: AtomicU64::new(0),
                launched: domain_sizes(ranks).iter().map(|_| AtomicU64::new(0)).collect(),
                uncounted: AtomicBool::new(false),
                callers: AtomicUsize::new(1),
                gone: AtomicU8::new(0),
                state: std::sync::Mutex::new(RankState::new()),
            });
            names.push(properties.name);
        }
        let buffers = if self.coherent_buffers && !coherent { MemoryKind::Signal } else { MemoryKind::Device };
        let coherent_as_is = coherent;
        coherent |= self.coherent_buffers;
        let facts = Facts {
            default_blocks,
            resident,
            max_blocks: self.max_blocks,
            payload_half,
            tile,
            least_tile,
            one_block,
            packets,
            coherent,
            coherent_as_is,
            apart,
        };
        let mut planner = Planner::new(facts, detect::<B>(&devices, host)).tuning(&tuning, &names);
        planner.topology = self.topology.unwrap_or(planner.topology);
        let shared = Shared {
            ranks: shared,
            layout,
            domains: domain_sizes(ranks),
            planner,
            buffers,
            limit: self.limit,
            agreement: self.agreement,
            turn: Default::default(),
            poison: Default::default(),
            poisoned: AtomicBool::new(false),
            any_gone: AtomicBool::new(false),
            process: process::forks(),
            generation: AtomicU64::new(0),
            rendezvous: Default::default(),
            arrived: Default::default(),
        };
        self_test(&shared)?;
        for fault in known_faults {
            tracing::warn!(target: "crossccl", backend = B::NAME, "known to be wrong with this driver: {fault}");
        }
        tracing::debug!(target: "crossccl", backend = B::NAME, ranks, facts = ?shared.planner.facts, topology = ?shared.planner.topology, "communicator");
        Ok(Communicator { shared: Arc::new(shared) })
    }

    fn check(&self) -> Result<()> {
        let ranks = if self.devices.is_empty() { self.ordinals.len() } else { self.devices.len() };
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(invalid(OPERATION, None, "devices", format!("1 to {MAX_RANKS}"), ranks));
        }
        if self.max_blocks == 0 || self.max_blocks > MAX_BLOCKS {
            return Err(invalid(OPERATION, None, "max_blocks", format!("1 to {MAX_BLOCKS}"), self.max_blocks));
        }
        if self.limit.is_some_and(|l| l.is_zero()) {
            return Err(invalid(OPERATION, None, "timeout", "more than zero (or None)", "0 s"));
        }
        if self.inline_streams && !B::INLINE {
            let what = format!("the {} backend has no inline streams; leave inline_streams out", B::NAME);
            return Err(Error::Unsupported { operation: OPERATION, what });
        }
        if self.payload_bytes > 1 << 40 {
            return Err(invalid(OPERATION, None, "payload_bytes", "at most 1 TiB", self.payload_bytes));
        }
        if !self.signal_buffers.is_empty() && !self.signal_addresses.is_empty() {
            return Err(invalid(OPERATION, None, "signal_addresses", "none, there being signal_buffers", "both"));
        }
        let given = [
            ("streams", self.streams.len()),
            ("signal_buffers", self.signal_buffers.len()),
            ("signal_addresses", self.signal_addresses.len()),
        ];
        for (argument, n) in given {
            if n != 0 && n != ranks {
                return Err(invalid(OPERATION, None, argument, format!("one for each of the {ranks} ranks"), n));
            }
        }
        Ok(())
    }

    fn open(&self) -> Result<Vec<B::Device>> {
        let mut devices = self.devices.clone();
        if devices.is_empty() {
            let no_device = |reason: String| Error::NoDevice { backend: B::NAME, reason };
            let count = B::device_count().map_err(|f| no_device(format!("{}: {}", f.call, f.name)))?;
            if count == 0 {
                return Err(no_device("the driver knows no device".into()));
            }
            for (rank, ordinal) in self.ordinals.iter().enumerate() {
                if *ordinal >= count {
                    let expected = format!("one of the {count} {} devices, numbered from 0", B::NAME);
                    return Err(invalid(OPERATION, Some(rank), "device", expected, ordinal));
                }
                devices.push(B::open(*ordinal).map_err(|f| Error::Driver {
                    backend: B::NAME,
                    call: f.call,
                    device: *ordinal,
                    rank: Some(Rank::from_index(rank)),
                    code: f.code,
                    name: f.name,
                })?);
            }
        }
        for (rank, device) in devices.iter().enumerate() {
            if !self.virtual_ranks && devices[..rank].contains(device) {
                let expected = "a device of its own (or virtual_ranks(true), which lets ranks share one)";
                return Err(invalid(
                    OPERATION,
                    Some(rank),
                    "device",
                    expected,
                    format!("device {} again", B::ordinal(device)),
                ));
            }
        }
        Ok(devices)
    }

    /// The signal buffer that the caller gave the address of.
    #[allow(unsafe_code)]
    fn signal_of_caller(&self, rank: usize, device: &B::Device) -> Arc<Allocation<B>> {
        let (address, bytes) = self.signal_addresses[rank];
        // SAFETY: the promise of who called `signal_addresses`; the number of them was checked, and each of them.
        unsafe { Allocation::of_caller(device, MemoryKind::Signal, address, bytes) }
    }

    fn check_own_objects(&self, devices: &[B::Device], needed: usize) -> Result<()> {
        for (rank, device) in devices.iter().enumerate() {
            let expected = format!("one on the rank's device {}", B::ordinal(device));
            let elsewhere = |stream: &B::Stream| {
                let other = raw::elsewhere::<B>(device, stream).map_err(|f| driver_error::<B>(device, rank, f))?;
                Ok(other.map(|other| format!("one on device {other}")))
            };
            if let Some(got) = self.streams.get(rank).map(&elsewhere).transpose()?.flatten() {
                return Err(invalid(OPERATION, Some(rank), "stream", expected, got));
            }
            if let Some((address, bytes)) = self.signal_addresses.get(rank) {
                check_signal_address::<B>(devices, rank, *address, *bytes, needed)?;
            }
            let Some(buffer) = self.signal_buffers.get(rank) else { continue };
            if buffer.memory().is_in_flight() || buffer.memory().is_borrowed() {
                return Err(Error::Busy {
                    operation: OPERATION,
                    what: format!(
                        "a collective may still use the signal buffer given for rank {rank}; give another one"
                    ),
                });
            }
            if let Some(got) = elsewhere(buffer.stream())? {
                return Err(invalid(OPERATION, Some(rank), "signal buffer", expected, got));
            }
            if buffer.size_in_bytes() < needed {
                let expected = format!("at least {needed} bytes (see signal_buffer_bytes)");
                return Err(invalid(
                    OPERATION,
                    Some(rank),
                    "signal buffer",
                    expected,
                    format!("{} bytes", buffer.size_in_bytes()),
                ));
            }
        }
        raw::check_streams::<B>(OPERATION, &self.streams, |rank, fault| driver_error::<B>(&devices[rank], rank, fault))
    }
}

/// What can be seen of a signal buffer of the caller's.
fn check_signal_address<B: Backend>(
    devices: &[B::Device],
    rank: usize,
    address: u64,
    bytes: usize,
    needed: usize,
) -> Result<()> {
    let wrong = |expected: String, got: String| Err(invalid(OPERATION, Some(rank), "signal buffer", expected, got));
    if address == 0 || !address.is_multiple_of(LINE) {
        return wrong(format!("an address aligned to {LINE} bytes"), format!("{address:#x}"));
    }
    if bytes < needed {
        return wrong(format!("at least {needed} bytes (see signal_buffer_bytes)"), format!("{bytes} bytes"));
    }
    let peers: Vec<&B::Device> = devices.iter().collect();
    B::check_memory(&devices[rank], &peers, address, bytes).or_else(|unfit| match unfit {
        Unfit::Wrong { expected, got } => wrong(expected, got),
        Unfit::Unknown(fault) => Err(driver_error::<B>(&devices[rank], rank, fault)),
        Unfit::Unreachable { peer, reason } => Err(Error::NotPeerAccessible {
            operation: OPERATION,
            rank: Rank::from_index(rank),
            argument: "signal buffer",
            peer: Rank::from_index(peer),
            reason,
        }),
    })
}

fn driver_error<B: Backend>(device: &B::Device, rank: usize, fault: Fault) -> Error {
    if let Some(feature) = fault.no_kernels {
        return Error::NotCompiled { feature, kernels: true };
    }
    if fault.not_coherent {
        return Error::not_coherent::<B>(device, Some(Rank::from_index(rank)), &fault);
    }
    Error::Driver {
        backend: B::NAME,
        call: fault.call,
        device: B::ordinal(device),
        rank: Some(Rank::from_index(rank)),
        code: fault.code,
        name: fault.name,
    }
}

/// How the devices are joined. What a driver does not tell is taken for the slowest: it costs speed, nothing else.
fn detect<B: Backend>(devices: &[B::Device], host: bool) -> Topology {
    let mut different: Vec<&B::Device> = Vec::new();
    for device in devices {
        if !different.contains(&device) {
            different.push(device);
        }
    }
    let way = |a: &B::Device, b: &B::Device| match B::link(a, b) {
        Ok(Link::Memory) => Way::Memory,
        Ok(Link::Direct { lanes, rate }) => Way::Direct { lanes, rate },
        Ok(Link::Bus { .. }) => Way::Bus,
        // Which plans are made is all that depends on it.
        Err(fault) => {
            tracing::debug!(target: "crossccl", backend = B::NAME, call = fault.call, name = fault.name, "a link is not known");
            Way::Bus
        }
    };
    let pairs = different.iter().enumerate().flat_map(|(at, a)| different[at + 1..].iter().map(move |b| (a, b)));
    let ways: Vec<Way> = pairs.map(|(a, b)| way(a, b)).collect();
    Topology::detected(devices.len(), different.len(), host, &ways)
}

/// Peer access for every ordered pair.
fn connect<B: Backend>(devices: &[B::Device]) -> Result<()> {
    for (from, a) in devices.iter().enumerate() {
        for (to, b) in devices.iter().enumerate() {
            if a == b {
                continue;
            }
            let refused =
                |reason: String| Error::PeerAccess { from: Rank::from_index(from), to: Rank::from_index(to), reason };
            match B::can_access_peer(a, b) {
                Ok(true) => {
                    B::enable_peer_access(a, b).map_err(|f| refused(format!("{} failed: {}", f.call, f.name)))?
                }
                Ok(false) => return Err(refused("the driver reports no peer access".into())),
                Err(f) => return Err(refused(format!("{} failed: {}", f.call, f.name))),
            }
        }
    }
    Ok(())
}

/// What `probe_pattern` of `kernels-common/self_test.h` gives.
fn probe_pattern(from: usize, to: usize) -> u64 {
    0x9e37_79b9_7f4a_7c15u64.wrapping_mul((from * MAX_RANKS + to + 1) as u64)
}

/// Some machines report peer access and drop or corrupt the traffic (case D2): every ordered pair
/// writes a pattern and reads it back.
fn self_test<B: Backend>(shared: &Shared<B>) -> Result<()> {
    let deadline = Instant::now() + SELF_TEST_LIMIT;
    raw::self_test(shared, Kernel::SelfTestWrite, deadline)?;
    raw::self_test(shared, Kernel::SelfTestRead, deadline)?;
    let ranks = shared.ranks.len();
    for (rank, me) in shared.ranks.iter().enumerate() {
        let mut words = vec![0; 16 * ranks];
        me.signal
            .read(&me.stream, shared.layout.probe(0, 0) as usize, &mut words)
            .map_err(|f| shared.driver_error(rank, f))?;
        let word = |half: usize, peer: usize| {
            let at = 8 * (half * ranks + peer);
            words[at..at + 8].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b))
        };
        for peer in 0..ranks {
            let error = |from, to| Error::PeerSelfTest { from: Rank::from_index(from), to: Rank::from_index(to) };
            if word(0, peer) != probe_pattern(peer, rank) {
                return Err(error(peer, rank));
            }
            if word(1, peer) != probe_pattern(rank, peer) {
                return Err(error(rank, peer));
            }
        }
    }
    Ok(())
}

//! Where things stand in a signal buffer, and how large one is.

use smallvec::SmallVec;

use crate::abi::{
    HEADER_UNITS, INBOX_SLOTS, LINE, MAX_RANKS, MOST_PACKET_BYTES, PHASES, RECORD_SLOTS, TUNED_RANKS, UNIT,
};

/// Group sizes that have a domain of their own, the world first: the divisors of `ranks`. Groups of one
/// rank have no peers, but epochs of their own all the same.
/// Two scopes never share flags or epochs (I8); sibling groups have different signal buffers.
pub(crate) fn domain_sizes(ranks: usize) -> SmallVec<[usize; 12]> {
    (1..=ranks).rev().filter(|size| ranks.is_multiple_of(*size)).collect()
}

/// What a launch is told of it; see `Places` in `kernels-common/abi.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Places {
    pub(crate) cause: u64,
    pub(crate) probe: u64,
    pub(crate) domain: u64,
    pub(crate) records: u64,
    pub(crate) flags: u64,
    pub(crate) inbox: u64,
    pub(crate) slot: u64,
    pub(crate) payload: u64,
}

/// Byte offsets in a signal buffer; see `SignalLayout` in `kernels-common/abi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalLayout {
    pub(crate) cause: u64,
    pub(crate) probe: u64,
    pub(crate) domain: u64,
    pub(crate) domain_stride: u64,
    pub(crate) records: u64,
    pub(crate) flags: u64,
    pub(crate) inbox: u64,
    pub(crate) slot: u64,
    pub(crate) payload: u64,
    pub(crate) world: u64,
    pub(crate) domains: u64,
}

impl SignalLayout {
    pub(crate) fn new(world: usize, max_blocks: u32) -> Self {
        let lines = |bytes: u64| bytes.div_ceil(LINE) * LINE;
        let (ranks, domains) = (world as u64, domain_sizes(world).len() as u64);
        let cause = lines(ranks * 8);
        let probe = cause + ranks * LINE;
        let domain = probe + lines(ranks * 16);
        let records = 4 * LINE + lines(ranks * 8);
        let flags = records + ranks * RECORD_SLOTS * LINE;
        let domain_stride = flags + lines(PHASES * u64::from(max_blocks) * ranks * 8);
        let inbox = domain + domains * domain_stride;
        let slot = lines(2 * (HEADER_UNITS * UNIT + packet_capacity(world)));
        // The last domain is that of groups of one rank.
        let payload = inbox + inboxes_before(world, domains as usize - 1) * INBOX_SLOTS * slot;
        SignalLayout {
            cause,
            probe,
            domain,
            domain_stride,
            records,
            flags,
            inbox,
            slot,
            payload,
            world: ranks,
            domains,
        }
    }

    /// For a launch of a domain.
    pub(crate) fn places(&self, domain: usize) -> Places {
        let at = self.epoch(domain as u64);
        let inboxes = inboxes_before(self.world as usize, domain);
        Places {
            cause: self.cause,
            probe: self.probe,
            domain: at,
            records: at + self.records,
            flags: at + self.flags,
            inbox: self.inbox + inboxes * INBOX_SLOTS * self.slot,
            slot: self.slot,
            payload: self.payload,
        }
    }

    pub(crate) fn probe(&self, half: u64, rank: usize) -> u64 {
        self.probe + (half * self.world + rank as u64) * 8
    }

    pub(crate) fn epoch(&self, domain: u64) -> u64 {
        self.domain + domain * self.domain_stride
    }

    pub(crate) fn sequence(&self, domain: u64) -> u64 {
        self.epoch(domain) + LINE
    }

    pub(crate) fn ticket(&self, domain: u64) -> u64 {
        self.epoch(domain) + 2 * LINE
    }

    /// How many packet launches there were.
    pub(crate) fn packets(&self, domain: u64) -> u64 {
        self.epoch(domain) + 3 * LINE
    }

    /// The peers' acknowledgements of packets, a word each.
    pub(crate) fn acks(&self, domain: u64) -> u64 {
        self.epoch(domain) + 4 * LINE
    }
}

/// Inboxes of the domains before `domain`, at most: the domains' sizes are divisors of the world.
fn inboxes_before(world: usize, domain: usize) -> u64 {
    (1..=domain).map(|k| (world / k) as u64).sum()
}

/// Bytes of data that one slot of an inbox takes.
fn packet_capacity(world: usize) -> u64 {
    let ranks = (world as u64).max(TUNED_RANKS);
    MOST_PACKET_BYTES * TUNED_RANKS * TUNED_RANKS / (ranks * ranks) / UNIT * UNIT
}

/// Bytes that [`Algorithm::LowLatency`](crate::Algorithm::LowLatency) can move from one rank to another in a
/// communicator of `ranks` ranks: a broadcast's whole message, a reduce-scatter's largest part.
///
/// ```
/// assert_eq!(crossccl::low_latency_bytes(8), 64 << 10);
/// ```
pub fn low_latency_bytes(ranks: usize) -> usize {
    packet_capacity(ranks.clamp(1, MAX_RANKS)) as usize
}

/// Bytes that the signal buffer of each rank needs: for a communicator of `ranks` ranks whose
/// launches have at most `max_blocks` blocks and that stages `payload_bytes` (see
/// [`Builder::payload_bytes`](crate::Builder::payload_bytes)).
///
/// Arguments beyond the limits ([`MAX_RANKS`], [`MAX_BLOCKS`](crate::MAX_BLOCKS)) are taken as the
/// limits; the builder refuses them.
///
/// ```
/// assert!(crossccl::signal_buffer_bytes(8, 64, 0) <= 4 << 20);
/// ```
pub fn signal_buffer_bytes(ranks: usize, max_blocks: u32, payload_bytes: usize) -> usize {
    let layout = SignalLayout::new(ranks.clamp(1, MAX_RANKS), max_blocks.clamp(1, crate::abi::MAX_BLOCKS));
    usize::try_from(layout.payload).unwrap_or(usize::MAX).saturating_add(payload_bytes)
}

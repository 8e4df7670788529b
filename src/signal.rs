//! Where things stand in a signal buffer, and how large one is.

use smallvec::SmallVec;

use crate::abi::{LINE, MAX_RANKS, PHASES, RECORD_SLOTS};

/// Group sizes that have a domain of their own, the world first: the divisors of `ranks`. Groups of one
/// rank have no peers, but epochs of their own all the same.
/// Two scopes never share flags or epochs (I8); sibling groups have different signal buffers.
pub(crate) fn domain_sizes(ranks: usize) -> SmallVec<[usize; 12]> {
    (1..=ranks).rev().filter(|size| ranks.is_multiple_of(*size)).collect()
}

/// Byte offsets in a signal buffer; see `SignalLayout` in `kernels-common/abi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalLayout {
    pub(crate) cause: u64,
    pub(crate) probe: u64,
    pub(crate) domain: u64,
    pub(crate) domain_stride: u64,
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
        let flags = 3 * LINE + ranks * RECORD_SLOTS * LINE;
        let domain_stride = flags + lines(PHASES * u64::from(max_blocks) * ranks * 8);
        let payload = domain + domains * domain_stride;
        SignalLayout { cause, probe, domain, domain_stride, payload, world: ranks, domains }
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

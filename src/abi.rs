//! The Rust side of `kernels-common/abi.h`, which owns every fact here; the tests below compare
//! them through a probe that the CPU's kernels export.

use crate::signal::Places;

/// The most ranks of one communicator. 8 is the tuned range.
pub const MAX_RANKS: usize = 64;
/// The most blocks of one launch.
pub const MAX_BLOCKS: u32 = 128;
pub(crate) const RECORD_SLOTS: u64 = 2;
pub(crate) const PHASES: u64 = 2;
pub(crate) const LINE: u64 = 128;
/// Chunk starts are multiples of this many bytes, relative to the buffer.
pub const VECTOR: u64 = 16;

pub(crate) const INBOX_SLOTS: u64 = 2;
/// Bytes of data that one access of two packets moves.
pub(crate) const UNIT: u64 = 8;
pub(crate) const HEADER_UNITS: u64 = 4;
pub(crate) const MOST_PACKET_BYTES: u64 = 64 << 10;
pub(crate) const TUNED_RANKS: u64 = 8;

pub(crate) const TIMEOUT: u64 = 1;
pub(crate) const MISMATCH: u64 = 2;
pub(crate) const ABORTED: u64 = 3;
pub(crate) const POISONED: u64 = 4;

/// Arguments of every kernel. A backend hands them on as they are, these `size_of::<Arguments>()` bytes, by address or by
/// value: a launch keeps a copy, since the caller's is gone when it begins.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Arguments {
    pub(crate) signal: [u64; MAX_RANKS],
    pub(crate) control: u64,
    pub(crate) at: Places,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) domain: u32,
    pub(crate) max_blocks: u32,
    pub(crate) world: u32,
    pub(crate) world_rank: u32,
    pub(crate) strict: u64,
    pub(crate) call: u64,
    pub(crate) limit: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) count: u64,
    pub(crate) shape_hash: u64,
    pub(crate) packed: u64,
    pub(crate) fingerprint: u64,
    pub(crate) bytes: u64,
    pub(crate) segment: u64,
    pub(crate) payload_half: u64,
    pub(crate) rounds: u32,
    pub(crate) root: u32,
    pub(crate) outer: u64,
    pub(crate) run: u64,
    pub(crate) stride: u64,
    pub(crate) offset: u64,
    pub(crate) average: u32,
    pub(crate) form: u32,
    pub(crate) residual: u64,
    pub(crate) factor: u64,
    pub(crate) overlap: u64,
    pub(crate) cuts: [u32; MAX_RANKS + 2],
}

impl Default for Arguments {
    fn default() -> Self {
        Arguments {
            signal: [0; MAX_RANKS],
            control: 0,
            at: Places::default(),
            rank: 0,
            ranks: 0,
            domain: 0,
            max_blocks: 0,
            world: 0,
            world_rank: 0,
            strict: 0,
            call: 0,
            limit: 0,
            input: 0,
            output: 0,
            count: 0,
            shape_hash: 0,
            packed: 0,
            fingerprint: 0,
            bytes: 0,
            segment: 0,
            payload_half: 0,
            rounds: 1,
            root: 0,
            outer: 0,
            run: 0,
            stride: 0,
            offset: 0,
            average: 0,
            form: form::PLAIN,
            residual: 0,
            factor: 0,
            overlap: 0,
            cuts: [0; MAX_RANKS + 2],
        }
    }
}

/// What a sum becomes (`Form` in abi.h).
pub(crate) mod form {
    pub(crate) const PLAIN: u32 = 0;
    pub(crate) const TO_F16: u32 = 1;
    pub(crate) const TO_BF16: u32 = 2;
    pub(crate) const TO_F32: u32 = 3;
    pub(crate) const TO_F64: u32 = 4;
}

/// Byte offsets in the control structure of a rank (`Control`, `Failure`, `Observed` in abi.h).
pub(crate) mod control {
    pub(crate) const BYTES: u64 = FAILURE + 128 + super::MAX_RANKS as u64 * OBSERVED_BYTES;
    pub(crate) const STATE: u64 = 0;
    pub(crate) const ABORT: u64 = super::LINE;
    pub(crate) const FAILURE: u64 = 2 * super::LINE;
    pub(crate) const CALL: u64 = FAILURE;
    pub(crate) const EPOCH: u64 = FAILURE + 8;
    pub(crate) const MISSING: u64 = FAILURE + 32;
    pub(crate) const TICKS: u64 = FAILURE + 40;
    /// `kind` in the low half, `peer` in the high half.
    pub(crate) const KIND_PEER: u64 = FAILURE + 48;
    /// `phase` in the low half, `domain` in the high half.
    pub(crate) const PHASE_DOMAIN: u64 = FAILURE + 56;
    pub(crate) const OBSERVED: u64 = FAILURE + 128;
    pub(crate) const OBSERVED_BYTES: u64 = 32;
}

/// What the ranks must agree on besides count and shape, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) collective: u8,
    pub(crate) dtype: u8,
    pub(crate) op: u8,
    pub(crate) algorithm: u8,
    pub(crate) root: u8,
    pub(crate) blocks: u16,
    pub(crate) slices: u8,
}

impl Packed {
    pub(crate) fn to_word(self) -> u64 {
        let [b0, b1] = self.blocks.to_le_bytes();
        u64::from_le_bytes([self.collective, self.dtype, self.op, self.algorithm, self.root, b0, b1, self.slices])
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let [collective, dtype, op, algorithm, root, b0, b1, slices] = word.to_le_bytes();
        Packed { collective, dtype, op, algorithm, root, blocks: u16::from_le_bytes([b0, b1]), slices }
    }
}

/// A 64-bit hash of words that is the same on every machine (multiply and fold, a word at a time: each
/// call takes it for each rank, and a byte at a time it was half of what the library itself adds to a launch).
pub(crate) fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for word in words {
        h = (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h ^= h >> 32;
    }
    h
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;
    use crate::{
        backend::cpu::driver::probe,
        plan::{
            Overlap,
            chunk::{balanced, chunk},
        },
        signal::SignalLayout,
    };

    /// I10: every size, offset and limit is the same on both sides.
    #[test]
    fn i10_structures_and_limits_mirror_the_header() {
        let expected: &[(u32, u64, &str)] = &[
            (0, size_of::<Arguments>() as u64, "sizeof(Arguments)"),
            (1, control::BYTES, "sizeof(Control)"),
            (2, control::OBSERVED - control::FAILURE, "sizeof(Failure)"),
            (3, LINE, "sizeof(Record)"),
            (4, MAX_RANKS as u64, "kMaxRanks"),
            (5, u64::from(MAX_BLOCKS), "kMaxBlocks"),
            (6, VECTOR, "kVector"),
            (10, offset_of!(Arguments, control) as u64, "Arguments::control"),
            (11, offset_of!(Arguments, rank) as u64, "Arguments::rank"),
            (55, offset_of!(Arguments, at) as u64, "Arguments::at"),
            (12, offset_of!(Arguments, strict) as u64, "Arguments::strict"),
            (13, offset_of!(Arguments, call) as u64, "Arguments::call"),
            (14, offset_of!(Arguments, fingerprint) as u64, "Arguments::fingerprint"),
            (15, offset_of!(Arguments, bytes) as u64, "Arguments::bytes"),
            (16, offset_of!(Arguments, rounds) as u64, "Arguments::rounds"),
            (17, offset_of!(Arguments, outer) as u64, "Arguments::outer"),
            (18, offset_of!(Arguments, average) as u64, "Arguments::average"),
            (19, offset_of!(Arguments, factor) as u64, "Arguments::factor"),
            (20, control::ABORT, "Control::abort"),
            (21, control::FAILURE, "Control::failure"),
            (22, control::OBSERVED, "Control::observed"),
            (23, control::MISSING - control::FAILURE, "Failure::missing"),
            (24, control::KIND_PEER - control::FAILURE, "Failure::kind"),
            (25, control::PHASE_DOMAIN - control::FAILURE + 12, "Failure::rank"),
            (26, control::OBSERVED_BYTES - 8, "Observed::packed"),
            (27, u64::from(form::TO_F16), "kToF16"),
            (28, u64::from(form::TO_BF16), "kToBF16"),
            (29, u64::from(form::TO_F32), "kToF32"),
            (35, u64::from(form::TO_F64), "kToF64"),
            (36, offset_of!(Arguments, overlap) as u64, "Arguments::overlap"),
            (37, Overlap::AtEnd as u64, "kReleaseAtEnd"),
            (38, Overlap::AtBeginning as u64, "kReleaseAtBeginning"),
            (44, offset_of!(Arguments, cuts) as u64, "Arguments::cuts"),
            (45, INBOX_SLOTS, "kInboxSlots"),
            (46, UNIT, "kUnit"),
            (47, HEADER_UNITS, "kHeaderUnits"),
            (39, Overlap::AtEndWithoutWait as u64, "kReleaseAtEndWithoutWait"),
        ];
        for (what, value, name) in expected {
            assert_eq!(probe(*what, 0, 1, 0), *value, "{name}");
        }
        let device = <crate::Cpu as crate::Backend>::open(0).unwrap();
        let properties = <crate::Cpu as crate::Backend>::properties(&device, 1, 1).unwrap();
        assert_eq!(probe(7, 0, 1, 0), properties.tile, "kTile");
        assert_eq!(probe(8, 0, 1, 0), properties.least_tile, "kLeastTile");
    }

    #[test]
    fn i10_layouts_agree_for_every_number_of_ranks() {
        for ranks in 1..=MAX_RANKS {
            for blocks in [1, 7, MAX_BLOCKS] {
                let l = SignalLayout::new(ranks, blocks);
                let ours = [l.cause, l.probe, l.domain, l.domain_stride, l.payload];
                let more = [l.inbox, l.slot, crate::low_latency_bytes(ranks) as u64, l.records, l.flags];
                for (what, value) in (30..).zip(ours).chain((48..).zip(more)) {
                    assert_eq!(
                        probe(what, ranks as u64, l.domains as u32, blocks),
                        value,
                        "{ranks} ranks, field {what}"
                    );
                }
                for domain in 0..l.domains as u32 {
                    let p = l.places(domain as usize);
                    let ours = [p.cause, p.probe, p.domain, p.records, p.flags, p.inbox, p.slot, p.payload];
                    for (what, value) in (60..).zip(ours) {
                        let theirs = probe(what, (ranks as u64) << 32 | l.domains, domain, blocks);
                        assert_eq!(theirs, value, "{ranks} ranks, domain {domain}, place {what}");
                    }
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn chunk_arithmetic_agrees(n in 0u64..1 << 45, parts in 1u32..=64, index in 0u32..64) {
            let index = index % parts;
            let (a, b) = (balanced(n, parts.into(), index.into()), chunk(n, parts.into(), index.into()));
            let theirs: Vec<u64> = (40..44).map(|what| probe(what, n, parts, index)).collect();
            proptest::prop_assert_eq!(theirs, vec![a.start, a.end, b.start, b.end]);
        }
    }
}

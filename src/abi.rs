//! The Rust side of `kernels-common/abi.h`, which owns every fact here; the tests below compare them one by one with what the
//! CPU's kernels export.

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
        backend::cpu::driver::{facts, probe},
        plan::{
            Overlap,
            chunk::{balanced, chunk},
            request,
        },
        signal::SignalLayout,
    };

    /// What of the header the host has no copy of: phases and waits of kernels, the order of a record's fields, padding, and how
    /// often flags are stamped anew.
    const KERNELS_ALONE: [&str; 19] = [
        "kRestamp",
        "kStaged",
        "kDone",
        "kForHeader",
        "kForPackets",
        "kForAck",
        "kNone",
        "kFingerprint",
        "kCount",
        "kShapeHash",
        "kPacked",
        "kInput",
        "kOutput",
        "kFields",
        "Record::words",
        "Control::pad",
        "Control::pad2",
        "Failure::wanted",
        "Failure::seen",
    ];

    /// The host's copy of everything in the header, by the header's names.
    fn ours() -> Vec<(&'static str, u64)> {
        let device = <crate::Cpu as crate::Backend>::open(0).unwrap();
        let properties = <crate::Cpu as crate::Backend>::properties(&device, 1, 1).unwrap();
        let mut ours = vec![
            ("kMaxRanks", MAX_RANKS as u64),
            ("kMaxBlocks", MAX_BLOCKS.into()),
            ("kRecordSlots", RECORD_SLOTS),
            ("kLine", LINE),
            ("kVector", VECTOR),
            ("kInboxSlots", INBOX_SLOTS),
            ("kUnit", UNIT),
            ("kHeaderUnits", HEADER_UNITS),
            ("kMostPacketBytes", MOST_PACKET_BYTES),
            ("kTunedRanks", TUNED_RANKS),
            ("kPhases", PHASES),
            ("kBroadcast", request::BROADCAST.into()),
            ("kReduceScatter", request::REDUCE_SCATTER.into()),
            ("kPlain", form::PLAIN.into()),
            ("kToF16", form::TO_F16.into()),
            ("kToBF16", form::TO_BF16.into()),
            ("kToF32", form::TO_F32.into()),
            ("kToF64", form::TO_F64.into()),
            ("kNoOverlap", Overlap::Off as u64),
            ("kReleaseAtEnd", Overlap::AtEnd as u64),
            ("kReleaseAtBeginning", Overlap::AtBeginning as u64),
            ("kReleaseAtEndWithoutWait", Overlap::AtEndWithoutWait as u64),
            ("kTimeout", TIMEOUT),
            ("kMismatch", MISMATCH),
            ("kAborted", ABORTED),
            ("kPoisoned", POISONED),
            ("kTile", properties.tile),
            ("kLeastTile", properties.least_tile),
            ("sizeof(Record)", LINE),
            ("sizeof(Failure)", control::OBSERVED - control::FAILURE),
            ("Failure::call", control::CALL - control::FAILURE),
            ("Failure::epoch", control::EPOCH - control::FAILURE),
            ("Failure::missing", control::MISSING - control::FAILURE),
            ("Failure::ticks", control::TICKS - control::FAILURE),
            ("Failure::kind", control::KIND_PEER - control::FAILURE),
            ("Failure::peer", control::KIND_PEER - control::FAILURE + 4),
            ("Failure::phase", control::PHASE_DOMAIN - control::FAILURE),
            ("Failure::domain", control::PHASE_DOMAIN - control::FAILURE + 4),
            ("Failure::block", control::PHASE_DOMAIN - control::FAILURE + 8),
            ("Failure::rank", control::PHASE_DOMAIN - control::FAILURE + 12),
            ("sizeof(Observed)", control::OBSERVED_BYTES),
            ("Observed::stamp", 0),
            ("Observed::count", 8),
            ("Observed::shape_hash", 16),
            ("Observed::packed", 24),
            ("sizeof(Control)", control::BYTES),
            ("Control::state", control::STATE),
            ("Control::abort", control::ABORT),
            ("Control::failure", control::FAILURE),
            ("Control::observed", control::OBSERVED),
            ("sizeof(Places)", size_of::<Places>() as u64),
            ("sizeof(Arguments)", size_of::<Arguments>() as u64),
        ];
        macro_rules! fields {
            ($($of:ident: $($field:ident)*;)*) => {
                $($(ours.push((concat!(stringify!($of), "::", stringify!($field)), offset_of!($of, $field) as u64));)*)*
            };
        }
        fields! {
            Places: cause probe domain records flags inbox slot payload;
            Arguments: signal control at rank ranks domain max_blocks world world_rank strict call limit input output count
                shape_hash packed fingerprint bytes segment payload_half rounds root outer run stride offset average form
                residual factor overlap cuts;
        }
        ours
    }

    /// Each place where the two sides differ.
    fn differences(theirs: &[(String, u64)]) -> Vec<String> {
        let ours = ours();
        let mut found = Vec::new();
        for (name, value) in theirs.iter().filter(|(name, _)| !KERNELS_ALONE.contains(&name.as_str())) {
            match ours.iter().find(|(ours, _)| ours == name) {
                None => found.push(format!("{name}: the host has none")),
                Some((_, ours)) if ours != value => found.push(format!("{name}: {value}, and {ours} on the host")),
                Some(_) => {}
            }
        }
        let lost = ours.iter().filter(|(name, _)| !theirs.iter().any(|(theirs, _)| theirs == name));
        found.extend(lost.map(|(name, _)| format!("{name}: the header has none")));
        found
    }

    /// I10: every constant, size and offset is the same on both sides, and a change of any single one is seen.
    #[test]
    fn i10_structures_and_limits_mirror_the_header() {
        let theirs = facts();
        assert_eq!(differences(&theirs), Vec::<String>::new());
        for (at, (name, _)) in theirs.iter().enumerate() {
            let mut changed = theirs.clone();
            changed[at].1 += 1;
            let seen = differences(&changed);
            let alone = KERNELS_ALONE.contains(&name.as_str());
            assert!(
                if alone { seen.is_empty() } else { seen.len() == 1 && seen[0].starts_with(name) },
                "{name}: {seen:?}"
            );
        }
    }

    /// Nothing in the header is left out of the comparison: constants, enumerators and fields, by the header's text.
    #[test]
    fn i10_the_comparison_has_all_of_the_header() {
        let header = include_str!("../kernels-common/abi.h");
        let names: Vec<String> = facts().into_iter().map(|(name, _)| name).collect();
        let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        let mut of = String::new();
        let mut seen = 0;
        for line in header.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
            let mut found = Vec::new();
            if let Some(constant) = line.strip_prefix("constexpr ") {
                found.extend(constant.split(' ').nth(1).map(word).filter(|name| name.starts_with('k')));
            } else if line.starts_with("struct ") && line.ends_with('{') {
                of = line.trim_end_matches([' ', '{']).rsplit(' ').next().unwrap_or_default().to_owned();
                if of != "SignalLayout" {
                    found.push(format!("sizeof({of})"));
                }
            } else if line == "};" {
                of.clear();
            } else if !of.is_empty() && of != "SignalLayout" && line.ends_with(';') {
                let fields = line.trim_end_matches(';').split_once(' ').map_or("", |(_, fields)| fields);
                found.extend(fields.split(", ").map(|field| format!("{of}::{}", word(field))));
            } else if of.is_empty() && !line.starts_with("static_assert") && !line.contains('(') {
                let inside = line.rsplit('{').next().unwrap_or_default();
                let enumerators = inside.split([',', '}']).map(|one| word(one.trim()));
                found.extend(enumerators.filter(|name| name.starts_with('k') && name.len() > 1));
            }
            for name in found {
                assert!(names.contains(&name), "{name} is in abi.h, and not in kFacts of kernels-cpu/kernels.cc");
                seen += 1;
            }
        }
        assert!(seen >= 90, "only {seen} were found in the header");
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

//! How a message is cut. Mirrors `balanced` and `chunk` of `kernels-common/copy.h`; the tests of
//! `src/abi.rs` compare the two.

use std::ops::Range;

#[cfg(test)]
use crate::abi::VECTOR;

/// Units that part `index` of `parts` gets: balanced, the first ones get the remainder one unit each.
pub(crate) fn balanced(units: u64, parts: u64, index: u64) -> Range<u64> {
    let (each, more) = (units / parts, units % parts);
    let begin = index * each + index.min(more);
    begin..begin + each + u64::from(index < more)
}

/// Bytes of chunk `index`, as the kernels compute them (`chunk` in `kernels-common/copy.h`), when `bytes` are cut into `chunks`: whole vectors, the ragged end last.
#[cfg(test)]
pub(crate) fn chunk(bytes: u64, chunks: u64, index: u64) -> Range<u64> {
    let vectors = balanced(bytes.div_ceil(VECTOR), chunks, index);
    (vectors.start * VECTOR).min(bytes)..(vectors.end * VECTOR).min(bytes)
}

/// How a staged broadcast goes in rounds: `segment` bytes each, but the last, whose chunks all fit
/// in one payload half (I5: the only place that relates payload to message size).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    pub(crate) segment: u64,
    pub(crate) rounds: u64,
}

impl Rounds {
    /// `payload_half` is a multiple of a vector, at least one.
    pub(crate) fn new(bytes: u64, chunks: u64, payload_half: u64) -> Self {
        let segment = payload_half.saturating_mul(chunks);
        Rounds { segment, rounds: bytes.div_ceil(segment).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// I4: chunks cover the message exactly once, start on vectors, and are balanced.
        #[test]
        fn chunks_cover_exactly_once(bytes in 0u64..1 << 40, chunks in 1u64..=64) {
            let mut at = 0;
            let mut sizes = (u64::MAX, 0);
            for index in 0..chunks {
                let c = chunk(bytes, chunks, index);
                prop_assert_eq!(c.start, at);
                prop_assert!(c.start.is_multiple_of(VECTOR) || c.start == bytes);
                at = c.end;
                sizes = (sizes.0.min(c.end - c.start), sizes.1.max(c.end - c.start));
            }
            prop_assert_eq!(at, bytes);
            prop_assert!(sizes.1 - sizes.0 < 2 * VECTOR);
        }

        /// I5: no chunk of any round is longer than a payload half.
        #[test]
        fn rounds_fit_the_payload(bytes in 0u64..1 << 40, chunks in 1u64..=64, half in 1u64..1 << 20) {
            let half = half * VECTOR;
            let r = Rounds::new(bytes, chunks, half);
            prop_assert!(r.rounds * r.segment >= bytes && (r.rounds - 1) * r.segment <= bytes);
            for last in [bytes - (r.rounds - 1) * r.segment, r.segment.min(bytes)] {
                for index in 0..chunks {
                    let c = chunk(last, chunks, index);
                    prop_assert!(c.end - c.start <= half);
                }
            }
        }
    }

    /// Case B9: 127 bf16 over 8 ranks. All of the remainder on the last chunk would need 142 bytes.
    #[test]
    fn b9_no_chunk_exceeds_the_average_rounded_to_a_vector() {
        assert!((0..8).all(|i| chunk(254, 8, i).count() <= 32));
    }
}

//! Which part of a tensor each rank of a group gets.

use smallvec::SmallVec;

use super::chunk::balanced;

/// A shape: extents of a row-major tensor, the last axis contiguous.
pub(crate) type Shape = SmallVec<[u64; 6]>;

/// A tensor cut along one axis into one part a rank. The axis length is split evenly; the lower
/// ranks get the remainder one unit each; parts may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    outer: u64,
    axis: u64,
    inner: u64,
    ranks: u64,
}

/// The part of one rank: `outer` runs of `run` contiguous elements of the input, `stride` apart, the
/// first one `offset` elements from the start. In the output the runs stand back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// Number of runs.
    pub outer: u64,
    /// Elements of a run.
    pub run: u64,
    /// Elements from the start of one run to the start of the next.
    pub stride: u64,
    /// Elements before the first run.
    pub offset: u64,
}

impl Part {
    /// Elements of the part.
    pub fn count(&self) -> u64 {
        self.outer * self.run
    }
}

impl Partition {
    /// `None` where `axis` is not an axis of `shape`, there are no ranks, or the number of elements
    /// does not fit into 64 bits.
    pub fn new(shape: &[u64], axis: usize, ranks: usize) -> Option<Self> {
        let extent = *shape.get(axis)?;
        let product = |extents: &[u64]| extents.iter().try_fold(1u64, |n, e| n.checked_mul(*e));
        let (outer, inner) = (product(&shape[..axis])?, product(&shape[axis + 1..])?);
        outer.checked_mul(extent)?.checked_mul(inner)?;
        // With an outer extent of 0 the strides must fit all the same.
        extent.checked_mul(inner)?;
        (ranks > 0).then_some(Partition { outer, axis: extent, inner, ranks: ranks as u64 })
    }

    /// Elements of the whole tensor.
    pub fn count(&self) -> u64 {
        self.outer * self.axis * self.inner
    }

    /// The part of `rank`, which is below the number of ranks.
    pub fn part(&self, rank: usize) -> Part {
        let units = balanced(self.axis, self.ranks, rank as u64);
        Part {
            outer: self.outer,
            run: (units.end - units.start) * self.inner,
            stride: self.axis * self.inner,
            offset: units.start * self.inner,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_cover_exactly_once(shape in prop::collection::vec(0u64..6, 1..5), axis in 0usize..4, ranks in 1usize..9) {
            let axis = axis % shape.len();
            let p = Partition::new(&shape, axis, ranks).unwrap();
            let mut seen = vec![0; p.count() as usize];
            for rank in 0..ranks {
                let part = p.part(rank);
                for o in 0..part.outer {
                    for i in 0..part.run {
                        seen[(part.offset + o * part.stride + i) as usize] += 1;
                    }
                }
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
        }
    }

    #[test]
    fn lower_ranks_get_the_remainder_one_unit_each() {
        let p = Partition::new(&[10, 3], 0, 4).unwrap();
        assert_eq!((0..4).map(|r| p.part(r).run / 3).collect::<Vec<_>>(), [3, 3, 2, 2]);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        assert_eq!(Partition::new(&[1 << 40, 1 << 40], 0, 2), None);
        assert_eq!(Partition::new(&[0, 1 << 40, 1 << 40], 1, 2), None);
        assert_eq!(Partition::new(&[4], 1, 2), None);
        assert_eq!(Partition::new(&[4], 0, 0), None);
    }
}

//! Which part of a tensor each rank of a group gets.

use smallvec::SmallVec;

use super::chunk::balanced;

/// A shape: extents of a row-major tensor, the last axis contiguous.
pub(crate) type Shape = SmallVec<[u64; 6]>;

/// A tensor cut along one axis into one part a rank: evenly, the lower ranks getting the remainder one
/// unit each, or by given lengths. Parts may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    outer: u64,
    axis: u64,
    inner: u64,
    cuts: Cuts,
}

/// How the axis is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cuts {
    /// Among so many ranks.
    Even(u64),
    /// By what each rank gets.
    Lengths(SmallVec<[u64; 8]>),
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
        (ranks > 0).then_some(Partition { outer, axis: extent, inner, cuts: Cuts::Even(ranks as u64) })
    }

    /// The same tensor, `lengths[rank]` units of its axis for each rank. `None` where there are more or
    /// fewer lengths than ranks, or they do not add up to the extent of the axis.
    pub fn with_lengths(self, lengths: &[u64]) -> Option<Self> {
        let sum = lengths.iter().try_fold(0u64, |sum, l| sum.checked_add(*l))?;
        let cuts = Cuts::Lengths(SmallVec::from_slice(lengths));
        (sum == self.axis && lengths.len() == self.ranks()).then_some(Partition { cuts, ..self })
    }

    /// Number of parts.
    pub fn ranks(&self) -> usize {
        match &self.cuts {
            Cuts::Even(ranks) => *ranks as usize,
            Cuts::Lengths(lengths) => lengths.len(),
        }
    }

    /// Units of the axis that each rank gets, where that was given.
    pub fn lengths(&self) -> Option<&[u64]> {
        match &self.cuts {
            Cuts::Even(_) => None,
            Cuts::Lengths(lengths) => Some(lengths),
        }
    }

    /// Elements of the largest part.
    pub fn largest(&self) -> u64 {
        let units = match &self.cuts {
            Cuts::Even(ranks) => self.axis.div_ceil(*ranks),
            Cuts::Lengths(lengths) => lengths.iter().copied().max().unwrap_or(0),
        };
        self.outer * units * self.inner
    }

    /// Elements of the whole tensor.
    pub fn count(&self) -> u64 {
        self.outer * self.axis * self.inner
    }

    /// The part of `rank`, which is below the number of ranks.
    pub fn part(&self, rank: usize) -> Part {
        let units = match &self.cuts {
            Cuts::Even(ranks) => balanced(self.axis, *ranks, rank as u64),
            Cuts::Lengths(lengths) => {
                let start = lengths[..rank].iter().sum();
                start..start + lengths[rank]
            }
        };
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
            prop_assert_eq!((0..ranks).map(|r| p.part(r).count()).max(), Some(p.largest()));
        }

        #[test]
        fn parts_of_given_lengths_cover_exactly_once(
            lengths in prop::collection::vec(0u64..7, 1..9), outer in 0u64..4, inner in 0u64..4,
        ) {
            let extent = lengths.iter().sum();
            let p = Partition::new(&[outer, extent, inner], 1, lengths.len()).unwrap().with_lengths(&lengths).unwrap();
            let mut seen = vec![0; p.count() as usize];
            for (rank, length) in lengths.iter().enumerate() {
                let part = p.part(rank);
                prop_assert_eq!(part.count(), outer * length * inner);
                for i in 0..part.count() {
                    seen[(part.offset + i / part.run * part.stride + i % part.run) as usize] += 1;
                }
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
            prop_assert_eq!((0..lengths.len()).map(|r| p.part(r).count()).max(), Some(p.largest()));
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
        assert_eq!(Partition::new(&[1 << 40, 1 << 40], 1, 2), None);
        assert_eq!(Partition::new(&[0, 1 << 40, 1 << 40], 1, 2), None);
        assert_eq!(Partition::new(&[4], 1, 2), None);
        assert_eq!(Partition::new(&[4], 0, 0), None);
        let four = || Partition::new(&[4, 2], 0, 2).unwrap();
        assert!(four().with_lengths(&[1, 3]).is_some());
        assert_eq!(four().with_lengths(&[1, 2]), None);
        assert_eq!(four().with_lengths(&[4]), None);
        assert_eq!(four().with_lengths(&[u64::MAX, 5]), None);
    }
}

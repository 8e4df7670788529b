use std::fmt;

/// A position in a communicator: 0 up to, not including, its number of ranks.
///
/// Never a device number: with devices `[3, 1]`, rank 0 is on device 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into per-rank slices.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn from_index(index: usize) -> Self {
        // Callers come from per-rank slices, which hold at most `MAX_RANKS`; a caller's number that
        // does not fit stays out of range and is refused as such.
        Rank(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

impl From<usize> for Rank {
    fn from(index: usize) -> Self {
        Rank::from_index(index)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

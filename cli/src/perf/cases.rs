//! What is measured: each dtype, operation and root over the range of sizes, all of it exact.

use crossccl::{DType, ReduceOp};

use crate::error::CliError;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) dtype: DType,
    /// Of reduce-scatter.
    pub(crate) op: Option<ReduceOp>,
    /// Of broadcast.
    pub(crate) root: Option<usize>,
    /// Elements of the root's or of each rank's input.
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

/// Which sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sizes {
    Bytes { min: u64, max: u64, factor: u64 },
    Elements(usize),
}

/// The elements of a shape.
pub(crate) fn elements(shape: &[usize]) -> Result<usize, CliError> {
    shape.iter().try_fold(1usize, |n, e| n.checked_mul(*e)).ok_or_else(|| {
        CliError::Usage(format!("--shape {shape:?} has more elements than can be counted; give a smaller one"))
    })
}

impl Sizes {
    pub(crate) fn bytes(min: u64, max: u64, factor: u64) -> Result<Self, CliError> {
        if min == 0 {
            return Err(CliError::Usage("--min-bytes 0 measures nothing; give at least one element".into()));
        }
        if min > max {
            return Err(CliError::Usage(format!(
                "--min-bytes {min} is above --max-bytes {max}; lower the one or raise the other"
            )));
        }
        Ok(Sizes::Bytes { min, max, factor })
    }

    /// Bytes that are whole elements: nothing is rounded, so that the size shown is the size asked for.
    fn of(self, dtype: DType) -> Result<Vec<u64>, CliError> {
        let size = dtype.size() as u64;
        match self {
            Sizes::Bytes { min, .. } if min % size != 0 => Err(CliError::Usage(format!(
                "--min-bytes {min} is not a multiple of the {size} bytes of {dtype}; give a multiple, like {}",
                (min / size).max(1) * size
            ))),
            Sizes::Bytes { min, max, factor } => {
                let next = |bytes: &u64| bytes.checked_mul(factor).filter(|b| *b <= max);
                Ok(std::iter::successors(Some(min), next).collect())
            }
            Sizes::Elements(count) => match (count as u64).checked_mul(size) {
                Some(bytes) => Ok(vec![bytes]),
                None => Err(CliError::Usage(format!(
                    "{count} elements of {dtype} are more bytes than 64 bits can count; give a smaller --shape"
                ))),
            },
        }
    }
}

pub(crate) fn all(
    dtypes: &[DType],
    ops: &[Option<ReduceOp>],
    roots: &[Option<usize>],
    sizes: &Sizes,
) -> Result<Vec<Case>, CliError> {
    let mut cases = Vec::new();
    for &dtype in dtypes {
        let sizes = sizes.of(dtype)?;
        for &op in ops {
            for &root in roots {
                for &bytes in &sizes {
                    let count = usize::try_from(bytes / dtype.size() as u64).map_err(|_| {
                        CliError::Usage(format!("{bytes} bytes are more than this machine can address"))
                    })?;
                    cases.push(Case { dtype, op, root, count, bytes });
                }
            }
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_stays_exact_and_ends_below_the_limit() {
        let bytes = |min, max, factor| Sizes::bytes(min, max, factor).unwrap().of(DType::F32).unwrap();
        assert_eq!(bytes(1024, 64 << 20, 4).len(), 9);
        assert_eq!(bytes(12, 100, 3), [12, 36]);
        assert_eq!(bytes(4, 4, 2), [4]);
        assert_eq!(bytes(4, u64::MAX, u64::MAX), [4]);
        assert_eq!(bytes(4, u64::MAX, 2).last(), Some(&(1 << 63)));
    }

    #[test]
    fn what_is_not_whole_elements_is_refused() {
        let text = Sizes::bytes(1001, 4004, 2).unwrap().of(DType::F32).unwrap_err().to_string();
        assert_eq!(text, "--min-bytes 1001 is not a multiple of the 4 bytes of f32; give a multiple, like 1000");
        assert!(Sizes::bytes(0, 1, 2).is_err());
        assert!(Sizes::bytes(2, 1, 2).is_err());
        assert!(elements(&[usize::MAX, 2]).is_err());
    }

    #[test]
    fn every_combination_comes_once() {
        let sizes = Sizes::bytes(8, 16, 2).unwrap();
        let cases = all(&DType::ALL, &ReduceOp::ALL.map(Some), &[None], &sizes).unwrap();
        assert_eq!(cases.len(), 10 * 5 * 2);
        assert!(cases.iter().all(|c| c.bytes == (c.count * c.dtype.size()) as u64));
    }
}

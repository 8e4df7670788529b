use std::{fmt, str::FromStr};

/// How reduce-scatter combines the ranks' elements, always in rank order 0, 1, ..., n-1.
///
/// The discriminants are those of NCCL's `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum. f16 and bf16 accumulate in f32 and round once; integers wrap.
    Sum = 0,
    /// Product. Accumulates like `Sum`.
    Product = 1,
    /// Maximum. NaN in one rank gives NaN; -0 is below +0.
    Max = 2,
    /// Minimum. NaN in one rank gives NaN; -0 is below +0.
    Min = 3,
    /// Sum divided by the number of ranks before the one rounding. Integers truncate toward zero:
    /// the exact sum for types of up to 32 bits, the wrapped sum for 64 bits.
    Average = 4,
}

impl ReduceOp {
    /// Every operation.
    pub const ALL: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

    /// The short lower-case name, as the command line uses it.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "product",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Average => "average",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        ReduceOp::ALL.into_iter().find(|o| *o as u8 == code)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = String;

    /// By [`name`](ReduceOp::name), or by NCCL's shorter `avg` and `prod`.
    fn from_str(s: &str) -> Result<Self, String> {
        let s = match s {
            "avg" => "average",
            "prod" => "product",
            _ => s,
        };
        ReduceOp::ALL.into_iter().find(|o| o.name() == s).ok_or_else(|| {
            let names: Vec<_> = ReduceOp::ALL.iter().map(|o| o.name()).collect();
            format!("unknown op `{s}`; the ops are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_the_shorter_ones() {
        for op in ReduceOp::ALL {
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        assert_eq!("avg".parse(), Ok(ReduceOp::Average));
        assert_eq!("prod".parse(), Ok(ReduceOp::Product));
        let error = "unknown op `mean`; the ops are sum, average, min, max, product";
        assert_eq!("mean".parse::<ReduceOp>(), Err(error.into()));
    }
}

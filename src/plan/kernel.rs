//! The kernels by number and by name. The names are those of `kernels-common/kernel_list.def`; a test
//! of the CPU backend finds every one of them there and nothing else.

use crate::{dtype::DType, op::ReduceOp};

/// A kernel that a plan can ask a backend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kernel {
    /// First half of the peer self-test.
    SelfTestWrite,
    /// Second half of the peer self-test.
    SelfTestRead,
    /// See `kernels-common/broadcast.h`.
    BroadcastOneStage,
    /// See `kernels-common/broadcast.h`.
    BroadcastTwoStageStaged,
    /// See `kernels-common/broadcast.h`.
    BroadcastTwoStageDirect,
    /// See `kernels-common/broadcast.h`.
    BroadcastLowLatency,
    /// See `kernels-common/reduce_scatter.h`.
    ReduceScatter(DType, Combine),
    /// See `kernels-common/reduce_scatter.h`. The number of ranks is read at run time: of the combining steps those
    /// for any number.
    ReduceScatterLowLatency(DType, Combine),
}

/// The combining step of a reduce-scatter kernel. A count of ranks fixed at compile time comes with
/// the sum only, the operation that training and inference use: it keeps the number of kernels, and
/// so the size of a GPU image, in bounds. An average is a sum that divides at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Combine {
    Sum2,
    Sum4,
    Sum8,
    SumN,
    ProductN,
    MinN,
    MaxN,
}

impl Combine {
    const ALL: [Combine; 7] =
        [Combine::Sum2, Combine::Sum4, Combine::Sum8, Combine::SumN, Combine::ProductN, Combine::MinN, Combine::MaxN];

    /// Those that read the number of ranks at run time.
    const ANY: [Combine; 4] = [Combine::SumN, Combine::ProductN, Combine::MinN, Combine::MaxN];

    pub(crate) fn new(op: ReduceOp, ranks: usize) -> Self {
        match (Combine::of_any(op), ranks) {
            (Combine::SumN, 2) => Combine::Sum2,
            (Combine::SumN, 4) => Combine::Sum4,
            (Combine::SumN, 8) => Combine::Sum8,
            (any, _) => any,
        }
    }

    /// For a number of ranks read at run time.
    pub(crate) fn of_any(op: ReduceOp) -> Self {
        match op {
            ReduceOp::Sum | ReduceOp::Average => Combine::SumN,
            ReduceOp::Product => Combine::ProductN,
            ReduceOp::Min => Combine::MinN,
            ReduceOp::Max => Combine::MaxN,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Combine::Sum2 => "sum_2",
            Combine::Sum4 => "sum_4",
            Combine::Sum8 => "sum_8",
            Combine::SumN => "sum_n",
            Combine::ProductN => "product_n",
            Combine::MinN => "min_n",
            Combine::MaxN => "max_n",
        }
    }
}

const FIXED: [Kernel; 6] = [
    Kernel::SelfTestWrite,
    Kernel::SelfTestRead,
    Kernel::BroadcastOneStage,
    Kernel::BroadcastTwoStageStaged,
    Kernel::BroadcastTwoStageDirect,
    Kernel::BroadcastLowLatency,
];

impl Kernel {
    /// How many kernels there are.
    pub const COUNT: usize = FIXED.len() + DType::ALL.len() * (Combine::ALL.len() + Combine::ANY.len());

    /// Every kernel, in the order of [`index`](Self::index).
    pub fn all() -> impl Iterator<Item = Kernel> {
        let reduce =
            DType::ALL.into_iter().flat_map(|d| Combine::ALL.into_iter().map(move |c| Kernel::ReduceScatter(d, c)));
        let packets = DType::ALL
            .into_iter()
            .flat_map(|d| Combine::ANY.into_iter().map(move |c| Kernel::ReduceScatterLowLatency(d, c)));
        FIXED.into_iter().chain(reduce).chain(packets)
    }

    /// A number below [`COUNT`](Self::COUNT).
    pub fn index(self) -> usize {
        // In the order of DType::ALL; discriminants follow NCCL's numbers instead.
        let place = |dtype| DType::ALL.iter().position(|x| *x == dtype).unwrap_or(0);
        match self {
            Kernel::SelfTestWrite => 0,
            Kernel::SelfTestRead => 1,
            Kernel::BroadcastOneStage => 2,
            Kernel::BroadcastTwoStageStaged => 3,
            Kernel::BroadcastTwoStageDirect => 4,
            Kernel::BroadcastLowLatency => 5,
            Kernel::ReduceScatter(dtype, combine) => FIXED.len() + place(dtype) * Combine::ALL.len() + combine as usize,
            Kernel::ReduceScatterLowLatency(dtype, combine) => {
                let c = Combine::ANY.iter().position(|x| *x == combine).unwrap_or(0);
                FIXED.len() + DType::ALL.len() * Combine::ALL.len() + place(dtype) * Combine::ANY.len() + c
            }
        }
    }

    /// The name under which a backend's image exports it.
    pub fn name(self) -> String {
        match self {
            Kernel::SelfTestWrite => "self_test_write".into(),
            Kernel::SelfTestRead => "self_test_read".into(),
            Kernel::BroadcastOneStage => "broadcast_one_stage".into(),
            Kernel::BroadcastTwoStageStaged => "broadcast_two_stage_staged".into(),
            Kernel::BroadcastTwoStageDirect => "broadcast_two_stage_direct".into(),
            Kernel::BroadcastLowLatency => "broadcast_low_latency".into(),
            Kernel::ReduceScatter(dtype, combine) => format!("reduce_scatter_{dtype}_{}", combine.name()),
            Kernel::ReduceScatterLowLatency(dtype, combine) => {
                format!("reduce_scatter_low_latency_{dtype}_{}", combine.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_dense() {
        let all: Vec<_> = Kernel::all().collect();
        assert_eq!(all.len(), Kernel::COUNT);
        assert!(all.iter().enumerate().all(|(i, k)| k.index() == i));
        let names: std::collections::HashSet<_> = all.iter().map(|k| k.name()).collect();
        assert_eq!(names.len(), Kernel::COUNT);
        const { assert!(Kernel::COUNT <= 150, "a GPU image holds at most 150 kernels") };
    }
}

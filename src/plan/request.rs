//! What is asked, in the facts that all ranks share.

use super::{
    partition::{Partition, Shape},
    select::{Algorithm, Plan},
};
use crate::{
    abi::{Packed, hash},
    dtype::DType,
    op::ReduceOp,
};

/// One collective of one group.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) ranks: usize,
    pub(crate) dtype: DType,
    pub(crate) count: u64,
    pub(crate) collective: Collective,
}

#[derive(Clone, Debug)]
pub(crate) enum Collective {
    Broadcast {
        root: usize,
    },
    ReduceScatter {
        op: ReduceOp,
        shape: Shape,
        axis: usize,
        partition: Partition,
        /// What the result is rounded to.
        output: DType,
        /// What a fused result is multiplied with; 1 in a plain one. Each rank's own affair, as the residual.
        factor: f64,
    },
}

pub(crate) const BROADCAST: u8 = 1;
pub(crate) const REDUCE_SCATTER: u8 = 2;

impl Request {
    pub(crate) fn bytes(&self) -> u64 {
        self.count * self.dtype.size() as u64
    }

    pub(crate) fn name(&self) -> &'static str {
        collective_name(self.code())
    }

    pub(crate) fn code(&self) -> u8 {
        match self.collective {
            Collective::Broadcast { .. } => BROADCAST,
            Collective::ReduceScatter { .. } => REDUCE_SCATTER,
        }
    }

    /// Bytes of the largest share of work of one rank: what the grid is made for.
    pub(crate) fn largest_share(&self) -> u64 {
        match &self.collective {
            Collective::Broadcast { .. } => self.bytes(),
            Collective::ReduceScatter { partition, .. } => partition.largest() * self.dtype.size() as u64,
        }
    }

    pub(crate) fn shape_hash(&self) -> u64 {
        match &self.collective {
            Collective::Broadcast { .. } => 0,
            Collective::ReduceScatter { shape, axis, partition, output, .. } => {
                let lengths = partition.lengths().unwrap_or(&[]);
                let sizes = [*axis as u64, *output as u64, shape.len() as u64, lengths.len() as u64];
                hash(sizes.into_iter().chain(shape.iter().copied()).chain(lengths.iter().copied()))
            }
        }
    }

    pub(crate) fn packed(&self, plan: &Plan) -> Packed {
        let (op, root) = match &self.collective {
            Collective::Broadcast { root } => (0, *root as u8),
            Collective::ReduceScatter { op, .. } => (*op as u8, 0),
        };
        Packed {
            collective: self.code(),
            dtype: self.dtype as u8,
            op,
            algorithm: plan.algorithm as u8,
            root,
            blocks: plan.blocks as u16,
            // Rounds through a payload follow from its size, which the fingerprint has.
            slices: if plan.algorithm == Algorithm::TwoStageDirect { plan.rounds as u8 } else { 1 },
        }
    }
}

pub(crate) fn collective_name(code: u8) -> &'static str {
    match code {
        BROADCAST => "broadcast",
        REDUCE_SCATTER => "reduce_scatter",
        _ => "no collective",
    }
}

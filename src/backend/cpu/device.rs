//! Virtual devices. All of them are the machine's cores and memory; an ordinal tells them apart.

use std::{num::NonZero, thread::available_parallelism};

use super::super::{Fault, Properties};
use crate::abi::MAX_RANKS;

/// A virtual device of the CPU backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuDevice {
    ordinal: usize,
}

impl CpuDevice {
    pub(super) fn open(ordinal: usize) -> Result<Self, Fault> {
        if ordinal >= MAX_RANKS {
            return Err(Fault::new("open", 0, format!("virtual devices are numbered 0 to {}", MAX_RANKS - 1)));
        }
        Ok(CpuDevice { ordinal })
    }

    pub(super) fn ordinal(&self) -> usize {
        self.ordinal
    }

    pub(super) fn properties(&self, ranks: usize) -> Properties {
        let cores = available_parallelism().map_or(1, NonZero::get);
        Properties {
            name: format!("virtual device {} of {cores} cores", self.ordinal),
            // One block a rank when cores are short.
            preferred_blocks: (cores / ranks.max(1)).max(1) as u32,
            tile: 16 << 10,
            threads: 1,
            coherent: true,
            emulated: false,
            ticks_per_second: 1_000_000_000,
        }
    }
}

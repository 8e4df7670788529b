//! Virtual devices. All of them are the machine's cores and memory; an ordinal tells them apart.

use std::{fs, num::NonZero, thread::available_parallelism};

use super::super::{Fault, Properties};
use crate::{
    abi::MAX_RANKS,
    plan::{Blocks, Packets},
};

/// Bytes of the largest cache, by Linux's files ("16384K"); elsewhere that of a large server processor.
fn cache() -> u64 {
    let level = |index| fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok();
    let bytes = |text: String| text.trim().strip_suffix('K').and_then(|k| k.parse::<u64>().ok()).map(|k| k << 10);
    (0..5).filter_map(level).filter_map(bytes).max().unwrap_or(256 << 20)
}

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
        // One block a rank when cores are short.
        let blocks = (cores / ranks.max(1)).max(1) as u32;
        Properties {
            name: format!("virtual device {} of {cores} cores", self.ordinal),
            preferred_blocks: Blocks { broadcast: blocks, reduce_scatter: blocks, low_latency: blocks },
            tile: 16 << 10,
            least_tile: 16 << 10,
            // To wake the other blocks' threads took 14 us on 12 cores of a virtual machine, in which one core copies that
            // much (benches/record/2026-11-30-cpu.md).
            one_block: 512 << 10,
            packets: Packets::when_asked(16 << 10),
            threads: 1,
            coherent: true,
            emulated: false,
            known_faults: Vec::new(),
            ticks_per_second: 1_000_000_000,
            cache: cache(),
        }
    }
}

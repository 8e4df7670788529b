//! Collectives for the accelerators of one machine: broadcast and grouped reduce-scatter, from one
//! device source, the same bits on every backend.
//!
//! ```
//! use crossccl::{Communicator, Cpu, ReduceOp};
//!
//! # fn main() -> crossccl::Result<()> {
//! let comm = Communicator::<Cpu>::builder(0..4).build()?;
//! let inputs = (0..4).map(|r| comm.buffer_from(r, &[r as f32; 8])).collect::<Result<Vec<_>, _>>()?;
//! let mut outputs = (0..4).map(|r| comm.buffer(r, 2)).collect::<Result<Vec<_>, _>>()?;
//! comm.reduce_scatter(&inputs, &mut outputs, ReduceOp::Sum)?.wait()?;
//! assert_eq!(outputs[3].to_vec()?, [6.0, 6.0]);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Communicator`] drives all ranks from one thread; [`Communicator::into_ranks`] gives a
//! [`RankComm`] a rank, for one thread each. [`Buffer`]s are memory of one rank. A call enqueues and
//! returns an [`InFlight`]; its `wait` tells the outcome. The `*_raw` forms take addresses and streams.
//!
//! A rank that does not come, or comes with another operation, becomes an [`Error`] that names it,
//! within the time limit; then `reset` makes the communicator usable again.
//!
//! The [`guide`] has a page for each question.
//!
//! # Features
//!
//! `cpu` (default) brings the backend [`Cpu`]; `cuda` brings `Cuda` (kernels by nvcc, the driver loaded at run
//! time); `rocm` brings `Hip` (kernels by clang, the HIP runtime loaded at run time); `capi` brings the C interface. They
//! only add.

#![deny(unsafe_code)]
// Nothing panics on a driver's answer or a caller's input.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// The README's example is a doc test.
#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../README.md")]
struct Readme;

mod abi;
mod any;
mod backend;
mod buffer;
#[cfg(feature = "capi")]
pub mod capi;
mod collective;
mod communicator;
mod dtype;
mod error;
mod graph;
pub mod guide;
mod in_flight;
mod op;
mod plan;
mod rank;
mod rank_comm;
mod raw;
mod replay;
mod signal;
mod tuning_file;

pub use abi::{Arguments, MAX_BLOCKS, MAX_RANKS, VECTOR};
pub use any::BackendKind;
pub use backend::{Backend, Fault, Link, MemoryKind, Profiler, Properties, Unfit};
pub use buffer::{Buffer, Destination, Slice, SliceMut, Untyped};
pub use collective::{Agreement, Broadcast, ReduceScatter};
pub use communicator::{AbortHandle, Builder, Communicator, Launched};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use graph::Graph;
pub use half;
pub use in_flight::InFlight;
pub use op::ReduceOp;
pub use plan::{
    Algorithm, Blocks, Candidate, Cost, Explanation, Facts, Kernel, Overlap, Packets, Part, Partition, Placement, Plan,
    Planner, Reason, Topology, Tuned, Tuning, TuningRow, Wiring,
};
pub use rank::Rank;
pub use rank_comm::RankComm;
pub use raw::RawRank;
pub use replay::{Recording, Replay};
pub use signal::{low_latency_bytes, signal_buffer_bytes};

cfg_if::cfg_if! {
    if #[cfg(feature = "cpu")] {
        pub use backend::cpu::{Cpu, CpuDevice, CpuEvent, CpuFunction, CpuStream};
    }
}
cfg_if::cfg_if! {
    if #[cfg(feature = "cuda")] {
        pub use backend::cuda::{Cuda, CudaDevice, CudaEvent, CudaFunction, CudaGraph, CudaStream};
    }
}
cfg_if::cfg_if! {
    if #[cfg(feature = "rocm")] {
        pub use backend::hip::{Hip, HipDevice, HipEvent, HipFunction, HipGraph, HipStream};
    }
}

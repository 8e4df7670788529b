//! From a request to a plan: plain data and pure functions. Nothing here knows a backend, touches
//! memory or depends on which rank asks: all ranks derive the same plan from the facts they share (I2).

#![forbid(unsafe_code)]

pub(crate) mod chunk;
mod cost;
pub(crate) mod kernel;
pub(crate) mod partition;
mod planner;
pub(crate) mod request;
pub(crate) mod select;
pub(crate) mod topology;
pub(crate) mod tuning;

pub use cost::Cost;
pub use kernel::Kernel;
pub use partition::{Part, Partition};
pub use planner::{Candidate, Explanation, Planner, Reason};
pub use select::{Algorithm, Blocks, Facts, Overlap, Packets, Plan};
pub use topology::{Topology, Wiring};
pub use tuning::{Placement, Tuned, Tuning, TuningRow};

//! From a request to a plan: plain data and pure functions. Nothing here knows a backend, touches
//! memory or depends on which rank asks: all ranks derive the same plan from the facts they share (I2).

pub(crate) mod chunk;
pub(crate) mod kernel;
pub(crate) mod partition;
pub(crate) mod request;
pub(crate) mod select;

pub use kernel::Kernel;
pub use partition::{Part, Partition};
pub use select::{Algorithm, Blocks, Facts, Overlap, Packets, Plan};

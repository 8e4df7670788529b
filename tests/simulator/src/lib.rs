//! A discrete-event simulator of the links between devices. It plays a plan as the kernels do it: which block reads which
//! bytes from whom, in which order, after whose flags. What is on a link at the same time shares it fairly. Times come out of
//! that alone: no formula of the cost model (`src/plan/cost.rs`) is in here, so that the two can be held against each other.
//!
//! What it leaves out: that requests queue and collide below full load, that clocks differ, the root's own copy (in place
//! there is none), arithmetic.

mod engine;
mod replay;

pub use replay::{Collective, Detail, play};

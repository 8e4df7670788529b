//! The guide: one page a question, every snippet a test.
//!
//! | page | for whom |
//! | --- | --- |
//! | [`quick_start`] | the first program |
//! | [`algorithms`] | which algorithm is taken, why, and how to have another |
//! | [`streams_and_graphs`] | engines with streams of their own, captures, replays |
//! | [`threads`] | one thread for all ranks, one a rank, and what goes wrong where they mix |
//! | [`errors_and_recovery`] | what comes instead of a hang, and how to go on |
//! | [`traces`] | names for calls, in logs and profilers |
//! | [`numerics`] | what bits come out, and why the same everywhere |
//! | [`from_nccl`] | porting |
//! | [`backends`] | adding one |

#[doc = include_str!("guide/quick_start.md")]
pub mod quick_start {}

#[doc = include_str!("guide/algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("guide/streams_and_graphs.md")]
pub mod streams_and_graphs {}

#[doc = include_str!("guide/threads.md")]
pub mod threads {}

#[doc = include_str!("guide/errors_and_recovery.md")]
pub mod errors_and_recovery {}

#[doc = include_str!("guide/traces.md")]
pub mod traces {}

#[doc = include_str!("guide/numerics.md")]
pub mod numerics {}

#[doc = include_str!("guide/from_nccl.md")]
pub mod from_nccl {}

#[doc = include_str!("guide/backends.md")]
pub mod backends {}

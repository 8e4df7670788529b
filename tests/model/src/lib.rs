//! Model checks of the protocol between ranks (`kernels-common/README.md`).
//!
//! The protocol is C++; [`protocol`] and [`packets`] are the same steps in Rust, to be read beside `rendezvous.h` and
//! `packets.h`, over [`sync`]. So what is checked is the protocol, not the product's code: that is left to the sanitizers
//! and the suite. Who changes one changes the other.
//!
//! | tool | explores | does not model |
//! | --- | --- | --- |
//! | loom, 2 ranks of one block | every interleaving up to the bound on preemptions, and the stale values that acquire, release and relaxed accesses may yield; plain memory whose accesses nothing orders is an error | more than 2 ranks (it comes to no end); preemptions beyond the bound; stores that become visible before earlier ones of the same thread (load buffering); scopes, caches and non-coherent memory of a GPU |
//! | shuttle, 3 to 8 ranks, 1 or 2 blocks | schedules drawn at random, half of them by priority (which lets some ranks run far ahead) | orderings: all it sees is sequentially consistent, so a missing release does not show; the schedules not drawn |
//! | real threads (`--cfg model_threads`) | what this machine does | everything it happens not to do |
//!
//! None of them models time: a deadline is a number of polls. None models a kernel that is killed, or
//! memory that is freed.
//!
//! Every check can fail: the tests named `planted_*` plant one bug ([`protocol::Planted`]) and ask for
//! the failure by its message.
//!
//! `scripts/check-models` runs all of it.

pub mod check;
pub mod host;
pub mod packets;
pub mod protocol;
pub mod sync;

//! What the model is built on: loom's, shuttle's or the machine's own threads and atomics.
//!
//! [`Plain`] is memory without synchronisation of its own: what a kernel copies, and words that one
//! rank alone uses. loom reports two accesses that nothing orders as a data race, whatever they
//! yield; elsewhere it is an atomic word, so that only a wrong value shows.

#[cfg(loom)]
pub use loom::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
#[cfg(not(any(loom, model_threads)))]
pub use shuttle::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
#[cfg(model_threads)]
pub use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// A word of plain memory.
#[derive(Debug)]
pub struct Plain(#[cfg(loom)] loom::cell::UnsafeCell<u64>, #[cfg(not(loom))] AtomicU64);

#[cfg(loom)]
// SAFETY: loom runs one thread at a time and stops at the first access that is not ordered with the
// others; that is what this type is for.
unsafe impl Sync for Plain {}

#[cfg(loom)]
impl Plain {
    /// A word with a value that everybody may read.
    pub fn new(value: u64) -> Self {
        Plain(loom::cell::UnsafeCell::new(value))
    }

    /// What stands there.
    pub fn read(&self) -> u64 {
        // SAFETY: the pointer is the cell's own; loom has refused an access at the same time.
        self.0.with(|p| unsafe { *p })
    }

    /// Writes it.
    pub fn write(&self, value: u64) {
        // SAFETY: as in `read`.
        self.0.with_mut(|p| unsafe { *p = value });
    }
}

#[cfg(not(loom))]
impl Plain {
    /// A word with a value that everybody may read.
    pub fn new(value: u64) -> Self {
        Plain(AtomicU64::new(value))
    }

    /// What stands there.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Writes it.
    pub fn write(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

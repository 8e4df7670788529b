//! Ranges in a profiler's view of the host's time: one for each call, under the caller's label. Without a profiler nothing
//! is kept and no name is made.

use std::{fmt, marker::PhantomData, sync::Arc};

use super::Backend;

/// A profiler that shows ranges of a thread's time. Ranges nest; each begins and ends on one thread.
pub trait Profiler: Sync {
    /// Begins a range: a call of `operation` (`broadcast`, `reduce_scatter`) with `bytes` as each rank's message, by the
    /// caller's `label` for it, which may be empty and hold anything.
    fn begin(&self, operation: &str, label: &str, bytes: u64);
    /// Ends the one that this thread began last, of those that it has not ended.
    fn end(&self);
}

/// A range that is to be, of a call that somebody watches.
#[derive(Clone)]
pub(crate) struct Watched {
    profiler: &'static dyn Profiler,
    operation: &'static str,
    label: Arc<str>,
    bytes: u64,
}

impl Watched {
    /// `None` where there is no profiler.
    pub(crate) fn new<B: Backend>(operation: &'static str, label: &str, bytes: u64) -> Option<Self> {
        Some(Watched { profiler: B::profiler()?, operation, label: label.into(), bytes })
    }

    /// Until the answer is dropped.
    pub(crate) fn range(&self) -> Range {
        self.profiler.begin(self.operation, &self.label, self.bytes);
        Range { profiler: self.profiler, _thread: PhantomData }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({} {:?})", self.operation, self.label)
    }
}

/// An open range: it ends however the call does.
pub(crate) struct Range {
    profiler: &'static dyn Profiler,
    /// It is this thread's.
    _thread: PhantomData<*const ()>,
}

impl Drop for Range {
    fn drop(&mut self) {
        self.profiler.end();
    }
}

/// A range's name as profilers take it: a string without zeros, which would end it.
#[cfg(any(feature = "cuda", feature = "rocm"))]
pub(super) fn name(whose: &str, operation: &str, label: &str) -> std::ffi::CString {
    let between = if label.is_empty() { "" } else { ": " };
    let text = [whose, operation, between, label].concat();
    std::ffi::CString::new(text.replace('\0', "")).unwrap_or_default()
}

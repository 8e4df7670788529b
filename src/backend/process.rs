//! Which process this is, without asking the system at each call.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering},
};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// How many forks lie between this process and the one that asked first. A child has its parent's memory without its threads.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// To be called before anything of a process is kept: from then on [`forks`] counts.
pub(crate) fn count_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(unix)]
        {
            extern "C" fn in_the_child() {
                FORKS.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: the handler only adds to a static, which is allowed in a child whose threads are gone. Where it cannot
            // be registered, forks are not seen, as before.
            unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        }
    });
}

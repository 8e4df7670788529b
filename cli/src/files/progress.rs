//! A progress bar for people: only on a terminal, only for work that takes a while.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Less is done before anybody reads a bar.
const LONG: u64 = 256 << 20;

/// Counts bytes towards a known total.
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    pub(super) fn new(bytes: u64) -> Self {
        if bytes < LONG || !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let bar = ProgressBar::new(bytes);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left") {
            bar.set_style(style);
        }
        Progress(Some(bar))
    }

    pub(super) fn advance(&self, bytes: usize) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes as u64);
        }
    }
}

impl Drop for Progress {
    /// What comes next, results or an error, starts on a clean line.
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

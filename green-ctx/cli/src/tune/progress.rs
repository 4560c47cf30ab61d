//! The progress bar.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use green_ctx_tune::Progress;

/// The minimum time between two updates of the progress bar.
const EVERY: Duration = Duration::from_millis(100);

/// A progress bar on standard error, which is shown only if standard error is a terminal.
pub(crate) struct Bar {
    is_shown: bool,
    drawn: Option<Instant>,
}

impl Bar {
    pub(crate) fn new() -> Bar {
        Bar { is_shown: io::stderr().is_terminal(), drawn: None }
    }

    pub(crate) fn show(&mut self, progress: &Progress<'_>) {
        if !self.is_shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < EVERY) {
            return;
        }
        self.drawn = Some(Instant::now());
        // If standard error is closed, the bar is not needed.
        let _ = write!(io::stderr(), "\r\x1b[K{}", green_ctx_report::progress_line(progress));
    }
}

impl Drop for Bar {
    /// Erases the bar, so that the results or the error message replace it.
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

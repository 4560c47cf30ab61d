//! A bar for whoever waits.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use green_ctx_tune::Progress;

/// How often it is drawn.
const EVERY: Duration = Duration::from_millis(100);
const WIDTH: usize = 24;
/// The columns of a line, so that it never wraps.
const COLUMNS: usize = 100;

/// A bar on standard error, where that is a terminal.
pub(super) struct Bar {
    is_shown: bool,
    drawn: Option<Instant>,
}

impl Bar {
    pub(super) fn new() -> Bar {
        Bar { is_shown: io::stderr().is_terminal(), drawn: None }
    }

    pub(super) fn show(&mut self, progress: &Progress<'_>) {
        if !self.is_shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < EVERY) {
            return;
        }
        self.drawn = Some(Instant::now());
        // Where standard error is closed there is nobody to wait.
        let _ = write!(io::stderr(), "\r\x1b[K{}", line(progress));
    }
}

impl Drop for Bar {
    /// Removes it, also where an error is printed next.
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// The line that it shows.
pub(crate) fn line(progress: &Progress<'_>) -> String {
    let spent = progress.spent.clamp(0.0, 1.0);
    let full = (spent * WIDTH as f64).round() as usize;
    let best = progress.best.as_ref().map_or_else(String::new, |best| format!("; best: {best}"));
    let bar = ["#".repeat(full), "·".repeat(WIDTH - full)].concat();
    let line = format!("{bar} {:3.0} % {}{best}", 100.0 * spent, progress.step);
    line.chars().take(COLUMNS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use green_ctx_tune::{self as tune, Model, ModelJob, Pieces, Profile, Request};

    #[test]
    fn a_line_says_how_far_it_is() {
        let pieces = Pieces { sms: 132, unit: 8, odd: 12 };
        let mut model = Model::new(pieces.clone(), vec![ModelJob::default(); 2], 1);
        let jobs = [Profile::new("a"), Profile::new("b".repeat(200))];
        let mut lines = Vec::new();
        let mut go_on = |progress: &Progress<'_>| {
            lines.push(line(progress));
            true
        };
        tune::with(&mut model, &jobs, &pieces, &Request::default(), &mut go_on).expect("it runs");
        let (first, last) = (&lines[0], &lines[lines.len() - 1]);
        assert!(first.contains("  0 % each job alone") && last.contains("; best: "), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS));
    }
}

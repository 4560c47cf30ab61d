//! Time slices of a build that is compared with another one.

use std::cell::Cell;
use std::env;
use std::io::{self, Read, Write};
use std::process;
use std::time::{Duration, Instant};

use crate::FAILED;
use crate::compare::SLICES;

/// The shortest slice. The speed of a machine rarely changes within a slice, and the first measurement of a slice,
/// which finds cold caches, is one of many.
const SLICE: Duration = Duration::from_millis(1);

/// The start of the current slice, or `None` if this build runs alone.
pub(crate) struct Slices(Option<Cell<Instant>>);

impl Slices {
    pub(crate) fn new() -> Slices {
        Slices(env::var_os(SLICES).map(|_| Cell::new(Instant::now())))
    }

    /// Lets the other build run if the current slice is over. Arms call this between measurements, while the device
    /// has no work.
    pub(crate) fn next(&self) {
        let Some(start) = self.0.as_ref().filter(|start| start.get().elapsed() >= SLICE) else {
            return;
        };
        if wait().is_err() {
            // `compare` has ended.
            process::exit(FAILED.into());
        }
        start.set(Instant::now());
    }
}

/// Ends a slice, and waits for the next one.
fn wait() -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(b".")?;
    out.flush()?;
    io::stdin().read_exact(&mut [0])
}

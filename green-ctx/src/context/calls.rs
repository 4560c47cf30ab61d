//! Calls on a green context, one thread at a time.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The turns of threads that call the driver with one green context: its header up to 13.4 allows one
/// at a time.
///
/// A turn is as long as one call, some 4 µs, and to sleep and to be woken takes longer: with a common
/// mutex, two threads that made streams in one context took 24 µs a stream, where the driver's own
/// locks take 14 (seen on an H200's host). Nor does such a mutex end with a plain store, which is what
/// a thread that is alone would notice most.
#[derive(Default)]
pub(super) struct Calls {
    taken: AtomicBool,
    /// Whether two threads ever came at once.
    contended: AtomicBool,
}

/// A thread's turn, until it is dropped.
pub(super) struct Turn<'a>(&'a AtomicBool);

impl Calls {
    /// Waits for this thread's turn.
    #[inline]
    pub(super) fn turn(&self) -> Turn<'_> {
        if !self.take() {
            self.wait();
        }
        Turn(&self.taken)
    }

    /// Waits where threads were seen to come at once, before a call that may come at any time: the
    /// driver's own locks keep such calls apart too, but take longer.
    #[inline]
    pub(super) fn turn_if_contended(&self) -> Option<Turn<'_>> {
        self.contended.load(Ordering::Relaxed).then(|| self.turn())
    }

    #[inline]
    fn take(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Looks ever less often: a thread that has several turns in a row finds the driver's data in its
    /// caches, where threads that alternate fetch them from each other.
    #[cold]
    fn wait(&self) {
        const MOST: u32 = 1 << 10;
        self.contended.store(true, Ordering::Relaxed);
        let mut pauses = 1 << 4;
        loop {
            (0..pauses).for_each(|_| hint::spin_loop());
            if !self.taken.load(Ordering::Relaxed) && self.take() {
                return;
            }
            if pauses == MOST {
                // Whoever has the turn may have lost its processor.
                thread::yield_now();
            } else {
                pauses *= 2;
            }
        }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

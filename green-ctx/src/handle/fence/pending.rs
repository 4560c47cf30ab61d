//! The fences that the streams of one context wait for.
//!
//! A fence enters the list before the existing streams start to wait for it. If a stream is created concurrently,
//! either that wait covers the stream, or the stream's creator finds the fence in the list. Streams that are created
//! later wait for every unfinished fence in the list.
//!
//! Each entry of the list stores the number of the record that all streams already wait for, so that a switch does not
//! repeat the wait. The entry also stores whether the whole context waits for the fence. `wait_as_a_whole` repeats the
//! waits of single streams for the whole context.
//!
//! `settle` removes fences whose work is done. `settle` runs when a stream is created in the context, when the
//! context's handle is first given out, when a stream of another context launches a graph in this context, and when a
//! plan of the same plan set is retired. When a context ends, `take` returns all its fences, including those whose work
//! is done, for the next owner of the SMs.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::{Fence, Fences};
use crate::handle::capture::RelaxedCapture;
use crate::handle::driver::Driver;
use crate::handle::error::Result;

/// The fences that a context's streams wait for: those left on its SMs by earlier owners, and those added by switches
/// between plans.
///
/// No driver call is made, and no fence is dropped, while the lock is held.
pub(crate) struct Pending {
    waits: Mutex<Vec<Wait>>,
    /// False only if the list is empty.
    any: AtomicBool,
}

struct Wait {
    fence: Arc<Fence>,
    /// The number of the record that every stream of the context waits for, or 0 if some streams may not wait yet.
    record: u64,
    /// Set if the whole context waits for the fence. A record of the whole context covers the wait only if this flag is
    /// set.
    whole: bool,
}

impl Pending {
    /// `whole` is set if the whole context already waits for the fences.
    pub(crate) fn new(fences: &Fences, whole: bool) -> Pending {
        let wait = |fence: &Arc<Fence>| {
            let record = if whole { fence.records() } else { 0 };
            Wait { fence: Arc::clone(fence), record, whole }
        };
        let waits: Vec<Wait> = fences.iter().map(wait).collect();
        Pending { any: AtomicBool::new(!waits.is_empty()), waits: Mutex::new(waits) }
    }

    /// Returns whether no fence is pending. Takes no lock.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::SeqCst)
    }

    /// Makes streams that are created from now on wait for a fence. The caller must then make the existing streams
    /// wait, and call [`note_wait`](Pending::note_wait).
    pub(crate) fn add(&self, fence: &Arc<Fence>) {
        let mut waits = self.waits.lock();
        match waits.iter_mut().find(|wait| Arc::ptr_eq(&wait.fence, fence)) {
            Some(wait) => (wait.record, wait.whole) = (0, false),
            None => waits.push(Wait { fence: Arc::clone(fence), record: 0, whole: false }),
        }
        self.any.store(true, Ordering::SeqCst);
    }

    /// Stores that every existing stream waits for the record with number `record` of a fence. `whole` is true if the
    /// whole context waits.
    pub(crate) fn note_wait(&self, fence: &Arc<Fence>, record: u64, whole: bool) {
        let mut waits = self.waits.lock();
        if let Some(wait) = waits.iter_mut().find(|wait| Arc::ptr_eq(&wait.fence, fence)) {
            (wait.record, wait.whole) = (record, whole);
        }
    }

    /// Makes the whole context wait for the fences that only individual streams of the context wait for so far.
    pub(crate) fn wait_as_a_whole(&self, wait: impl Fn(&Fence) -> Result<()>) -> Result<()> {
        let of_streams: Vec<_> = {
            let waits = self.waits.lock();
            waits.iter().filter(|wait| !wait.whole).map(|wait| Arc::clone(&wait.fence)).collect()
        };
        for fence in of_streams {
            let record = fence.records();
            wait(&fence)?;
            self.note_wait(&fence, record, true);
        }
        Ok(())
    }

    /// Returns whether every stream waits for the fence's last record.
    pub(crate) fn covers(&self, fence: &Arc<Fence>) -> bool {
        let waits = self.waits.lock();
        let known = waits.iter().find(|wait| Arc::ptr_eq(&wait.fence, fence));
        known.is_some_and(|wait| wait.record == fence.records())
    }

    /// Removes the fences whose work is done, and returns the others.
    pub(crate) fn settle(&self, driver: &Driver) -> Result<Vec<Arc<Fence>>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let record = |wait: &Wait| (Arc::clone(&wait.fence), wait.fence.records());
        let known: Vec<_> = self.waits.lock().iter().map(record).collect();
        let mut done = Vec::new();
        {
            let _relaxed = RelaxedCapture::enter(driver)?;
            for (fence, records) in &known {
                if fence.is_done(driver.functions()?)? {
                    done.push((fence, *records));
                }
            }
        }
        let mut waits = self.waits.lock();
        // Keep a fence that was recorded again after the query.
        let is_done = |wait: &mut Wait| {
            let is_one = |(fence, records): &(&Arc<Fence>, u64)| {
                Arc::ptr_eq(fence, &wait.fence) && *records == wait.fence.records()
            };
            done.iter().any(is_one)
        };
        let ended: Vec<Wait> = waits.extract_if(.., is_done).collect();
        let left = waits.iter().map(|wait| Arc::clone(&wait.fence)).collect();
        self.any.store(!waits.is_empty(), Ordering::SeqCst);
        drop(waits);
        drop(ended);
        Ok(left)
    }

    /// Removes and returns all fences, including those whose work is done.
    pub(crate) fn take(&self) -> impl Iterator<Item = Arc<Fence>> + use<> {
        let waits = mem::take(&mut *self.waits.lock());
        waits.into_iter().map(|wait| wait.fence)
    }
}

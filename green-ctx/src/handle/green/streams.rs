//! The streams of a green context, in one list: streams with a `Stream` object, and kept streams without one.
//!
//! A kept stream is never destroyed, because foreign code has its handle and never reports when it stops using the
//! stream. When its last `Stream` object is dropped, the stream stays in the list. The next partition on the same SMs
//! gives it out again.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use green_ctx_sys::{Api, CUstream_st};
use parking_lot::ReentrantMutex;

use crate::handle::error::Result;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::are_capturing;

/// The list of a context's streams. A stream is in the list from its creation until just before it is destroyed.
///
/// No object is dropped under the list's lock. The only driver call under the lock queries whether a stream is being
/// captured, and that call does not wait. Other threads cannot destroy the stream during the query, because a stream
/// leaves the list before it is destroyed. The lock is reentrant, because the simulated driver may run host functions
/// during the query, and these functions may create and drop streams.
#[derive(Default)]
pub(crate) struct Streams {
    list: ReentrantMutex<RefCell<List>>,
    /// The driver's priority range, from the highest priority to the lowest. Set once the context is kept.
    kept: OnceLock<RangeInclusive<i32>>,
}

#[derive(Default)]
struct List {
    /// An entry keeps its index, which its stream's object stores. An entry that is not in use is in `vacant`.
    entries: Vec<Entry>,
    vacant: Vec<usize>,
    /// The number of streams that were entered in this partition.
    entered: usize,
}

struct Entry {
    raw: Raw<CUstream_st>,
    /// The number of objects that represent the stream: a second one exists until the registry has found the first.
    objects: usize,
    /// The priority of a kept stream.
    kept: Option<i32>,
}

impl Entry {
    fn is_in_use(&self) -> bool {
        self.objects > 0 || self.kept.is_some()
    }
}

impl Streams {
    /// Adds a stream object, and returns the index of the stream's entry.
    pub(crate) fn enter(&self, raw: Raw<CUstream_st>) -> usize {
        let list = self.list.lock();
        let List { entries, vacant, entered } = &mut *list.borrow_mut();
        *entered += 1;
        // Only a kept stream can be in the list already.
        let is_one = |entry: &Entry| entry.kept.is_some() && entry.raw.address() == raw.address();
        let known = if self.are_kept() { entries.iter().position(is_one) } else { None };
        if let Some(index) = known {
            entries[index].objects += 1;
            return index;
        }
        let entry = Entry { raw, objects: 1, kept: None };
        if let Some(index) = vacant.pop() {
            entries[index] = entry;
            return index;
        }
        entries.push(entry);
        entries.len() - 1
    }

    /// Removes a stream object. Returns whether the driver's stream must stay alive, because it is kept.
    pub(crate) fn leave(&self, index: usize) -> bool {
        let list = self.list.lock();
        let List { entries, vacant, .. } = &mut *list.borrow_mut();
        entries[index].objects -= 1;
        if entries[index].is_in_use() {
            return true;
        }
        vacant.push(index);
        if vacant.len() == entries.len() {
            // A context that once had many streams must not stay slow to search.
            entries.clear();
            vacant.clear();
        }
        false
    }

    /// Keeps the context forever. `range` is the driver's priority range.
    pub(crate) fn keep_context(&self, range: &RangeInclusive<i32>) {
        let _same = self.kept.set(range.clone());
    }

    /// Keeps a stream of a kept context forever.
    pub(crate) fn keep(&self, index: usize, priority: i32) {
        self.list.lock().borrow_mut().entries[index].kept = Some(priority);
    }

    /// Returns whether the context is kept, because it has a kept stream, or because a kept context uses its queues.
    #[inline]
    pub(crate) fn are_kept(&self) -> bool {
        self.kept.get().is_some()
    }

    /// Adds an object of a kept stream that has none, with the given priority, which is first clamped to the driver's
    /// range. Returns the stream and the index of its entry. Skips streams that foreign code captures.
    #[inline]
    pub(crate) fn take(&self, api: &Api, priority: i32) -> Option<(Raw<CUstream_st>, usize)> {
        let range = self.kept.get()?;
        self.find(api, priority.clamp(*range.start(), *range.end()))
    }

    #[cold]
    fn find(&self, api: &Api, priority: i32) -> Option<(Raw<CUstream_st>, usize)> {
        let list = self.list.lock();
        let is_idle = |entry: &Entry| entry.objects == 0 && entry.kept == Some(priority);
        let mut idle = self.each(|entry| is_idle(entry).then_some(entry.raw));
        let (index, raw) =
            idle.find(|(_, raw)| matches!(are_capturing(api, [raw.as_ptr()]), Ok(false)))?;
        list.borrow_mut().entries[index].objects += 1;
        Some((raw, index))
    }

    /// Returns the results of `of` with the indices of the entries. The list is locked until the result is dropped, but
    /// functions that the simulated driver runs on this thread may change it between two steps.
    fn each<R>(&self, of: impl Fn(&Entry) -> Option<R>) -> impl Iterator<Item = (usize, R)> {
        let list = self.list.lock();
        let of_index = move |index: usize| {
            let list = list.borrow();
            let entry = list.entries.get(index)?;
            Some(Some(entry).filter(|entry| entry.is_in_use()).and_then(&of).map(|of| (index, of)))
        };
        (0..).map_while(of_index).flatten()
    }

    /// Returns whether one of the streams is being captured. Recording the context, or making the context wait, would
    /// invalidate the capture.
    pub(crate) fn are_capturing(&self, api: &Api) -> Result<bool> {
        are_capturing(api, self.each(|entry| Some(entry.raw.as_ptr())).map(|(_, raw)| raw))
    }

    /// Returns the number of streams that have an object.
    pub(crate) fn count(&self) -> usize {
        self.each(|entry| (entry.objects > 0).then_some(())).count()
    }

    /// Returns the stream if only one was entered in this partition, and that stream still exists.
    pub(crate) fn lone(&self) -> Option<Raw<CUstream_st>> {
        let list = self.list.lock();
        let list = list.borrow();
        // The list is cleared when its only stream leaves.
        if list.entered == 1 { list.entries.first().map(|entry| entry.raw) } else { None }
    }

    /// Begins to count the streams that are entered.
    pub(super) fn restart(&self) {
        self.list.lock().borrow_mut().entered = 0;
    }
}

//! The list of a context's streams that have a `Stream` object.

use green_ctx_sys::{Api, CUstream_st};
use parking_lot::Mutex;

use crate::handle::error::Result;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::are_capturing;

/// The raw handles of the streams of a context that takes turns on its SMs. A stream is in the list from its creation
/// until just before it is destroyed.
///
/// No object is dropped under the list's lock. The only driver call under the lock queries whether a stream is being
/// captured, and that call does not wait. The stream cannot be destroyed during the query, because a stream leaves the
/// list, under the lock, before it is destroyed.
#[derive(Default)]
pub(super) struct Streams {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// The streams, by the slot that `enter` returned.
    slots: Vec<Option<Raw<CUstream_st>>>,
    /// The empty slots.
    empty: Vec<usize>,
    /// The number of streams that the context has ever had.
    entered: usize,
}

impl Streams {
    /// Adds a stream, and returns the slot to pass to [`leave`](Streams::leave).
    pub(super) fn enter(&self, stream: Raw<CUstream_st>) -> usize {
        let mut list = self.list.lock();
        list.entered += 1;
        if let Some(slot) = list.empty.pop() {
            list.slots[slot] = Some(stream);
            return slot;
        }
        list.slots.push(Some(stream));
        list.slots.len() - 1
    }

    /// Removes the stream in `slot`.
    pub(super) fn leave(&self, slot: usize) {
        let mut list = self.list.lock();
        list.slots[slot] = None;
        list.empty.push(slot);
    }

    /// Returns whether the context has only ever had one stream, and that stream still exists.
    pub(super) fn is_lone(&self) -> bool {
        let list = self.list.lock();
        list.entered == 1 && list.empty.is_empty()
    }

    /// Returns whether one of the streams is being captured.
    pub(super) fn are_capturing(&self, api: &Api) -> Result<bool> {
        let list = self.list.lock();
        // The streams are alive: a stream leaves the list, under the lock, before it is destroyed.
        are_capturing(api, list.slots.iter().flatten().map(|stream| stream.as_ptr()))
    }
}

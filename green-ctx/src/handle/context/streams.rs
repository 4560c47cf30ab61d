//! The streams of a context that objects stand for.

use green_ctx_sys::{Api, CUstream_st};
use parking_lot::Mutex;

use crate::handle::error::Result;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::is_capturing;

/// The raw handles of the streams of a context that shares its SMs in time. A stream is here from its
/// making until just before it is destroyed.
///
/// Under the lock no object ends and no driver call waits: the driver is only asked whether a stream
/// is being captured, which keeps the handle alive meanwhile.
#[derive(Default)]
pub(super) struct Streams {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// By the number that `enter` returned.
    slots: Vec<Option<Raw<CUstream_st>>>,
    /// The slots that are empty.
    empty: Vec<usize>,
    /// How many streams the context has ever had.
    entered: usize,
}

impl Streams {
    /// Enters a stream. Returns the number by which it leaves.
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

    /// Removes a stream.
    pub(super) fn leave(&self, slot: usize) {
        let mut list = self.list.lock();
        list.slots[slot] = None;
        list.empty.push(slot);
    }

    /// Whether the context has never had more than one stream, and has it still.
    pub(super) fn is_lone(&self) -> bool {
        let list = self.list.lock();
        list.entered == 1 && list.empty.is_empty()
    }

    /// Whether one of the streams is being captured.
    pub(super) fn are_capturing(&self, api: &Api) -> Result<bool> {
        let list = self.list.lock();
        for stream in list.slots.iter().flatten() {
            // Alive, since it leaves the list before it is destroyed.
            if is_capturing(api, stream.as_ptr())? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

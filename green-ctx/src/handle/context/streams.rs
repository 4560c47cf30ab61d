//! The list of a context's streams that have a `Stream` object.

use green_ctx_sys::{Api, CUstream_st};
use parking_lot::Mutex;
use smallvec::SmallVec;

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
    streams: SmallVec<[Raw<CUstream_st>; 2]>,
    /// The number of streams that the context has ever had.
    entered: usize,
}

impl Streams {
    pub(super) fn enter(&self, stream: Raw<CUstream_st>) {
        let mut list = self.list.lock();
        list.entered += 1;
        list.streams.push(stream);
    }

    /// Removes a stream. A kept stream has two objects, and is in the list twice, if foreign code borrowed it before it
    /// was given out again.
    pub(super) fn leave(&self, stream: Raw<CUstream_st>) {
        let mut list = self.list.lock();
        if let Some(index) =
            list.streams.iter().position(|other| other.address() == stream.address())
        {
            list.streams.swap_remove(index);
        }
    }

    /// Returns the stream if the context has only ever had one, and that stream still exists.
    pub(super) fn lone(&self) -> Option<Raw<CUstream_st>> {
        let list = self.list.lock();
        if list.entered == 1 { list.streams.first().copied() } else { None }
    }

    /// Returns whether one of the streams is being captured.
    pub(super) fn are_capturing(&self, api: &Api) -> Result<bool> {
        let list = self.list.lock();
        // The streams are alive: a stream leaves the list, under the lock, before it is destroyed.
        are_capturing(api, list.streams.iter().map(|stream| stream.as_ptr()))
    }
}

//! The streams of a context that objects stand for.

use green_ctx_sys::{Api, CUgreenCtx_st, CUstream_st};
use parking_lot::Mutex;

use super::{Context, Kind};
use crate::error::Result;
use crate::kept::is_capturing;
use crate::raw::Raw;

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
            if is_capturing(api, *stream)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Context {
    /// The driver's green context, of one that this crate made.
    #[inline]
    fn own_green(&self) -> Option<Raw<CUgreenCtx_st>> {
        match &self.inner.kind {
            Kind::Green(green) => Some(green.raw),
            Kind::Primary | Kind::Borrowed(_) | Kind::Closed => None,
        }
    }

    /// Keeps the driver's context for good; false where this crate did not make it.
    pub(crate) fn keep(&self) -> Result<bool> {
        let Some(green) = self.own_green() else { return Ok(false) };
        let kept = &self.device().state().kept;
        if !kept.keeps(green) {
            kept.keep(green, self.device().stream_priorities()?);
        }
        Ok(true)
    }

    /// Takes a kept stream that has no handle, with its priority.
    #[inline]
    pub(crate) fn take_kept_stream(&self, priority: i32) -> Option<(Raw<CUstream_st>, i32)> {
        let (green, kept) = (self.own_green()?, &self.device().state().kept);
        let (stream, priority) = kept.take(green, priority)?;
        // Foreign code may still capture it, or the driver may not say.
        let functions = self.device().functions().ok()?;
        if !matches!(is_capturing(functions, stream), Ok(false)) {
            self.put_kept_stream(stream, priority);
            return None;
        }
        Some((stream, priority))
    }

    /// Leaves a stream that is kept to whoever makes one of its priority next.
    pub(crate) fn put_kept_stream(&self, stream: Raw<CUstream_st>, priority: i32) {
        if let Some(green) = self.own_green() {
            self.device().state().kept.put(green, stream, priority);
        }
    }
}

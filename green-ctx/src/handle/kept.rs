//! Streams that are kept forever, because foreign code has their handles and never reports when it stops using them.
//!
//! When the last `Stream` object of such a stream is dropped, the driver's stream and its context are stored here. The
//! next partition on the same SMs reuses the stream and the context. The stream and the context are never destroyed.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx_sys::{Api, CUgreenCtx_st, CUstream_st};
use parking_lot::Mutex;

use crate::handle::error::Result;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::are_capturing;

/// The kept contexts of a device, and the kept streams of these contexts that have no `Stream` object.
#[derive(Default)]
pub(crate) struct KeptStreams {
    /// Set once a context is kept. Until then, the creation of a stream needs no lock.
    any: AtomicBool,
    idle: Mutex<HashMap<usize, Vec<Idle>>>,
    /// The driver's priority range, from the highest priority to the lowest.
    priorities: OnceLock<RangeInclusive<i32>>,
}

struct Idle {
    raw: Raw<CUstream_st>,
    priority: i32,
}

impl KeptStreams {
    /// Marks a context so that it is never destroyed. `priorities` is the driver's priority range.
    pub(crate) fn keep(&self, context: Raw<CUgreenCtx_st>, priorities: RangeInclusive<i32>) {
        let _same = self.priorities.set(priorities);
        self.idle.lock().entry(context.address()).or_default();
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether a context was marked by [`keep`](KeptStreams::keep).
    pub(crate) fn keeps(&self, context: Raw<CUgreenCtx_st>) -> bool {
        self.any.load(Ordering::Acquire) && self.idle.lock().contains_key(&context.address())
    }

    /// Stores a stream whose `Stream` object was dropped. The stream's context must be a kept context.
    pub(crate) fn put(&self, context: Raw<CUgreenCtx_st>, raw: Raw<CUstream_st>, priority: i32) {
        self.idle.lock().entry(context.address()).or_default().push(Idle { raw, priority });
    }

    /// Takes a stored stream with the given priority, which is first clamped to the driver's range. Returns the stream
    /// and the clamped priority.
    #[inline]
    pub(crate) fn take(
        &self,
        context: Raw<CUgreenCtx_st>,
        priority: i32,
    ) -> Option<(Raw<CUstream_st>, i32)> {
        if self.any.load(Ordering::Acquire) { self.find(context, priority) } else { None }
    }

    /// Returns whether foreign code is capturing one of the stored streams. Recording the context, or making the
    /// context wait, would invalidate the capture.
    pub(crate) fn are_capturing(&self, api: &Api, context: Raw<CUgreenCtx_st>) -> Result<bool> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(false);
        }
        // Kept streams are never destroyed. The lock is held during the queries, so that no thread takes a stream out.
        // The queries do not wait.
        let contexts = self.idle.lock();
        let streams = contexts.get(&context.address()).into_iter().flatten();
        are_capturing(api, streams.map(|idle| idle.raw.as_ptr()))
    }

    #[cold]
    fn find(&self, context: Raw<CUgreenCtx_st>, priority: i32) -> Option<(Raw<CUstream_st>, i32)> {
        let range = self.priorities.get()?;
        let priority = priority.clamp(*range.start(), *range.end());
        let mut contexts = self.idle.lock();
        let idle = contexts.get_mut(&context.address())?;
        let index = idle.iter().position(|idle| idle.priority == priority)?;
        Some((idle.swap_remove(index).raw, priority))
    }
}

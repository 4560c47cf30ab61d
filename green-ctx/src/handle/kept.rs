//! Streams that are kept for good, because foreign code has their handles and never says when it is done
//! with them.
//!
//! When the last handle of such a stream is dropped, the driver's stream waits here with its context,
//! for the next partition of the same SMs, which gets both. Neither is ever destroyed.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx_sys::{Api, CUgreenCtx_st, CUstream_st};
use parking_lot::Mutex;

use crate::handle::error::Result;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::is_capturing;

/// A device's contexts that are kept for good, with their streams that nobody uses.
#[derive(Default)]
pub(crate) struct KeptStreams {
    /// Whether there is any: all that making other streams looks at.
    any: AtomicBool,
    idle: Mutex<HashMap<usize, Vec<Idle>>>,
    /// The driver's priorities, from the first to the last to run.
    priorities: OnceLock<RangeInclusive<i32>>,
}

struct Idle {
    raw: Raw<CUstream_st>,
    priority: i32,
}

impl KeptStreams {
    /// Keeps a context from now on. `priorities` are the driver's.
    pub(crate) fn keep(&self, context: Raw<CUgreenCtx_st>, priorities: RangeInclusive<i32>) {
        let _same = self.priorities.set(priorities);
        self.idle.lock().entry(context.address()).or_default();
        self.any.store(true, Ordering::Release);
    }

    /// Whether a context is kept.
    pub(crate) fn keeps(&self, context: Raw<CUgreenCtx_st>) -> bool {
        self.any.load(Ordering::Acquire) && self.idle.lock().contains_key(&context.address())
    }

    /// Adds a stream that nobody uses any more, of a context that is kept.
    pub(crate) fn put(&self, context: Raw<CUgreenCtx_st>, raw: Raw<CUstream_st>, priority: i32) {
        self.idle.lock().entry(context.address()).or_default().push(Idle { raw, priority });
    }

    /// Takes a stream out, with its priority: the one that the driver makes of what is asked for.
    #[inline]
    pub(crate) fn take(
        &self,
        context: Raw<CUgreenCtx_st>,
        priority: i32,
    ) -> Option<(Raw<CUstream_st>, i32)> {
        if self.any.load(Ordering::Acquire) { self.find(context, priority) } else { None }
    }

    /// Whether foreign code captures one of the streams that nobody uses. Recording the context, or waiting for it,
    /// would invalidate the capture.
    pub(crate) fn are_capturing(&self, api: &Api, context: Raw<CUgreenCtx_st>) -> Result<bool> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(false);
        }
        // Under the lock, so that nobody takes a stream out meanwhile. The driver is asked and waits for nothing.
        let contexts = self.idle.lock();
        for idle in contexts.get(&context.address()).into_iter().flatten() {
            if is_capturing(api, idle.raw.as_ptr())? {
                return Ok(true);
            }
        }
        Ok(false)
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

//! The driver's streams of a context: creating, entering, keeping and leaving.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem;
use std::ptr;

use green_ctx_sys::{CUstream_flags, CUstream_st, Version};

use super::Context;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::owner::Owner;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::RawStream;
use crate::handle::report;

const FLAGS: u32 = CUstream_flags::CU_STREAM_NON_BLOCKING.0;

/// A driver stream of a context. The stream is in the context's list until this value is dropped, which also destroys
/// an owned stream that is not kept.
pub(crate) struct ContextStream {
    raw: Raw<CUstream_st>,
    /// The index in the list of a green context.
    index: usize,
    context: Context,
    /// Declared last, so that it is dropped last: an owner may keep the context alive. A stream without an owner is
    /// destroyed by this object.
    owner: Option<Owner>,
}

impl ContextStream {
    /// Enters a stream in the list of its context.
    pub(crate) fn enter(
        context: &Context,
        raw: Raw<CUstream_st>,
        owner: Option<Owner>,
    ) -> ContextStream {
        let index = context.green().map_or(0, |green| green.streams.enter(raw));
        ContextStream { raw, index, context: context.clone(), owner }
    }

    /// Returns a new stream, or a kept stream that has no object. The result is true for a kept stream, whose handle
    /// foreign code already has.
    #[inline]
    pub(crate) fn create(context: &Context, priority: i32) -> Result<(ContextStream, bool)> {
        let api = context.device().functions()?;
        let kept = context.green().and_then(|green| green.streams.take(api, priority));
        if let Some((raw, index)) = kept {
            let context = context.clone();
            return Ok((ContextStream { raw, index, context, owner: None }, true));
        }
        let raw = context.create_raw_stream(priority)?;
        Ok((ContextStream::enter(context, raw, None), false))
    }

    #[inline]
    pub(crate) fn raw(&self) -> Raw<CUstream_st> {
        self.raw
    }

    #[inline]
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Sets the owner of the stream. Without an owner, this object destroys the stream.
    pub(crate) fn set_owner(&mut self, owner: Option<Owner>) {
        self.owner = owner;
    }

    #[inline]
    pub(crate) fn raw_stream(&self) -> RawStream<'_> {
        RawStream::new(self.context.device().driver(), self.raw.as_ptr())
    }

    /// Keeps the driver's stream, which has this priority, and its context forever. Does nothing for a foreign stream,
    /// or for a context that does not belong to a partition of this crate.
    pub(crate) fn keep(&self, priority: i32) -> Result<()> {
        let lease = self.context.lease().filter(|_| self.owner.is_none());
        let (Some(_), Some(green)) = (lease, self.context.green()) else { return Ok(()) };
        let range = self.context.device().stream_priorities()?;
        // The queues may end with the context that owns them (the header does not say).
        for context in [&self.context.owner_of_queues(), &self.context] {
            // Foreign code may have the handle from now on.
            context.expose()?;
            context.green().into_iter().for_each(|green| green.streams.keep_context(&range));
        }
        green.streams.keep(self.index, priority);
        Ok(())
    }
}

impl Drop for ContextStream {
    fn drop(&mut self) {
        let driver = self.context.device().driver();
        if driver.is_forked() {
            // The owner is leaked: dropping it would act on the parent's state.
            return mem::forget(self.owner.take());
        }
        let green = self.context.green();
        // The stream leaves before it is destroyed, since the driver may reuse the address immediately.
        let stays = green.is_some_and(|green| green.streams.leave(self.index));
        if stays || self.owner.is_some() {
            return;
        }
        // Threads that have contended for the context would otherwise wait for each other in the driver, where waiting
        // takes longer.
        let _turn = green.and_then(|green| green.calls.turn_if_contended()).map(report::hold);
        driver.report(self.raw_stream().destroy());
    }
}

impl Context {
    /// Creates a stream that does not synchronise with the default stream.
    #[inline]
    pub(crate) fn create_raw_stream(&self, priority: i32) -> Result<Raw<CUstream_st>> {
        let driver = self.device().driver();
        // Before CUDA 12.5, the driver creates a green context's stream only while the context is current.
        let Some(green) = self.green().filter(|_| driver.version() >= Version::new(12, 5)) else {
            return self.create_while_current(priority);
        };
        let (mut raw, api) = (ptr::null_mut(), driver.functions()?);
        green.call(|green| {
            let green = green.as_ptr();
            // SAFETY: the green context is valid while `self` lives, and `raw` is a live local that the driver writes.
            unsafe { call!(api, cuGreenCtxStreamCreate(&raw mut raw, green, FLAGS, priority)) }
        })?;
        Raw::new(raw).ok_or_else(|| Error::null("cuGreenCtxStreamCreate"))
    }

    #[cold]
    fn create_while_current(&self, priority: i32) -> Result<Raw<CUstream_st>> {
        let driver = self.device().driver();
        let mut raw = ptr::null_mut();
        let _scope = self.scope()?;
        // SAFETY: `raw` is a live local that the driver writes. The context is current while `_scope` lives.
        unsafe {
            call!(driver.functions()?, cuStreamCreateWithPriority(&raw mut raw, FLAGS, priority))
        }?;
        Raw::new(raw).ok_or_else(|| Error::null("cuStreamCreateWithPriority"))
    }
}

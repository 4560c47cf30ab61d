//! The driver's streams of a context: creating streams, and keeping some of them forever.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;

use green_ctx_sys::{CUgreenCtx_st, CUstream_flags, CUstream_st, Version};

use super::{Context, Kind};
use crate::handle::current::Scope;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::raw::Raw;
use crate::handle::raw_stream::RawStream;

const FLAGS: u32 = CUstream_flags::CU_STREAM_NON_BLOCKING.0;

impl Context {
    /// Returns the driver's green context, if this crate created it.
    #[inline]
    fn own_green(&self) -> Option<Raw<CUgreenCtx_st>> {
        match &self.inner.kind {
            Kind::Green(green) => Some(green.raw.green),
            Kind::Primary | Kind::Borrowed(_) | Kind::Closed => None,
        }
    }

    /// Marks the driver's context so that it is never destroyed. Returns false if this crate did not create the
    /// context.
    pub(crate) fn keep(&self) -> Result<bool> {
        let Some(green) = self.own_green() else { return Ok(false) };
        let kept = &self.device().state().kept;
        if !kept.keeps(green) {
            kept.keep(green, self.device().stream_priorities()?);
        }
        Ok(true)
    }

    /// Takes a kept stream that has no `Stream` object, and returns it with its priority.
    #[inline]
    pub(crate) fn take_kept_stream(&self, priority: i32) -> Option<(Raw<CUstream_st>, i32)> {
        let (green, kept) = (self.own_green()?, &self.device().state().kept);
        let (stream, priority) = kept.take(green, priority)?;
        // Do not reuse the stream if foreign code captures it, or if the driver cannot answer.
        let raw = RawStream::new(self.device().driver(), stream.as_ptr());
        if !matches!(raw.is_capturing(), Ok(false)) {
            self.put_kept_stream(stream, priority);
            return None;
        }
        Some((stream, priority))
    }

    /// Stores a kept stream whose `Stream` object was dropped. The next stream that is created in this context with the
    /// same priority reuses the stored one.
    pub(crate) fn put_kept_stream(&self, stream: Raw<CUstream_st>, priority: i32) {
        if let Some(green) = self.own_green() {
            self.device().state().kept.put(green, stream, priority);
        }
    }

    /// Creates a stream that does not synchronise with the default stream.
    #[inline]
    pub(crate) fn create_raw_stream(&self, priority: i32) -> Result<Raw<CUstream_st>> {
        let driver = self.device().driver();
        // Before CUDA 12.5, the driver creates a green context's stream only while the context is current.
        if driver.version() < Version::new(12, 5) {
            return self.create_while_current(priority);
        }
        let mut raw = ptr::null_mut();
        let created = self.with_green(|green| {
            let (api, green) = (driver.functions()?, green.as_ptr());
            // SAFETY: the green context is valid while `self` lives, and `raw` is a live local that the driver writes.
            unsafe { call!(api, cuGreenCtxStreamCreate(&raw mut raw, green, FLAGS, priority)) }
        });
        match created {
            Some(result) => result?,
            None => return self.create_while_current(priority),
        }
        Raw::new(raw).ok_or_else(|| Error::null("cuGreenCtxStreamCreate"))
    }

    #[cold]
    fn create_while_current(&self, priority: i32) -> Result<Raw<CUstream_st>> {
        let driver = self.device().driver();
        let mut raw = ptr::null_mut();
        let _scope = Scope::enter(driver, self.raw())?;
        // SAFETY: `raw` is a live local that the driver writes. The context is current while `_scope` lives.
        unsafe {
            call!(driver.functions()?, cuStreamCreateWithPriority(&raw mut raw, FLAGS, priority))
        }?;
        Raw::new(raw).ok_or_else(|| Error::null("cuStreamCreateWithPriority"))
    }
}

//! Streams: where work is submitted.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx_sys::{CUstream, CUstream_flags, CUstream_st, Version};

use crate::context::Context;
use crate::current::Scope;
use crate::driver::Driver;
use crate::error::{Error, Result, call, check_done};
use crate::event::Event;
use crate::raw::Raw;

/// A stream of one context. Clones share it; the last one destroys it.
///
/// Work that is submitted to a stream of a green context runs on that context's SMs. Destroying a
/// stream does not stop its work.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, EventOptions, StreamOptions, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let context = device.primary_context()?;
/// let producer = context.create_stream(StreamOptions::default())?;
/// let consumer = context.create_stream(StreamOptions::default().priority(-5))?;
///
/// // What is submitted to the consumer from now on waits for the producer's work so far.
/// let done = device.create_event(EventOptions::default())?;
/// producer.record(&done)?;
/// consumer.wait(&done)?;
/// consumer.synchronize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "CUstream")]
pub struct Stream {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    raw: Raw<CUstream_st>,
    context: Context,
    /// Whether the raw handle has been given out, and with it entered in the registry: nobody can
    /// look up a handle that nobody was given, and entering costs as much as all else that making a
    /// stream adds to the driver's call.
    known: AtomicBool,
}

/// How to create a stream. Default priority, no synchronisation with the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until passed to a call"]
pub struct StreamOptions {
    priority: i32,
}

impl StreamOptions {
    /// Sets the priority; lower numbers run first. The driver clamps it to its range, 0 to -5 on an
    /// H200.
    pub const fn priority(mut self, priority: i32) -> StreamOptions {
        self.priority = priority;
        self
    }
}

impl Stream {
    pub(crate) fn from_inner(inner: Arc<Inner>) -> Stream {
        Stream { inner }
    }

    pub(crate) fn create(context: &Context, options: StreamOptions) -> Result<Stream> {
        let raw = create_raw(context, options.priority)?;
        let raw = Raw::new(raw).ok_or(Error::null("cuStreamCreateWithPriority"))?;
        let (context, known) = (context.clone(), AtomicBool::new(false));
        let stream = Stream { inner: Arc::new(Inner { raw, context, known }) };
        stream.context().fence(&stream)?;
        Ok(stream)
    }

    /// The context that the stream's work runs in.
    #[must_use]
    #[doc(alias("cuStreamGetCtx", "cuStreamGetGreenCtx"))]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's handle. [`Driver::find_stream`] leads back from it.
    #[must_use]
    pub fn as_raw(&self) -> CUstream {
        if !self.inner.known.load(Ordering::Acquire) {
            self.driver().streams().enter(self.inner.raw.address(), &self.inner);
            self.inner.known.store(true, Ordering::Release);
        }
        self.raw()
    }

    /// The driver's handle, for calls of this crate.
    #[inline]
    pub(crate) fn raw(&self) -> CUstream {
        self.inner.raw.as_ptr()
    }

    /// The stream's number, unique in the process.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuStreamGetId")]
    pub fn id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the stream is alive, the pointer is to a live integer.
        unsafe { call!(self.driver().api(), cuStreamGetId(self.raw(), &raw mut id)) }?;
        Ok(id)
    }

    /// The priority that the driver gave the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuStreamGetPriority")]
    pub fn priority(&self) -> Result<i32> {
        let mut priority = 0;
        // SAFETY: the stream is alive, the pointer is to a live integer.
        unsafe { call!(self.driver().api(), cuStreamGetPriority(self.raw(), &raw mut priority)) }?;
        Ok(priority)
    }

    /// Records an event that completes when the work submitted so far has.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], for an event of another device too.
    #[inline]
    #[doc(alias = "cuEventRecord")]
    pub fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { call!(self.driver().api(), cuEventRecord(event.as_raw(), self.raw())) }
    }

    /// Makes the work submitted from now on wait for an event.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[inline]
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both handles are alive; 0 is the only flag outside of capture.
        unsafe { call!(self.driver().api(), cuStreamWaitEvent(self.raw(), event.as_raw(), 0)) }
    }

    /// Whether all submitted work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work included.
    #[doc(alias = "cuStreamQuery")]
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive.
        check_done("cuStreamQuery", unsafe { self.driver().api().cuStreamQuery()?(self.raw()) })
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work included.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { call!(self.driver().api(), cuStreamSynchronize(self.raw())) }
    }

    #[inline]
    pub(crate) fn driver(&self) -> &Driver {
        self.inner.driver()
    }
}

fn create_raw(context: &Context, priority: i32) -> Result<CUstream> {
    let driver = context.device().driver();
    let api = driver.api();
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    let mut raw = ptr::null_mut();
    // Drivers before 12.5 make a green context's stream while it is current.
    let direct = driver.version() >= Version::new(12, 5);
    let created = if direct {
        context.with_green(|green| {
            // SAFETY: the green context is alive, the pointer is to a live handle.
            unsafe { call!(api, cuGreenCtxStreamCreate(&raw mut raw, green, flags, priority)) }
        })
    } else {
        None
    };
    if let Some(result) = created {
        result?;
    } else {
        let _scope = Scope::enter(driver, context.as_raw())?;
        // SAFETY: the pointer is to a live handle.
        unsafe { call!(api, cuStreamCreateWithPriority(&raw mut raw, flags, priority)) }?;
    }
    Ok(raw)
}

impl Inner {
    #[inline]
    fn driver(&self) -> &Driver {
        self.context.device().driver()
    }

    fn destroy(&self) -> Result<()> {
        // SAFETY: nobody else has the handle, and this is its only end.
        unsafe { call!(self.driver().api(), cuStreamDestroy(self.raw.as_ptr())) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Forgotten before it is given up: the driver may use the address again at once.
        if *self.known.get_mut() {
            self.driver().streams().forget(self.raw.address(), self);
        }
        self.driver().report(self.destroy());
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Stream {}

impl Hash for Stream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("context", &self.inner.context).finish_non_exhaustive()
    }
}

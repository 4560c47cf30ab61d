//! Streams: where work is submitted.
#![allow(unsafe_code, reason = "calls the driver")]

mod default;
mod foreign;
mod host;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::{Arc, OnceLock};

use green_ctx_sys::{CUstream, CUstream_st};

use crate::handle::context::{Context, OwnStream};
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::call;
use crate::handle::error::{Error, Result, check_done};
use crate::handle::event::{Event, EventOptions};
use crate::handle::owner::Ownership;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::RawStream;
use crate::handle::registry::Registry;

pub use crate::handle::token::DefaultStream;
pub(crate) use foreign::context_of;

/// A stream of one context. Clones share it; the last one destroys it.
///
/// Work that is submitted to a stream of a green context runs on that context's SMs. Destroying a
/// stream does not stop its work.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, StreamOptions, sim::Sim, event::EventOptions};
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
#[doc(alias = "CUstream")]
pub struct Stream {
    inner: Arc<Inner>,
}

/// What the handles of a stream share, and what the registry leads to.
pub(crate) struct Inner {
    raw: Raw<CUstream_st>,
    context: Context,
    /// The stream's number among those of its context, if that counts them.
    slot: Option<usize>,
    /// Set once the registry has it: when the raw handle is first given out. A stream that never is saves the entry.
    registered: OnceLock<()>,
    /// Its priority, if the driver's stream is kept for good.
    kept: OnceLock<i32>,
    /// Dropped after everything else: an owner may keep the context too.
    ownership: Ownership,
}

/// How to create a stream. Default priority, no synchronisation with the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until passed to a call"]
pub struct StreamOptions {
    priority: i32,
}

impl InSlot for Registry<Inner> {
    const SLOT: Slot = Slot::Streams;

    fn make(_driver: &Driver) -> Self {
        Registry::default()
    }
}

impl Driver {
    /// The living [`Stream`] behind a raw handle, if it is one of this crate's. The default-stream
    /// tokens (null, 1 and 2) name no stream.
    #[inline]
    #[must_use]
    pub fn find_stream(&self, raw: CUstream) -> Option<Stream> {
        self.registered(self.streams(), raw.addr()).map(Stream::from_inner)
    }

    pub(crate) fn streams(&self) -> &Registry<Inner> {
        self.slot()
    }
}

impl Context {
    /// Creates a stream whose work runs in this context.
    ///
    /// It does not synchronise with the default stream, in a green context because the driver
    /// demands that.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias("cuGreenCtxStreamCreate", "cuStreamCreateWithPriority"))]
    #[inline]
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        Stream::create(self, options)
    }
}

impl StreamOptions {
    /// Sets the priority; lower numbers run first. The driver clamps it to its range
    /// ([`Device::stream_priorities`](crate::Device::stream_priorities)), -5 to 0 on an H200.
    pub const fn priority(mut self, priority: i32) -> StreamOptions {
        self.priority = priority;
        self
    }
}

impl Stream {
    #[inline]
    pub(crate) fn from_inner(inner: Arc<Inner>) -> Stream {
        Stream { inner }
    }

    #[inline]
    pub(crate) fn create(context: &Context, options: StreamOptions) -> Result<Stream> {
        context.device().driver().check_process()?;
        // Before the driver's call: a processor waits for all that it wrote when a count changes.
        let context = context.for_stream();
        let taken = context.take_kept_stream(options.priority).map(|(raw, kept)| (raw, Some(kept)));
        let create = || Ok((context.create_raw_stream(options.priority)?, None));
        let (raw, kept) = match taken.map_or_else(create, Ok) {
            Ok(made) => made,
            Err(error) => {
                context.count_out();
                context.device().note(&error);
                return Err(error);
            }
        };
        let slot = context.enter_stream(raw);
        let (registered, kept) = (OnceLock::new(), kept.map_or_else(OnceLock::new, OnceLock::from));
        let ownership = Ownership::Owned;
        let stream =
            Stream::from_inner(Arc::new(Inner { raw, context, slot, registered, kept, ownership }));
        if stream.inner.kept.get().is_some() {
            // Foreign code has its handle.
            stream.register();
        }
        stream.context().hold_new(stream.raw_stream())?;
        Ok(stream)
    }

    /// Enters the stream in the registry, unless it is there.
    fn register(&self) {
        self.inner.registered.get_or_init(|| {
            if !self.driver().is_forked() {
                self.driver().streams().enter(self.inner.raw.address(), &self.inner);
            }
        });
    }

    /// The context that the stream's work runs in.
    #[inline]
    #[must_use]
    #[doc(alias("cuStreamGetCtx", "cuStreamGetGreenCtx"))]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's handle. [`Driver::find_stream`] leads back from it.
    ///
    /// Whoever has it finds the stream's context, so this gives that out too ([`Context::as_raw`]).
    #[must_use]
    pub fn as_raw(&self) -> CUstream {
        // Whoever has a stream finds its context (cuStreamGetCtx), and that context's default stream.
        self.driver().report(self.context().expose());
        self.register();
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
    /// [`Error::Capturing`] while the stream is captured, since the question would invalidate the capture
    /// (recorded on an H200), [`Error::Driver`].
    #[doc(alias = "cuStreamGetId")]
    pub fn id(&self) -> Result<u64> {
        if self.is_capturing()? {
            return Err(Error::Capturing);
        }
        let mut id = 0;
        // SAFETY: the stream is alive, the pointer is to a live integer.
        unsafe { call!(self.driver().functions()?, cuStreamGetId(self.raw(), &raw mut id)) }?;
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
        unsafe {
            call!(self.driver().functions()?, cuStreamGetPriority(self.raw(), &raw mut priority))
        }?;
        Ok(priority)
    }

    /// Keeps the driver's stream and its context until the process ends, whichever handles are dropped:
    /// for foreign code that has the stream and never says when it is done with it, such as PyTorch's
    /// autograd and its allocator.
    ///
    /// The last handle gives the SMs back as ever. Stream and context then wait for the next partition of
    /// the same SMs, which gets both: [`Context::create_stream`] returns this stream where its priority is
    /// the one asked for. [`Device::release_idle`](crate::Device::release_idle) leaves them. What foreign
    /// code submits after the last handle is dropped still runs on those SMs, whoever has them by then, and
    /// nothing waits for it.
    ///
    /// For streams of partitions that this crate made; for others it does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]. The stream is not kept then.
    pub fn keep_alive(&self) -> Result<()> {
        let inner = &self.inner;
        if inner.kept.get().is_none() && inner.ownership.is_owned() && self.context().keep()? {
            let _same = inner.kept.set(self.priority()?);
        }
        Ok(())
    }

    /// Records an event that completes when the work submitted so far has.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] for an event of another driver, and [`Error::Driver`], for an event
    /// of another device too.
    #[inline]
    #[doc(alias = "cuEventRecord")]
    pub fn record(&self, event: &Event) -> Result<()> {
        event.check_driver(self.driver())?;
        self.raw_stream().record(event.raw())
    }

    /// Makes the work submitted from now on wait for an event.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] for an event of another driver, and [`Error::Driver`].
    #[inline]
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.check_driver(self.driver())?;
        self.raw_stream().wait(event.raw())
    }

    /// Makes the work submitted to this stream from now on wait for the work submitted to another so
    /// far. The other may be of any context, of this device or another.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] for a stream of another driver, and [`Error::Driver`].
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let mut groups = device.resources().sm()?.split([16, 32])?.groups.into_iter();
    /// # let mut partition = || -> Result<_, Box<dyn std::error::Error>> {
    /// #     Ok(device.create_context(groups.next().ok_or("two groups")?)?)
    /// # };
    /// # let (prefill, decode) = (partition()?, partition()?);
    /// let producer = prefill.create_stream(StreamOptions::default())?;
    /// let consumer = decode.create_stream(StreamOptions::default())?;
    /// consumer.wait_for(&producer)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        if self == other {
            return Ok(());
        }
        if self.driver() != other.driver() {
            return Err(Error::DeviceMismatch { what: "the streams" });
        }
        // Of the other's device, since a stream records events of its own device only. The driver
        // keeps what a waiting stream needs of it when it is destroyed.
        let event = other.context().device().create_event(EventOptions::default())?;
        other.record(&event)?;
        self.wait(&event)
    }

    /// Whether all submitted work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work included.
    #[doc(alias = "cuStreamQuery")]
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive.
        check_done("cuStreamQuery", unsafe {
            self.driver().functions()?.cuStreamQuery()?(self.raw())
        })
        .inspect_err(|error| self.context().device().note(error))
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work included.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.raw_stream().synchronize().inspect_err(|error| self.context().device().note(error))
    }

    #[inline]
    pub(crate) fn driver(&self) -> &Driver {
        self.context().device().driver()
    }

    #[inline]
    pub(crate) fn raw_stream(&self) -> RawStream<'_> {
        RawStream::new(self.driver(), self.raw())
    }
}

/// What captures have the ends of streams tell them.
pub(crate) struct EndHooks {
    /// Called before a stream leaves the registry.
    pub(crate) ends: fn(&Context, Raw<CUstream_st>) -> Result<()>,
    /// Called when it has left, before it is destroyed.
    pub(crate) left: fn(&Driver),
}

/// Set before the process's first capture begins.
pub(crate) static END_HOOKS: OnceLock<EndHooks> = OnceLock::new();

impl OwnStream for Stream {
    fn seclude(&self, and: &mut dyn FnMut() -> bool) -> bool {
        // Also if the registry has no entry: a clone on another thread can make one until the count is taken.
        self.driver().streams().seclude_if(self.inner.raw.address(), &self.inner, 1, and)
    }

    fn reveal(&self) {
        if self.inner.registered.get().is_some() {
            self.driver().streams().enter(self.inner.raw.address(), &self.inner);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let driver = self.context.device().driver();
        if driver.is_forked() {
            // Not even the owner: what it does was meant for the parent.
            return mem::forget(mem::replace(&mut self.ownership, Ownership::Owned));
        }
        let (raw, context) = (self.raw, &self.context);
        let noted = END_HOOKS.get().map_or(Ok(()), |hooks| (hooks.ends)(context, raw));
        // It leaves before it is destroyed: the driver may use the address again at once.
        if let Some(slot) = self.slot {
            context.leave_stream(slot);
        }
        if self.registered.get().is_some() {
            driver.streams().forget(raw.address(), self);
            if let Some(hooks) = END_HOOKS.get() {
                (hooks.left)(driver);
            }
        }
        // The hook may wait for the thread that ends the capture, which waits until this stream has left.
        driver.report(noted);
        match self.kept.get() {
            Some(priority) => context.put_kept_stream(raw, *priority),
            None if self.ownership.is_owned() => {
                // SAFETY: the handle is destroyed only here, and no other code has it.
                let destroy =
                    || unsafe { call!(driver.functions()?, cuStreamDestroy(raw.as_ptr())) };
                driver.report(context.destroy_stream(destroy));
            }
            None => {}
        }
        self.context.count_out();
    }
}

impl Clone for Stream {
    fn clone(&self) -> Stream {
        Stream::from_inner(Arc::clone(&self.inner))
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.raw() == other.raw() && self.driver() == other.driver()
    }
}

impl Eq for Stream {}

impl Hash for Stream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.raw().hash(state);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("context", self.context()).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::handle::event::EventOptions;

    #[test]
    fn registries_forget() -> Result<()> {
        let driver = Driver::simulated(&green_ctx_sim::Sim::new("h200")?)?;
        let context = driver.device(0)?.primary_context()?;
        let stream = context.create_stream(StreamOptions::default())?;
        let event = context.device().create_event(EventOptions::default())?;
        let counts = || (driver.contexts().len(), driver.streams().len(), driver.events().len());
        // Streams and events enter when their handles are given out.
        assert_eq!(counts(), (1, 0, 0));
        let _ = (stream.as_raw(), event.as_raw());
        assert_eq!(counts(), (1, 1, 1));
        drop((stream, event));
        assert_eq!(counts(), (1, 0, 0));

        let mut raw = std::ptr::null_mut();
        {
            let _current = context.make_current()?;
            // SAFETY: the pointer is to a live handle.
            unsafe { call!(driver.api(), cuStreamCreate(&raw mut raw, 1)) }?;
        }
        // SAFETY: the stream lives until the test's end.
        let foreign = unsafe { Stream::from_raw_borrowed(&driver, raw, ()) }?;
        assert_eq!(counts(), (1, 1, 0));
        drop((foreign, context));
        assert_eq!(counts(), (0, 0, 0));
        Ok(())
    }
}

//! Streams: creating, ordering and synchronising them.
#![allow(unsafe_code, reason = "calls the driver")]

mod default;
mod foreign;
mod host;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use green_ctx_sys::{CUstream, CUstream_st};

use crate::handle::context::{Context, ContextStream};
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::call;
use crate::handle::error::{Error, Result, check_done};
use crate::handle::event::{Event, EventOptions};
use crate::handle::raw::Raw;
use crate::handle::raw_stream::RawStream;
use crate::handle::registry::{Registry, Step};

pub use crate::handle::token::DefaultStream;
pub(crate) use foreign::context_of;

/// A stream of one context. Clones share the stream, and dropping the last clone destroys the stream.
///
/// Work that is submitted to a stream of a green context runs on that context's SMs. Destroying a stream does not
/// stop its work.
///
/// # Examples
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
/// // The consumer's later work waits for the producer's work so far.
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

/// State that all handles of a stream share. The registry holds a weak reference to this state.
pub(crate) struct Inner {
    stream: ContextStream,
    /// This cell is set once the stream is in the registry. A stream enters the registry when its raw handle is first
    /// given out. A stream whose handle is never given out needs no entry.
    registered: OnceLock<()>,
}

/// Options for a new stream: its priority, which is 0 by default. A new stream never synchronises with the default
/// stream.
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
    /// Returns the live [`Stream`] of this crate that has this raw handle. Returns `None` for other streams and
    /// for the default-stream tokens (null, 1 and 2), which do not identify a stream.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// let parts = driver.device(0)?.partition([32])?;
    /// let raw = parts[0].stream().as_raw();
    /// assert_eq!(driver.find_stream(raw).as_ref(), Some(parts[0].stream()));
    /// # Ok(())
    /// # }
    /// ```
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
    /// The stream does not synchronise with the default stream, as the driver requires for streams of green contexts.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver cannot create the stream.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// let parts = driver.device(0)?.partition([32])?;
    /// let urgent = parts[0].context().create_stream(StreamOptions::default().priority(-2))?;
    /// assert_eq!(urgent.context(), parts[0].context());
    /// assert_eq!(urgent.priority()?, -2);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuGreenCtxStreamCreate", "cuStreamCreateWithPriority"))]
    #[inline]
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        Stream::create(self, options)
    }
}

impl StreamOptions {
    /// Sets the priority. Work of a stream with a lower number runs first. The driver clamps the priority to its
    /// range ([`Device::stream_priorities`](crate::Device::stream_priorities)), which is -5 to 0 on an H200.
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
        let (stream, is_kept) = ContextStream::create(context, options.priority)
            .inspect_err(|error| context.device().note(error))?;
        let registered = if is_kept { OnceLock::from(()) } else { OnceLock::new() };
        let inner = Arc::new(Inner { stream, registered });
        let stream = if is_kept { Stream::enter(inner).0 } else { Stream { inner } };
        stream.context().hold_new(stream.raw_stream())?;
        Ok(stream)
    }

    /// Returns the object that represents a handle that foreign code has: the registered one, or `fresh`. Also returns
    /// `fresh` if it is not used.
    fn enter(fresh: Arc<Inner>) -> (Stream, Option<Arc<Inner>>) {
        let driver = fresh.stream.context().device().driver().clone();
        let (inner, late) = driver.streams().get_or_enter(fresh.stream.raw().address(), fresh);
        (Stream { inner }, late)
    }

    /// Enters the stream in the registry if it is not there yet.
    fn register(&self) {
        self.inner.registered.get_or_init(|| {
            if !self.driver().is_forked() {
                self.driver().streams().enter(self.inner.raw().address(), &self.inner);
            }
        });
    }

    /// Returns the context in which the stream's work runs.
    #[inline]
    #[must_use]
    #[doc(alias("cuStreamGetCtx", "cuStreamGetGreenCtx"))]
    pub fn context(&self) -> &Context {
        self.inner.stream.context()
    }

    /// Returns the driver's handle. [`Driver::find_stream`] maps the handle back to this stream.
    ///
    /// Code that has the handle can also get the stream's context, so this call exposes the context as
    /// [`Context::as_raw`] does.
    #[must_use]
    pub fn as_raw(&self) -> CUstream {
        // `cuStreamGetCtx` leads from the stream to its context, and so to the context's default stream.
        self.driver().report(self.context().expose());
        self.register();
        self.raw()
    }

    /// Returns the driver's handle, for calls within this crate only.
    #[inline]
    pub(crate) fn raw(&self) -> CUstream {
        self.inner.stream.raw().as_ptr()
    }

    /// Returns the driver's id of the stream, which is unique in the process.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] if the stream is being captured: the query would invalidate the capture (recorded on an
    /// H200). [`Error::Driver`] if the driver call fails.
    #[doc(alias = "cuStreamGetId")]
    pub fn id(&self) -> Result<u64> {
        if self.is_capturing()? {
            return Err(Error::Capturing);
        }
        let mut id = 0;
        // SAFETY: `self` keeps the stream alive, and `id` is a live local.
        unsafe { call!(self.driver().functions()?, cuStreamGetId(self.raw(), &raw mut id)) }?;
        Ok(id)
    }

    /// Returns the priority that the driver gave the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver call fails.
    #[doc(alias = "cuStreamGetPriority")]
    pub fn priority(&self) -> Result<i32> {
        let mut priority = 0;
        // SAFETY: `self` keeps the stream alive, and `priority` is a live local.
        unsafe {
            call!(self.driver().functions()?, cuStreamGetPriority(self.raw(), &raw mut priority))
        }?;
        Ok(priority)
    }

    /// Keeps the driver's stream and its context alive until the process ends, even after all handles are dropped.
    /// Use this call if foreign code holds the stream and never reports that it has finished with the stream.
    /// PyTorch's autograd and allocator are examples of such code.
    ///
    /// Dropping the last handle still gives the SMs back. The next partition of the same SMs, with the same workqueue,
    /// reuses the stream and its context: [`Context::create_stream`] returns this stream if the requested priority is
    /// the same.
    /// [`Device::release_idle`](crate::Device::release_idle) does not release the stream and its context. If the stream
    /// is [wrapped](Stream::from_raw_borrowed) in the meantime, its object belongs to the next partition on the same
    /// SMs, and counts as one of its handles.
    ///
    /// Work that foreign code submits while no partition has the context still runs on those SMs, even if partitions on
    /// some of these SMs exist. No other work waits for such work. Work that foreign code submits while a later
    /// partition has the context counts as work of that partition.
    ///
    /// This call does nothing for a stream that is not in a partition of this crate, and for a wrapped stream.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver call fails. If this call fails, dropping the last handle destroys the stream
    /// as usual.
    pub fn keep_alive(&self) -> Result<()> {
        self.inner.stream.keep(self.priority()?)
    }

    /// Records an event. The event completes when the work submitted to this stream so far is done.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if the event belongs to another driver. [`Error::Driver`] if the driver call
    /// fails, for example because the event belongs to another device.
    #[inline]
    #[doc(alias = "cuEventRecord")]
    pub fn record(&self, event: &Event) -> Result<()> {
        event.check_driver(self.driver())?;
        self.raw_stream().record(event.raw())
    }

    /// Makes all work submitted to this stream from now on wait for an event.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if the event belongs to another driver. [`Error::Driver`] if the driver call
    /// fails.
    #[inline]
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.check_driver(self.driver())?;
        self.raw_stream().wait(event.raw())
    }

    /// Makes all work submitted to this stream from now on wait for the work submitted to `other` so far. `other`
    /// may belong to any context of this device or of another device.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if `other` belongs to another driver. [`Error::Driver`] if a driver call fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let parts = device.partition([16, 32])?;
    /// let (prefill, decode) = (parts[0].stream(), parts[1].stream());
    /// // Work submitted to `decode` from now on waits for the work submitted to `prefill` so far.
    /// decode.wait_for(prefill)?;
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
        // The event belongs to the other stream's device, because a stream can only record events of its own
        // device. Dropping the event is sound: the driver keeps the state that the waiting stream needs.
        let event = other.context().device().create_event(EventOptions::default())?;
        other.record(&event)?;
        self.wait(&event)
    }

    /// Returns whether all submitted work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver call fails or if work that was submitted earlier failed.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let parts = driver.device(0)?.partition([32])?;
    /// let stream = parts[0].stream();
    /// stream.launch_host(|| println!("on the host"))?;
    /// stream.synchronize()?;
    /// assert!(stream.is_idle()?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuStreamQuery")]
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: `self` keeps the stream alive.
        check_done("cuStreamQuery", unsafe {
            self.driver().functions()?.cuStreamQuery()?(self.raw())
        })
        .inspect_err(|error| self.context().device().note(error))
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver call fails or if work that was submitted earlier failed.
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
        self.inner.stream.raw_stream()
    }
}

/// The functions that notify open captures when a stream is dropped.
pub(crate) struct EndHooks {
    /// The function that is called before the stream leaves the registry.
    pub(crate) ends: fn(&Context, Raw<CUstream_st>) -> Result<()>,
    /// The function that is called after the stream has left the registry and before the stream is destroyed.
    pub(crate) left: fn(&Driver),
}

/// The hooks, which are set before the process's first capture begins.
pub(crate) static END_HOOKS: OnceLock<EndHooks> = OnceLock::new();

impl Stream {
    /// Takes a step of the close of these streams, as [`Registry::alone`] does. A stream that has no entry in the
    /// registry counts too: until the check, a clone on another thread can make an entry.
    pub(crate) fn alone(
        streams: &[&Stream],
        driver: &Driver,
        step: Step,
        and: impl FnOnce() -> bool,
    ) -> bool {
        let objects = streams.iter().map(|one| (one.inner.raw().address(), &one.inner, 1));
        driver.streams().alone(step, &objects.collect::<Vec<_>>(), and)
    }
}

impl Inner {
    fn raw(&self) -> Raw<CUstream_st> {
        self.stream.raw()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let context = self.stream.context();
        let driver = context.device().driver();
        if driver.is_forked() {
            return;
        }
        let raw = self.raw();
        let noted = END_HOOKS.get().map_or(Ok(()), |hooks| (hooks.ends)(context, raw));
        if self.registered.get().is_some() {
            driver.streams().forget(raw.address(), self);
            if let Some(hooks) = END_HOOKS.get() {
                (hooks.left)(driver);
            }
        }
        // Reported last: the clean-up hook may wait for the thread that ends the capture, and that thread waits
        // until this stream has left.
        driver.report(noted);
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
        // Streams and events enter the registry when their handles are given out.
        assert_eq!(counts(), (1, 0, 0));
        let _ = (stream.as_raw(), event.as_raw());
        assert_eq!(counts(), (1, 1, 1));
        drop((stream, event));
        assert_eq!(counts(), (1, 0, 0));

        let mut raw = std::ptr::null_mut();
        {
            let _current = context.make_current()?;
            // SAFETY: `raw` is a live local.
            unsafe { call!(driver.api(), cuStreamCreate(&raw mut raw, 1)) }?;
        }
        // SAFETY: this test never destroys the stream.
        let foreign = unsafe { Stream::from_raw_borrowed(&driver, raw, ()) }?;
        assert_eq!(counts(), (1, 1, 0));
        drop((foreign, context));
        assert_eq!(counts(), (0, 0, 0));
        Ok(())
    }
}

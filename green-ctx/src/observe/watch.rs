//! Watching: observing which work runs outside its partition.
//!
//! A watch queries the driver, because the data in an object of this crate can be out of date. A graph is checked by
//! the handles of its nodes' contexts. The check does not depend on the objects that existed when the graph was
//! captured. A launch of a graph is checked by the context handles that are stored in the executable. A launch into a
//! stream that is being captured is not checked. The captured graph is checked when the graph is launched.
//!
//! While nothing is watched, a launch reads one counter. The watches of all threads are in one list, each with its
//! thread's id, and a launch copies the watches of its thread before the launch queries the driver.
#![allow(unsafe_code, reason = "calls the driver")]

mod launches;

use std::fmt;
use std::mem;
use std::sync::Arc;

use green_ctx_sys::{CUcontext, CUstream};
use parking_lot::Mutex;

use crate::graph::Graph;
use crate::handle::context::Context;
use crate::handle::current;
#[cfg(doc)]
use crate::handle::device::Device;
use crate::handle::driver::Driver;
use crate::handle::error::{Error, Result};
use crate::handle::raw::Raw;
use crate::work::stream::{DefaultStream, Stream, context_of};

pub use crate::handle::escape::{Escape, EscapeKind};
pub use launches::Watching;

pub use crate::handle::location::Location;

/// A check that work stays in one partition. Clones share the collected escapes.
///
/// Pass streams, graphs and contexts to the watch, with a name for each. The watch collects escapes: work that would
/// run outside the partition. The watch queries the driver instead of trusting the objects. For a stream, the watch
/// calls `cuStreamGetCtx`, or `cuStreamGetGreenCtx` before CUDA 12.5. For a graph, the watch compares the contexts of
/// the nodes. [`launches`](Watch::launches) also checks every launch that a thread makes through this crate. The
/// [manual](crate::guide::escapes) lists what a watch cannot find.
///
/// A watch holds the first [`MAX_ESCAPES`](Watch::MAX_ESCAPES) escapes and counts the
/// [rest](Watch::omitted_escapes). Empty a long-lived watch with [`take_escapes`](Watch::take_escapes).
///
/// Under a [reserve](crate::guide::reserve), work in the primary context of the partition's device cannot use a floor.
/// The watch does not report such work, and its checks return true for it.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, SplitRequest, StreamOptions, sim::Sim, watch::Watch};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let request = SplitRequest::new().group("decode", 16);
/// let group = device.resources().sm()?.split(request)?.groups.remove(0);
/// let decode = device.create_context(group)?;
/// let ours = decode.create_stream(StreamOptions::default())?;
/// let pooled = device.primary_context()?.create_stream(StreamOptions::default())?;
///
/// let watch = Watch::new(&decode);
/// assert!(watch.stream("attention", &ours)?);
/// assert!(!watch.stream("sampling", &pooled)?);
/// let escapes = watch.escapes();
/// assert_eq!(escapes.len(), 1);
/// assert_eq!(
///     escapes[0].to_string(),
///     "sampling escapes decode: a stream of the primary context, 132 SMs of primary (device 0)"
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Watch {
    inner: Arc<Inner>,
}

struct Inner {
    expected: Context,
    escapes: Mutex<Escapes>,
}

/// The escapes that a watch has collected.
#[derive(Default)]
struct Escapes {
    /// The first escapes since the last call to `take_escapes`. At most [`Watch::MAX_ESCAPES`] escapes are kept.
    kept: Vec<Escape>,
    /// The number of escapes that were not stored because the list was full.
    omitted: u64,
}

impl Watch {
    /// The maximum number of escapes that a watch holds.
    pub const MAX_ESCAPES: usize = 1000;

    /// Creates a watch for a partition.
    #[must_use]
    pub fn new(partition: &Context) -> Watch {
        let expected = partition.clone();
        Watch { inner: Arc::new(Inner { expected, escapes: Mutex::default() }) }
    }

    /// Returns the context of the watched partition.
    #[must_use]
    pub fn partition(&self) -> &Context {
        &self.inner.expected
    }

    /// Returns the work that would run outside the partition, in the order in which it was passed or launched. The
    /// list holds the first [`MAX_ESCAPES`](Watch::MAX_ESCAPES) escapes since the last call to
    /// [`take_escapes`](Watch::take_escapes).
    #[must_use]
    pub fn escapes(&self) -> Vec<Escape> {
        self.inner.escapes.lock().kept.clone()
    }

    /// Removes the collected [escapes](Watch::escapes) and returns them, so that the watch can store new escapes.
    #[must_use = "the watch no longer holds these escapes"]
    pub fn take_escapes(&self) -> Vec<Escape> {
        mem::take(&mut self.inner.escapes.lock().kept)
    }

    /// Returns the number of escapes, since the watch was created, that were not stored because the list was full.
    #[must_use]
    pub fn omitted_escapes(&self) -> u64 {
        self.inner.escapes.lock().omitted
    }

    /// Checks a stream. Returns whether the stream is inside the partition.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if the stream belongs to another driver. [`Error::Driver`] if a driver call fails.
    /// If this call fails, the watch collects nothing.
    #[doc(alias = "cuStreamGetGreenCtx")]
    pub fn stream(&self, name: &str, stream: &Stream) -> Result<bool> {
        self.check_driver(stream.driver(), "the stream and the watch")?;
        // SAFETY: `stream` keeps the raw stream alive.
        unsafe { self.raw_stream(name, stream.raw()) }
    }

    /// Checks a foreign stream. Returns whether the stream is inside the partition. A default-stream token means the
    /// default stream of the context that is current on this thread.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if a driver call fails. If this call fails, the watch collects nothing.
    ///
    /// # Safety
    ///
    /// `raw` must be a live stream of the partition's driver, or a default-stream token.
    #[doc(alias = "cuStreamGetGreenCtx")]
    pub unsafe fn raw_stream(&self, name: &str, raw: CUstream) -> Result<bool> {
        let driver = self.driver();
        let token = DefaultStream::from_raw(raw);
        let (None, Some(handle)) = (token, Raw::new(raw)) else {
            let current = current::get(driver)?;
            return self.judge(name, current, || EscapeKind::DefaultStream);
        };
        // SAFETY: the stream is alive by this function's contract.
        let (context, green) = unsafe { context_of(driver, handle) }?;
        self.judge(name, context.as_ptr(), || EscapeKind::of_stream(green.is_some()))
    }

    /// Checks a context. Returns whether the context is the partition's context.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if the context belongs to another driver. [`Error::Driver`] if a driver call
    /// fails.
    pub fn context(&self, name: &str, context: &Context) -> Result<bool> {
        self.check_driver(context.device().driver(), "the context and the watch")?;
        self.judge(name, context.raw(), || EscapeKind::Context)
    }

    /// Checks the nodes of a graph. Returns whether all nodes that use SMs are inside the partition, as far as the
    /// driver reports their contexts. Before CUDA 13.2, the driver reports the contexts of kernels only.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if the graph belongs to another driver. [`Error::Driver`] if a driver call fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, graph::CaptureMode, sim::Sim, watch::Watch};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// let parts = device.partition([16])?;
    /// let outside = device.primary_context()?.create_stream(StreamOptions::default())?;
    /// let graph = outside.capture(CaptureMode::default(), || {
    ///     // SAFETY: the kernel takes no parameters.
    ///     unsafe { outside.launch(&step, LaunchConfig::new(64, 128), ()) }
    /// })?;
    /// let watch = Watch::new(parts[0].context());
    /// assert!(!watch.graph("decode step", &graph)?);
    /// assert!(watch.graph("decode step", &graph.retarget(parts[0].context())?)?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuGraphKernelNodeGetParams")]
    pub fn graph(&self, name: &str, graph: &Graph) -> Result<bool> {
        self.check_driver(graph.device().driver(), "the graph and the watch")?;
        let nodes = graph.outside(&self.inner.expected)?;
        let Some(first) = nodes.first() else { return Ok(true) };
        let location = first.location.clone();
        self.collect(Escape::new(
            name,
            &self.inner.expected,
            EscapeKind::Graph { nodes },
            location,
        ));
        Ok(false)
    }

    /// Collects an escape if work in `found` leaves the partition. Returns true if it does not.
    fn judge(
        &self,
        name: &str,
        found: CUcontext,
        kind: impl FnOnce() -> EscapeKind,
    ) -> Result<bool> {
        let expected = &self.inner.expected;
        if expected.without_escape()?.contains(&found) {
            return Ok(true);
        }
        // SAFETY: `found` is the context of a live stream or object, or the current context. Code that makes a
        // context current must keep it alive.
        let location = || unsafe { Location::of_raw(self.driver(), found) };
        let location = if found.is_null() { None } else { Some(location()?) };
        self.collect(Escape::new(name, expected, kind(), location));
        Ok(false)
    }

    fn collect(&self, escape: Escape) {
        crate::handle::trace::event!(WARN, escape = %escape, "work escapes its partition");
        let mut escapes = self.inner.escapes.lock();
        if escapes.kept.len() < Watch::MAX_ESCAPES {
            escapes.kept.push(escape);
        } else {
            escapes.omitted += 1;
        }
    }

    fn driver(&self) -> &Driver {
        self.inner.expected.device().driver()
    }

    fn check_driver(&self, driver: &Driver, what: &'static str) -> Result<()> {
        driver.check_process()?;
        if driver == self.driver() { Ok(()) } else { Err(Error::DeviceMismatch { what }) }
    }
}

impl EscapeKind {
    /// Returns the kind of escape for a stream outside the partition.
    fn of_stream(is_green: bool) -> EscapeKind {
        if is_green { EscapeKind::OtherStream } else { EscapeKind::PrimaryStream }
    }
}

impl Escape {
    fn new(name: &str, expected: &Context, kind: EscapeKind, location: Option<Location>) -> Escape {
        Escape { name: name.to_owned(), expected: expected.label().to_owned(), kind, location }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("partition", &self.inner.expected.label())
            .field("escapes", &self.inner.escapes.lock().kept.len())
            .finish_non_exhaustive()
    }
}

//! Executable graphs.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::{Arc, OnceLock};

use green_ctx_sys::{CUgraphExec, CUgraphExec_st};
use parking_lot::Mutex;

use super::{Graph, Needs};
use crate::handle::capture::RelaxedCapture;
use crate::handle::context::Context;
use crate::handle::current::Scope;
use crate::handle::device::Device;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::raw::Raw;
use crate::handle::report;
use crate::work::stream::Stream;

/// An executable graph, ready to be launched. Clones share the executable. Dropping the last clone destroys the
/// executable, but does not stop a running launch.
///
/// An executable has the nodes that its graph had when it was [instantiated](Graph::instantiate), and keeps the
/// contexts of those nodes alive. Launches of one executable run one after another, even on different streams.
#[derive(Clone)]
#[doc(alias = "CUgraphExec")]
pub struct GraphExec {
    inner: Arc<Inner>,
}

struct Inner {
    raw: Raw<CUgraphExec_st>,
    /// Held during each driver call: the driver does not synchronise executables (cuda.h, "Graph object thread
    /// safety").
    calls: Mutex<()>,
    needs: Needs,
    /// Keeps the device initialised.
    primary: Context,
}

impl Graph {
    /// Creates an executable of the graph. The nodes stay in their contexts: to run the nodes in another partition,
    /// call [`retarget`](Graph::retarget) first. Instantiating 500 kernels takes 0.70 ms on an H200 (driver
    /// 580.159.04).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver call fails, for example because nodes depend on each other in a cycle,
    /// because a node's context is gone, or because a node has another context than the conditional node that
    /// contains it.
    #[doc(alias = "cuGraphInstantiate")]
    pub fn instantiate(&self) -> Result<GraphExec> {
        let device = self.device();
        let driver = device.driver();
        driver.check_process()?;
        let mut raw = ptr::null_mut();
        {
            let _alone = self.alone();
            // Instantiation needs a current context, and invalidates captures in stricter modes (both recorded on
            // an H200, driver 580.159.04).
            let _scope = Scope::enter(driver, self.inner.primary.as_raw())?;
            let _relaxed = RelaxedCapture::enter(driver)?;
            // SAFETY: `self` keeps the graph alive, and `_alone` excludes other threads. `raw` is a live local.
            unsafe {
                call!(
                    device.functions()?,
                    cuGraphInstantiateWithFlags(&raw mut raw, self.as_raw(), 0)
                )
            }?;
        }
        let raw = Raw::new(raw).ok_or_else(|| Error::null("cuGraphInstantiateWithFlags"))?;
        let (needs, primary) = (self.inner.needs.clone(), self.inner.primary.clone());
        let inner = Inner { raw, calls: Mutex::new(()), needs, primary };
        Ok(GraphExec { inner: Arc::new(inner) })
    }
}

impl GraphExec {
    /// Returns the executable's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inner.primary.device()
    }

    /// Returns the driver's handle.
    #[must_use]
    pub fn as_raw(&self) -> CUgraphExec {
        self.inner.raw.as_ptr()
    }

    /// Returns the contexts of this crate that the executable keeps alive, which are [those](Graph::contexts) of
    /// its graph.
    #[must_use]
    pub fn contexts(&self) -> &[Context] {
        self.inner.needs.contexts()
    }

    /// Uploads the executable to the device in stream order, so that the first launch is as fast as later launches.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if `stream` belongs to another device. [`Error::Driver`] if the driver call fails.
    #[doc(alias = "cuGraphUpload")]
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        self.check(stream)?;
        let _alone = report::hold(self.inner.calls.lock());
        let _relaxed = RelaxedCapture::enter(stream.driver())?;
        // SAFETY: both handles are alive, and `_alone` excludes other threads from the executable.
        unsafe { call!(stream.driver().functions()?, cuGraphUpload(self.as_raw(), stream.raw())) }
    }

    #[inline]
    fn check(&self, stream: &Stream) -> Result<()> {
        stream.driver().check_process()?;
        if self.device() == stream.context().device() {
            Ok(())
        } else {
            Err(Error::DeviceMismatch { what: "the graph and the stream" })
        }
    }
}

/// The function that checks each graph launch while launches are watched. The function is set before the first watch
/// begins.
pub(crate) static CHECK: OnceLock<fn(&Stream, &Needs) -> Result<()>> = OnceLock::new();

impl Stream {
    /// Launches a graph in the order of this stream. The graph's nodes run in their own contexts, not in the stream's
    /// context. Work that waits for this stream waits for all nodes of the graph. Nodes may also run on other devices
    /// (not yet tried on two GPUs).
    ///
    /// The driver counts the graph as work of this stream only (recorded on an H200, driver 580.159.04). If the graph
    /// has nodes in another partition, [`Context::record`] and [`Context::synchronize`] of that partition do not cover
    /// those nodes. [`Context::close`] of that partition waits for the graph, and so does the next owner of its SMs.
    /// The graph itself waits for the work of earlier owners and earlier plans on these SMs, but not for events that
    /// the program made the partition's streams wait for: make this stream wait for them too.
    ///
    /// # Errors
    ///
    /// If this call fails, the graph was not launched. If the graph fails while it runs, later calls report the
    /// error.
    ///
    /// - [`Error::DeviceMismatch`] if the graph was captured on a stream of another device.
    /// - [`Error::Forked`] in a forked process.
    /// - [`Error::Driver`] if the driver refuses the launch, for example because the stream is being captured.
    ///
    /// # Safety
    ///
    /// The functions, memory and events that the graph's nodes use must stay alive until the graph is done. The
    /// contexts of the graph's nodes must stay alive as well, unless the executable keeps them alive
    /// ([`contexts`](GraphExec::contexts)). No other work may race with the graph on the memory that the graph uses.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, graph::CaptureMode, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// # let parts = device.partition([16])?;
    /// # let stream = parts[0].stream();
    /// # let graph = stream.capture(CaptureMode::default(), || {
    /// #     // SAFETY: the kernel takes no parameters.
    /// #     unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }
    /// # })?;
    /// let exec = graph.instantiate()?;
    /// exec.upload(stream)?;
    /// for _ in 0..10 {
    ///     // SAFETY: the graph's kernel accesses no memory.
    ///     unsafe { stream.launch_graph(&exec) }?;
    /// }
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[doc(alias = "cuGraphLaunch")]
    pub unsafe fn launch_graph(&self, graph: &GraphExec) -> Result<()> {
        graph.check(self)?;
        if let Some(check) = CHECK.get() {
            check(self, &graph.inner.needs)?;
        }
        let home = self.context();
        if graph.contexts().iter().any(|context| context != home) {
            // SAFETY: the caller upholds the same contract.
            return unsafe { self.launch_as_guest(graph) };
        }
        // SAFETY: the caller upholds the same contract.
        unsafe { self.launch_raw(graph) }
    }

    /// Launches a graph that has nodes in other partitions. Such nodes run concurrently with the streams of those
    /// partitions. The launch therefore waits for the work of earlier owners and plans that those streams wait for, and
    /// counts as work of those partitions.
    ///
    /// # Safety
    ///
    /// As for [`launch_graph`](Stream::launch_graph).
    #[cold]
    unsafe fn launch_as_guest(&self, graph: &GraphExec) -> Result<()> {
        if self.is_capturing()? {
            // The driver refuses this launch (recorded on an H200), so no waits may be submitted before it.
            // SAFETY: the caller upholds the same contract.
            return unsafe { self.launch_raw(graph) };
        }
        let others = || graph.contexts().iter().filter(|context| *context != self.context());
        others().try_for_each(|context| context.expect_guest(self.raw_stream()))?;
        // SAFETY: the caller upholds the same contract.
        unsafe { self.launch_raw(graph) }?;
        // The graph has been launched. A later failure must not look like a failed launch, which the caller might
        // repeat.
        others().for_each(|context| context.note_guest(self.raw_stream(), self.context().device()));
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`launch_graph`](Stream::launch_graph).
    #[inline]
    unsafe fn launch_raw(&self, graph: &GraphExec) -> Result<()> {
        let _alone = graph.inner.calls.lock();
        // SAFETY: both handles are alive, and `_alone` excludes other threads from the executable. The caller
        // guarantees the rest by this function's contract.
        unsafe { call!(self.driver().functions()?, cuGraphLaunch(graph.as_raw(), self.raw())) }
    }
}

impl Inner {
    fn driver(&self) -> &Driver {
        self.primary.device().driver()
    }

    fn destroy(&self) -> Result<()> {
        // SAFETY: `drop` is the only caller, and no handle of the executable is left.
        unsafe { call!(self.driver().functions()?, cuGraphExecDestroy(self.raw.as_ptr())) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.driver().is_forked() {
            return self.needs.forget_owner();
        }
        self.driver().clean_up(|| self.destroy());
    }
}

impl PartialEq for GraphExec {
    fn eq(&self, other: &GraphExec) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for GraphExec {}

impl Hash for GraphExec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExec").field("raw", &self.as_raw()).finish_non_exhaustive()
    }
}

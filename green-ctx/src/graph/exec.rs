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
use crate::work::stream::Stream;

/// A graph that can be launched. Clones share it; the last one destroys it, and a launch goes on all
/// the same.
///
/// It is of the graph as it was when it was made, and keeps the contexts that its nodes run in.
/// Launches of one executable come one after the other, whatever streams they are made on.
#[derive(Clone)]
#[doc(alias = "CUgraphExec")]
pub struct GraphExec {
    inner: Arc<Inner>,
}

struct Inner {
    raw: Raw<CUgraphExec_st>,
    /// Executable graphs are not synchronised by the driver (cuda.h, "Graph object thread safety").
    calls: Mutex<()>,
    needs: Needs,
    /// Keeps the device initialised.
    primary: Context,
}

impl Graph {
    /// Makes an executable of the graph. Its nodes stay where they are: to run elsewhere, a graph is
    /// [moved](Graph::retarget) before. 500 kernels take 1.3 ms on an H200 (driver 580.159.04).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: for nodes that depend on each other in a circle, whose contexts are gone,
    /// or whose context is another than that of the conditional node around them.
    #[doc(alias = "cuGraphInstantiate")]
    pub fn instantiate(&self) -> Result<GraphExec> {
        let device = self.device();
        let driver = device.driver();
        driver.check_process()?;
        let mut raw = ptr::null_mut();
        {
            let _alone = self.alone();
            // It needs a current context, and invalidates captures in stricter modes (both recorded on an
            // H200, driver 580.159.04).
            let _scope = Scope::enter(driver, self.inner.primary.as_raw())?;
            let _relaxed = RelaxedCapture::enter(driver)?;
            // SAFETY: the graph is alive and used by nobody else meanwhile; the pointer is to a live
            // handle.
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
    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inner.primary.device()
    }

    /// The driver's handle.
    #[must_use]
    pub fn as_raw(&self) -> CUgraphExec {
        self.inner.raw.as_ptr()
    }

    /// The contexts of this crate that the executable keeps alive, [those](Graph::contexts) of its graph.
    #[must_use]
    pub fn contexts(&self) -> &[Context] {
        self.inner.needs.contexts()
    }

    /// Brings what the first launch needs to the device, in the order of a stream, so that the launch
    /// does not pay for it.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] for a stream of another device, and [`Error::Driver`].
    #[doc(alias = "cuGraphUpload")]
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        self.check(stream)?;
        let _alone = self.inner.calls.lock();
        let _relaxed = RelaxedCapture::enter(stream.driver())?;
        // SAFETY: both handles are alive, and the graph is used by nobody else meanwhile.
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

/// Checks a launch: set before the process's first watch begins.
pub(crate) static CHECK: OnceLock<fn(&Stream, &Needs) -> Result<()>> = OnceLock::new();

impl Stream {
    /// Launches a graph in the order of this stream. Its nodes run in their own contexts, not in this
    /// stream's; what waits for this stream waits for all of them. To the driver it is work of this stream
    /// alone (recorded on an H200, driver 580.159.04): [`Context::record`] and [`Context::synchronize`] of
    /// another partition that has nodes do not see it. [`Context::close`] of that partition waits for it,
    /// and so does whoever gets its SMs; before it runs, it waits for what that partition's streams wait for.
    /// Nodes may run on other devices, too. (Not yet run on two GPUs.)
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] for a graph that was captured on a stream of another device,
    /// [`Error::Forked`], and [`Error::Driver`], where the stream is being captured too. The graph was not
    /// launched then. Errors of the running work come from later calls.
    ///
    /// # Safety
    ///
    /// The functions, memory and events that the graph's nodes use must stay alive until it is done, and
    /// so must the contexts that they run in and that the executable does not
    /// [keep](GraphExec::contexts). It must not race with other work on that memory.
    #[inline]
    #[doc(alias = "cuGraphLaunch")]
    pub unsafe fn launch_graph(&self, graph: &GraphExec) -> Result<()> {
        graph.check(self)?;
        if let Some(check) = CHECK.get() {
            check(self, &graph.inner.needs)?;
        }
        let home = self.context();
        if graph.contexts().iter().any(|context| context != home) {
            // SAFETY: this function's contract.
            return unsafe { self.launch_as_guest(graph) };
        }
        // SAFETY: this function's contract.
        unsafe { self.launch_raw(graph) }
    }

    /// Launches a graph with nodes in other partitions. They run beside those partitions' streams, so
    /// the launch waits for what those wait for, and counts as work of theirs.
    ///
    /// # Safety
    ///
    /// As [`launch_graph`](Stream::launch_graph).
    #[cold]
    unsafe fn launch_as_guest(&self, graph: &GraphExec) -> Result<()> {
        if self.is_capturing()? {
            // The driver refuses it (recorded on an H200), and nothing must have been submitted before.
            // SAFETY: this function's contract.
            return unsafe { self.launch_raw(graph) };
        }
        let others = || graph.contexts().iter().filter(|context| *context != self.context());
        others().try_for_each(|context| context.expect_guest(self.raw_stream()))?;
        // SAFETY: this function's contract.
        unsafe { self.launch_raw(graph) }?;
        // The graph runs: from here on no failure is one of the launch, which a caller may try again.
        others().for_each(|context| context.note_guest(self.raw_stream(), self.context().device()));
        Ok(())
    }

    /// # Safety
    ///
    /// As [`launch_graph`](Stream::launch_graph).
    #[inline]
    unsafe fn launch_raw(&self, graph: &GraphExec) -> Result<()> {
        let _alone = graph.inner.calls.lock();
        // SAFETY: both handles are alive, and the graph is used by nobody else meanwhile. The rest is
        // this function's contract.
        unsafe { call!(self.driver().functions()?, cuGraphLaunch(graph.as_raw(), self.raw())) }
    }
}

impl Inner {
    fn driver(&self) -> &Driver {
        self.primary.device().driver()
    }

    fn destroy(&self) -> Result<()> {
        // SAFETY: nobody else has the handle, and this is its only end.
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

//! Graphs: captured once, moved to partitions, launched many times.
//!
//! A graph keeps alive what its nodes need: contexts, and the libraries of its kernels. Copies and executables of the
//! graph keep the same objects alive. The driver reports a node's context only as a raw handle, which is useless once
//! the context is gone. Before CUDA 13.2, the driver reports the contexts of kernel nodes only. This crate therefore
//! notes the contexts and libraries while a capture is open: before each launch, and when a stream is dropped. For a
//! foreign graph, the caller who passes its handle guarantees that the libraries and the contexts of its nodes stay
//! alive.
//!
//! The driver does not synchronise graphs (cuda.h, "Graph object thread safety"). Each graph and each executable has a
//! lock, and this crate holds the lock during every driver call on the object. Failed clean-ups are reported after the
//! lock is released, since the clean-up hook may use the object.
#![allow(unsafe_code, reason = "calls the driver")]

mod audit;
mod cache;
mod capture;
mod exec;
mod needs;
mod node;
mod open_captures;
mod retarget;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::ptr;
use std::sync::Arc;

use green_ctx_sys::{CUgraph, CUgraph_st};
use parking_lot::{Mutex, MutexGuard};

use crate::handle::context::Context;
use crate::handle::device::Device;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::raw::Raw;
use crate::handle::registry::Registry;
use crate::handle::report::{self, Held};

pub use crate::handle::listing::{Audit, NodeAudit, NodeKind};
pub use cache::GraphCache;
pub use capture::CaptureMode;
pub(crate) use exec::CHECK;
pub use exec::GraphExec;
pub(crate) use needs::Needs;
pub use retarget::RetargetError;

pub use crate::handle::capture::RelaxedCapture;

/// A graph: work that was captured from streams, or a foreign graph. Clones share the graph. Dropping the last clone
/// destroys the graph, unless the graph is borrowed.
///
/// Each node that uses SMs has the context of the stream on which it was captured. The node runs on the SMs of that
/// context, whichever stream launches the graph (recorded on an H200, driver 580.159.04).
/// [`retarget`](Graph::retarget) returns a copy that runs in another partition, and [`audit`](Graph::audit) lists
/// where each node runs.
///
/// A graph keeps the [contexts](Graph::contexts) of its nodes and the libraries of its captured kernels alive. The
/// contexts are read once, when the `Graph` is created. Code that changes the graph through its raw handle must keep
/// alive what the added nodes need. The [manual](crate::guide::graphs) explains which graphs can be moved, and where
/// to launch them.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, LaunchConfig, Library, sim::Sim, graph::CaptureMode};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
/// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
/// # let parts = device.partition([16, 64])?;
/// let (small, large) = (parts[0].stream(), parts[1].stream());
/// let graph = small.capture(CaptureMode::default(), || {
///     // SAFETY: the kernel takes no parameters.
///     unsafe { small.launch(&step, LaunchConfig::new(64, 128), ()) }
/// })?;
///
/// // The same work, on the other partition's SMs.
/// let moved = graph.retarget(parts[1].context())?.instantiate()?;
/// // SAFETY: the graph's kernel accesses no memory.
/// unsafe { large.launch_graph(&moved) }?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "CUgraph")]
pub struct Graph {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    raw: Raw<CUgraph_st>,
    /// Held during each driver call: the driver does not synchronise graphs (cuda.h, "Graph object thread safety").
    calls: Mutex<()>,
    needs: Needs,
    /// Keeps the device initialised.
    primary: Context,
    /// True if dropping this object destroys the graph.
    owned: bool,
}

impl InSlot for Registry<Inner> {
    const SLOT: Slot = Slot::Graphs;

    fn make(_driver: &Driver) -> Self {
        Registry::default()
    }
}

impl Driver {
    pub(crate) fn graphs(&self) -> &Registry<Inner> {
        self.slot()
    }
}

impl Graph {
    /// Takes ownership of a foreign graph. Dropping the last handle destroys the graph.
    ///
    /// # Errors
    ///
    /// If this call fails, the graph still belongs to the caller.
    ///
    /// - [`Error::AlreadyOwned`] if a [`Graph`] for the handle exists.
    /// - [`Error::InvalidRequest`] if the handle is null.
    /// - [`Error::Forked`] in a forked process, and [`Error::Driver`] if a driver call fails.
    ///
    /// # Safety
    ///
    /// `raw` must be a live graph of the device's driver, and must not be a child graph. No other code may destroy
    /// the graph, or use the graph on another thread during a call to this crate. The contexts of the graph's nodes
    /// must be alive. The code of the graph's kernels must stay loaded while the graph, or a copy or executable of
    /// the graph, exists.
    pub unsafe fn from_raw_owned(device: &Device, raw: CUgraph) -> Result<Graph> {
        let raw = handle(device, raw)?;
        if device.driver().graphs().find(raw.address()).is_some() {
            return Err(Error::AlreadyOwned { what: "graph" });
        }
        // Not owned yet, so that an error here does not destroy the caller's graph.
        let mut inner = Inner::unknown(device, raw)?;
        inner.owned = true;
        let (inner, late) = device.driver().graphs().get_or_enter(raw.address(), Arc::new(inner));
        let Some(mut late) = late else { return Ok(Graph { inner }) };
        // Another thread was first, so its object represents the graph.
        match Arc::get_mut(&mut late) {
            Some(late) => late.owned = false,
            None => mem::forget(late),
        }
        Err(Error::AlreadyOwned { what: "graph" })
    }

    /// Uses a foreign graph without taking ownership, such as PyTorch's
    /// (`torch.cuda.CUDAGraph(keep_graph=True).raw_cuda_graph()`). This crate never destroys the graph, and keeps
    /// `owner` alive until the last handle of the result is dropped. If a [`Graph`] for the handle exists, that
    /// [`Graph`] is returned and `owner` is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if the handle is null, [`Error::Forked`] in a forked process, and
    /// [`Error::Driver`] if a driver call fails.
    ///
    /// # Safety
    ///
    /// `raw` must be a live graph of the device's driver, and must stay alive until `owner` is dropped. No other code
    /// may use the graph on another thread during a call to this crate. The contexts of the graph's nodes must be
    /// alive. The code of the graph's kernels must stay loaded until `owner` is dropped. Copies and executables of
    /// the graph also keep `owner` alive.
    pub unsafe fn from_raw_borrowed(
        device: &Device,
        raw: CUgraph,
        owner: impl Send + Sync + 'static,
    ) -> Result<Graph> {
        let raw = handle(device, raw)?;
        if let Some(inner) = device.driver().graphs().find(raw.address()) {
            return Ok(Graph { inner });
        }
        let mut inner = Inner::unknown(device, raw)?;
        inner.needs.set_owner(Arc::new(owner));
        let (inner, late) = device.driver().graphs().get_or_enter(raw.address(), Arc::new(inner));
        drop(late);
        Ok(Graph { inner })
    }

    /// Returns the graph's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inner.primary.device()
    }

    /// Returns the driver's handle.
    #[must_use]
    pub fn as_raw(&self) -> CUgraph {
        self.inner.raw.as_ptr()
    }

    /// Returns the contexts of this crate that the graph keeps alive: those in which its nodes run, and those whose
    /// streams took part in its [capture](crate::Stream::capture).
    ///
    /// Before CUDA 13.2, the driver reports only the contexts of kernels. On such a driver, the result for a graph
    /// that was not captured through this crate contains only the contexts of kernels.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, sim::Sim, graph::CaptureMode};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// # let parts = device.partition([16])?;
    /// let stream = parts[0].stream();
    /// let graph = stream.capture(CaptureMode::default(), || {
    ///     // SAFETY: the kernel takes no parameters.
    ///     unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }
    /// })?;
    /// assert_eq!(graph.contexts(), [parts[0].context().clone()]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn contexts(&self) -> &[Context] {
        self.inner.needs.contexts()
    }

    /// Returns the number of nodes. The nodes of child graphs are not counted.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver call fails.
    #[doc(alias = "cuGraphGetNodes")]
    pub fn node_count(&self) -> Result<usize> {
        self.device().driver().check_process()?;
        let _alone = self.alone();
        node::count(self.device().functions()?, self.as_raw())
    }

    /// Copies the graph. `needs` contains the contexts and libraries that the copy's nodes will need after they have
    /// been moved.
    fn copy(&self, needs: Needs) -> Result<Graph> {
        let mut raw = ptr::null_mut();
        {
            let _alone = self.alone();
            let _relaxed = RelaxedCapture::enter(self.device().driver())?;
            // SAFETY: `self` keeps the graph alive, and `_alone` excludes other threads. `raw` is a live local.
            unsafe {
                call!(self.device().functions()?, cuGraphClone(&raw mut raw, self.as_raw()))
            }?;
        }
        let raw = Raw::new(raw).ok_or_else(|| Error::null("cuGraphClone"))?;
        let mut inner = Inner::new(raw, needs, self.inner.primary.clone());
        inner.owned = true;
        Ok(Graph::enter(inner))
    }

    fn enter(inner: Inner) -> Graph {
        let inner = Arc::new(inner);
        let driver = inner.primary.device().driver();
        driver.graphs().enter(inner.raw.address(), &inner);
        Graph { inner }
    }

    /// Locks the graph, so that no other thread uses the graph while the guard exists.
    fn alone(&self) -> Held<MutexGuard<'_, ()>> {
        report::hold(self.inner.calls.lock())
    }
}

/// Checks that a handle is not null.
fn handle(device: &Device, raw: CUgraph) -> Result<Raw<CUgraph_st>> {
    device.driver().check_process()?;
    Raw::new(raw).ok_or_else(|| Error::InvalidRequest("the graph's handle is null".to_owned()))
}

impl Inner {
    /// Creates an object that does not own the graph.
    fn new(raw: Raw<CUgraph_st>, needs: Needs, primary: Context) -> Inner {
        Inner { raw, calls: Mutex::new(()), needs, primary, owned: false }
    }

    /// Creates an object for a graph that was not captured through this crate.
    fn unknown(device: &Device, raw: Raw<CUgraph_st>) -> Result<Inner> {
        let nodes = node::walk(device.functions()?, raw.as_ptr())?;
        let mut needs = Needs::default();
        needs.add_nodes(device.driver(), &nodes)?;
        Ok(Inner::new(raw, needs, device.primary_context()?))
    }

    fn driver(&self) -> &Driver {
        self.primary.device().driver()
    }

    fn destroy(&self) -> Result<()> {
        // SAFETY: `drop` is the only caller, and it destroys only a graph that this crate owns. No handle of the
        // graph is left.
        unsafe { call!(self.driver().functions()?, cuGraphDestroy(self.raw.as_ptr())) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.driver().is_forked() {
            return self.needs.forget_owner();
        }
        // The graph leaves the registry before it is destroyed, since the driver may reuse the address immediately.
        self.driver().graphs().forget(self.raw.address(), self);
        if self.owned {
            self.driver().clean_up(|| self.destroy());
        }
    }
}

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Graph {}

impl Hash for Graph {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("raw", &self.as_raw()).finish_non_exhaustive()
    }
}

//! Graphs: captured once, moved to partitions, launched often.
//!
//! A graph keeps alive what its nodes need: contexts, and the libraries of its kernels. Its copies and
//! executables keep the same alive. The driver reports a node's context as a raw handle, before CUDA 13.2 for
//! kernels only, and the handle means nothing once the context is gone. So these needs are noted while a
//! capture is open, by launches and by streams that end. For a foreign graph, the caller who passes its
//! handle guarantees that the libraries and the contexts of its nodes stay alive.
//!
//! The driver does not synchronise graphs (cuda.h, "Graph object thread safety"). Each graph and each
//! executable has a lock, which is held while the driver uses it.
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

pub use crate::handle::listing::{Audit, NodeAudit, NodeKind};
pub use cache::GraphCache;
pub use capture::CaptureMode;
pub(crate) use exec::CHECK;
pub use exec::GraphExec;
pub(crate) use needs::Needs;
pub use retarget::RetargetError;

pub use crate::handle::capture::RelaxedCapture;

/// A graph: work that was captured from streams, or a foreign graph. Clones share it; the last one
/// destroys it, unless it is borrowed.
///
/// Each node that uses SMs has a context, the one of the stream that it was captured on, and runs on
/// that context's SMs whatever stream launches the graph (recorded on an H200, driver 580.159.04).
/// [`retarget`](Graph::retarget) gives a copy that runs in another partition, and
/// [`audit`](Graph::audit) lists where each node runs. A graph keeps the [contexts](Graph::contexts) that
/// its nodes run in and the libraries of the kernels that were captured, as they were when the object was
/// made; code that changes the graph through its raw handle keeps the rest. The
/// [manual](crate::guide::graphs) says what can be moved, and where to launch.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, sim::Sim, graph::CaptureMode};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
/// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
/// # let mut groups = device.resources().sm()?.split([16, 64])?.groups.into_iter();
/// # let mut partition = || -> Result<_, Box<dyn std::error::Error>> {
/// #     Ok(device.create_context(groups.next().ok_or("two groups")?)?)
/// # };
/// # let (small, large) = (partition()?, partition()?);
/// let stream = small.create_stream(StreamOptions::default())?;
/// let graph = stream.capture(CaptureMode::default(), || {
///     // SAFETY: the kernel takes no parameters.
///     unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }
/// })?;
///
/// // The same work on the other partition's SMs.
/// let moved = graph.retarget(&large)?.instantiate()?;
/// let stream = large.create_stream(StreamOptions::default())?;
/// // SAFETY: the graph's kernel reaches no memory.
/// unsafe { stream.launch_graph(&moved) }?;
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
    /// Graphs are not synchronised by the driver (cuda.h, "Graph object thread safety").
    calls: Mutex<()>,
    needs: Needs,
    /// Keeps the device initialised.
    primary: Context,
    /// Whether this object destroys the graph.
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
    /// Takes over a foreign graph: the last handle destroys it.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyOwned`] for a graph that an object of this crate stands for,
    /// [`Error::InvalidRequest`] for a null handle, [`Error::Forked`], [`Error::Driver`]. The graph
    /// stays the caller's then.
    ///
    /// # Safety
    ///
    /// `raw` must be a living graph of the device's driver that is not a child of another, and nobody
    /// else may destroy it, or use it on another thread during a call of this crate. The contexts of
    /// its nodes must be alive. What its kernels launch must stay loaded while the graph, a copy of it or an
    /// executable lives.
    pub unsafe fn from_raw_owned(device: &Device, raw: CUgraph) -> Result<Graph> {
        let raw = handle(device, raw)?;
        if device.driver().graphs().find(raw.address()).is_some() {
            return Err(Error::AlreadyOwned { what: "graph" });
        }
        // This object does not destroy the graph yet, so that an error leaves it as it was.
        let mut inner = Inner::unknown(device, raw)?;
        inner.owned = true;
        let (inner, late) = device.driver().graphs().get_or_enter(raw.address(), Arc::new(inner));
        let Some(mut late) = late else { return Ok(Graph { inner }) };
        // Another thread was first, and its object stands for the graph.
        match Arc::get_mut(&mut late) {
            Some(late) => late.owned = false,
            None => mem::forget(late),
        }
        Err(Error::AlreadyOwned { what: "graph" })
    }

    /// Uses a foreign graph, such as PyTorch's
    /// (`torch.cuda.CUDAGraph(keep_graph=True).raw_cuda_graph()`). Nothing destroys it; `owner` is
    /// kept until the last handle of the result is gone. A graph that an object of this crate stands
    /// for already is that object, and `owner` is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for a null handle, [`Error::Forked`], [`Error::Driver`].
    ///
    /// # Safety
    ///
    /// `raw` must be a living graph of the device's driver, and stay alive until `owner` is dropped.
    /// Nobody may use it on another thread during a call of this crate. The contexts of its nodes
    /// must be alive. What its kernels launch must stay loaded until `owner` is dropped, which copies and
    /// executables keep, too.
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

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inner.primary.device()
    }

    /// The driver's handle.
    #[must_use]
    pub fn as_raw(&self) -> CUgraph {
        self.inner.raw.as_ptr()
    }

    /// The contexts of this crate that the graph keeps alive: those that its nodes run in, and those whose
    /// streams took part in its [capture](crate::Stream::capture).
    ///
    /// Before CUDA 13.2 the driver reports the contexts of kernels only. A graph that was not captured
    /// through this crate keeps no more than those then.
    #[must_use]
    pub fn contexts(&self) -> &[Context] {
        self.inner.needs.contexts()
    }

    /// How many nodes the graph has, those of child graphs not counted.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuGraphGetNodes")]
    pub fn node_count(&self) -> Result<usize> {
        self.device().driver().check_process()?;
        let _alone = self.alone();
        node::count(self.device().functions()?, self.as_raw())
    }

    /// A copy of the graph, whose nodes are about to go to other contexts.
    fn copy(&self, needs: Needs) -> Result<Graph> {
        let mut raw = ptr::null_mut();
        {
            let _alone = self.alone();
            let _relaxed = RelaxedCapture::enter(self.device().driver())?;
            // SAFETY: the graph is alive and used by nobody else meanwhile; the pointer is to a live
            // handle.
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

    /// While it lives, no other thread uses the graph through this crate.
    fn alone(&self) -> MutexGuard<'_, ()> {
        self.inner.calls.lock()
    }
}

/// Refuses what no object can stand for.
fn handle(device: &Device, raw: CUgraph) -> Result<Raw<CUgraph_st>> {
    device.driver().check_process()?;
    Raw::new(raw).ok_or_else(|| Error::InvalidRequest("the graph's handle is null".to_owned()))
}

impl Inner {
    /// A graph that is not destroyed here, until said otherwise.
    fn new(raw: Raw<CUgraph_st>, needs: Needs, primary: Context) -> Inner {
        Inner { raw, calls: Mutex::new(()), needs, primary, owned: false }
    }

    /// A graph that was not captured through this crate.
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
        // SAFETY: nobody else has the handle, and this is its only end.
        unsafe { call!(self.driver().functions()?, cuGraphDestroy(self.raw.as_ptr())) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.driver().is_forked() {
            return self.needs.forget_owner();
        }
        // Forgotten before it is given up: the driver may use the address again at once.
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

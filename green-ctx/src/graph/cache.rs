//! A cache of executable graphs, one per graph and partition.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use super::{Graph, GraphExec, RetargetError};
use crate::handle::context::Context;
use crate::handle::fork::Process;

/// A cache that holds one executable for each pair of graph and partition, so that running the same graph in the same
/// partition again costs only a look-up. Clones share the cache, and any thread may use it.
///
/// The cache keeps its graphs alive, and its executables keep their partitions alive. Before closing a partition,
/// [`forget`](GraphCache::forget) it or drop the cache.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, sim::Sim, graph::{CaptureMode, GraphCache}};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
/// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
/// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
/// # let graph = stream.capture(CaptureMode::default(), || {
/// #     // SAFETY: the kernel takes no parameters.
/// #     unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }
/// # })?;
/// # let parts = device.partition([16])?;
/// let cache = GraphCache::new();
/// let first = cache.get(&graph, parts[0].context())?;
/// assert_eq!(cache.get(&graph, parts[0].context())?, first);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct GraphCache {
    known: Arc<Mutex<Known>>,
    /// The process that created the cache. In a forked child, a thread that no longer exists may hold the lock.
    made_in: Process,
}

#[derive(Default)]
struct Known {
    /// The executables, each with the number of executables that were added before it.
    executables: HashMap<Key, (u64, GraphExec), FxBuildHasher>,
    kept: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    graph: Graph,
    context: Context,
}

impl GraphCache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new() -> GraphCache {
        GraphCache { known: Arc::default(), made_in: Process::watched() }
    }

    /// Returns the executable of a graph in a context. If the cache has no such executable, this call moves a copy of
    /// the graph to the context, instantiates the copy and stores the executable.
    ///
    /// # Errors
    ///
    /// The errors are those of [`Graph::retarget`] and [`Graph::instantiate`]. In particular, a graph with nodes in
    /// several contexts is refused. If this call fails, nothing is stored.
    pub fn get(&self, graph: &Graph, context: &Context) -> Result<GraphExec, RetargetError> {
        graph.device().driver().check_process()?;
        let key = Key { graph: graph.clone(), context: context.clone() };
        if let Some((_, found)) = self.known.lock().executables.get(&key) {
            return Ok(found.clone());
        }
        let fresh = graph.retarget(context)?.instantiate()?;
        let mut known = self.known.lock();
        let before = known.kept;
        known.kept += 1;
        // If another thread was first, its executable stays, and this one is dropped outside the lock.
        let kept =
            known.executables.entry(key).or_insert_with(|| (before, fresh.clone())).1.clone();
        drop(known);
        Ok(kept)
    }

    /// Removes all executables in a context. Other handles of these executables stay valid.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, graph::{CaptureMode, GraphCache}, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    /// # let graph = stream.capture(CaptureMode::default(), || {
    /// #     // SAFETY: the kernel takes no parameters.
    /// #     unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }
    /// # })?;
    /// let parts = device.partition([16])?;
    /// let cache = GraphCache::new();
    /// cache.get(&graph, parts[0].context())?;
    /// assert_eq!(cache.len(), 1);
    /// cache.forget(parts[0].context());
    /// assert!(cache.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn forget(&self, context: &Context) {
        self.remove(|key| key.context == *context);
    }

    /// Removes all executables of a graph. Other handles of these executables stay valid.
    pub fn forget_graph(&self, graph: &Graph) {
        self.remove(|key| key.graph == *graph);
    }

    /// Removes all executables.
    pub fn clear(&self) {
        self.remove(|_| true);
    }

    /// Returns the number of executables in the cache, which is 0 in a forked process.
    #[must_use]
    pub fn len(&self) -> usize {
        if self.made_in.is_forked() {
            return 0;
        }
        self.known.lock().executables.len()
    }

    /// Returns whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the executables that `which` selects. Does nothing in a forked process.
    fn remove(&self, which: impl Fn(&Key) -> bool) {
        if self.made_in.is_forked() {
            return;
        }
        let mut known = self.known.lock();
        let mut removed: Vec<_> = known.executables.extract_if(|key, _| which(key)).collect();
        drop(known);
        // Dropped from the oldest to the newest: the map's order depends on addresses, and so differs from run to
        // run.
        removed.sort_unstable_by_key(|(_, (before, _))| *before);
        // Dropped outside the lock, since the last handle of a partition may be among them.
        drop(removed);
    }
}

impl Default for GraphCache {
    fn default() -> GraphCache {
        GraphCache::new()
    }
}

impl fmt::Debug for GraphCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphCache").field("len", &self.len()).finish_non_exhaustive()
    }
}

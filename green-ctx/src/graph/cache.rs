//! Executables of graphs, one for each partition.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use super::{Graph, GraphExec, RetargetError};
use crate::handle::context::Context;
use crate::handle::fork::Process;

/// Keeps one executable for each graph and partition, so that running a graph elsewhere costs a
/// look-up where it ran there before. Clones share it; any thread may use it.
///
/// It keeps the graphs and, with the executables, the partitions: [`forget`](GraphCache::forget) a
/// partition before it is to be closed, or drop the cache.
///
/// # Example
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
/// # let group = device.resources().sm()?.split([16])?.groups.remove(0);
/// # let partition = device.create_context(group)?;
/// let cache = GraphCache::new();
/// let first = cache.get(&graph, &partition)?;
/// assert_eq!(cache.get(&graph, &partition)?, first);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct GraphCache {
    known: Arc<Mutex<Known>>,
    /// In a process that was forked from it, a thread that is gone may hold the lock.
    made_in: Process,
}

#[derive(Default)]
struct Known {
    /// The executables, each with the number of those that were kept before it.
    executables: HashMap<Key, (u64, GraphExec), FxBuildHasher>,
    kept: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    graph: Graph,
    context: Context,
}

impl GraphCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> GraphCache {
        GraphCache { known: Arc::default(), made_in: Process::watched() }
    }

    /// The executable of a graph in a context: the one that is kept, or else a new one, of a copy of
    /// the graph that is moved there.
    ///
    /// # Errors
    ///
    /// As [`Graph::retarget`] and [`Graph::instantiate`]; nothing is kept then.
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
        // Where another thread was first, its executable stays, and ours ends outside of the lock.
        let kept =
            known.executables.entry(key).or_insert_with(|| (before, fresh.clone())).1.clone();
        drop(known);
        Ok(kept)
    }

    /// Forgets what is kept for a context. Who still has an executable keeps it.
    pub fn forget(&self, context: &Context) {
        self.remove(|key| key.context == *context);
    }

    /// Forgets what is kept for a graph. Who still has an executable keeps it.
    pub fn forget_graph(&self, graph: &Graph) {
        self.remove(|key| key.graph == *graph);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.remove(|_| true);
    }

    /// The number of executables that are kept; 0 in a forked process.
    #[must_use]
    pub fn len(&self) -> usize {
        if self.made_in.is_forked() {
            return 0;
        }
        self.known.lock().executables.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes executables. A forked process has none to end.
    fn remove(&self, which: impl Fn(&Key) -> bool) {
        if self.made_in.is_forked() {
            return;
        }
        let mut known = self.known.lock();
        let mut removed: Vec<_> = known.executables.extract_if(|key, _| which(key)).collect();
        drop(known);
        // The oldest ends first: the order of the map is that of addresses, and differs from run to run.
        removed.sort_unstable_by_key(|(_, (before, _))| *before);
        // Outside of the lock: the last handle of a partition may be among them.
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

//! Graphs that were moved to partitions, kept for the next time.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::code::Code;
use crate::graph::{self, RetargetedGraph};
use crate::named::not_copied;
use crate::partition::Partition;

/// Keeps a copy of each graph for each partition that it was asked for in, so that replaying a graph
/// elsewhere costs a look-up:
///
///     cache = GraphCache()
///     cache.get(graph, parts["decode"]).replay()
///
/// It keeps the graphs, and the partitions' SMs: `forget` a partition before closing it. A copy is of the
/// graph as it was: `forget_graph` after changing one, or before resetting it.
#[pyclass(frozen, weakref, module = "green_ctx_torch")]
pub(crate) struct GraphCache {
    /// From the addresses of a graph and of a context, which the copies keep alive, to
    /// [`RetargetedGraph`].
    known: Py<PyDict>,
}

impl GraphCache {
    /// Forgets what is kept for an address at a place of the keys.
    fn remove(&self, py: Python<'_>, place: usize, address: usize) -> PyResult<()> {
        let known = self.known.bind(py);
        for key in known.keys() {
            let is_meant = key.cast::<PyTuple>()?.get_item(place)?.extract::<usize>()? == address;
            // Python may have run since the keys were listed.
            if is_meant && known.contains(&key)? {
                known.del_item(&key)?;
            }
        }
        Ok(())
    }
}

#[pymethods]
impl GraphCache {
    #[new]
    fn new(py: Python<'_>) -> GraphCache {
        GraphCache { known: PyDict::new(py).unbind() }
    }

    /// The copy of a graph that runs in a partition: the one that is kept, or a new one, which
    /// `retarget` makes. Takes and raises what `retarget` does; nothing is kept then.
    fn get(
        &self,
        py: Python<'_>,
        graph: &Bound<'_, PyAny>,
        partition: &Bound<'_, Partition>,
    ) -> PyResult<Py<RetargetedGraph>> {
        // A closed partition is an error, whatever is kept.
        partition.get().raw_context()?;
        let address = graph::address(graph)?;
        let key = (address, partition.get().context_address());
        let known = self.known.bind(py);
        if let Some(found) = known.get_item(key)? {
            let found = found.cast_into::<RetargetedGraph>()?;
            if found.get().is_in(partition) {
                return Ok(found.unbind());
            }
            // Another object for the same partition, such as that of a GreenContext.
            let moved = found.get().in_partition(py, partition)?;
            known.set_item(key, &moved)?;
            return Ok(moved);
        }
        let executable = graph::executable(py, address, partition)?;
        let fresh = RetargetedGraph::new(py, executable, partition, graph)?;
        // Another thread may have been first, and its copy stays.
        let kept = known.run_method("setdefault", (key, &fresh))?.cast_into::<RetargetedGraph>()?;
        match kept.get().is_in(partition) {
            true => Ok(kept.unbind()),
            false => Ok(fresh),
        }
    }

    /// Forgets what is kept for a partition, which may be closed. Who still has a copy keeps it.
    fn forget(&self, py: Python<'_>, partition: &Bound<'_, Partition>) -> PyResult<()> {
        self.remove(py, 1, partition.get().context_address())
    }

    /// Forgets what is kept for a graph. Who still has a copy keeps it.
    fn forget_graph(&self, py: Python<'_>, graph: &Bound<'_, PyAny>) -> PyResult<()> {
        self.remove(py, 0, graph::address(graph)?)
    }

    /// Forgets everything.
    fn clear(&self, py: Python<'_>) {
        self.known.bind(py).clear();
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.known.bind(py).len()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copied(
            "a GraphCache",
            "make a new GraphCache(), and call get of it with the same graphs",
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.known)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<GraphCache of {}>", self.__len__(py))
    }
}

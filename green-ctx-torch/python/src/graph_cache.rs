//! The Python class `GraphCache`.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::code::Code;
use crate::graph::{self, RetargetedGraph};
use crate::named::not_copied;
use crate::partition::Partition;

/// A cache of retargeted graphs, one copy for each graph and partition. Once a copy exists, finding it costs only a
/// dictionary look-up.
///
///     cache = GraphCache()
///     cache.get(graph, parts["decode"]).replay()
///
/// The cache keeps the graphs and the partitions' SMs alive: call `forget` before closing a partition. A copy is a
/// snapshot: call `forget_graph` after changing a graph, and before resetting it.
#[pyclass(frozen, weakref, module = "green_ctx_torch")]
pub(crate) struct GraphCache {
    /// Maps the addresses of a graph and a context to a [`RetargetedGraph`]. Each copy holds a reference to its graph
    /// and its context.
    known: Py<PyDict>,
}

impl GraphCache {
    /// Drops the copies whose key contains `address` at the index `place`.
    fn remove(&self, py: Python<'_>, place: usize, address: usize) -> PyResult<()> {
        let known = self.known.bind(py);
        for key in known.keys() {
            let is_meant = key.cast::<PyTuple>()?.get_item(place)?.extract::<usize>()? == address;
            // Python code may have run since the keys were listed.
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

    /// Returns the copy of a graph that runs in a partition. The first call creates the copy with `retarget`, and
    /// later calls return the same copy. `get` takes the arguments of `retarget` and raises the same exceptions. If
    /// the call fails, nothing is cached.
    fn get(
        &self,
        py: Python<'_>,
        graph: &Bound<'_, PyAny>,
        partition: &Bound<'_, Partition>,
    ) -> PyResult<Py<RetargetedGraph>> {
        // A closed partition is an error, even if there is a copy for it.
        partition.get().raw_context()?;
        let address = graph::address(graph)?;
        let key = (address, partition.get().context_address());
        let known = self.known.bind(py);
        if let Some(found) = known.get_item(key)? {
            let found = found.cast_into::<RetargetedGraph>()?;
            if found.get().is_in(partition) {
                return Ok(found.unbind());
            }
            // Another object of the same partition, such as one from a GreenContext.
            let moved = found.get().in_partition(py, partition)?;
            known.set_item(key, &moved)?;
            return Ok(moved);
        }
        let executable = graph::executable(py, address, partition)?;
        let fresh = RetargetedGraph::new(py, executable, partition, graph)?;
        // If another thread was faster, its copy is kept.
        let kept = known.run_method("setdefault", (key, &fresh))?.cast_into::<RetargetedGraph>()?;
        match kept.get().is_in(partition) {
            true => Ok(kept.unbind()),
            false => Ok(fresh),
        }
    }

    /// Drops the copies for a partition, which may already be closed. If the program still holds such a copy, the copy
    /// remains usable until the partition is closed.
    fn forget(&self, py: Python<'_>, partition: &Bound<'_, Partition>) -> PyResult<()> {
        self.remove(py, 1, partition.get().context_address())
    }

    /// Drops the copies of a graph. If the program still holds such a copy, the copy remains usable.
    fn forget_graph(&self, py: Python<'_>, graph: &Bound<'_, PyAny>) -> PyResult<()> {
        self.remove(py, 0, graph::address(graph)?)
    }

    /// Drops all copies.
    fn clear(&self, py: Python<'_>) {
        self.known.bind(py).clear();
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.known.bind(py).len()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copied(
            "a GraphCache",
            "make a new GraphCache(), and call its get with the same graphs",
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.known)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<GraphCache of {}>", self.__len__(py))
    }
}

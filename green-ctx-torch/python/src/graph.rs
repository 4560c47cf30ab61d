//! torch's graphs in partitions.

use green_ctx::{Graph, graph::GraphExec};
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::fault::{Fault, kind};
use crate::gil::{Held, blocking};
use crate::partition::Partition;

/// A graph whose kernels run in a partition. It keeps the torch graph, whose memory it uses.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct RetargetedGraph {
    executable: Held<GraphExec>,
    raw: usize,
    partition: Py<Partition>,
    /// Its memory is what the kernels read and write.
    original: Py<PyAny>,
}

#[pymethods]
impl RetargetedGraph {
    /// Launches the graph on the partition's stream. It waits for what was submitted there before,
    /// and for nothing else: have that stream wait for whoever wrote the graph's inputs.
    fn replay(&self, py: Python<'_>) -> PyResult<()> {
        let live = self.partition.get().live()?;
        let executable = &*self.executable;
        blocking(py, move || {
            // SAFETY: the torch graph, which this object keeps, keeps the memory and the functions;
            // the order of its work with other work is for the caller, as with torch's own replay.
            unsafe { live.stream().launch_graph(executable) }?;
            Ok(())
        })
    }

    /// The partition.
    #[getter]
    fn partition(&self, py: Python<'_>) -> Py<Partition> {
        self.partition.clone_ref(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.partition)?;
        visit.call(&self.original)
    }

    /// The driver's handle, a CUgraphExec.
    #[getter]
    fn raw(&self) -> usize {
        self.raw
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<RetargetedGraph in {}>", self.partition.bind(py).repr()?))
    }
}

/// A copy of a captured graph whose kernels, copies and fills run on a partition's SMs, ready to be
/// replayed. The graph stays as it is.
///
/// Takes a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph that lives as long as
/// the result and what it uses.
///
/// ValueError where a node cannot be moved or does not fit. Nothing is created then.
#[pyfunction]
pub(crate) fn retarget(
    py: Python<'_>,
    graph: &Bound<'_, PyAny>,
    partition: &Bound<'_, Partition>,
) -> PyResult<RetargetedGraph> {
    let raw: usize = if graph.is_instance_of::<PyInt>() {
        graph.extract().map_err(|_| Fault::value(format!("{graph} is no address of a graph")))?
    } else if graph.hasattr("raw_cuda_graph")? {
        graph.call_method0("raw_cuda_graph")?.extract()?
    } else {
        return Err(PyTypeError::new_err(format!(
            "a graph is a torch.cuda.CUDAGraph(keep_graph=True) or the address of a CUgraph, not \
             a {}",
            kind(graph)
        )));
    };
    let live = partition.get().live()?;
    let executable = blocking(py, move || {
        let context = live.context();
        let raw = std::ptr::with_exposed_provenance_mut(raw);
        // SAFETY: the caller's argument keeps torch's graph alive during this call, in which the last
        // handle of the result ends; of an address the caller promises it.
        let graph = unsafe { Graph::from_raw_borrowed(context.device(), raw, ()) }?;
        Ok(graph.retarget(context)?.instantiate()?)
    })?;
    let raw = executable.as_raw().addr();
    Ok(RetargetedGraph {
        executable: Held::new(executable),
        raw,
        partition: partition.clone().unbind(),
        original: graph.clone().unbind(),
    })
}

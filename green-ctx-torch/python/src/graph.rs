//! Retargeting of torch's graphs: the Python class `RetargetedGraph`, and the function `retarget`.

use green_ctx::{Device, Graph, graph::GraphExec};
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::argument::{shown, unexpected};
use crate::code::Code;
use crate::fault::{Fault, kind};
use crate::gil::{Held, blocking};
use crate::graph_end;
use crate::partition::Partition;

/// A copy of a graph whose kernels run in a partition. The copy uses the memory of the original graph, and keeps the
/// original alive.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct RetargetedGraph {
    executable: Held<GraphExec>,
    raw: usize,
    partition: Py<Partition>,
    /// The original graph. The kernels of the copy read and write its memory.
    original: Py<PyAny>,
}

#[pymethods]
impl RetargetedGraph {
    /// Launches the graph on the partition's stream. The graph waits for work already submitted to that stream, but
    /// for no other work. If another stream writes the graph's inputs, make the partition's stream wait for the other
    /// stream.
    fn replay(&self, py: Python<'_>) -> PyResult<()> {
        let live = self.partition.get().live()?;
        let executable = &*self.executable;
        blocking(py, move || {
            // SAFETY: `self.original` keeps torch's graph alive, which keeps the memory and the functions of its
            // kernels alive. The caller orders the graph's work with other work, as for torch's own `replay`.
            unsafe { live.stream().launch_graph(executable) }?;
            graph_end::cover(live.stream())
        })
    }

    /// The partition that the graph runs in.
    #[getter]
    fn partition(&self, py: Python<'_>) -> Py<Partition> {
        self.partition.clone_ref(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.partition)?;
        visit.call(&self.original)
    }

    /// The driver's handle of the executable graph, a CUgraphExec.
    #[getter]
    fn raw(&self) -> usize {
        self.raw
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<RetargetedGraph in {}>", self.partition.bind(py).repr()?))
    }
}

impl RetargetedGraph {
    /// Wraps an executable graph that runs in a partition's context. `original` is the graph that the caller passed.
    pub(crate) fn new(
        py: Python<'_>,
        executable: GraphExec,
        partition: &Bound<'_, Partition>,
        original: &Bound<'_, PyAny>,
    ) -> PyResult<Py<RetargetedGraph>> {
        let raw = executable.as_raw().addr();
        let graph = RetargetedGraph {
            executable: Held::new(executable),
            raw,
            partition: partition.clone().unbind(),
            original: original.clone().unbind(),
        };
        Py::new(py, graph)
    }

    /// Returns the same executable graph, wrapped for another Python object of the same partition.
    pub(crate) fn in_partition(
        &self,
        py: Python<'_>,
        partition: &Bound<'_, Partition>,
    ) -> PyResult<Py<RetargetedGraph>> {
        let original = self.original.bind(py);
        RetargetedGraph::new(py, GraphExec::clone(&self.executable), partition, original)
    }

    pub(crate) fn is_in(&self, partition: &Bound<'_, Partition>) -> bool {
        self.partition.is(partition)
    }
}

/// Returns the address of the CUgraph that an argument refers to.
pub(crate) fn address(graph: &Bound<'_, PyAny>) -> PyResult<usize> {
    let is_number = |object: &Bound<'_, PyAny>| {
        object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>()
    };
    let raw = match is_number(graph) {
        true => graph.clone(),
        false if graph.hasattr("raw_cuda_graph")? => graph.run_method("raw_cuda_graph", ())?,
        false => {
            return Err(PyTypeError::new_err(format!(
                "a graph must be a torch.cuda.CUDAGraph(keep_graph=True) or the address of a CUgraph, \
                 got {}",
                kind(graph)
            )));
        }
    };
    if !is_number(&raw) {
        return Err(unexpected(&raw, "raw_cuda_graph must return the address of a CUgraph"));
    }
    let known = raw.extract().map_err(|_| shown(&raw));
    known.map_err(|raw| match raw {
        Ok(raw) => Fault::value(format!(
            "{raw} is not the address of a graph; give the result of CUDAGraph.raw_cuda_graph()"
        ))
        .into(),
        Err(raised) => raised,
    })
}

/// Borrows the graph at an address. The result must not outlive the graph that the caller passed.
pub(crate) fn borrow(device: &Device, address: usize) -> Result<Graph, Fault> {
    let raw = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller's argument keeps torch's graph alive for as long as the result is used. For an address,
    // the documentation of the public functions requires the caller to keep the graph, and the contexts of its
    // nodes, alive.
    Ok(unsafe { Graph::from_raw_borrowed(device, raw, ()) }?)
}

/// Copies a graph into a partition's context, and returns the copy as an executable graph.
pub(crate) fn executable(
    py: Python<'_>,
    address: usize,
    partition: &Bound<'_, Partition>,
) -> PyResult<GraphExec> {
    let live = partition.get().live()?;
    blocking(py, move || {
        let context = live.context();
        Ok(borrow(context.device(), address)?.retarget(context)?.instantiate()?)
    })
}

/// Copies a captured graph so that its kernels, memory copies and memory fills run on a partition's SMs. The copy is
/// ready to replay. The original does not change.
///
///     retarget(graph, parts["decode"]).replay()
///
/// `graph` is a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph. If `graph` is an address, the
/// CUgraph and everything that it uses must live as long as the result.
///
/// Raises ValueError if a node cannot be moved or does not fit in the partition, or if the graph has nodes in several
/// partitions: launch such a graph as it is. Nodes outside all partitions do not count. If the call fails, nothing is
/// created.
#[pyfunction]
pub(crate) fn retarget(
    py: Python<'_>,
    graph: &Bound<'_, PyAny>,
    partition: &Bound<'_, Partition>,
) -> PyResult<Py<RetargetedGraph>> {
    let executable = executable(py, address(graph)?, partition)?;
    RetargetedGraph::new(py, executable, partition, graph)
}

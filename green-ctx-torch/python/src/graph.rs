//! torch's graphs in partitions.

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
            graph_end::cover(live.stream())
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

impl RetargetedGraph {
    /// Of an executable in a partition's context, made of an argument that is a graph.
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

    /// The same executable for another object that stands for the same partition.
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

/// The address of the CUgraph that an argument is.
pub(crate) fn address(graph: &Bound<'_, PyAny>) -> PyResult<usize> {
    let is_number = |object: &Bound<'_, PyAny>| {
        object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>()
    };
    let raw = match is_number(graph) {
        true => graph.clone(),
        false if graph.hasattr("raw_cuda_graph")? => graph.run_method("raw_cuda_graph", ())?,
        false => {
            return Err(PyTypeError::new_err(format!(
                "a graph is a torch.cuda.CUDAGraph(keep_graph=True) or the address of a CUgraph, not \
                 a {}",
                kind(graph)
            )));
        }
    };
    if !is_number(&raw) {
        return Err(unexpected(&raw, "raw_cuda_graph returns the address of a CUgraph"));
    }
    let known = raw.extract().map_err(|_| shown(&raw));
    known.map_err(|raw| match raw {
        Ok(raw) => Fault::value(format!(
            "{raw} is no address of a graph; give what CUDAGraph.raw_cuda_graph() returns"
        ))
        .into(),
        Err(raised) => raised,
    })
}

/// The graph at an address, to be used before the caller's argument ends.
pub(crate) fn borrow(device: &Device, address: usize) -> Result<Graph, Fault> {
    let raw = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller's argument keeps torch's graph alive as long as the result; of an address the
    // caller promises it, and that the contexts of the graph's nodes are alive.
    Ok(unsafe { Graph::from_raw_borrowed(device, raw, ()) }?)
}

/// A graph's executable in a partition's context.
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
) -> PyResult<Py<RetargetedGraph>> {
    let executable = executable(py, address(graph)?, partition)?;
    RetargetedGraph::new(py, executable, partition, graph)
}

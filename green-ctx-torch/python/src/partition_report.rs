//! The Python class `PartitionReport`.

use std::collections::BTreeSet;
use std::sync::Arc;

use green_ctx::verify as proof;
use pyo3::prelude::*;
use pyo3::types::PyFrozenSet;

/// The SMs that one partition ran on, as its blocks reported them: while it ran alone, and while all partitions
/// ran.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct PartitionReport {
    report: Arc<proof::Report>,
    index: usize,
    id: u64,
}

impl PartitionReport {
    /// Wraps the partition at this index of a report. `id` is the ID of its context.
    pub(crate) fn new(report: &Arc<proof::Report>, index: usize, id: u64) -> PartitionReport {
        PartitionReport { report: Arc::clone(report), index, id }
    }

    fn part(&self) -> &proof::PartitionReport {
        &self.report.partitions[self.index]
    }
}

#[pymethods]
impl PartitionReport {
    /// The partition's name. For a GreenContext it is "GreenContext" and a number.
    #[getter]
    fn name(&self) -> &str {
        &self.part().name
    }

    /// The ID of the partition's context, as in `Partition.id` and `GreenContext.id`.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// The requested share as text: "16", "32..", "..=100" or "rest".
    #[getter]
    fn share(&self) -> Option<String> {
        self.part().share.map(|share| share.to_string())
    }

    /// The SMs that no other partition may use.
    #[getter]
    fn floor(&self) -> u32 {
        self.part().floor
    }

    /// The number of SMs that the partition may use: its ceiling.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.part().sm_count
    }

    /// The IDs (`%smid`) of the SMs that its blocks ran on while all partitions ran.
    #[getter]
    fn observed_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, self.part().observed_sms())
    }

    /// The IDs of the SMs that its blocks ran on while it ran alone.
    #[getter]
    fn alone_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, &self.part().alone_sms)
    }

    /// The IDs of the SMs of its floor.
    #[getter]
    fn floor_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, &self.part().floor_sms)
    }

    /// The IDs of the SMs of its floor on which other partitions ran. Empty if the floor was kept.
    #[getter]
    fn intruded<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        let intruded: BTreeSet<u32> = self.report.intruded(self.index);
        PyFrozenSet::new(py, intruded)
    }

    /// The start of its first block while all partitions ran, in nanoseconds of the device's clock
    /// (`%globaltimer`).
    #[getter]
    fn start_ns(&self) -> u64 {
        self.part().start_ns()
    }

    /// The end of its last block while all partitions ran, in nanoseconds of the same clock.
    #[getter]
    fn end_ns(&self) -> u64 {
        self.part().end_ns()
    }

    /// The blocks that ran while all partitions ran, in the grid's order: for each block the ID of its SM, its
    /// start and its end, in nanoseconds.
    #[getter]
    fn blocks(&self) -> Vec<(u32, u64, u64)> {
        let blocks = self.part().blocks.iter();
        blocks.map(|block| (block.sm, block.start_ns, block.end_ns)).collect()
    }

    /// Whether the partition, while it ran alone, used as many SMs as it was given, including its floor.
    #[getter]
    fn complete(&self) -> bool {
        self.part().complete()
    }

    /// Whether the partition, while all partitions ran, used all of its floor and stayed within its ceiling.
    #[getter]
    fn within(&self) -> bool {
        self.part().within()
    }

    /// Whether the partition had its share and stayed within it: it is complete and within its share, and no other
    /// partition ran on its floor.
    #[getter]
    fn kept(&self) -> bool {
        self.report.kept(self.index)
    }

    fn __repr__(&self) -> String {
        let part = self.part();
        let kept = if self.kept() { "kept" } else { "NOT kept" };
        let observed = part.observed_sms().len();
        format!("<PartitionReport {}: {kept}, on {observed} of {} SMs>", part.name, part.sm_count)
    }
}

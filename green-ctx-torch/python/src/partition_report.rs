//! The Python class `PartitionReport`.

use std::collections::BTreeSet;
use std::sync::Arc;

use green_ctx::verify as proof;
use pyo3::prelude::*;
use pyo3::types::PyFrozenSet;

/// The SMs that one partition's blocks reported: first while the partition ran alone, and then while all partitions
/// ran.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct PartitionReport {
    report: Arc<proof::Report>,
    index: usize,
    id: u64,
}

impl PartitionReport {
    /// Wraps the partition at this index of a report. `id` is the ID of the partition's context.
    pub(crate) fn new(report: &Arc<proof::Report>, index: usize, id: u64) -> PartitionReport {
        PartitionReport { report: Arc::clone(report), index, id }
    }

    fn part(&self) -> &proof::PartitionReport {
        &self.report.partitions[self.index]
    }
}

#[pymethods]
impl PartitionReport {
    /// The partition's name. The name of a GreenContext is "GreenContext" followed by a number.
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

    /// The number of SMs that no other partition may use.
    #[getter]
    fn floor(&self) -> u32 {
        self.part().floor
    }

    /// The number of SMs that the partition may use: its ceiling.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.part().sm_count
    }

    /// The IDs (`%smid`) of the SMs that the partition's blocks ran on while all partitions ran.
    #[getter]
    fn observed_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, self.part().observed_sms())
    }

    /// The IDs of the SMs that the partition's blocks ran on while the partition ran alone.
    #[getter]
    fn alone_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, &self.part().alone_sms)
    }

    /// The IDs of the SMs of the partition's floor.
    #[getter]
    fn floor_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, &self.part().floor_sms)
    }

    /// The IDs of the SMs of the partition's floor on which other partitions ran. The set is empty if no other
    /// partition ran on the floor.
    #[getter]
    fn intruded<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        let intruded: BTreeSet<u32> = self.report.intruded(self.index);
        PyFrozenSet::new(py, intruded)
    }

    /// The time at which the partition's first block started while all partitions ran, in nanoseconds of the device's
    /// clock (`%globaltimer`).
    #[getter]
    fn start_ns(&self) -> u64 {
        self.part().start_ns()
    }

    /// The time at which the partition's last block ended while all partitions ran, in nanoseconds of the device's
    /// clock (`%globaltimer`).
    #[getter]
    fn end_ns(&self) -> u64 {
        self.part().end_ns()
    }

    /// The partition's blocks from the time when all partitions ran, in grid order. Each entry has the ID of the
    /// block's SM and the block's start and end in nanoseconds.
    #[getter]
    fn blocks(&self) -> Vec<(u32, u64, u64)> {
        let blocks = self.part().blocks.iter();
        blocks.map(|block| (block.sm, block.start_ns, block.end_ns)).collect()
    }

    /// Whether the partition, while it ran alone, used as many SMs as its ceiling allows, including its whole floor.
    #[getter]
    fn complete(&self) -> bool {
        self.part().complete()
    }

    /// Whether the partition, while all partitions ran, used its whole floor and only SMs that it had used alone.
    #[getter]
    fn within(&self) -> bool {
        self.part().within()
    }

    /// Whether the partition got its whole share and used no other SMs: `complete` and `within` are True, and no
    /// other partition ran on its floor.
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

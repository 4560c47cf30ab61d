//! What a report says of one partition.

use std::collections::BTreeSet;
use std::sync::Arc;

use green_ctx::verify as proof;
use pyo3::prelude::*;
use pyo3::types::PyFrozenSet;

/// Where one partition ran, as its own blocks saw it: alone, and while all partitions did.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct PartitionReport {
    report: Arc<proof::Report>,
    index: usize,
    id: u64,
}

impl PartitionReport {
    /// Of the partition at this place of a report, whose context has this number.
    pub(crate) fn new(report: &Arc<proof::Report>, index: usize, id: u64) -> PartitionReport {
        PartitionReport { report: Arc::clone(report), index, id }
    }

    fn part(&self) -> &proof::PartitionReport {
        &self.report.partitions[self.index]
    }
}

#[pymethods]
impl PartitionReport {
    /// The partition's name; of a GreenContext "GreenContext" and a number.
    #[getter]
    fn name(&self) -> &str {
        &self.part().name
    }

    /// The number of the partition's context, as `Partition.id` and `GreenContext.id` give it.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// The share that was asked for, as text: "16", "32..", "..=100", "rest".
    #[getter]
    fn share(&self) -> Option<String> {
        self.part().share.map(|share| share.to_string())
    }

    /// The SMs that no other partition may use.
    #[getter]
    fn floor(&self) -> u32 {
        self.part().floor
    }

    /// The SMs that the partition may use: its ceiling.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.part().sm_count
    }

    /// The ids of the SMs (`%smid`) that its blocks ran on while all partitions did.
    #[getter]
    fn observed_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, self.part().observed_sms())
    }

    /// The ids of the SMs that its blocks ran on alone.
    #[getter]
    fn alone_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, &self.part().alone_sms)
    }

    /// The ids of the SMs of its floor.
    #[getter]
    fn floor_sms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(py, &self.part().floor_sms)
    }

    /// The ids of the SMs of its floor on which other partitions ran: none where the floor was kept.
    #[getter]
    fn intruded<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        let intruded: BTreeSet<u32> = self.report.intruded(self.index);
        PyFrozenSet::new(py, intruded)
    }

    /// When its first block started beside the others, in nanoseconds of the device's clock
    /// (`%globaltimer`).
    #[getter]
    fn start_ns(&self) -> u64 {
        self.part().start_ns()
    }

    /// When its last block ended, in nanoseconds of the same clock.
    #[getter]
    fn end_ns(&self) -> u64 {
        self.part().end_ns()
    }

    /// Each block that ran while all partitions did, in the grid's order: the id of its SM, when it
    /// started and when it ended, in nanoseconds.
    #[getter]
    fn blocks(&self) -> Vec<(u32, u64, u64)> {
        let blocks = self.part().blocks.iter();
        blocks.map(|block| (block.sm, block.start_ns, block.end_ns)).collect()
    }

    /// Whether the partition ran alone on as many SMs as it was given, its floor among them.
    #[getter]
    fn complete(&self) -> bool {
        self.part().complete()
    }

    /// Whether it ran beside the others on all of its floor, and only within its ceiling.
    #[getter]
    fn within(&self) -> bool {
        self.part().within()
    }

    /// Whether it kept to its share and had it: it is complete and within its share, and nobody ran on
    /// its floor.
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

//! The native part of the Python module `green_ctx_torch`.

mod allocator;
mod argument;
mod audit;
mod capture;
mod code;
mod command;
mod create;
mod curve;
mod deprecation;
mod description;
mod device;
mod division;
mod drop_in;
mod dry_run;
mod fault;
mod fit;
mod gil;
mod graph;
mod graph_cache;
mod graph_end;
mod green_context;
mod kept;
mod limits;
mod locality;
mod made;
mod named;
mod partition;
mod partition_report;
mod partitions;
mod plan;
mod report;
mod request;
mod reserve;
mod runtime;
mod sanitizer;
mod share;
mod sm_partition;
mod split_green;
mod task;
mod torch;
mod tuner;
mod tuning_call;
mod tuning_outcome;
mod tuning_request;
mod workqueue;

use pyo3::pymodule;

// Not tested without the GIL. `__init__.py` refuses an interpreter that has none.
#[pymodule(gil_used = true)]
mod _native {
    use crate::fault::Fault;
    use crate::named::make_mapping;
    use green_ctx::Driver;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::allocator::{Allocator, library_path, torch_allocator};
    #[pymodule_export]
    use crate::audit::{Audit, Location, NodeAudit, audit};
    #[pymodule_export]
    use crate::capture::{
        _capture_begins, _compiled_in_partition, _partition_here, _relaxed, _stream_here,
        current_floor, current_sm_count,
    };
    #[pymodule_export]
    use crate::command::{_main, info};
    #[pymodule_export]
    use crate::curve::{_CurveRequest, Curve};
    #[pymodule_export]
    use crate::device::_ordinal;
    #[pymodule_export]
    use crate::dry_run::{DryRun, DryRunGroup, dry_run};
    #[pymodule_export]
    use crate::fit::{Fit, fit};
    #[pymodule_export]
    use crate::graph::{RetargetedGraph, retarget};
    #[pymodule_export]
    use crate::graph_cache::GraphCache;
    #[pymodule_export]
    use crate::graph_end::_graph_replayed;
    #[pymodule_export]
    use crate::green_context::GreenContext;
    #[pymodule_export]
    use crate::limits::{sm_limits, supported};
    #[pymodule_export]
    use crate::locality::{get_num_locality_domains, is_localization_supported};
    #[pymodule_export]
    use crate::partition::Partition;
    #[pymodule_export]
    use crate::partition_report::PartitionReport;
    #[pymodule_export]
    use crate::partitions::{Partitions, partition};
    #[pymodule_export]
    use crate::plan::{Plan, PlanSet};
    #[pymodule_export]
    use crate::report::{Report, verify};
    #[pymodule_export]
    use crate::reserve::{Reserve, reserve};
    #[pymodule_export]
    use crate::runtime::{
        error_name, error_text, host_register, host_unregister, memory_info, profiler_start,
        profiler_stop, stream_create, stream_destroy,
    };
    #[pymodule_export]
    use crate::share::Share;
    #[pymodule_export]
    use crate::sm_partition::SMPartition;
    #[pymodule_export]
    use crate::split_green::split_green;
    #[pymodule_export]
    use crate::task::_run_handle;
    #[pymodule_export]
    use crate::tuner::{_Tuner, _immovable};
    #[pymodule_export]
    use crate::tuning_call::TuningProgress;
    #[pymodule_export]
    use crate::tuning_outcome::{TuningOutcome, TuningVerdict, load_tuning};
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for a module's version")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        // Ask the system to report forks before any thread uses the module. The import is early enough.
        let _process = green_ctx::driver::Process::watched();
        // Before a library that is imported later opens the driver.
        Driver::reserve_from_environment().map_err(|error| PyErr::from(Fault::from(error)))?;
        make_mapping::<Partitions>(py)?;
        make_mapping::<Plan>(py)?;
        make_mapping::<PlanSet>(py)
    }
}

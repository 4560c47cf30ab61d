//! The workqueue arguments of partitions and GreenContexts.

use green_ctx::Device;
use green_ctx::resource::{self, WorkqueueOptions, WorkqueueScope};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::argument::{Whole, index, unexpected};
use crate::fault::Fault;

/// The scope of workqueues, and the expected number of streams that have work at the same time.
#[derive(Clone, Copy)]
pub(crate) struct Workqueue {
    scope: WorkqueueScope,
    limit: Option<i64>,
}

impl Workqueue {
    pub(crate) fn new(scope: WorkqueueScope, limit: Option<Whole>) -> Workqueue {
        Workqueue { scope, limit: limit.map(|Whole(limit)| limit) }
    }

    /// Reads a scope, or a tuple of a scope and a limit.
    pub(crate) fn read(given: &Bound<'_, PyAny>) -> PyResult<Workqueue> {
        const EXPECTED: &str = "workqueue must be a scope such as \"balanced\", or a scope and a limit such as (\"balanced\", 4)";
        let read = |text: &Bound<'_, PyAny>| {
            let text = text.cast::<PyString>().map_err(|_| unexpected(given, EXPECTED))?;
            let text = text.to_string_lossy();
            scope(&text).ok_or_else(|| {
                let reason = format!("workqueue must be 'device_ctx' or 'balanced', got '{text}'");
                PyErr::from(Fault::value(reason))
            })
        };
        let Ok(pair) = given.cast::<PyTuple>() else {
            return Ok(Workqueue::new(read(given)?, None));
        };
        if pair.len() != 2 {
            return Err(unexpected(given, EXPECTED));
        }
        let (scope, limit) = (read(&pair.get_item(0)?)?, pair.get_item(1)?);
        if limit.is_none() {
            return Ok(Workqueue::new(scope, None));
        }
        let limit = index(&limit, || unexpected(given, EXPECTED))?.extract()?;
        Ok(Workqueue::new(scope, Some(limit)))
    }

    /// Returns the workqueue configuration for a new context on this device.
    pub(crate) fn configure(self, device: &Device) -> green_ctx::Result<resource::Workqueue> {
        let mut options = WorkqueueOptions::default().scope(self.scope);
        if let Some(limit) = self.limit {
            // The library refuses a limit above `u32::MAX` in the same way as `u32::MAX`.
            options = options.concurrency_limit(u32::try_from(limit.max(0)).unwrap_or(u32::MAX));
        }
        device.resources().workqueue()?.configure(options)
    }
}

/// Returns the scope with this name. The names are those of torch 2.12.
pub(crate) fn scope(text: &str) -> Option<WorkqueueScope> {
    match text {
        "device_ctx" => Some(WorkqueueScope::Device),
        "balanced" => Some(WorkqueueScope::GreenContextBalanced),
        _ => None,
    }
}

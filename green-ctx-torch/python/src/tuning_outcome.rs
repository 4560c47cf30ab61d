//! The result of tuning: the Python classes `TuningOutcome` and `TuningVerdict`, and the function `load_tuning`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use green_ctx_report::{Tuning, machine_of, to_json};
use green_ctx_tune::{Outcome, Store};
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::code::{Code, import};
use crate::device::device;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::partitions::{Partitions, make_split};

/// The result of tuning: the verdict, and the measurements behind it. Notebooks show it as a picture.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct TuningOutcome {
    outcome: Arc<Outcome>,
    /// The device that this process tuned, or looked the outcome up for. `None` for an outcome that `load_tuning`
    /// read.
    device: Option<i64>,
}

impl TuningOutcome {
    pub(crate) fn new(outcome: Outcome, device: Option<i64>) -> TuningOutcome {
        TuningOutcome { outcome: Arc::new(outcome), device }
    }

    /// Returns a list from the outcome's JSON.
    fn of_json<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        import(py, "json")?.run_method("loads", (self.to_json(py),))?.get_item(name)
    }
}

#[pymethods]
impl TuningOutcome {
    /// The verdict: how to run the jobs, and the gain.
    #[getter]
    fn verdict(&self) -> TuningVerdict {
        let verdict = self.outcome.verdict.clone();
        TuningVerdict {
            kind: verdict.kind.as_str(),
            shares: verdict.shares,
            priority: verdict.priority,
            gain: verdict.gain,
            interval: verdict.interval.map(<(f64, f64)>::from),
            meets: verdict.meets,
            sentence: verdict.sentence,
        }
    }

    /// The goal as text.
    #[getter]
    fn goal(&self) -> String {
        self.outcome.goal.to_string()
    }

    /// The jobs, as dicts with the fields of the JSON: `name`, `key`, `arrival`, `host_bound`, `references`, `rate`
    /// and `capacity` (iterations per second when the job runs alone), and `solo` (iterations per second alone, by
    /// number of SMs).
    #[getter]
    fn jobs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.of_json(py, "jobs")
    }

    /// All arms that were considered, as dicts with the fields of the JSON: `kind`, `shares`, `priority`, `stage`,
    /// `rates` (iterations per second), `latency_us`, `capacity`, `score`, `excess`, `blocks` and `skipped`.
    #[getter]
    fn arms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.of_json(py, "arms")
    }

    /// Remarks for the reader, for example that the device drifted or that a function could not be captured.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.outcome.notes.clone()
    }

    /// The duration of the search, in seconds.
    #[getter]
    fn seconds(&self) -> f64 {
        self.outcome.seconds
    }

    /// The largest drift of any job's rate when it runs alone: the greatest of the rates at the beginning, in the
    /// middle and at the end, divided by the smallest, minus 1.
    #[getter]
    fn drift(&self) -> f64 {
        self.outcome.drift
    }

    /// Whether the search ran to its end. False if `progress` ended it, in which case this is the best result so
    /// far.
    #[getter]
    fn complete(&self) -> bool {
        self.outcome.complete
    }

    /// Returns a picture as SVG. Each arm is a point that shows its effect on one job and on the other jobs.
    fn svg(&self, py: Python<'_>) -> String {
        py.detach(|| green_ctx_report::tuning_svg(&self.outcome))
    }

    fn _repr_svg_(&self, py: Python<'_>) -> String {
        self.svg(py)
    }

    /// Returns the outcome as JSON, in the format of `green-ctx --json tune --show`.
    fn to_json(&self, py: Python<'_>) -> String {
        py.detach(|| to_json(&Tuning::of(machine_of(&self.outcome), &self.outcome)))
    }

    /// Writes the outcome to a file that `tuned` and `load_tuning` read. A relative path is in the directory that
    /// the environment variable GREEN_CTX_TUNE_DIR names, if it is set. Returns False and writes nothing if
    /// GREEN_CTX_TUNE_READ_ONLY is set.
    ///
    /// Raises OSError if the file cannot be written. An existing file stays unchanged in this case.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        blocking(py, || {
            let store = Store::new(path);
            store.save(&self.outcome).map_err(|error| Fault::Python(of_file(&store, &error)))
        })
    }

    /// Returns the verdict ready to run, as a mapping from the names of the jobs.
    ///
    ///     with outcome.apply() as applied:
    ///         with applied["decode"]:
    ///             step()
    ///
    /// `with applied["decode"]:` makes the job's stream torch's current stream. If the verdict is to partition,
    /// each job has its own partition, which the end of the outer block closes. Otherwise each job has a plain
    /// stream with its priority, or all jobs have the same stream if they are to run one after the other.
    /// `applied.verdict`, `applied.gain` and `applied.meets` are those of the verdict. `device` is as in
    /// `partitions`.
    ///
    /// Raises the same exceptions as `partition`.
    #[pyo3(signature = (device=None), text_signature = "($self, device=None)")]
    fn apply<'py>(
        this: &Bound<'py, Self>,
        device: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = import(this.py(), "green_ctx_torch._tuning")?;
        module.run_method("Applied", (this, device))
    }

    /// The ordinal of the device that the outcome was found on; None if it was read from a file.
    #[getter]
    fn device(&self) -> Option<i64> {
        self.device
    }

    /// Creates partitions for the jobs, by name, whatever the verdict is. The result is that of
    /// `green_ctx_torch.partition`.
    ///
    /// If the verdict is not to partition, each partition may use all SMs, and its stream has the job's priority,
    /// so the program is the same for every verdict. By default the device is the one that the outcome was found
    /// on, or torch's current device for the result of `load_tuning`.
    ///
    /// Raises the same exceptions as `partition`.
    #[pyo3(signature = (device=None), text_signature = "($self, device=None)")]
    fn partitions(&self, py: Python<'_>, device: Option<DeviceId>) -> PyResult<Partitions> {
        let device = match (device, self.device) {
            (None, Some(device)) => device,
            (device, _) => device.unwrap_or(DeviceId::Current).ordinal(py)?,
        };
        let living = blocking(py, || {
            let request = self.outcome.request();
            let request = request.map_err(|error| Fault::value(error.to_string()))?;
            let priority = &self.outcome.verdict.priority;
            let names = self.outcome.jobs.iter().map(|job| &job.name);
            let priorities: Vec<_> = names
                .map(|name| (name.clone(), priority.get(name).copied().unwrap_or(0)))
                .collect();
            make_split(&self::device(device)?, request, &priorities)
        })?;
        Partitions::replaceable(py, living)
    }

    fn __repr__(&self) -> String {
        format!("<TuningOutcome: {}>", self.outcome.verdict.sentence)
    }
}

/// The verdict of tuning: how to run the jobs, and the gain.
#[pyclass(frozen, get_all, module = "green_ctx_torch")]
pub(crate) struct TuningVerdict {
    /// How to run the jobs: "sequential" (all in one stream), "streams" (one stream each), "priority" (streams with
    /// different priorities) or "partition".
    kind: &'static str,
    /// The share of each job, as `partition` takes it; ".." if the verdict is not to partition.
    shares: BTreeMap<String, String>,
    /// The priority of each job's stream. Lower numbers run first.
    priority: BTreeMap<String, i32>,
    /// The advantage of the best partitions over the best arm without partitions: the ratio of their scores, minus
    /// 1. None if they were not compared long enough.
    gain: Option<f64>,
    /// The ends of the gain's 95 % interval. If it contains 0, the verdict is not to partition.
    interval: Option<(f64, f64)>,
    /// Whether the upper end of the bounded figure's 95 % interval meets the goal's bound; True for goals without a
    /// bound.
    meets: bool,
    /// The verdict as a sentence.
    sentence: String,
}

#[pymethods]
impl TuningVerdict {
    fn __repr__(&self) -> String {
        format!("<TuningVerdict {}: {}>", self.kind, self.sentence)
    }
}

/// Reads an outcome that `TuningOutcome.save`, `tuned` or the command `green-ctx tune --out` wrote, for any jobs
/// and any request.
///
/// Raises FileNotFoundError or another OSError if the file cannot be read, and ValueError if it does not contain an
/// outcome.
#[pyfunction]
pub(crate) fn load_tuning(py: Python<'_>, path: PathBuf) -> PyResult<TuningOutcome> {
    let outcome = blocking(py, || read(&Store::new(path)))?;
    Ok(TuningOutcome::new(outcome, None))
}

/// Reads the outcome in a file. The exception distinguishes a missing file from one without an outcome.
fn read(store: &Store) -> Result<Outcome, Fault> {
    store.read().map_err(|miss| match fs::read(store.path()) {
        Err(error) => Fault::Python(of_file(store, &error)),
        Ok(_) => Fault::value(miss.to_string()),
    })
}

/// Returns the subclass of OSError for a file error.
fn of_file(store: &Store, error: &io::Error) -> PyErr {
    io::Error::new(error.kind(), format!("{}: {error}", store.path().display())).into()
}

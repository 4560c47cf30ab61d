//! What tuning found, as Python sees it.

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

/// What tuning found: the verdict, and the figures that it rests on. Notebooks show it as a picture.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct TuningOutcome {
    outcome: Arc<Outcome>,
    /// The device that it was found on or looked up for in this process; `None` of a file's.
    device: Option<i64>,
}

impl TuningOutcome {
    pub(crate) fn new(outcome: Outcome, device: Option<i64>) -> TuningOutcome {
        TuningOutcome { outcome: Arc::new(outcome), device }
    }

    /// A list of the outcome's JSON.
    fn of_json<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        import(py, "json")?.run_method("loads", (self.to_json(py),))?.get_item(name)
    }
}

#[pymethods]
impl TuningOutcome {
    /// What to do, and what it brings.
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

    /// The goal, as text.
    #[getter]
    fn goal(&self) -> String {
        self.outcome.goal.to_string()
    }

    /// The jobs, as the JSON has them: a dict each with `name`, `key`, `arrival`, `host_bound`, `rate` and `capacity`
    /// in iterations a second alone, `references`, and `solo`, the iterations a second alone on so many SMs.
    #[getter]
    fn jobs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.of_json(py, "jobs")
    }

    /// Every arm that was looked at, as the JSON has them: a dict each with `kind`, `shares`, `priority`, `stage`,
    /// `rates` in iterations a second, `latency_us`, `capacity`, `score`, `excess`, `blocks` and `skipped`.
    #[getter]
    fn arms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.of_json(py, "arms")
    }

    /// What a reader should know, such as that the device drifted or that a function could not be captured.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.outcome.notes.clone()
    }

    /// How many seconds the search took.
    #[getter]
    fn seconds(&self) -> f64 {
        self.outcome.seconds
    }

    /// How far a job's rate alone drifted, of the job that drifted most: the greatest to the smallest of its
    /// rates at the beginning, in the middle and at the end, minus 1.
    #[getter]
    fn drift(&self) -> f64 {
        self.outcome.drift
    }

    /// Whether the search ran to its end; False where `progress` ended it, and this is the best so far.
    #[getter]
    fn complete(&self) -> bool {
        self.outcome.complete
    }

    /// A picture: a point for each arm, which shows what it brings to one job and to the others.
    fn svg(&self, py: Python<'_>) -> String {
        py.detach(|| green_ctx_report::tuning_svg(&self.outcome))
    }

    fn _repr_svg_(&self, py: Python<'_>) -> String {
        self.svg(py)
    }

    /// The outcome as JSON, as `green-ctx --json tune --show` prints it.
    fn to_json(&self, py: Python<'_>) -> String {
        py.detach(|| to_json(&Tuning::of(machine_of(&self.outcome), &self.outcome)))
    }

    /// Writes the outcome to a file, which `tuned` and `load_tuning` read. A relative name is in the folder
    /// that the environment variable GREEN_CTX_TUNE_DIR names, if it does. Returns False, and writes nothing,
    /// where GREEN_CTX_TUNE_READ_ONLY is set.
    ///
    /// OSError where the file cannot be written. A former file is as it was then.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        blocking(py, || {
            let store = Store::new(path);
            store.save(&self.outcome).map_err(|error| Fault::Python(of_file(&store, &error)))
        })
    }

    /// What the verdict says, ready to run: a mapping from the names of the jobs. `with applied["decode"]:` makes the
    /// job's stream torch's current one. It has the verdict's `verdict`, `gain` and `meets`.
    ///
    /// With partitions, each job has its own, and `with outcome.apply() as applied:` closes them. Without, each job has
    /// a stream of torch's, with its priority, and where the jobs are to run one after the other, all have one. The
    /// device is as in `partitions`.
    ///
    /// Raises what `partition` raises.
    #[pyo3(signature = (device=None), text_signature = "($self, device=None)")]
    fn apply<'py>(
        this: &Bound<'py, Self>,
        device: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = import(this.py(), "green_ctx_torch._tuning")?;
        module.run_method("Applied", (this, device))
    }

    /// The ordinal of the device that it was found on; None of a file's.
    #[getter]
    fn device(&self) -> Option<i64> {
        self.device
    }

    /// Partitions for the jobs, by their names, whatever the verdict is: what `green_ctx_torch.partition` returns.
    ///
    /// Where the verdict is not to partition, each may use all SMs and has its stream's priority, so that a
    /// program is the same for every verdict. The device is the one that it was found on, or, for what
    /// `load_tuning` returned, torch's current one.
    ///
    /// Raises what `partition` raises.
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

/// What to do, and what it brings.
#[pyclass(frozen, get_all, module = "green_ctx_torch")]
pub(crate) struct TuningVerdict {
    /// How the jobs should have the device: "sequential", all in one stream, "streams", one each,
    /// "priority", streams of different priorities, or "partition".
    kind: &'static str,
    /// The share of each job, as `partition` takes them. ".." where the verdict is not to partition.
    shares: BTreeMap<String, String>,
    /// The priority of each job's stream: lower numbers run first.
    priority: BTreeMap<String, i32>,
    /// How much better the best partition is than the best arm without partitions: the ratio of their scores minus 1.
    /// None where they were not compared for long enough.
    gain: Option<f64>,
    /// The ends of the gain's 95 % interval. Where it contains 0, the verdict is not to partition.
    interval: Option<(f64, f64)>,
    /// Whether the goal's bound is met by the upper end of its 95 % interval; True for goals without one.
    meets: bool,
    /// The verdict in a sentence.
    sentence: String,
}

#[pymethods]
impl TuningVerdict {
    fn __repr__(&self) -> String {
        format!("<TuningVerdict {}: {}>", self.kind, self.sentence)
    }
}

/// Reads what `save` or `tuned` wrote, or the command `green-ctx tune --out`, whatever it was found for.
///
/// FileNotFoundError, or another OSError, where the file cannot be read, ValueError where it holds no outcome.
#[pyfunction]
pub(crate) fn load_tuning(py: Python<'_>, path: PathBuf) -> PyResult<TuningOutcome> {
    let outcome = blocking(py, || read(&Store::new(path)))?;
    Ok(TuningOutcome::new(outcome, None))
}

/// What a file keeps. The exception says whether there is none, or it is no such file.
fn read(store: &Store) -> Result<Outcome, Fault> {
    store.read().map_err(|miss| match fs::read(store.path()) {
        Err(error) => Fault::Python(of_file(store, &error)),
        Ok(_) => Fault::value(miss.to_string()),
    })
}

/// The subclass of OSError for what went wrong with a file.
fn of_file(store: &Store, error: &io::Error) -> PyErr {
    io::Error::new(error.kind(), format!("{}: {error}", store.path().display())).into()
}

//! The result of tuning: the Python classes `TuningOutcome` and `TuningVerdict`, and the function `load_tuning`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use green_ctx::{Stream, StreamOptions};
use green_ctx_report::{Tuning, machine_of, to_json};
use green_ctx_tune::{ArmKind, JobReport, Outcome, Store};
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::code::{Code, import};
use crate::device::device;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::partition::{Live, Partition};
use crate::partitions::{Partitions, make_split};

/// The result of tuning: the verdict, and the measurements behind it. Notebooks show the outcome as a picture.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct TuningOutcome {
    outcome: Arc<Outcome>,
    /// The device that this process tuned, or for which it found the outcome in a file. `None` if `load_tuning` read
    /// the outcome.
    device: Option<i64>,
}

impl TuningOutcome {
    pub(crate) fn new(outcome: Outcome, device: Option<i64>) -> TuningOutcome {
        TuningOutcome { outcome: Arc::new(outcome), device }
    }

    /// Returns the ordinal of the device to which the outcome is applied.
    fn ordinal(&self, py: Python<'_>, device: Option<DeviceId>) -> PyResult<i64> {
        match (device, self.device) {
            (None, Some(device)) => Ok(device),
            (device, _) => device.unwrap_or(DeviceId::Current).ordinal(py),
        }
    }

    /// Returns the list with this name from the outcome's JSON.
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
    /// and `capacity` (iterations per second when the job runs alone), and `solo` (iterations per second when the job
    /// runs alone, for each number of SMs).
    #[getter]
    fn jobs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.of_json(py, "jobs")
    }

    /// All arms (ways to run the jobs) that the search considered, as dicts with the fields of the JSON: `kind`,
    /// `shares`, `priority`, `stage`, `rates` (iterations per second), `latency_us`, `capacity`, `score`, `excess`,
    /// `certain` (whether the final comparison was certain to meet the bound), `blocks` and `skipped`.
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

    /// The largest drift of any job's rate when the job runs alone. The drift compares the rates at the beginning, in
    /// the middle and at the end of the search: the highest rate divided by the lowest rate, minus 1.
    #[getter]
    fn drift(&self) -> f64 {
        self.outcome.drift
    }

    /// Whether the search ran to its end. If `progress` ended the search, this is False, and the outcome is the best
    /// result so far.
    #[getter]
    fn complete(&self) -> bool {
        self.outcome.complete
    }

    /// Returns a picture as SVG. Each arm is a point whose position shows the arm's effect on one job and on the
    /// other jobs.
    fn to_svg(&self, py: Python<'_>) -> String {
        py.detach(|| green_ctx_report::tuning_svg(&self.outcome))
    }

    fn _repr_svg_(&self, py: Python<'_>) -> String {
        self.to_svg(py)
    }

    /// Returns the outcome as JSON, in the format of `green-ctx --json tune --show`.
    fn to_json(&self, py: Python<'_>) -> String {
        let machine = self.outcome.machine.as_ref();
        py.detach(|| to_json(&Tuning::of(machine_of(machine), &self.outcome)))
    }

    /// Writes the outcome to a file that `tuned` and `load_tuning` can read. If the environment variable
    /// GREEN_CTX_TUNE_DIR is set, a relative path starts at the directory that this variable names. Returns False and
    /// writes nothing if GREEN_CTX_TUNE_READ_ONLY is set, but not to 0 or an empty text.
    ///
    /// Raises OSError, and leaves an existing file unchanged, if the file cannot be written.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        blocking(py, || {
            let store = Store::new(path);
            store.save(&self.outcome).map_err(|error| Fault::Python(of_file(&store, &error)))
        })
    }

    /// Creates what the verdict recommends, and returns a mapping from the names of the jobs to partitions.
    ///
    ///     with outcome.apply() as applied:
    ///         with applied["decode"]:
    ///             step()
    ///
    /// If the verdict is to partition, each job has its own partition. Otherwise the partition of each job represents
    /// the whole device: its floor is 0, and its work may run on all SMs, in a plain stream. If the verdict is to run
    /// the jobs one after the other, all jobs have the same stream. Otherwise each job has its own stream, with the
    /// job's priority. So the blocks of a program run unchanged under every verdict; `watch` needs one to partition. The
    /// end of the outer block closes the partitions.
    ///
    /// `applied.verdict` is the verdict, and `applied.gain` and `applied.meets` are fields of the verdict. `device` has
    /// the same meaning as in `partitions`.
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

    /// The ordinal of the device that the outcome is for; None if `load_tuning` read the outcome.
    #[getter]
    fn device(&self) -> Option<i64> {
        self.device
    }

    /// Creates one partition per job, whatever the verdict is. The result is a `Partitions` object with the jobs'
    /// names, as from `green_ctx_torch.partition`.
    ///
    /// If the verdict is not to partition, each partition may use all SMs, and its stream has the job's priority. The
    /// same program therefore works for every verdict. By default, the partitions are on the device that the outcome
    /// is for. If `load_tuning` read the outcome, the default is torch's current device.
    ///
    /// Raises the same exceptions as `partition`.
    #[pyo3(signature = (device=None), text_signature = "($self, device=None)")]
    fn partitions(&self, py: Python<'_>, device: Option<DeviceId>) -> PyResult<Partitions> {
        let device = self.ordinal(py, device)?;
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

    /// Creates the plain streams of a verdict that does not partition. Returns one partition of the whole device per
    /// job, with the job's name.
    fn _plain(
        &self,
        py: Python<'_>,
        device: Option<DeviceId>,
    ) -> PyResult<Vec<(String, Partition)>> {
        let device = self.ordinal(py, device)?;
        blocking(py, || {
            let (context, verdict) =
                (self::device(device)?.primary_context()?, &self.outcome.verdict);
            let mut one: Option<Stream> = None;
            let plain = |job: &JobReport| {
                let priority = verdict.priority.get(&job.name).copied().unwrap_or(0);
                let make = || context.create_stream(StreamOptions::default().priority(priority));
                let stream = match (&mut one, verdict.kind) {
                    (Some(one), ArmKind::Sequential) => one.clone(),
                    (_, _) => one.insert(make()?).clone(),
                };
                let live = Live::plain(job.name.clone(), stream)?;
                Ok((job.name.clone(), Partition::new(Arc::new(live))))
            };
            self.outcome.jobs.iter().map(plain).collect()
        })
    }

    fn __repr__(&self) -> String {
        format!("<TuningOutcome: {}>", self.outcome.verdict.sentence)
    }
}

/// The verdict of tuning: how to run the jobs, and the gain.
#[pyclass(frozen, get_all, module = "green_ctx_torch")]
pub(crate) struct TuningVerdict {
    /// The way to run the jobs: "sequential" (all in one stream), "streams" (one stream per job), "priority" (streams
    /// with different priorities) or "partition".
    kind: &'static str,
    /// The share of each job, in the form that `partition` takes; ".." if the verdict is not to partition.
    shares: BTreeMap<String, String>,
    /// The priority of each job's stream. Lower numbers run first.
    priority: BTreeMap<String, i32>,
    /// The advantage of the best partitions over the best arm without partitions: the ratio of their scores, minus 1.
    /// Under a bound, arms that are certain to meet it come before all others. None if the comparison was too short, or
    /// if one of the two arms does not exist, cannot keep up or finished no iteration of a job.
    gain: Option<f64>,
    /// The lower and the upper end of the gain's 95 % interval. If the interval contains 0, the verdict is not to
    /// partition, unless a job has a floor, or partitions meet the bound, or come closest to it, and the rest does not.
    interval: Option<(f64, f64)>,
    /// Whether even the upper end of the 95 % interval is within the bound of the goal. True for goals
    /// without a bound.
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

/// Reads an outcome from a file that `TuningOutcome.save`, `tuned` or the command `green-ctx tune --out` wrote. The
/// outcome can be for any jobs and any request.
///
/// Raises FileNotFoundError or another OSError if the file cannot be read, and ValueError if it does not contain an
/// outcome.
#[pyfunction]
pub(crate) fn load_tuning(py: Python<'_>, path: PathBuf) -> PyResult<TuningOutcome> {
    let outcome = blocking(py, || read(&Store::new(path)))?;
    Ok(TuningOutcome::new(outcome, None))
}

/// Reads the outcome in a file. A missing file and a file without an outcome cause different exceptions.
fn read(store: &Store) -> Result<Outcome, Fault> {
    store.read().map_err(|miss| match fs::read(store.path()) {
        Err(error) => Fault::Python(of_file(store, &error)),
        Ok(_) => Fault::value(miss.to_string()),
    })
}

/// Converts a file error to the matching subclass of OSError.
fn of_file(store: &Store, error: &io::Error) -> PyErr {
    io::Error::new(error.kind(), format!("{}: {error}", store.path().display())).into()
}

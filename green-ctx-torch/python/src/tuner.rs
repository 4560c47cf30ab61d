//! Tuning of Python jobs: functions, and graphs that torch captured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use green_ctx::{Device, Error, resource::Granularity};
use green_ctx_tune::{self, Job, Profile, Progress, Request, RequestError, Store, TuneError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::argument::{self, DeviceId, Whole, unexpected};
use crate::device::device;
use crate::fault::{Fault, unsigned};
use crate::gil::{Signals, blocking};
use crate::graph;
use crate::tuning_call::{Raised, called};
use crate::tuning_outcome::TuningOutcome;
use crate::tuning_request::{self, Described, kinds, seconds};

/// A checked tuning request with its jobs, but without the work of the jobs. Preparing the work takes time, and is
/// necessary only if no file contains the outcome.
#[pyclass(frozen, module = "green_ctx_torch._native")]
pub(crate) struct _Tuner {
    device: i64,
    jobs: Vec<Profile>,
    request: Request,
}

#[pymethods]
impl _Tuner {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "Python's keywords")]
    fn new(
        py: Python<'_>,
        jobs: Vec<Described<'_>>,
        goal: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        device: DeviceId,
        budget: Option<&Bound<'_, PyAny>>,
        step: Whole,
        floors: Option<&Bound<'_, PyAny>>,
        leave_out: &Bound<'_, PyAny>,
    ) -> PyResult<_Tuner> {
        let jobs = jobs.iter().map(tuning_request::profile).collect::<PyResult<Vec<_>>>()?;
        let step = unsigned("a step", step.0)?;
        let mut request = Request::new(tuning_request::goal(goal, weights)?).step(step);
        if let Some(budget) = budget {
            request = request.budget(seconds(budget)?);
        }
        if let Some(floors) = floors {
            const EXPECTED: &str = "floors maps names of jobs to SMs, as in {\"decode\": 32}";
            for (name, sms) in argument::pairs(floors, EXPECTED)? {
                let sms = argument::index(&sms, || unexpected(&sms, EXPECTED))?;
                let sms = unsigned("a floor", sms.extract::<Whole>()?.0)?;
                request = request.floor(argument::name("job", &name)?, sms);
            }
        }
        for kind in kinds(leave_out)? {
            request = request.leave_out(kind);
        }
        let device = device.ordinal(py)?;
        let tuner = _Tuner { device, jobs, request };
        blocking(py, || {
            let pieces =
                self::device(device)?.resources().sm()?.unit_sizes(Granularity::default())?;
            tuner.request.check(&tuner.jobs, pieces).map_err(of_request)
        })?;
        Ok(tuner)
    }

    /// The device's ordinal.
    #[getter]
    fn device(&self) -> i64 {
        self.device
    }

    /// Returns the outcome in a file for these jobs and this request, or a text with the reason why the file cannot
    /// be used.
    fn stored(&self, py: Python<'_>, path: PathBuf) -> PyResult<Py<PyAny>> {
        let store = libraries(py)?
            .into_iter()
            .fold(Store::new(path), |store, (name, version)| store.library(name, version));
        let found = blocking(py, || {
            let loaded = store.load(&device(self.device)?, &self.jobs, &self.request);
            Ok(loaded.map_err(|miss| miss.to_string()))
        })?;
        Ok(match found {
            Ok(outcome) => Py::new(py, TuningOutcome::new(outcome, Some(self.device)))?.into_any(),
            Err(reason) => PyString::new(py, &reason).into_any().unbind(),
        })
    }

    /// Tunes the jobs. The tuner calls `progress` before each measurement block, and adds `notes` to the notes of the
    /// outcome.
    fn run(
        &self,
        py: Python<'_>,
        works: Vec<Work<Bound<'_, PyAny>>>,
        notes: Vec<String>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<TuningOutcome> {
        let works = addresses(works)?;
        let libraries = libraries(py)?;
        let mut outcome = blocking(py, || {
            let search = |device: &Device, jobs: &mut [Job], go_on: GoOn<'_>| {
                green_ctx_tune::run(device, jobs, &self.request, go_on)
            };
            let (found, end) = measured(self.device, &self.jobs, works, progress, search);
            // The exception of the Python code says more than the error that ended the search because of it.
            end.map_or(found, |error| Err(Fault::Python(error)))
        })?;
        outcome.notes.extend(notes);
        if let Some(machine) = &mut outcome.machine {
            machine.libraries = libraries;
        }
        Ok(TuningOutcome::new(outcome, Some(self.device)))
    }
}

/// Returns the reason why a graph cannot be copied into partitions, or None if it can be copied.
#[pyfunction]
pub(crate) fn _immovable(
    py: Python<'_>,
    device: i64,
    graph: &Bound<'_, PyAny>,
) -> PyResult<Option<String>> {
    let address = graph::address(graph)?;
    let moved = |device: &Device| {
        let graph = graph::borrow(device, address)?;
        Ok::<_, Fault>(graph.retarget(&device.primary_context()?)?.instantiate()?)
    };
    blocking(py, || Ok(moved(&self::device(device)?).err().map(|fault| fault.message())))
}

/// The work of a job: a graph, or a function that submits one iteration to a stream. The third value is a function
/// that is called before each measurement block. Each function takes the address of a stream.
pub(crate) type Work<Graph> = (Option<Graph>, Option<Py<PyAny>>, Option<Py<PyAny>>);

pub(crate) fn addresses(works: Vec<Work<Bound<'_, PyAny>>>) -> PyResult<Vec<Work<usize>>> {
    let address = |(graph, function, before): Work<Bound<'_, PyAny>>| {
        Ok((graph.map(|graph| graph::address(&graph)).transpose()?, function, before))
    };
    works.into_iter().map(address).collect()
}

/// Returns the jobs with their work.
fn jobs_with(
    device: &Device,
    profiles: &[Profile],
    works: Vec<Work<usize>>,
    raised: &Arc<Raised>,
) -> Result<Vec<Job>, Fault> {
    let mut jobs = Vec::with_capacity(works.len());
    for (place, (known, (graph, function, before))) in profiles.iter().zip(works).enumerate() {
        let call = |function| called(function, Arc::clone(raised), place);
        let mut job = match (graph, function) {
            (Some(address), _) => {
                let graph = graph::borrow(device, address)?;
                // SAFETY: the caller's argument keeps torch's graph alive, which keeps its memory alive. The
                // documentation of `green_ctx_torch.Job` requires the same for an address. The same documentation
                // states that iterations run concurrently with the other jobs.
                unsafe { Job::graph(known.name(), graph) }
            }
            // Python code has already tried to capture the function.
            (None, Some(function)) => Job::new(known.name(), call(function)).uncaptured(),
            (None, None) => return Err(Fault::value(format!("{} has no work", known.name()))),
        };
        if let Some(before) = before {
            job = job.before_block(call(before));
        }
        jobs.push(job.profile(known.clone()));
    }
    Ok(jobs)
}

/// A function that a measurement calls before each block. The measurement ends if it returns false.
pub(crate) type GoOn<'a> = &'a mut dyn FnMut(&Progress<'_>) -> bool;

/// Runs a measurement of jobs, without the GIL. Returns its result, and the exception that ended it: of a signal
/// handler, of `progress` or of a job.
pub(crate) fn measured<T>(
    device: i64,
    profiles: &[Profile],
    works: Vec<Work<usize>>,
    progress: Option<Py<PyAny>>,
    measure: impl FnOnce(&Device, &mut [Job], GoOn<'_>) -> Result<T, TuneError<Error>>,
) -> (Result<T, Fault>, Option<PyErr>) {
    let raised = Arc::new(Raised::of(profiles.len()));
    let mut signals = Signals::default();
    let mut go_on = |now: &Progress<'_>| {
        !raised.is_ending() && signals.is_quiet() && raised.tells(progress.as_ref(), now)
    };
    let found = self::device(device).and_then(|device| {
        let mut jobs = jobs_with(&device, profiles, works, &raised)?;
        measure(&device, &mut jobs, &mut go_on).map_err(|error| match error {
            TuneError::Request(error) => of_request_with(error, profiles, &raised),
            // The arguments are valid, so the device is the reason.
            TuneError::Failed(Error::InvalidRequest(reason)) => Fault::state(reason),
            TuneError::Failed(error) => error.into(),
        })
    });
    (found, signals.into_raised().or_else(|| raised.ended()))
}

/// Returns the exception for a request that cannot be met, or the exception that a job raised.
fn of_request_with(error: RequestError, profiles: &[Profile], raised: &Raised) -> Fault {
    match error {
        RequestError::Job { job, reason } => {
            let place = profiles.iter().position(|known| known.name() == job);
            match place.and_then(|place| raised.of_job(place)) {
                Some(error) => Fault::Python(error),
                None => Fault::state(format!("{job} does not run: {reason}")),
            }
        }
        error => of_request(error),
    }
}

/// Returns the version of torch, if the program has imported torch.
fn libraries(py: Python<'_>) -> PyResult<BTreeMap<String, String>> {
    let mut libraries = BTreeMap::new();
    if let Some(torch) = argument::torch(py)?
        && let Some(version) = torch.getattr_opt("__version__")?
    {
        libraries.insert("torch".to_owned(), version.str()?.to_string());
    }
    Ok(libraries)
}

/// Returns the exception for a request that cannot be met.
fn of_request(error: RequestError) -> Fault {
    match error {
        RequestError::Interrupted => Fault::state(
            "progress ended the search before there was a result; let the search continue until `best` is \
             not None",
        ),
        error @ RequestError::NoArm { .. } => Fault::state(error.to_string()),
        error => Fault::value(error.to_string()),
    }
}

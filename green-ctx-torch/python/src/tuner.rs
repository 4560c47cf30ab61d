//! Tunes jobs that are Python's: functions, and graphs that torch has captured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use green_ctx::resource::Granularity;
use green_ctx::tune::{
    self, Goal, Job, Measure, Outcome, Pieces, Profile, Progress, RanksError, Request,
    RequestError, Runner, Store, TuneError,
};
use green_ctx::{Device, Error};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::argument::{self, DeviceId, Whole, unexpected};
use crate::code::Code;
use crate::device::device;
use crate::fault::{Fault, unsigned};
use crate::gil::{Signals, blocking};
use crate::graph;
use crate::tuning_call::{Raised, called};
use crate::tuning_outcome::{self, TuningOutcome};
use crate::tuning_ranks::_Ranks;
use crate::tuning_request::{self, Described, Named, kinds, named, seconds};

/// What is to be tuned, read and checked, without the work of the jobs: that is prepared at some cost, and
/// only where no file has the outcome.
#[pyclass(frozen, module = "green_ctx_torch._native")]
pub(crate) struct _Tuner {
    device: i64,
    jobs: Vec<Named>,
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
        let jobs = jobs.iter().map(named).collect::<PyResult<Vec<_>>>()?;
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
            let pieces = pieces(&self::device(device)?)?;
            tuner.request.check(&tuner.profiles(), &pieces).map_err(of_request)
        })?;
        Ok(tuner)
    }

    /// The device's ordinal.
    #[getter]
    fn device(&self) -> i64 {
        self.device
    }

    /// Why copies of a graph cannot be made for partitions; None where they can.
    fn immovable(&self, py: Python<'_>, graph: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
        let address = graph::address(graph)?;
        let moved = |device: &Device| {
            Ok::<_, Fault>(
                graph::borrow(device, address)?
                    .retarget(&device.primary_context()?)?
                    .instantiate()?,
            )
        };
        blocking(py, || Ok(moved(&device(self.device)?).err().map(|fault| fault.message())))
    }

    /// What a file keeps for these jobs and this request, or text that says why that cannot be used. Of ranks the
    /// first one alone reads it.
    fn stored(
        &self,
        py: Python<'_>,
        path: PathBuf,
        ranks: Option<Py<_Ranks>>,
    ) -> PyResult<Py<PyAny>> {
        let store = libraries(py)?
            .into_iter()
            .fold(Store::new(path), |store, (name, version)| store.library(name, version));
        let found = blocking(py, || {
            let device = device(self.device)?;
            let load = || {
                let loaded = store.load(&device, &self.profiles(), &self.request);
                loaded.map_err(|miss| miss.to_string())
            };
            match ranks {
                Some(ranks) => ranks.get().with(|ranks| ranks.ask_first(load)),
                None => Ok(load()),
            }
        })?;
        Ok(match found {
            Ok(outcome) => Py::new(py, TuningOutcome::new(outcome, Some(self.device)))?.into_any(),
            Err(reason) => PyString::new(py, &reason).into_any().unbind(),
        })
    }

    /// What it is asked for, as ranks compare it.
    fn asked(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        blocking(py, || {
            let pieces = pieces(&device(self.device)?)?;
            tune::asked(&self.profiles(), &pieces, &self.request).map_err(of_request)
        })
    }

    /// Tunes, with other ranks where there are some. `progress` is called before each block, on rank 0. The
    /// outcome has these notes beside its own.
    fn run(
        &self,
        py: Python<'_>,
        works: Vec<Work<Bound<'_, PyAny>>>,
        notes: Vec<String>,
        progress: Option<Py<PyAny>>,
        ranks: Option<Py<_Ranks>>,
    ) -> PyResult<TuningOutcome> {
        let works = addresses(works)?;
        let libraries = libraries(py)?;
        let complete = move |mut outcome: Outcome| {
            outcome.notes.extend(notes.iter().cloned());
            if let Some(machine) = &mut outcome.machine {
                machine.libraries.clone_from(&libraries);
            }
            outcome
        };
        let outcome = blocking(py, move || {
            let jobs = self.jobs.len();
            if let Some(ranks) = ranks {
                let ranks = ranks.get();
                let raised = Arc::new(Raised::with_end(jobs, ranks.end()));
                let found = self.search_together(works, complete, progress, &raised, ranks);
                return match raised.ended() {
                    Some(error) => Err(Fault::Python(error)),
                    None => found,
                };
            }
            let raised = Arc::new(Raised::of(jobs));
            let found = self.search(works, progress, &raised);
            // What Python raised says more than that the search has ended because of it.
            match raised.ended() {
                Some(error) => Err(Fault::Python(error)),
                None => found.map(complete),
            }
        })?;
        Ok(TuningOutcome::new(outcome, Some(self.device)))
    }

    /// Runs blocks for another process. `exchange` takes the answer to the last line, None at first, and
    /// returns the next one, None at the end. Of ranks the first one alone calls it.
    #[pyo3(signature = (works, exchange, ranks = None))]
    fn serve(
        &self,
        py: Python<'_>,
        works: Vec<Work<Bound<'_, PyAny>>>,
        exchange: Py<PyAny>,
        ranks: Option<Py<_Ranks>>,
    ) -> PyResult<()> {
        let works = addresses(works)?;
        blocking(py, move || {
            let raised = Arc::new(Raised::of(self.jobs.len()));
            let device = device(self.device)?;
            let mut jobs = self.jobs(&device, works, &raised)?;
            let mut runner = Runner::new(&device, &mut jobs)?;
            let pieces = runner.pieces().clone();
            let served = match ranks.as_ref().map(Py::get) {
                None => answer_all(&mut runner, &exchange),
                Some(ranks) => ranks
                    .with(|ranks| {
                        ranks.lead(&mut runner, &self.profiles(), &pieces, |measure| {
                            answer_all(measure, &exchange)
                        })
                    })
                    .and_then(|served| served.unwrap_or(Ok(()))),
            };
            raised.ended().map_or(served, |error| Err(Fault::Python(error)))
        })
    }
}

/// Without the GIL: answers lines until there is none.
fn answer_all<M>(measure: &mut M, exchange: &Py<PyAny>) -> Result<(), Fault>
where
    M: Measure + ?Sized,
    M::Error: std::error::Error,
{
    let mut answer = None;
    let mut signals = Signals::default();
    while signals.is_quiet() {
        let line = Python::try_attach(|py| {
            exchange.bind(py).run((answer.take(),))?.extract::<Option<String>>()
        });
        let line = line.transpose().map_err(Fault::Python)?;
        let Some(line) = line.flatten() else { return Ok(()) };
        let answered = tune::answer(measure, &line);
        answer = Some(answered.map_err(|error| Fault::value(format!("{line:?}: {error}")))?);
    }
    Err(signals.into())
}

/// A job's graph or a function that submits an iteration to a stream, and what is called before each block.
/// Functions take the stream's address.
type Work<Graph> = (Option<Graph>, Option<Py<PyAny>>, Option<Py<PyAny>>);

/// The same with the graphs' addresses.
fn addresses(works: Vec<Work<Bound<'_, PyAny>>>) -> PyResult<Vec<Work<usize>>> {
    let address = |(graph, function, before): Work<Bound<'_, PyAny>>| {
        let address = graph.map(|graph| graph::address(&graph)).transpose()?;
        Ok((address, function, before))
    };
    works.into_iter().map(address).collect()
}

impl _Tuner {
    fn profiles(&self) -> Vec<Profile> {
        self.jobs.iter().map(Named::profile).collect()
    }

    /// The jobs with their work.
    fn jobs(
        &self,
        device: &Device,
        works: Vec<Work<usize>>,
        raised: &Arc<Raised>,
    ) -> Result<Vec<Job>, Fault> {
        let mut jobs = Vec::with_capacity(works.len());
        for (place, (known, (graph, function, before))) in self.jobs.iter().zip(works).enumerate() {
            let call = |function| called(function, Arc::clone(raised), place);
            let mut job = match (graph, function) {
                (Some(address), _) => {
                    let graph = graph::borrow(device, address)?;
                    // SAFETY: the caller's argument keeps torch's graph alive, and that its memory; of an
                    // address the caller promises it, and of both that it may run beside the other jobs.
                    unsafe { Job::graph(&known.name, graph) }
                }
                // Python has tried to capture it.
                (None, Some(function)) => Job::new(&known.name, call(function)).uncaptured(),
                (None, None) => return Err(Fault::value(format!("{} has no work", known.name))),
            };
            if let Some(before) = before {
                job = job.before_block(call(before));
            }
            jobs.push(job.arrival(known.arrival.clone()).key(&known.key));
        }
        Ok(jobs)
    }

    /// Searches, without the GIL.
    fn search(
        &self,
        works: Vec<Work<usize>>,
        progress: Option<Py<PyAny>>,
        raised: &Arc<Raised>,
    ) -> Result<Outcome, Fault> {
        let device = device(self.device)?;
        let mut jobs = self.jobs(&device, works, raised)?;
        let mut signals = Signals::default();
        let mut go_on = |now: &Progress<'_>| {
            !raised.is_ending() && signals.is_quiet() && raised.tells(progress.as_ref(), now)
        };
        let found = tune::run(&device, &mut jobs, &self.request, &mut go_on);
        if signals.is_raised() {
            return Err(signals.into());
        }
        found.map_err(|error| match error {
            TuneError::Request(error) => self.of_request(error, raised),
            // The arguments are right: no SMs are free, say.
            TuneError::Failed(Error::InvalidRequest(reason)) => Fault::state(reason),
            TuneError::Failed(error) => error.into(),
        })
    }
}

/// Without the GIL.
impl _Tuner {
    /// Searches with other ranks.
    fn search_together(
        &self,
        works: Vec<Work<usize>>,
        complete: impl Fn(Outcome) -> Outcome,
        progress: Option<Py<PyAny>>,
        raised: &Arc<Raised>,
        ranks: &_Ranks,
    ) -> Result<Outcome, Fault> {
        let device = device(self.device)?;
        let mut jobs = self.jobs(&device, works, raised)?;
        // What `progress` raises, the ranks find out when they next speak to each other, as an interrupt.
        let mut go_on =
            |now: &Progress<'_>| raised.tells(progress.as_ref(), now) || raised.is_ending();
        let mut complete = |outcome: Outcome| Ok(complete(outcome));
        let found = ranks
            .lend(|ranks| ranks.run(&device, &mut jobs, &self.request, &mut go_on, &mut complete));
        found?.map_err(|error| match error {
            RanksError::Request(error) => self.of_request(error, raised),
            // What a function raised says more than that it has failed.
            error @ RanksError::Failed { .. } => {
                raised.of_any().map_or_else(|| ranks.fault(error), Fault::Python)
            }
            error => ranks.fault(error),
        })
    }

    fn of_request(&self, error: RequestError, raised: &Raised) -> Fault {
        match error {
            RequestError::Job { job, reason } => {
                let place = self.jobs.iter().position(|known| known.name == job);
                match place.and_then(|place| raised.of_job(place)) {
                    Some(error) => Fault::Python(error),
                    None => Fault::state(format!("{job} does not run: {reason}")),
                }
            }
            error => of_request(error),
        }
    }
}

/// What a file keeps, checked for the jobs that it names, and for a goal where one is given. Of ranks the first
/// one alone reads it.
#[pyfunction]
pub(crate) fn _recorded(
    py: Python<'_>,
    path: PathBuf,
    goal: Option<&Bound<'_, PyAny>>,
    weights: Option<&Bound<'_, PyAny>>,
    device: DeviceId,
    ranks: Option<Py<_Ranks>>,
) -> PyResult<TuningOutcome> {
    let goal = goal.map(|goal| tuning_request::goal(goal, weights)).transpose()?;
    let ordinal = device.ordinal(py)?;
    let libraries = libraries(py)?;
    let outcome = blocking(py, || {
        let device = self::device(ordinal)?;
        let recorded = || recorded(Store::new(path), libraries, goal, &device);
        let Some(ranks) = ranks else { return recorded() };
        let ranks = ranks.get();
        // Where rank 0 cannot read it, it raises that, and the others hear of it.
        let mut own = match ranks.rank() {
            0 => Some(recorded()?),
            _ => None,
        };
        let find = || own.take().ok_or_else(|| "only rank 0 reads it".to_owned());
        ranks.with(|ranks| ranks.ask_first(find))?.map_err(Fault::state)
    })?;
    Ok(TuningOutcome::new(outcome, Some(ordinal)))
}

fn recorded(
    mut store: Store,
    libraries: BTreeMap<String, String>,
    goal: Option<Goal>,
    device: &Device,
) -> Result<Outcome, Fault> {
    let found = tuning_outcome::read(&store)?;
    // Jobs that did not need torch do not depend on its version.
    let needs =
        |name: &str| found.machine.as_ref().is_some_and(|it| it.libraries.contains_key(name));
    for (name, version) in libraries.into_iter().filter(|(name, _)| needs(name)) {
        store = store.library(name, version);
    }
    let jobs = found.jobs.iter();
    let jobs: Vec<Profile> = jobs
        .map(|job| Profile::new(&job.name).arrival(job.arrival.clone()).key(&job.key))
        .collect();
    let request = Request::new(goal.unwrap_or(found.goal)).step(found.limits.step);
    let floors = found.limits.floors.into_iter();
    let request = floors.fold(request, |request, (job, sms)| request.floor(job, sms));
    let kinds = found.limits.left_out.into_iter();
    let request = kinds.fold(request, Request::leave_out);
    let path = store.path().display();
    let loaded = store.load(device, &jobs, &request);
    loaded.map_err(|miss| {
        Fault::value(format!("{path} is not for here: {miss}; give the jobs, to tune them"))
    })
}

/// The version of torch, where the program has imported it.
fn libraries(py: Python<'_>) -> PyResult<BTreeMap<String, String>> {
    let mut libraries = BTreeMap::new();
    if let Some(torch) = argument::torch(py)?
        && let Some(version) = torch.getattr_opt("__version__")?
    {
        libraries.insert("torch".to_owned(), version.str()?.to_string());
    }
    Ok(libraries)
}

/// What a device is divided in where nothing of it is held.
fn pieces(device: &Device) -> Result<Pieces, Fault> {
    Ok(Pieces::of(&device.resources().sm()?.unit_counts(Granularity::default())?))
}

/// The exception for a request that cannot be met.
pub(crate) fn of_request(error: RequestError) -> Fault {
    match error {
        RequestError::Interrupted => Fault::state(
            "progress has ended the search before anything was known; let it go on until there is a \
             best arm",
        ),
        error => Fault::value(error.to_string()),
    }
}

//! What is asked of the tuner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arm::ArmKind;
use crate::arrival::Arrival;
use crate::goal::Goal;
use crate::measure::Measure;
use crate::outcome::Outcome;
use crate::search::{self, Progress, Question};
use crate::space::Space;
use green_ctx::resource::UnitSizes;

/// A job as the search knows it. What it does, only whatever runs it knows.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a profile does nothing until it is tuned"]
pub struct Profile {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) arrival: Option<Arrival>,
}

impl Profile {
    /// A job of this name.
    pub fn new(name: impl Into<String>) -> Profile {
        Profile { name: name.into(), key: String::new(), arrival: None }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets when its iterations are due. Unless it is set, two iterations are in flight or, where the goal names a
    /// percentile of this job, one.
    pub fn arrival(mut self, arrival: Arrival) -> Profile {
        self.arrival = Some(arrival);
        self
    }

    /// Sets what tells jobs of one name apart, such as a model and a batch size. An outcome of another key is not used.
    pub fn key(mut self, key: impl Into<String>) -> Profile {
        self.key = key.into();
        self
    }

    /// When its iterations are due under a goal: as set, or as [`arrival`](Profile::arrival) says.
    #[must_use]
    pub fn arrival_for(&self, goal: &Goal) -> Arrival {
        let is_named = goal.percentile().is_some_and(|(job, _)| job == self.name);
        self.arrival.clone().unwrap_or(Arrival::closed(if is_named { 1 } else { 2 }))
    }
}

/// A job with its arrivals.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) arrival: Arrival,
}

/// What is to be found, and among what: the goal, the budget, and which arms are allowed.
///
/// Unless it says otherwise, two jobs are tuned for 19.5 s, on every count of SMs that whole units give, in every kind of
/// arm.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a request does nothing until something is tuned"]
pub struct Request {
    goal: Goal,
    budget: Option<Duration>,
    limits: Limits,
}

/// Which arms are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Limits {
    /// Counts of SMs are tried in such steps, rounded up to whole units.
    pub step: u32,
    /// What jobs must have for themselves, in SMs.
    pub floors: BTreeMap<String, u32>,
    /// Kinds of arms that are left out.
    pub left_out: BTreeSet<ArmKind>,
}

impl Default for Request {
    fn default() -> Request {
        Request::new(Goal::default())
    }
}

/// How long two jobs are tuned, unless the request says otherwise.
const BUDGET: Duration = Duration::from_millis(19_500);

impl Request {
    /// A request for the best by a goal.
    pub fn new(goal: Goal) -> Request {
        let (floors, left_out) = (BTreeMap::new(), BTreeSet::new());
        Request { goal, budget: None, limits: Limits { step: 1, floors, left_out } }
    }

    /// Which arms are allowed.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The goal.
    #[must_use]
    pub fn goal(&self) -> &Goal {
        &self.goal
    }

    /// Sets how long tuning may take: 19.5 s for two jobs unless it is set, and half of that more for each further one.
    /// About half of it goes into the comparison at the end, which gives the gain and its interval.
    pub fn budget(mut self, budget: Duration) -> Request {
        self.budget = Some(budget);
        self
    }

    /// Sets in steps of how many SMs counts are tried; rounded up to whole units.
    pub fn step(mut self, sms: u32) -> Request {
        self.limits.step = sms;
        self
    }

    /// Has a job have at least so many SMs for itself. Then only partitions are chosen.
    pub fn floor(mut self, job: impl Into<String>, sms: u32) -> Request {
        self.limits.floors.insert(job.into(), sms);
        self
    }

    /// Leaves out arms of a kind.
    pub fn leave_out(mut self, kind: ArmKind) -> Request {
        self.limits.left_out.insert(kind);
        self
    }

    /// Whether jobs can be tuned by it, for whoever prepares them at some cost: [`with`] asks the same before
    /// it runs anything.
    ///
    /// # Errors
    ///
    /// [`RequestError::Wrong`].
    pub fn check(&self, jobs: &[Profile], pieces: UnitSizes) -> Result<(), RequestError> {
        self.question(jobs, pieces).map(drop)
    }

    pub(crate) fn question(
        &self,
        jobs: &[Profile],
        pieces: UnitSizes,
    ) -> Result<Question, RequestError> {
        let wrong = |reason: String| Err(RequestError::wrong(reason));
        if !(2..=4).contains(&jobs.len()) {
            return wrong(format!("two to four jobs are tuned, not {}", jobs.len()));
        }
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        for (place, name) in names.iter().enumerate() {
            if name.is_empty() || name.contains(':') {
                return wrong(format!("{name:?} is no name of a job: it is empty or has a colon"));
            }
            if names[..place].contains(name) {
                return wrong(format!("two jobs are named {name}; give each a name of its own"));
            }
        }
        self.goal.check(&names).map_err(RequestError::wrong)?;
        let known = |job: &Profile| {
            let arrival = job.arrival_for(&self.goal);
            Known { name: job.name.clone(), key: job.key.clone(), arrival }
        };
        let known: Vec<Known> = jobs.iter().map(known).collect();
        for job in &known {
            if let Err(error) = job.arrival.check() {
                return wrong(format!("{}: {error}", job.name));
            }
        }
        if let Some((name, _)) = self.goal.percentile() {
            let deep = known.iter().find(|job| job.name == name && job.arrival.depth() > Some(1));
            if let Some(job) = deep {
                return wrong(format!(
                    "a percentile of {name} needs iterations that do not wait for each other; {} is \
                     {}, use closed:1 or a rate",
                    job.name, job.arrival
                ));
            }
        }
        let mut floors = vec![0; jobs.len()];
        for (name, sms) in &self.limits.floors {
            let Some(place) = names.iter().position(|known| known == name) else {
                return wrong(format!("a floor names {name}; the jobs are {}", names.join(", ")));
            };
            floors[place] = *sms;
        }
        let together = |floors: &[u32]| floors.iter().map(|sms| u64::from(*sms)).sum::<u64>();
        let sum = together(&floors);
        if sum > u64::from(pieces.sms) {
            return wrong(format!(
                "the floors are {sum} SMs together, of {}; lower them",
                pieces.sms
            ));
        }
        let left_out: Vec<ArmKind> = self.limits.left_out.iter().copied().collect();
        if left_out.len() == ArmKind::ALL.len() {
            return wrong("every kind of arm is left out; allow at least one".to_owned());
        }
        if sum > 0 && left_out.contains(&ArmKind::Partition) {
            return wrong("floors need partitions, and these are left out; allow them".to_owned());
        }
        let whole = pieces.sms.checked_sub(pieces.odd).filter(|_| pieces.unit > 0);
        if whole.is_none_or(|whole| whole % pieces.unit != 0) {
            return wrong(format!(
                "{pieces:?} are not SMs in whole units and some that are left over"
            ));
        }
        if pieces.sms < pieces.unit.saturating_mul(2) {
            return wrong(format!(
                "{} SMs in units of {} cannot be divided",
                pieces.sms, pieces.unit
            ));
        }
        for (job, floor) in floors.iter_mut().enumerate().filter(|(_, floor)| **floor > 0) {
            *floor = pieces.round_up(*floor, job == 0);
        }
        let whole = together(&floors);
        if whole > u64::from(pieces.sms) {
            return wrong(format!(
                "the floors are {whole} SMs together in whole units of {}, of {}",
                pieces.unit, pieces.sms
            ));
        }
        let budget = self.budget.unwrap_or_else(|| BUDGET + BUDGET / 2 * (jobs.len() as u32 - 2));
        let space = Space {
            pieces,
            jobs: jobs.len(),
            step: self.limits.step.clamp(1, pieces.sms),
            floors,
            left_out,
        };
        let (goal, limits) = (self.goal.clone(), self.limits.clone());
        Ok(Question { jobs: known, goal, limits, space, budget })
    }
}

/// Why nothing was tuned.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request cannot be met by anything.
    #[error("{reason}")]
    Wrong {
        /// What is wrong.
        reason: String,
    },
    /// The budget is too small to learn anything.
    #[error(
        "a budget of {:.2} s is too small for jobs that take so long; use {:.1} s or more",
        budget.as_secs_f64(), (10.0 * needs.as_secs_f64()).ceil() / 10.0
    )]
    Budget {
        /// The budget.
        budget: Duration,
        /// The least that would do.
        needs: Duration,
    },
    /// A job cannot keep up with its arrivals, even alone.
    #[error(
        "{job} cannot keep up: {requested:.0}/s requested, {possible:.0}/s possible alone; lower the rate, \
         or make an iteration shorter"
    )]
    TooFast {
        /// The job's name.
        job: String,
        /// Iterations a second that arrive.
        requested: f64,
        /// Iterations a second that it does alone, with two in flight.
        possible: f64,
    },
    /// It was interrupted before anything was known.
    #[error("interrupted before anything was known")]
    Interrupted,
    /// A job cannot run.
    #[error("{job} does not run: {reason}")]
    Job {
        /// The job's name.
        job: String,
        /// Why.
        reason: String,
    },
}

impl RequestError {
    pub(crate) fn wrong(reason: impl Into<String>) -> RequestError {
        RequestError::Wrong { reason: reason.into() }
    }
}

/// Why nothing was tuned: the request, or whatever runs the jobs.
#[derive(thiserror::Error)]
pub enum TuneError<E> {
    /// The request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// What runs the jobs.
    #[error("the jobs cannot run any more")]
    Failed(#[source] E),
}

green_ctx::sys::debug_as_text!(RequestError);

impl<E: std::error::Error + 'static> std::fmt::Debug for TuneError<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        green_ctx::sys::fmt_with_sources(self, f)
    }
}

/// Tunes jobs that something runs and measures, on a device of these pieces. `go_on` is called before each block. Where
/// it returns false, tuning ends with the best so far.
///
/// # Errors
///
/// [`TuneError`].
///
/// # Example
///
/// ```
/// use green_ctx_tune::{self as tune, Goal, Model, ModelJob, UnitSizes, Profile, Request};
///
/// // A job that memory limits beside one that does not ask for memory.
/// let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
/// let mut copy = ModelJob::default();
/// (copy.blocks, copy.block_us, copy.memory_us) = (1056, 10.0, 160.0);
/// let mut product = ModelJob::default();
/// (product.blocks, product.block_us) = (528, 400.0);
/// let mut model = Model::new(pieces, vec![copy, product], 1);
///
/// let jobs = [Profile::new("copy"), Profile::new("product")];
/// let request = Request::new(Goal::throughput());
/// let outcome = tune::with(&mut model, &jobs, pieces, &request, &mut |_| true)?;
/// println!("{}", outcome.verdict.sentence);
/// assert!(outcome.verdict.interval.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn with<M: Measure>(
    measure: &mut M,
    jobs: &[Profile],
    pieces: UnitSizes,
    request: &Request,
    go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
) -> Result<Outcome, TuneError<M::Error>> {
    let question = request.question(jobs, pieces)?;
    search::search(measure, &question, go_on)
}

//! Requests: the goal, the time budget and the limits of tuning.

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

/// The description of a job that the search needs: its name, key and arrivals. The profile does not contain the job's
/// work, because the [`Measure`] implementation runs the work.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a profile does nothing until it is tuned"]
pub struct Profile {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) arrival: Option<Arrival>,
}

impl Profile {
    /// Creates a profile for a job of this name. The profile has no arrival and no key.
    pub fn new(name: impl Into<String>) -> Profile {
        Profile { name: name.into(), key: String::new(), arrival: None }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets when the job's iterations are due. By default, two iterations are in flight. If the goal names a latency
    /// percentile of this job, only one iteration is in flight.
    pub fn arrival(mut self, arrival: Arrival) -> Profile {
        self.arrival = Some(arrival);
        self
    }

    /// Sets a key that distinguishes jobs of the same name, for example the model and the batch size. A stored outcome
    /// is used only if the keys of all jobs are the same.
    pub fn key(mut self, key: impl Into<String>) -> Profile {
        self.key = key.into();
        self
    }

    /// Returns the arrival that was set. If no arrival was set, returns the default for this goal, which
    /// [`arrival`](Profile::arrival) describes.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_tune::{Arrival, Goal, Profile};
    ///
    /// let decode = Profile::new("decode");
    /// assert_eq!(decode.arrival_for(&Goal::throughput()), Arrival::closed(2));
    /// assert_eq!(decode.arrival_for(&Goal::keep("decode", 0.99, 500.0)), Arrival::closed(1));
    /// ```
    #[must_use]
    pub fn arrival_for(&self, goal: &Goal) -> Arrival {
        let is_named = goal.percentile().is_some_and(|(job, _)| job == self.name);
        self.arrival.clone().unwrap_or(Arrival::closed(if is_named { 1 } else { 2 }))
    }
}

/// A job whose arrival is known, either because the caller set it or as the default for the goal.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) arrival: Arrival,
}

/// The input of a search: the goal, the time budget, and the limits on arms.
///
/// By default, tuning two jobs takes up to 19.5 s. The search may try all kinds of arm, and all partition sizes that
/// consist of whole units.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a request does nothing until something is tuned"]
pub struct Request {
    goal: Goal,
    budget: Option<Duration>,
    limits: Limits,
}

/// Limits on the arms that the search may try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Limits {
    /// The step between partition sizes, in SMs, rounded up to whole units.
    pub step: u32,
    /// The minimum floor of each job, in SMs.
    pub floors: BTreeMap<String, u32>,
    /// The kinds of arm that are excluded.
    pub left_out: BTreeSet<ArmKind>,
}

impl Default for Request {
    fn default() -> Request {
        Request::new(Goal::default())
    }
}

/// The default budget for two jobs.
const BUDGET: Duration = Duration::from_millis(19_500);

impl Request {
    /// Creates a request for a goal, without limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use green_ctx_tune::{ArmKind, Goal, Request};
    ///
    /// let request = Request::new(Goal::keep("decode", 0.99, 500.0))
    ///     .budget(Duration::from_secs(60))
    ///     .floor("decode", 16)
    ///     .leave_out(ArmKind::Sequential);
    /// assert_eq!(request.limits().floors["decode"], 16);
    /// ```
    pub fn new(goal: Goal) -> Request {
        let (floors, left_out) = (BTreeMap::new(), BTreeSet::new());
        Request { goal, budget: None, limits: Limits { step: 1, floors, left_out } }
    }

    /// Returns the limits on the arms that the search may try.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the goal.
    #[must_use]
    pub fn goal(&self) -> &Goal {
        &self.goal
    }

    /// Returns the budget that was set, in seconds.
    pub(crate) fn wanted_budget(&self) -> Option<f64> {
        self.budget.map(|budget| budget.as_secs_f64())
    }

    /// Sets the time after which tuning starts no further block. The default is 19.5 s for two jobs and 9.75 s more for
    /// each further job. The final comparison, which gives the gain and its interval, takes about half of the budget.
    pub fn budget(mut self, budget: Duration) -> Request {
        self.budget = Some(budget);
        self
    }

    /// Sets the step between partition sizes, in SMs. The step is rounded up to whole units.
    pub fn step(mut self, sms: u32) -> Request {
        self.limits.step = sms;
        self
    }

    /// Sets the minimum floor of a job, in SMs. If any job has a floor, the verdict always recommends partitions.
    pub fn floor(mut self, job: impl Into<String>, sms: u32) -> Request {
        self.limits.floors.insert(job.into(), sms);
        self
    }

    /// Excludes a kind of arm.
    pub fn leave_out(mut self, kind: ArmKind) -> Request {
        self.limits.left_out.insert(kind);
        self
    }

    /// Checks whether these jobs can be tuned with this request. [`with`] makes the same check before it runs any job.
    /// Call `check` first if the jobs are expensive to prepare.
    ///
    /// # Errors
    ///
    /// [`RequestError::Wrong`] if the jobs cannot be tuned with this request.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_tune::{Profile, Request, UnitSizes};
    ///
    /// let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
    /// let jobs = [Profile::new("decode"), Profile::new("prefill")];
    /// assert!(Request::default().floor("decode", 16).check(&jobs, pieces).is_ok());
    ///
    /// let error = Request::default().floor("embed", 16).check(&jobs, pieces).unwrap_err();
    /// let reason = "embed has a floor, but is not a job; the jobs are decode, prefill";
    /// assert_eq!(error.to_string(), reason);
    /// ```
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
            let cure = if jobs.len() == 1 { "; for one job, use curve" } else { "" };
            return wrong(format!("the tuner takes two to four jobs, not {}{cure}", jobs.len()));
        }
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        for (place, name) in names.iter().enumerate() {
            if name.is_empty() || name.contains(':') {
                return wrong(format!(
                    "{name:?} is not a valid job name: it is empty or has a colon"
                ));
            }
            if names[..place].contains(name) {
                return wrong(format!("two jobs are named {name}; give each its own name"));
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
                    "a percentile of {name} needs independent iterations, but its arrival is {}; \
                     use closed:1 or a rate",
                    job.arrival
                ));
            }
        }
        let mut floors = vec![0; jobs.len()];
        for (name, sms) in &self.limits.floors {
            let Some(place) = names.iter().position(|known| known == name) else {
                return wrong(format!(
                    "{name} has a floor, but is not a job; the jobs are {}",
                    names.join(", ")
                ));
            };
            floors[place] = *sms;
        }
        let together = |floors: &[u32]| floors.iter().map(|sms| u64::from(*sms)).sum::<u64>();
        let sum = together(&floors);
        if sum > u64::from(pieces.sms) {
            return wrong(format!(
                "the floors add up to {sum} SMs, but only {} SMs are available; lower the floors",
                pieces.sms
            ));
        }
        let left_out: Vec<ArmKind> = self.limits.left_out.iter().copied().collect();
        if left_out.len() == ArmKind::ALL.len() {
            return wrong("every kind of arm is left out; allow at least one".to_owned());
        }
        if sum > 0 && left_out.contains(&ArmKind::Partition) {
            let reason =
                "floors need partitions, but the kind of arm `partition` is left out; allow it";
            return wrong(reason.to_owned());
        }
        let whole = pieces.sms.checked_sub(pieces.odd).filter(|_| pieces.unit > 0);
        if whole.is_none_or(|whole| whole % pieces.unit != 0) {
            return wrong(format!(
                "{pieces:?} is inconsistent: `sms` minus `odd` must be a multiple of `unit`"
            ));
        }
        if pieces.sms < pieces.unit.saturating_mul(2) {
            return wrong(format!(
                "{} SMs in units of {} cannot be divided; at least two units are needed",
                pieces.sms, pieces.unit
            ));
        }
        let Some(floors) = whole_floors(&floors, pieces) else {
            let UnitSizes { sms, unit, odd } = pieces;
            let others = names.iter().zip(&floors).filter(|(_, floor)| **floor == 0);
            let others: Vec<&str> = others.map(|(name, _)| *name).collect();
            if others.is_empty() {
                let up: Vec<u32> = floors.iter().map(|sms| pieces.round_up(*sms, false)).collect();
                return wrong(format!(
                    "rounded up to whole units of {unit} SMs, the floors add up to {} SMs, but \
                     only {sms} SMs are available; lower the floors",
                    together(&up)
                ));
            }
            let smallest = if odd > 0 { unit.min(odd) } else { unit };
            return wrong(format!(
                "the floors leave no SMs for {}: in whole units of {unit} SMs, they may add up to at most {} of the \
                 {sms} SMs; lower the floors",
                others.join(", "),
                sms - smallest
            ));
        };
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

/// Returns the floors, rounded up to whole units with as few SMs as possible. Returns `None` if they do not fit together,
/// or leave no unit for the jobs without a floor.
fn whole_floors(floors: &[u32], UnitSizes { sms, unit, odd }: UnitSizes) -> Option<Vec<u32>> {
    let available = (sms - odd) / unit;
    let has_others = floors.contains(&0);
    // The odd unit is in the floor of `holder`, or in none.
    let rounded = |holder: Option<usize>| {
        let own = |job: usize| if holder == Some(job) { odd } else { 0 };
        let regular = |job: usize| floors[job].saturating_sub(own(job)).div_ceil(unit);
        let jobs = 0..floors.len();
        let left = available.checked_sub(jobs.clone().map(regular).sum())?;
        let is_left = left > 0 || holder.is_none() && odd > 0 || !has_others;
        is_left.then(|| jobs.map(|job| own(job) + regular(job) * unit).collect::<Vec<u32>>())
    };
    let holders = (0..floors.len()).filter(|job| odd > 0 && floors[*job] > 0).map(Some);
    std::iter::once(None)
        .chain(holders)
        .filter_map(rounded)
        .min_by_key(|floors| floors.iter().sum::<u32>())
}

/// The reason why a request was refused or a search ended without an outcome.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request is invalid for these jobs or this device.
    #[error("{reason}")]
    Wrong {
        /// A description of what is wrong and what to do.
        reason: String,
    },
    /// The budget is too small for a meaningful measurement.
    #[error(
        "a budget of {:.2} s is too small for these jobs; use {:.1} s or more",
        budget.as_secs_f64(), (10.0 * needs.as_secs_f64()).ceil() / 10.0
    )]
    Budget {
        /// The budget.
        budget: Duration,
        /// The smallest sufficient budget.
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
        /// The number of arrivals per second.
        requested: f64,
        /// The number of iterations per second that the job reaches alone, with two iterations in flight.
        possible: f64,
    },
    /// The measurement was interrupted before there was a result: an arm that the request allows, or a point of a curve.
    #[error("interrupted before there was a result; let the measurement run longer")]
    Interrupted,
    /// No arm that the request allows could be measured.
    #[error("no allowed arm could be measured: {reason}")]
    NoArm {
        /// The reason, for one of the arms.
        reason: String,
    },
    /// A job cannot run.
    #[error("{job} does not run: {reason}")]
    Job {
        /// The job's name.
        job: String,
        /// The reason.
        reason: String,
    },
}

impl RequestError {
    pub(crate) fn wrong(reason: impl Into<String>) -> RequestError {
        RequestError::Wrong { reason: reason.into() }
    }
}

/// The reason why tuning failed: a [`RequestError`], or an error of the [`Measure`] implementation.
#[derive(thiserror::Error)]
pub enum TuneError<E> {
    /// The request was refused, or the search ended without an outcome.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The [`Measure`] implementation cannot continue.
    #[error("the jobs can no longer run")]
    Failed(#[source] E),
}

green_ctx::sys::debug_as_text!(RequestError);

impl<E: std::error::Error + 'static> std::fmt::Debug for TuneError<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        green_ctx::sys::write_with_sources(self, f)
    }
}

/// Tunes jobs that `measure` runs. `pieces` describes the SMs of the device and their units. The tuner calls `go_on`
/// before each measurement block. If `go_on` returns `false`, tuning ends with the best arm so far.
///
/// # Errors
///
/// [`TuneError::Request`] if the request is refused or the search ends without an outcome. [`TuneError::Failed`] if
/// `measure` cannot continue.
///
/// # Examples
///
/// ```
/// use green_ctx_tune::{self as tune, Goal, Model, ModelJob, UnitSizes, Profile, Request};
///
/// // `copy` is limited by memory bandwidth, `product` needs none.
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

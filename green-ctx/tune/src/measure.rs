//! The interface between the search and the code that runs the jobs, on a GPU or in a model.

use std::time::Duration;

use crate::arm::Arm;

/// The work of one measurement block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// One job alone, on a number of SMs or in a plain stream.
    Alone {
        /// The index of the job.
        job: usize,
        /// The number of SMs; `None` for a plain stream.
        sms: Option<u32>,
    },
    /// All jobs at the same time, in one arm.
    Together(Arm),
}

/// A measurement block: how a task is run and for how long. It has nothing to do with a kernel's thread blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Block {
    /// The time that the jobs run before measuring begins.
    pub lead_in: Duration,
    /// The minimum time of measuring. It continues until every job has done `iterations`.
    pub duration: Duration,
    /// The minimum number of iterations of every job.
    pub iterations: u32,
    /// True to run in rounds: one iteration of every job is submitted, and the next round starts when all are done.
    pub rounds: bool,
    /// The index of the job that is submitted first.
    pub first: usize,
    /// The time within their arrivals at which jobs with an arrival rate start.
    pub start: Duration,
    /// The index of a job that runs as fast as it can, with two iterations in flight, regardless of its arrivals.
    pub saturated: Option<usize>,
    /// True to run partitions on the SMs that [`Outcome::apply`](crate::Outcome::apply) chooses. Otherwise, SMs that
    /// earlier partitions had are preferred, so that fewer contexts are needed.
    pub as_applied: bool,
}

/// The figures of one job in a measurement block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobSample {
    /// Iterations per second while all jobs ran.
    pub rate: f64,
    /// The latency of each iteration in µs; empty for a closed loop deeper than 1.
    pub latencies_us: Vec<f64>,
    /// The host time for submitting one iteration, in µs.
    pub host_us: f64,
}

/// The figures of a measurement block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// One entry per job that ran, in order.
    pub jobs: Vec<JobSample>,
    /// The time of each round in µs, for a block in rounds.
    pub rounds_us: Vec<f64>,
}

impl Sample {
    /// Returns whether the sample has figures for `jobs` jobs, all of them finite.
    pub(crate) fn is_sound(&self, jobs: usize) -> bool {
        let is_number = |value: f64| value.is_finite() && value >= 0.0;
        let is_time = |time: &f64| is_number(*time) && *time > 0.0;
        let is_sound = |job: &JobSample| {
            is_number(job.rate) && is_number(job.host_us) && job.latencies_us.iter().all(is_time)
        };
        self.jobs.len() == jobs
            && self.jobs.iter().all(is_sound)
            && self.rounds_us.iter().all(is_time)
    }
}

/// The reason why a measurement block gave no figures.
#[derive(Debug)]
pub enum Refusal<E> {
    /// This task cannot run. Other tasks may.
    Skip(String),
    /// No task can run from now on.
    Stop(E),
}

/// Runs and measures the tasks that the search chooses.
///
/// [`run`](crate::run) does so on a device, and [`Model`](crate::Model) without one. Implement it to measure in another
/// way.
///
/// In every arm, each tuned job has a part and a priority, and no floor is above its ceiling.
pub trait Measure {
    /// The error after which no task can run.
    type Error;

    /// Runs a task for one measurement block, in new streams.
    ///
    /// # Errors
    ///
    /// [`Refusal::Skip`] if this task cannot run, for example because a job needs more SMs. [`Refusal::Stop`] if tuning
    /// must end.
    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Self::Error>>;

    /// Returns the time since a fixed point before tuning began. A model returns simulated time.
    fn now(&self) -> Duration;
}

//! The interface between the tuner and what runs the jobs: a GPU or a model.

use std::time::Duration;

use crate::arm::Arm;

/// What runs in a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// One job alone, on so many SMs, or in a plain stream.
    Alone {
        /// The job's place.
        job: usize,
        /// The SMs; `None` for a plain stream.
        sms: Option<u32>,
    },
    /// All jobs at once.
    Together(Arm),
}

/// How long a task runs, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Block {
    /// How long the jobs run before anything counts.
    pub lead_in: Duration,
    /// How long they are measured, at least: until every job has done `iterations`.
    pub duration: Duration,
    /// The iterations that every job does at least.
    pub iterations: u32,
    /// Whether one iteration of every job is submitted at once, and the next ones when all are done.
    pub rounds: bool,
    /// The job that is submitted first.
    pub first: usize,
    /// The moment of their arrivals at which jobs with an arrival rate begin.
    pub start: Duration,
    /// A job that runs as fast as it can, whatever its arrivals are: two iterations are in flight.
    pub saturated: Option<usize>,
}

/// What one job did in a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobSample {
    /// Iterations a second, while all jobs ran.
    pub rate: f64,
    /// The latency of each iteration in µs; empty for a closed loop of a depth above 1.
    pub latencies_us: Vec<f64>,
    /// What the host needs to submit one iteration, in µs.
    pub host_us: f64,
}

/// What a block gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// One for each job that ran, in their order.
    pub jobs: Vec<JobSample>,
    /// The time of each round in µs, in a block of rounds.
    pub rounds_us: Vec<f64>,
}

impl Sample {
    /// Whether it has figures of so many jobs, all of them numbers.
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

/// Why a block gave nothing.
#[derive(Debug)]
pub enum Refusal<E> {
    /// The task cannot run, which says nothing about other tasks.
    Skip(String),
    /// Nothing can run any more.
    Stop(E),
}

/// Runs jobs as the tuner asks, and measures them.
///
/// [`run`](crate::run) does it on a device, [`Model`](crate::Model) without one. A program that measures in its own way
/// implements it too.
///
/// Tasks are of the jobs that are tuned: each job has a part and a priority in an arm, and no floor is above its ceiling.
pub trait Measure {
    /// Why nothing can run any more.
    type Error;

    /// Runs a task for a block, in new streams.
    ///
    /// # Errors
    ///
    /// [`Refusal::Skip`] for a task that cannot run, such as a job on fewer SMs than it needs, and
    /// [`Refusal::Stop`] where tuning must end.
    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Self::Error>>;

    /// The time since some moment before tuning began. A model's clock goes as fast as it computes.
    fn now(&self) -> Duration;
}

//! The interface between the search and the code that runs the jobs, on a GPU or in a model.

use std::time::Duration;

use crate::arm::Arm;

/// The fraction of an iteration's time spent on submitting it from which a job counts as host-bound. The rest is the
/// driver's own time between two launches.
pub(crate) const HOST_BOUND: f64 = 0.9;

/// The work of one measurement block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// One job runs alone, on a number of SMs or in a plain stream.
    Alone {
        /// The index of the job.
        job: usize,
        /// The number of SMs; `None` for a plain stream.
        sms: Option<u32>,
    },
    /// All jobs run together, in one arm.
    Together(Arm),
}

/// The settings of a measurement block, which is a period in which one task runs. A measurement block is unrelated to
/// the thread blocks of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Block {
    /// The time for which the jobs run before the measurement begins.
    pub lead_in: Duration,
    /// The minimum duration of the measurement. The measurement continues until every job has done `iterations`
    /// iterations, or until that takes much too long.
    pub duration: Duration,
    /// The minimum number of iterations that every job must do.
    pub iterations: u32,
    /// True if the jobs run in rounds. A round submits one iteration of every job, and ends when all of these
    /// iterations are done.
    pub rounds: bool,
    /// The index of the job that submits its first iteration before all other jobs.
    pub first: usize,
    /// For jobs with an arrival rate, the point in their sequence of arrivals at which the block starts.
    pub start: Duration,
    /// The index of a job that ignores its arrivals and runs as fast as it can, with two iterations in flight. `None`
    /// if every job follows its arrivals.
    pub saturated: Option<usize>,
    /// True to run partitions on the SMs that [`Outcome::apply`](crate::Outcome::apply) chooses. Otherwise, SMs that
    /// earlier partitions had are preferred, so that fewer contexts are needed.
    pub as_applied: bool,
}

/// The measurements of one job in a measurement block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobSample {
    /// The number of iterations per second while all jobs were running.
    pub rate: f64,
    /// The latency of each iteration in µs; empty for a closed loop deeper than 1.
    pub latencies_us: Vec<f64>,
    /// The time that the host needs to submit one iteration, in µs.
    pub host_us: f64,
}

/// The measurements of all jobs in a measurement block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// One entry per job that ran, in the order of the jobs' indices.
    pub jobs: Vec<JobSample>,
    /// The time of each round in µs; empty if the jobs did not run in rounds.
    pub rounds_us: Vec<f64>,
}

impl Sample {
    /// Returns whether the sample has entries for `jobs` jobs, and all of its values are valid numbers.
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

/// The reason why a measurement block has no result.
#[derive(Debug)]
pub enum Refusal<E> {
    /// This task cannot run, but other tasks can.
    Skip(String),
    /// No further task can run, so tuning must end.
    Stop(E),
}

/// Runs and measures the tasks that the search chooses.
///
/// [`run`](crate::run) uses an implementation that runs the jobs on a device. [`Model`](crate::Model) is an
/// implementation that needs no device. Implement this trait to measure jobs in another way.
///
/// Every arm that the search passes to an implementation has a part and a priority for each tuned job, and no floor is
/// above its ceiling.
pub trait Measure {
    /// The error that ends tuning, because no further task can run.
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

    /// Returns what takes the place of a GPU, such as `a model of the jobs`. The verdict's sentence names it. The
    /// default is `None`: a GPU runs the jobs.
    fn stand_in(&self) -> Option<String> {
        None
    }
}

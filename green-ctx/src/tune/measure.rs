//! The interface between the search and what runs the jobs: a GPU or a model.

use std::time::Duration;

use super::arm::Arm;

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// One job alone, on so many SMs, or in a plain stream.
    Alone {
        /// The job.
        job: usize,
        /// The SMs; `None` for a plain stream.
        sms: Option<u32>,
    },
    /// All jobs at once.
    Together(Arm),
}

impl Task {
    /// Whether a job runs.
    pub(super) fn runs(&self, number: usize) -> bool {
        match self {
            Task::Alone { job, .. } => *job == number,
            Task::Together(_) => true,
        }
    }

    /// Why no runner of this many jobs can run it.
    pub(super) fn fault(&self, jobs: usize) -> Option<String> {
        let nothing = |sms: u32| (sms == 0).then(|| "a job cannot run on 0 SMs".to_owned());
        match self {
            Task::Alone { job, .. } if *job >= jobs => {
                Some(format!("there is no job {job} among {jobs}"))
            }
            Task::Alone { sms, .. } => sms.and_then(nothing),
            Task::Together(arm) => {
                let (parts, priorities) = (arm.parts().len(), arm.priorities().len());
                if parts != priorities {
                    return Some(format!("the arm has {parts} parts and {priorities} priorities"));
                }
                if parts != jobs {
                    return Some(format!("the arm is of {parts} jobs, and there are {jobs}"));
                }
                arm.parts().iter().find_map(|part| {
                    nothing(part.ceiling).or_else(|| {
                        (part.floor > part.ceiling).then(|| {
                            format!(
                                "a floor of {} SMs is above its ceiling of {}",
                                part.floor, part.ceiling
                            )
                        })
                    })
                })
            }
        }
    }
}

/// How long a task runs, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// For at least so long, and until every job has done `iterations`.
    pub duration: Duration,
    /// The iterations that every job does at least.
    pub iterations: u32,
    /// Whether one iteration of every job is submitted at once, and the next ones when all are done.
    pub rounds: bool,
    /// The job that is submitted first.
    pub first: usize,
    /// At which moment of their arrivals the jobs begin that arrive by the clock.
    pub start: Duration,
}

/// What one job did in a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobSample {
    /// Iterations a second, while all jobs ran.
    pub rate: f64,
    /// The latency of each iteration in microseconds; of a closed loop with a depth above 1 it is empty.
    pub latencies_us: Vec<f64>,
    /// What the host needs to submit one iteration, in microseconds.
    pub host_us: f64,
}

/// What a block gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Of each job that ran, in their order.
    pub jobs: Vec<JobSample>,
    /// Of a block in rounds: the time that each round took, in microseconds.
    pub rounds_us: Vec<f64>,
}

impl Sample {
    /// Whether it has figures of so many jobs, all of them numbers.
    pub(super) fn is_sound(&self, jobs: usize) -> bool {
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
    /// The task cannot run, which says nothing of others.
    Skip(String),
    /// Nothing can run any more.
    Stop(E),
}

/// Runs jobs as the search asks, and measures them.
///
/// [`Model`](super::Model) is one that needs no GPU. A program that measures in its own way implements it too.
pub trait Measure {
    /// Why nothing can run any more.
    type Error;

    /// Runs a task for a block, with fresh streams.
    ///
    /// # Errors
    ///
    /// [`Refusal::Skip`] for a task that cannot run, such as a job on fewer SMs than it needs, and
    /// [`Refusal::Stop`] where the search must end.
    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Self::Error>>;

    /// The time since some moment before the search. A model's clock goes as fast as it computes.
    fn now(&self) -> Duration;
}

//! One measurement block, in which jobs run at the same time. Each job has its own thread, as in a real program.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{hint, mem, panic, thread};

use green_ctx::graph::GraphExec;
use green_ctx::{Device, Error, Stream};

use super::submit::{Seen, drive};
use crate::arrival::Arrival;
use crate::job::{Job, JobError, Work};
use crate::measure::{Block, JobSample, Sample};
use crate::stats::median;

/// A job, and the stream that its iterations are submitted to.
pub(super) struct StreamJob<'a> {
    pub(super) job: &'a mut Job,
    pub(super) arrival: Arrival,
    pub(super) stream: Stream,
    /// The executable of the job's graph; `None` if the job is not a graph.
    pub(super) executable: Option<GraphExec>,
}

/// The failure of one of the running jobs.
pub(super) struct Failure {
    pub(super) job: usize,
    pub(super) error: Cause,
}

pub(super) enum Cause {
    Driver(Error),
    Job(JobError),
}

impl From<Error> for Cause {
    fn from(error: Error) -> Cause {
        Cause::Driver(error)
    }
}

/// A block ends after this multiple of its duration, even if a job has not done its minimum number of iterations.
/// Another job starves such a job.
const MOST_OVERTIME: u32 = 8;

/// Returns the time after which a block with this duration ends even if a job has too few iterations.
fn longest(duration: Duration) -> Duration {
    duration.saturating_mul(MOST_OVERTIME).saturating_add(Duration::from_secs(1))
}

impl StreamJob<'_> {
    /// Submits one iteration.
    #[allow(unsafe_code, reason = "launches the graphs of jobs")]
    pub(super) fn submit(&mut self) -> Result<(), Cause> {
        match (&mut self.job.work, &self.executable) {
            (Work::Submit(submit), _) => submit(&self.stream).map_err(Cause::Job),
            // SAFETY: the caller of `Job::graph` guarantees that everything that the graph uses stays alive as long as
            // the job, and that the graph may run at the same time as the other jobs. The job is borrowed here, and
            // `Running` waits for this stream before the borrow ends.
            (Work::Graph(_), Some(graph)) => Ok(unsafe { self.stream.launch_graph(graph) }?),
            (Work::Graph(_), None) => Ok(()),
        }
    }

    fn prepare(&mut self) -> Result<(), Cause> {
        if let Some(before) = &mut self.job.before {
            before(&self.stream).map_err(Cause::Job)?;
        }
        if let Some(graph) = &self.executable {
            graph.upload(&self.stream)?;
        }
        Ok(self.stream.synchronize()?)
    }
}

/// Prepares the jobs for a block, one job after the other.
pub(super) fn prepare(jobs: &mut [StreamJob<'_>]) -> Result<(), Failure> {
    let mut jobs = jobs.iter_mut().enumerate();
    jobs.try_for_each(|(place, job)| job.prepare().map_err(|error| Failure { job: place, error }))
}

/// Runs jobs for a block. If this function returns an error, work may still be running on the jobs' streams.
pub(super) fn run(
    device: &Device,
    jobs: &mut [StreamJob<'_>],
    block: &Block,
) -> Result<Sample, Failure> {
    let first = block.first % jobs.len();
    if block.rounds { rounds(jobs, block, first) } else { beside(device, jobs, block, first) }
}

/// Runs the jobs in rounds. A round submits one iteration of every job, and ends when all of these iterations are done.
fn rounds(jobs: &mut [StreamJob<'_>], block: &Block, first: usize) -> Result<Sample, Failure> {
    let count = jobs.len();
    let order = || (0..count).map(|place| (first + place) % count);
    let (began, mut times) = (Instant::now(), Vec::new());
    let end = block.lead_in + block.duration;
    while began.elapsed() < end || times.len() < block.iterations as usize {
        if began.elapsed() < block.lead_in {
            times.clear();
        }
        let start = Instant::now();
        for job in order() {
            jobs[job].submit().map_err(|error| Failure { job, error })?;
        }
        for job in order() {
            let done = jobs[job].stream.synchronize();
            done.map_err(|error| Failure { job, error: error.into() })?;
        }
        times.push(1e6 * start.elapsed().as_secs_f64());
    }
    let rate = median(&times).map_or(0.0, |time| 1e6 / time);
    let jobs = vec![JobSample { rate, latencies_us: Vec::new(), host_us: 0.0 }; count];
    Ok(Sample { jobs, rounds_us: times })
}

/// The state that the threads of a block share.
pub(super) struct Common<'a> {
    began: Instant,
    pub(super) block: &'a Block,
    /// The number of jobs that run in the block.
    jobs: usize,
    /// The number of jobs that have done their minimum number of iterations.
    enough: AtomicUsize,
    stop: AtomicBool,
    /// The time at which the block was stopped, in nanoseconds since its start; 0 if it was not stopped yet.
    stopped: AtomicU64,
    /// True once the other jobs may submit iterations. The job that goes first sets this flag.
    pub(super) open: AtomicBool,
}

impl<'a> Common<'a> {
    fn new(block: &'a Block, jobs: usize) -> Common<'a> {
        Common {
            began: Instant::now(),
            block,
            jobs,
            enough: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            stopped: AtomicU64::new(0),
            open: AtomicBool::new(false),
        }
    }

    /// Returns the time at which the measurement begins, in seconds since the start of the block.
    pub(super) fn counts_from(&self) -> f64 {
        self.block.lead_in.as_secs_f64()
    }

    /// Returns the number of seconds since the start of the block.
    pub(super) fn elapsed(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Returns whether a job should submit another iteration. Stops the block if the block is over.
    pub(super) fn goes_on(&self, seen: &mut Seen) -> bool {
        if self.stop.load(Ordering::Acquire) {
            return false;
        }
        let Block { lead_in, duration, iterations, .. } = *self.block;
        let duration = lead_in + duration;
        if !seen.is_enough && seen.done.len() >= iterations as usize {
            seen.is_enough = true;
            self.enough.fetch_add(1, Ordering::AcqRel);
        }
        let elapsed = self.began.elapsed();
        let all = self.enough.load(Ordering::Acquire) == self.jobs;
        let too_long = elapsed > longest(duration);
        if elapsed >= duration && all || too_long && iterations > 1 {
            self.end();
            return false;
        }
        true
    }

    fn end(&self) {
        // Only the first call sets the time. It does so before the other threads can see `stop`.
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
        let _ = self.stopped.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        self.stop.store(true, Ordering::Release);
    }

    /// Returns the time at which the block was stopped, in seconds since its start; `None` if it was not stopped yet.
    pub(super) fn stopped(&self) -> Option<f64> {
        let stopped = self.stopped.load(Ordering::Acquire);
        (stopped > 0).then_some(stopped as f64 * 1e-9)
    }

    pub(super) fn wait_until_open(&self) {
        let is_open = || self.open.load(Ordering::Acquire) || self.stop.load(Ordering::Acquire);
        while !is_open() {
            hint::spin_loop();
        }
    }
}

/// Runs each job on its own thread. A single job runs on the calling thread.
fn beside(
    device: &Device,
    jobs: &mut [StreamJob<'_>],
    block: &Block,
    first: usize,
) -> Result<Sample, Failure> {
    let common = &Common::new(block, jobs.len());
    let drive = |place: usize, job: &mut StreamJob<'_>| {
        // If the job panics, the other threads must end too.
        let ends = EndsOthers(common);
        let seen = drive(device, job, common, place == first);
        if seen.is_ok() {
            mem::forget(ends);
        }
        seen
    };
    let seen: Vec<Result<Seen, Cause>> = match &mut *jobs {
        [job] => vec![drive(0, job)],
        jobs => thread::scope(|scope| {
            let jobs = jobs.iter_mut().enumerate();
            let threads: Vec<_> =
                jobs.map(|(place, job)| scope.spawn(move || drive(place, job))).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|value| value.unwrap_or_else(|cause| panic::resume_unwind(cause))).collect()
        }),
    };
    let stopped = common.stopped().unwrap_or_default();
    let mut sample = Sample::default();
    for (place, seen) in seen.into_iter().enumerate() {
        let seen = seen.map_err(|error| Failure { job: place, error })?;
        let is_closed = jobs[place].arrival.depth().is_some();
        sample.jobs.push(seen.sample(common.counts_from(), stopped, is_closed));
    }
    Ok(sample)
}

/// A guard that stops the block's other threads when the guard is dropped.
struct EndsOthers<'a>(&'a Common<'a>);

impl Drop for EndsOthers<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

//! One block: jobs that run beside each other, each submitted by a thread of its own, as programs do.

use std::hint;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::error::Error;
use crate::graph::GraphExec;
use crate::stream::Stream;

use super::super::job::{Job, JobError, Work};
use super::super::measure::{JobSample, Sample};
use super::super::stats::median;
use super::submit::{Seen, drive};
use super::watch::{Patience, Watch};

/// A job, and the stream that its iterations are submitted to.
pub(super) struct StreamJob<'a> {
    pub(super) job: &'a mut Job,
    pub(super) stream: Stream,
    /// Of a job that is a graph.
    pub(super) executable: Option<GraphExec>,
}

/// Which of the jobs that run failed, and why.
pub(super) struct Failure {
    pub(super) job: usize,
    pub(super) error: Cause,
}

pub(super) enum Cause {
    Driver(Error),
    Job(JobError),
    /// It waits no longer, since another job or another process has failed.
    GivenUp,
}

impl From<Error> for Cause {
    fn from(error: Error) -> Cause {
        Cause::Driver(error)
    }
}

/// When a block ends.
pub(super) enum End<'a> {
    /// After a duration, and when every job has done so many iterations.
    Clock { duration: Duration, iterations: u64 },
    /// After exactly so many iterations of each job.
    Counts(&'a [u64]),
}

/// How a block runs.
pub(super) struct How<'a> {
    pub(super) end: End<'a>,
    /// Whether one iteration of every job is submitted at once, and the next ones when all are done.
    pub(super) rounds: bool,
    /// The job that is submitted first, modulo their number.
    pub(super) first: usize,
    /// At which moment of their arrivals jobs begin.
    pub(super) start: Duration,
}

/// A block that is so many times as long as it should be ends, whatever its jobs have done: one of them is
/// kept from running.
const MOST_OVERTIME: u32 = 8;

/// The longest that a block of this duration may take.
pub(in crate::tune) fn longest(duration: Duration) -> Duration {
    duration.saturating_mul(MOST_OVERTIME).saturating_add(Duration::from_secs(1))
}

impl StreamJob<'_> {
    /// Submits one iteration.
    #[allow(unsafe_code, reason = "launches the graphs of jobs")]
    pub(super) fn submit(&mut self) -> Result<(), Cause> {
        match (&mut self.job.work, &self.executable) {
            (Work::Submit(submit), _) => submit(&self.stream).map_err(Cause::Job),
            // SAFETY: `Job::graph`'s contract.
            (Work::Graph(_), Some(graph)) => Ok(unsafe { self.stream.launch_graph(graph) }?),
            (Work::Graph(_), None) => Ok(()),
        }
    }

    fn prepare(&mut self, patience: Patience<'_>) -> Result<(), Cause> {
        if let Some(before) = &mut self.job.before {
            before(&self.stream).map_err(Cause::Job)?;
        }
        if let Some(graph) = &self.executable {
            graph.upload(&self.stream)?;
        }
        patience.stream(&self.stream)
    }

    /// Keeps what its iterations use for good, since they run for ever.
    pub(super) fn abandon(&mut self) {
        self.job.abandon();
        mem::forget((self.stream.clone(), self.executable.take()));
    }
}

/// Does what jobs have to do before a block, one after the other.
pub(super) fn prepare(
    jobs: &mut [StreamJob<'_>],
    watch: &mut Watch<'_, '_>,
) -> Result<(), Failure> {
    let patience = watch.patience();
    watch.run_one(|| {
        let mut jobs = jobs.iter_mut().enumerate();
        jobs.try_for_each(|(place, job)| {
            job.prepare(patience).map_err(|error| Failure { job: place, error })
        })
    })
}

/// Runs jobs for a block. Work may still run when it returns an error.
pub(super) fn run(
    device: &Device,
    jobs: &mut [StreamJob<'_>],
    how: &How<'_>,
    watch: &mut Watch<'_, '_>,
) -> Result<Sample, Failure> {
    let first = how.first % jobs.len();
    let sample = if how.rounds {
        let patience = watch.patience();
        watch.run_one(|| rounds(jobs, &how.end, first, patience))
    } else {
        beside(device, jobs, how, first, watch)
    };
    // The threads leave early when it is given up.
    match sample {
        Ok(_) if watch.patience().is_over() => Err(Failure { job: 0, error: Cause::GivenUp }),
        sample => sample,
    }
}

/// One iteration of every job at once, again and again.
fn rounds(
    jobs: &mut [StreamJob<'_>],
    end: &End<'_>,
    first: usize,
    patience: Patience<'_>,
) -> Result<Sample, Failure> {
    let count = jobs.len();
    let order = || (0..count).map(|place| (first + place) % count);
    let (began, mut times) = (Instant::now(), Vec::new());
    let goes_on = |done: u64| match end {
        End::Clock { duration, iterations } => began.elapsed() < *duration || done < *iterations,
        End::Counts(counts) => counts.first().is_some_and(|count| done < *count),
    };
    while goes_on(times.len() as u64) {
        let start = Instant::now();
        for job in order() {
            jobs[job].submit().map_err(|error| Failure { job, error })?;
        }
        for job in order() {
            patience.stream(&jobs[job].stream).map_err(|error| Failure { job, error })?;
        }
        times.push(1e6 * start.elapsed().as_secs_f64());
    }
    let rate = median(&times).map_or(0.0, |time| 1e6 / time);
    let jobs = vec![JobSample { rate, latencies_us: Vec::new(), host_us: 0.0 }; count];
    Ok(Sample { jobs, rounds_us: times })
}

/// What the threads of a block have in common.
pub(super) struct Common<'a> {
    began: Instant,
    end: &'a End<'a>,
    /// At which moment of their arrivals jobs begin.
    pub(super) start: Duration,
    /// How many jobs run.
    jobs: usize,
    /// How many of them have done as many iterations as they should at least.
    enough: AtomicUsize,
    stop: AtomicBool,
    /// When it was stopped, or when the first job had done its count, in nanoseconds from the beginning; 0
    /// before.
    stopped: AtomicU64,
    /// Whether the job that is first has submitted its first iteration.
    pub(super) open: AtomicBool,
    pub(super) patience: Patience<'a>,
}

impl<'a> Common<'a> {
    fn new(how: &'a How<'a>, jobs: usize, patience: Patience<'a>) -> Common<'a> {
        Common {
            began: Instant::now(),
            end: &how.end,
            start: how.start,
            jobs,
            enough: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            stopped: AtomicU64::new(0),
            open: AtomicBool::new(false),
            patience,
        }
    }

    /// Seconds from the beginning.
    pub(super) fn elapsed(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Whether to submit another iteration of a job.
    pub(super) fn goes_on(&self, place: usize, seen: &mut Seen) -> bool {
        if self.stop.load(Ordering::Acquire) || self.patience.is_over() {
            return false;
        }
        let (duration, iterations) = match self.end {
            End::Clock { duration, iterations } => (*duration, *iterations),
            End::Counts(counts) => {
                return counts.get(place).is_some_and(|count| seen.submitted < *count);
            }
        };
        if !seen.is_enough && seen.done.len() as u64 >= iterations {
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

    /// Notes that a job has submitted its last iteration and done it. Where counts end a block, rates are those
    /// until the first job has: what runs afterwards runs beside less.
    pub(super) fn is_done(&self, seen: &Seen) {
        if seen.submitted > 0 {
            self.stops();
        }
    }

    fn stops(&self) {
        // Of several times the first one counts.
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
        let _ = self.stopped.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
    }

    fn end(&self) {
        // Before it is seen to stop, it has stopped at some time.
        self.stops();
        self.stop.store(true, Ordering::Release);
    }

    /// When it was stopped, in seconds from the beginning, if it was.
    pub(super) fn stopped(&self) -> Option<f64> {
        let stopped = self.stopped.load(Ordering::Acquire);
        (stopped > 0).then_some(stopped as f64 * 1e-9)
    }

    /// The same where the clock stopped it.
    pub(super) fn stopped_by_clock(&self) -> Option<f64> {
        self.stopped().filter(|_| matches!(self.end, End::Clock { .. }))
    }

    pub(super) fn wait_until_open(&self) {
        let is_open = || self.open.load(Ordering::Acquire) || self.stop.load(Ordering::Acquire);
        while !is_open() && !self.patience.is_over() {
            hint::spin_loop();
        }
    }
}

/// Every job in a thread of its own.
fn beside(
    device: &Device,
    jobs: &mut [StreamJob<'_>],
    how: &How<'_>,
    first: usize,
    watch: &mut Watch<'_, '_>,
) -> Result<Sample, Failure> {
    let common = &Common::new(how, jobs.len(), watch.patience());
    let calls = jobs.iter_mut().enumerate().map(|(place, job)| {
        move || {
            // Also where it panics: the others must end.
            let ends = EndsOthers(common);
            let seen = drive(device, job, common, place, place == first);
            if seen.is_ok() {
                mem::forget(ends);
            }
            seen
        }
    });
    let seen: Vec<Result<Seen, Cause>> = watch.run(calls.collect());
    let stopped = common.stopped().unwrap_or_default();
    let (mut sample, mut given_up) = (Sample::default(), None);
    for (place, seen) in seen.into_iter().enumerate() {
        match seen {
            Ok(seen) => {
                let is_closed = jobs[place].job.profile.arrival.depth().is_some();
                sample.jobs.push(seen.sample(stopped, is_closed));
            }
            // Because of another one, whose reason says more.
            Err(error @ Cause::GivenUp) => {
                given_up.get_or_insert(Failure { job: place, error });
            }
            Err(error) => return Err(Failure { job: place, error }),
        }
    }
    given_up.map_or(Ok(sample), Err)
}

/// Stops the other threads when it is dropped.
struct EndsOthers<'a>(&'a Common<'a>);

impl Drop for EndsOthers<'_> {
    fn drop(&mut self) {
        self.0.end();
        self.0.patience.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_any_duration_has_an_end() {
        assert_eq!(longest(Duration::from_millis(500)), Duration::from_secs(5));
        assert_eq!(longest(Duration::MAX), Duration::MAX);
    }
}

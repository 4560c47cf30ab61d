//! One block: jobs that run beside each other for a while, each submitted by a thread of its own, as
//! programs do.

use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::error::Error;
use crate::event::{Event, EventOptions};
use crate::graph::GraphExec;
use crate::stream::Stream;

use super::super::job::{Job, JobError, Work};
use super::super::latencies::Latencies;
use super::super::measure::{Block, JobSample, Sample};
use super::super::stats::median;

/// A job in its stream.
pub(super) struct Lane<'a> {
    pub(super) job: &'a mut Job,
    pub(super) stream: Stream,
    /// Of a job that is a graph.
    pub(super) executable: Option<GraphExec>,
}

/// Which lane failed, and why.
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

/// A block that is so many times as long as it should be ends, whatever its jobs have done: one of them is
/// kept from running.
const MOST_OVERTIME: u32 = 8;
/// Iterations that have arrived and are not done, of one job: more wait on the host.
const MOST_IN_FLIGHT: usize = 256;
/// Before this is left until the next arrival, the thread sleeps.
const SPIN: Duration = Duration::from_micros(200);

impl Lane<'_> {
    /// Submits one iteration.
    #[allow(unsafe_code, reason = "launches the graphs of jobs")]
    fn submit(&mut self) -> Result<(), Cause> {
        match (&mut self.job.work, &self.executable) {
            (Work::Submit(submit), _) => submit(&self.stream).map_err(Cause::Job),
            // SAFETY: `Job::graph`'s contract.
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

/// Runs lanes for a block. Work may still run when it returns an error.
pub(super) fn run(
    device: &Device,
    lanes: &mut [Lane<'_>],
    block: &Block,
) -> Result<Sample, Failure> {
    for (job, lane) in lanes.iter_mut().enumerate() {
        lane.prepare().map_err(|error| Failure { job, error })?;
    }
    let first = block.first % lanes.len();
    if block.rounds { rounds(lanes, block, first) } else { beside(device, lanes, block, first) }
}

/// One iteration of every job at once, again and again.
fn rounds(lanes: &mut [Lane<'_>], block: &Block, first: usize) -> Result<Sample, Failure> {
    let count = lanes.len();
    let order = || (0..count).map(|place| (first + place) % count);
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < block.duration || times.len() < block.iterations as usize {
        let start = Instant::now();
        for job in order() {
            lanes[job].submit().map_err(|error| Failure { job, error })?;
        }
        for job in order() {
            let done = lanes[job].stream.synchronize();
            done.map_err(|error| Failure { job, error: error.into() })?;
        }
        times.push(1e6 * start.elapsed().as_secs_f64());
    }
    let rate = 1e6 / median(&times).unwrap_or(f64::INFINITY);
    let jobs = vec![JobSample { rate, latencies_us: Vec::new(), host_us: 0.0 }; count];
    Ok(Sample { jobs, rounds_us: times })
}

/// What the threads of a block have in common.
struct Common {
    began: Instant,
    duration: Duration,
    iterations: u64,
    /// How many lanes have done as many iterations as they should.
    enough: AtomicUsize,
    lanes: usize,
    stop: AtomicBool,
    /// When it was stopped, in nanoseconds from the beginning.
    stopped: AtomicU64,
    /// Whether the first lane has submitted its first iteration.
    open: AtomicBool,
}

impl Common {
    /// Whether to go on, after so many iterations of a lane.
    fn goes_on(&self, done: u64, is_enough: &mut bool) -> bool {
        if !*is_enough && done >= self.iterations {
            *is_enough = true;
            self.enough.fetch_add(1, Ordering::AcqRel);
        }
        if self.stop.load(Ordering::Acquire) {
            return false;
        }
        let elapsed = self.began.elapsed();
        let all = self.enough.load(Ordering::Acquire) == self.lanes;
        let too_long = elapsed > MOST_OVERTIME * self.duration + Duration::from_secs(1);
        if elapsed >= self.duration && all || too_long && self.iterations > 1 {
            self.end();
            return false;
        }
        true
    }

    fn end(&self) {
        // Before it is seen to stop, it has stopped at some time; of several, the first one counts.
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
        let _ = self.stopped.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        self.stop.store(true, Ordering::Release);
    }

    fn wait_until_open(&self) {
        while !self.open.load(Ordering::Acquire) && !self.stop.load(Ordering::Acquire) {
            hint::spin_loop();
        }
    }
}

/// What one thread saw: times in seconds from the beginning.
#[derive(Default)]
struct Seen {
    /// When iterations were done.
    done: Vec<f64>,
    latencies: Latencies,
    host: Duration,
    submitted: u32,
}

/// Every job in a thread of its own.
fn beside(
    device: &Device,
    lanes: &mut [Lane<'_>],
    block: &Block,
    first: usize,
) -> Result<Sample, Failure> {
    let common = Common {
        began: Instant::now(),
        duration: block.duration,
        iterations: u64::from(block.iterations),
        enough: AtomicUsize::new(0),
        lanes: lanes.len(),
        stop: AtomicBool::new(false),
        stopped: AtomicU64::new(0),
        open: AtomicBool::new(false),
    };
    let seen: Vec<Result<Seen, Cause>> = thread::scope(|scope| {
        let common = &common;
        let threads: Vec<_> = lanes
            .iter_mut()
            .enumerate()
            .map(|(place, lane)| {
                scope.spawn(move || {
                    // Also where it panics: the others must end.
                    let ends = EndsOthers(common);
                    let seen = drive(device, lane, common, place == first);
                    if seen.is_ok() {
                        std::mem::forget(ends);
                    }
                    seen
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|seen| seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let stopped = common.stopped.load(Ordering::Acquire) as f64 * 1e-9;
    let mut sample = Sample::default();
    for (job, seen) in seen.into_iter().enumerate() {
        let seen = seen.map_err(|error| Failure { job, error })?;
        let is_closed = lanes[job].job.profile.arrival.depth().is_some();
        sample.jobs.push(seen.sample(stopped, is_closed));
    }
    Ok(sample)
}

/// Stops the other threads when it is dropped.
struct EndsOthers<'a>(&'a Common);

impl Drop for EndsOthers<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Seen {
    fn sample(self, stopped: f64, is_closed: bool) -> JobSample {
        // What was done after the end was alone on the device.
        let during = self.done.partition_point(|done| *done <= stopped);
        let rate = match self.done[..during] {
            [] => self.done.first().map_or(0.0, |done| 1.0 / done),
            // From one end of an iteration to another, so that no part of one counts as none or as one.
            [first, .., last] if is_closed && last > first => {
                let intervals = (during - 1) as f64;
                // One that is kept from running has no end of an iteration where it waits.
                let waited = stopped - first - (last - first) / intervals;
                intervals / (last - first).max(waited)
            }
            _ => during as f64 / stopped.max(1e-9),
        };
        let host_us = 1e6 * self.host.as_secs_f64() / f64::from(self.submitted.max(1));
        JobSample { rate, latencies_us: self.latencies.into_vec(), host_us }
    }
}

/// Lets the other threads begin when it is dropped.
struct Opens<'a>(&'a Common);

impl Opens<'_> {
    fn open(&self) {
        self.0.open.store(true, Ordering::Release);
    }
}

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.open();
    }
}

/// Submits a job's iterations until the block ends, and waits for the last of them.
fn drive(
    device: &Device,
    lane: &mut Lane<'_>,
    common: &Common,
    is_first: bool,
) -> Result<Seen, Cause> {
    if !is_first {
        common.wait_until_open();
    }
    // The others wait for it, also where it ends without having submitted anything.
    let opens = Opens(common);
    let open = || opens.open();
    match (lane.job.profile.arrival.depth(), lane.job.profile.arrival.moments()) {
        (Some(depth), _) => closed(device, lane, common, depth as usize, open),
        (None, Some(moments)) => arriving(device, lane, common, moments, open),
        (None, None) => Ok(Seen::default()),
    }
}

/// A closed loop: as many iterations are in flight as its depth says.
fn closed(
    device: &Device,
    lane: &mut Lane<'_>,
    common: &Common,
    depth: usize,
    open: impl Fn(),
) -> Result<Seen, Cause> {
    let events: Vec<Event> = (0..depth)
        .map(|_| device.create_event(EventOptions::default()))
        .collect::<Result<_, _>>()?;
    let (mut seen, mut is_enough) = (Seen::default(), false);
    let mut in_flight: VecDeque<(f64, &Event)> = VecDeque::with_capacity(depth);
    let mut free = events.iter().cycle();
    loop {
        let goes_on = common.goes_on(seen.done.len() as u64, &mut is_enough);
        if goes_on && in_flight.len() < depth {
            let Some(event) = free.next() else { break };
            let start = common.began.elapsed();
            lane.submit()?;
            seen.host += common.began.elapsed() - start;
            seen.submitted += 1;
            lane.stream.record(event)?;
            open();
            in_flight.push_back((start.as_secs_f64(), event));
            continue;
        }
        let Some((start, event)) = in_flight.pop_front() else { break };
        event.synchronize()?;
        let done = common.began.elapsed().as_secs_f64();
        seen.done.push(done);
        if depth == 1 {
            seen.latencies.push(1e6 * (done - start));
        }
    }
    Ok(seen)
}

/// Iterations that are due at certain moments, whether the former ones are done or not.
fn arriving(
    device: &Device,
    lane: &mut Lane<'_>,
    common: &Common,
    mut moments: impl Iterator<Item = f64>,
    open: impl Fn(),
) -> Result<Seen, Cause> {
    let mut free: Vec<Event> = Vec::new();
    let mut in_flight: VecDeque<(f64, Event)> = VecDeque::new();
    let (mut seen, mut is_enough) = (Seen::default(), false);
    let began = common.began.elapsed().as_secs_f64();
    let mut due = moments.next().map(|moment| began + moment);
    open();
    loop {
        while let Some((_, event)) = in_flight.front() {
            if !event.is_complete()? {
                break;
            }
            let done = common.began.elapsed().as_secs_f64();
            let Some((due, event)) = in_flight.pop_front() else { break };
            free.push(event);
            seen.done.push(done);
            seen.latencies.push(1e6 * (done - due));
        }
        if !common.goes_on(seen.done.len() as u64, &mut is_enough) {
            break;
        }
        let now = common.began.elapsed().as_secs_f64();
        match due {
            Some(moment) if moment <= now && in_flight.len() < MOST_IN_FLIGHT => {
                let event = match free.pop() {
                    Some(event) => event,
                    None => device.create_event(EventOptions::default())?,
                };
                let start = Instant::now();
                lane.submit()?;
                seen.host += start.elapsed();
                seen.submitted += 1;
                lane.stream.record(&event)?;
                in_flight.push_back((moment, event));
                due = moments.next().map(|moment| began + moment);
            }
            Some(moment) if in_flight.is_empty() && moment - now > SPIN.as_secs_f64() => {
                thread::sleep(SPIN / 2);
            }
            _ => hint::spin_loop(),
        }
    }
    for (due, event) in in_flight {
        event.synchronize()?;
        let done = common.began.elapsed().as_secs_f64();
        seen.done.push(done);
        seen.latencies.push(1e6 * (done - due));
    }
    // What was due and could not even be submitted has waited until now, at least.
    let now = common.stopped.load(Ordering::Acquire) as f64 * 1e-9;
    let rest = due.into_iter().chain(moments.map(|moment| began + moment));
    rest.take_while(|due| *due < now).for_each(|due| seen.latencies.push(1e6 * (now - due)));
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(done: &[f64], stopped: f64) -> f64 {
        let seen = Seen { done: done.to_vec(), ..Seen::default() };
        seen.sample(stopped, true).rate
    }

    #[test]
    fn waiting_counts() {
        // Ten a second, wherever the block ends within an iteration.
        for stopped in [1.0, 1.05, 1.0999] {
            let done: Vec<f64> = (1..=10).map(|number| f64::from(number) * 0.1).collect();
            assert!((rate(&done, stopped) - 10.0).abs() < 1e-9, "{stopped}");
        }
        // Two at the beginning, and then none.
        assert!(rate(&[0.001, 0.002], 0.033) < 70.0);
        // None while the others ran.
        assert!((rate(&[0.5], 0.1) - 2.0).abs() < 1e-9);
    }
}

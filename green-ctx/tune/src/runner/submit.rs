//! One thread of a measurement block. The thread submits a job's iterations when they are due, and records when they
//! are done.

use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use green_ctx::event::EventOptions;
use green_ctx::{Device, Event};

use super::block::{Cause, Common, StreamJob};
use crate::measure::JobSample;

/// The maximum number of iterations of one job that can be in flight. At this limit, further arrivals wait on the host.
const MOST_IN_FLIGHT: usize = 256;
/// The thread sleeps if no iteration is in flight and the next arrival is more than this time away.
const SPIN: Duration = Duration::from_micros(200);

/// The measurements that one thread records.
#[derive(Default)]
pub(super) struct Seen {
    /// The times at which iterations were done, in seconds since the start of the block.
    pub(super) done: Vec<f64>,
    latencies_us: Vec<f64>,
    host: Duration,
    submitted: u64,
    /// True if the job has done its minimum number of iterations.
    pub(super) is_enough: bool,
}

impl Seen {
    /// Records an iteration that has just been done. `start` is the time at which the iteration was due, or was
    /// submitted in a closed loop.
    fn finish(&mut self, common: &Common<'_>, start: f64, has_latency: bool) {
        let done = common.elapsed();
        self.done.push(done);
        // An iteration that began after the stop ran while fewer jobs were running.
        let counts = start >= common.counts_from()
            && common.stopped().is_none_or(|stopped| start <= stopped);
        if has_latency && counts {
            self.latencies_us.push(1e6 * (done - start));
        }
    }

    /// Returns the measurements of the time between `from` and `stopped`.
    pub(super) fn sample(self, from: f64, stopped: f64, is_closed: bool) -> JobSample {
        // Iterations that end after the stop had more of the device than usual.
        let begun = self.done.partition_point(|done| *done < from);
        let during = self.done.partition_point(|done| *done <= stopped);
        let rate = match &self.done[begun.min(during)..during] {
            [] => self.done.get(begun).map_or(0.0, |done| 1.0 / (done - from).max(1e-9)),
            // The rate is measured from the end of one iteration to the end of another, so that partial iterations do
            // not distort it.
            [first, .., last] if is_closed && last > first => {
                let intervals = (during - begun - 1) as f64;
                // A starved job finishes no iteration while it waits, so its waiting time is added.
                let waited = stopped - first - (last - first) / intervals;
                intervals / (last - first).max(waited)
            }
            done => done.len() as f64 / (stopped - from).max(1e-9),
        };
        let host_us = 1e6 * self.host.as_secs_f64() / self.submitted.max(1) as f64;
        JobSample { rate, latencies_us: self.latencies_us, host_us }
    }
}

/// A guard that lets the other threads begin when the guard is dropped.
struct Opens<'a>(&'a Common<'a>);

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

/// Submits the iterations of a job until the block ends, and waits for the last of them.
pub(super) fn drive(
    device: &Device,
    job: &mut StreamJob<'_>,
    common: &Common<'_>,
    is_first: bool,
) -> Result<Seen, Cause> {
    if !is_first {
        common.wait_until_open();
    }
    // The other threads wait for this, so it must also happen if the job ends before submitting anything.
    let opens = Opens(common);
    let arrival = job.arrival.clone();
    match (arrival.depth(), arrival.moments(common.block.start)) {
        (Some(depth), _) => closed(device, job, common, depth as usize, &opens),
        (None, Some(moments)) => arriving(device, job, common, moments, &opens),
        (None, None) => Ok(Seen::default()),
    }
}

/// Runs a closed loop with `depth` iterations in flight.
fn closed(
    device: &Device,
    job: &mut StreamJob<'_>,
    common: &Common<'_>,
    depth: usize,
    opens: &Opens<'_>,
) -> Result<Seen, Cause> {
    let events: Vec<Event> = (0..depth)
        .map(|_| device.create_event(EventOptions::default()))
        .collect::<Result<_, _>>()?;
    let mut seen = Seen::default();
    let mut in_flight: VecDeque<(f64, &Event)> = VecDeque::with_capacity(depth);
    let mut free = events.iter().cycle();
    loop {
        if common.goes_on(&mut seen) && in_flight.len() < depth {
            let Some(event) = free.next() else { break };
            let start = common.elapsed();
            submit(job, &mut seen)?;
            job.stream.record(event)?;
            opens.open();
            in_flight.push_back((start, event));
            continue;
        }
        let Some((start, event)) = in_flight.pop_front() else { break };
        event.synchronize()?;
        seen.finish(common, start, depth == 1);
    }
    Ok(seen)
}

/// Submits iterations at given times, even if earlier iterations are not done yet.
fn arriving(
    device: &Device,
    job: &mut StreamJob<'_>,
    common: &Common<'_>,
    moments: impl Iterator<Item = f64>,
    opens: &Opens<'_>,
) -> Result<Seen, Cause> {
    let mut free: Vec<Event> = Vec::new();
    let mut in_flight: VecDeque<(f64, Event)> = VecDeque::new();
    let mut seen = Seen::default();
    let began = common.elapsed();
    let mut due = moments.map(|moment| began + moment).peekable();
    opens.open();
    loop {
        while let Some((_, event)) = in_flight.front() {
            if !event.is_complete()? {
                break;
            }
            let Some((due, event)) = in_flight.pop_front() else { break };
            free.push(event);
            seen.finish(common, due, true);
        }
        if !common.goes_on(&mut seen) {
            break;
        }
        let Some(moment) = due.peek().copied() else { break };
        let now = common.elapsed();
        if moment <= now && in_flight.len() < MOST_IN_FLIGHT {
            let event = match free.pop() {
                Some(event) => event,
                None => device.create_event(EventOptions::default())?,
            };
            submit(job, &mut seen)?;
            job.stream.record(&event)?;
            in_flight.push_back((moment, event));
            due.next();
        } else if in_flight.is_empty() && moment - now > SPIN.as_secs_f64() {
            thread::sleep(SPIN / 2);
        } else {
            hint::spin_loop();
        }
    }
    for (due, event) in in_flight {
        event.synchronize()?;
        seen.finish(common, due, true);
    }
    // Iterations that were due but could not be submitted have waited at least until the stop.
    if let Some(stopped) = common.stopped() {
        due.skip_while(|due| *due < common.counts_from())
            .take_while(|due| *due < stopped)
            .for_each(|due| seen.latencies_us.push(1e6 * (stopped - due)));
    }
    Ok(seen)
}

fn submit(job: &mut StreamJob<'_>, seen: &mut Seen) -> Result<(), Cause> {
    let start = Instant::now();
    job.submit()?;
    seen.host += start.elapsed();
    seen.submitted += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(done: &[f64], stopped: f64) -> f64 {
        let seen = Seen { done: done.to_vec(), ..Seen::default() };
        seen.sample(0.0, stopped, true).rate
    }

    #[test]
    fn waiting_counts() {
        // Ten per second, wherever within an iteration the block ends.
        for stopped in [1.0, 1.05, 1.0999] {
            let done: Vec<f64> = (1..=10).map(|number| f64::from(number) * 0.1).collect();
            assert!((rate(&done, stopped) - 10.0).abs() < 1e-9, "{stopped}");
        }
        // Two at the beginning, and none after them.
        assert!(rate(&[0.001, 0.002], 0.033) < 70.0);
        // Iterations before the start do not count.
        let seen = Seen { done: vec![0.1, 0.2, 1.0, 2.0, 3.0], ..Seen::default() };
        assert!((seen.sample(0.5, 3.0, true).rate - 1.0).abs() < 1e-9);
        // None while the other jobs ran.
        assert!((rate(&[0.5], 0.1) - 2.0).abs() < 1e-9);
    }
}

//! What one thread of a block does: it submits a job's iterations when they are due, and notes when they are done.

use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use green_ctx::event::EventOptions;
use green_ctx::{Device, Event};

use super::block::{Cause, Common, StreamJob};
use crate::measure::JobSample;

/// Iterations that have arrived and are not done, of one job: more wait on the host.
const MOST_IN_FLIGHT: usize = 256;
/// Before this is left until the next arrival, the thread sleeps.
const SPIN: Duration = Duration::from_micros(200);

/// What one thread saw: times in seconds from the beginning.
#[derive(Default)]
pub(super) struct Seen {
    /// When iterations were done.
    pub(super) done: Vec<f64>,
    latencies_us: Vec<f64>,
    host: Duration,
    submitted: u64,
    /// Whether it has done as many iterations as it should at least.
    pub(super) is_enough: bool,
}

impl Seen {
    /// Notes an iteration that is done now, and was due or submitted at a moment.
    fn finish(&mut self, common: &Common<'_>, start: f64, has_latency: bool) {
        let done = common.elapsed();
        self.done.push(done);
        // What began after the end ran beside less.
        let counts = start >= common.counts_from()
            && common.stopped().is_none_or(|stopped| start <= stopped);
        if has_latency && counts {
            self.latencies_us.push(1e6 * (done - start));
        }
    }

    /// What is seen between two moments.
    pub(super) fn sample(self, from: f64, stopped: f64, is_closed: bool) -> JobSample {
        // What was done after the end was alone on the device.
        let begun = self.done.partition_point(|done| *done < from);
        let during = self.done.partition_point(|done| *done <= stopped);
        let rate = match &self.done[begun.min(during)..during] {
            [] => self.done.get(begun).map_or(0.0, |done| 1.0 / (done - from).max(1e-9)),
            // From one end of an iteration to another, so that no part of one counts as none or as one.
            [first, .., last] if is_closed && last > first => {
                let intervals = (during - begun - 1) as f64;
                // One that is kept from running has no end of an iteration where it waits.
                let waited = stopped - first - (last - first) / intervals;
                intervals / (last - first).max(waited)
            }
            done => done.len() as f64 / (stopped - from).max(1e-9),
        };
        let host_us = 1e6 * self.host.as_secs_f64() / self.submitted.max(1) as f64;
        JobSample { rate, latencies_us: self.latencies_us, host_us }
    }
}

/// Lets the other threads begin when it is dropped.
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
    // The others wait for it, also where it ends without having submitted anything.
    let opens = Opens(common);
    let arrival = job.arrival.clone();
    match (arrival.depth(), arrival.moments(common.block.start)) {
        (Some(depth), _) => closed(device, job, common, depth as usize, &opens),
        (None, Some(moments)) => arriving(device, job, common, moments, &opens),
        (None, None) => Ok(Seen::default()),
    }
}

/// A closed loop: as many iterations are in flight as its depth says.
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

/// Iterations that are due at certain moments, whether the former ones are done or not.
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
    // What was due and could not even be submitted has waited until the end, at least.
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
        // Ten a second, wherever the block ends within an iteration.
        for stopped in [1.0, 1.05, 1.0999] {
            let done: Vec<f64> = (1..=10).map(|number| f64::from(number) * 0.1).collect();
            assert!((rate(&done, stopped) - 10.0).abs() < 1e-9, "{stopped}");
        }
        // Two at the beginning, and then none.
        assert!(rate(&[0.001, 0.002], 0.033) < 70.0);
        // What came before counts for nothing.
        let seen = Seen { done: vec![0.1, 0.2, 1.0, 2.0, 3.0], ..Seen::default() };
        assert!((seen.sample(0.5, 3.0, true).rate - 1.0).abs() < 1e-9);
        // None while the others ran.
        assert!((rate(&[0.5], 0.1) - 2.0).abs() < 1e-9);
    }
}

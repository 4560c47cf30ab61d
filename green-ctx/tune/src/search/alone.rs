//! Each job alone: what the budget is enough for, what rates are compared with, and what counts of SMs do.

use std::time::Duration;

use super::{Found, LEAD_IN, ROUNDS_END, Ran, SHORTEST, SUSTAINED, Search, curve};
use crate::arm::{Arm, ceilings};
use crate::measure::{Block, JobSample, Measure, Task};
use crate::request::RequestError;
use crate::score::Scorer;
use crate::stats::{mean, median};

/// Parts of the budget at which steps end.
const WARM_UP_ENDS: f64 = 0.02;
const SOLO_ENDS: f64 = 0.08;
/// The part of the budget that a short block may take.
const LONGEST: f64 = 0.02;
/// Iterations of all jobs that a budget is enough for, at least.
const LEAST_ITERATIONS: f64 = 380.0;
/// A job's first iteration may take so many times as long as the others.
const COLD: f64 = 10.0;
/// How often jobs are measured before the budget is said to be too small for them, and which part of it that takes, at
/// least.
const ATTEMPTS: u32 = 3;
const PATIENCE: f64 = 0.1;
/// Blocks that say something of two jobs: fewer are not worth a search.
const LEAST_BLOCKS: u32 = 50;
/// Short blocks that would fit into a budget.
const BLOCKS: f64 = 900.0;
/// From this part of its capacity on, a job's latencies depend on small changes of its rate.
pub(super) const HIGH_LOAD: f64 = 0.8;

/// What is known of a job alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    /// The seconds from one iteration to the next in a plain stream: how long one takes or, where that is longer, how far
    /// apart they arrive.
    pub(super) seconds: f64,
    /// Iterations a second in a plain stream: those that arrive or, in a closed loop, those that it does.
    pub(super) rate: f64,
    /// Iterations a second in a plain stream in the course of the search. A job that arrives by the clock runs as fast as
    /// it can.
    pub(super) references: Vec<f64>,
    /// The same in long blocks, which say what a program gets that goes on.
    pub(super) settled: Vec<f64>,
    /// The part of an iteration's time in which the host submits it.
    pub(super) host: f64,
    pub(super) curve: curve::Curve,
}

impl<M: Measure> Search<'_, M> {
    fn name(&self, job: usize) -> String {
        self.question.jobs[job].name.clone()
    }

    /// A job alone. One that arrives by the clock runs as fast as it can.
    fn alone(&mut self, job: usize, sms: Option<u32>, block: &Block) -> Found<Ran, M> {
        let saturated = self.question.jobs[job].arrival.hz().map(|_| job);
        self.run(&Task::Alone { job, sms }, &Block { rounds: false, first: 0, saturated, ..*block })
    }

    /// A job alone in a plain stream, where it must run.
    fn must_run(&mut self, job: usize, block: &Block) -> Found<JobSample, M> {
        let began = self.measure.now();
        match self.alone(job, None, block)? {
            Ran::Sample(sample) if sample.jobs[0].rate <= 0.0 => {
                let reason = format!("it did nothing in {:.0?}", self.measure.now() - began);
                Err(RequestError::Job { job: self.name(job), reason }.into())
            }
            Ran::Sample(mut sample) => Ok(sample.jobs.remove(0)),
            Ran::Skipped(reason) => Err(RequestError::Job { job: self.name(job), reason }.into()),
            Ran::Interrupted => Err(RequestError::Interrupted.into()),
        }
    }

    /// Each job alone: once, to know what the budget is enough for, and then as often as that allows.
    pub(super) fn jobs_alone(&mut self) -> Found<(), M> {
        let jobs = 0..self.question.jobs.len();
        let once = |iterations| Block { iterations, ..Block::default() };
        // What arrives by the clock is waited for.
        let distance = |job: usize| self.question.jobs[job].arrival.hz().map_or(0.0, |hz| 1.0 / hz);
        let distances: Vec<f64> = jobs.clone().map(distance).collect();
        self.is_enough_for(distances.iter().sum(), 1.0)?;
        // The first iteration may be slow. If it is far too slow for the budget, there are few others.
        let mut seconds = vec![f64::INFINITY; jobs.len()];
        for (iterations, too_much) in [(1, COLD), (3, 1.0)] {
            // Whatever else keeps the host busy makes jobs look slow once, and hardly every time.
            for attempt in 1.. {
                for job in jobs.clone() {
                    let sample = self.must_run(job, &once(iterations))?;
                    let measured = distances[job].max(1.0 / sample.rate.max(1e-9));
                    seconds[job] = measured.min(seconds[job]);
                    self.alone[job].seconds = seconds[job];
                }
                let enough = self.is_enough_for(seconds.iter().sum(), too_much);
                if enough.is_ok() || attempt >= ATTEMPTS && self.spent() > PATIENCE {
                    enough?;
                    break;
                }
            }
        }
        let usual = self.question.budget.as_secs_f64() / BLOCKS;
        self.block = Duration::from_secs_f64(usual.max(2.0 * self.slowest())).max(SHORTEST);
        self.warm_up()?;
        self.rates_alone()?;
        self.curves()
    }

    /// The longest that an iteration of any job takes alone, in seconds.
    fn slowest(&self) -> f64 {
        self.alone.iter().map(|alone| alone.seconds).fold(0.0, f64::max)
    }

    /// How long a block is that a candidate is chosen by.
    pub(super) fn sustained(&self) -> Duration {
        SUSTAINED.max(Duration::from_secs_f64(8.0 * self.slowest()))
    }

    /// Whether the budget is enough where one iteration of all jobs takes so many seconds, or so many times
    /// fewer.
    fn is_enough_for(&self, seconds: f64, too_much: f64) -> Found<(), M> {
        let least = |seconds: f64| {
            let least = Duration::try_from_secs_f64(LEAST_ITERATIONS * seconds);
            least.unwrap_or(Duration::MAX).max(LEAST_BLOCKS * SHORTEST)
        };
        if self.question.budget < least(seconds / too_much) {
            let needs = least(seconds);
            return Err(RequestError::Budget { budget: self.question.budget, needs }.into());
        }
        Ok(())
    }

    /// Whether two iterations of a job on so many SMs, if it needs all of them, leave time for others.
    pub(super) fn is_affordable(&self, job: usize, sms: u32) -> bool {
        let part = f64::from(sms.max(1)) / f64::from(self.question.space.pieces.sms);
        2.0 * self.alone[job].seconds / part <= LONGEST * self.question.budget.as_secs_f64()
    }

    /// Lets the clocks rise before anything counts.
    fn warm_up(&mut self) -> Found<(), M> {
        let streams = Arm::streams(self.question.jobs.len(), self.question.space.pieces.sms);
        let task = Task::Together(streams);
        while self.has_time(WARM_UP_ENDS, "warming up") {
            let block = self.block(0, Duration::ZERO, self.block);
            if !matches!(self.run(&task, &block)?, Ran::Sample(_)) {
                break;
            }
        }
        Ok(())
    }

    /// Each job in a plain stream, and whether it keeps up with its arrivals there.
    fn rates_alone(&mut self) -> Found<(), M> {
        let jobs = self.question.jobs.len();
        // Forwards and backwards, so that a device that warms up treats all alike.
        for job in (0..jobs).chain((0..jobs).rev()) {
            if !self.has_time(1.0, "each job alone") && !self.alone[job].references.is_empty() {
                continue;
            }
            let block = self.block(0, Duration::ZERO, self.block);
            let sample = self.must_run(job, &block)?;
            self.alone[job].references.push(sample.rate);
            self.alone[job].host = 1e-6 * sample.host_us * sample.rate;
        }
        for job in 0..jobs {
            let possible = median(&self.alone[job].references).unwrap_or(0.0);
            let Some(requested) = self.question.jobs[job].arrival.hz() else { continue };
            if requested >= possible {
                let job = self.name(job);
                return Err(RequestError::TooFast { job, requested, possible }.into());
            }
            if requested > HIGH_LOAD * possible {
                let name = &self.question.jobs[job].name;
                self.notes.push(format!(
                    "{name} arrives {requested:.0} times a second and could run {possible:.0} times a second \
                     alone: above {:.0} % of that, latencies rise with small changes of the rate",
                    100.0 * HIGH_LOAD
                ));
            }
        }
        self.compare_with_references();
        Ok(())
    }

    /// Compares with what jobs do alone in the course of the search, and not only at its beginning, when the device was
    /// cooler.
    pub(super) fn compare_with_references(&mut self) {
        for (job, alone) in self.question.jobs.iter().zip(&mut self.alone) {
            let settled = mean(alone.settled.iter().copied());
            let measured = settled.or(median(&alone.references)).unwrap_or(0.0).max(1e-9);
            alone.rate = job.arrival.hz().unwrap_or(measured);
        }
        let rates = self.alone.iter().map(|alone| alone.rate).collect();
        self.scorer = Scorer::of(&self.question.goal, &self.question.names(), rates);
        self.value_all();
    }

    /// Each job alone in a long block, and everything valued by that.
    pub(super) fn settled(&mut self) -> Found<(), M> {
        for job in 0..self.alone.len() {
            let duration = self.sustained();
            if self.has_time_for(LEAD_IN + duration, 1.0, "each job alone in a long block") {
                let block = self.block(0, LEAD_IN, duration);
                if let Ran::Sample(sample) = self.alone(job, None, &block)? {
                    self.alone[job].settled.extend(sample.jobs.iter().map(|sample| sample.rate));
                }
            }
        }
        self.compare_with_references();
        Ok(())
    }

    /// Each job on some counts of SMs.
    fn curves(&mut self) -> Found<(), M> {
        let jobs = self.question.jobs.len();
        let begun = self.spent().min(SOLO_ENDS);
        for job in 0..jobs {
            let counts = ceilings(self.question.space.pieces, job, self.question.space.step);
            let until = begun + (SOLO_ENDS - begun) * (job + 1) as f64 / jobs as f64;
            let mut counts = curve::coarse_to_fine(&counts);
            counts.retain(|sms| self.is_affordable(job, *sms));
            for sms in counts {
                if !self.has_time(until.min(ROUNDS_END), "each job on some counts of SMs") {
                    break;
                }
                let block = self.block(0, Duration::ZERO, self.block);
                match self.alone(job, Some(sms), &block)? {
                    Ran::Sample(sample) => {
                        self.alone[job].curve.insert(sms, sample.jobs[0].rate);
                    }
                    Ran::Skipped(reason) => {
                        let name = &self.question.jobs[job].name;
                        self.notes.push(format!("{name} does not run on {sms} SMs: {reason}"));
                    }
                    Ran::Interrupted => {}
                }
            }
        }
        Ok(())
    }

    /// Measures a job alone once more, each time the next one.
    pub(super) fn reference(&mut self) -> Found<(), M> {
        if !self.has_time(1.0, self.step) {
            return Ok(());
        }
        let measured: usize = self.alone.iter().map(|alone| alone.references.len()).sum();
        let job = measured % self.alone.len();
        let block = self.block(0, Duration::ZERO, self.block);
        if let Ran::Sample(sample) = self.alone(job, None, &block)? {
            self.alone[job].references.extend(sample.jobs.iter().map(|sample| sample.rate));
        }
        Ok(())
    }
}

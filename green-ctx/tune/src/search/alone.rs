//! Each job alone: whether the budget is sufficient, the reference rates, and the rates on fewer SMs. Jobs run in
//! measurement blocks.

use std::time::Duration;

use super::{Found, LEAD_IN, ROUNDS_END, Ran, SHORTEST, SUSTAINED, Search, curve};
use crate::arm::{Arm, ceilings};
use crate::measure::{Block, JobSample, Measure, Task};
use crate::request::RequestError;
use crate::score::Scorer;
use crate::stats::{mean, median};

/// Fractions of the budget at which steps end.
const WARM_UP_ENDS: f64 = 0.02;
const SOLO_ENDS: f64 = 0.08;
/// The maximum fraction of the budget for a short block.
const LONGEST: f64 = 0.02;
/// A budget must be enough for this number of iterations of all jobs.
const LEAST_ITERATIONS: f64 = 389.0;
/// The factor by which a job's first iteration may be slower than the others.
const COLD: f64 = 10.0;
/// The minimum number of attempts, and the minimum fraction of the budget spent on them, before the budget is rejected
/// as too small.
const ATTEMPTS: u32 = 3;
const PATIENCE: f64 = 0.1;
/// The minimum number of blocks that make a search worthwhile.
const LEAST_BLOCKS: u32 = 50;
/// The number of short blocks that a budget is divided into.
const BLOCKS: f64 = 900.0;

/// The figures of a job alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    /// The interval between iterations in a plain stream, in seconds: the time of one, or the time between arrivals if
    /// that is longer.
    pub(super) seconds: f64,
    /// Iterations per second in a plain stream: the arrival rate or, in a closed loop, the measured rate.
    pub(super) rate: f64,
    /// Iterations per second in a plain stream, measured during the search. A job that arrives at given times runs as
    /// fast as it can.
    pub(super) references: Vec<f64>,
    /// The same in long blocks, which show the rate of a program that keeps running.
    pub(super) settled: Vec<f64>,
    /// The fraction of an iteration's time that the host spends submitting it.
    pub(super) host: f64,
    pub(super) curve: curve::Curve,
}

impl<M: Measure> Search<'_, M> {
    fn name(&self, job: usize) -> String {
        self.question.jobs[job].name.clone()
    }

    /// Runs a job alone. A job that arrives at given times runs as fast as it can.
    fn alone(&mut self, job: usize, sms: Option<u32>, block: &Block) -> Found<Ran, M> {
        let saturated = self.question.jobs[job].arrival.hz().map(|_| job);
        self.run(&Task::Alone { job, sms }, &Block { rounds: false, first: 0, saturated, ..*block })
    }

    /// Runs a job alone in a plain stream. It is an error if the job does not run.
    fn must_run(&mut self, job: usize, block: &Block) -> Found<JobSample, M> {
        let began = self.measure.now();
        let reason = match self.alone(job, None, block)? {
            Ran::Sample(sample) if sample.jobs[0].rate <= 0.0 => {
                format!("it finished no iteration in {:.0?}", self.measure.now() - began)
            }
            Ran::Sample(mut sample) => return Ok(sample.jobs.remove(0)),
            Ran::Skipped(reason) => reason,
            Ran::Interrupted => return Err(RequestError::Interrupted.into()),
        };
        Err(RequestError::Job { job: self.name(job), reason }.into())
    }

    /// Measures each job alone: first to check the budget, and then as often as the budget allows.
    pub(super) fn jobs_alone(&mut self) -> Found<(), M> {
        let jobs = 0..self.question.jobs.len();
        let once = |iterations| Block { iterations, ..Block::default() };
        // A block waits for the job's arrivals.
        let distance = |job: usize| self.question.jobs[job].arrival.hz().map_or(0.0, |hz| 1.0 / hz);
        let distances: Vec<f64> = jobs.clone().map(distance).collect();
        self.is_enough_for(distances.iter().sum(), 1.0)?;
        // The first iteration may be slow. If it alone is far too slow for the budget, the budget is rejected early.
        let mut seconds = vec![f64::INFINITY; jobs.len()];
        for (iterations, too_much) in [(1, COLD), (3, 1.0)] {
            // Other work on the host may make jobs look slow once, but rarely in every attempt.
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

    /// Returns the longest time of an iteration of any job alone, in seconds.
    fn slowest(&self) -> f64 {
        self.alone.iter().map(|alone| alone.seconds).fold(0.0, f64::max)
    }

    /// Returns the minimum length of a long block.
    pub(super) fn sustained(&self) -> Duration {
        SUSTAINED.max(Duration::from_secs_f64(8.0 * self.slowest()))
    }

    /// Checks that the budget is sufficient if one iteration of all jobs takes `seconds` in total, with `too_much` as a
    /// tolerance factor.
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

    /// Returns whether two iterations of a job on this number of SMs leave time for other blocks. Assumes that the
    /// job's time is inversely proportional to the number of SMs.
    pub(super) fn is_affordable(&self, job: usize, sms: u32) -> bool {
        let part = f64::from(sms.max(1)) / f64::from(self.question.space.pieces.sms);
        2.0 * self.alone[job].seconds / part <= LONGEST * self.question.budget.as_secs_f64()
    }

    /// Lets the GPU clocks ramp up before the first block that counts.
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

    /// Measures each job in a plain stream, and checks that it keeps up with its arrivals.
    fn rates_alone(&mut self) -> Found<(), M> {
        let jobs = self.question.jobs.len();
        // Forwards and backwards, so that a device that is warming up treats all jobs alike.
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
            let hz = self.question.jobs[job].arrival.hz();
            let Some(requested) = hz.filter(|hz| *hz >= possible) else { continue };
            return Err(RequestError::TooFast { job: self.name(job), requested, possible }.into());
        }
        self.compare_with_references();
        Ok(())
    }

    /// Compares with the jobs' rates alone throughout the search, and not only at its beginning, when the device was
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

    /// Measures each job alone in a long block, and recomputes all values with the result.
    pub(super) fn settled(&mut self) -> Found<(), M> {
        for job in 0..self.alone.len() {
            let duration = self.sustained();
            if self.has_time_for(LEAD_IN + duration, 1.0, "each job alone for longer") {
                let rate = self.rate_alone(job, LEAD_IN, duration)?;
                self.alone[job].settled.extend(rate);
            }
        }
        self.compare_with_references();
        Ok(())
    }

    /// Measures each job alone on several numbers of SMs.
    fn curves(&mut self) -> Found<(), M> {
        let jobs = self.question.jobs.len();
        let begun = self.spent().min(SOLO_ENDS);
        for job in 0..jobs {
            let counts = ceilings(self.question.space.pieces, job, self.question.space.step);
            let until = begun + (SOLO_ENDS - begun) * (job + 1) as f64 / jobs as f64;
            let mut counts = curve::coarse_to_fine(&counts);
            counts.retain(|sms| self.is_affordable(job, *sms));
            for sms in counts {
                if !self.has_time(until.min(ROUNDS_END), "each job alone on fewer SMs") {
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

    /// Measures the next job alone again, in rotation.
    pub(super) fn reference(&mut self) -> Found<(), M> {
        if !self.has_time(1.0, self.step) {
            return Ok(());
        }
        let measured: usize = self.alone.iter().map(|alone| alone.references.len()).sum();
        let job = measured % self.alone.len();
        let rate = self.rate_alone(job, Duration::ZERO, self.block)?;
        self.alone[job].references.extend(rate);
        Ok(())
    }

    /// Measures a job's rate alone in a plain stream.
    fn rate_alone(&mut self, job: usize, lead: Duration, time: Duration) -> Found<Option<f64>, M> {
        let block = self.block(0, lead, time);
        let ran = self.alone(job, None, &block)?;
        Ok(if let Ran::Sample(sample) = ran { Some(sample.jobs[0].rate) } else { None })
    }
}

//! Each job alone: what the budget is enough for, what rates are compared with, and what counts of SMs do.

use std::time::Duration;

use super::super::arm::Arm;
use super::super::measure::{Block, JobSample, Measure, Task};
use super::super::request::Profile;
use super::super::stats::median;
use super::{Found, Ran, SHORTEST, Search, Stopped, curve};

/// Parts of the budget at which steps end.
const WARM_UP_ENDS: f64 = 0.03;
const SOLO_ENDS: f64 = 0.15;
/// The part of the budget that a block may take.
const LONGEST: f64 = 0.03;
/// Iterations of all jobs that a budget is enough for, at least.
const LEAST_ITERATIONS: f64 = 150.0;
/// A job's first iteration may take so many times as long as the others.
const COLD: f64 = 10.0;
/// Blocks that say something of two jobs: fewer are not worth a search.
const LEAST_BLOCKS: u32 = 50;
/// Blocks that fit into a budget, about.
const BLOCKS: f64 = 300.0;

impl<M: Measure> Search<'_, M> {
    /// A job alone.
    fn alone(&mut self, job: usize, sms: Option<u32>, block: &Block) -> Found<Ran, M> {
        self.run(&Task::Alone { job, sms }, &Block { rounds: false, first: 0, ..*block })
    }

    /// A job alone in a plain stream, where it must run.
    fn must_run(&mut self, job: usize, block: &Block) -> Found<JobSample, M> {
        match self.alone(job, None, block)? {
            Ran::Sample(mut sample) => Ok(sample.jobs.remove(0)),
            Ran::Skipped(reason) => Err(Stopped::Job { job, reason }),
            Ran::Interrupted => Err(Stopped::Interrupted),
        }
    }

    /// Each job alone: once, to know what the budget is enough for, and then as often as that allows.
    pub(super) fn jobs_alone(&mut self) -> Found<(), M> {
        let once = |iterations| Block {
            duration: Duration::ZERO,
            iterations,
            rounds: false,
            first: 0,
            start: Duration::ZERO,
        };
        // What arrives by the clock is waited for.
        let distance = |profile: &Profile| profile.arrival.hz().map_or(0.0, |hz| 1.0 / hz);
        let mut seconds: Vec<f64> = self.question.jobs.iter().map(distance).collect();
        self.is_enough_for(seconds.iter().sum(), 1.0)?;
        // The first one may be slow. Where it is far too slow it is the last one too.
        let mut cold = seconds.clone();
        for (job, seconds) in cold.iter_mut().enumerate() {
            let sample = self.must_run(job, &once(1))?;
            *seconds = seconds.max(self.seconds_of(job, &sample));
        }
        self.is_enough_for(cold.iter().sum(), COLD)?;
        for (job, (seconds, cold)) in seconds.iter_mut().zip(cold).enumerate() {
            let sample = self.must_run(job, &once(2))?;
            *seconds = seconds.max(self.seconds_of(job, &sample).min(cold));
        }
        self.is_enough_for(seconds.iter().sum(), 1.0)?;
        let slowest = seconds.iter().copied().fold(0.0, f64::max);
        self.seconds = seconds;
        let usual = self.question.budget.as_secs_f64() / BLOCKS;
        self.block = Duration::from_secs_f64(usual.max(2.0 * slowest)).max(SHORTEST);
        self.warm_up()?;
        self.rates_alone()
    }

    /// Whether the budget is enough where one iteration of all jobs takes so many seconds, or so many times
    /// fewer.
    fn is_enough_for(&self, seconds: f64, too_much: f64) -> Found<(), M> {
        let least = |seconds: f64| {
            let least = Duration::try_from_secs_f64(LEAST_ITERATIONS * seconds);
            least.unwrap_or(Duration::MAX).max(LEAST_BLOCKS * SHORTEST)
        };
        if self.question.budget < least(seconds / too_much) {
            return Err(Stopped::Budget(least(seconds)));
        }
        Ok(())
    }

    /// Whether two iterations of a job on so many SMs, if it needs all of them, leave time for others.
    pub(super) fn is_affordable(&self, job: usize, sms: u32) -> bool {
        let part = f64::from(sms.max(1)) / f64::from(self.question.space.pieces.sms);
        2.0 * self.seconds[job] / part <= LONGEST * self.question.budget.as_secs_f64()
    }

    /// Lets the clocks rise before anything counts.
    fn warm_up(&mut self) -> Found<(), M> {
        let streams = Arm::streams(self.question.jobs.len(), self.question.space.pieces.sms);
        let task = Task::Together(streams);
        while self.has_time(WARM_UP_ENDS, "warming up") {
            let block = self.block(0);
            if !matches!(self.run(&task, &block)?, Ran::Sample(_)) {
                break;
            }
        }
        Ok(())
    }

    /// Seconds that an iteration takes: a rate of arrivals says nothing of that.
    fn seconds_of(&self, job: usize, sample: &JobSample) -> f64 {
        match self.question.jobs[job].arrival.depth() {
            Some(_) => 1.0 / sample.rate.max(1e-9),
            None => median(&sample.latencies_us).unwrap_or(0.0) * 1e-6,
        }
    }

    /// The part of an iteration's time in which the host submits it.
    fn host_part(&self, job: usize, sample: &JobSample) -> f64 {
        let seconds = match self.question.jobs[job].arrival.depth() {
            Some(_) => self.seconds_of(job, sample),
            // What came while the one before it ran has waited.
            None => 1e-6 * sample.latencies_us.iter().copied().fold(f64::INFINITY, f64::min),
        };
        1e-6 * sample.host_us / seconds
    }

    fn rates_alone(&mut self) -> Found<(), M> {
        let jobs = self.question.jobs.len();
        // Forwards and backwards, so that a device that warms up treats all alike.
        for job in (0..jobs).chain((0..jobs).rev()) {
            if !self.has_time(1.0, "each job alone") && !self.references[job].is_empty() {
                continue;
            }
            let block = self.block(0);
            let sample = self.must_run(job, &block)?;
            if sample.rate <= 0.0 {
                let reason =
                    format!("it did nothing in {:.0} ms", 1e3 * block.duration.as_secs_f64());
                return Err(Stopped::Job { job, reason });
            }
            self.references[job].push(sample.rate);
            self.hosts[job] = self.host_part(job, &sample);
        }
        self.alone = (0..jobs).map(|job| self.rate_alone(job)).collect();
        let begun = self.spent().min(SOLO_ENDS);
        for job in 0..jobs {
            let counts = self.question.space.pieces.ceilings(job, self.question.space.step);
            let until = begun + (SOLO_ENDS - begun) * (job + 1) as f64 / jobs as f64;
            let mut counts = curve::coarse_to_fine(&counts);
            counts.retain(|sms| self.is_affordable(job, *sms));
            for sms in counts {
                if !self.has_time(until, "each job on some counts of SMs") {
                    break;
                }
                let block = self.block(0);
                match self.alone(job, Some(sms), &block)? {
                    Ran::Sample(sample) => {
                        let sample = &sample.jobs[0];
                        let seconds = self.seconds_of(job, sample);
                        self.curves[job].insert(sms, sample.rate, seconds);
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

    /// A job's iterations a second in a plain stream, by all blocks so far.
    pub(super) fn rate_alone(&self, job: usize) -> f64 {
        let rates = &self.references[job];
        let Some(hz) = self.question.jobs[job].arrival.hz() else {
            return median(rates).unwrap_or(0.0).max(1e-9);
        };
        // A block has few of those that arrive by the clock. A job that keeps up has the clock's rate, within what
        // chance makes of it.
        let blocks = rates.len().max(1) as f64;
        let seconds = blocks * self.block.as_secs_f64();
        let mean = rates.iter().sum::<f64>() / blocks;
        let chance = 3.0 * (hz * seconds).sqrt() + blocks;
        if (mean - hz).abs() * seconds <= chance { hz } else { mean.max(1e-9) }
    }

    /// Measures a job alone once more, each time the next one.
    pub(super) fn reference(&mut self) -> Found<(), M> {
        if !self.has_time(1.0, self.step) {
            return Ok(());
        }
        let measured: usize = self.references.iter().map(Vec::len).sum();
        let job = measured % self.references.len();
        let block = self.block(0);
        if let Ran::Sample(sample) = self.alone(job, None, &block)? {
            self.references[job].extend(sample.jobs.iter().map(|sample| sample.rate));
        }
        Ok(())
    }
}

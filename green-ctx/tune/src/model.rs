//! A model of jobs that share a GPU, for tuning without a GPU.
//!
//! The model does not replace a GPU, but it contains the effects that make the choice hard: run times that jump when
//! one more wave of blocks is needed, memory-bound jobs that gain nothing from more SMs, shared memory bandwidth,
//! complementary jobs that gain from sharing SMs, streams that settle into a different order each time they start, and
//! noise.

use std::convert::Infallible;
use std::time::Duration;

use fastrand::Rng;

use crate::arm::{Arm, ArmKind, Part};
use crate::arrival::Arrival;
use crate::measure::{Block, JobSample, Measure, Refusal, Sample, Task};
use green_ctx::resource::UnitSizes;

/// A job of the model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelJob {
    /// The number of thread blocks in one iteration. An SM runs one thread block at a time.
    pub blocks: u32,
    /// The run time of one thread block, in microseconds.
    pub block_us: f64,
    /// The time that the memory accesses of one iteration take, in microseconds. This time does not depend on the
    /// number of SMs.
    pub memory_us: f64,
    /// The time that the host needs to submit one iteration, in microseconds.
    pub host_us: f64,
    /// The job's weight when the model distributes shared SMs. Each job gets shared SMs in proportion to its weight.
    pub weight: f64,
    /// The minimum number of SMs that the job needs.
    pub least_sms: u32,
    /// True if the times of iterations are random and have an exponential distribution.
    pub exponential: bool,
    /// The times at which iterations are due. Set this field to the result of
    /// [`Profile::arrival_for`](crate::Profile::arrival_for) for the job's profile.
    pub arrival: Arrival,
}

impl Default for ModelJob {
    fn default() -> ModelJob {
        ModelJob {
            blocks: 132,
            block_us: 100.0,
            memory_us: 0.0,
            host_us: 3.0,
            weight: 1.0,
            least_sms: 1,
            exponential: false,
            arrival: Arrival::closed(2),
        }
    }
}

impl ModelJob {
    /// Returns the time of an iteration on `sms` SMs with the fraction `bandwidth` of the memory bandwidth, in
    /// microseconds.
    fn time(&self, sms: f64, bandwidth: f64) -> f64 {
        let blocks = f64::from(self.blocks);
        // Waves are whole on a whole number of SMs. In between, the number of waves is interpolated, because shared SMs
        // are available only part of the time.
        let (below, above) = (sms.floor().max(1.0), sms.ceil().max(1.0));
        let waves = |sms: f64| (blocks / sms).ceil();
        let waves = waves(below) + (waves(above) - waves(below)) * (sms.max(1.0) - below);
        let compute = waves * self.block_us;
        let memory = self.memory_us / bandwidth.max(1e-9);
        // Computing and memory access overlap only in part.
        compute.max(memory) + 0.1 * compute.min(memory)
    }

    /// Returns the fraction of an iteration's time that is spent on memory accesses.
    fn memory_share(&self, sms: f64) -> f64 {
        let compute = (f64::from(self.blocks) / sms.max(1.0)).ceil() * self.block_us;
        self.memory_us / (self.memory_us + compute)
    }
}

/// A model of jobs on a device. The model measures in simulated time.
#[derive(Clone, Debug)]
pub struct Model {
    pieces: UnitSizes,
    jobs: Vec<ModelJob>,
    /// The standard deviation of the logarithm of the iterations' times.
    jitter: f64,
    rng: Rng,
    now: Duration,
    /// The fraction by which iterations become slower per hour.
    drift: f64,
}

/// The strength of the random advantage that a job gets each time plain streams or streams with priorities settle into
/// a new order.
const CHAOS: f64 = 0.25;
/// The time after which plain streams and streams with priorities settle into a new order.
const KEPT: Duration = Duration::from_millis(20);
/// The fraction by which shared SMs do more work if one job always waits for memory and another job never does.
const GAIN: f64 = 0.45;
/// The maximum number of latencies that a measurement block generates. More latencies would take time and add no
/// information.
const MOST_LATENCIES: usize = 200;
/// The factor by which the weight of a job is multiplied for each level that its priority is below the highest
/// priority.
const LEFT_OVER: f64 = 0.12;

impl Model {
    /// Creates a model of jobs on a device with the SMs and units that `pieces` describes. Models with the same seed
    /// give the same times.
    #[must_use]
    pub fn new(pieces: UnitSizes, jobs: Vec<ModelJob>, seed: u64) -> Model {
        let rng = Rng::with_seed(seed);
        Model { pieces, jobs, jitter: 0.01, rng, now: Duration::ZERO, drift: 0.0 }
    }

    /// Sets the noise, which is the standard deviation of the logarithm of the iterations' times. The default is 0.01.
    #[must_use]
    pub fn with_jitter(mut self, jitter: f64) -> Model {
        self.jitter = jitter;
        self
    }

    /// Sets the drift, which is the fraction by which iterations become slower per hour. The default is 0.
    #[must_use]
    pub fn with_drift(mut self, drift: f64) -> Model {
        self.drift = drift;
        self
    }

    /// Returns the time of one iteration of each job in an arm, without noise, in microseconds.
    #[must_use]
    pub fn times(&self, arm: &Arm) -> Vec<f64> {
        self.times_with(arm, &vec![1.0; self.jobs.len()])
    }

    /// Returns the time of one iteration of a job that runs alone on `sms` SMs, without noise, in microseconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_tune::{Model, ModelJob, UnitSizes};
    ///
    /// let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
    /// // By default, an iteration has 132 blocks of 100 µs: one wave on 132 SMs, two waves on 68.
    /// let model = Model::new(pieces, vec![ModelJob::default()], 1);
    /// assert_eq!([132, 68].map(|sms| model.time_alone(0, sms)), [100.0, 200.0]);
    /// ```
    ///
    /// # Panics
    ///
    /// If the model has no job with this index.
    #[must_use]
    pub fn time_alone(&self, job: usize, sms: u32) -> f64 {
        self.jobs[job].time(f64::from(sms), 1.0).max(self.jobs[job].host_us)
    }

    /// Returns the iterations' times if the weight of each job is multiplied by the job's factor in `favour`.
    fn times_with(&self, arm: &Arm, favour: &[f64]) -> Vec<f64> {
        let all = f64::from(self.pieces.sms);
        if arm.kind() == ArmKind::Sequential {
            let each = (0..self.jobs.len()).map(|job| self.time_alone(job, self.pieces.sms));
            let sum = each.sum();
            return vec![sum; self.jobs.len()];
        }
        let floors: f64 = arm.parts().iter().map(|part| f64::from(part.floor)).sum();
        let pool = (all - floors).max(0.0);
        let wants: Vec<f64> =
            (0..self.jobs.len()).map(|job| self.want(arm, job) * favour[job]).collect();
        let sms = shared_out(arm.parts(), pool, &wants);
        // Jobs with different needs complement each other, so shared SMs do more work.
        let memory: Vec<f64> =
            self.jobs.iter().zip(&sms).map(|(job, sms)| job.memory_share(*sms)).collect();
        let spread =
            memory.iter().copied().fold(0.0, f64::max) - memory.iter().copied().fold(1.0, f64::min);
        let sms: Vec<f64> = sms
            .iter()
            .zip(arm.parts())
            .map(|(sms, part)| {
                let floor = f64::from(part.floor);
                floor + (sms - floor) * (1.0 + GAIN * spread)
            })
            .collect();
        // The jobs together cannot exceed the memory bandwidth.
        let time = |bandwidth: f64| -> Vec<f64> {
            self.jobs.iter().zip(&sms).map(|(job, sms)| job.time(*sms, bandwidth)).collect()
        };
        let demand = |times: &[f64]| -> f64 {
            self.jobs.iter().zip(times).map(|(job, time)| job.memory_us / time).sum()
        };
        let alone = time(1.0);
        let times = if demand(&alone) <= 1.0 { alone } else { time(1.0 / demand(&alone)) };
        times.iter().zip(&self.jobs).map(|(time, job)| time.max(job.host_us)).collect()
    }

    /// Returns the weight of a job when shared SMs are distributed in an arm.
    fn want(&self, arm: &Arm, job: usize) -> f64 {
        let highest = arm.priorities().iter().copied().min().unwrap_or(0);
        let later = arm.priorities()[job].saturating_sub(highest);
        self.jobs[job].weight * LEFT_OVER.powi(later.max(0))
    }

    fn scatter(&mut self) -> f64 {
        // Approximately normal with variance 1 after the factor 2.
        let sum = self.rng.f64() + self.rng.f64() + self.rng.f64() - 1.5;
        (2.0 * self.jitter * sum).exp()
    }

    /// Runs jobs for a measurement block. For each order of the streams, `orders` contains the time of one iteration of
    /// each job.
    fn run_jobs(&mut self, jobs: &[usize], orders: &[Vec<f64>], block: &Block) -> Sample {
        let slower = 1.0 + self.drift * self.now.as_secs_f64() / 3600.0;
        let greatest = |times: &Vec<f64>| times.iter().copied().fold(0.0, f64::max);
        let slowest: Vec<f64> = orders.iter().map(greatest).collect();
        let longest = greatest(&slowest);
        let length_us =
            (longest * f64::from(block.iterations)).max(1e6 * block.duration.as_secs_f64());
        self.now += block.lead_in + Duration::from_secs_f64(length_us * 1e-6);
        let mut sample = Sample::default();
        if block.rounds {
            let rounds = ((length_us / longest) as usize).clamp(slowest.len(), MOST_LATENCIES);
            let order = |round: usize| slowest[round * slowest.len() / rounds];
            sample.rounds_us =
                (0..rounds).map(|round| order(round) * slower * self.scatter()).collect();
        }
        for (place, job) in jobs.iter().enumerate() {
            let scatter = slower * self.scatter();
            let means: Vec<f64> = orders.iter().map(|times| times[place] * scatter).collect();
            sample.jobs.push(self.run_job(*job, &means, length_us, block));
        }
        sample
    }

    fn run_job(&mut self, job: usize, means: &[f64], length: f64, block: &Block) -> JobSample {
        let (host_us, arrival) = (self.jobs[job].host_us, self.jobs[job].arrival.clone());
        let at = |part: f64| means[((part * means.len() as f64) as usize).min(means.len() - 1)];
        let moments = arrival.moments(block.start).filter(|_| block.saturated != Some(job));
        let Some(moments) = moments else {
            let rate = means.iter().map(|mean| 1e6 / mean).sum::<f64>() / means.len() as f64;
            let count = if arrival.depth() == Some(1) { 1e-6 * length * rate } else { 0.0 };
            let count = (count as usize).min(MOST_LATENCIES);
            let part = |place: usize| place as f64 / count as f64;
            let latencies_us = (0..count).map(|place| self.time(job, at(part(place)))).collect();
            return JobSample { rate, latencies_us, host_us };
        };
        let (mut free, mut latencies_us, mut done) = (0.0_f64, Vec::new(), 0.0);
        let counts_from = block.lead_in.as_secs_f64() * 1e6;
        let end = counts_from + length;
        for due in moments.map(|moment| 1e6 * moment).take_while(|due| *due < end) {
            let begins = free.max(due);
            free = begins + self.time(job, at(begins / end));
            if due >= counts_from {
                latencies_us.push(free - due);
            }
            done += f64::from(u8::from((counts_from..end).contains(&free)));
        }
        JobSample { rate: 1e6 * done / length.max(1e-3), latencies_us, host_us }
    }

    /// Returns a random time of one iteration, with this mean.
    fn time(&mut self, job: usize, mean: f64) -> f64 {
        match self.jobs[job].exponential {
            // The argument of the logarithm is never 0.
            true => -mean * (1.0 - self.rng.f64()).ln() + 1e-9,
            false => mean * self.scatter(),
        }
    }
}

/// Distributes SMs to the jobs. Each job gets its floor, and a part of `pool` in proportion to its entry in `wants`. No
/// job gets more than its ceiling.
fn shared_out(parts: &[Part], pool: f64, wants: &[f64]) -> Vec<f64> {
    let mut sms: Vec<f64> = parts.iter().map(|part| f64::from(part.floor)).collect();
    let mut left = pool;
    // What a job cannot take because of its ceiling goes to the others in the next pass.
    for _ in parts {
        let room = |job: usize, sms: &[f64]| f64::from(parts[job].ceiling) - sms[job];
        let open: Vec<usize> = (0..parts.len()).filter(|job| room(*job, &sms) > 1e-9).collect();
        let sum: f64 = open.iter().map(|job| wants[*job]).sum();
        if left <= 1e-9 || sum <= 0.0 {
            break;
        }
        let mut given = 0.0;
        for job in open {
            let more = (left * wants[job] / sum).min(room(job, &sms));
            sms[job] += more;
            given += more;
        }
        left -= given;
    }
    sms
}

impl Measure for Model {
    type Error = Infallible;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Infallible>> {
        let too_few = |job: usize, sms: u32| {
            (sms < self.jobs[job].least_sms).then(|| {
                Refusal::Skip(format!("it needs {} SMs and has {sms}", self.jobs[job].least_sms))
            })
        };
        match task {
            &Task::Alone { job, sms } => {
                let sms = sms.unwrap_or(self.pieces.sms);
                if let Some(refusal) = too_few(job, sms) {
                    return Err(refusal);
                }
                let time = self.time_alone(job, sms);
                Ok(self.run_jobs(&[job], &[vec![time]], block))
            }
            Task::Together(arm) => {
                let mut refused =
                    (0..self.jobs.len()).map(|job| too_few(job, arm.parts()[job].ceiling));
                if let Some(refusal) = refused.find_map(|refusal| refusal) {
                    return Err(refusal);
                }
                let (chaos, orders) = match arm.kind() {
                    ArmKind::Partition => (0.0, 1),
                    _ => (CHAOS, block.duration.div_duration_f64(KEPT).ceil().max(1.0) as usize),
                };
                let jobs: Vec<usize> = (0..self.jobs.len()).collect();
                let mut favour = || (chaos * (2.0 * self.rng.f64() - 1.0)).exp();
                let favours: Vec<Vec<f64>> =
                    (0..orders).map(|_| jobs.iter().map(|_| favour()).collect()).collect();
                let orders: Vec<Vec<f64>> =
                    favours.iter().map(|favour| self.times_with(arm, favour)).collect();
                Ok(self.run_jobs(&jobs, &orders, block))
            }
        }
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn stand_in(&self) -> Option<String> {
        Some("a model of the jobs".to_owned())
    }
}

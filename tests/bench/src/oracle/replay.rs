//! The search on landscapes that were recorded on a GPU, without one.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use green_ctx::tune::{
    self, Arm, Block, JobSample, Measure, Profile, Refusal, Request, Sample, Scorer, Task, Value,
};

use super::file::{ArmRecord, ArmShape, BlockRecord, Combination, MixFile};
use super::judge::SLACK;
use super::stats::median;

/// Runs jobs as they ran in a file: each arm as the nearest one of the grid.
struct Replay<'f> {
    file: &'f MixFile,
    rng: Rng,
    now: Duration,
}

/// How much blocks scatter beside what was recorded.
const SCATTER: f64 = 0.005;

impl Replay<'_> {
    /// The arm of the grid that is nearest to an arm.
    fn record(&self, arm: &Arm) -> Option<&ArmRecord> {
        let shape = ArmShape::of(arm);
        let distance = |record: &&ArmRecord| -> u32 {
            let sides = record.arm.parts.iter().zip(&shape.parts);
            let apart: u32 = sides
                .map(|(there, here)| 3 * there[1].abs_diff(here[1]) + there[0].abs_diff(here[0]))
                .sum();
            apart + 1000 * u32::from(record.arm.priorities != shape.priorities)
        };
        let alike =
            |record: &&ArmRecord| record.arm.kind == shape.kind && !record.blocks.is_empty();
        self.file.arms.iter().filter(alike).min_by_key(distance)
    }

    /// What a job does with so many SMs to itself: the most that it does in any arm with that ceiling.
    fn alone(&self, job: usize, sms: u32) -> f64 {
        let of = |record: &ArmRecord| record.arm.parts[job][1];
        let nearest = self.file.arms.iter().map(of).min_by_key(|ceiling| ceiling.abs_diff(sms));
        let at = self.file.arms.iter().filter(|record| Some(of(record)) == nearest);
        let rates = at.flat_map(|record| &record.blocks).map(|block| block.rates[job]);
        rates.fold(0.0, f64::max).min(self.file.jobs[job].rate)
    }

    fn scatter(&mut self) -> f64 {
        1.0 + SCATTER * (2.0 * self.rng.f64() - 1.0)
    }

    /// A job's iterations in a block.
    fn job(&mut self, rate: f64, percentiles: [f64; 2], duration: Duration) -> JobSample {
        let (rate, scatter) = (rate * self.scatter(), self.scatter());
        let count = ((duration.as_secs_f64() * rate) as usize).max(1);
        let latency = |rng: &mut Rng| {
            let [p50, p99] = percentiles;
            scatter * if rng.u32(..100) < 2 { p99 } else { p50 * (0.99 + 0.02 * rng.f64()) }
        };
        let latencies_us = (0..count).map(|_| latency(&mut self.rng)).collect();
        JobSample { rate, latencies_us, host_us: 1.0 }
    }

    /// Lets a block's time pass. Returns how long it is.
    fn take(&mut self, duration: Duration, iterations: u32, slowest: f64) -> Duration {
        let duration = duration.max(Duration::from_secs_f64(f64::from(iterations) / slowest));
        self.now += duration + Duration::from_micros(300);
        duration
    }
}

impl Measure for Replay<'_> {
    type Error = Infallible;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Infallible>> {
        match task {
            Task::Alone { job, sms } => {
                let rate = sms.map_or(self.file.jobs[*job].rate, |sms| self.alone(*job, sms));
                let duration = self.take(block.duration, block.iterations, rate);
                let time = 1e6 / rate;
                let p99 = self.file.jobs[*job].p99_us.max(time);
                Ok(Sample {
                    jobs: vec![self.job(rate, [time, p99], duration)],
                    rounds_us: Vec::new(),
                })
            }
            Task::Together(arm) => {
                let Some(record) = self.record(arm).cloned() else {
                    return Err(Refusal::Skip("it was not recorded".to_owned()));
                };
                let recorded = if block.rounds { &record.rounds } else { &record.blocks };
                let BlockRecord { rates, p50_us, p99_us, rounds_us, .. } =
                    recorded[self.rng.usize(..recorded.len())].clone();
                let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
                let duration = self.take(block.duration, block.iterations, slowest);
                if let Some((round, _)) = rounds_us {
                    let count = ((duration.as_secs_f64() * 1e6 / round) as usize).max(1);
                    let rounds_us = (0..count).map(|_| round * self.scatter()).collect();
                    let rates =
                        vec![JobSample { rate: rates[0], ..JobSample::default() }; rates.len()];
                    return Ok(Sample { jobs: rates, rounds_us });
                }
                let jobs = rates.iter().zip(p50_us).zip(p99_us).map(|((rate, p50), p99)| {
                    let p50 = p50.unwrap_or(1e6 / rate);
                    self.job(*rate, [p50, p99.unwrap_or(p50)], duration)
                });
                Ok(Sample { jobs: jobs.collect(), rounds_us: Vec::new() })
            }
        }
    }

    fn now(&self) -> Duration {
        self.now
    }
}

/// What an arm is worth, of all that was recorded of it.
fn worth(file: &MixFile, scorer: &Scorer, record: &ArmRecord) -> Option<Value> {
    let recorded = if scorer.wants_rounds() { &record.rounds } else { &record.blocks };
    let middle = |values: Vec<f64>| median(&values);
    let jobs = (0..file.jobs.len()).map(|job| {
        let rates = recorded.iter().map(|block| block.rates[job]).collect();
        let p99 = recorded.iter().filter_map(|block| *block.p99_us.get(job)?).collect();
        let latencies_us = middle(p99).into_iter().collect();
        Some(JobSample { rate: middle(rates)?, latencies_us, host_us: 1.0 })
    });
    let jobs = jobs.collect::<Option<Vec<_>>>()?;
    let rounds = recorded.iter().filter_map(|block| Some(block.rounds_us?.0)).collect();
    let rounds_us = middle(rounds).into_iter().collect();
    scorer.value(&[Sample { jobs, rounds_us }])
}

/// How much worse the tuner's choice is than the best arm of the grid; infinite where it misses the bound
/// that this one meets.
fn regret(file: &MixFile, combination: &Combination) -> f64 {
    let names = file.names();
    let profiles: Vec<Profile> = names.iter().map(|name| Profile::new(*name)).collect();
    let alone = file.jobs.iter().map(|job| job.rate).collect();
    let scorer = Scorer::new(&combination.goal, &names, alone).expect("a goal");
    let mut replay = Replay { file, rng: Rng::with_seed(1), now: Duration::ZERO };
    let request = Request::new(combination.goal.clone());
    let outcome = tune::with(&mut replay, &profiles, &file.pieces, &request, &mut |_| true);
    let chosen = outcome.expect("it runs").chosen().expect("an arm");
    let worth = |record: &ArmRecord| worth(file, &scorer, record);
    let better = |best: Value, other: Value| if other.is_better_than(best) { other } else { best };
    let best = file.arms.iter().filter_map(worth).reduce(better).expect("there are arms");
    let choice = replay.record(&chosen).and_then(worth).expect("it was recorded");
    if choice.miss > SLACK && best.meets() {
        return f64::INFINITY;
    }
    1.0 - choice.score / best.score
}

#[test]
fn on_recorded_landscapes_choices_are_close_to_the_best() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/oracle");
    let files = super::file::read_all(&[folder]).expect("files");
    let pairs = files.iter().filter(|file| file.jobs.len() == 2);
    let mut regrets: Vec<(f64, String)> = pairs
        .flat_map(|file| file.combinations.iter().map(move |combination| (file, combination)))
        .map(|(file, combination)| {
            let name = format!("{} {}", file.mix, combination.goal);
            (regret(file, combination), name)
        })
        .collect();
    regrets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let middle = regrets[regrets.len() / 2].0;
    assert!(middle < 0.01, "{regrets:#?}");
    // What is best of a grid that was measured twice is so by chance too.
    let above = |limit: f64| regrets.iter().filter(|(regret, _)| *regret > limit).count();
    assert!(above(0.06) <= 2 && above(0.12) == 0, "{regrets:#?}");
}

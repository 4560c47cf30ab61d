//! The search, which finds a candidate, and the final comparison, on which all claims are based.
//!
//! Jobs run in measurement blocks, periods in which one arm runs.
//!
//! 1. Each job alone: its capacity, its rate in a plain stream, and its rate on several numbers of SMs.
//! 2. Short blocks: arms without partitions, partitions that differ widely, and then the best arms and their neighbours
//!    in ever smaller steps. The order is reversed each time, so that a slowing device does not favour an arm.
//! 3. Long blocks: each job alone, the best arms without partitions, and the best partitions in turns. Each turn halves
//!    the number of partitions.
//! 4. The final comparison ([`finals`]) of the best partition with the best arms without partitions.

mod alone;
mod curve;
mod finals;
mod report;
mod verdict;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use self::alone::Alone;
use crate::arm::{Arm, ArmKind};
use crate::arrival::Arrival;
use crate::goal::Goal;
use crate::measure::{Block, Measure, Refusal, Sample, Task};
use crate::outcome::{Outcome, Stage};
use crate::request::{Known, Limits, TuneError};
use crate::score::{Average, Scorer, Value, best_first};
use crate::space::Space;

/// The jobs, the goal and the limits of one search.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) jobs: Vec<Known>,
    pub(crate) goal: Goal,
    pub(crate) limits: Limits,
    pub(crate) space: Space,
    pub(crate) budget: Duration,
}

impl Question {
    fn names(&self) -> Vec<&str> {
        self.jobs.iter().map(|job| job.name.as_str()).collect()
    }
}

/// The progress of tuning.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The current step.
    pub step: &'a str,
    /// The fraction of the budget spent so far, from 0 to 1.
    pub spent: f64,
    /// The rest of the budget.
    pub left: Duration,
    /// The number of measurement blocks so far.
    pub blocks: usize,
    /// The best arm so far, if any was measured.
    pub best: Option<String>,
}

/// The result of one measurement block.
enum Ran {
    Sample(Sample),
    /// The task cannot run.
    Skipped(String),
    /// Tuning must end.
    Interrupted,
}

/// The measurements of one arm.
#[derive(Debug)]
struct Record {
    arm: Arm,
    /// The blocks of each stage.
    samples: BTreeMap<Stage, Vec<Sample>>,
    /// The maximum iterations per second of each job in this arm. Measured for jobs that arrive at given times.
    capacities: Vec<Option<f64>>,
    /// Whether the capacity of the goal's job is from a long block.
    is_confirmed: bool,
    /// The value by the most reliable blocks; `None` if there are none.
    value: Option<Value>,
    /// The reason why the arm cannot run.
    skipped: Option<String>,
}

/// Fractions of the budget at which steps end.
const ROUNDS_END: f64 = 0.21;
const CHOICE_ENDS: f64 = 0.50;
/// The minimum length of a block.
const SHORTEST: Duration = Duration::from_millis(8);
/// The minimum length of a block that the candidate is chosen by, that claims are based on, or that measures a job alone
/// for comparison. On an H200 (driver 580.159.04), such blocks favour arms by 0.7 to 1.7 % (root mean square, three pairs
/// of jobs), and blocks of 21 ms by 2.5 to 6.4 %.
const SUSTAINED: Duration = Duration::from_millis(250);
/// The time before such a block counts. Until then, the clocks still follow the previous load.
const LEAD_IN: Duration = Duration::from_millis(100);
/// The maximum time that a queue gets to fill before such a block counts, as a fraction of the budget.
const MOST_LEAD_IN: f64 = 0.05;
/// The same in a block of the search. A single arm that barely keeps up must not use up the budget.
const MOST_FILLING: f64 = 0.01;
/// The number of partitions measured because the jobs' rates alone predict them to be good.
const PREDICTED: usize = 10;
/// The number of neighbours of an arm that are measured per round.
const NEAR: usize = 8;
/// How far a partition may miss the bound for its neighbours to be tried, as a fraction of the bound. They may meet it
/// and be better than the best.
const NEAR_MISS: f64 = 0.25;
/// The fraction of its capacity above which a job's latencies are sensitive to small changes of its rate.
const HIGH_LOAD: f64 = 0.8;
/// How far an arm misses the bound if the queue of the goal's job grows without limit, at a load of 1: further than any
/// arm in which the job keeps up.
const OVERLOADED: f64 = 1e9;
/// The number of partitions in the first turn of long blocks.
const FINALISTS: usize = 8;

struct Search<'a, M: Measure> {
    measure: &'a mut M,
    question: &'a Question,
    go_on: &'a mut dyn FnMut(&Progress<'_>) -> bool,
    began: Duration,
    /// The length of a short block.
    block: Duration,
    scorer: Scorer,
    alone: Vec<Alone>,
    records: Vec<Record>,
    places: HashMap<Arm, usize>,
    /// The indices of the partitions in the last turn of long blocks.
    finalists: Vec<usize>,
    blocks: usize,
    /// Blocks of the same round start at the same time within the jobs' arrivals. Each round uses a different time.
    round: u32,
    /// The current step.
    step: &'static str,
    interrupted: bool,
    notes: Vec<String>,
}

type Found<T, M> = Result<T, TuneError<<M as Measure>::Error>>;

/// Tunes. Calls `go_on` before each block and ends if it returns false.
pub(crate) fn search<M: Measure>(
    measure: &mut M,
    question: &Question,
    go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
) -> Found<Outcome, M> {
    let began = measure.now();
    let jobs = question.jobs.len();
    let mut search = Search {
        measure,
        question,
        go_on,
        began,
        block: SHORTEST,
        scorer: Scorer::of(&question.goal, &question.names(), vec![1.0; jobs]),
        alone: vec![Alone::default(); jobs],
        records: Vec::new(),
        places: HashMap::new(),
        finalists: Vec::new(),
        blocks: 0,
        round: 0,
        step: "each job alone",
        interrupted: false,
        notes: Vec::new(),
    };
    search.jobs_alone()?;
    search.first_look()?;
    search.rounds()?;
    search.choose()?;
    let claim = search.last_comparison()?;
    search.outcome(claim).map_err(TuneError::Request)
}

impl<M: Measure> Search<'_, M> {
    /// Returns the fraction of the budget spent so far.
    fn spent(&self) -> f64 {
        self.part(self.measure.now() - self.began)
    }

    /// Returns whether something of this length can be done before the fraction `until` of the budget is spent. Returns
    /// false after an interruption.
    fn has_time_for(&mut self, length: Duration, until: f64, step: &'static str) -> bool {
        self.step = step;
        !self.interrupted && self.spent() + self.part(length) < until
    }

    /// Returns a time as a fraction of the budget.
    fn part(&self, length: Duration) -> f64 {
        length.div_duration_f64(self.question.budget)
    }

    /// Returns whether there is time for another short block.
    fn has_time(&mut self, until: f64, step: &'static str) -> bool {
        // Assume that it takes as long as the average so far.
        let past = self.measure.now() - self.began;
        let block = past / u32::try_from(self.blocks.max(1)).unwrap_or(u32::MAX);
        self.has_time_for(block.min(2 * self.block), until, step)
    }

    /// Returns the time within their arrivals at which jobs start in this round. Multiples of the golden ratio spread
    /// the rounds evenly and never repeat.
    fn start(&self) -> Duration {
        let periods = self.question.jobs.iter().map(|job| job.arrival.period());
        let part = (f64::from(self.round) * 0.618_034).fract();
        periods.max().unwrap_or_default().mul_f64(part)
    }

    fn describe(&self, place: usize) -> String {
        self.records[place].arm.describe(&self.question.names(), self.question.space.pieces.sms)
    }

    /// Runs a task for one block, unless tuning is interrupted.
    fn run(&mut self, task: &Task, block: &Block) -> Found<Ran, M> {
        let spent = self.spent().min(1.0);
        let best = self.best(|arm| self.question.space.holds_floors(arm));
        let best = best.map(|place| self.describe(place));
        let left = self.question.budget.mul_f64(1.0 - spent);
        let progress = Progress { step: self.step, spent, left, blocks: self.blocks, best };
        // After an interruption `go_on` is not called again.
        self.interrupted = self.interrupted || !(self.go_on)(&progress);
        if self.interrupted {
            return Ok(Ran::Interrupted);
        }
        self.blocks += 1;
        let jobs = match task {
            Task::Alone { .. } => 1,
            Task::Together(_) => self.question.jobs.len(),
        };
        match self.measure.run(task, block) {
            Ok(sample) if sample.is_sound(jobs) => Ok(Ran::Sample(sample)),
            Ok(_) => Ok(Ran::Skipped("a measured rate or time is not a valid number".to_owned())),
            Err(Refusal::Skip(reason)) => Ok(Ran::Skipped(reason)),
            Err(Refusal::Stop(error)) => Err(TuneError::Failed(error)),
        }
    }

    /// Returns the settings of a block at this round's start within the arrivals.
    fn block(&self, first: usize, lead_in: Duration, duration: Duration) -> Block {
        let rounds = self.scorer.wants_rounds();
        let start = self.start();
        Block { lead_in, duration, iterations: 2, rounds, first, start, ..Block::default() }
    }

    /// Returns the time that an arm's queues need to fill.
    fn filling(&self, record: &Record) -> Duration {
        let jobs = self.question.jobs.iter().zip(&record.capacities);
        let times = jobs.filter_map(|(job, capacity)| filling_time(&job.arrival, (*capacity)?));
        times.max().unwrap_or_default()
    }

    /// Returns how long an arm runs in a block of a stage: the lead-in, which does not count, and the measured time.
    fn times(&self, place: usize, stage: Stage) -> (Duration, Duration) {
        let most = if stage == Stage::Search { MOST_FILLING } else { MOST_LEAD_IN };
        let filling = self.filling(&self.records[place]).min(self.question.budget.mul_f64(most));
        match stage {
            Stage::Search => (filling, self.block.max(filling)),
            Stage::Choice => (filling.max(LEAD_IN), self.sustained()),
            Stage::Final => (filling.max(LEAD_IN), self.final_block()),
        }
    }

    /// Runs an arm for one block. Returns whether it ran.
    fn measure(&mut self, arm: &Arm, first: usize, stage: Stage) -> Found<bool, M> {
        let place = self.place(arm);
        self.measure_capacities(place)?;
        if self.records[place].skipped.is_some() {
            return Ok(false);
        }
        let (lead_in, duration) = self.times(place, stage);
        let as_applied = !matches!(stage, Stage::Search);
        let block = Block { as_applied, ..self.block(first, lead_in, duration) };
        let ran = self.run(&Task::Together(arm.clone()), &block)?;
        let record = &mut self.records[place];
        match ran {
            Ran::Sample(sample) => record.samples.entry(stage).or_default().push(sample),
            // An arm that fails once could also fail in the user's program.
            Ran::Skipped(reason) => record.skipped = Some(reason),
            Ran::Interrupted => {}
        }
        self.records[place].value = self.valued(place);
        Ok(!self.interrupted && self.records[place].skipped.is_none())
    }

    /// Returns the index of an arm in the records, and adds it if it is new.
    fn place(&mut self, arm: &Arm) -> usize {
        *self.places.entry(arm.clone()).or_insert_with(|| {
            self.records.push(Record {
                arm: arm.clone(),
                samples: BTreeMap::new(),
                capacities: vec![None; self.question.jobs.len()],
                is_confirmed: false,
                value: None,
                skipped: None,
            });
            self.records.len() - 1
        })
    }

    /// Measures the capacity of each job that arrives at given times, once per arm.
    fn measure_capacities(&mut self, place: usize) -> Found<(), M> {
        for job in 0..self.question.jobs.len() {
            let record = &self.records[place];
            let is_known = record.capacities[job].is_some() || record.skipped.is_some();
            if self.question.jobs[job].arrival.hz().is_none() || is_known {
                continue;
            }
            let block = self.block(job, Duration::ZERO, self.block);
            self.measure_capacity(place, job, block)?;
            if self.interrupted {
                break;
            }
        }
        Ok(())
    }

    /// Measures the capacity of a job in an arm, in a block in which the job runs as fast as it can.
    fn measure_capacity(&mut self, place: usize, job: usize, block: Block) -> Found<(), M> {
        let task = Task::Together(self.records[place].arm.clone());
        let block = Block { rounds: false, saturated: Some(job), iterations: 4, ..block };
        match self.run(&task, &block)? {
            Ran::Sample(sample) => {
                self.records[place].capacities[job] = Some(sample.jobs[job].rate);
            }
            Ran::Skipped(reason) => self.records[place].skipped = Some(reason),
            Ran::Interrupted => {}
        }
        Ok(())
    }

    /// Measures arms for one short block each while there is time.
    fn measure_all(&mut self, arms: &[Arm], until: f64, step: &'static str) -> Found<(), M> {
        for arm in arms {
            if !self.can_afford(arm) {
                continue;
            }
            if !self.has_time(until, step) {
                break;
            }
            let first = self.blocks % self.question.jobs.len();
            self.measure(arm, first, Stage::Search)?;
        }
        Ok(())
    }

    /// Returns whether a block of an arm leaves time for others.
    fn can_afford(&self, arm: &Arm) -> bool {
        let mut parts = arm.parts().iter().enumerate();
        parts.all(|(job, part)| self.is_affordable(job, part.ceiling))
    }

    fn first_look(&mut self) -> Found<(), M> {
        // One arm is measured in any case, so that there is a result.
        let unpartitioned = self.question.space.unpartitioned();
        for arm in unpartitioned.iter().take(1) {
            self.measure(arm, 0, Stage::Search)?;
        }
        self.measure_all(&unpartitioned, ROUNDS_END, "without partitions")?;
        let mut initial = self.most_promising(self.question.space.coarse(), PREDICTED);
        let space = &self.question.space;
        let first = self.scorer.percentile().map(|(job, _)| job);
        for arm in space.initial() {
            // When many SMs are shared, the priority decides which job gets them.
            let mut arms = match arm.shares_many(space.pieces.sms) {
                true => space.with_priorities(&arm),
                false => Vec::new(),
            };
            if let Some(first) = first {
                arms = arms.drain(..).skip(first).take(1).collect();
            }
            arms.insert(0, arm);
            arms.retain(|arm| !initial.contains(arm));
            initial.extend(arms);
        }
        // One partition is measured in any case too, however busy the machine is.
        if let Some(arm) = initial.iter().find(|arm| self.can_afford(arm)) {
            self.measure(arm, 0, Stage::Search)?;
        }
        self.measure_all(&initial, ROUNDS_END, "partitions that differ widely")
    }

    /// Returns the `count` arms with the best predictions. If rates are unknown, returns the first ones.
    fn most_promising(&self, arms: Vec<Arm>, count: usize) -> Vec<Arm> {
        let sms = self.question.space.pieces.sms;
        let curves: Vec<&curve::Curve> = self.alone.iter().map(|alone| &alone.curve).collect();
        let predict = |arm: &Arm| {
            let sample = curve::predict(arm, &curves, sms)?;
            self.scorer.value(&[&sample], Average::Median)
        };
        let unknown = Value { excess: f64::INFINITY, score: 0.0 };
        let values: Vec<Value> = arms.iter().map(|arm| predict(arm).unwrap_or(unknown)).collect();
        let mut best = best_first(arms.into_iter().zip(values));
        best.truncate(count);
        best
    }

    fn rounds(&mut self) -> Found<(), M> {
        let space = &self.question.space;
        let least = space.step.max(space.pieces.unit);
        let mut step = (space.pieces.sms / 8).max(least);
        for (round, keep) in [8, 6, 5, 4, 4, 3].into_iter().cycle().enumerate() {
            if !self.has_time(ROUNDS_END, "the best arms and their neighbours") {
                break;
            }
            self.round += 1;
            self.reference()?;
            let best = self.ranked(is_partition);
            let mut arms: Vec<Arm> =
                best.iter().take(keep).map(|place| self.records[*place].arm.clone()).collect();
            // Streams and priorities have neighbours too: they are like partitions in which every job may use all SMs.
            let seeds = self.ranked(|arm| arm.kind() != ArmKind::Sequential);
            let near_misses = self.near_misses();
            for place in seeds.iter().take(3).chain(&near_misses) {
                let arm = &self.records[*place].arm;
                let near = space.neighbours(arm, step);
                let ordered = match is_partition(arm) && !arm.has_priorities() {
                    true => space.with_priorities(arm),
                    false => Vec::new(),
                };
                let is_new = |arm: &Arm| !self.places.contains_key(arm) && !arms.contains(arm);
                let near = self.most_promising(near.into_iter().filter(is_new).collect(), NEAR);
                let ordered = ordered.into_iter().filter(is_new).collect::<Vec<_>>();
                arms.extend(near.into_iter().chain(ordered));
            }
            if arms.is_empty() {
                break;
            }
            if round % 2 == 1 {
                arms.reverse();
            }
            self.measure_all(&arms, ROUNDS_END, "the best arms and their neighbours")?;
            step = (step / 2).max(least);
        }
        // The drift is measured until the end.
        (0..self.question.jobs.len()).try_for_each(|_| self.reference())
    }

    /// Returns arms that narrowly miss the bound and would be better than the best arm that meets it.
    fn near_misses(&self) -> Vec<usize> {
        let mut arms = self.ranked(|arm| arm.kind() != ArmKind::Sequential);
        let best = arms.first().and_then(|place| self.value(*place));
        let Some(best) = best.filter(|best| best.meets()) else { return Vec::new() };
        arms.retain(|place| {
            self.value(*place).is_some_and(|value| {
                !value.meets() && value.excess < NEAR_MISS && value.score > best.score
            })
        });
        arms.truncate(3);
        arms
    }

    /// Returns an arm's value by its most reliable blocks.
    fn value(&self, place: usize) -> Option<Value> {
        self.records[place].value
    }

    /// Computes the value that [`value`](Search::value) returns.
    fn valued(&self, place: usize) -> Option<Value> {
        let record = &self.records[place];
        if record.skipped.is_some() {
            return None;
        }
        if let Some(excess) = self.overload(record) {
            return Some(Value { excess: OVERLOADED * excess, score: 0.0 });
        }
        record.samples.iter().rev().find_map(|(stage, samples)| {
            let average = if *stage == Stage::Search { Average::Median } else { Average::Mean };
            self.scorer.value(&samples.iter().collect::<Vec<_>>(), average)
        })
    }

    /// Recomputes the values of all arms.
    fn value_all(&mut self) {
        (0..self.records.len()).for_each(|place| self.records[place].value = self.valued(place));
    }

    /// Returns a job's arrival rate as a fraction of its capacity in an arm.
    fn load(&self, record: &Record, job: usize) -> Option<f64> {
        Some(self.question.jobs[job].arrival.hz()? / record.capacities[job]?.max(1e-9))
    }

    /// Returns the load of the goal's job in an arm, if its queue grows without limit.
    fn overload(&self, record: &Record) -> Option<f64> {
        self.load(record, self.scorer.percentile()?.0).filter(|load| *load >= 1.0)
    }

    /// Returns the measured arms that match, the best first. Partitions without the minimum floors are left out.
    fn ranked(&self, is_wanted: impl Fn(&Arm) -> bool) -> Vec<usize> {
        let may_be = |arm: &Arm| is_plain(arm) || self.question.space.holds_floors(arm);
        let ranked = self.records.iter().enumerate().filter_map(|(place, record)| {
            let is_ranked = is_wanted(&record.arm) && may_be(&record.arm);
            record.value.filter(|_| is_ranked).map(|value| (place, value))
        });
        best_first(ranked)
    }

    fn best(&self, is_wanted: impl Fn(&Arm) -> bool) -> Option<usize> {
        self.ranked(is_wanted).first().copied()
    }
}

fn is_partition(arm: &Arm) -> bool {
    arm.kind() == ArmKind::Partition
}

fn is_plain(arm: &Arm) -> bool {
    arm.kind() != ArmKind::Partition
}

/// Returns the time after which the length of a queue no longer depends on its initial state: four times the relaxation
/// time of a queue with random service times. In heavy traffic, that is proportional to the sum of the variances of
/// arrivals and service times, and so half as long for arrivals at equal intervals. `None` if the queue never settles.
pub(crate) fn filling_time(arrival: &Arrival, capacity: f64) -> Option<Duration> {
    let load = arrival.hz()? / capacity;
    let times = if matches!(arrival, Arrival::Rate { .. }) { 2.0 } else { 4.0 };
    let relaxations = times / (1.0 - load.sqrt()).powi(2);
    (load < 1.0).then(|| Duration::try_from_secs_f64(relaxations / capacity).ok()).flatten()
}

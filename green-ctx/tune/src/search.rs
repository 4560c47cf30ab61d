//! The search, which finds a candidate and claims nothing, and the final, which makes the claims.
//!
//! 1. Each job alone: its capacity, its rate in a plain stream, and its times on a few counts of SMs.
//! 2. Short blocks: arms without partitions, partitions that differ much, and then the best so far and their neighbours
//!    at ever smaller steps. The order turns round each time, so that a device that slows down makes no arm look worse.
//! 3. Long blocks: each job alone, and the best partitions in turn, in each turn half as many. The best of them is the
//!    candidate.
//! 4. The final ([`finals`]): the candidate and the best arms without partitions, in turn.

mod alone;
mod curve;
mod finals;
mod report;
mod verdict;

use std::collections::HashMap;
use std::time::Duration;

use self::alone::Alone;
use crate::arm::{Arm, ArmKind};
use crate::goal::Goal;
use crate::measure::{Block, Measure, Refusal, Sample, Task};
use crate::outcome::Outcome;
use crate::request::{Known, Limits, TuneError};
use crate::score::{Average, Scorer, Value};
use crate::space::Space;

/// What there is to find, and how long it may take.
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

/// How far tuning is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// What is being done.
    pub step: &'a str,
    /// The part of the budget that is spent, from 0 to 1.
    pub spent: f64,
    /// How many blocks were measured.
    pub blocks: usize,
    /// The best arm so far, where there is one.
    pub best: Option<String>,
}

/// What became of a block.
enum Ran {
    Sample(Sample),
    /// The task cannot run.
    Skipped(String),
    /// Tuning is to end.
    Interrupted,
}

/// What is known of an arm.
#[derive(Debug)]
struct Record {
    arm: Arm,
    /// Short blocks of the search.
    searched: Vec<Sample>,
    /// Long blocks in which the candidate was chosen.
    chosen: Vec<Sample>,
    /// Blocks of the final.
    claimed: Vec<Sample>,
    /// What each job could do here at most, in iterations a second: known of jobs that arrive by the clock.
    capacities: Vec<Option<f64>>,
    /// What the goal makes of the blocks that say most; `None` without any.
    value: Option<Value>,
    /// Why it cannot run.
    skipped: Option<String>,
}

/// Which of an arm's blocks a new one is among.
#[derive(Clone, Copy)]
enum Stage {
    Search,
    Choice,
    Final,
}

/// Parts of the budget at which steps end.
const ROUNDS_END: f64 = 0.22;
const CHOICE_ENDS: f64 = 0.50;
/// The shortest block.
const SHORTEST: Duration = Duration::from_millis(8);
/// The shortest block that a candidate is chosen by: a GPU's clocks follow a load more slowly than short blocks last.
const SUSTAINED: Duration = Duration::from_millis(250);
/// What runs before such a block counts: the clocks follow what ran before it for longer than a short block lasts.
const LEAD_IN: Duration = Duration::from_millis(100);
/// The longest that a queue is given to fill before a block counts.
const LONGEST_LEAD_IN: Duration = Duration::from_secs(2);
/// Partitions that are measured because of what the jobs' times alone predict.
const PREDICTED: usize = 10;
/// Neighbours of a partition that are measured in a round.
const NEAR: usize = 8;
/// By how much a partition misses the bound whose neighbours may meet it and be better than the best.
const NEAR_MISS: f64 = 0.25;
/// Partitions of which one is chosen.
const FINALISTS: usize = 8;

struct Search<'a, M: Measure> {
    measure: &'a mut M,
    question: &'a Question,
    go_on: &'a mut dyn FnMut(&Progress<'_>) -> bool,
    began: Duration,
    /// How long a short block is.
    block: Duration,
    scorer: Scorer,
    alone: Vec<Alone>,
    records: Vec<Record>,
    places: HashMap<Arm, usize>,
    blocks: usize,
    /// Blocks of one round begin at the same moment of arrivals, and those of the next one elsewhere.
    round: u32,
    /// What is being done.
    step: &'static str,
    interrupted: bool,
    notes: Vec<String>,
}

type Found<T, M> = Result<T, TuneError<<M as Measure>::Error>>;

/// Tunes, and calls `go_on` before each block, which ends it where it returns false.
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
    Ok(search.outcome(claim))
}

impl<M: Measure> Search<'_, M> {
    /// The part of the budget that is spent.
    fn spent(&self) -> f64 {
        (self.measure.now() - self.began).as_secs_f64() / self.question.budget.as_secs_f64()
    }

    /// Whether there is time until a part of the budget for something that takes so long, and nobody has interrupted.
    fn has_time_for(&mut self, length: Duration, until: f64, step: &'static str) -> bool {
        self.step = step;
        let part = length.as_secs_f64() / self.question.budget.as_secs_f64();
        !self.interrupted && self.spent() + part < until
    }

    /// Whether there is time for another short block.
    fn has_time(&mut self, until: f64, step: &'static str) -> bool {
        // It takes as long as those before it.
        let past = self.measure.now() - self.began;
        let block = past / u32::try_from(self.blocks.max(1)).unwrap_or(u32::MAX);
        self.has_time_for(block.min(2 * self.block), until, step)
    }

    /// The moment of their arrivals at which jobs begin in this round. The moments of all rounds are spread over all
    /// arrivals, in a ratio that never comes back to where it was.
    fn start(&self) -> Duration {
        let periods = self.question.jobs.iter().map(|job| job.arrival.period());
        let part = (f64::from(self.round) * 0.618_034).fract();
        periods.max().unwrap_or_default().mul_f64(part)
    }

    fn describe(&self, place: usize) -> String {
        self.records[place].arm.describe(&self.question.names(), self.question.space.pieces.sms)
    }

    /// Runs a task for a block, unless tuning is to end.
    fn run(&mut self, task: &Task, block: &Block) -> Found<Ran, M> {
        let spent = self.spent().min(1.0);
        let best = self.best(|_| true).map(|place| self.describe(place));
        let progress = Progress { step: self.step, spent, blocks: self.blocks, best };
        // Whoever has said to end it is not asked again.
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
            Ok(_) => Ok(Ran::Skipped("what was measured is no rate and no time".to_owned())),
            Err(Refusal::Skip(reason)) => Ok(Ran::Skipped(reason)),
            Err(Refusal::Stop(error)) => Err(TuneError::Failed(error)),
        }
    }

    /// A block of some length, at this round's moment of arrivals.
    fn block(&self, first: usize, lead_in: Duration, duration: Duration) -> Block {
        let rounds = self.scorer.wants_rounds();
        let start = self.start();
        Block { lead_in, duration, iterations: 2, rounds, first, start, saturated: None }
    }

    /// How long an arm's queues need to fill.
    fn filling(&self, record: &Record) -> Duration {
        let jobs = self.question.jobs.iter().zip(&record.capacities);
        let time =
            |(job, capacity): (&Known, &Option<f64>)| filling_time(job.arrival.hz()?, (*capacity)?);
        jobs.filter_map(time).max().unwrap_or_default().min(LONGEST_LEAD_IN)
    }

    /// How long an arm runs in a block of some stage: before anything counts, and after that.
    fn times(&self, place: usize, stage: Stage) -> (Duration, Duration) {
        let filling = self.filling(&self.records[place]);
        match stage {
            Stage::Search => (filling, self.block.max(filling)),
            Stage::Choice => (filling.max(LEAD_IN), self.sustained().max(filling)),
            Stage::Final => (filling.max(LEAD_IN), self.final_block().max(filling)),
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
        let block = self.block(first, lead_in, duration);
        let ran = self.run(&Task::Together(arm.clone()), &block)?;
        let record = &mut self.records[place];
        match ran {
            Ran::Sample(sample) => match stage {
                Stage::Search => record.searched.push(sample),
                Stage::Choice => record.chosen.push(sample),
                Stage::Final => record.claimed.push(sample),
            },
            // What fails once may fail again when a program relies on it.
            Ran::Skipped(reason) => record.skipped = Some(reason),
            Ran::Interrupted => {}
        }
        self.records[place].value = self.valued(place);
        Ok(!self.interrupted && self.records[place].skipped.is_none())
    }

    /// The place of an arm among the records.
    fn place(&mut self, arm: &Arm) -> usize {
        *self.places.entry(arm.clone()).or_insert_with(|| {
            self.records.push(Record {
                arm: arm.clone(),
                searched: Vec::new(),
                chosen: Vec::new(),
                claimed: Vec::new(),
                capacities: vec![None; self.question.jobs.len()],
                value: None,
                skipped: None,
            });
            self.records.len() - 1
        })
    }

    /// Measures once how fast each job that arrives by the clock could be under an arm.
    fn measure_capacities(&mut self, place: usize) -> Found<(), M> {
        for job in 0..self.question.jobs.len() {
            let record = &self.records[place];
            let is_known = record.capacities[job].is_some() || record.skipped.is_some();
            if self.question.jobs[job].arrival.hz().is_none() || is_known {
                continue;
            }
            let (task, block) = (Task::Together(record.arm.clone()), self.saturating(job));
            match self.run(&task, &block)? {
                Ran::Sample(sample) => {
                    self.records[place].capacities[job] = Some(sample.jobs[job].rate);
                }
                Ran::Skipped(reason) => self.records[place].skipped = Some(reason),
                Ran::Interrupted => return Ok(()),
            }
        }
        Ok(())
    }

    /// A short block in which a job runs as fast as it can.
    fn saturating(&self, job: usize) -> Block {
        let block = self.block(job, Duration::ZERO, self.block);
        Block { rounds: false, saturated: Some(job), iterations: 4, ..block }
    }

    /// Measures arms, a short block each, as far as there is time.
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

    /// Whether a block of an arm leaves time for others.
    fn can_afford(&self, arm: &Arm) -> bool {
        let mut parts = arm.parts().iter().enumerate();
        parts.all(|(job, part)| self.is_affordable(job, part.ceiling))
    }

    fn first_look(&mut self) -> Found<(), M> {
        // The first of all: whatever else happens, something is known of it.
        let unpartitioned = self.question.space.unpartitioned();
        for arm in unpartitioned.iter().take(1) {
            self.measure(arm, 0, Stage::Search)?;
        }
        self.measure_all(&unpartitioned, ROUNDS_END, "without partitions")?;
        let mut initial = self.most_promising(self.question.space.coarse(), PREDICTED);
        let space = &self.question.space;
        let first = self.scorer.percentile().map(|(job, _)| job);
        for arm in space.initial() {
            // Where many SMs are shared, a priority decides who has them.
            let ordered = match arm.shares_many(space.pieces.sms) {
                true => space.with_priorities(&arm),
                false => Vec::new(),
            };
            let is_wanted =
                |(job, arm): (usize, Arm)| first.is_none_or(|first| first == job).then_some(arm);
            let ordered: Vec<Arm> = ordered.into_iter().enumerate().filter_map(is_wanted).collect();
            for arm in std::iter::once(arm).chain(ordered) {
                if !initial.contains(&arm) {
                    initial.push(arm);
                }
            }
        }
        // So is one partition, on however busy a machine.
        if let Some(arm) = initial.iter().find(|arm| self.can_afford(arm)) {
            self.measure(arm, 0, Stage::Search)?;
        }
        self.measure_all(&initial, ROUNDS_END, "partitions far from each other")
    }

    /// So many of some arms, by the jobs' times alone. Where those are unknown: the first ones.
    fn most_promising(&self, arms: Vec<Arm>, count: usize) -> Vec<Arm> {
        let sms = self.question.space.pieces.sms;
        let curves: Vec<&curve::Curve> = self.alone.iter().map(|alone| &alone.curve).collect();
        let predict = |arm: &Arm| {
            let sample = curve::predict(arm, &curves, sms)?;
            self.scorer.value(&[&sample], Average::Median)
        };
        let unknown = Value { excess: f64::INFINITY, score: 0.0 };
        let mut predicted: Vec<(Arm, Value)> = arms
            .into_iter()
            .map(|arm| {
                let value = predict(&arm).unwrap_or(unknown);
                (arm, value)
            })
            .collect();
        predicted.sort_by(|(_, a), (_, b)| b.is_better_than(*a).cmp(&a.is_better_than(*b)));
        predicted.into_iter().take(count).map(|(arm, _)| arm).collect()
    }

    fn rounds(&mut self) -> Found<(), M> {
        let space = &self.question.space;
        let least = space.step.max(space.pieces.unit);
        let mut step = (space.pieces.sms / 8).max(least);
        for (round, keep) in [8, 6, 5, 4, 4, 3].into_iter().cycle().enumerate() {
            if !self.has_time(ROUNDS_END, "the best and their neighbours") {
                break;
            }
            self.round += 1;
            self.reference()?;
            let best = self.ranked(is_partition);
            let mut arms: Vec<Arm> =
                best.iter().take(keep).map(|place| self.records[*place].arm.clone()).collect();
            // Streams and priorities have neighbours too: they are partitions of all SMs for everybody.
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
            self.measure_all(&arms, ROUNDS_END, "the best and their neighbours")?;
            step = (step / 2).max(least);
        }
        Ok(())
    }

    /// Arms that only just miss the bound, and would be better than the best that meets it.
    fn near_misses(&self) -> Vec<usize> {
        let arms = self.ranked(|arm| arm.kind() != ArmKind::Sequential);
        let best = arms.first().and_then(|place| self.value(*place));
        let Some(best) = best.filter(|best| best.meets()) else { return Vec::new() };
        let mut near: Vec<(usize, Value)> = arms
            .into_iter()
            .filter_map(|place| Some((place, self.value(place)?)))
            .filter(|(_, value)| {
                !value.meets() && value.excess < NEAR_MISS && value.score > best.score
            })
            .collect();
        near.sort_by(|(_, a), (_, b)| a.excess.total_cmp(&b.excess));
        near.into_iter().take(3).map(|(place, _)| place).collect()
    }

    /// What an arm is worth by the blocks that say most.
    fn value(&self, place: usize) -> Option<Value> {
        self.records[place].value
    }

    /// Computes that.
    fn valued(&self, place: usize) -> Option<Value> {
        let record = &self.records[place];
        if record.skipped.is_some() {
            return None;
        }
        if let Some(excess) = self.overload(record) {
            return Some(Value { excess, score: 0.0 });
        }
        let value = |samples: &[Sample], average| {
            self.scorer.value(&samples.iter().collect::<Vec<_>>(), average)
        };
        value(&record.claimed, Average::Mean)
            .or_else(|| value(&record.chosen, Average::Mean))
            .or_else(|| value(&record.searched, Average::Median))
    }

    /// Values all arms anew.
    fn value_all(&mut self) {
        for place in 0..self.records.len() {
            self.records[place].value = self.valued(place);
        }
    }

    /// How far above its capacity the goal's job arrives under an arm: its queue never ends.
    fn overload(&self, record: &Record) -> Option<f64> {
        let (job, _) = self.scorer.percentile()?;
        let (hz, capacity) = (self.question.jobs[job].arrival.hz()?, record.capacities[job]?);
        (hz >= capacity).then(|| hz / capacity.max(1e-9))
    }

    /// The arms of some kind that may be chosen or compared with and that were measured, the best first.
    fn ranked(&self, is_wanted: impl Fn(&Arm) -> bool) -> Vec<usize> {
        let may_be = |arm: &Arm| is_plain(arm) || self.question.space.holds_floors(arm);
        let mut ranked: Vec<(usize, Value)> = (0..self.records.len())
            .filter(|place| {
                is_wanted(&self.records[*place].arm) && may_be(&self.records[*place].arm)
            })
            .filter_map(|place| Some((place, self.value(place)?)))
            .collect();
        ranked.sort_by(|(_, a), (_, b)| {
            let (before, after) = (a.is_better_than(*b), b.is_better_than(*a));
            after.cmp(&before)
        });
        ranked.into_iter().map(|(place, _)| place).collect()
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

/// How long a queue of random arrivals needs until its length no longer depends on its beginning: four times the
/// relaxation time of a queue whose iterations arrive and take time at random. `None` where it never does.
pub(crate) fn filling_time(hz: f64, capacity: f64) -> Option<Duration> {
    let load = hz / capacity;
    let relaxations = 4.0 / (1.0 - load.sqrt()).powi(2);
    (load < 1.0).then(|| Duration::try_from_secs_f64(relaxations / capacity).ok()).flatten()
}

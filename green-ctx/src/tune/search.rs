//! The search: which arms are measured, how often, and what follows.
//!
//! 1. Each job alone: in a plain stream, which is what rates are compared with, and on a few counts of SMs.
//! 2. Arms without partitions, and partitions that are far from each other.
//! 3. Rounds: the best so far and their neighbours, at ever smaller steps, in an order that turns round
//!    each time, so that a device that gets slower makes none look worse. Each round keeps fewer.
//! 4. Arms without partitions again: several starts with each job first, since such arms settle on another
//!    order each time.
//! 5. The last few partitions in turn, which choose one, and then that one beside the best arm without
//!    partitions. Its gain is the median of the ratios of these last, neighbouring blocks.

mod alone;
mod curve;
mod finals;
mod verdict;

use std::collections::HashMap;
use std::time::Duration;

use self::curve::Curve;
use super::arm::{Arm, ArmKind};
use super::goal::Goal;
use super::measure::{Block, Measure, Refusal, Sample, Task};
use super::outcome::Outcome;
use super::request::{Limits, Profile};
use super::score::{Scorer, Value};
use super::space::Space;
use super::stats::samples_for;

/// What there is to find, and how long it may take.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) jobs: Vec<Profile>,
    pub(crate) goal: Goal,
    pub(crate) limits: Limits,
    pub(crate) space: Space,
    pub(crate) budget: Duration,
}

/// How far a search is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// What is being done.
    pub step: &'a str,
    /// The part of the budget that is spent, from 0 to 1.
    pub spent: f64,
    /// Blocks that were measured.
    pub blocks: usize,
    /// The best arm so far, where there is one.
    pub best: Option<String>,
}

/// Why there is no outcome.
#[derive(Debug)]
pub(crate) enum Stopped<E> {
    /// It is not to go on, and nothing is known yet.
    Interrupted,
    /// The budget is too small: this one would do.
    Budget(Duration),
    /// A job cannot run at all.
    Job { job: usize, reason: String },
    /// Nothing can run any more.
    Failed(E),
}

/// What became of a block.
enum Ran {
    Sample(Sample),
    /// The task cannot run.
    Skipped(String),
    /// The search is to end.
    Interrupted,
}

/// What is known of an arm.
#[derive(Debug)]
pub(super) struct Record {
    arm: Arm,
    samples: Vec<Sample>,
    scores: Vec<f64>,
    /// What the goal makes of them; `None` of an arm that was not measured.
    value: Option<Value>,
    skipped: Option<String>,
}

/// Parts of the budget at which steps end.
const ROUNDS_END: f64 = 0.55;
const STARTS_END: f64 = 0.8;
/// By how much of a bound an arm may miss it and still count as one that meets it: less is noise, and noise
/// alone would choose otherwise.
const TOLERANCE: f64 = 0.01;
/// The shortest block.
const SHORTEST: Duration = Duration::from_millis(8);
/// Fresh starts of an arm without partitions, with each job first.
const STARTS: usize = 5;
/// Partitions that are measured because of what the jobs' times alone predict.
const PREDICTED: usize = 10;
/// By how much a partition misses the bound whose neighbours may meet it and be better than the best.
const NEAR_MISS: f64 = 0.25;
/// Neighbours of a partition that are measured in a round.
const NEAR: usize = 8;
/// A reference that drifts by more than this makes the figures doubtful.
const MOST_DRIFT: f64 = 0.05;

pub(super) struct Search<'a, M: Measure> {
    measure: &'a mut M,
    question: &'a Question,
    go_on: &'a mut dyn FnMut(&Progress<'_>) -> bool,
    began: Duration,
    block: Duration,
    scorer: Scorer,
    /// The seconds that an iteration of each job takes in a plain stream.
    seconds: Vec<f64>,
    /// Each job's iterations a second in a plain stream.
    alone: Vec<f64>,
    curves: Vec<Curve>,
    hosts: Vec<f64>,
    records: Vec<Record>,
    places: HashMap<Arm, usize>,
    /// Each job's rates in a plain stream, in the course of the search.
    references: Vec<Vec<f64>>,
    blocks: usize,
    /// Blocks of one round begin at the same moment of arrivals, and those of the next one elsewhere.
    round: u32,
    /// What is being done.
    step: &'static str,
    interrupted: bool,
    notes: Vec<String>,
}

type Found<T, M> = Result<T, Stopped<<M as Measure>::Error>>;

/// Searches, and calls `go_on` before each block, which ends the search where it returns false.
pub(crate) fn search<M: Measure>(
    measure: &mut M,
    question: &Question,
    go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
) -> Found<Outcome, M> {
    let began = measure.now();
    let jobs = question.jobs.len();
    let names: Vec<&str> = question.jobs.iter().map(|job| job.name.as_str()).collect();
    let mut search = Search {
        measure,
        question,
        go_on,
        began,
        block: SHORTEST,
        scorer: Scorer::of(&question.goal, &names, vec![1.0; jobs]),
        seconds: Vec::new(),
        alone: Vec::new(),
        curves: vec![Curve::default(); jobs],
        hosts: vec![0.0; jobs],
        records: Vec::new(),
        places: HashMap::new(),
        references: vec![Vec::new(); jobs],
        blocks: 0,
        round: 0,
        step: "each job alone",
        interrupted: false,
        notes: Vec::new(),
    };
    search.jobs_alone()?;
    search.scorer = Scorer::of(&question.goal, &names, search.alone.clone());
    search.first_look()?;
    search.rounds()?;
    search.fresh_starts()?;
    let pairs = search.last_comparison()?;
    Ok(search.outcome(pairs))
}

impl<M: Measure> Search<'_, M> {
    /// The part of the budget that is spent.
    fn spent(&self) -> f64 {
        (self.measure.now() - self.began).as_secs_f64() / self.question.budget.as_secs_f64()
    }

    /// Whether there is time until a part of the budget for another block, and nobody has interrupted.
    fn has_time(&mut self, until: f64, step: &'static str) -> bool {
        self.step = step;
        // It takes as long as those before it.
        let block = self.spent() / self.blocks.max(1) as f64;
        !self.interrupted && self.spent() < until.min(1.0 - block)
    }

    /// The moment of their arrivals at which jobs begin in this round: moments of all rounds are spread over all
    /// arrivals, in a ratio that never comes back to where it was.
    fn start(&self) -> Duration {
        let periods = self.question.jobs.iter().map(|job| job.arrival.period());
        let part = (f64::from(self.round) * 0.618_034).fract();
        periods.max().unwrap_or_default().mul_f64(part)
    }

    fn describe(&self, place: usize) -> String {
        let names: Vec<&str> = self.question.jobs.iter().map(|job| job.name.as_str()).collect();
        self.records[place].arm.describe(&names, self.question.space.pieces.sms)
    }

    /// Runs a task for a block, unless the search is to end.
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
            Err(Refusal::Stop(error)) => Err(Stopped::Failed(error)),
        }
    }

    fn block(&self, first: usize) -> Block {
        Block {
            duration: self.block,
            iterations: 2,
            rounds: self.scorer.wants_rounds(),
            first,
            start: self.start(),
        }
    }

    /// Compares with what jobs do alone in the course of the search, and not at its beginning, when the
    /// device was cooler than it is later.
    fn compare_with_references(&mut self) {
        self.alone = (0..self.alone.len()).map(|job| self.rate_alone(job)).collect();
        let names: Vec<&str> = self.question.jobs.iter().map(|job| job.name.as_str()).collect();
        self.scorer = Scorer::of(&self.question.goal, &names, self.alone.clone());
        for record in &mut self.records {
            record.scores = record.samples.iter().map(|sample| self.scorer.score(sample)).collect();
            if record.skipped.is_none() {
                record.value = self.scorer.value_of(&record.samples, &record.scores);
            }
        }
    }

    /// Runs an arm for one block. Returns its score, `None` where it does not run.
    fn measure(&mut self, arm: &Arm, first: usize) -> Found<Option<f64>, M> {
        let place = match self.places.get(arm) {
            Some(place) => *place,
            None => {
                let record = Record {
                    arm: arm.clone(),
                    samples: Vec::new(),
                    scores: Vec::new(),
                    value: None,
                    skipped: None,
                };
                self.records.push(record);
                self.places.insert(arm.clone(), self.records.len() - 1);
                self.records.len() - 1
            }
        };
        if self.records[place].skipped.is_some() {
            return Ok(None);
        }
        let block = self.block(first);
        match self.run(&Task::Together(arm.clone()), &block)? {
            Ran::Sample(sample) => {
                let score = self.scorer.score(&sample);
                let record = &mut self.records[place];
                record.samples.push(sample);
                record.scores.push(score);
                record.value = self.scorer.value_of(&record.samples, &record.scores);
            }
            Ran::Skipped(reason) => {
                // What fails once may fail again when a program relies on it.
                self.records[place].value = None;
                self.records[place].skipped = Some(reason);
                return Ok(None);
            }
            Ran::Interrupted => return Ok(None),
        }
        Ok(self.records[place].scores.last().copied())
    }

    /// Measures arms, one block each, as far as there is time.
    fn measure_all(&mut self, arms: &[Arm], until: f64, step: &'static str) -> Found<(), M> {
        for arm in arms {
            let mut parts = arm.parts().iter().enumerate();
            if !parts.all(|(job, part)| self.is_affordable(job, part.ceiling)) {
                continue;
            }
            if !self.has_time(until, step) {
                break;
            }
            let first = self.blocks % self.question.jobs.len();
            self.measure(arm, first)?;
        }
        Ok(())
    }

    fn first_look(&mut self) -> Found<(), M> {
        // The first of all: whatever else happens, something is known of it.
        let unpartitioned = self.question.space.unpartitioned();
        for arm in unpartitioned.iter().take(1) {
            self.measure(arm, 0)?;
        }
        self.measure_all(&unpartitioned, ROUNDS_END, "without partitions")?;
        let mut initial = self.predicted_best();
        let space = &self.question.space;
        let first = self.scorer.percentile().map(|(job, _)| job);
        for arm in space.initial() {
            // Where many SMs are shared, a priority decides who has them.
            let ordered = if arm.shares_many(space.pieces.sms) {
                space.with_priorities(&arm)
            } else {
                Vec::new()
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
        self.measure_all(&initial, ROUNDS_END, "partitions far from each other")
    }

    /// The partitions that are best by the jobs' times alone.
    fn predicted_best(&self) -> Vec<Arm> {
        self.most_promising(self.question.space.coarse(), PREDICTED)
    }

    /// So many of some arms, by the jobs' times alone. Without those: the first ones.
    fn most_promising(&self, arms: Vec<Arm>, count: usize) -> Vec<Arm> {
        let sms = self.question.space.pieces.sms;
        let predict = |arm: &Arm| {
            let sample = curve::predict(arm, &self.curves, sms)?;
            let scores = [self.scorer.score(&sample)];
            self.scorer.value_of(&[sample], &scores)
        };
        let unknown = Value { miss: f64::INFINITY, score: 0.0 };
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
            let best = self.ranked(|arm| arm.kind() == ArmKind::Partition);
            let best: Vec<usize> = best.into_iter().take(keep).collect();
            let mut arms: Vec<Arm> =
                best.iter().map(|place| self.records[*place].arm.clone()).collect();
            // Streams and priorities have neighbours too: they are partitions of all SMs for everybody.
            let seeds = self.ranked(|arm| arm.kind() != ArmKind::Sequential);
            let near_misses = self.near_misses();
            for place in seeds.iter().take(3).chain(&near_misses) {
                let arm = &self.records[*place].arm;
                let near = space.neighbours(arm, step);
                let ordered = if arm.kind() == ArmKind::Partition && !arm.has_priorities() {
                    space.with_priorities(arm)
                } else {
                    Vec::new()
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

    /// Several starts of the arms without partitions, with each job first.
    fn fresh_starts(&mut self) -> Found<(), M> {
        let jobs = self.question.jobs.len();
        for _ in 0..STARTS {
            self.round += 1;
            // The best of them, since there may be many orders.
            let best = self.ranked(|arm| arm.kind() != ArmKind::Partition);
            let arms: Vec<Arm> =
                best.iter().take(4).map(|place| self.records[*place].arm.clone()).collect();
            for first in 0..jobs {
                for arm in &arms {
                    // As often as that: a start says little by itself.
                    if self.has_time(STARTS_END, "several starts without partitions") {
                        self.measure(arm, first)?;
                    }
                }
            }
        }
        self.reference()?;
        self.compare_with_references();
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
                !value.meets() && value.miss < NEAR_MISS && value.score > best.score
            })
            .collect();
        near.sort_by(|(_, a), (_, b)| a.miss.total_cmp(&b.miss));
        near.into_iter().take(3).map(|(place, _)| place).collect()
    }

    /// What an arm is worth: one that misses the bound by no more than noise meets it.
    fn value(&self, place: usize) -> Option<Value> {
        let value = self.records[place].value?;
        let miss = if value.miss > TOLERANCE { value.miss } else { 0.0 };
        Some(Value { miss, ..value })
    }

    /// The arms of some kind that were measured, and that may be chosen or compared with, the best first.
    fn ranked(&self, is_wanted: impl Fn(&Arm) -> bool) -> Vec<usize> {
        let may_be =
            |arm: &Arm| arm.kind() != ArmKind::Partition || self.question.space.holds_floors(arm);
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

    /// How many iterations an arm has and the goal's percentile needs, where these are more.
    fn lacks_samples(&self, place: usize) -> Option<(usize, usize)> {
        let (job, percentile) = self.scorer.percentile()?;
        self.lacks_samples_of(place, job, percentile)
    }

    /// How many iterations an arm has and a percentile of a job needs, where these are more.
    fn lacks_samples_of(
        &self,
        place: usize,
        job: usize,
        percentile: f64,
    ) -> Option<(usize, usize)> {
        let found: usize = self.records[place]
            .samples
            .iter()
            .map(|sample| sample.jobs[job].latencies_us.len())
            .sum();
        let needed = samples_for(percentile);
        (found < needed).then_some((found, needed))
    }
}

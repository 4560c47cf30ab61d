//! The choice of a candidate, and the final, which alone makes claims.

use std::time::Duration;

use super::{CHOICE_ENDS, FINALISTS, Found, LEAD_IN, Search, Stage, is_partition, is_plain};
use crate::arm::{Arm, ArmKind};
use crate::goal::Goal;
use crate::measure::{Measure, Task};
use crate::score::{Average, Value};
use crate::stats::{Interval, LEAST_REPETITIONS, interval, samples_for};

/// The arms of the final. Each has a block in every repetition.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// The places of the best partitions among the records: one and, under a goal with a bound, another one that keeps a
    /// greater distance from that.
    pub(super) candidates: Vec<usize>,
    /// The places of the best arms without partitions.
    pub(super) plain: Vec<usize>,
    pub(super) repetitions: usize,
}

/// Arms without partitions that the candidate is compared with: all of two jobs, since short blocks can be wrong by 10 %
/// about them. Four jobs have 26.
const RIVALS: usize = 4;
/// How long the candidate runs before the final.
const PREHEAT: Duration = Duration::from_millis(500);
/// The part of the budget that this may take.
const MOST_PREHEAT: f64 = 0.03;
/// How long a block is that claims rest on, if the budget is enough. A GPU at its power limit changes its clocks
/// with a period of about one second, by up to 5 % (H200, driver 580.159.04), and what runs first changes the phase.
const CLAIMED: Duration = Duration::from_millis(800);
/// The part of the budget that the blocks may take which an interval needs.
const CLAIMS: f64 = 0.62;
/// Repetitions after which a narrow interval ends the final.
const ENOUGH: usize = 8;
/// Half of an interval that is narrow, as a part of the rival's score.
const NARROW: f64 = 0.015;
/// How far candidates are to be from the bound by the blocks that they are chosen by, as parts of the bound.
const DISTANCES: [f64; 2] = [0.01, 0.05];
/// What rates and percentiles of one pair of jobs differ by from process to process, as a part of them: half of a 95 %
/// interval. A process cannot see it.
const BETWEEN_RATES: f64 = 0.0135;
const BETWEEN_TAILS: f64 = 0.02;
/// The same for what the clocks change by within a period, if a block is far shorter than that.
const WITHIN_PERIOD: f64 = 0.015;

impl Claim {
    fn arms(&self) -> Vec<usize> {
        self.candidates.iter().chain(&self.plain).copied().collect()
    }
}

impl<M: Measure> Search<'_, M> {
    /// How long a block of an arm takes in some stage.
    fn length(&self, place: usize, stage: Stage) -> Duration {
        let (lead_in, duration) = self.times(place, stage);
        lead_in + duration
    }

    /// How long a block is that claims rest on: as long as the budget allows.
    pub(super) fn final_block(&self) -> Duration {
        let blocks = (self.arms_of_final() * LEAST_REPETITIONS) as u32;
        let affordable = self.question.budget.mul_f64(CLAIMS) / blocks;
        affordable.saturating_sub(LEAD_IN).min(CLAIMED).max(self.sustained())
    }

    /// Half of a 95 % interval of what a figure differs by beyond what a final sees.
    fn between(&self, processes: f64) -> f64 {
        let part = self.final_block().div_duration_f64(CLAIMED).min(1.0);
        processes.hypot(WITHIN_PERIOD * (1.0 - part))
    }

    fn arms_of_final(&self) -> usize {
        RIVALS + if self.has_bound() { DISTANCES.len() } else { 1 }
    }

    /// The best partitions in turn, in long blocks: each turn has half as many as the one before.
    pub(super) fn choose(&mut self) -> Found<(), M> {
        self.settled()?;
        let until = self.choice_ends();
        let mut count = FINALISTS;
        for turn in 0.. {
            self.round += 1;
            let mut finalists: Vec<usize> = Vec::new();
            for number in 0..count {
                // In turn the best and, under a bound, the best that keeps the greater distance from it.
                finalists.extend(self.candidate(DISTANCES[number % 2], &finalists));
            }
            if turn % 2 == 1 {
                finalists.reverse();
            }
            for place in &finalists {
                if !self.long_block(*place, turn, until)? {
                    return Ok(());
                }
            }
            if finalists.is_empty() {
                break;
            }
            count = (count / 2).max(2);
        }
        Ok(())
    }

    /// The part of the budget at which the choice ends, so that the final has time for an interval.
    fn choice_ends(&self) -> f64 {
        CHOICE_ENDS.min(1.0 - self.final_needs().div_duration_f64(self.question.budget))
    }

    /// How long a final takes that has as many repetitions as an interval needs.
    pub(super) fn final_needs(&self) -> Duration {
        let length = |place| self.length(place, Stage::Final);
        let block = self.best(|_| true).map_or(Duration::ZERO, length);
        self.preheating() + block * (self.arms_of_final() * LEAST_REPETITIONS) as u32
    }

    /// A long block of an arm, where there is time for one.
    fn long_block(&mut self, place: usize, turn: usize, until: f64) -> Found<bool, M> {
        let length = self.length(place, Stage::Choice);
        let has_time = self.has_time_for(length, until, "the best arms in long blocks");
        if has_time {
            let arm = self.records[place].arm.clone();
            self.measure(&arm, turn % self.question.jobs.len(), Stage::Choice)?;
        }
        Ok(has_time)
    }

    /// The best partition: by long blocks, where some have run and, under a goal with a bound, one of them keeps this
    /// distance from it.
    fn candidate(&self, distance: f64, but: &[usize]) -> Option<usize> {
        let valued = |place: usize| {
            let value = self.value(place)?;
            let excess = if self.has_bound() { value.excess + distance } else { 0.0 };
            Some((place, !self.records[place].chosen.is_empty(), Value { excess, ..value }))
        };
        let partitions = self.ranked(is_partition).into_iter().filter(|place| !but.contains(place));
        let mut ranked: Vec<_> = partitions.filter_map(valued).collect();
        ranked.sort_by(|(_, a_tried, a), (_, b_tried, b)| {
            let better = b.is_better_than(*a).cmp(&a.is_better_than(*b));
            (b.meets(), *b_tried).cmp(&(a.meets(), *a_tried)).then(better)
        });
        ranked.first().map(|(place, ..)| *place)
    }

    pub(super) fn has_bound(&self) -> bool {
        matches!(self.question.goal, Goal::Keep { .. } | Goal::Least { .. })
    }

    /// The final: the candidate and the best arms without partitions in turn, in both orders, until the interval is
    /// narrow or the budget ends.
    pub(super) fn last_comparison(&mut self) -> Found<Option<Claim>, M> {
        let mut claim = self.contestants();
        self.preheat(&claim)?;
        loop {
            let arms = claim.arms();
            let length = |place: &usize| self.length(*place, Stage::Final);
            let ends: Duration = arms.iter().map(length).sum();
            let step = "the winner beside the best without partitions";
            if arms.is_empty() || self.is_narrow(&claim) || !self.has_time_for(ends, 1.0, step) {
                break;
            }
            if self.repetition(&claim)? {
                claim.repetitions += 1;
            } else if self.interrupted {
                break;
            } else {
                // One of them does not run any more: the next best of its kind takes its place.
                claim = self.contestants();
            }
        }
        for place in claim.arms() {
            self.records[place].claimed.truncate(claim.repetitions);
        }
        Ok((claim.repetitions > 0).then_some(claim))
    }

    /// Those who are in the final, without any block of it.
    fn contestants(&mut self) -> Claim {
        self.records.iter_mut().for_each(|record| record.claimed.clear());
        self.value_all();
        let kinds = [ArmKind::Sequential, ArmKind::Streams, ArmKind::Priority];
        let best_of = |kind| self.best(|arm| arm.kind() == kind);
        let mut plain: Vec<usize> = kinds.into_iter().filter_map(best_of).collect();
        let others = self.ranked(is_plain).into_iter().filter(|place| !plain.contains(place));
        plain.extend(others.take(RIVALS - plain.len()).collect::<Vec<_>>());
        let mut candidates: Vec<usize> =
            DISTANCES.iter().filter_map(|it| self.candidate(*it, &[])).collect();
        candidates.dedup();
        Claim { candidates, plain, repetitions: 0 }
    }

    fn preheating(&self) -> Duration {
        PREHEAT.min(self.question.budget.mul_f64(MOST_PREHEAT))
    }

    /// Lets the clocks settle under the load that follows.
    fn preheat(&mut self, claim: &Claim) -> Found<(), M> {
        let Some(place) = claim.arms().first().copied() else { return Ok(()) };
        let duration = self.preheating();
        if self.has_time_for(duration, 1.0, "letting the clocks settle") {
            let block = self.block(0, Duration::ZERO, duration);
            self.run(&Task::Together(self.records[place].arm.clone()), &block)?;
        }
        Ok(())
    }

    /// One block of each arm, the first one last in every second repetition. Whether all of them ran.
    fn repetition(&mut self, claim: &Claim) -> Found<bool, M> {
        self.round += 1;
        let mut arms: Vec<Arm> =
            claim.arms().iter().map(|place| self.records[*place].arm.clone()).collect();
        if claim.repetitions % 2 == 1 {
            arms.reverse();
        }
        let first = claim.repetitions % self.question.jobs.len();
        for arm in &arms {
            if !self.measure(arm, first, Stage::Final)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether further repetitions would say little more.
    fn is_narrow(&self, claim: &Claim) -> bool {
        // Not after each one: of many, one more changes little, and looking at all takes long.
        let every = (claim.repetitions / 4).max(1);
        if claim.repetitions < ENOUGH || !claim.repetitions.is_multiple_of(every) {
            return false;
        }
        let decided = |place: usize| {
            let excess = self.excess(claim, place);
            excess.is_none_or(|it| it.half_width() < NARROW || it.low > 0.0 || it.high < 0.0)
        };
        let is_bound_known = !self.has_bound()
            || claim.arms().iter().all(|place| self.is_known(*place) && decided(*place));
        let is_gain_known = match self.rival(claim).zip(self.winner(claim)) {
            Some(_) => self.gain(claim).is_some_and(|gain| gain.half_width() <= NARROW),
            None => true,
        };
        is_bound_known && is_gain_known
    }

    /// The best of the candidates.
    pub(super) fn winner(&self, claim: &Claim) -> Option<usize> {
        self.best_of(claim, &claim.candidates)
    }

    /// The best of the arms without partitions.
    pub(super) fn rival(&self, claim: &Claim) -> Option<usize> {
        self.best_of(claim, &claim.plain)
    }

    /// The best of some arms that are sure to meet the bound and, if none is, the one that is closest to it.
    fn best_of(&self, claim: &Claim, places: &[usize]) -> Option<usize> {
        let value = |place: &usize| {
            let high = self.excess(claim, *place).map(|excess| excess.high);
            let value = self.value(*place)?;
            Some((*place, Value { excess: high.unwrap_or(value.excess), ..value }))
        };
        let better =
            |a: (usize, Value), b: (usize, Value)| if b.1.is_better_than(a.1) { b } else { a };
        places.iter().filter_map(value).reduce(better).map(|(place, _)| place)
    }

    /// An arm's value by some repetitions of the final.
    fn claimed(&self, place: usize, repetitions: &[usize]) -> Option<Value> {
        let samples = &self.records[place].claimed;
        let samples: Option<Vec<_>> = repetitions.iter().map(|at| samples.get(*at)).collect();
        self.scorer.value(&samples?, Average::Mean)
    }

    /// By how much an arm misses the goal's bound, as a part of it: below 0 it meets the bound. `None` for goals without one.
    pub(super) fn excess(&self, claim: &Claim, place: usize) -> Option<Interval> {
        let besides = match self.question.goal {
            Goal::Keep { .. } => BETWEEN_TAILS,
            _ => BETWEEN_RATES,
        };
        if !self.has_bound() || !self.is_known(place) {
            return None;
        }
        interval(claim.repetitions, self.between(besides), |kept| {
            Some(self.claimed(place, kept)?.excess)
        })
    }

    /// How much better the candidate is than the best arm without partitions: their ratio minus 1.
    pub(super) fn gain(&self, claim: &Claim) -> Option<Interval> {
        let (candidate, rival) = (self.winner(claim)?, self.rival(claim)?);
        // Of the logarithm, so that no end is a loss of more than everything.
        let ratio = |kept: &[usize]| {
            let (ours, theirs) = (self.claimed(candidate, kept)?, self.claimed(rival, kept)?);
            Some((ours.score / theirs.score).ln())
        };
        let between = match self.question.goal {
            Goal::Least { .. } => BETWEEN_TAILS,
            _ => BETWEEN_RATES,
        };
        interval(claim.repetitions, self.between(between), ratio)
            .map(|ratio| ratio.map(f64::exp_m1))
    }

    /// Whether the final had enough iterations to know the goal's percentile.
    pub(super) fn is_known(&self, place: usize) -> bool {
        self.iterations(place).is_none_or(|(found, needed)| found >= needed)
    }

    /// How many iterations of the goal's job the final had, and how many its percentile needs.
    pub(super) fn iterations(&self, place: usize) -> Option<(usize, usize)> {
        let (job, percentile) = self.scorer.percentile()?;
        let counts = self.records[place].claimed.iter();
        let found = counts.map(|sample| sample.jobs[job].latencies_us.len()).sum();
        Some((found, samples_for(percentile)))
    }

    /// The repetitions that half an interval of this width would need to become narrow.
    pub(super) fn needed_repetitions(claim: &Claim, gain: Interval) -> f64 {
        let ratio = gain.half_width() / NARROW;
        claim.repetitions.max(LEAST_REPETITIONS) as f64 * ratio.powi(2)
    }
}

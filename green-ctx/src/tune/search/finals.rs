//! The end of a search: the best partitions in turn, and the best of them beside its rival.

use super::super::arm::{Arm, ArmKind};
use super::super::measure::Measure;
use super::super::score::Value;
use super::super::stats::Interval;
use super::{Found, Search, TOLERANCE};

/// Blocks of the chosen partition and of the best arm without partitions, in pairs that ran one after the other.
pub(in crate::tune) struct Pairs {
    /// The partition's place among the records.
    pub(super) chosen: usize,
    /// The place of the best arm without partitions.
    pub(super) rival: usize,
    /// The places of the pairs' blocks among the blocks of both.
    pub(super) blocks: Vec<[usize; 2]>,
}

/// The part of what is left of the budget in which one partition is chosen.
const CHOICE: f64 = 0.3;
/// The part of the budget at which no pair begins any more: it has two blocks, and a reference follows.
const COMPARISON_ENDS: f64 = 0.985;
/// Partitions of which one is chosen.
const FINALISTS: usize = 3;
/// Blocks after which an arm is not the best by chance alone.
const ENOUGH: usize = 6;

impl<M: Measure> Search<'_, M> {
    /// The last few partitions in turn, and then the best of them beside the best arm without partitions.
    pub(super) fn last_comparison(&mut self) -> Found<Option<Pairs>, M> {
        let jobs = self.question.jobs.len();
        let mut round = 0;
        let begun = self.spent();
        let ends = begun + CHOICE * (1.0 - begun);
        while self.has_time(ends, "the best partitions in turn") {
            self.round += 1;
            // Those that are the best now: one that was so by chance leaves its place to another.
            let mut finalists = self.ranked(is_partition);
            finalists.truncate(FINALISTS);
            if finalists.is_empty() {
                break;
            }
            if round % 2 == 1 {
                finalists.reverse();
            }
            for place in finalists {
                let arm = self.records[place].arm.clone();
                self.measure(&arm, round % jobs)?;
            }
            round += 1;
        }
        let chosen = self.best_of_enough(is_partition);
        let Some((mut chosen, mut rival)) = chosen.zip(self.best(is_plain)) else {
            return self.rest().map(|()| None);
        };
        self.reference()?;
        let (mut blocks, mut round) = (Vec::new(), 0);
        while self.has_time(COMPARISON_ENDS, "the winner beside the best without partitions") {
            self.round += 1;
            // Who turns out to miss the bound is compared no longer, where another meets it.
            let pairs = Pairs { chosen, rival, blocks };
            let now =
                (self.meeting(chosen, &pairs, is_partition), self.meeting(rival, &pairs, is_plain));
            blocks = pairs.blocks;
            if now != (chosen, rival) {
                blocks.clear();
                (chosen, rival) = now;
            }
            let mut pair = [None; 2];
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                let place = [chosen, rival][side];
                let arm = self.records[place].arm.clone();
                let ran = self.measure(&arm, round % jobs)?.is_some();
                pair[side] = ran.then(|| self.records[place].samples.len() - 1);
            }
            round += 1;
            match pair {
                [Some(chosen), Some(rival)] => blocks.push([chosen, rival]),
                _ if self.interrupted => break,
                // One of them does not run any more: the next best of its kind takes its place.
                _ => {
                    blocks.clear();
                    let next = self.best(is_partition).zip(self.best(is_plain));
                    let Some(next) = next else { return Ok(None) };
                    (chosen, rival) = next;
                }
            }
        }
        self.reference()?;
        Ok(Some(Pairs { chosen, rival, blocks }))
    }

    /// Where there are no two arms to be compared: the best of those that there are in turn.
    fn rest(&mut self) -> Found<(), M> {
        while self.has_time(1.0, "the best in turn") {
            self.round += 1;
            let mut best = self.ranked(|_| true);
            best.truncate(FINALISTS);
            if best.is_empty() {
                break;
            }
            for place in best {
                let arm = self.records[place].arm.clone();
                self.measure(&arm, self.round as usize % self.question.jobs.len())?;
            }
        }
        Ok(())
    }

    /// An arm or, where it misses the bound, the best of its kind that meets it.
    fn meeting(&self, place: usize, pairs: &Pairs, is_wanted: impl Fn(&Arm) -> bool) -> usize {
        let is_looked_at = pairs.blocks.len().is_multiple_of(ENOUGH);
        let misses = is_looked_at && self.misses(place, Some(pairs));
        if self.meets(place) && !misses {
            return place;
        }
        let another = |arm: &Arm| is_wanted(arm) && *arm != self.records[place].arm;
        self.best_of_enough(another).filter(|best| self.meets(*best)).unwrap_or(place)
    }

    /// The best of the arms that meet the bound after several blocks; where there is none, of all.
    fn best_of_enough(&self, is_wanted: impl Fn(&Arm) -> bool) -> Option<usize> {
        let ranked = self.ranked(is_wanted);
        let is_tried =
            |place: &&usize| self.records[**place].samples.len() >= ENOUGH && self.meets(**place);
        ranked.iter().find(is_tried).or(ranked.first()).copied()
    }

    /// Whether an arm meets the bound by all of its blocks.
    fn meets(&self, place: usize) -> bool {
        self.value(place).is_some_and(Value::meets)
    }

    /// Whether an arm misses the goal's bound by more than noise.
    pub(super) fn misses(&self, place: usize, pairs: Option<&Pairs>) -> bool {
        match self.excess(place, pairs) {
            Some(excess) => excess.middle > TOLERANCE,
            None => !self.meets(place),
        }
    }

    /// By how much an arm misses the goal's bound. Where there are enough of them, only blocks count that ran
    /// after it was chosen: those before were part of the choice, and flatter it.
    pub(super) fn excess(&self, place: usize, pairs: Option<&Pairs>) -> Option<Interval> {
        let samples = &self.records[place].samples;
        let after = pairs.and_then(|Pairs { chosen, rival, blocks }| {
            let side = [*chosen, *rival].iter().position(|of| *of == place)?;
            let samples: Vec<_> = blocks.iter().map(|pair| &samples[pair[side]]).collect();
            self.scorer.excess(&samples)
        });
        after.or_else(|| self.scorer.excess(&samples.iter().collect::<Vec<_>>()))
    }

    /// How much better the partition is than its rival.
    pub(super) fn gain(&self, pairs: &Pairs) -> Option<Interval> {
        let [chosen, rival] =
            [pairs.chosen, pairs.rival].map(|place| self.records[place].samples.as_slice());
        let pair = |[one, other]: &[usize; 2]| [&chosen[*one], &rival[*other]];
        self.scorer.gain(&pairs.blocks.iter().map(pair).collect::<Vec<_>>())
    }
}

pub(super) fn is_partition(arm: &Arm) -> bool {
    arm.kind() == ArmKind::Partition
}

pub(super) fn is_plain(arm: &Arm) -> bool {
    arm.kind() != ArmKind::Partition
}

//! The choice of a candidate, and the final comparison, on which all claims are based. Arms run in measurement blocks.

use std::time::Duration;

use super::{
    CHOICE_ENDS, FINALISTS, Found, HIGH_LOAD, LEAD_IN, ROUNDS_END, Search, filling_time,
    is_partition, is_plain,
};
use crate::arm::Arm;
use crate::arrival::Arrival;
use crate::goal::Goal;
use crate::measure::{Block, Measure, Task};
use crate::outcome::Stage;
use crate::score::{Average, Value, best_first};
use crate::stats::{Interval, LEAST_REPETITIONS, interval, reachable, samples_for};

/// The arms of the final comparison. Each runs for one block in every repetition.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// The indices of the best partitions in the records: one and, under a goal with a bound and if there is time,
    /// another one with a greater margin to the bound.
    pub(super) candidates: Vec<usize>,
    /// The indices of the best arms without partitions in which the goal's job keeps up with its arrivals.
    pub(super) plain: Vec<usize>,
    pub(super) repetitions: usize,
}

/// The number of arms without partitions that the candidate is compared with.
const RIVALS: usize = 2;
/// The number of arms without partitions that long blocks choose these from. Short blocks can be wrong about them by
/// 14 %. Two jobs have four, four jobs have 26.
const PLAIN: usize = 4;
/// The number of repetitions that the final comparison has time for.
const REPETITIONS: usize = 4;
/// The time that the candidate runs before the final comparison.
const PREHEAT: Duration = Duration::from_millis(300);
/// The maximum fraction of the budget for this.
const MOST_PREHEAT: f64 = 0.03;
/// The length of a block that claims are based on, if the budget is sufficient. A GPU at its power limit changes its
/// clocks by up to 5 % with a period of about one second, and the arm before changes the phase (H200, driver
/// 580.159.04).
const CLAIMED: Duration = Duration::from_millis(750);
/// The fraction of the budget that is available for these repetitions.
const CLAIMS: f64 = 0.53;
/// The fraction of the budget that is left unused so that a repetition that takes a little longer still fits.
const SLACK: f64 = 0.01;
/// The number of repetitions after which a narrow interval ends the final comparison.
const ENOUGH: usize = 8;
/// The maximum half-width of a narrow interval, as a fraction of the bound or of the ratio of the scores.
const NARROW: f64 = 0.015;
/// The margins to the bound that candidates should keep in the blocks they are chosen by, as fractions of the bound.
const DISTANCES: [f64; 2] = [0.01, 0.05];
/// The difference of rates and percentiles between processes that run the same jobs, as the half-width of a relative
/// 95 % interval. It cannot be measured within one process. On an H200, 23 of 24 claims differed from another process's
/// measurement by 0.6 % (root mean square).
pub(super) const BETWEEN_RATES: f64 = 0.0135;
const BETWEEN_TAILS: f64 = 0.02;
/// The same for the change of the clocks within a period, if blocks are much shorter than the period.
const WITHIN_PERIOD: f64 = 0.015;
/// The time after which a latency in a queue counts as a further independent one, as a fraction of the time that the
/// queue needs to fill. Long queues are rare and last long, so a percentile of fewer latencies is usually too low. In
/// the model, with random arrivals at loads of 0.7 to 0.82 and bounds 5 % below the 99th percentile, up to 9 % of bounds
/// are called met if service times are fixed, and up to 21 % if they are random too. Twice the fraction hardly lowers
/// that, and a budget of 19.5 s then knows no percentile of a queue at a load of 0.8.
const INDEPENDENT: f64 = 1.0 / 16.0;
/// The latency up to which a job has no queue, in service times.
const NO_QUEUE: f64 = 2.0;
/// The bound from which it is certain that a queue meets it, in service times divided by 1 - load: four times the 99th
/// percentile of a queue with random service times.
const CLEAR: f64 = 20.0;
/// How often a trace must have been played before its percentiles are known. A trace can have bursts, and blocks begin
/// anywhere in it.
const PLAYED: usize = 2;

impl Claim {
    pub(super) fn arms(&self) -> Vec<usize> {
        self.candidates.iter().chain(&self.plain).copied().collect()
    }
}

impl<M: Measure> Search<'_, M> {
    /// Returns the length of an arm's block in a stage.
    fn length(&self, place: usize, stage: Stage) -> Duration {
        let (lead_in, duration) = self.times(place, stage);
        lead_in + duration
    }

    fn repetition_length(&self, claim: &Claim) -> Duration {
        claim.arms().into_iter().map(|place| self.length(place, Stage::Final)).sum()
    }

    /// Returns the length of a block that claims are based on: as long as the budget allows.
    pub(super) fn final_block(&self) -> Duration {
        let blocks = ((RIVALS + self.candidates_of_final()) * REPETITIONS) as u32;
        let affordable = self.question.budget.mul_f64(CLAIMS) / blocks;
        affordable.saturating_sub(LEAD_IN).min(CLAIMED).max(self.sustained())
    }

    /// Returns the half-width of a 95 % interval of the errors that the final comparison cannot see. `processes` is the
    /// difference between processes.
    fn between(&self, processes: f64) -> f64 {
        let part = self.final_block().div_duration_f64(CLAIMED).min(1.0);
        processes.hypot(WITHIN_PERIOD * (1.0 - part))
    }

    /// Returns how far, as logarithms, a latency can be below and above the measured one because of a queue: the capacity
    /// differs between processes as other rates do, and a latency in a queue is at most proportional to 1 / (1 - load).
    fn queueing(&self, place: usize) -> [f64; 2] {
        let job = self.scorer.percentile().map_or(0, |(job, _)| job);
        let load = self.load(&self.records[place], job).unwrap_or(0.0).min(0.999);
        let factor = |part: f64| (1.0 - load) / (1.0 - load / part).max(1e-3 * (1.0 - load));
        [-factor(1.0 + BETWEEN_RATES).ln(), factor(1.0 - BETWEEN_RATES).ln()]
    }

    /// Returns the maximum number of partitions in the final comparison.
    fn candidates_of_final(&self) -> usize {
        if self.has_bound() { DISTANCES.len() } else { 1 }
    }

    /// Runs the best arms without partitions for one long block each, and the best partitions in turns. Each turn has
    /// half as many partitions as the one before.
    pub(super) fn choose(&mut self) -> Found<(), M> {
        self.settled()?;
        // The final comparison needs time for an interval.
        let until = CHOICE_ENDS.min(self.final_begins(&self.selected(), REPETITIONS));
        for place in self.plain() {
            self.long_block(place, 0, until)?;
        }
        let mut count = FINALISTS;
        for turn in 0.. {
            self.round += 1;
            self.finalists = self.several(self.partitions(), count);
            let mut finalists = self.finalists.clone();
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

    /// Returns the finalists with long blocks, or all partitions if none of these meets the bound.
    fn partitions(&self) -> Vec<usize> {
        let mut tried = self.finalists.clone();
        tried.retain(|place| self.has_long_block(*place));
        let is_good = tried.iter().any(|place| self.meets_bound(*place));
        if is_good { tried } else { self.ranked(is_partition) }
    }

    fn has_long_block(&self, place: usize) -> bool {
        self.records[place].samples.contains_key(&Stage::Choice)
    }

    /// Returns whether an arm runs and meets the bound, if there is one, in its blocks so far.
    fn meets_bound(&self, place: usize) -> bool {
        self.value(place).is_some_and(Value::meets)
    }

    /// Returns the best arms. Under a bound, every second one keeps a greater margin to it.
    fn several(&self, mut arms: Vec<usize>, count: usize) -> Vec<usize> {
        let mut several: Vec<usize> = Vec::new();
        for margin in DISTANCES.into_iter().cycle().take(count) {
            several.extend(self.best_with_margin(&arms, margin));
            arms.retain(|place| !several.contains(place));
        }
        several
    }

    /// Returns the best arm. Under a bound, an arm that keeps this margin to it comes first.
    fn best_with_margin(&self, arms: &[usize], margin: f64) -> Option<usize> {
        let margin = if self.has_bound() { margin } else { 0.0 };
        self.best_by(arms, |_, excess| excess + margin)
    }

    /// Returns arms without partitions in which the goal's job keeps up with its arrivals: those that meet the bound
    /// first, and of these the best with long blocks, then the best of each kind, then the best others.
    fn plain(&self) -> Vec<usize> {
        let keeps_up = |place: &usize| self.overload(&self.records[*place]).is_none();
        let ranked = self.ranked(is_plain).into_iter().filter(keeps_up);
        let (tried, untried): (Vec<_>, Vec<_>) =
            ranked.partition(|place| self.has_long_block(*place));
        let mut kinds = Vec::new();
        let is_first = |place: &usize| {
            let kind = self.records[*place].arm.kind();
            let is_first = !kinds.contains(&kind);
            kinds.push(kind);
            is_first
        };
        let (first, others): (Vec<_>, Vec<_>) = untried.into_iter().partition(is_first);
        let mut plain = [tried, first, others].concat();
        plain.sort_by_key(|place| !self.meets_bound(*place));
        plain.truncate(PLAIN);
        plain
    }

    /// Returns a budget that is enough for an interval with all arms of the final comparison.
    pub(super) fn enough_budget(&self) -> Duration {
        let finals = self.final_length(&self.wanted(), REPETITIONS);
        let alone = (LEAD_IN + self.sustained()) * self.alone.len() as u32;
        (alone + finals).div_f64(1.0 - ROUNDS_END - SLACK)
    }

    /// Runs a long block of an arm if there is time.
    fn long_block(&mut self, place: usize, turn: usize, until: f64) -> Found<bool, M> {
        let length = self.length(place, Stage::Choice);
        let has_time = self.has_time_for(length, until, "the best arms in long blocks");
        if has_time {
            let arm = self.records[place].arm.clone();
            self.measure(&arm, turn % self.question.jobs.len(), Stage::Choice)?;
        }
        Ok(has_time)
    }

    pub(super) fn has_bound(&self) -> bool {
        matches!(self.question.goal, Goal::Keep { .. } | Goal::Least { .. })
    }

    /// Runs the final comparison: the candidate and the best arms without partitions in turns, in alternating order,
    /// until the interval is narrow or the budget is spent.
    pub(super) fn last_comparison(&mut self) -> Found<Option<Claim>, M> {
        let first = self.contestants();
        self.preheat(&first)?;
        let mut claim = self.confirmed()?;
        loop {
            let ends = self.repetition_length(&claim);
            let step = "the candidate and the best arms without partitions";
            if ends.is_zero() || self.is_narrow(&claim) || !self.has_time_for(ends, 1.0, step) {
                break;
            }
            if self.repetition(&claim)? {
                claim.repetitions += 1;
            } else if self.interrupted {
                break;
            } else {
                // An arm no longer runs. The next best takes its place.
                claim = self.confirmed()?;
            }
        }
        for place in claim.arms() {
            if let Some(samples) = self.records[place].samples.get_mut(&Stage::Final) {
                samples.truncate(claim.repetitions);
            }
        }
        Ok((claim.repetitions > 0).then_some(claim))
    }

    /// Returns the arms of the final comparison. Measures the capacities of those in which the goal's job may not keep
    /// up again, in long blocks. The next best arms replace those in which it does not.
    fn confirmed(&mut self) -> Found<Claim, M> {
        let mut claim = self.contestants();
        let Some((job, _)) = self.scorer.percentile() else { return Ok(claim) };
        while let Some(place) = self.unconfirmed(&claim).first().copied() {
            let ends = LEAD_IN + self.sustained();
            let has_time = self.spent() < self.final_begins(&claim, LEAST_REPETITIONS);
            if !has_time || !self.has_time_for(ends, 1.0, "the capacities of the best arms") {
                break;
            }
            let block = self.block(job, LEAD_IN, self.sustained());
            self.measure_capacity(place, job, Block { as_applied: true, ..block })?;
            self.records[place].is_confirmed = !self.interrupted;
            claim = self.contestants();
        }
        Ok(claim)
    }

    fn unconfirmed(&self, claim: &Claim) -> Vec<usize> {
        claim.arms().into_iter().filter(|place| self.is_unconfirmed(*place)).collect()
    }

    /// Returns whether the capacity of the goal's job in an arm was measured only in a short block, and is so little
    /// above the arrivals that the job may not keep up.
    pub(super) fn is_unconfirmed(&self, place: usize) -> bool {
        let record = &self.records[place];
        let load = self.scorer.percentile().and_then(|(job, _)| self.load(record, job));
        !record.is_confirmed && load.is_some_and(|load| (HIGH_LOAD..1.0).contains(&load))
    }

    /// Clears the blocks of the final comparison and returns its arms.
    fn contestants(&mut self) -> Claim {
        self.records.iter_mut().for_each(|record| drop(record.samples.remove(&Stage::Final)));
        self.value_all();
        self.selected()
    }

    /// Returns the arms of the final comparison. If the rest of the budget is too short for two candidates, returns
    /// only the one with the greater margin to the bound, and if it is too short even for an interval, only one such rival.
    fn selected(&self) -> Claim {
        let mut claim = self.wanted();
        let safest = |arms: Vec<usize>| self.best_with_margin(&arms, DISTANCES[1]);
        if self.spent() > self.final_begins(&claim, REPETITIONS) {
            claim.candidates = Vec::from_iter(safest(self.partitions()));
        }
        if self.spent() > self.final_begins(&claim, LEAST_REPETITIONS) {
            claim.plain = Vec::from_iter(safest(self.plain()));
        }
        claim
    }

    /// Returns the arms of a final comparison that has time for all of them.
    pub(super) fn wanted(&self) -> Claim {
        let candidates = self.several(self.partitions(), self.candidates_of_final());
        Claim { candidates, plain: self.several(self.plain(), RIVALS), repetitions: 0 }
    }

    /// Returns the fraction of the budget at which the final comparison must begin to have this many repetitions.
    fn final_begins(&self, claim: &Claim, repetitions: usize) -> f64 {
        1.0 - SLACK - self.part(self.final_length(claim, repetitions))
    }

    /// Returns the length of a final comparison with this many repetitions.
    fn final_length(&self, claim: &Claim, repetitions: usize) -> Duration {
        let confirming = (LEAD_IN + self.sustained()) * self.unconfirmed(claim).len() as u32;
        self.preheating() + confirming + self.repetition_length(claim) * repetitions as u32
    }

    fn preheating(&self) -> Duration {
        PREHEAT.min(self.question.budget.mul_f64(MOST_PREHEAT))
    }

    /// Lets the clocks settle under the load that follows.
    fn preheat(&mut self, claim: &Claim) -> Found<(), M> {
        let Some(place) = claim.arms().first().copied() else { return Ok(()) };
        let duration = self.preheating();
        if self.has_time_for(duration, 1.0, "letting the clocks settle") {
            let block = Block { as_applied: true, ..self.block(0, Duration::ZERO, duration) };
            self.run(&Task::Together(self.records[place].arm.clone()), &block)?;
        }
        Ok(())
    }

    /// Runs one block of each arm, in reverse order in every second repetition. Returns whether all of them ran.
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

    /// Returns whether further repetitions would add little.
    fn is_narrow(&self, claim: &Claim) -> bool {
        // Not after every repetition: among many, one more changes little, and the check is slow.
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
        let is_gain_known = claim.candidates.is_empty()
            || claim.plain.is_empty()
            || self.gain(claim).is_some_and(|gain| gain.relative_half_width() <= NARROW);
        is_bound_known && is_gain_known
    }

    /// Returns the best of the candidates.
    pub(super) fn winner(&self, claim: &Claim) -> Option<usize> {
        self.best_of(claim, &claim.candidates)
    }

    /// Returns the best of the arms without partitions. If the jobs keep up in none of them, returns the one that is
    /// closest to it.
    pub(super) fn rival(&self, claim: &Claim) -> Option<usize> {
        self.best_of(claim, &claim.plain).or_else(|| self.best(is_plain))
    }

    /// Returns the best arm among those certain to meet the bound. If there are none, returns the one closest to it.
    fn best_of(&self, claim: &Claim, places: &[usize]) -> Option<usize> {
        let mut certain = places.to_vec();
        certain.retain(|place| self.meets(claim, *place));
        let places = if certain.is_empty() { places } else { &certain };
        self.best_by(places, |place, excess| {
            self.excess(claim, place).map_or(excess, |interval| interval.high)
        })
    }

    /// Returns the best arm after `excess` has replaced the excess of each.
    fn best_by(&self, places: &[usize], excess: impl Fn(usize, f64) -> f64) -> Option<usize> {
        let valued = |place: &usize| {
            let value = self.value(*place)?;
            Some((*place, Value { excess: excess(*place, value.excess), ..value }))
        };
        best_first(places.iter().filter_map(valued)).first().copied()
    }

    /// Returns an arm's value by a subset of the repetitions.
    pub(super) fn claimed(&self, place: usize, repetitions: &[usize]) -> Option<Value> {
        let samples = self.records[place].samples.get(&Stage::Final)?;
        let samples: Option<Vec<_>> = repetitions.iter().map(|at| samples.get(*at)).collect();
        self.scorer.value(&samples?, Average::Mean)
    }

    /// Returns how far an arm misses the goal's bound, as a fraction of the bound; it meets the bound if this is not
    /// positive. `None` for goals without a bound, and if the queue of the goal's job grows or may grow without limit.
    pub(super) fn excess(&self, claim: &Claim, place: usize) -> Option<Interval> {
        let grows = self.overload(&self.records[place]).is_some();
        if !self.has_bound() || grows || self.is_unconfirmed(place) || !self.is_known(place) {
            return None;
        }
        let excess = |kept: &[usize]| Some(self.claimed(place, kept)?.excess);
        if let Goal::Least { .. } = self.question.goal {
            // The errors of a rate are relative.
            let all: Vec<usize> = (0..claim.repetitions).collect();
            let rate = 1.0 - excess(&all)?;
            return interval(claim.repetitions, rate * self.between(BETWEEN_RATES), excess);
        }
        // The errors of a percentile are relative.
        let ratio = |kept: &[usize]| Some(excess(kept)?.ln_1p());
        let ratio = interval(claim.repetitions, self.between(BETWEEN_TAILS), ratio)?;
        Some(ratio.widened(self.queueing(place)).map(f64::exp_m1))
    }

    /// Returns the ratio of the [winner](Self::winner)'s score to that of the [rival](Self::rival), minus 1.
    pub(super) fn gain(&self, claim: &Claim) -> Option<Interval> {
        let (candidate, rival) = (self.winner(claim)?, self.rival(claim)?);
        // The interval is computed for the logarithm, so that neither end is below -100 %.
        let ratio = |kept: &[usize]| {
            let (ours, theirs) = (self.claimed(candidate, kept)?, self.claimed(rival, kept)?);
            Some((ours.score / theirs.score).ln())
        };
        let (processes, [ours, theirs]) = match self.question.goal {
            Goal::Least { .. } => (BETWEEN_TAILS, [candidate, rival].map(|of| self.queueing(of))),
            _ => (BETWEEN_RATES, [[0.0; 2]; 2]),
        };
        let gain = interval(claim.repetitions, self.between(processes), ratio)?;
        let queues = [ours[1].hypot(theirs[0]), ours[0].hypot(theirs[1])];
        Some(gain.widened(queues).map(f64::exp_m1))
    }

    /// Returns whether the final comparison had enough iterations for the goal's percentile.
    pub(super) fn is_known(&self, place: usize) -> bool {
        self.iterations(place).is_none_or(|(found, needed)| found >= needed)
    }

    /// Returns the iterations of the goal's job in the final comparison, and the number that its percentile needs.
    pub(super) fn iterations(&self, place: usize) -> Option<(usize, usize)> {
        let (job, percentile) = self.scorer.percentile()?;
        let samples = self.records[place].samples.get(&Stage::Final).into_iter().flatten();
        let latencies: Vec<f64> =
            samples.flat_map(|sample| &sample.jobs[job].latencies_us).copied().collect();
        let each = reachable(&latencies, percentile)
            .and_then(|tail_us| self.per_independent(place, job, tail_us));
        let needed = (samples_for(percentile) as f64 * each.unwrap_or(1.0).max(1.0)) as usize;
        let in_trace = match &self.question.jobs[job].arrival {
            Arrival::Trace { seconds } => PLAYED * seconds.len(),
            _ => 0,
        };
        Some((latencies.len(), needed.max(in_trace)))
    }

    /// Returns the number of a job's iterations per independent one, if a queue makes them depend on each other and
    /// the bound is so close to the percentile that this matters.
    fn per_independent(&self, place: usize, job: usize, tail_us: f64) -> Option<f64> {
        let (capacity, arrival) =
            (self.records[place].capacities[job]?, &self.question.jobs[job].arrival);
        let (hz, filling) = (arrival.hz()?, filling_time(arrival, capacity)?);
        let service_us = 1e6 / capacity;
        if tail_us <= NO_QUEUE * service_us {
            return None;
        }
        if let Goal::Keep { bound_us, .. } = self.question.goal {
            // A percentile that is too low is enough to show that the bound is missed.
            let clear_us = CLEAR * service_us / (1.0 - hz / capacity);
            if bound_us < tail_us || bound_us >= clear_us {
                return None;
            }
        }
        Some(hz * INDEPENDENT * filling.as_secs_f64())
    }
}

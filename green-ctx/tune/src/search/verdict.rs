//! The verdict: whether to partition, based only on the final comparison.

use std::collections::BTreeMap;

use super::finals::Claim;
use super::{Search, is_partition, is_plain};
use crate::arm::Arm;
use crate::goal::{Goal, percentile_name};
use crate::measure::Measure;
use crate::outcome::Verdict;
use crate::request::RequestError;
use crate::stats::{Interval, LEAST_REPETITIONS};

impl<M: Measure> Search<'_, M> {
    pub(super) fn verdict(&self, claim: Option<&Claim>) -> Result<Verdict, RequestError> {
        let only = |place: Option<usize>| place.into_iter().collect();
        let (candidates, plain) = (only(self.best(is_partition)), only(self.best(is_plain)));
        let none = Claim { candidates, plain, repetitions: 0 };
        let claim = claim.unwrap_or(&none);
        let (candidate, rival) = (self.winner(claim), self.rival(claim));
        let gain = self.gain(claim);
        let allowed =
            rival.filter(|place| self.question.space.holds_floors(&self.records[*place].arm));
        let meets = |place: usize| self.meets(claim, place);
        let starves = |place: usize| self.is_starving(claim, place);
        let best = match (candidate, allowed) {
            (Some(ours), Some(theirs)) => Some(match (meets(ours), meets(theirs)) {
                (true, true) if gain.is_some_and(|gain| gain.low > 0.0) => ours,
                (true, true) if starves(theirs) && !starves(ours) => ours,
                (true, true) => theirs,
                (true, false) => ours,
                (false, true) => theirs,
                (false, false) => self.closer(ours, theirs),
            }),
            (ours, theirs) => ours.or(theirs),
        };
        let best = best.ok_or_else(|| self.no_arm())?;
        let arm = &self.records[best].arm;
        let mut sentence = self.sentence(claim, best, gain);
        if let Some(stand_in) = self.measure.stand_in() {
            sentence.push_str(&format!(" (This verdict comes from {stand_in}, not from a GPU.)"));
        }
        Ok(Verdict {
            arm: best,
            candidate,
            rival,
            kind: arm.kind(),
            shares: self.shares(arm),
            priority: self.priorities(arm),
            gain: gain.map(|gain| gain.middle),
            interval: gain.map(|gain| [gain.low, gain.high]),
            meets: meets(best),
            sentence,
        })
    }

    /// Returns the reason why there is no verdict.
    fn no_arm(&self) -> RequestError {
        if self.interrupted {
            return RequestError::Interrupted;
        }
        let is_allowed = |arm: &Arm| self.question.space.holds_floors(arm);
        let reason = self.records.iter().enumerate().find_map(|(place, record)| {
            let reason = record.skipped.as_ref().filter(|_| is_allowed(&record.arm))?;
            Some(format!("with {}, {reason}", self.describe(place)))
        });
        let too_short = || {
            "none has enough measurements: use a larger budget; a percentile needs a job with a rate, or with one iteration in flight".to_owned()
        };
        RequestError::NoArm { reason: reason.unwrap_or_else(too_short) }
    }

    /// Returns whether the upper end of an arm's interval meets the goal's bound.
    pub(super) fn meets(&self, claim: &Claim, place: usize) -> bool {
        match self.question.goal {
            Goal::Throughput { .. } | Goal::Makespan => true,
            _ => self.excess(claim, place).is_some_and(|excess| excess.high <= 0.0),
        }
    }

    /// Returns whether the jobs whose rates the goal compares finished no iteration in the first or in the second half of
    /// the repetitions. No interval of a gain over such an arm can be computed.
    pub(super) fn is_starving(&self, claim: &Claim, place: usize) -> bool {
        let all: Vec<usize> = (0..claim.repetitions).collect();
        let (first, second) = all.split_at(claim.repetitions / 2);
        let has_none = |half| self.claimed(place, half).is_some_and(|value| value.score <= 0.0);
        claim.repetitions >= LEAST_REPETITIONS && (has_none(first) || has_none(second))
    }

    /// Returns a sentence that names those of the two best arms that starve jobs.
    pub(super) fn starved(&self, claim: &Claim) -> Option<String> {
        let arms = [self.winner(claim), self.rival(claim)].into_iter().flatten();
        let arms = arms.filter(|place| self.is_starving(claim, *place));
        let arms = arms.map(|place| self.describe(place)).collect::<Vec<_>>().join(" and with ");
        let jobs = match self.question.goal {
            Goal::Keep { .. } => "the other jobs",
            _ => "the jobs",
        };
        (!arms.is_empty()).then(|| format!(" With {arms}, {jobs} finished few iterations or none."))
    }

    /// Returns the arm that is closer to the bound. Returns the arm without partitions if that may meet the bound.
    fn closer(&self, ours: usize, theirs: usize) -> usize {
        let excess = |place| self.value(place).map_or(f64::INFINITY, |value| value.excess);
        if excess(ours) < excess(theirs) && excess(theirs) > 0.0 { ours } else { theirs }
    }

    fn sentence(&self, claim: &Claim, best: usize, gain: Option<Interval>) -> String {
        let how = self.describe(best);
        let has_bound = self.has_bound();
        if has_bound && !self.meets(claim, best) {
            return self.miss(claim, best);
        }
        let bound = self.bound(claim, best);
        let against = |gain: Interval| {
            let [low, middle, high] =
                [gain.low, gain.middle, gain.high].map(|part| format!("{:+.1} %", 100.0 * part));
            format!("{middle} (95 %: {low} to {high})")
        };
        let misses = |place: usize| has_bound && !self.meets(claim, place);
        let starved = self.starved(claim);
        // With a bound, others may be better, but are left out.
        let certain = |meets: &str| match has_bound {
            true => format!(" that certainly {meets} the bound"),
            false => String::new(),
        };
        if is_partition(&self.records[best].arm) {
            let rest = match (self.rival(claim), gain) {
                (Some(rival), _) if misses(rival) => {
                    ". Without partitions, the bound is not met with certainty.".to_owned()
                }
                (Some(rival), Some(gain)) => format!(
                    "; gain over the best arm without partitions{} ({}): {}.",
                    certain("meets"),
                    self.describe(rival),
                    against(gain)
                ),
                (Some(_), None) if starved.is_some() => {
                    format!(".{}", starved.unwrap_or_default())
                }
                (Some(_), None) => {
                    "; the budget was too short to compare it with arms without partitions."
                        .to_owned()
                }
                (None, _) => "; no arm without partitions was measured for comparison.".to_owned(),
            };
            return format!("Partition: {how}{bound}{rest}");
        }
        let rest = match (self.winner(claim), gain) {
            (Some(candidate), _) if misses(candidate) => {
                " No partitions meet the bound with certainty.".to_owned()
            }
            (Some(candidate), Some(gain)) => format!(
                " The best partitions{} ({}) gain {}.",
                certain("meet"),
                self.describe(candidate),
                against(gain)
            ),
            (Some(_), None) if starved.is_some() => starved.unwrap_or_default(),
            (Some(candidate), None) => format!(
                " The budget was too short to compare it with the best partitions ({}).",
                self.describe(candidate)
            ),
            (None, _) => " No partitions were measured.".to_owned(),
        };
        format!("Don't partition; use {how}{bound}.{rest}")
    }

    /// Returns words that say how well an arm meets the goal's bound.
    fn bound(&self, claim: &Claim, place: usize) -> String {
        let Some(excess) = self.excess(claim, place) else { return String::new() };
        let ends = [excess.middle, excess.low, excess.high];
        match &self.question.goal {
            Goal::Keep { job, bound_us, percentile } => {
                let [middle, low, high] =
                    ends.map(|excess| format!("{:.0}", bound_us * (1.0 + excess).max(0.0)));
                let name = percentile_name(*percentile);
                format!(", with {name} of {job} at {middle} µs (95 %: {low} to {high})")
            }
            Goal::Least { other, keep, .. } => {
                let [middle, high, low] =
                    ends.map(|excess| format!("{:.0}", 100.0 * keep * (1.0 - excess)));
                format!(", with {other} at {middle} % of its rate alone (95 %: {low} to {high})")
            }
            Goal::Throughput { .. } | Goal::Makespan => String::new(),
        }
    }

    /// Returns a sentence that says why no arm is known to meet the bound, and which comes closest.
    fn miss(&self, claim: &Claim, best: usize) -> String {
        let how = self.describe(best);
        let record = &self.records[best];
        if let Some((job, _)) = self.scorer.percentile().filter(|_| self.overload(record).is_some())
        {
            let known = &self.question.jobs[job];
            let (requested, possible) = (known.arrival.hz(), record.capacities[job]);
            return format!(
                "Nothing meets the bound: {} cannot keep up while the other jobs run: {:.0}/s requested, \
                 {:.0}/s possible with {how}.",
                known.name,
                requested.unwrap_or_default(),
                possible.unwrap_or_default()
            );
        }
        if self.excess(claim, best).is_none() {
            return match self.iterations(best) {
                Some((found, needed)) if found < needed => format!(
                    "Too few iterations to know the percentile: {how} ranks first, but has only {found} of the \
                     {needed} iterations needed."
                ),
                _ => format!("The budget was too short to know whether {how} meets the bound."),
            };
        }
        let asked = match &self.question.goal {
            Goal::Keep { bound_us, .. } => format!("{bound_us:.0} µs"),
            Goal::Least { keep, .. } => format!("{:.0} %", 100.0 * keep),
            Goal::Throughput { .. } | Goal::Makespan => String::new(),
        };
        let bound = self.bound(claim, best);
        format!("Nothing meets the bound of {asked} with certainty: {how} comes closest{bound}.")
    }

    pub(super) fn shares(&self, arm: &Arm) -> BTreeMap<String, String> {
        let sms = self.question.space.pieces.sms;
        let jobs = self.question.jobs.iter().enumerate();
        jobs.map(|(job, of)| (of.name.clone(), arm.share(job, sms).to_string())).collect()
    }

    pub(super) fn priorities(&self, arm: &Arm) -> BTreeMap<String, i32> {
        let jobs = self.question.jobs.iter().zip(arm.priorities());
        jobs.map(|(job, priority)| (job.name.clone(), *priority)).collect()
    }
}

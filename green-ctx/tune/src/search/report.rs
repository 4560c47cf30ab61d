//! The outcome of a search.

use super::finals::{BETWEEN_RATES, Claim};
use super::{HIGH_LOAD, Search};
use crate::goal::Goal;
use crate::measure::{HOST_BOUND, Measure, Sample};
use crate::outcome::{ArmReport, JobReport, Latency, Outcome, Stage};
use crate::request::RequestError;
use crate::stats::{mean, median, quantile, samples_for};

/// The drift of a reference rate above which the figures are doubtful.
const MOST_DRIFT: f64 = 0.05;
/// The half-width above which an interval is wider than most uses need, relative to the ratio of the scores.
const WIDE: f64 = 0.02;

impl<M: Measure> Search<'_, M> {
    pub(super) fn outcome(mut self, claim: Option<Claim>) -> Result<Outcome, RequestError> {
        let seconds = (self.measure.now() - self.began).as_secs_f64();
        let verdict = self.verdict(claim.as_ref())?;
        let mut notes = std::mem::take(&mut self.notes);
        for (job, alone) in self.question.jobs.iter().zip(&self.alone) {
            let drift = drift(&alone.references);
            if drift > MOST_DRIFT {
                let cause = match self.measure.stand_in() {
                    None => "something else used the GPU, or its clocks changed",
                    Some(_) => "no GPU ran it",
                };
                notes.push(format!(
                    "the rate of {} alone drifted by {:.0} % during the search: {cause}",
                    job.name,
                    100.0 * drift
                ));
            }
            if alone.host > HOST_BOUND {
                notes.push(format!(
                    "{} is bound by the host: submitting an iteration takes as long as running it; capture it \
                     in a graph",
                    job.name
                ));
            }
        }
        notes.extend(self.high_loads(verdict.arm));
        notes.extend(self.budget(claim.as_ref(), verdict.arm));
        notes.extend(claim.iter().flat_map(|claim| self.uncertain(claim)));
        let drifts = self.alone.iter().map(|alone| drift(&alone.references));
        let drift = drifts.fold(0.0, f64::max);
        Ok(Outcome {
            machine: None,
            goal: self.question.goal.clone(),
            limits: self.question.limits.clone(),
            pieces: self.question.space.pieces,
            verdict,
            jobs: (0..self.question.jobs.len()).map(|job| self.job_report(job)).collect(),
            arms: (0..self.records.len())
                .map(|place| self.arm_report(claim.as_ref(), place))
                .collect(),
            drift,
            notes,
            budget: Some(self.question.budget.as_secs_f64()),
            seconds,
            complete: !self.interrupted,
        })
    }

    /// Returns notes about jobs that are close to their capacity in an arm.
    fn high_loads(&self, place: usize) -> Vec<String> {
        let jobs = self.question.jobs.iter().zip(&self.records[place].capacities);
        let note = |(job, capacity): (&super::Known, &Option<f64>)| {
            let (requested, possible) = (job.arrival.hz()?, (*capacity)?);
            (requested > HIGH_LOAD * possible).then(|| {
                format!(
                    "{} runs at {:.0} % of its capacity with {}: {requested:.0}/s of {possible:.0}/s",
                    job.name,
                    100.0 * requested / possible,
                    self.describe(place)
                )
            })
        };
        jobs.filter_map(note).collect()
    }

    /// Returns a note with a sufficient budget, if the budget was too small.
    fn budget(&self, claim: Option<&Claim>, place: usize) -> Option<String> {
        // A larger budget may have time for a further candidate.
        let arms = |claim: &Claim| claim.arms().len().max(1) as f64;
        let more = claim.map_or(1.0, |claim| (arms(&self.wanted()) / arms(claim)).max(1.0));
        let budget = self.question.budget.as_secs_f64() * more;
        if let Some((found, needed)) =
            self.iterations(place).filter(|(found, needed)| (1..*needed).contains(found))
        {
            let budget = budget * needed as f64 / found as f64;
            return Some(format!(
                "the percentile needs {needed} iterations, but the final comparison had {found}; a budget of \
                 about {budget:.0} s would be enough"
            ));
        }
        if self.is_unconfirmed(place) {
            let needed = self.enough_budget().as_secs_f64();
            return Some(format!(
                "the capacities of the best arms were not measured in long blocks; a budget of about {:.0} s would be \
                 enough",
                needed.max(1.5 * budget).ceil()
            ));
        }
        // A larger budget reduces only the scatter, and two percentiles differ by more between processes.
        let scatter = |half: f64| half.powi(2) - BETWEEN_RATES.powi(2);
        let is_tail = matches!(self.question.goal, Goal::Least { .. });
        match claim.and_then(|claim| self.gain(claim)) {
            Some(gain) if gain.relative_half_width() > WIDE && !is_tail => Some(format!(
                "the interval of the gain is wide; a budget of about {:.0} s would narrow it to about ±2 % of the ratio of \
                 the scores",
                budget * (0.5 + 0.5 * scatter(gain.relative_half_width()) / scatter(WIDE))
            )),
            None if claim.is_none_or(|claim| {
                let are_measured = !claim.candidates.is_empty() && !claim.plain.is_empty();
                are_measured && self.starved(claim).is_none()
            }) =>
            {
                let needed = self.enough_budget().as_secs_f64();
                Some(format!(
                    "the final comparison was too short for an interval; a budget of about {:.0} s would be enough",
                    needed.max(1.5 * budget).ceil()
                ))
            }
            _ => None,
        }
    }

    /// Returns notes about arms of the final comparison that have a higher score than the best of their kind, but were
    /// left out because it is not certain that they meet the bound.
    fn uncertain(&self, claim: &Claim) -> Vec<String> {
        let sides = [(self.rival(claim), &claim.plain), (self.winner(claim), &claim.candidates)];
        let sides = sides.into_iter().filter_map(|(best, arms)| Some((best?, arms)));
        let note = |best: usize, place: usize| {
            let (value, least) = (self.value(place)?, self.value(best)?);
            let is_left_out = self.has_bound()
                && (value.meets() && value.score > least.score)
                && (self.meets(claim, best) && !self.meets(claim, place));
            is_left_out.then(|| {
                format!(
                    "with {}, the score was higher than with {}, and the final comparison met the bound, but not with \
                     certainty, so this arm was left out; a larger budget may decide it",
                    self.describe(place),
                    self.describe(best)
                )
            })
        };
        sides
            .flat_map(|(best, arms)| arms.iter().filter_map(move |place| note(best, *place)))
            .collect()
    }

    fn job_report(&self, job: usize) -> JobReport {
        let (known, alone) = (&self.question.jobs[job], &self.alone[job]);
        JobReport {
            name: known.name.clone(),
            key: known.key.clone(),
            arrival: known.arrival.clone(),
            host_bound: alone.host > HOST_BOUND,
            rate: alone.rate,
            capacity: known.arrival.hz().and_then(|_| median(&alone.references)),
            references: alone.references.clone(),
            solo: alone.curve.rates(),
        }
    }

    fn arm_report(&self, claim: Option<&Claim>, place: usize) -> ArmReport {
        let record = &self.records[place];
        // The most reliable blocks are those of the last stage.
        let last = record.samples.iter().rev().find(|(_, samples)| !samples.is_empty());
        let (stage, samples) = last.map_or((Stage::Search, [].as_slice()), |(stage, samples)| {
            (*stage, samples.as_slice())
        });
        let names = || self.question.jobs.iter().map(|job| job.name.clone()).enumerate();
        let rate = |job: usize| mean(samples.iter().map(|sample| sample.jobs[job].rate));
        let value = self.value(place);
        let blocks = record.samples.values().map(Vec::len).sum();
        ArmReport {
            kind: record.arm.kind(),
            shares: self.shares(&record.arm),
            priority: self.priorities(&record.arm),
            stage,
            rates: names().filter_map(|(job, name)| Some((name, rate(job)?))).collect(),
            latency_us: names()
                .filter_map(|(job, name)| Some((name, latency(samples, job)?)))
                .collect(),
            capacity: names()
                .filter_map(|(job, name)| Some((name, record.capacities[job]?)))
                .collect(),
            score: value.map(|value| value.score),
            excess: value.map_or(0.0, |value| value.excess),
            certain: claim
                .filter(|claim| self.has_bound() && claim.arms().contains(&place))
                .map(|claim| self.meets(claim, place)),
            blocks,
            skipped: record.skipped.clone(),
        }
    }
}

fn latency(samples: &[Sample], job: usize) -> Option<Latency> {
    let all: Vec<f64> =
        samples.iter().flat_map(|sample| &sample.jobs[job].latencies_us).copied().collect();
    let p99 = quantile(&all, 0.99).filter(|_| all.len() >= samples_for(0.99));
    let mean = mean(all.iter().copied())?;
    Some(Latency { mean, p50: quantile(&all, 0.5)?, p99, iterations: all.len() })
}

/// Returns the ratio of the highest to the lowest median among the thirds of a series, minus 1. Medians are used
/// because a single measurement is unreliable.
fn drift(values: &[f64]) -> f64 {
    let third = values.len().div_ceil(3).max(1);
    let medians: Vec<f64> = values.chunks(third).filter_map(median).collect();
    let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
    let most = medians.iter().copied().fold(0.0, f64::max);
    if least > 0.0 && least.is_finite() { most / least - 1.0 } else { 0.0 }
}

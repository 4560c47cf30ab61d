//! What follows from what was measured.

use std::collections::BTreeMap;

use super::super::arm::{Arm, ArmKind};
use super::super::goal::{Goal, percentile_name};
use super::super::measure::Measure;
use super::super::outcome::{ArmReport, BlockReport, JobReport, Latency, Outcome, Verdict};
use super::super::stats::{Interval, median, quantile, samples_for};
use super::finals::{Pairs, is_partition, is_plain};
use super::{MOST_DRIFT, Record, Search};

impl<M: Measure> Search<'_, M> {
    pub(super) fn outcome(mut self, pairs: Option<Pairs>) -> Outcome {
        let seconds = (self.measure.now() - self.began).as_secs_f64();
        for (job, rates) in self.question.jobs.iter().zip(&self.references) {
            let drift = drift(rates);
            if drift > MOST_DRIFT {
                self.notes.push(format!(
                    "{} alone drifted by {:.0} % in the course of the search: something else used the GPU, or \
                     its clocks changed; measure again before you rely on small differences",
                    job.name,
                    100.0 * drift
                ));
            }
        }
        let drift = self.references.iter().map(|rates| drift(rates)).fold(0.0, f64::max);
        let jobs: Vec<JobReport> =
            (0..self.question.jobs.len()).map(|job| self.job_report(job)).collect();
        for job in jobs.iter().filter(|job| job.host_bound) {
            self.notes.push(format!(
                "{} is bound by the host: submitting an iteration takes longer than running it; capture it \
                 in a graph",
                job.name
            ));
        }
        let verdict = self.verdict(pairs);
        let arms = (0..self.records.len()).map(|place| self.arm_report(place)).collect();
        Outcome {
            machine: None,
            goal: self.question.goal.clone(),
            limits: self.question.limits.clone(),
            pieces: self.question.space.pieces.clone(),
            verdict,
            jobs,
            arms,
            drift,
            notes: self.notes,
            seconds,
            complete: !self.interrupted,
        }
    }

    fn job_report(&self, job: usize) -> JobReport {
        let profile = &self.question.jobs[job];
        let rate = self.alone[job];
        JobReport {
            name: profile.name.clone(),
            key: profile.key.clone(),
            arrival: profile.arrival.clone(),
            host_bound: self.hosts[job] > HOST_BOUND,
            rate,
            solo: self.curves[job].rates(),
            references: self.references[job].clone(),
        }
    }

    fn arm_report(&self, place: usize) -> ArmReport {
        let record @ Record { arm, samples, scores, skipped, .. } = &self.records[place];
        let of_jobs = || self.question.jobs.iter().map(|job| job.name.clone()).enumerate();
        let rate = |job: usize| {
            let rates: Vec<f64> = samples.iter().map(|sample| sample.jobs[job].rate).collect();
            median(&rates)
        };
        let value = record.value;
        ArmReport {
            kind: arm.kind(),
            shares: self.shares(arm),
            priority: self.priorities(arm),
            rates: of_jobs().filter_map(|(job, name)| Some((name, rate(job)?))).collect(),
            latency_us: of_jobs()
                .filter_map(|(job, name)| Some((name, latency(record, job)?)))
                .collect(),
            score: value.map(|value| value.score),
            miss: value.map_or(0.0, |value| value.miss),
            samples: samples.len(),
            blocks: samples
                .iter()
                .zip(scores)
                .map(|(sample, score)| BlockReport::of(sample, *score))
                .collect(),
            skipped: skipped.clone(),
        }
    }

    fn shares(&self, arm: &Arm) -> BTreeMap<String, String> {
        let sms = self.question.space.pieces.sms;
        let share = |job: usize| match arm.kind() {
            ArmKind::Partition => arm.share(job, sms).to_string(),
            _ => "..".to_owned(),
        };
        self.question
            .jobs
            .iter()
            .enumerate()
            .map(|(job, of)| (of.name.clone(), share(job)))
            .collect()
    }

    fn priorities(&self, arm: &Arm) -> BTreeMap<String, i32> {
        let jobs = self.question.jobs.iter().zip(arm.priorities());
        jobs.map(|(job, priority)| (job.name.clone(), *priority)).collect()
    }

    fn verdict(&mut self, pairs: Option<Pairs>) -> Verdict {
        let rival = pairs.as_ref().map(|pairs| pairs.rival).or_else(|| self.best(is_plain));
        let partition = match &pairs {
            Some(pairs) => Some(pairs.chosen),
            None => self.best(is_partition),
        };
        let misses = |place: usize| self.misses(place, pairs.as_ref());
        let allowed = |place: &usize| self.question.space.holds_floors(&self.records[*place].arm);
        let gain = pairs.as_ref().filter(|pairs| !misses(pairs.rival)).and_then(|it| self.gain(it));
        let best = match (partition, rival) {
            (Some(partition), Some(rival)) if allowed(&rival) => {
                let gains = gain.is_some_and(|gain| gain.low > 0.0 && gain.middle > LEAST_GAIN);
                match (misses(partition), misses(rival)) {
                    (false, false) if gains => Some(partition),
                    (false, true) => Some(partition),
                    (_, false) => Some(rival),
                    // Neither meets the bound: whichever comes closer.
                    (true, true) => self.best(|_| true),
                }
            }
            (partition, rival) => partition.or(rival.filter(allowed)),
        };
        let Some(best) = best else { return self.nothing_ran() };
        let meets = !misses(best) && self.is_known(best);
        self.name_budgets(best);
        let arm = self.records[best].arm.clone();
        let divides = arm.kind() == ArmKind::Partition;
        let gain = gain.filter(|_| meets && divides).or_else(|| {
            // The best without partitions is as good as itself.
            let zero = Interval { low: 0.0, middle: 0.0, high: 0.0 };
            (Some(best) == rival && meets).then_some(zero)
        });
        // Without blocks beside each other, at least a figure.
        let ratio = || {
            let compared = |rival: &usize| meets && divides && !self.misses(*rival, pairs.as_ref());
            let rival = rival.filter(compared)?;
            let gain = self.value(best)?.score / self.value(rival)?.score - 1.0;
            gain.is_finite().then_some(gain)
        };
        let middle = gain.map(|gain| gain.middle).or_else(ratio);
        let sentence = self.sentence(best, partition, rival, pairs.as_ref());
        Verdict {
            arm: Some(best),
            rival: if divides { rival } else { partition },
            kind: arm.kind(),
            shares: self.shares(&arm),
            priority: self.priorities(&arm),
            gain: middle,
            confidence: gain.map(|gain| gain.low),
            upper: gain.map(|gain| gain.high),
            meets,
            sentence,
        }
    }

    fn nothing_ran(&self) -> Verdict {
        let arm = Arm::streams(self.question.jobs.len(), self.question.space.pieces.sms);
        Verdict {
            arm: None,
            rival: None,
            kind: arm.kind(),
            shares: self.shares(&arm),
            priority: self.priorities(&arm),
            gain: None,
            confidence: None,
            upper: None,
            meets: false,
            sentence: "No arm that is allowed has figures; see why each was skipped.".to_owned(),
        }
    }

    fn sentence(
        &self,
        best: usize,
        partition: Option<usize>,
        rival: Option<usize>,
        pairs: Option<&Pairs>,
    ) -> String {
        let misses = |place: usize| self.misses(place, pairs);
        if misses(best) {
            return format!("Nothing meets the bound: {}", self.closest(best, pairs));
        }
        let how = self.describe(best);
        if let (false, Some((found, needed))) = (self.is_known(best), self.lacks_samples(best)) {
            return format!(
                "Too few iterations to know the percentile: {how} comes first, with {found} of the {needed} \
                 that it needs."
            );
        }
        let met = self.how_well(best, pairs);
        let gain = pairs.and_then(|pairs| self.gain(pairs));
        let percent = |ratio: f64| format!("{:+.1} %", 100.0 * ratio);
        let interval = |gain: Interval| {
            format!(
                "{} (95 %: {} to {})",
                percent(gain.middle),
                percent(gain.low),
                percent(gain.high)
            )
        };
        if is_partition(&self.records[best].arm) {
            return match (rival, gain) {
                (Some(rival), _) if misses(rival) => {
                    format!("Partition: {how}{met}. Nothing without partitions meets the bound.")
                }
                (Some(rival), Some(gain)) => format!(
                    "Partition: {how}{met}; {} to the best without partitions, {}.",
                    interval(gain),
                    self.describe(rival)
                ),
                (Some(rival), None) => format!(
                    "Partition: {how}{met}; it was not compared for long enough with the best without \
                     partitions, {}.",
                    self.describe(rival)
                ),
                (None, _) => {
                    format!("Partition: {how}{met}; there is nothing to compare it with.")
                }
            };
        }
        let so = format!("Don't partition; use {how}{met}");
        match (partition, gain) {
            (Some(partition), _) if misses(partition) => {
                format!("{so}. No partition meets the bound.")
            }
            (Some(partition), Some(gain)) => format!(
                "{so}. The best partition, {}, is {} to that.",
                self.describe(partition),
                interval(gain)
            ),
            (Some(partition), None) => {
                format!(
                    "{so}. The best partition, {}, was not compared for long enough.",
                    self.describe(partition)
                )
            }
            (None, _) => format!("{so}. No partition was measured."),
        }
    }

    /// Names the budget that would do for each percentile that an arm has too few iterations for: the goal's,
    /// and the 99th of other jobs.
    fn name_budgets(&mut self, place: usize) {
        let goals = self.scorer.percentile();
        for (job, profile) in self.question.jobs.iter().enumerate() {
            let is_goals = goals.filter(|(of, _)| *of == job);
            let percentile = is_goals.map_or(0.99, |(_, percentile)| percentile);
            let Some((found, needed)) = self.lacks_samples_of(place, job, percentile) else {
                continue;
            };
            if found == 0 && is_goals.is_none() {
                continue; // its latencies are not measured
            }
            let budget = self.question.budget.as_secs_f64() * needed as f64 / found.max(1) as f64;
            self.notes.push(format!(
                "{} of {} needs {needed} iterations and the choice had {found}; a budget of {budget:.0} s \
                 would do",
                percentile_name(percentile),
                profile.name
            ));
        }
    }

    /// Whether there were enough iterations to know the goal's percentile.
    fn is_known(&self, place: usize) -> bool {
        self.lacks_samples(place).is_none()
    }

    /// Of a bounded percentile: what it is.
    fn how_well(&self, place: usize, pairs: Option<&Pairs>) -> String {
        let Goal::Keep { job, percentile, bound_us } = &self.question.goal else {
            return String::new();
        };
        let Some(excess) = self.excess(place, pairs) else { return String::new() };
        let [low, middle, high] = [excess.low, excess.middle, excess.high]
            .map(|excess| format!("{:.0}", bound_us * (1.0 + excess)));
        let name = percentile_name(*percentile);
        format!(", with {name} of {job} at {middle} µs (95 %: {low} to {high})")
    }

    /// What can be had of a bound that cannot be met.
    fn closest(&self, best: usize, pairs: Option<&Pairs>) -> String {
        let how = self.describe(best);
        let excess = self.excess(best, pairs).map(|excess| excess.middle);
        match &self.question.goal {
            Goal::Keep { job, percentile, bound_us } => {
                let latency = match excess {
                    Some(excess) => bound_us * (1.0 + excess),
                    None => self.pooled(best, job, *percentile).unwrap_or(f64::NAN),
                };
                let name = percentile_name(*percentile);
                format!(
                    "{how} comes closest, with {name} of {job} at {latency:.0} µs where {bound_us:.0} µs were asked for."
                )
            }
            Goal::Least { other, keep, .. } => {
                let place =
                    self.question.jobs.iter().position(|job| job.name == *other).unwrap_or(0);
                let record = &self.records[best];
                let rates: Vec<f64> =
                    record.samples.iter().map(|sample| sample.jobs[place].rate).collect();
                let part = match excess {
                    Some(excess) => keep * (1.0 - excess),
                    None => median(&rates).unwrap_or(0.0) / self.alone[place],
                };
                format!(
                    "{how} comes closest, with {:.0} % for {other} where {:.0} % were asked for.",
                    100.0 * part,
                    100.0 * keep
                )
            }
            Goal::Throughput { .. } | Goal::Makespan => format!("{how} comes closest."),
        }
    }

    fn pooled(&self, place: usize, job: &str, percentile: f64) -> Option<f64> {
        let job = self.question.jobs.iter().position(|known| known.name == job)?;
        quantile(&latencies(&self.records[place], job), percentile)
    }
}

/// What a partition must bring to be worth its while, beside being better for sure.
const LEAST_GAIN: f64 = 0.01;
/// Submitting takes so much of an iteration's time where a job is bound by the host. What is left is the
/// driver's own time between two launches.
const HOST_BOUND: f64 = 0.9;

fn latencies(record: &Record, job: usize) -> Vec<f64> {
    record.samples.iter().flat_map(|sample| &sample.jobs[job].latencies_us).copied().collect()
}

fn latency(record: &Record, job: usize) -> Option<Latency> {
    let all = latencies(record, job);
    let p99 = quantile(&all, 0.99).filter(|_| all.len() >= samples_for(0.99));
    Some(Latency { p50: quantile(&all, 0.5)?, p99, iterations: all.len() })
}

/// The greatest to the smallest of the medians of a series' thirds, minus 1: one block says little.
fn drift(values: &[f64]) -> f64 {
    let third = values.len().div_ceil(3).max(1);
    let medians: Vec<f64> = values.chunks(third).filter_map(median).collect();
    spread(&medians)
}

/// The greatest to the smallest, minus 1.
fn spread(values: &[f64]) -> f64 {
    let (least, most) = values.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
        (least.min(*value), most.max(*value))
    });
    if least > 0.0 && least.is_finite() { most / least - 1.0 } else { 0.0 }
}

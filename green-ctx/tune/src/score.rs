//! Scores of arms under a goal.

use crate::goal::Goal;
use crate::measure::Sample;
use crate::stats::{mean, median, reachable};

/// The value of an arm under a goal. Arms that meet the bound rank above those that miss it. Among arms that meet the
/// bound, a higher score is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    /// How far the arm misses the goal's bound, as a fraction of the bound. The value is positive if the arm misses the
    /// bound, and 0 if the goal has no bound.
    pub(crate) excess: f64,
    /// The arm's score; a higher score is better. For throughput, the score is the weighted sum of the jobs' rates. For
    /// `keep`, the score is the sum of the other jobs' rates. Each rate in a sum is divided by the rate that the job
    /// reaches alone. For all other goals, the score is the inverse of a time, in 1/s.
    pub(crate) score: f64,
}

impl Value {
    /// Returns whether this value is better than another.
    pub(crate) fn is_better_than(self, other: Value) -> bool {
        match (self.meets(), other.meets()) {
            (true, true) => self.score > other.score,
            (false, false) => self.excess < other.excess,
            (meets, _) => meets,
        }
    }

    /// Returns whether the value meets the goal's bound.
    pub(crate) fn meets(self) -> bool {
        self.excess <= 0.0
    }
}

/// Sorts by value, the best first. Items of the same value keep their order.
pub(crate) fn best_first<T>(valued: impl Iterator<Item = (T, Value)>) -> Vec<T> {
    let mut valued: Vec<(T, Value)> = valued.collect();
    valued.sort_by(|(_, a), (_, b)| b.is_better_than(*a).cmp(&a.is_better_than(*b)));
    valued.into_iter().map(|(item, _)| item).collect()
}

/// The kind of average that combines the measurements of several measurement blocks.
#[derive(Clone, Copy)]
pub(crate) enum Average {
    /// The median, for short blocks, because their measurements have outliers.
    Median,
    /// The mean, for long blocks, because the mean is the rate that a program reaches in the long run.
    Mean,
}

impl Average {
    fn of(self, values: &[f64]) -> Option<f64> {
        match self {
            Average::Median => median(values),
            Average::Mean => mean(values.iter().copied()),
        }
    }
}

/// Computes the values of arms under one goal, relative to the rates that the jobs reach alone.
#[derive(Clone, Debug)]
pub(crate) struct Scorer {
    goal: Goal,
    names: Vec<String>,
    /// The iterations per second that each job reaches alone.
    alone: Vec<f64>,
}

impl Scorer {
    /// Creates a scorer for jobs with these names. The goal must be valid for these names. `alone` contains the
    /// iterations per second that each job reaches alone.
    pub(crate) fn of(goal: &Goal, names: &[&str], alone: Vec<f64>) -> Scorer {
        let names = names.iter().map(ToString::to_string).collect();
        Scorer { goal: goal.clone(), names, alone }
    }

    fn place(&self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or(0)
    }

    /// Returns whether the goal requires that jobs run in [rounds](crate::Block::rounds).
    pub(crate) fn wants_rounds(&self) -> bool {
        matches!(self.goal, Goal::Makespan)
    }

    /// Returns the index of the job whose latency percentile the goal names, and the percentile as a fraction.
    pub(crate) fn percentile(&self) -> Option<(usize, f64)> {
        self.goal.percentile().map(|(job, share)| (self.place(job), share))
    }

    /// Returns a job's rate in a sample, as a fraction of the rate that the job reaches alone.
    fn part(&self, sample: &Sample, job: usize) -> f64 {
        sample.jobs[job].rate / self.alone[job]
    }

    /// Returns the value of an arm from its samples. Returns `None` if there are no samples, or if the goal names a
    /// percentile and there are no latencies.
    pub(crate) fn value(&self, samples: &[&Sample], average: Average) -> Option<Value> {
        let over_blocks = |figure: &dyn Fn(&Sample) -> f64| {
            average.of(&samples.iter().map(|sample| figure(sample)).collect::<Vec<_>>())
        };
        let percentile = || {
            let (job, share) = self.percentile()?;
            let latencies: Vec<f64> =
                samples.iter().flat_map(|sample| &sample.jobs[job].latencies_us).copied().collect();
            reachable(&latencies, share)
        };
        Some(match &self.goal {
            Goal::Throughput { weights } => {
                let mut of_jobs = vec![1.0; self.names.len()];
                weights.iter().for_each(|(name, weight)| of_jobs[self.place(name)] = *weight);
                let sum = |sample: &Sample| {
                    let parts = of_jobs.iter().enumerate();
                    parts.map(|(job, weight)| weight * self.part(sample, job)).sum()
                };
                Value { excess: 0.0, score: over_blocks(&sum)? }
            }
            Goal::Makespan => {
                let round = |sample: &Sample| average.of(&sample.rounds_us).unwrap_or(f64::NAN);
                let round_us = over_blocks(&round).filter(|us| us.is_finite())?;
                Value { excess: 0.0, score: 1e6 / round_us }
            }
            Goal::Keep { job, bound_us, .. } => {
                let job = self.place(job);
                let others = |sample: &Sample| {
                    let others = (0..self.alone.len()).filter(|other| *other != job);
                    others.map(|other| self.part(sample, other)).sum()
                };
                let excess = percentile()? / bound_us - 1.0;
                Value { excess, score: over_blocks(&others)? }
            }
            Goal::Least { other, keep, .. } => {
                let part = over_blocks(&|sample| self.part(sample, self.place(other)))?;
                Value { excess: (keep - part) / keep, score: 1e6 / percentile()? }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::JobSample;

    fn sample(rates: [f64; 2], latencies_us: &[f64]) -> Sample {
        let mut jobs = rates.map(|rate| JobSample { rate, ..JobSample::default() });
        jobs[0].latencies_us = latencies_us.to_vec();
        Sample { jobs: jobs.to_vec(), rounds_us: vec![2000.0] }
    }

    #[test]
    fn goals_value_samples() {
        let samples = [sample([50.0, 8.0], &[90.0; 600]), sample([70.0, 6.0], &[110.0; 600])];
        let value = |goal: &str, samples: &[&Sample]| {
            let scorer = Scorer::of(&goal.parse().expect(goal), &["a", "b"], vec![100.0, 10.0]);
            scorer.value(samples, Average::Mean)
        };
        let is_near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        for (goal, excess, score) in [
            ("throughput", 0.0, 0.6 + 0.7),
            ("makespan", 0.0, 500.0),
            ("keep:a:p99:100us", 0.1, 0.7),
            ("keep:a:p99:220us", -0.5, 0.7),
            ("least:a:p99:keep:b:0.8", 0.125, 1e6 / 110.0),
        ] {
            let value = value(goal, &samples.each_ref()).expect(goal);
            assert!(is_near(value.excess, excess) && is_near(value.score, score), "{value:?}");
        }
        assert_eq!(value("keep:b:p99:1us", &[&sample([1.0; 2], &[])]), None);
    }

    #[test]
    fn meeting_the_bound_comes_first() {
        let value = |excess, score| Value { excess, score };
        assert!(value(0.0, 1.0).is_better_than(value(0.1, 9.0)));
        assert!(value(-0.5, 2.0).is_better_than(value(-0.9, 1.0)));
        assert!(value(0.1, 1.0).is_better_than(value(0.2, 9.0)));
        assert!(!value(0.0, 1.0).is_better_than(value(0.0, 1.0)));
    }
}

//! What a goal makes of samples.

use super::goal::Goal;
use super::measure::Sample;
use super::stats::{median, quantile, samples_for};

/// What a goal makes of an arm. Arms that meet the bound come before those that do not, then the greater
/// score is the better one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    /// By how much it misses the goal's bound, as a part of that; 0 where it meets it.
    pub(crate) miss: f64,
    /// The greater, the better.
    pub(crate) score: f64,
}

impl Value {
    pub(crate) fn is_better_than(self, other: Value) -> bool {
        match (self.miss > 0.0, other.miss > 0.0) {
            (false, false) => self.score > other.score,
            (true, true) => self.miss < other.miss,
            (misses, _) => !misses,
        }
    }

    pub(crate) fn meets(self) -> bool {
        self.miss <= 0.0
    }
}

/// Scores samples by a goal.
#[derive(Clone, Debug)]
pub(crate) struct Scorer {
    rule: Rule,
    /// Each job's iterations a second alone.
    alone: Vec<f64>,
}

/// A goal with jobs by number.
#[derive(Clone, Debug)]
enum Rule {
    Throughput { weights: Vec<f64> },
    Makespan,
    Keep { job: usize, percentile: f64, bound_us: f64 },
    Least { job: usize, percentile: f64, other: usize, keep: f64 },
}

impl Scorer {
    /// For a goal that was found to be right for jobs of these names.
    pub(crate) fn new(goal: &Goal, names: &[&str], alone: Vec<f64>) -> Scorer {
        let place = |name: &str| names.iter().position(|known| *known == name).unwrap_or(0);
        let rule = match goal {
            Goal::Throughput { weights } => {
                let mut of_jobs = vec![1.0; names.len()];
                weights.iter().for_each(|(name, weight)| of_jobs[place(name)] = *weight);
                Rule::Throughput { weights: of_jobs }
            }
            Goal::Makespan => Rule::Makespan,
            Goal::Keep { job, percentile, bound_us } => {
                Rule::Keep { job: place(job), percentile: *percentile, bound_us: *bound_us }
            }
            Goal::Least { job, percentile, other, keep } => Rule::Least {
                job: place(job),
                percentile: *percentile,
                other: place(other),
                keep: *keep,
            },
        };
        Scorer { rule, alone }
    }

    /// Whether rounds are to be run, and not jobs by their arrivals.
    pub(crate) fn wants_rounds(&self) -> bool {
        matches!(self.rule, Rule::Makespan)
    }

    /// The job of whose latency a percentile counts, and which.
    pub(crate) fn percentile(&self) -> Option<(usize, f64)> {
        match self.rule {
            Rule::Keep { job, percentile, .. } | Rule::Least { job, percentile, .. } => {
                Some((job, percentile))
            }
            Rule::Throughput { .. } | Rule::Makespan => None,
        }
    }

    /// A job's rate as a part of what it has alone.
    fn part(&self, sample: &Sample, job: usize) -> f64 {
        sample.jobs[job].rate / self.alone[job]
    }

    /// The score of one block.
    pub(crate) fn score(&self, sample: &Sample) -> f64 {
        match &self.rule {
            Rule::Throughput { weights } => weights
                .iter()
                .enumerate()
                .map(|(job, weight)| weight * self.part(sample, job))
                .sum(),
            Rule::Makespan => median(&sample.rounds_us).map_or(0.0, |round| 1e6 / round),
            Rule::Keep { job, .. } => (0..self.alone.len())
                .filter(|other| other != job)
                .map(|other| self.part(sample, other))
                .sum(),
            Rule::Least { job, percentile, .. } => {
                let latency = reachable(&sample.jobs[*job].latencies_us, *percentile);
                latency.map_or(0.0, |latency| 1e6 / latency)
            }
        }
    }

    /// The value of an arm with these blocks, of these scores.
    pub(crate) fn value(&self, samples: &[Sample], scores: &[f64]) -> Option<Value> {
        let score = median(scores)?;
        let pooled = |job: usize| -> Vec<f64> {
            samples.iter().flat_map(|sample| &sample.jobs[job].latencies_us).copied().collect()
        };
        Some(match self.rule {
            Rule::Throughput { .. } | Rule::Makespan => Value { miss: 0.0, score },
            Rule::Keep { job, percentile, bound_us } => {
                let latency = reachable(&pooled(job), percentile).unwrap_or(f64::INFINITY);
                Value { miss: (latency / bound_us - 1.0).max(0.0), score }
            }
            Rule::Least { job, percentile, other, keep } => {
                let parts: Vec<f64> =
                    samples.iter().map(|sample| self.part(sample, other)).collect();
                let part = median(&parts).unwrap_or(0.0);
                let latency = reachable(&pooled(job), percentile);
                let score = latency.map_or(0.0, |latency| 1e6 / latency);
                Value { miss: ((keep - part) / keep).max(0.0), score }
            }
        })
    }
}

/// A percentile or, of too few samples for it, the greatest one that they are enough for.
fn reachable(values: &[f64], share: f64) -> Option<f64> {
    let share = if values.len() < samples_for(share) {
        share.min((1.0 - 5.0 / values.len().max(1) as f64).max(0.5))
    } else {
        share
    };
    quantile(values, share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::measure::JobSample;

    fn sample(rates: [f64; 2], latencies: &[f64]) -> Sample {
        let job = |rate| JobSample { rate, latencies_us: latencies.to_vec(), host_us: 1.0 };
        Sample { jobs: rates.map(job).to_vec(), rounds_us: vec![200.0, 400.0, 300.0] }
    }

    fn value(goal: Goal, sample: &Sample) -> Value {
        let scorer = Scorer::new(&goal, &["a", "b"], vec![100.0, 10.0]);
        let scores = [scorer.score(sample)];
        scorer.value(std::slice::from_ref(sample), &scores).expect("there is a block")
    }

    #[test]
    fn goals_score_what_they_say() {
        let sample = sample([50.0, 8.0], &[100.0; 600]);
        let meets = |score| Value { miss: 0.0, score };
        assert_eq!(value(Goal::throughput(), &sample), meets(1.3));
        let weighted = Goal::Throughput { weights: vec![("b".into(), 2.0)] };
        assert_eq!(value(weighted, &sample), meets(2.1));
        assert_eq!(value(Goal::Makespan, &sample), meets(1e6 / 300.0));
        assert_eq!(value(Goal::keep("a", 0.99, 100.0), &sample), meets(0.8));
        assert_eq!(value(Goal::keep("a", 0.99, 50.0), &sample).miss, 1.0);
        assert_eq!(value(Goal::least("a", 0.99, "b", 0.8), &sample), meets(1e4));
        assert!(value(Goal::least("a", 0.99, "b", 0.9), &sample).miss > 0.1);
    }

    #[test]
    fn bounds_come_first() {
        let value = |miss, score| Value { miss, score };
        assert!(value(0.0, 1.0).is_better_than(value(0.1, 9.0)));
        assert!(!value(0.1, 9.0).is_better_than(value(0.0, 1.0)));
        assert!(value(0.1, 1.0).is_better_than(value(0.2, 9.0)));
        assert!(value(0.0, 2.0).is_better_than(value(0.0, 1.0)));
    }

    #[test]
    fn few_samples_give_a_lower_percentile() {
        let values: Vec<f64> = (0..101).map(f64::from).collect();
        assert_eq!(reachable(&values, 0.9), Some(90.0));
        assert!((reachable(&values, 0.999).expect("values") - 95.05).abs() < 0.01);
        assert_eq!(reachable(&[], 0.9), None);
    }
}

//! What a goal makes of samples.

use super::goal::Goal;
use super::measure::Sample;
use super::request::RequestError;
use super::stats::{
    Grouped, Interval, bootstrap, median, median_interval, reachable, reachable_share, samples_for,
};

/// What a goal makes of an arm. Arms that meet the bound come before those that do not, then the greater
/// score is the better one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// By how much it misses the goal's bound, as a part of that; 0 where it meets it.
    pub miss: f64,
    /// The greater, the better. For [`Goal::Throughput`] and [`Goal::Keep`] it is the sum of the jobs' rates, each
    /// as a part of its rate alone; for the others it is the inverse of a time, in 1/s.
    pub score: f64,
}

impl Value {
    /// Whether an arm of this value is to be preferred to one of the other.
    #[must_use]
    pub fn is_better_than(self, other: Value) -> bool {
        match (self.miss > 0.0, other.miss > 0.0) {
            (false, false) => self.score > other.score,
            (true, true) => self.miss < other.miss,
            (misses, _) => !misses,
        }
    }

    /// Whether it meets the goal's bound; `true` for goals without one.
    #[must_use]
    pub fn meets(self) -> bool {
        self.miss <= 0.0
    }
}

/// Scores samples by a goal, as the tuner does.
///
/// # Example
///
/// ```
/// use green_ctx::tune::{Goal, JobSample, Sample, Scorer};
///
/// // a alone does 100 iterations a second, b alone 10.
/// let scorer = Scorer::new(&Goal::throughput(), &["a", "b"], vec![100.0, 10.0])?;
/// let mut sample = Sample::default();
/// sample.jobs = [50.0, 8.0].map(|rate| JobSample { rate, ..JobSample::default() }).to_vec();
/// assert_eq!(scorer.score(&sample), 0.5 + 0.8);
/// # Ok::<(), green_ctx::tune::RequestError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scorer {
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
    /// For jobs of these names that do so many iterations a second alone.
    ///
    /// # Errors
    ///
    /// [`RequestError::Wrong`] for a goal that names other jobs or has a number out of its range, and unless
    /// there is a rate above 0 for each job.
    pub fn new(goal: &Goal, names: &[&str], alone: Vec<f64>) -> Result<Scorer, RequestError> {
        if let Some(reason) = goal.fault(names) {
            return Err(RequestError::Wrong { reason });
        }
        if alone.len() != names.len() || !alone.iter().all(|rate| *rate > 0.0) {
            let reason = format!("{alone:?} are no rates of {}", names.join(", "));
            return Err(RequestError::Wrong { reason });
        }
        Ok(Scorer::of(goal, names, alone))
    }

    /// For a goal that was found to be right for jobs of these names.
    pub(crate) fn of(goal: &Goal, names: &[&str], alone: Vec<f64>) -> Scorer {
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

    /// Whether it scores blocks in rounds, and not those of jobs by their arrivals: see
    /// [`Block::rounds`](super::Block::rounds).
    #[must_use]
    pub fn wants_rounds(&self) -> bool {
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
    ///
    /// # Panics
    ///
    /// Where the sample has fewer jobs than the goal is for.
    #[must_use]
    pub fn score(&self, sample: &Sample) -> f64 {
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

    /// The value of an arm with these blocks: the median of their scores, and for a percentile that of all their
    /// iterations. `None` without blocks, and where a percentile is asked for of a job without latencies.
    ///
    /// # Panics
    ///
    /// As [`score`](Scorer::score).
    #[must_use]
    pub fn value(&self, samples: &[Sample]) -> Option<Value> {
        let scores: Vec<f64> = samples.iter().map(|sample| self.score(sample)).collect();
        self.value_of(samples, &scores)
    }

    /// The same with the blocks' scores, where they are known.
    pub(crate) fn value_of(&self, samples: &[Sample], scores: &[f64]) -> Option<Value> {
        let score = median(scores)?;
        let pooled = |job: usize| -> Vec<f64> {
            samples.iter().flat_map(|sample| &sample.jobs[job].latencies_us).copied().collect()
        };
        Some(match self.rule {
            Rule::Throughput { .. } | Rule::Makespan => Value { miss: 0.0, score },
            Rule::Keep { job, percentile, bound_us } => {
                let latency = reachable(&pooled(job), percentile)?;
                Value { miss: (latency / bound_us - 1.0).max(0.0), score }
            }
            Rule::Least { job, percentile, other, keep } => {
                let parts: Vec<f64> =
                    samples.iter().map(|sample| self.part(sample, other)).collect();
                let part = median(&parts).unwrap_or(0.0);
                let score = 1e6 / reachable(&pooled(job), percentile)?;
                Value { miss: ((keep - part) / keep).max(0.0), score }
            }
        })
    }

    /// By how much blocks miss the goal's bound, as a part of it, with the 95 % interval: below 0 they meet it.
    /// `None` for goals without a bound, and of too few samples.
    pub(crate) fn excess(&self, samples: &[&Sample]) -> Option<Interval> {
        match self.rule {
            Rule::Throughput { .. } | Rule::Makespan => None,
            Rule::Keep { job, percentile, bound_us } => {
                let latencies = latencies(samples.iter().copied(), job);
                if latencies.len() < samples_for(percentile) || samples.len() < LEAST_DRAWN {
                    return None;
                }
                let excess =
                    |drawn: &[u32]| Some(latencies.quantile(percentile, drawn)? / bound_us - 1.0);
                let middle = excess(&vec![1; samples.len()])?;
                let [low, high] = bootstrap(samples.len(), RESAMPLES, excess)?;
                Some(Interval { low, middle, high })
            }
            Rule::Least { other, keep, .. } => {
                let excess = |sample: &&Sample| (keep - self.part(sample, other)) / keep;
                median_interval(&samples.iter().map(excess).collect::<Vec<_>>())
            }
        }
    }

    /// How much better an arm is than another, as a part of that: of blocks that ran in pairs, with the 95 %
    /// interval. `None` of too few.
    pub(crate) fn gain(&self, pairs: &[[&Sample; 2]]) -> Option<Interval> {
        let Rule::Least { job, percentile, .. } = self.rule else {
            let gain = |[one, other]: &[&Sample; 2]| self.score(one) / self.score(other) - 1.0;
            let gains: Vec<f64> = pairs.iter().map(gain).filter(|gain| gain.is_finite()).collect();
            return median_interval(&gains);
        };
        // A block has too few iterations for a percentile of its own.
        let [one, other] = [0, 1].map(|side| latencies(pairs.iter().map(|pair| pair[side]), job));
        if pairs.len() < LEAST_DRAWN {
            return None;
        }
        let share = reachable_share(one.len().min(other.len()), percentile);
        let gain =
            |drawn: &[u32]| Some(other.quantile(share, drawn)? / one.quantile(share, drawn)? - 1.0);
        let middle = gain(&vec![1; pairs.len()])?;
        let [low, high] = bootstrap(pairs.len(), RESAMPLES, gain)?;
        Some(Interval { low, middle, high })
    }
}

/// How often blocks are drawn again for an interval.
const RESAMPLES: usize = 400;
/// Of fewer blocks an interval says nothing.
const LEAST_DRAWN: usize = 6;

fn latencies<'a>(samples: impl Iterator<Item = &'a Sample>, job: usize) -> Grouped {
    Grouped::new(samples.map(|sample| sample.jobs[job].latencies_us.as_slice()))
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
        let scorer = Scorer::new(&goal, &["a", "b"], vec![100.0, 10.0]).expect("a goal");
        scorer.value(std::slice::from_ref(sample)).expect("there is a block")
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
    fn goals_and_rates_that_fit_no_jobs_are_refused() {
        let scorer = |goal: Goal, alone: &[f64]| Scorer::new(&goal, &["a", "b"], alone.to_vec());
        assert!(scorer(Goal::Makespan, &[1.0, 2.0]).is_ok());
        assert!(scorer(Goal::keep("c", 0.99, 1.0), &[1.0, 2.0]).is_err());
        for alone in [[1.0, 0.0].as_slice(), &[1.0, f64::NAN], &[1.0]] {
            assert!(scorer(Goal::Makespan, alone).is_err(), "{alone:?}");
        }
    }
}

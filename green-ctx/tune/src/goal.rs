//! What is to be best.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::request::RequestError;

/// What a division of the SMs is to achieve.
///
/// | as text | meaning |
/// |---|---|
/// | `throughput` | the most of all jobs together, each measured by its rate alone on the device |
/// | `makespan` | the least time from the submission of one iteration of each job until all are done |
/// | `keep:A:p99:500us` | the most of the other jobs while the 99th percentile of A's latency is at most 500 µs |
/// | `least:A:p99:keep:B:0.8` | the smallest 99th percentile of A's latency while B has at least 0.8 of its rate alone |
///
/// Times are numbers with `us`, `ms` or `s`; percentiles are `p50`, `p99` or `p99.9`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Goal {
    /// The most weighted throughput.
    Throughput {
        /// What a job's rate, as a share of that which it has alone, counts for; of jobs that are not named 1.
        weights: Vec<(String, f64)>,
    },
    /// The least time for one iteration of all jobs, which are submitted together. Arrivals do not matter.
    Makespan,
    /// The most of the other jobs while a percentile of one stays under a bound.
    Keep {
        /// The job.
        job: String,
        /// The share of its iterations that are to stay under the bound, such as 0.99.
        percentile: f64,
        /// The bound in microseconds.
        bound_us: f64,
    },
    /// The smallest percentile of one job while another keeps a part of its rate.
    Least {
        /// The job.
        job: String,
        /// The share of its iterations that are to be done as early as possible, such as 0.99.
        percentile: f64,
        /// The other job.
        other: String,
        /// What the other keeps, as a share of its rate alone.
        keep: f64,
    },
}

impl Default for Goal {
    fn default() -> Goal {
        Goal::throughput()
    }
}

impl Goal {
    /// The most throughput, each job counted alike.
    #[must_use]
    pub const fn throughput() -> Goal {
        Goal::Throughput { weights: Vec::new() }
    }

    /// The most of the other jobs while a percentile of one stays under a bound in microseconds.
    pub fn keep(job: impl Into<String>, percentile: f64, bound_us: f64) -> Goal {
        Goal::Keep { job: job.into(), percentile, bound_us }
    }

    /// The smallest percentile of one job while another keeps a share of its rate alone.
    pub fn least(
        job: impl Into<String>,
        percentile: f64,
        other: impl Into<String>,
        keep: f64,
    ) -> Goal {
        Goal::Least { job: job.into(), percentile, other: other.into(), keep }
    }

    /// The percentile that it looks at, and the job.
    #[must_use]
    pub fn percentile(&self) -> Option<(&str, f64)> {
        match self {
            Goal::Keep { job, percentile, .. } | Goal::Least { job, percentile, .. } => {
                Some((job, *percentile))
            }
            Goal::Throughput { .. } | Goal::Makespan => None,
        }
    }

    /// Whether it can be for jobs of these names, and what to write instead.
    pub(crate) fn check(&self, names: &[&str]) -> Result<(), String> {
        let ensure = |holds: bool, reason: String| if holds { Ok(()) } else { Err(reason) };
        let known = |job: &str| {
            let reason = format!("the goal names {job}; the jobs are {}", names.join(", "));
            ensure(names.contains(&job), reason)
        };
        if let Some((job, share)) = self.percentile() {
            known(job)?;
            let reason =
                format!("the goal's percentile {share} is not between 0 and 1; use 0.99, say");
            ensure(share > 0.0 && share < 1.0, reason)?;
        }
        match self {
            Goal::Makespan => Ok(()),
            Goal::Throughput { weights } => {
                for (place, (job, weight)) in weights.iter().enumerate() {
                    known(job)?;
                    let is_twice = weights[..place].iter().any(|(earlier, _)| earlier == job);
                    ensure(!is_twice, format!("{job} has two weights; give it one"))?;
                    let reason =
                        format!("the weight {weight} of {job} is no number from 0 on; use 1, say");
                    ensure(weight.is_finite() && *weight >= 0.0, reason)?;
                }
                let is_nothing =
                    |name: &&str| weights.iter().any(|(job, weight)| job == name && *weight == 0.0);
                let reason = "every job has the weight 0; give one of them more".to_owned();
                ensure(!names.iter().all(is_nothing), reason)
            }
            Goal::Keep { bound_us, .. } => {
                let reason =
                    format!("the goal's bound of {bound_us} µs is no time above 0; use 500, say");
                ensure(bound_us.is_finite() && *bound_us > 0.0, reason)
            }
            Goal::Least { job, other, keep, .. } => {
                known(other)?;
                ensure(job != other, format!("the goal names {job} twice; name two jobs"))?;
                let reason =
                    format!("the goal's share {keep} is not above 0 and at most 1; use 0.8, say");
                ensure(*keep > 0.0 && *keep <= 1.0, reason)
            }
        }
    }
}

/// A percentile as it is written: p99.
pub(crate) fn percentile_name(share: f64) -> String {
    // As many digits as it needs, and none of 0.99 not being exact.
    let percent = (share * 1e14).round() / 1e12;
    format!("p{percent}")
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::Throughput { .. } => f.write_str("throughput"),
            Goal::Makespan => f.write_str("makespan"),
            Goal::Keep { job, percentile, bound_us } => {
                write!(f, "keep:{job}:{}:{bound_us}us", percentile_name(*percentile))
            }
            Goal::Least { job, percentile, other, keep } => {
                write!(f, "least:{job}:{}:keep:{other}:{keep}", percentile_name(*percentile))
            }
        }
    }
}

impl FromStr for Goal {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Goal, RequestError> {
        let wrong = || {
            RequestError::wrong(format!(
                "{text:?} is no goal; write throughput, makespan, keep:JOB:p99:500us or \
                 least:JOB:p99:keep:OTHER:0.8"
            ))
        };
        let parts: Vec<&str> = text.split(':').collect();
        let percentile = |text: &str| {
            let percent: f64 = text.strip_prefix('p')?.parse().ok()?;
            // The nearest number to what is written: 99.9 / 100 is another one than 0.999.
            let share = (percent * 1e12).round() / 1e14;
            (share > 0.0 && share < 1.0).then_some(share)
        };
        match parts[..] {
            ["throughput"] => Some(Goal::throughput()),
            ["makespan"] => Some(Goal::Makespan),
            ["keep", job, which, bound] => percentile(which)
                .zip(microseconds(bound))
                .map(|(percentile, bound)| Goal::keep(job, percentile, bound)),
            ["least", job, which, "keep", other, keep] => percentile(which)
                .zip(keep.parse().ok())
                .map(|(percentile, keep)| Goal::least(job, percentile, other, keep)),
            _ => None,
        }
        .ok_or_else(wrong)
    }
}

/// A time such as 500us, in microseconds.
fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_and_printed() {
        for text in ["throughput", "makespan", "keep:a:p99:500us", "least:a:p99.9:keep:b:0.8"] {
            assert_eq!(text.parse::<Goal>().expect(text).to_string(), text);
        }
        let often = Goal::keep("a", 0.999_999_9, 5.0);
        assert_eq!(often.to_string(), "keep:a:p99.99999:5us");
        assert_eq!(often.to_string().parse(), Ok(often));
        assert_eq!("keep:a:p50:1.5ms".parse(), Ok(Goal::keep("a", 0.5, 1500.0)));
        assert_eq!("keep:a:p50:2s".parse(), Ok(Goal::keep("a", 0.5, 2e6)));
        for (start, wrong) in [
            ("", &["", "most", "throughput:a", "keep", "keep:a"][..]),
            ("keep:a:", &["99:5us", "p0:5us", "p100:5us", "p99:5", "p99:-5us", "p99:nanus"]),
            ("least:a:p99:", &["keep:b", "b:0.8"]),
        ] {
            for rest in wrong {
                assert!(format!("{start}{rest}").parse::<Goal>().is_err(), "{start}{rest}");
            }
        }
    }

    #[test]
    fn jobs_that_are_not_there_are_found() {
        let weights = |weights: &[(&str, f64)]| Goal::Throughput {
            weights: weights.iter().map(|(name, weight)| ((*name).into(), *weight)).collect(),
        };
        for (goal, is_wrong) in [
            (weights(&[("a", 0.0)]), false),
            (weights(&[("a", -1.0)]), true),
            (weights(&[("d", 1.0)]), true),
            (weights(&[("a", 1.0), ("a", 2.0)]), true),
            (weights(&[("a", 0.0), ("b", 0.0)]), true),
            (Goal::keep("a", 0.99, 5.0), false),
            (Goal::keep("c", 0.99, 5.0), true),
            (Goal::keep("a", 1.0, 5.0), true),
            (Goal::keep("a", 0.99, 0.0), true),
            (Goal::least("a", 0.99, "b", 1.0), false),
            (Goal::least("a", 0.99, "a", 0.5), true),
            (Goal::least("a", 0.99, "c", 0.5), true),
            (Goal::least("a", 0.99, "b", 1.5), true),
        ] {
            assert_eq!(goal.check(&["a", "b"]).is_err(), is_wrong, "{goal:?}");
        }
    }
}

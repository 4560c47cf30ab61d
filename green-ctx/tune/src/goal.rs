//! Goals: the quantities that the tuner optimises.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::request::RequestError;

/// The quantity that the tuner optimises.
///
/// | as text | meaning |
/// |---|---|
/// | `throughput` | maximises the sum of all jobs' rates, each relative to the job's rate alone |
/// | `makespan` | minimises the time from submitting one iteration of each job until all of them are done |
/// | `keep:A:p99:500us` | maximises the other jobs' rates while the 99th percentile of A's latency is at most 500 µs |
/// | `least:A:p99:keep:B:0.8` | minimises the 99th percentile of A's latency while B keeps 0.8 of its rate alone |
///
/// A time is a number followed by its unit, which is `us`, `ms` or `s`. A percentile is written as `p50`, `p99` or
/// `p99.9`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Goal {
    /// Maximises the weighted sum of the jobs' rates.
    Throughput {
        /// The names of jobs, and the weights of their rates. Each rate is divided by the rate that the job reaches
        /// alone. A job that is not listed has the weight 1.
        weights: Vec<(String, f64)>,
    },
    /// Minimises the time from submitting one iteration of every job until all of them are done. Arrivals are ignored.
    Makespan,
    /// Maximises the other jobs' rates while a latency percentile of one job stays within a bound.
    Keep {
        /// The job whose latency has the bound.
        job: String,
        /// The fraction of the job's iterations that must stay within the bound, such as 0.99.
        percentile: f64,
        /// The bound on the latency, in microseconds.
        bound_us: f64,
    },
    /// Minimises a latency percentile of one job while another job keeps a given fraction of the rate that it reaches
    /// alone.
    Least {
        /// The job whose latency is minimised.
        job: String,
        /// The percentile as a fraction, such as 0.99 for the 99th percentile.
        percentile: f64,
        /// The other job.
        other: String,
        /// The minimum rate of the other job, as a fraction of the rate that it reaches alone.
        keep: f64,
    },
}

impl Default for Goal {
    fn default() -> Goal {
        Goal::throughput()
    }
}

impl Goal {
    /// Returns the goal of maximum throughput, with the same weight for each job.
    #[must_use]
    pub const fn throughput() -> Goal {
        Goal::Throughput { weights: Vec::new() }
    }

    /// Returns the goal of maximising the other jobs' rates while a latency percentile of `job` stays within `bound_us`
    /// microseconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_tune::Goal;
    ///
    /// let goal = Goal::keep("decode", 0.99, 500.0);
    /// assert_eq!(goal.to_string(), "keep:decode:p99:500us");
    /// assert_eq!("keep:decode:p99:0.5ms".parse::<Goal>()?, goal);
    /// # Ok::<(), green_ctx_tune::RequestError>(())
    /// ```
    pub fn keep(job: impl Into<String>, percentile: f64, bound_us: f64) -> Goal {
        Goal::Keep { job: job.into(), percentile, bound_us }
    }

    /// Returns the goal of minimising a latency percentile of `job` while the rate of `other` is at least the fraction
    /// `keep` of the rate that it reaches alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_tune::Goal;
    ///
    /// let goal = Goal::least("decode", 0.99, "prefill", 0.8);
    /// assert_eq!(goal.to_string(), "least:decode:p99:keep:prefill:0.8");
    /// assert_eq!(goal.percentile(), Some(("decode", 0.99)));
    /// ```
    pub fn least(
        job: impl Into<String>,
        percentile: f64,
        other: impl Into<String>,
        keep: f64,
    ) -> Goal {
        Goal::Least { job: job.into(), percentile, other: other.into(), keep }
    }

    /// Returns the job whose latency percentile the goal names, and the percentile as a fraction. Returns `None` for
    /// goals without a percentile.
    #[must_use]
    pub fn percentile(&self) -> Option<(&str, f64)> {
        match self {
            Goal::Keep { job, percentile, .. } | Goal::Least { job, percentile, .. } => {
                Some((job, *percentile))
            }
            Goal::Throughput { .. } | Goal::Makespan => None,
        }
    }

    /// Checks that the goal is valid for jobs with these names. The error message states what to write instead.
    pub(crate) fn check(&self, names: &[&str]) -> Result<(), String> {
        let ensure = |holds: bool, reason: String| if holds { Ok(()) } else { Err(reason) };
        let known = |job: &str| {
            let reason = format!(
                "the goal or its weights name {job}, which is not a job; the jobs are {}",
                names.join(", ")
            );
            ensure(names.contains(&job), reason)
        };
        if let Some((job, share)) = self.percentile() {
            known(job)?;
            let reason = format!(
                "the goal's percentile {share} is not between 0 and 1; use for example 0.99"
            );
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
                        format!("the weight of {job} is {weight}; use a finite number, 0 or more");
                    ensure(weight.is_finite() && *weight >= 0.0, reason)?;
                }
                let is_nothing =
                    |name: &&str| weights.iter().any(|(job, weight)| job == name && *weight == 0.0);
                let reason =
                    "every job has the weight 0; give at least one a positive weight".to_owned();
                ensure(!names.iter().all(is_nothing), reason)
            }
            Goal::Keep { bound_us, .. } => {
                let reason = format!(
                    "the goal's bound of {bound_us} µs is not positive; use for example 500"
                );
                ensure(bound_us.is_finite() && *bound_us > 0.0, reason)
            }
            Goal::Least { job, other, keep, .. } => {
                known(other)?;
                ensure(job != other, format!("the goal names {job} twice; name two jobs"))?;
                let reason =
                    format!("the goal keeps {keep} of a rate; use a number above 0 and at most 1");
                ensure(*keep > 0.0 && *keep <= 1.0, reason)
            }
        }
    }
}

/// Writes a percentile as text, such as `p99`.
pub(crate) fn percentile_name(share: f64) -> String {
    // Rounding hides that 0.99 is not exact in binary.
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
                "{text:?} is not a goal; write throughput, makespan, keep:JOB:p99:500us or \
                 least:JOB:p99:keep:OTHER:0.8"
            ))
        };
        let parts: Vec<&str> = text.split(':').collect();
        let percentile = |text: &str| {
            let percent: f64 = text.strip_prefix('p')?.parse().ok()?;
            // Rounding gives the number nearest to the text: 99.9 / 100 differs from 0.999.
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
        .ok_or_else(|| match parts[..] {
            ["keep", job, which, bound] if bound.parse::<f64>().is_ok() => {
                let words = format!("the bound {bound} of {text:?} has no unit");
                RequestError::wrong(format!(
                    "{words}; write keep:{job}:{which}:{bound}us, or ms, or s"
                ))
            }
            ["keep", job, which, bound] if percentile(which).is_some() => {
                RequestError::wrong(format!(
                    "the bound {bound:?} of {text:?} is not a time above 0 in us, ms or s; write for example \
                     keep:{job}:{which}:500us"
                ))
            }
            _ => wrong(),
        })
    }
}

/// Parses a time such as `500us`, and returns it in microseconds.
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
        let unit = "keep:a:p99:5".parse::<Goal>().expect_err("the unit is missing").to_string();
        assert!(unit.contains("no unit; write keep:a:p99:5us, or ms, or s"), "{unit}");
        let unit = "keep:a:p99:500ns".parse::<Goal>().expect_err("an unknown unit").to_string();
        assert!(unit.contains("in us, ms or s; write for example keep:a:p99:500us"), "{unit}");
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

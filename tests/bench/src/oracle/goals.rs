//! Goals whose bounds follow from the mix.

use std::fmt;
use std::str::FromStr;

use green_ctx::tune::{ArmKind, Goal};

use super::grid::{Measured, PERCENTILE};
use crate::setup::Result;

/// What the best arm has to spare at least, as a part: a bound that an arm meets by chance alone, in a
/// few short blocks, is no bound.
const SPARE: f64 = 0.1;

/// A goal before the mix is known. `job` is the one whose latency counts; without it, each in turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Template {
    Throughput,
    Makespan,
    Keep { percent: f64, job: Option<usize> },
    Least { percent: f64, job: Option<usize> },
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Template, String> {
        let wrong = || {
            format!(
                "{text:?} is no goal; write throughput, makespan, keep:50, least:80 or keep:50:1"
            )
        };
        let parts: Vec<&str> = text.split(':').collect();
        let percent = |text: &str| {
            let percent: f64 = text.parse().map_err(|_| wrong())?;
            if percent > 0.0 && percent <= 100.0 { Ok(percent) } else { Err(wrong()) }
        };
        let job = |text: Option<&&str>| match text {
            None => Ok(None),
            Some(&"1") => Ok(Some(0)),
            Some(&"2") => Ok(Some(1)),
            Some(_) => Err(wrong()),
        };
        match parts[..] {
            ["throughput"] => Ok(Template::Throughput),
            ["makespan"] => Ok(Template::Makespan),
            ["keep", number, ..] if parts.len() <= 3 => {
                Ok(Template::Keep { percent: percent(number)?, job: job(parts.get(2))? })
            }
            ["least", number, ..] if parts.len() <= 3 => {
                Ok(Template::Least { percent: percent(number)?, job: job(parts.get(2))? })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, percent, job) = match self {
            Template::Throughput => return f.write_str("throughput"),
            Template::Makespan => return f.write_str("makespan"),
            Template::Keep { percent, job } => ("keep", percent, job),
            Template::Least { percent, job } => ("least", percent, job),
        };
        write!(f, "{name}:{percent}")?;
        job.map_or(Ok(()), |job| write!(f, ":{}", job + 1))
    }
}

/// A job alone.
pub(super) struct Alone {
    pub(super) name: String,
    pub(super) rate: f64,
    pub(super) p99_us: f64,
}

impl Template {
    /// How many goals it stands for, for so many jobs. Goals with a bound are for two.
    pub(super) fn count(&self, jobs: usize) -> usize {
        match self {
            Template::Throughput | Template::Makespan => 1,
            Template::Keep { job, .. } | Template::Least { job, .. } if jobs == 2 => {
                if job.is_some() { 1 } else { 2 }
            }
            Template::Keep { .. } | Template::Least { .. } => 0,
        }
    }

    /// The goals for a mix.
    pub(super) fn goals(&self, jobs: &[Alone], grid: &[Measured]) -> Result<Vec<Goal>> {
        let each = |job: &Option<usize>| job.map_or(vec![0, 1], |job| vec![job]);
        match self {
            Template::Throughput => Ok(vec![Goal::throughput()]),
            Template::Makespan => Ok(vec![Goal::Makespan]),
            Template::Keep { .. } | Template::Least { .. } if jobs.len() != 2 => Ok(Vec::new()),
            Template::Keep { percent, job } => {
                each(job).into_iter().map(|job| keep(*percent, job, jobs, grid)).collect()
            }
            Template::Least { percent, job } => {
                each(job).into_iter().map(|job| least(*percent, job, jobs, grid)).collect()
            }
        }
    }
}

/// Bounds the p99 of a job at a percentage of the way from its p99 alone to the best that it has
/// without partitions, and above the best that any arm of the grid gives it.
fn keep(percent: f64, job: usize, jobs: &[Alone], grid: &[Measured]) -> Result<Goal> {
    let lowest = |is_wanted: fn(ArmKind) -> bool| {
        let wanted = grid.iter().filter(|measured| is_wanted(measured.arm.kind()));
        wanted.filter_map(|measured| measured.percentile(job)).fold(f64::INFINITY, f64::min)
    };
    let alone = jobs[job].p99_us;
    let (plain, best) = (lowest(|kind| kind != ArmKind::Partition), lowest(|_| true));
    let bound = (alone + percent / 100.0 * (plain - alone)).max((1.0 + SPARE) * best);
    if !bound.is_finite() {
        return Err(format!("{} has no latency in any arm", jobs[job].name).into());
    }
    // A tenth of a microsecond is as much as a clock has to say.
    Ok(Goal::keep(&jobs[job].name, PERCENTILE, (10.0 * bound).round() / 10.0))
}

/// Has the other job keep a percentage of its rate alone, or what the best arm of the grid leaves it.
fn least(percent: f64, job: usize, jobs: &[Alone], grid: &[Measured]) -> Result<Goal> {
    let other = 1 - job;
    let rates = grid.iter().filter_map(|measured| measured.rate(other));
    let best = rates.fold(0.0, f64::max) / jobs[other].rate;
    let keep = (percent / 100.0).min((1.0 - SPARE) * best);
    let keep = ((100.0 * keep + 1e-9).floor() / 100.0).max(0.01);
    Ok(Goal::least(&jobs[job].name, PERCENTILE, &jobs[other].name, keep))
}

#[cfg(test)]
mod tests {
    use green_ctx::tune::{Arm, JobSample, Sample};

    use super::*;

    fn measured(arm: Arm, rates: [f64; 2], latencies: [f64; 2]) -> Measured {
        let job = |(rate, latency): (f64, f64)| JobSample {
            rate,
            latencies_us: vec![latency; 500],
            host_us: 0.0,
        };
        let jobs = rates.into_iter().zip(latencies).map(job).collect();
        let beside = vec![Sample { jobs, rounds_us: Vec::new() }];
        Measured { arm, beside, rounds: Vec::new(), skipped: None }
    }

    fn goals(template: &str, grid: &[Measured]) -> Vec<String> {
        let alone = |name: &str, rate, p99_us| Alone { name: name.to_owned(), rate, p99_us };
        let jobs = [alone("a", 1000.0, 100.0), alone("b", 10.0, 5000.0)];
        let template: Template = template.parse().expect("a goal");
        let goals = template.goals(&jobs, grid).expect("there are latencies");
        assert_eq!(goals.len(), template.count(2));
        goals.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn bounds_follow_from_the_pair() {
        let grid = [
            measured(Arm::streams(2, 132), [100.0, 9.0], [1100.0, 9000.0]),
            measured(Arm::ceilings([36, 96], 132), [500.0, 7.0], [200.0, 6000.0]),
        ];
        assert_eq!(goals("throughput", &grid), ["throughput"]);
        assert_eq!(goals("makespan", &grid), ["makespan"]);
        // Half of the way from 100 to 1100, and from 5000 to 9000.
        assert_eq!(goals("keep:50", &grid), ["keep:a:p99:600us", "keep:b:p99:7000us"]);
        assert_eq!(goals("keep:50:2", &grid), ["keep:b:p99:7000us"]);
        // No arm has 110 µs, the best has 200; a tenth more than that.
        assert_eq!(goals("keep:1:1", &grid), ["keep:a:p99:220us"]);
        assert_eq!(goals("least:80:1", &grid), ["least:a:p99:keep:b:0.8"]);
        // No arm leaves a more than a half.
        assert_eq!(goals("least:80:2", &grid), ["least:b:p99:keep:a:0.45"]);
    }

    #[test]
    fn three_jobs_have_goals_without_a_bound() {
        let alone = |name: &str| Alone { name: name.to_owned(), rate: 1.0, p99_us: 1.0 };
        let jobs = ["a", "b", "c"].map(alone);
        for (template, count) in
            [("throughput", 1), ("makespan", 1), ("keep:50", 0), ("least:80:1", 0)]
        {
            let template: Template = template.parse().expect(template);
            assert_eq!(template.count(3), count, "{template}");
            assert_eq!(template.goals(&jobs, &[]).expect("goals").len(), count, "{template}");
        }
    }

    #[test]
    fn goals_are_read_and_printed() {
        for text in ["throughput", "makespan", "keep:50", "least:80", "keep:12.5:2", "least:80:1"] {
            assert_eq!(text.parse::<Template>().expect(text).to_string(), text);
        }
        for wrong in ["", "keep", "keep:", "keep:0", "keep:101", "keep:5:3", "least:1:1:1"] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
    }
}

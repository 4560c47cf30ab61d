//! What a picture of a search shows.

use green_ctx::tune::{ArmKind, ArmReport, Goal, Latency, Outcome};

/// An outcome, and what follows from it for the picture.
pub(super) struct Subject<'a> {
    pub(super) outcome: &'a Outcome,
    /// The arms that were measured.
    pub(super) arms: Vec<Measured<'a>>,
    /// The arm of the verdict, by its place among the measured ones.
    pub(super) chosen: Option<usize>,
    /// The arm that it is compared with: the best without partitions or, where that is chosen, the best
    /// partition.
    pub(super) rival: Option<usize>,
}

/// An arm that was measured.
pub(super) struct Measured<'a> {
    pub(super) report: &'a ArmReport,
    /// Each job's rate in percent of its rate alone; no number where there is none of either.
    pub(super) percent: Vec<f64>,
}

impl<'a> Subject<'a> {
    pub(super) fn of(outcome: &'a Outcome) -> Subject<'a> {
        let percent = |arm: &ArmReport| {
            let percent =
                |name, alone| 100.0 * arm.rates.get(name).map_or(f64::NAN, |rate| rate / alone);
            outcome.jobs.iter().map(|job| percent(&job.name, job.rate)).collect()
        };
        let measured = outcome.arms.iter().filter(|arm| !arm.rates.is_empty());
        let arms: Vec<Measured<'a>> =
            measured.map(|report| Measured { report, percent: percent(report) }).collect();
        let mut subject = Subject { outcome, arms, chosen: None, rival: None };
        let verdict = &outcome.verdict;
        subject.chosen = subject.arms.iter().position(|Measured { report, .. }| {
            report.kind == verdict.kind
                && report.shares == verdict.shares
                && report.priority == verdict.priority
        });
        subject.rival = match verdict.kind {
            ArmKind::Partition => subject.best(|kind| kind != ArmKind::Partition),
            _ => subject.compared(),
        };
        subject
    }

    /// The best arm of some kinds or, where none meets the goal's bound, the one that comes closest.
    fn best(&self, is_wanted: impl Fn(ArmKind) -> bool) -> Option<usize> {
        let is_wanted = |arm: &Measured<'_>| is_wanted(arm.report.kind);
        let by = |of: &dyn Fn(&Measured<'_>) -> Option<f64>| {
            self.greatest(&|arm| of(arm).filter(|_| is_wanted(arm)))
        };
        by(&|arm| arm.report.score).or_else(|| match &self.outcome.goal {
            Goal::Keep { job, .. } => {
                by(&|arm| arm.report.latency_us.get(job).map(|latency| -reached(latency)))
            }
            Goal::Least { other, .. } => by(&|arm| arm.percent.get(self.job(other)?).copied()),
            _ => None,
        })
    }

    /// The partition that was compared with the best arm without: the search gives it more blocks than
    /// any other.
    fn compared(&self) -> Option<usize> {
        let of_partition = |arm: &Measured<'_>| {
            (arm.report.kind == ArmKind::Partition).then_some(arm.report.samples)
        };
        let most = self.arms.iter().filter_map(of_partition).max()?;
        let has_most = |arm: &Measured<'_>| of_partition(arm) == Some(most);
        let score = |arm: &Measured<'_>| arm.report.score.or(Some(f64::MIN));
        self.greatest(&|arm| score(arm).filter(|_| has_most(arm)))
    }

    /// The first arm with the greatest of some finite figure.
    fn greatest(&self, of: &dyn Fn(&Measured<'_>) -> Option<f64>) -> Option<usize> {
        let figures = self.arms.iter().map(|arm| of(arm).filter(|value| value.is_finite()));
        let known = figures.enumerate().filter_map(|(place, value)| Some((place, value?)));
        known.rev().max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(place, _)| place)
    }

    /// The place of a job.
    pub(super) fn job(&self, name: &str) -> Option<usize> {
        self.outcome.jobs.iter().position(|job| job.name == name)
    }

    /// Whether an arm was found not to meet the goal's bound.
    pub(super) fn misses(&self, arm: &Measured<'_>) -> bool {
        self.outcome.goal.percentile().is_some() && arm.report.score.is_none()
    }

    /// What a job's rate counts for in the goal.
    pub(super) fn weight(&self, job: usize) -> f64 {
        let Goal::Throughput { weights } = &self.outcome.goal else { return 1.0 };
        let name = self.outcome.jobs.get(job).map(|job| &job.name);
        weights.iter().find(|(known, _)| Some(known) == name).map_or(1.0, |(_, weight)| *weight)
    }

    /// Whether the goal weighs jobs differently.
    pub(super) fn is_weighted(&self) -> bool {
        matches!(&self.outcome.goal, Goal::Throughput { weights } if !weights.is_empty())
    }
}

fn reached(latency: &Latency) -> f64 {
    latency.p99.unwrap_or(latency.p50)
}

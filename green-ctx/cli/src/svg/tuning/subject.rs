//! What a picture of a search shows.

use green_ctx::tune::{ArmReport, Outcome};

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
        // By their places among those that were measured.
        let place = |arm: Option<usize>| {
            let report = outcome.arms.get(arm?)?;
            arms.iter().position(|measured| std::ptr::eq(measured.report, report))
        };
        let (chosen, rival) = (place(outcome.verdict.arm), place(outcome.verdict.rival));
        Subject { outcome, arms, chosen, rival }
    }

    /// The place of a job.
    pub(super) fn job(&self, name: &str) -> Option<usize> {
        self.outcome.jobs.iter().position(|job| job.name == name)
    }
}

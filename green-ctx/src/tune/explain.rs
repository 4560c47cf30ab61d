//! An outcome in words.

use std::fmt::Write;

use super::arm::ArmKind;
use super::outcome::{ArmReport, Outcome};

/// Arms that are listed: the best ones, and all without partitions.
const MOST: usize = 8;

pub(super) fn explain(outcome: &Outcome) -> String {
    let mut text = format!("{}\n\n", outcome.verdict.sentence);
    // Writing to a string does not fail.
    let mut line = |words: String| {
        let _ = writeln!(text, "{words}");
    };
    line(format!("Goal: {}. {:.1} s, {} arms.", outcome.goal, outcome.seconds, outcome.arms.len()));
    for job in &outcome.jobs {
        let curve: Vec<String> = job
            .solo
            .iter()
            .map(|(sms, rate)| format!("{sms} SMs {:.0} %", 100.0 * rate / job.rate.max(1e-9)))
            .collect();
        let bound = if job.host_bound { ", bound by the host" } else { "" };
        line(format!(
            "{} ({}): {:.1}/s alone{bound}; {}",
            job.name,
            job.arrival,
            job.rate,
            curve.join(", ")
        ));
    }
    line(String::new());
    for arm in listed(outcome) {
        line(figures(outcome, arm));
    }
    let skipped = outcome.arms.iter().filter_map(|arm| Some((arm, arm.skipped.as_ref()?)));
    for (arm, reason) in skipped {
        line(format!("{}: skipped, {reason}", how(arm)));
    }
    for note in &outcome.notes {
        line(format!("Note: {note}."));
    }
    if !outcome.complete {
        line("It was interrupted: this is the best so far.".to_owned());
    }
    text
}

/// The best arms, and those without partitions.
fn listed(outcome: &Outcome) -> Vec<&ArmReport> {
    let mut arms: Vec<&ArmReport> = outcome.arms.iter().filter(|arm| arm.samples > 0).collect();
    // What misses the bound comes last, the least miss first.
    let order = |arm: &ArmReport| (-arm.miss, arm.score.unwrap_or(f64::NEG_INFINITY));
    arms.sort_by(|a, b| {
        let ((miss_a, score_a), (miss_b, score_b)) = (order(a), order(b));
        miss_b.total_cmp(&miss_a).then(score_b.total_cmp(&score_a))
    });
    let mut partitions = 0;
    arms.retain(|arm| {
        let is_partition = arm.kind == ArmKind::Partition;
        partitions += usize::from(is_partition);
        !is_partition || partitions <= MOST
    });
    arms
}

/// How jobs have the device, in few words.
fn how(arm: &ArmReport) -> String {
    let mut text = arm.kind.to_string();
    if arm.kind == ArmKind::Partition {
        let shares: Vec<String> =
            arm.shares.iter().map(|(job, share)| format!("{job} {share}")).collect();
        text = shares.join(", ");
    }
    let high: Vec<&str> =
        arm.priority.iter().filter(|(_, level)| **level < 0).map(|(job, _)| job.as_str()).collect();
    if !high.is_empty() {
        let _ = write!(text, " ({} first)", high.join(", "));
    }
    text
}

fn figures(outcome: &Outcome, arm: &ArmReport) -> String {
    let of_jobs: Vec<String> = outcome
        .jobs
        .iter()
        .filter_map(|job| {
            let rate = arm.rates.get(&job.name)?;
            let mut text = format!("{} {:.0} %", job.name, 100.0 * rate / job.rate.max(1e-9));
            if let Some(latency) = arm.latency_us.get(&job.name) {
                let _ = write!(text, " p50 {:.0} µs", latency.p50);
                if let Some(p99) = latency.p99 {
                    let _ = write!(text, " p99 {p99:.0} µs");
                }
            }
            Some(text)
        })
        .collect();
    let score = match arm.score {
        // Each start settles on another order: how bad it can be counts too.
        Some(score) if arm.meets() && arm.kind != ArmKind::Partition => {
            format!("{score:.3}, at worst {:.3}", arm.worst().unwrap_or(score))
        }
        Some(score) if arm.meets() => format!("{score:.3}"),
        _ => format!("misses the bound by {:.0} %", 100.0 * arm.miss),
    };
    format!("{}: {score}; {} ({} blocks)", how(arm), of_jobs.join(", "), arm.samples)
}

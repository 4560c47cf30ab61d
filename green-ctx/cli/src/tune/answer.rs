//! What `green-ctx tune` prints as JSON.

use std::collections::BTreeMap;

use green_ctx::tune::{ArmReport, JobReport, Outcome};
use serde::Serialize;

use crate::output::{DeviceObject, DriverObject};

#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    driver: Option<DriverObject>,
    device: Option<DeviceObject>,
    verdict: VerdictObject<'a>,
    jobs: Vec<JobObject<'a>>,
    arms: Vec<ArmObject<'a>>,
    seconds: f64,
}

#[derive(Serialize)]
struct VerdictObject<'a> {
    kind: &'static str,
    shares: &'a BTreeMap<String, String>,
    priority: &'a BTreeMap<String, i32>,
    gain: Option<f64>,
    confidence: Option<f64>,
    sentence: &'a str,
}

#[derive(Serialize)]
struct JobObject<'a> {
    name: &'a str,
    host_bound: bool,
    solo: &'a BTreeMap<u32, f64>,
}

#[derive(Serialize)]
struct ArmObject<'a> {
    kind: &'static str,
    shares: &'a BTreeMap<String, String>,
    priority: &'a BTreeMap<String, i32>,
    rates: &'a BTreeMap<String, f64>,
    latency_us: BTreeMap<&'a str, LatencyObject>,
    samples: usize,
    skipped: Option<&'a str>,
}

#[derive(Serialize)]
struct LatencyObject {
    p50: f64,
    p99: Option<f64>,
}

impl<'a> Answer<'a> {
    pub(super) fn of(
        driver: DriverObject,
        device: Option<DeviceObject>,
        outcome: &'a Outcome,
    ) -> Answer<'a> {
        Answer { driver: Some(driver), device, ..Answer::of_file(outcome) }
    }

    /// Of an outcome that a file keeps: which device it was is not known by its number any more.
    pub(crate) fn of_file(outcome: &'a Outcome) -> Answer<'a> {
        let verdict = &outcome.verdict;
        let machine = outcome.machine.as_ref();
        Answer {
            driver: machine.map(|machine| machine.driver.clone().into()),
            device: machine.map(|machine| DeviceObject {
                ordinal: None,
                name: machine.device.clone(),
                sm_count: machine.sm_count,
                compute_capability: machine.compute_capability.to_string(),
            }),
            verdict: VerdictObject {
                kind: verdict.kind.as_str(),
                shares: &verdict.shares,
                priority: &verdict.priority,
                gain: verdict.gain,
                confidence: verdict.confidence,
                sentence: &verdict.sentence,
            },
            jobs: outcome.jobs.iter().map(job).collect(),
            arms: outcome.arms.iter().map(arm).collect(),
            seconds: outcome.seconds,
        }
    }
}

fn job(job: &JobReport) -> JobObject<'_> {
    JobObject { name: &job.name, host_bound: job.host_bound, solo: &job.solo }
}

fn arm(arm: &ArmReport) -> ArmObject<'_> {
    let latencies = arm.latency_us.iter();
    ArmObject {
        kind: arm.kind.as_str(),
        shares: &arm.shares,
        priority: &arm.priority,
        rates: &arm.rates,
        latency_us: latencies
            .map(|(job, latency)| {
                (job.as_str(), LatencyObject { p50: latency.p50, p99: latency.p99 })
            })
            .collect(),
        samples: arm.samples,
        skipped: arm.skipped.as_deref(),
    }
}

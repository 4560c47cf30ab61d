//! `green-ctx verify`: proof that each partition runs on its own SMs.

mod picture;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use green_ctx::verify::{self, PartitionReport, Report};
use serde::Serialize;

use self::picture::Picture;
use crate::Options;
use crate::counts::{Request, ranges};
use crate::failure::{Failure, NOT_VERIFIED};
use crate::output::{Align, DeviceObject, DriverObject, Outcome, heading, table, yes_or_no};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: Request,
    /// How long each block of the probe kernel stays on its SM, in milliseconds.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(1..=1000),
        allow_negative_numbers = true
    )]
    stay_ms: u64,
    /// Draws the SMs, coloured by partition, over the timeline of blocks.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    let device = options.driver.device(options.device)?;
    // Before anything runs on the device, so that a wrong name costs nothing.
    let picture = arguments.svg.clone().map(Picture::open).transpose()?;
    let request = arguments.request.to_split().rest("remainder");
    let report = verify::split(&device, request, Duration::from_millis(arguments.stay_ms))?;
    if let Some(picture) = picture {
        picture.write(&crate::svg(&report))?;
    }

    let status = if report.ok() { 0 } else { NOT_VERIFIED };
    if options.json {
        return Outcome::json(&Answer::of(&report), status);
    }
    let mut text = heading(device.driver(), &DeviceObject::of(&device)?);
    text.push_str(&describe(&report));
    if let Some(path) = &arguments.svg {
        // Writing to a string does not fail.
        let _ = writeln!(text, "picture             {}", path.display());
    }
    Ok(Outcome { text, status })
}

#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    driver: DriverObject,
    device: DeviceObject,
    partitions: Vec<Partition<'a>>,
    disjoint: bool,
    concurrent: bool,
    ok: bool,
}

#[derive(Serialize)]
struct Partition<'a> {
    name: &'a str,
    requested: Option<u32>,
    sm_count: u32,
    observed_sms: BTreeSet<u32>,
    start_ns: u64,
    end_ns: u64,
}

impl<'a> Answer<'a> {
    pub(crate) fn of(report: &'a Report) -> Answer<'a> {
        let partition = |partition: &'a PartitionReport| Partition {
            name: &partition.name,
            requested: partition.share.and_then(|share| share.count()),
            sm_count: partition.sm_count,
            observed_sms: partition.observed_sms(),
            start_ns: partition.start_ns(),
            end_ns: partition.end_ns(),
        };
        Answer {
            driver: report.driver.clone().into(),
            device: DeviceObject {
                ordinal: report.ordinal,
                name: report.device_name.clone(),
                sm_count: report.sm_count,
                compute_capability: report.compute_capability.to_string(),
            },
            partitions: report.partitions.iter().map(partition).collect(),
            disjoint: report.disjoint(),
            concurrent: report.concurrent(),
            ok: report.ok(),
        }
    }
}

/// The partitions in a table, and what is to be thought of them.
fn describe(report: &Report) -> String {
    let first = report.partitions.iter().map(PartitionReport::start_ns).min().unwrap_or(0);
    let ms = |ns: u64| format!("{:.3}", Duration::from_nanos(ns).as_secs_f64() * 1e3);
    let row = |partition: &PartitionReport| {
        let (start, end) = (partition.start_ns(), partition.end_ns());
        let observed = partition.observed_sms();
        [
            partition.name.clone(),
            partition
                .share
                .and_then(|share| share.count())
                .map_or_else(|| "-".to_owned(), |count| count.to_string()),
            partition.sm_count.to_string(),
            observed.len().to_string(),
            ms(start.saturating_sub(first)),
            ms(end.saturating_sub(start)),
            ranges(&observed),
        ]
    };
    let columns = [
        ("partition", Align::Left),
        ("requested", Align::Right),
        ("given", Align::Right),
        ("observed", Align::Right),
        ("start ms", Align::Right),
        ("duration ms", Align::Right),
        ("ids of the SMs observed", Align::Left),
    ];
    let rows: Vec<_> = report.partitions.iter().map(row).collect();
    let concurrent = if report.concurrent() {
        "yes"
    } else {
        "no; disjoint SMs promise no concurrency, and it is no part of the verdict"
    };
    format!(
        "\n{}\ndisjoint            {}\noverlapped in time  {concurrent}\n{}\n",
        table(columns, &rows),
        disjoint(report),
        verdict(report),
    )
}

fn disjoint(report: &Report) -> String {
    let mut seen = BTreeSet::new();
    let observed = report.partitions.iter().flat_map(PartitionReport::observed_sms);
    let shared: BTreeSet<u32> = observed.filter(|sm| !seen.insert(*sm)).collect();
    let answer = yes_or_no(report.disjoint());
    if shared.is_empty() {
        return answer.to_owned();
    }
    format!("{answer}; in more than one partition: {}", ranges(&shared))
}

fn verdict(report: &Report) -> String {
    if report.ok() {
        return "verified            each partition ran on its own SMs, on all of them and only there"
            .to_owned();
    }
    let mut verdict = "NOT verified".to_owned();
    for partition in report.partitions.iter().filter(|partition| !partition.complete()) {
        let PartitionReport { name, sm_count, .. } = partition;
        let observed = partition.observed_sms().len();
        // Writing to a string does not fail.
        let _ = write!(verdict, "\n  {name} was given {sm_count} SMs and ran on {observed}");
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use green_ctx::Driver;
    use green_ctx::sim::{Sim, Spec};

    fn report() -> Report {
        let sim = Sim::new(Spec::default()).expect("a simulated driver");
        let driver = Driver::simulated(&sim).expect("it loads");
        let device = driver.device(0).expect("it has a device");
        let stay = Duration::from_millis(4);
        verify::split(&device, [16, 24], stay).expect("the split fits")
    }

    #[test]
    fn a_good_report_is_verified() {
        let text = describe(&report());
        assert!(text.contains("\ndisjoint            yes\n"), "{text}");
        assert!(text.contains("\noverlapped in time  yes\n"), "{text}");
        assert!(text.contains("\nverified "), "{text}");
    }

    #[test]
    fn a_shared_sm_is_told() {
        let mut report = report();
        let taken = report.partitions[0].blocks[0].sm;
        report.partitions[1].blocks[0].sm = taken;
        let text = describe(&report);
        assert!(!report.ok());
        let expected = format!("\ndisjoint            no; in more than one partition: {taken}\n");
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains("\nNOT verified\n  p1 was given 24 SMs and ran on 25\n"), "{text}");
    }

    #[test]
    fn partitions_one_after_the_other_are_verified_and_told() {
        let mut report = report();
        let end = report.partitions[0].end_ns();
        for block in &mut report.partitions[1].blocks {
            (block.start_ns, block.end_ns) = (block.start_ns + end, block.end_ns + end);
        }
        let text = describe(&report);
        assert!(
            text.contains("\noverlapped in time  no; disjoint SMs promise no concurrency"),
            "{text}"
        );
        assert!(text.contains("\nverified "), "{text}");
    }
}

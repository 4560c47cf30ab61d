//! The result of a verification, as JSON and as text.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use green_ctx::Share;
use green_ctx::verify::{PartitionReport, Report};
use serde::Serialize;

use crate::findings;
use crate::objects::{DeviceObject, DriverObject, ReserveObject, count};
use crate::table::{Align, ranges, table};

/// The JSON that `green-ctx verify` prints.
#[derive(Serialize)]
pub struct Verification<'a> {
    driver: DriverObject,
    device: DeviceObject,
    partitions: Vec<Partition<'a>>,
    disjoint: bool,
    concurrent: bool,
    floors_kept: bool,
    ok: bool,
}

#[derive(Serialize)]
struct Partition<'a> {
    name: &'a str,
    requested: Option<u32>,
    share: Option<Share>,
    floor: u32,
    ceiling: u32,
    sm_count: u32,
    observed_sms: BTreeSet<u32>,
    floor_sms: &'a BTreeSet<u32>,
    start_ns: u64,
    end_ns: u64,
    kept: bool,
}

impl<'a> Verification<'a> {
    /// Creates the JSON object for a report.
    #[must_use]
    pub fn of(report: &'a Report) -> Verification<'a> {
        let partition = |(index, partition): (usize, &'a PartitionReport)| Partition {
            name: &partition.name,
            requested: partition.share.and_then(count),
            share: partition.share,
            floor: partition.floor,
            ceiling: partition.sm_count,
            sm_count: partition.sm_count,
            observed_sms: partition.observed_sms(),
            floor_sms: &partition.floor_sms,
            start_ns: partition.start_ns(),
            end_ns: partition.end_ns(),
            kept: report.kept(index),
        };
        let rest = report.rest().map_or(report.sm_count, |rest| rest.sm_count);
        Verification {
            driver: report.driver.clone().into(),
            device: DeviceObject {
                ordinal: Some(report.ordinal),
                name: report.device_name.clone(),
                sm_count: report.sm_count,
                compute_capability: report.compute_capability.to_string(),
                reserve: ReserveObject::of(report.sm_count, rest),
            },
            partitions: report.partitions.iter().enumerate().map(partition).collect(),
            disjoint: report.disjoint(),
            concurrent: report.concurrent(),
            floors_kept: report.floors_kept(),
            ok: report.ok(),
        }
    }
}

/// Formats a report as a table of its partitions, followed by the verdict.
#[must_use]
pub fn verification_text(report: &Report) -> String {
    let first = report.partitions.iter().map(PartitionReport::start_ns).min().unwrap_or(0);
    let ms = |ns: u64| format!("{:.3}", Duration::from_nanos(ns).as_secs_f64() * 1e3);
    let row = |partition: &PartitionReport| {
        let (start, end) = (partition.start_ns(), partition.end_ns());
        let observed = partition.observed_sms();
        [
            partition.name.clone(),
            partition.share.map_or_else(|| "-".to_owned(), |share| share.to_string()),
            partition.floor.to_string(),
            partition.sm_count.to_string(),
            observed.len().to_string(),
            ms(start.saturating_sub(first)),
            ms(end.saturating_sub(start)),
            ranges(&observed),
        ]
    };
    let columns = [
        ("partition", Align::Left),
        ("share", Align::Right),
        ("floor", Align::Right),
        ("ceiling", Align::Right),
        ("observed", Align::Right),
        ("start ms", Align::Right),
        ("duration ms", Align::Right),
        ("ids of the observed SMs", Align::Left),
    ];
    let rows: Vec<_> = report.partitions.iter().map(row).collect();
    let concurrent = if report.concurrent() {
        "yes"
    } else {
        "no; separate SMs do not guarantee concurrency, so this does not affect the verdict"
    };
    format!(
        "\n{}\ndisjoint            {}\noverlapped in time  {concurrent}\n{}\n",
        table(columns, &rows),
        disjoint(report),
        verdict(report),
    )
}

/// Describes whether several partitions ran on the same SM, and whether their shares allow this.
fn disjoint(report: &Report) -> String {
    let mut seen = BTreeSet::new();
    let observed = report.partitions.iter().flat_map(PartitionReport::observed_sms);
    let met: BTreeSet<u32> = observed.filter(|sm| !seen.insert(*sm)).collect();
    let trespassed: BTreeSet<u32> = (0..report.partitions.len())
        .flat_map(|index| findings::trespassed(report, index))
        .collect();
    let (wrong, shared) = (&met & &trespassed, &met - &trespassed);
    let more = format!("{} SMs ran blocks of partitions that share them", shared.len());
    match (wrong.is_empty(), shared.is_empty()) {
        (true, true) => "yes".to_owned(),
        (true, false) => format!("no, as requested: {more}"),
        (false, true) => format!("NO, in violation of the shares: SM ids {}", ranges(&wrong)),
        (false, false) => {
            format!("NO, in violation of the shares: SM ids {}; {more}", ranges(&wrong))
        }
    }
}

fn verdict(report: &Report) -> String {
    if report.ok() {
        return format!("verified            {}", findings::kept(report));
    }
    let mut verdict = "NOT verified".to_owned();
    for (index, PartitionReport { name, .. }) in report.partitions.iter().enumerate() {
        for fault in findings::faults(report, index) {
            // Writing to a string does not fail.
            let _ = write!(verdict, "\n  {name} {fault}");
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::findings::tests::{Part, decode_and_prefill, report};

    fn exclusive() -> Report {
        let parts = [("p0", 0..16), ("p1", 16..40)];
        report(&parts.map(|(name, sms)| Part::exclusive(name, sms.collect())))
    }

    #[test]
    fn a_good_report_is_verified() {
        let text = verification_text(&exclusive());
        assert!(text.contains("\ndisjoint            yes\n"), "{text}");
        assert!(text.contains("\noverlapped in time  yes\n"), "{text}");
        assert!(
            text.contains("\nverified            each partition ran on all of its own SMs"),
            "{text}"
        );
    }

    #[test]
    fn sharing_reads_like_no_failure() {
        let text = verification_text(&report(&decode_and_prefill()));
        let expected = "\ndisjoint            no, as requested: 100 SMs ran blocks of partitions that share them\n";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("\nverified            each partition ran on its whole floor"),
            "{text}"
        );
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().take(5).collect()).collect();
        assert_eq!(rows[2], ["decode", "32..", "32", "132", "132"]);
        assert_eq!(rows[3], ["prefill", "..=100", "0", "100", "100"]);
    }

    #[test]
    fn a_block_on_anothers_floor_is_reported() {
        let mut report = exclusive();
        let taken = report.partitions[0].blocks[0].sm;
        report.partitions[1].blocks[0].sm = taken;
        let text = verification_text(&report);
        assert!(!report.ok());
        let expected =
            format!("\ndisjoint            NO, in violation of the shares: SM ids {taken}\n");
        assert!(text.contains(&expected), "{text}");
        let expected = "\nNOT verified\n  p0 had other partitions on its floor: p1 on SM 0\n  \
                        p1 ran outside its ceiling on SM 0\n";
        assert!(text.ends_with(expected), "{text}");

        let [decode, mut prefill] = decode_and_prefill();
        prefill.ran.push(31);
        let text = verification_text(&self::report(&[decode, prefill]));
        let expected = "NO, in violation of the shares: SM ids 31; 100 SMs ran blocks of \
                        partitions that share them";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn partitions_one_after_the_other_are_verified_and_reported() {
        let mut report = exclusive();
        let end = report.partitions[0].end_ns();
        for block in &mut report.partitions[1].blocks {
            (block.start_ns, block.end_ns) = (block.start_ns + end, block.end_ns + end);
        }
        let text = verification_text(&report);
        assert!(
            text.contains("\noverlapped in time  no; separate SMs do not guarantee concurrency"),
            "{text}"
        );
        assert!(text.contains("\nverified "), "{text}");
    }

    #[test]
    fn work_outside_of_partitions_is_no_partition() {
        let parts = [Part::exclusive("p0", (0..32).collect()), Part::outside((32..132).collect())];
        let report = report(&parts);
        let text = verification_text(&report);
        let row = text.lines().find(|line| line.starts_with("work outside of partitions"));
        let cells: Vec<_> = row.expect("a row").split_whitespace().skip(4).take(4).collect();
        assert_eq!(cells, ["-", "0", "100", "100"]);
        let value = serde_json::to_value(Verification::of(&report)).expect("JSON");
        assert_eq!(value["device"]["reserve"], json!({ "sm_count": 32, "rest": 100 }));
        assert!(crate::verification_svg(&report).contains("1 partition of NVIDIA H200"));

        let mut intruded = report;
        intruded.partitions[1].blocks[0].sm = 0;
        let expected = "p0 had other partitions on its floor: work outside of partitions on SM 0\n";
        let text = verification_text(&intruded);
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn json_says_what_was_kept_of_whom() {
        let [decode, mut prefill] = decode_and_prefill();
        prefill.ran.push(31);
        let mut context = Part::exclusive("primary", vec![]);
        context.share = Value::Null;
        let report = report(&[decode, prefill, context]);
        let value = serde_json::to_value(Verification::of(&report)).expect("JSON");
        let part = |index: usize, key: &str| value["partitions"][index][key].clone();
        assert_eq!((part(0, "share"), part(0, "requested")), (json!("32.."), Value::Null));
        assert_eq!((part(0, "floor"), part(0, "ceiling")), (json!(32), json!(132)));
        assert_eq!(part(0, "floor_sms"), json!((0..32).collect::<Vec<u32>>()));
        assert_eq!((part(1, "floor"), part(1, "kept")), (json!(0), json!(false)));
        assert_eq!(part(2, "share"), Value::Null);
        let verdicts = ["disjoint", "floors_kept", "ok"].map(|key| &value[key]);
        assert_eq!(verdicts, [&json!(false); 3]);
    }
}

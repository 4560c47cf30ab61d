//! The violations in a report of `verify`, as sets of SMs and in words.

use std::collections::BTreeSet;

use green_ctx::verify::{PartitionReport, Report};

use crate::table::sms;

/// Returns a clause that describes what a successful verification has shown.
pub(crate) fn kept(report: &Report) -> &'static str {
    match report.partitions.iter().all(|partition| partition.floor == partition.sm_count) {
        true => "each partition ran on all of its own SMs and on no others",
        false => {
            "each partition ran on its whole floor, had it to itself, and stayed within its ceiling"
        }
    }
}

/// Returns the SMs that a partition used in violation of the shares: those outside its ceiling, and those in other
/// partitions' floors.
pub(crate) fn trespassed(report: &Report, index: usize) -> BTreeSet<u32> {
    let partition = &report.partitions[index];
    let others = report.partitions.iter().enumerate().filter(|(other, _)| *other != index);
    let floors: BTreeSet<u32> =
        others.flat_map(|(_, other)| other.floor_sms.iter().copied()).collect();
    let outside = outside(partition);
    let observed = partition.observed_sms();
    observed.into_iter().filter(|sm| outside.contains(sm) || floors.contains(sm)).collect()
}

/// Returns the faults of a partition; the list is empty if there are none. Each fault completes a sentence that
/// begins with the partition's name.
pub(crate) fn faults(report: &Report, index: usize) -> Vec<String> {
    let partition = &report.partitions[index];
    let PartitionReport { floor, sm_count, alone_sms, floor_sms, .. } = partition;
    let mut faults = Vec::new();
    if alone_sms.len() != *sm_count as usize {
        faults.push(format!(
            "reached {} SMs instead of {sm_count} when it ran alone",
            alone_sms.len()
        ));
    }
    // For an exclusive partition this fault equals the previous one.
    if floor_sms.len() != *floor as usize && floor_sms != alone_sms {
        faults.push(format!("has a floor of {} SMs instead of {floor}", floor_sms.len()));
    }
    let unreachable = floor_sms - alone_sms;
    if !unreachable.is_empty() {
        faults.push(format!("did not reach {} of its floor when it ran alone", sms(&unreachable)));
    }
    let outside = outside(partition);
    if !outside.is_empty() {
        faults.push(format!("ran outside its ceiling on {}", sms(&outside)));
    }
    let missed = floor_sms - &partition.observed_sms();
    if !missed.is_empty() {
        faults.push(format!("did not run on {} of its floor", sms(&missed)));
    }
    let intruded = report.intruded(index);
    if !intruded.is_empty() {
        let who = intruders(report, index, &intruded).join(", ");
        faults.push(format!("had other partitions on its floor: {who} on {}", sms(&intruded)));
    }
    faults
}

fn outside(partition: &PartitionReport) -> BTreeSet<u32> {
    &partition.observed_sms() - &partition.alone_sms
}

/// Returns the names of the partitions that ran on these SMs of another partition's floor.
fn intruders<'a>(report: &'a Report, owner: usize, floor: &BTreeSet<u32>) -> Vec<&'a str> {
    let others = report.partitions.iter().enumerate().filter(|(other, _)| *other != owner);
    let others = others.filter(|(_, other)| !other.observed_sms().is_disjoint(floor));
    others.map(|(_, other)| other.name.as_str()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// One partition of a report made up for a test.
    pub(crate) struct Part<'a> {
        pub(crate) name: &'a str,
        pub(crate) share: Value,
        pub(crate) floor: Vec<u32>,
        pub(crate) ceiling: Vec<u32>,
        /// The SMs that the partition ran on while all partitions ran.
        pub(crate) ran: Vec<u32>,
    }

    impl<'a> Part<'a> {
        /// Returns a partition that has these SMs exclusively and ran on all of them.
        pub(crate) fn exclusive(name: &'a str, sms: Vec<u32>) -> Part<'a> {
            // A share of no SMs does not exist.
            let share = json!(Some(sms.len().to_string()).filter(|_| !sms.is_empty()));
            Part { name, share, floor: sms.clone(), ceiling: sms.clone(), ran: sms }
        }

        /// Returns work outside of partitions, which a reserve confines to these SMs.
        pub(crate) fn outside(sms: Vec<u32>) -> Part<'a> {
            let name = "work outside of partitions";
            Part { name, share: Value::Null, floor: vec![], ran: sms.clone(), ceiling: sms }
        }

        /// Returns a partition that shares the SMs above its floor, and that ran on all SMs up to its ceiling.
        pub(crate) fn sharing(
            name: &'a str,
            share: &str,
            floor: Vec<u32>,
            pool: Vec<u32>,
        ) -> Part<'a> {
            let ceiling = [floor.clone(), pool].concat();
            Part { name, share: json!(share), floor, ran: ceiling.clone(), ceiling }
        }
    }

    /// Returns a report of these partitions. Each SM ran four blocks, two at a time.
    pub(crate) fn report(parts: &[Part<'_>]) -> Report {
        let blocks = |sm: u32, late: u64| {
            (0..4u64).map(move |number| {
                let start_ns = 1_000_000 + late + u64::from(sm) * 90 + number / 2 * 4_001_000;
                json!({ "sm": sm, "start_ns": start_ns, "end_ns": start_ns + 4_000_000 })
            })
        };
        let partition = |(part, late): (&Part<'_>, u64)| {
            json!({
                "name": part.name,
                "share": part.share,
                "floor": part.floor.len(),
                "sm_count": part.ceiling.len(),
                "alone_sms": part.ceiling,
                "floor_sms": part.floor,
                "blocks": part.ran.iter().flat_map(|sm| blocks(*sm, late * 20_000)).collect::<Vec<_>>(),
            })
        };
        let report = json!({
            "driver": { "version": "13.0", "profile": "h200" },
            "ordinal": 0,
            "device_name": "NVIDIA H200",
            "sm_count": 132,
            "compute_capability": "9.0",
            "partitions": parts.iter().zip(0..).map(partition).collect::<Vec<_>>(),
        });
        serde_json::from_value(report).expect("a report")
    }

    /// Returns partitions with the shares `32..` and `..=100` of 132 SMs. Each partition uses all SMs that it may
    /// use.
    pub(crate) fn decode_and_prefill() -> [Part<'static>; 2] {
        [
            Part::sharing("decode", "32..", (0..32).collect(), (32..132).collect()),
            Part::sharing("prefill", "..=100", vec![], (32..132).collect()),
        ]
    }

    fn all_faults(report: &Report) -> Vec<Vec<String>> {
        let faults: Vec<_> =
            (0..report.partitions.len()).map(|index| faults(report, index)).collect();
        for (index, faults) in faults.iter().enumerate() {
            assert_eq!(report.kept(index), faults.is_empty(), "{faults:?}");
        }
        faults
    }

    #[test]
    fn sharing_within_the_ceilings_is_no_fault() {
        let report = report(&decode_and_prefill());
        assert!(report.ok() && !report.disjoint());
        assert_eq!(all_faults(&report).concat(), [""; 0]);
        assert!((0..2).all(|index| trespassed(&report, index).is_empty()));
        assert!(kept(&report).contains("within its ceiling"));
    }

    #[test]
    fn every_fault_is_reported_of_whom_it_concerns() {
        let [decode, mut prefill] = decode_and_prefill();
        prefill.ran.extend([30, 31]);
        let report_of_intrusion = report(&[decode, prefill]);
        assert_eq!(
            all_faults(&report_of_intrusion),
            [
                ["had other partitions on its floor: prefill on SMs 30-31"],
                ["ran outside its ceiling on SMs 30-31"],
            ]
        );
        assert_eq!(trespassed(&report_of_intrusion, 1), [30, 31].into());
        assert!(trespassed(&report_of_intrusion, 0).is_empty());

        let mut missing = report(&[Part::exclusive("p0", (0..16).collect())]);
        missing.partitions[0].blocks.retain(|block| block.sm != 7);
        assert_eq!(all_faults(&missing), [["did not run on SM 7 of its floor"]]);
        missing.partitions[0].alone_sms.remove(&7);
        missing.partitions[0].floor_sms.remove(&7);
        assert_eq!(all_faults(&missing), [["reached 15 SMs instead of 16 when it ran alone"]]);

        let mut floor = report(&decode_and_prefill());
        floor.partitions[0].floor_sms.remove(&7);
        assert_eq!(all_faults(&floor)[0], ["has a floor of 31 SMs instead of 32"]);
        let mut apart = report(&decode_and_prefill());
        apart.partitions[0].alone_sms.remove(&7);
        apart.partitions[0].sm_count -= 1;
        let expected = [
            "did not reach SM 7 of its floor when it ran alone",
            "ran outside its ceiling on SM 7",
        ];
        assert_eq!(all_faults(&apart)[0], expected);
    }
}

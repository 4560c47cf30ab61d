//! The partitions that may use each SM, and the partitions that used it.

use std::collections::{BTreeMap, BTreeSet};

use green_ctx::verify::Report;

use crate::findings;

/// The partitions that may use or did use one SM, by index.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    /// The partitions whose floor contains the SM.
    pub(super) owners: BTreeSet<usize>,
    /// The partitions that may use the SM, including those whose floor contains it.
    pub(super) users: BTreeSet<usize>,
    /// The partitions whose blocks ran on the SM.
    pub(super) ran: BTreeSet<usize>,
    /// The partitions whose blocks ran on the SM in violation of the shares.
    pub(super) trespassers: BTreeSet<usize>,
}

/// The appearance of an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The SM is in the floor of this partition, and the partition ran on it.
    Floor(usize),
    /// The SM is in the floor of this partition, but the partition did not run on it.
    Missed(usize),
    /// The SM is in no floor, and only this partition may use it.
    Pool(usize),
    /// The SM is in no floor, and several partitions may use it.
    Shared,
    /// No partition may use the SM.
    Unused,
    /// A partition used the SM in violation of the shares.
    Violated,
}

impl Usage {
    pub(super) fn kind(&self) -> Kind {
        match (self.owners.first(), self.users.first()) {
            _ if !self.trespassers.is_empty() => Kind::Violated,
            (Some(owner), _) if self.ran.contains(owner) => Kind::Floor(*owner),
            (Some(owner), _) => Kind::Missed(*owner),
            (None, Some(user)) if self.users.len() == 1 => Kind::Pool(*user),
            (None, Some(_)) => Kind::Shared,
            (None, None) => Kind::Unused,
        }
    }
}

/// Returns the usage of every SM of the device, and of every other SM id in the report.
pub(super) fn usages(report: &Report) -> BTreeMap<u32, Usage> {
    let mut usages: BTreeMap<u32, Usage> =
        (0..report.sm_count).map(|sm| (sm, Usage::default())).collect();
    for (index, partition) in report.partitions.iter().enumerate() {
        for sm in &partition.floor_sms {
            let usage = usages.entry(*sm).or_default();
            usage.owners.insert(index);
            usage.users.insert(index);
        }
        for sm in &partition.alone_sms {
            usages.entry(*sm).or_default().users.insert(index);
        }
        for sm in partition.observed_sms() {
            usages.entry(sm).or_default().ran.insert(index);
        }
        for sm in findings::trespassed(report, index) {
            usages.entry(sm).or_default().trespassers.insert(index);
        }
    }
    usages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::tests::{Part, report};

    #[test]
    fn every_sm_is_of_one_kind() {
        let [mut first, mut second] = [
            Part::sharing("first", "2..=6", vec![0, 1], vec![2, 3, 4, 5]),
            Part::sharing("second", "..=3", vec![], vec![4, 5, 6]),
        ];
        first.ran = vec![0, 2, 4];
        second.ran = vec![4, 6, 7];
        let usages = usages(&report(&[first, second]));
        let kinds: Vec<Kind> = usages.values().map(Usage::kind).take(9).collect();
        use Kind::{Floor, Missed, Pool, Shared, Unused, Violated};
        let expected =
            [Floor(0), Missed(0), Pool(0), Pool(0), Shared, Shared, Pool(1), Violated, Unused];
        assert_eq!(kinds, expected);
        assert_eq!(usages[&7].trespassers, [1].into());
        assert_eq!(usages.len(), 132);
    }
}

//! Compares the rules with the record, and tests GPUs with other topologies.

use super::*;
use crate::Profile;
use crate::profile::H200;

fn ids(set: SmSet) -> Vec<u32> {
    set.iter().collect()
}

/// Parses SM ids in the format of the record.
fn recorded(ids: &str) -> SmSet {
    ids.split_whitespace().map(|id| id.parse::<u32>().unwrap_or(u32::MAX)).collect()
}

fn table(flags: u32) -> Vec<(u32, u32, u32, u32)> {
    let topology = &H200.topology;
    let unit = if flags & 1 == 1 { 2 } else { 8 };
    let mut rows = Vec::new();
    let mut minimum = 0;
    while minimum <= 132 {
        let split =
            topology.split(topology.all(), false, None, flags, minimum).expect("every size fits");
        let each = split.groups[0].len();
        assert!(
            split.groups.iter().all(|group| group.len() == each),
            "unequal groups at {minimum}"
        );
        let mut seen = split.remainder;
        for &group in &split.groups {
            assert!(seen.intersection(group).is_empty(), "overlap at {minimum}");
            seen = seen.union(group);
        }
        assert_eq!(seen, topology.all(), "SMs lost at {minimum}");
        rows.push((minimum, split.groups.len() as u32, each, split.remainder.len()));
        minimum = if minimum == 0 { unit + 1 } else { minimum + unit };
    }
    rows
}

/// The recorded table for flags 0, 2 and 4. A row contains the minimum, the number of groups, the
/// SMs per group, and the SMs left over.
const COARSE: [(u32, u32, u32, u32); 17] = [
    (0, 15, 8, 12),
    (9, 8, 16, 4),
    (17, 5, 24, 12),
    (25, 4, 32, 4),
    (33, 3, 40, 12),
    (41, 2, 48, 36),
    (49, 2, 56, 20),
    (57, 2, 64, 4),
    (65, 1, 72, 60),
    (73, 1, 80, 52),
    (81, 1, 88, 44),
    (89, 1, 96, 36),
    (97, 1, 104, 28),
    (105, 1, 112, 20),
    (113, 1, 120, 12),
    (121, 1, 128, 4),
    (129, 1, 132, 0),
];

#[test]
fn coarse_table_is_the_recorded_one() {
    for flags in [0, 2, 4, 0x8000_0000] {
        assert_eq!(table(flags), COARSE, "flags {flags}");
    }
}

/// The recorded table for flag 1. One formula gives all rows of this table.
#[test]
fn fine_table_is_the_recorded_one() {
    let rows = table(1);
    assert_eq!(rows.len(), 66);
    for &(minimum, groups, each, left) in &rows {
        let size = minimum.max(1).div_ceil(2) * 2;
        assert_eq!((groups, each, left), (132 / size, size, 132 % size), "minimum {minimum}");
    }
    for row in [
        (0, 66, 2, 0),
        (7, 16, 8, 4),
        (19, 6, 20, 12),
        (45, 2, 46, 40),
        (67, 1, 68, 64),
        (131, 1, 132, 0),
    ] {
        assert!(rows.contains(&row), "{row:?}");
    }
}

/// Each row of the record contains the requested groups, the minimum, the groups, the SMs per
/// group, and the SMs left over.
#[test]
fn fewer_groups_than_fit_leave_more_over() {
    let topology = &H200.topology;
    for (wanted, minimum, groups, each, left) in [
        (1, 8, 1, 8, 124),
        (1, 20, 1, 24, 108),
        (1, 132, 1, 132, 0),
        (2, 16, 2, 16, 100),
        (3, 64, 2, 64, 4),
        (4, 32, 4, 32, 4),
        (8, 20, 5, 24, 12),
        (16, 8, 15, 8, 12),
        (17, 16, 8, 16, 4),
        (40, 100, 1, 104, 28),
    ] {
        let split = topology.split(topology.all(), false, Some(wanted), 0, minimum).expect("fits");
        let got = (split.groups.len() as u32, split.groups[0].len(), split.remainder.len());
        assert_eq!(got, (groups, each, left), "{wanted} groups of {minimum}");
    }
}

#[test]
fn impossible_splits_are_refused() {
    let topology = &H200.topology;
    for flags in [0, 1, 2, 4] {
        assert_eq!(topology.split(topology.all(), false, None, flags, 133), Err(SplitError::Size));
    }
    assert_eq!(topology.split(topology.all(), false, None, 3, 0), Err(SplitError::Flags));
    // SMs outside whole units; recorded for the last 12.
    let tail = |loose| topology.split(recorded("128 129 130 131"), loose, None, 0, 0);
    assert_eq!(tail(false), Err(SplitError::Size));
    assert_eq!(tail(true).map(|split| split.groups.len()), Ok(1));
}

#[test]
fn units_hold_the_recorded_sms() {
    let units = H200.topology.coarse_units();
    assert_eq!(units.len(), 15);
    for (unit, sms) in [
        (0, "0 1 16 17 32 33 48 49"),
        (1, "2 3 18 19 34 35 50 51"),
        (7, "14 15 30 31 46 47 62 63"),
        (8, "64 65 78 79 92 93 106 107"),
        (11, "70 71 84 85 98 99 112 113"),
        (14, "76 77 90 91 104 105 118 119"),
    ] {
        assert_eq!(units[unit], recorded(sms), "unit {unit}");
    }
    let split = H200.topology.split(H200.topology.all(), false, None, 0, 8).expect("fits");
    assert_eq!(split.groups, units);
    assert_eq!(ids(split.remainder), (120..132).collect::<Vec<_>>());
}

#[test]
fn fine_units_hold_the_recorded_sms() {
    let units = H200.topology.fine_units();
    assert_eq!(units.len(), 66);
    for (unit, sms) in [
        (0, "0 1"),
        (1, "2 3"),
        (2, "4 5"),
        (7, "14 15"),
        (8, "124 125"),
        (31, "54 55"),
        (32, "56 57"),
        (33, "58 59"),
        (40, "72 73"),
        (65, "122 123"),
    ] {
        assert_eq!(units[unit], recorded(sms), "fine unit {unit}");
    }
    let scattered = (0..8).fold(SmSet::default(), |set, index| set.union(units[index * 4]));
    assert_eq!(scattered, recorded("0 1 8 9 16 17 24 25 32 33 40 41 48 49 124 125"));
}

#[test]
fn groups_and_nested_groups_hold_the_recorded_sms() {
    let topology = &H200.topology;
    let direct = topology.split(topology.all(), false, Some(1), 0, 24).expect("fits");
    assert_eq!(
        direct.groups[0],
        recorded("0 1 2 3 4 5 16 17 18 19 20 21 32 33 34 35 36 37 48 49 50 51 52 53")
    );
    let half = topology.split(topology.all(), false, Some(1), 0, 64).expect("fits");
    assert_eq!(ids(half.groups[0]), (0..64).collect::<Vec<_>>());

    let parent = topology.split(topology.all(), false, Some(1), 0, 48).expect("fits").groups[0];
    let nested = topology.split(parent, false, Some(2), 0, 16).expect("fits");
    assert_eq!(nested.groups[0], recorded("0 1 4 5 16 17 20 21 32 33 36 37 48 49 52 53"));
    assert_eq!(nested.groups[1], recorded("2 3 6 7 18 19 22 23 34 35 38 39 50 51 54 55"));
    assert_eq!(nested.remainder, recorded("8 9 10 11 24 25 26 27 40 41 42 43 56 57 58 59"));

    let fine = topology.split(topology.coarse_units()[0], false, None, 1, 2).expect("fits");
    assert_eq!(fine.groups.len(), 4);
    assert_eq!(fine.groups[..2], [recorded("0 1"), recorded("16 17")]);
}

#[test]
fn clusters_are_the_recorded_ones() {
    let topology = &H200.topology;
    let of = |resources: &[(SmSet, bool)], size| {
        let places = resources.iter().map(|&(sms, fine)| topology.places(sms, fine));
        // Two blocks per SM, as in every recorded case.
        clusters(&places.fold(Vec::new(), join), 2, size)
    };
    let counts = |resources: &[SmSet]| {
        let resources: Vec<_> = resources.iter().map(|&sms| (sms, sms.len() == 2)).collect();
        [2, 4, 8].map(|size| of(&resources, size))
    };
    let split = |count, size| {
        let split = topology.split(topology.all(), false, Some(count), 0, size);
        split.expect("it fits")
    };
    assert_eq!(counts(&[topology.all()]), [132, 62, 30]);
    let half = split(1, 64);
    assert_eq!(counts(&half.groups), [64, 32, 16]);
    assert_eq!(counts(&[half.remainder]), [68, 30, 14]);
    let (direct, units) = (split(1, 24), split(15, 8));
    assert_eq!(counts(&[direct.remainder]), [108, 50, 24]);
    let composed: Vec<SmSet> = units.groups[3..].iter().copied().chain([units.remainder]).collect();
    assert_eq!(counts(&composed), [108, 48, 24]);
    assert_eq!(counts(&[units.remainder]), [12, 0, 0]);
    let two = split(2, 32);
    assert_eq!(counts(&[two.groups[0], two.remainder]), [100, 46, 22]);
    assert_eq!(counts(&[units.groups[3], split(8, 16).groups[1]]), [24, 10, 4]);
    let fine = topology.fine_units();
    assert_eq!(counts(&[fine[0], fine[1], fine[2]]), [6, 0, 0]);
    assert_eq!(counts(&[fine[0], units.groups[5]]), [10, 4, 2]);
    assert_eq!(counts(&[fine[0], units.groups[0]]), [8, 4, 2]);
    assert_eq!(counts(&[units.groups[0], units.groups[0]]), [8, 4, 2]);
    // Non-portable cluster sizes, on the device and on the first unit of each GPC.
    let larger = |sms| [8, 9, 12, 16, 17, 32].map(|size| of(&[(sms, false)], size));
    assert_eq!(larger(topology.all()), [30, 23, 16, 14, 4, 0]);
    assert_eq!(larger(half.groups[0]), [16, 0, 0, 0, 0, 0]);
}

/// Tests cases that were not recorded: other numbers of blocks per SM, and resources that share a
/// GPC.
#[test]
fn clusters_lie_in_one_gpc_of_one_resource() {
    let topology = &H200.topology;
    let all = topology.places(topology.all(), false);
    assert_eq!([1, 4, 8, 16].map(|size| clusters(&all, 1, size)), [132, 30, 15, 7]);
    assert_eq!([1, 18, 19].map(|size| clusters(&all, 3, size)), [396, 6, 0]);
    assert_eq!(clusters(&all, 0, 2), 0);
    let units = topology.coarse_units();
    let (one, other) = (topology.places(units[1], false), topology.places(units[8], false));
    let apart = join(one.clone(), other);
    assert_eq!([8, 9].map(|size| clusters(&apart, 2, size)), [4, 0]);
    let both = topology.places(units[1].union(units[8]), false);
    assert_eq!([8, 9, 16].map(|size| clusters(&both, 2, size)), [4, 3, 2]);
    // A resource with SMs of both places joins them, and no SM counts twice.
    assert_eq!(join(apart, both.clone()), both);
    let pair = topology.places(topology.tpc(1), true);
    for parts in [[&one, &one], [&one, &pair], [&pair, &one]] {
        assert_eq!(join(parts[0].clone(), parts[1].clone()), one);
    }
}

/// In every split of every profile, the groups have equal sizes and share no SM, and no SM is lost.
#[test]
fn splits_are_partitions_of_every_part() {
    for profile in Profile::all() {
        let topology = &profile.topology;
        for flags in [0, 1] {
            for minimum in 0..=topology.sm_count {
                let split = topology.split(topology.all(), false, None, flags, minimum);
                let split =
                    split.unwrap_or_else(|error| panic!("{} {minimum}: {error:?}", profile.name));
                let (mut seen, each) = (split.remainder, split.groups[0].len());
                for &group in &split.groups {
                    assert_eq!(group.len(), each, "{} {minimum}", profile.name);
                    assert!(seen.intersection(group).is_empty(), "{} {minimum}", profile.name);
                    seen = seen.union(group);
                }
                assert_eq!(seen, topology.all(), "{} {minimum}", profile.name);
                assert!(each >= minimum, "{} {minimum}", profile.name);
            }
        }
    }
}

/// No two GPCs share an SM, and the GPCs together contain all SMs.
#[test]
fn gpcs_hold_the_sms_of_their_tpcs() {
    for profile in Profile::all() {
        let topology = &profile.topology;
        let gpcs = topology.gpc_sms();
        let counts: Vec<u32> = gpcs.iter().map(|sms| sms.len() / topology.fine_unit).collect();
        assert_eq!(counts, topology.gpcs, "{}", profile.name);
        let all = gpcs.iter().fold(SmSet::default(), |all, &gpc| {
            assert!(all.intersection(gpc).is_empty(), "{}", profile.name);
            all.union(gpc)
        });
        assert_eq!(all, topology.all(), "{}", profile.name);
        for unit in topology.coarse_units() {
            assert!(gpcs.iter().any(|gpc| unit.is_subset(*gpc)), "{}", profile.name);
        }
    }
}

/// A device with one SM per TPC, an odd SM count and GPCs of three sizes.
#[test]
fn sms_need_not_come_in_pairs() {
    let topology = Topology {
        sm_count: 13,
        fine_unit: 1,
        coarse_unit: 4,
        min_group: 4,
        gpcs: &[6, 4, 3],
        domains: &[],
        fine_order: &[(0, 13)],
        splits: &[],
    };
    let units: Vec<Vec<u32>> = topology.coarse_units().into_iter().map(ids).collect();
    assert_eq!(units, [[0, 2, 4, 6], [1, 3, 5, 7]]);
    let gpcs: Vec<Vec<u32>> = topology.gpc_sms().into_iter().map(ids).collect();
    assert_eq!(gpcs, [vec![0, 2, 4, 6, 8, 10], vec![1, 3, 5, 7], vec![9, 11, 12]]);
    let split = |flags, minimum| {
        let split = topology.split(topology.all(), false, None, flags, minimum).expect("it fits");
        (split.groups.len(), split.groups[0].len(), split.remainder.len())
    };
    assert_eq!((split(0, 0), split(0, 5), split(0, 12)), ((2, 4, 5), (1, 8, 5), (1, 12, 1)));
    assert_eq!((split(1, 0), split(1, 5), split(1, 13)), ((13, 1, 0), (2, 5, 3), (1, 13, 0)));
    assert_eq!(clusters(&topology.places(topology.all(), false), 1, 3), 2 + 1 + 1);
}

//! Every part with every driver that knows it.

use std::collections::BTreeSet;

use green_ctx_sim::{Profile, Spec};
use green_ctx_sys::*;

use crate::launch::clusters;
use crate::machine::*;

/// The first driver that says how SMs may be cut.
const LIMITS: u32 = 13_000;
/// The first driver that makes contexts of several groups, and streams of green contexts directly.
const COMPOSITION: u32 = 12_050;
const FINE: u32 = 1;

fn machines(first: u32) -> impl Iterator<Item = (Spec, Machine)> {
    let specs = Spec::all().filter(move |spec| spec.version() >= first);
    specs.map(|spec| (spec, Machine::with_devices(&spec.to_string(), 1)))
}

#[test]
fn devices_are_what_their_profile_says() {
    for (spec, machine) in machines(0) {
        let Profile { name, topology, .. } = *spec.profile();
        let device = machine.device();
        assert_eq!(sm_count(&device), topology.sm_count, "{spec}");
        // SAFETY: the device was asked for SMs.
        let sms = unsafe { device.__bindgen_anon_1.sm };
        let said = (sms.minSmPartitionSize, sms.smCoscheduledAlignment);
        let known = spec.version() >= LIMITS;
        let states = (topology.min_group, topology.coarse_unit);
        assert_eq!(said, if known { states } else { (0, 0) }, "{spec}");
        let (status, bytes) = ask!(machine, 0, cuDeviceTotalMem(; 0));
        assert_eq!((status, bytes as u64), (OK, spec.profile().memory_bytes), "{name}");
    }
}

/// The groups and the remainder of a split are the whole device, each SM once, and their contexts
/// run there and nowhere else.
#[test]
fn groups_run_on_sms_of_their_own() {
    for (spec, machine) in machines(COMPOSITION) {
        let topology = spec.profile().topology;
        for (flags, least) in [(0, topology.min_group), (FINE, topology.fine_unit)] {
            for minimum in [0, least + 1, topology.sm_count / 3, topology.sm_count / 2 + 1] {
                let split = machine.split(&machine.device(), 128, flags, minimum);
                let split = split.unwrap_or_else(|status| panic!("{spec} {minimum}: {status:?}"));
                let each = sm_count(&split.groups[0]);
                assert!(each >= minimum && each >= least, "{spec} {minimum}");
                let rest = Some(split.rest).filter(|rest| sm_count(rest) > 0);
                let mut seen = BTreeSet::new();
                for group in split.groups.iter().chain(&rest) {
                    let (count, sms) = machine.observe(&[*group]);
                    assert_eq!((count, sms.len() as u32), (sm_count(group), count), "{spec}");
                    assert!(sms.into_iter().all(|sm| seen.insert(sm)), "{spec} {minimum}");
                }
                assert!(seen.into_iter().eq(0..topology.sm_count), "{spec} {minimum}");
            }
        }
    }
}

#[test]
fn groups_of_one_split_combine() {
    for (spec, machine) in machines(COMPOSITION) {
        let split = machine.split(&machine.device(), 128, 0, 0).expect("units");
        let odd = sm_count(&split.rest);
        let mut parts = split.groups[1..].to_vec();
        parts.extend(Some(split.rest).filter(|_| odd > 0));
        let all = spec.profile().topology.sm_count;
        let (count, sms) = machine.observe(&parts);
        assert_eq!(count, all - sm_count(&split.groups[0]), "{spec}");
        assert_eq!(sms.len() as u32, count, "{spec}");
    }
}

/// (profile, groups of the smallest size, SMs of each, SMs left, groups of TPCs).
#[test]
fn devices_are_cut_into_their_units() {
    for (name, groups, each, left, tpcs) in [
        ("a100", 27, 4, 0, 54),
        ("b200", 16, 8, 20, 74),
        ("h100", 15, 8, 12, 66),
        ("h200", 15, 8, 12, 66),
        ("l40s", 35, 4, 2, 71),
        ("rtx5080", 7, 8, 28, 42),
        ("rtx5090", 19, 8, 18, 85),
        ("thor", 10, 2, 0, 10),
    ] {
        let machine = Machine::with_devices(name, 1);
        let split = machine.split(&machine.device(), 128, 0, 0).expect("units");
        let got = (split.groups.len(), sm_count(&split.groups[0]), sm_count(&split.rest));
        assert_eq!(got, (groups, each, left), "{name}");
        let fine = machine.split(&machine.device(), 128, FINE, 0).expect("TPCs");
        assert_eq!((fine.groups.len(), sm_count(&fine.rest)), (tpcs, 0), "{name}");
    }
}

/// From 4 SMs on, 8.x has every even count; 9.0 has multiples of 8.
#[test]
fn counts_are_rounded_up_to_the_alignment() {
    let given = |name: &str, minimum| {
        let machine = Machine::with_devices(name, 1);
        let split = machine.split(&machine.device(), 1, 0, minimum).expect("it fits");
        (sm_count(&split.groups[0]), sm_count(&split.rest))
    };
    for (minimum, count) in [(1, 4), (4, 4), (5, 6), (22, 22), (119, 120)] {
        assert_eq!(given("l40s", minimum), (count, 142 - count));
    }
    for (minimum, count) in [(1, 2), (3, 4), (19, 20)] {
        assert_eq!(given("thor", minimum), (count, 20 - count));
    }
    assert_eq!(given("b200", 17), (24, 124));
    let machine = Machine::with_devices("thor", 1);
    assert_eq!(machine.split(&machine.device(), 1, 0, 21).err(), Some(BAD_CONFIGURATION));
}

/// How many clusters of a size the whole device runs.
fn on_all(name: &str, size: u32) -> (CUresult, i32) {
    let machine = Machine::with_devices(name, 1);
    ok(machine.push(machine.retain()));
    clusters(&machine, std::ptr::null_mut(), size)
}

#[test]
fn clusters_run_where_the_architecture_has_them() {
    const NONE: CUresult = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    for name in ["a100", "l40s"] {
        assert_eq!((on_all(name, 1).0, on_all(name, 2).0), (OK, NONE), "{name}");
    }
    // One block of 1024 threads an SM, two where an SM has 2048: as many clusters as each GPC has
    // room for.
    for (name, fours, eights) in [
        ("b200", 2 * 10 + 6 * 9, 2 * 5 + 6 * 4),
        ("rtx5080", 21, 7),
        ("rtx5090", 41, 19),
        ("thor", 4, 1),
    ] {
        assert_eq!((on_all(name, 4), on_all(name, 8)), ((OK, fours), (OK, eights)), "{name}");
        assert_eq!(on_all(name, 16).0, NONE, "{name}");
    }
}

/// Splits off two groups of this many SMs, as a structured split does.
fn two_groups(machine: &Machine, count: u32, flags: u32) -> CUresult {
    let mut groups = [CU_DEV_SM_RESOURCE_GROUP_PARAMS {
        smCount: count,
        coscheduledSmCount: 0,
        preferredCoscheduledSmCount: 0,
        flags,
        localityDomainId: 0,
        reserved: [0; 11],
    }; 2];
    let (mut results, mut rest) = ([zeroed(), zeroed()], zeroed());
    let groups = groups.as_mut_ptr();
    call!(
        machine,
        cuDevSmResourceSplit(results.as_mut_ptr(), 2, &machine.device(), &mut rest, 0, groups)
    )
}

/// As NVIDIA's maintainers of cuda.core say of desktop Blackwell parts
/// (<https://github.com/NVIDIA/cuda-python/issues/2025>): only a small part of the aligned counts
/// makes two groups, and with backfill they all do.
#[test]
fn some_aligned_counts_are_refused() {
    const BACKFILL: u32 = 1;
    for (spec, accepted) in [
        ("rtx5080@13.1", &[8, 16, 24][..]),
        ("rtx5090@13.4", &[8, 16, 24, 32, 40, 48, 56, 64, 72]),
        // The parts whose alignment is a TPC take every even count.
        ("thor@13.1", &[2, 4, 6, 8, 10]),
    ] {
        let machine = Machine::with_devices(spec, 1);
        let profile = *spec.parse::<Spec>().expect("a spec").profile();
        let (all, step) = (profile.topology.sm_count, profile.topology.coarse_unit);
        let aligned: Vec<u32> = (1..=all / 2 / step).map(|steps| steps * step).collect();
        let mut taken = aligned.clone();
        taken.retain(|&count| match two_groups(&machine, count, 0) {
            OK => true,
            status => {
                assert_eq!(status, BAD_CONFIGURATION, "{spec} {count}");
                false
            }
        });
        assert_eq!(taken, accepted, "{spec}");
        for count in aligned {
            assert_eq!(two_groups(&machine, count, BACKFILL), OK, "{spec} {count}");
        }
    }
}

//! Structured splits, from CUDA 13.1 on.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

type Params = CU_DEV_SM_RESOURCE_GROUP_PARAMS;

const BACKFILL: u32 = 1;
const LOCALITY_DOMAIN: u32 = 2;
const SUPPLEMENTAL_SMS: u32 = 4;
/// The versions with structured splits.
const NEWER: [&str; 3] = ["h200@13.1", "h200@13.4", "h200@13.5"];

/// Returns the parameters of a group: SMs, co-scheduled SMs, preferred co-scheduled SMs and flags.
fn group(count: u32, coscheduled: u32, preferred: u32, flags: u32) -> Params {
    Params {
        smCount: count,
        coscheduledSmCount: coscheduled,
        preferredCoscheduledSmCount: preferred,
        flags,
        localityDomainId: 0,
        reserved: [0; 11],
    }
}

fn split_into(
    machine: &Machine,
    input: &CUdevResource,
    results: *mut CUdevResource,
    rest: &mut CUdevResource,
    groups: &mut [Params],
) -> CUresult {
    let (count, groups) = (groups.len() as u32, groups.as_mut_ptr());
    call!(machine, cuDevSmResourceSplit(results, count, input, rest, 0, groups))
}

/// Splits with room for results. Also returns the counts that the driver wrote to the parameters.
fn split(
    machine: &Machine,
    input: &CUdevResource,
    groups: &[Params],
) -> Result<(Split, Vec<u32>), CUresult> {
    let (mut params, mut rest) = (groups.to_vec(), zeroed());
    let mut groups = vec![zeroed(); groups.len()];
    let status = split_into(machine, input, groups.as_mut_ptr(), &mut rest, &mut params);
    let counts = params.iter().map(|group| group.smCount).collect();
    if status == OK { Ok((Split { groups, rest }, counts)) } else { Err(status) }
}

fn split_device(machine: &Machine, groups: &[Params]) -> Result<Vec<u32>, CUresult> {
    split(machine, &machine.device(), groups).map(|(_, counts)| counts)
}

/// Splits without room for results. Returns the counts that the driver wrote to the parameters.
fn discover(machine: &Machine, groups: &[Params]) -> Result<Vec<u32>, CUresult> {
    let (mut groups, mut rest) = (groups.to_vec(), machine.device());
    let status = split_into(machine, &machine.device(), null_mut(), &mut rest, &mut groups);
    assert_eq!(bytes(&rest), bytes(&machine.device()), "no remainder is written");
    let counts = groups.iter().map(|group| group.smCount).collect();
    if status == OK { Ok(counts) } else { Err(status) }
}

/// Returns the count, minimum, alignment, flags and locality domain.
fn numbers(resource: &CUdevResource) -> [u32; 5] {
    assert_eq!(resource.type_, SM);
    // SAFETY: `type_` shows that this field of the union is in use.
    let sm = unsafe { resource.__bindgen_anon_1.sm };
    [sm.smCount, sm.minSmPartitionSize, sm.smCoscheduledAlignment, sm.flags, sm.localityDomainId]
}

/// Returns the SMs of each resource, and checks that their number is the reported one and that no two
/// resources share an SM.
fn disjoint(machine: &Machine, resources: &[CUdevResource]) -> Vec<Vec<u32>> {
    let mut seen = vec![];
    let each = resources.iter().filter(|resource| resource.type_ == SM).map(|resource| {
        let (count, sms) = machine.observe(&[*resource]);
        assert_eq!((count, sms.len()), (sm_count(resource), count as usize));
        assert!(sms.iter().all(|sm| !seen.contains(sm)), "{sms:?} overlaps {seen:?}");
        seen.extend(&sms);
        sms
    });
    each.collect()
}

#[test]
fn groups_have_exactly_the_count_that_is_asked_for() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        let groups = [group(24, 8, 0, 0), group(10, 2, 0, 0), group(16, 16, 0, 0)];
        let (split, counts) = split(&machine, &machine.device(), &groups).expect("they fit");
        assert_eq!(counts, [24, 10, 16]);
        assert_eq!(split.groups.iter().map(sm_count).collect::<Vec<_>>(), counts);
        assert_eq!(sm_count(&split.rest), 82);
        assert_eq!(numbers(&split.groups[1]), [10, 2, 2, 0, 0]);
        assert_eq!(numbers(&split.groups[2]), [16, 16, 16, 0, 0]);
        assert_eq!(numbers(&split.rest), [82, 2, 2, 0, 0]);
        let sms = disjoint(&machine, &[split.groups.clone(), vec![split.rest]].concat());
        assert_eq!(sms[0], machine.observe(&machine.units().groups[..3]).1);
        // The first GPC with sixteen free SMs. The groups before took SMs of the earlier GPCs.
        assert_eq!(sms[2][..8], [10, 11, 26, 27, 42, 43, 58, 59]);
    }
}

#[test]
fn counts_that_nothing_can_satisfy_are_refused() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        for (count, coscheduled, flags) in [
            (1, 0, 0),        // odd
            (9, 2, BACKFILL), // odd
            (12, 8, 0),       // not a multiple
            (12, 0, 0),       // not a multiple of the default
            (4, 8, BACKFILL), // less than one set
            (4, 0, BACKFILL), // less than one set of the default
            (u32::MAX - 1, 2, BACKFILL),
            (134, 2, 0), // more than the device has
            (128, 8, 0), // more than the GPCs hold
            (48, 34, 0), // larger than any set
            (9, 9, 0),   // an odd set
            (32, 32, 0), // a set larger than a GPC
            (64, 32, BACKFILL),
        ] {
            let refused = split_device(&machine, &[group(count, coscheduled, 0, flags)]);
            assert_eq!(refused, Err(BAD_CONFIGURATION), "{count} of {coscheduled}");
        }
        for (count, coscheduled, flags) in
            [(2, 2, 0), (132, 2, 0), (120, 8, 0), (120, 0, 0), (112, 16, 0), (12, 8, BACKFILL)]
        {
            let made = split_device(&machine, &[group(count, coscheduled, 0, flags)]);
            assert_eq!(made, Ok(vec![count]), "{count} of {coscheduled}");
        }
        // If one group fails, nothing is changed.
        let (mut groups, mut results) = ([group(0, 8, 0, 0), group(8, 8, 0, 0)], [zeroed(); 2]);
        let (device, results_at) = (machine.device(), results.as_mut_ptr());
        let status = split_into(&machine, &device, results_at, &mut zeroed(), &mut groups);
        assert_eq!(status, BAD_CONFIGURATION);
        assert_eq!((groups[0].smCount, results[0].type_.0), (0, 0));
    }
}

#[test]
fn arguments_are_checked() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        let device = machine.device();
        let split = |result: *mut CUdevResource,
                     groups,
                     input: *const CUdevResource,
                     flags,
                     params| {
            call!(machine, cuDevSmResourceSplit(result, groups, input, null_mut(), flags, params))
        };
        let (mut result, mut params) = (zeroed(), group(8, 8, 0, 0));
        assert_eq!(split(&mut result, 1, &device, 1, &mut params), INVALID_VALUE);
        assert_eq!(split(&mut result, 0, &device, 0, &mut params), INVALID_VALUE);
        assert_eq!(split(&mut result, 1, &device, 0, null_mut()), INVALID_VALUE);
        assert_eq!(split(&mut result, 1, std::ptr::null(), 0, &mut params), INVALID_VALUE);
        assert_eq!(split(&mut result, 1, &zeroed(), 0, &mut params), BAD_TYPE);
        let mut config = zeroed();
        config.type_ = CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG;
        assert_eq!(split(&mut result, 1, &config, 0, &mut params), BAD_TYPE);
        let mut tampered = device;
        tampered.__bindgen_anon_1.sm.smCount = 64;
        assert_eq!(split(&mut result, 1, &tampered, 0, &mut params), BAD_CONFIGURATION);
        assert_eq!(result.type_.0, 0);
        ok(split(&mut result, 1, &device, 0, &mut params));
        assert_eq!(sm_count(&result), 8);
    }
}

#[test]
fn flags_are_those_of_the_version() {
    let statuses = [INVALID_VALUE, BAD_CONFIGURATION, BAD_CONFIGURATION];
    for (spec, locality) in NEWER.into_iter().zip(statuses) {
        let machine = Machine::with_devices(spec, 1);
        let made = |flags| split_device(&machine, &[group(8, 8, 0, flags)]);
        assert_eq!(made(BACKFILL), Ok(vec![8]));
        // This GPU has no locality domains, so no SMs are in one.
        assert_eq!(made(LOCALITY_DOMAIN), Err(locality), "{spec}");
        assert_eq!(made(LOCALITY_DOMAIN | BACKFILL), Err(locality), "{spec}");
        let found = discover(&machine, &[group(0, 8, 0, LOCALITY_DOMAIN)]);
        assert_eq!(found, Err(locality), "{spec}");
        // This flag modifies another flag, which is missing.
        assert_eq!(made(SUPPLEMENTAL_SMS), Err(INVALID_VALUE));
        assert_eq!(made(8), Err(INVALID_VALUE));
    }
}

#[test]
fn discovery_finds_what_earlier_groups_left() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        for (coscheduled, sms) in [(2, 132), (4, 120), (8, 120), (16, 112)] {
            let groups = [group(0, coscheduled, 0, 0)];
            assert_eq!(discover(&machine, &groups), Ok(vec![sms]), "{coscheduled} at a time");
            assert_eq!(split_device(&machine, &groups), Ok(vec![sms]), "{coscheduled} at a time");
        }
        // No GPC of this GPU has 32 SMs. Without room for results the count is 0, with room it is an error.
        assert_eq!(discover(&machine, &[group(0, 32, 0, 0)]), Ok(vec![0]));
        assert_eq!(split_device(&machine, &[group(0, 32, 0, 0)]), Err(BAD_CONFIGURATION));
        for coscheduled in [9, 34] {
            let found = discover(&machine, &[group(0, coscheduled, 0, 0)]);
            assert_eq!(found, Err(BAD_CONFIGURATION), "no set is of {coscheduled}");
        }
        let three = [group(0, 16, 0, 0), group(0, 8, 0, 0), group(0, 2, 0, 0)];
        assert_eq!(discover(&machine, &three), Ok(vec![112, 8, 12]));
        let (split, counts) = split(&machine, &machine.device(), &three).expect("all are found");
        assert_eq!(counts, [112, 8, 12]);
        assert_eq!(split.rest.type_.0, 0);
        assert_eq!(disjoint(&machine, &split.groups)[2], (120..132).collect::<Vec<_>>());
        // All other SMs in one group, as in the third example of the header.
        let rest = [group(8, 4, 0, 0), group(0, 2, 0, BACKFILL)];
        assert_eq!(split_device(&machine, &rest), Ok(vec![8, 124]));
    }
}

/// As reported by users of drivers 13.3 and 13.4.
#[test]
fn discovery_is_as_users_report_it() {
    for (spec, sms) in NEWER.into_iter().zip([120, 132, 132]) {
        let machine = Machine::with_devices(spec, 1);
        let groups = [group(0, 0, 0, 0)];
        assert_eq!(discover(&machine, &groups), Ok(vec![sms]), "{spec}");
        let (mut params, mut result) = (groups, zeroed());
        let device = machine.device();
        ok(split_into(&machine, &device, &mut result, &mut zeroed(), &mut params));
        assert_eq!(sm_count(&result), sms, "{spec}");
        let after = (params[0].smCount, params[0].coscheduledSmCount);
        assert_eq!(after, (sms, 0), "the default stays unsaid");
        assert_eq!(numbers(&result)[2], if sms == 120 { 8 } else { 2 });
        // Without room for results, only discovery is answered.
        assert_eq!(discover(&machine, &[group(8, 8, 0, 0)]), Err(BAD_CONFIGURATION));
        let mixed = [group(0, 8, 0, 0), group(8, 8, 0, 0)];
        assert_eq!(discover(&machine, &mixed), Err(BAD_CONFIGURATION));
    }
}

#[test]
fn backfill_makes_up_what_is_not_coscheduled() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        for (count, coscheduled) in [(126, 8), (132, 16), (18, 16), (10, 0)] {
            let filled = [group(count, coscheduled, 0, BACKFILL)];
            assert_eq!(split_device(&machine, &filled), Ok(vec![count]));
            let strict = [group(count, coscheduled, 0, 0)];
            assert_eq!(split_device(&machine, &strict), Err(BAD_CONFIGURATION));
        }
        let (split, _) =
            split(&machine, &machine.device(), &[group(18, 16, 0, BACKFILL)]).expect("it fits");
        assert_eq!(numbers(&split.groups[0]), [18, 16, 16, BACKFILL, 0]);
        let sms = machine.observe(&split.groups).1;
        assert_eq!(sms[16..], [120, 121], "what lies in no whole unit comes first");
        // When all GPCs are taken, no co-scheduled set is left to fill up.
        let groups = [group(120, 8, 0, 0), group(4, 4, 0, BACKFILL)];
        assert_eq!(split_device(&machine, &groups), Err(BAD_CONFIGURATION));
        let found = discover(&machine, &[group(0, 8, 0, 0), group(0, 4, 0, BACKFILL)]);
        assert_eq!(found, Ok(vec![120, 0]));
    }
}

#[test]
fn preferred_sets_are_merged() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        let sms = |preferred| {
            let groups = [group(16, 8, preferred, 0)];
            let (split, _) = split(&machine, &machine.device(), &groups).expect("it fits");
            assert_eq!(numbers(&split.groups[0])[2], 8);
            machine.observe(&split.groups).1
        };
        let two = machine.units().groups;
        // The first GPC has only one unit.
        let (apart, merged) = (machine.observe(&two[..2]).1, machine.observe(&[two[1], two[8]]).1);
        assert_eq!(sms(0), apart);
        assert_eq!(sms(16), merged);
        assert_eq!(sms(20), merged, "a hint is not refused");
        for large in [32, u32::MAX] {
            assert_eq!(sms(large), apart, "no GPC holds {large}");
        }
    }
}

#[test]
fn only_the_remainder_is_split_again() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        let eight = [group(8, 8, 0, 0)];
        let (first, _) = split(&machine, &machine.device(), &eight).expect("it fits");
        assert_eq!(split(&machine, &first.groups[0], &eight).err(), Some(BAD_CONFIGURATION));
        let (second, _) = split(&machine, &first.rest, &eight).expect("the header allows it");
        assert_eq!(sm_count(&second.rest), 116);
        let all = [first.groups[0], second.groups[0], second.rest];
        assert_eq!(disjoint(&machine, &all)[1], machine.observe(&machine.units().groups[1..2]).1);
        // Splits by count accept no result of any split, and structured splits accept no result of a split
        // by count.
        assert_eq!(machine.split(&first.rest, 1, 0, 8).err(), Some(BAD_CONFIGURATION));
        assert_eq!(machine.split(&first.groups[0], 1, 1, 2).err(), Some(BAD_CONFIGURATION));
        let by_count = machine.units();
        for part in [&by_count.groups[0], &by_count.rest] {
            assert_eq!(split(&machine, part, &[group(0, 2, 0, 0)]).err(), Some(BAD_CONFIGURATION));
        }
    }
}

#[test]
fn a_context_of_a_group_is_split_further() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        let groups = [group(32, 16, 0, 0), group(12, 4, 0, BACKFILL)];
        let (parts, _) = split(&machine, &machine.device(), &groups).expect("they fit");
        let all = machine.observe(&parts.groups[..1]).1;
        let parent = machine.own(machine.green(&parts.groups[..1]));
        assert_eq!(numbers(&parent), [32, 16, 16, 0, 0]);
        let (nested, counts) =
            split(&machine, &parent, &[group(16, 16, 0, 0), group(8, 8, 0, 0)]).expect("they fit");
        assert_eq!((counts, sm_count(&nested.rest)), (vec![16, 8], 8));
        let children = [nested.groups, vec![nested.rest]].concat();
        for sms in disjoint(&machine, &children) {
            assert!(sms.iter().all(|sm| all.contains(sm)), "{sms:?}");
        }
        let by_count = machine.split(&parent, 4, 0, 8).expect("it is a context's");
        assert_eq!(by_count.groups.len(), 4);
        machine.observe(&by_count.groups[1..3]);
        // A split by count divides SMs that lie more loosely in fine units.
        let parent = machine.own(machine.green(&parts.groups[1..]));
        assert_eq!(numbers(&parent), [12, 4, 4, BACKFILL, 0]);
        let by_count = machine.split(&parent, 4, 0, 8).expect("it is a context's");
        assert_eq!((by_count.groups.len(), sm_count(&by_count.rest)), (1, 4));
        // The same holds for the remainder of a structured split. Contexts of its groups are split like
        // other contexts.
        let parent = machine.own(machine.green(&[parts.rest]));
        assert_eq!(numbers(&parent), [88, 2, 2, 0, 0]);
        assert!(split(&machine, &parent, &[group(72, 8, 0, 0)]).is_ok());
        let by_count = machine.split(&parent, 4, 0, 8).expect("it is a context's");
        assert_eq!((by_count.groups.len(), sm_count(&by_count.rest)), (4, 56));
        let child = machine.own(machine.green(&by_count.groups[..1]));
        assert_eq!(numbers(&child), [8, 8, 8, 0, 0]);
    }
}

/// Six SMs from each of the two units of a GPC contain no whole unit but hold a set of twelve.
#[test]
fn a_set_is_found_across_the_units_of_a_gpc() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        let pairs = machine.fine_units().groups;
        let pairs = [1, 13, 21, 36, 43, 50].map(|pair| pairs[pair]);
        let parent = machine.green(&pairs);
        assert_eq!(machine.clusters(machine.green_stream(parent), 4).1, 0);
        let twelve = [group(12, 12, 0, 0)];
        let (parts, _) = split(&machine, &machine.own(parent), &twelve).expect("it fits");
        assert_eq!(machine.observe(&parts.groups), machine.observe(&pairs));
        let green = machine.green(&parts.groups);
        let on = |size| machine.clusters(machine.green_stream(green), size).1;
        assert_eq!([2, 4, 8].map(on), [12, 6, 3]);
        let by_count = machine.split(&machine.own(green), 2, 0, 8).expect("it is a context's");
        assert_eq!((by_count.groups.len(), sm_count(&by_count.rest)), (1, 4));
    }
}

#[test]
fn results_of_one_split_combine_where_their_alignment_is_equal() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        let groups =
            [group(16, 8, 0, 0), group(10, 8, 0, BACKFILL), group(8, 4, 0, 0), group(4, 2, 0, 0)];
        let device = machine.device();
        let (parts, _) = split(&machine, &device, &groups).expect("they fit");
        let [a, b, c, d] = parts.groups[..] else { unreachable!("there are four") };
        let (count, sms) = machine.observe(&[a, b]);
        assert_eq!((count, sms.len()), (26, 26));
        assert_eq!(numbers(&machine.own(machine.green(&[a, b]))), [26, 8, 8, BACKFILL, 0]);
        assert!(machine.desc(&[parts.rest, d]).is_ok(), "both come in pairs");
        for others in [[a, c], [a, d], [a, parts.rest], [a, device]] {
            assert_eq!(machine.desc(&others), Err(BAD_CONFIGURATION));
        }
        let (again, _) = split(&machine, &device, &groups).expect("they fit");
        assert_eq!(machine.desc(&[a, again.groups[1]]), Err(BAD_CONFIGURATION));
        assert_eq!(machine.desc(&[a, machine.units().groups[4]]), Err(BAD_CONFIGURATION));
        let mut tampered = a;
        tampered.__bindgen_anon_1.sm.smCount = 24;
        assert_eq!(machine.desc(&[tampered]), Err(BAD_CONFIGURATION));
    }
}

/// It is assumed that newer drivers give the answers recorded on older ones here.
#[test]
fn splits_by_count_are_what_they_were() {
    for spec in NEWER {
        let machine = Machine::with_devices(spec, 1);
        let older = Machine::new();
        let (units, recorded) = (machine.units(), older.units());
        assert_eq!(numbers(&units.groups[0]), numbers(&recorded.groups[0]));
        let pick = |units: &Split| [units.groups[0], units.groups[7], units.rest];
        assert_eq!(machine.observe(&pick(&units)), older.observe(&pick(&recorded)));
        let other = machine.units();
        assert!(machine.desc(&[units.groups[0], other.groups[1]]).is_ok());
        assert!(machine.desc(&[machine.fine_units().groups[0], units.groups[5]]).is_ok());
    }
}

#[test]
fn clusters_fit_where_the_sms_lie_together() {
    let machine = Machine::with_devices("h200@13.1", 1);
    let groups = [group(16, 16, 0, 0), group(4, 4, 0, 0), group(10, 8, 0, BACKFILL)];
    let (parts, _) = split(&machine, &machine.device(), &groups).expect("they fit");
    for (part, fit) in [(0, [16, 8, 4]), (1, [4, 2, 0]), (2, [10, 4, 2])] {
        let stream = machine.green_stream(machine.green(&[parts.groups[part]]));
        let on = |size| machine.clusters(stream, size).1;
        assert_eq!([2, 4, 8].map(on), fit, "group {part}");
    }
}

/// Returns the parameters of a group in a locality domain.
fn local(count: u32, domain: u32, flags: u32) -> Params {
    Params { localityDomainId: domain, ..group(count, 2, 0, LOCALITY_DOMAIN | flags) }
}

#[test]
fn locality_domains_are_counted_from_their_version_on() {
    let attributes = |spec| {
        let machine = Machine::with_devices(spec, 1);
        [
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT,
        ]
        .map(|attribute| {
            let mut value = -1;
            must!(machine, cuDeviceGetAttribute(&mut value, attribute, 0));
            value
        })
    };
    assert_eq!(["b200@13.1", "b200@13.4", "h200@13.4"].map(attributes), [[0, 0], [2, 72], [0, 0]]);
}

/// According to the header. That this GPU has a domain of 72 SMs and one of 76 is a model.
#[test]
fn groups_lie_in_the_domain_that_they_name() {
    for spec in ["b200@13.4", "b200@13.5"] {
        let machine = Machine::with_devices(spec, 1);
        let device = machine.device();
        let made = |groups: &[Params]| split(&machine, &device, groups);
        let counts = |groups: &[Params]| made(groups).map(|(_, counts)| counts);

        let (split, found) = made(&[local(0, 0, 0), local(0, 1, 0)]).expect("both are there");
        assert_eq!((found, sm_count(&split.rest)), (vec![72, 72], 4));
        assert_eq!(numbers(&split.groups[1]), [72, 2, 2, LOCALITY_DOMAIN, 1]);
        let [first, second, _] =
            &disjoint(&machine, &[&split.groups[..], &[split.rest]].concat())[..]
        else {
            panic!("two domains and what is in neither");
        };
        // A context of a domain reports its domain.
        let green = machine.green(&[split.groups[1]]);
        assert_eq!(numbers(&machine.own(green)), [72, 2, 2, LOCALITY_DOMAIN, 1]);

        // Any domain means all of them.
        assert_eq!(counts(&[local(0, u32::MAX, 0)]), Ok(vec![144]));
        assert_eq!(counts(&[local(72, 0, 0), local(2, 0, 0)]), Err(BAD_CONFIGURATION));
        assert_eq!(counts(&[local(8, 2, 0)]), Err(BAD_CONFIGURATION), "there are two");

        // Backfill takes SMs of the domain first, then SMs of no domain, then SMs of the other domain.
        let (filled, _) = made(&[local(80, 0, BACKFILL)]).expect("there are enough");
        let sms = &disjoint(&machine, &filled.groups)[0];
        assert!(first.iter().all(|sm| sms.contains(sm)));
        assert_eq!(sms.iter().filter(|sm| second.contains(sm)).count(), 4);
        let both = [local(74, 0, BACKFILL), local(74, 1, BACKFILL)];
        assert_eq!(counts(&both), Ok(vec![74, 74]));

        // Groups of different domains cannot be in one context.
        let mut desc = null_mut();
        let mut groups = split.groups;
        let generated =
            call!(machine, cuDevResourceGenerateDesc(&mut desc, groups.as_mut_ptr(), 2));
        assert_eq!(generated, BAD_CONFIGURATION);
    }
}

#[test]
fn supplemental_sms_are_those_beyond_what_is_counted() {
    let machine = Machine::with_devices("b200@13.5", 1);
    let counts = |domain, flags| split_device(&machine, &[local(0, domain, flags)]);
    assert_eq!(counts(0, SUPPLEMENTAL_SMS), Ok(vec![76]));
    assert_eq!(counts(1, SUPPLEMENTAL_SMS), Ok(vec![72]));
    assert_eq!(counts(u32::MAX, SUPPLEMENTAL_SMS), Ok(vec![148]));
    let older = Machine::with_devices("b200@13.4", 1);
    assert_eq!(split_device(&older, &[local(0, 0, SUPPLEMENTAL_SMS)]), Err(INVALID_VALUE));
}

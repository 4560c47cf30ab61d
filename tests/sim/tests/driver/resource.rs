//! Splits, combinations, and the bytes of resources.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

/// The bytes that are not zero, as the record lists them, with the driver's own data left out.
fn meaning(resource: &CUdevResource) -> Vec<(usize, u8)> {
    let known = |at: &usize| *at < 4 || *at >= 88;
    let all = bytes(resource).iter().copied().enumerate();
    all.filter(|(at, byte)| known(at) && *byte != 0).collect()
}

fn ids(list: &str) -> Vec<u32> {
    list.split_whitespace().map(|id| id.parse().expect("a number")).collect()
}

#[test]
fn resources_are_laid_out_as_recorded() {
    let (machine, primary) = Machine::with_primary();
    let device = machine.device();
    assert_eq!(meaning(&device), [(0, 1), (91, 1), (96, 132), (100, 8), (104, 8)]);
    let units = machine.units();
    assert_eq!(meaning(&units.groups[0]), [(0, 1), (96, 8)]);
    assert_eq!(meaning(&units.rest), [(0, 1), (96, 12)]);
    let green = machine.green(&units.groups[..1]);
    let (_, own) = ask!(machine, zeroed(), cuGreenCtxGetDevResource(green; SM));
    assert_eq!(meaning(&own), [(0, 1), (91, 1), (96, 8), (100, 8), (104, 8)]);
    let (_, derived) = ask!(machine, zeroed(), cuCtxGetDevResource(machine.context(green); SM));
    assert_eq!(bytes(&own), bytes(&derived));
    let (_, whole) = ask!(machine, zeroed(), cuCtxGetDevResource(primary; SM));
    assert_eq!(sm_count(&whole), 132);
    // Before 13.0 the struct has no minimum and no alignment.
    assert_eq!(
        meaning(&Machine::with_devices("h200@12.8", 1).device()),
        [(0, 1), (91, 1), (96, 132)]
    );
}

#[test]
fn there_are_no_resources_but_sms() {
    let (machine, primary) = Machine::with_primary();
    for kind in [0, 2, 1000, 10000] {
        let mut resource = machine.device();
        let kind = CUdevResourceType(kind);
        assert_eq!(call!(machine, cuDeviceGetDevResource(0, &mut resource, kind)), BAD_TYPE);
        assert_eq!(resource.type_.0, 0);
        assert_eq!(call!(machine, cuCtxGetDevResource(primary, &mut resource, kind)), BAD_TYPE);
    }
}

#[test]
fn splits_answer_as_recorded() {
    let machine = Machine::new();
    let device = machine.device();
    let count = |flags, minimum| {
        let mut count = 0;
        let status = call!(
            machine,
            cuDevSmResourceSplitByCount(
                null_mut(),
                &mut count,
                &device,
                null_mut(),
                flags,
                minimum
            )
        );
        (status, count)
    };
    assert_eq!(count(0, 0), (OK, 15));
    assert_eq!(count(0, 17), (OK, 5));
    assert_eq!(count(1, 0), (OK, 66));
    assert_eq!(count(3, 0).0, INVALID_VALUE);
    assert_eq!(count(4, 0), (OK, 15));
    assert_eq!(count(0x8000_0000, 0), (OK, 15));
    for flags in [0, 1, 2, 4] {
        assert_eq!(count(flags, 133).0, BAD_CONFIGURATION);
    }
    let three = machine.split(&device, 3, 0, 64).expect("two fit");
    assert_eq!(three.groups.iter().map(sm_count).collect::<Vec<_>>(), [64, 64]);
    assert_eq!(sm_count(&three.rest), 4);
    let whole = machine.split(&device, 3, 0, 129).expect("one fits");
    assert_eq!((whole.groups.len(), sm_count(&whole.groups[0]), whole.rest.type_.0), (1, 132, 0));
    let mut none = 0;
    let status = call!(
        machine,
        cuDevSmResourceSplitByCount(&mut zeroed(), &mut none, &device, null_mut(), 0, 8)
    );
    assert_eq!(status, INVALID_VALUE);
    assert_eq!(machine.split(&zeroed(), 1, 0, 8).err(), Some(BAD_TYPE));
}

#[test]
fn results_of_a_split_are_not_split_again() {
    let machine = Machine::new();
    let split = machine.split(&machine.device(), 1, 0, 64).expect("it fits");
    for part in [&split.groups[0], &split.rest] {
        assert_eq!(machine.split(part, 8, 0, 8).err(), Some(BAD_CONFIGURATION));
    }
    let green = machine.green(&split.groups);
    let (_, own) = ask!(machine, zeroed(), cuGreenCtxGetDevResource(green; SM));
    let nested = machine.split(&own, 16, 0, 8).expect("it is a context's");
    assert_eq!(nested.groups.len(), 8);
    machine.green(&nested.groups[..1]);
}

#[test]
fn equal_splits_give_equal_bytes() {
    let machine = Machine::new();
    let (first, second) = (machine.units(), machine.units());
    for (a, b) in first.groups.iter().zip(&second.groups) {
        assert_eq!(bytes(a), bytes(b));
    }
    assert_ne!(bytes(&first.groups[0]), bytes(&first.groups[1]));
    machine.green(&[first.groups[0], second.groups[1]]);
}

#[test]
fn units_combine_to_the_recorded_sms() {
    let machine = Machine::new();
    let units = machine.units();
    let unit = |index: usize| units.groups[index];
    assert_eq!(machine.observe(&[unit(9)]), (8, ids("66 67 80 81 94 95 108 109")));
    let (count, sms) = machine.observe(&[unit(0), unit(7), unit(14)]);
    assert_eq!(
        (count, sms),
        (24, ids("0 1 14 15 16 17 30 31 32 33 46 47 48 49 62 63 76 77 90 91 104 105 118 119"))
    );
    let mut rest = units.groups[3..].to_vec();
    rest.push(units.rest);
    let (count, sms) = machine.observe(&rest);
    assert_eq!((count, sms.len(), sms[0], sms[107]), (108, 108, 6, 131));
    assert_eq!(machine.observe(&[units.rest]), (12, (120..132).collect()));
}

#[test]
fn the_driver_does_not_notice_overlap() {
    let machine = Machine::new();
    let units = machine.units();
    let twice = machine.observe(&[units.groups[0], units.groups[0]]);
    assert_eq!(twice, (16, ids("0 1 16 17 32 33 48 49")));
    let pairs = machine.split(&machine.device(), 2, 0, 16).expect("two pairs");
    let overlap = machine.observe(&[pairs.groups[0], units.groups[0]]);
    assert_eq!(overlap, (24, ids("0 1 4 5 16 17 20 21 32 33 36 37 48 49 52 53")));
    let disjoint = machine.observe(&[pairs.groups[1], units.groups[0]]);
    assert_eq!(
        disjoint,
        (24, ids("0 1 2 3 6 7 16 17 18 19 22 23 32 33 34 35 38 39 48 49 50 51 54 55"))
    );
    machine.green(&units.groups[..1]);
    machine.green(&units.groups[..1]);
}

#[test]
fn fine_units_combine_as_recorded() {
    let machine = Machine::new();
    let (fine, coarse) = (machine.fine_units(), machine.units());
    assert_eq!(fine.groups.len(), 66);
    let scattered: Vec<_> = fine.groups.iter().step_by(4).take(8).copied().collect();
    assert_eq!(
        machine.observe(&scattered),
        (16, ids("0 1 8 9 16 17 24 25 32 33 40 41 48 49 124 125"))
    );
    let mixed = machine.observe(&[fine.groups[0], coarse.groups[5]]);
    assert_eq!(mixed, (10, ids("0 1 10 11 26 27 42 43 58 59")));
}

#[test]
fn resources_of_different_roots_do_not_combine() {
    let machine = Machine::new();
    let units = machine.units();
    let fine_of = |unit: CUdevResource| {
        let green = machine.green(&[unit]);
        let (_, own) = ask!(machine, zeroed(), cuGreenCtxGetDevResource(green; SM));
        machine.split(&own, 8, 1, 2).expect("four pairs")
    };
    let (a, b) = (fine_of(units.groups[0]), fine_of(units.groups[1]));
    assert_eq!((a.groups.len(), b.groups.len()), (4, 4));
    assert_eq!(machine.observe(&[a.groups[1]]), (2, vec![16, 17]));
    assert_eq!(machine.observe(&a.groups[..2]), (4, vec![0, 1, 16, 17]));
    assert_eq!(machine.desc(&[a.groups[0], b.groups[0]]), Err(BAD_CONFIGURATION));
    assert_eq!(machine.desc(&[a.groups[0], units.groups[5]]), Err(BAD_CONFIGURATION));
}

#[test]
fn damaged_resources_are_refused() {
    let machine = Machine::new();
    let unit = machine.units().groups[0];
    assert_eq!(machine.desc(&[zeroed()]), Err(BAD_TYPE));
    assert_eq!(machine.desc(&[unit, zeroed()]), Err(BAD_TYPE));
    let damage = |change: fn(&mut CUdevResource)| {
        let mut damaged = unit;
        change(&mut damaged);
        machine.desc(&[damaged])
    };
    assert_eq!(
        damage(|resource| resource.__bindgen_anon_1.sm.smCount = 16),
        Err(BAD_CONFIGURATION)
    );
    assert_eq!(damage(|resource| resource._internal_padding = [0; 92]), Err(BAD_CONFIGURATION));
    assert_eq!(damage(|resource| resource._internal_padding[16] ^= 1), Err(BAD_CONFIGURATION));
    assert!(damage(|_| {}).is_ok());
}

/// A context is split in fine units if it was cut in them or left over, and not because the context
/// was that it was cut from.
#[test]
fn contexts_of_what_is_left_over_are_split_in_fine_units() {
    let machine = Machine::new();
    let own = |green| {
        let (status, resource) = ask!(machine, zeroed(), cuGreenCtxGetDevResource(green; SM));
        ok(status);
        // SAFETY: the type is that of SMs.
        let sm = unsafe { resource.__bindgen_anon_1.sm };
        (resource, [sm.smCount, sm.minSmPartitionSize, sm.smCoscheduledAlignment])
    };
    let (parent, numbers) = own(machine.green(&machine.fine_units().groups[..6]));
    assert_eq!(numbers, [12, 2, 2]);
    let split = machine.split(&parent, 8, 0, 8).expect("eight of twelve");
    assert_eq!((split.groups.len(), sm_count(&split.rest)), (1, 4));
    assert_eq!(own(machine.green(&split.groups)).1, [8, 8, 8]);
    assert_eq!(own(machine.green(&[split.rest])).1, [4, 2, 2]);
    assert_eq!(own(machine.green(&[parent])).1, [12, 8, 8]);
    assert_eq!(own(machine.green(&machine.units().groups[..1])).1, [8, 8, 8]);
    let halves = machine.split(&own(machine.green(&machine.units().groups[..2])).0, 1, 0, 8);
    assert_eq!(own(machine.green(&[halves.expect("two").rest])).1, [8, 2, 2]);
}

/// What a remainder's context holds is handed out GPC by GPC, which can leave groups short.
#[test]
fn groups_of_what_is_left_over_can_be_smaller_than_was_asked_for() {
    let machine = Machine::new();
    let (_, device) = ask!(machine, zeroed(), cuDeviceGetDevResource(0; SM));
    let rest = machine.split(&device, 3, 0, 16).expect("it fits").rest;
    let (_, fine) = ask!(machine, zeroed(), cuGreenCtxGetDevResource(machine.green(&[rest]); SM));
    let (_, coarse) = ask!(machine, zeroed(), cuGreenCtxGetDevResource(machine.green(&[fine]); SM));
    let sizes = |parent: &CUdevResource, groups, minimum| {
        let split = machine.split(parent, groups, 0, minimum).expect("it fits");
        let sizes: Vec<u32> = split.groups.iter().map(sm_count).collect();
        (sizes, sm_count(&split.rest))
    };
    // As recorded on an H200.
    assert_eq!(sizes(&fine, 3, 24), (vec![20; 3], 24));
    assert_eq!(sizes(&coarse, 3, 17), (vec![20; 3], 24));
    assert_eq!(sizes(&fine, 2, 40), (vec![38; 2], 8));
    assert_eq!(sizes(&fine, 8, 8), (vec![2; 8], 68));
    assert_eq!(sizes(&coarse, 8, 8), (vec![8; 7], 28));
    assert_eq!(sizes(&fine, 2, 24), (vec![24; 2], 36));
}

#[test]
fn a_resource_is_of_its_device_and_of_its_driver() {
    let machine = Machine::with_devices("h200", 2);
    let (status, second) = ask!(machine, zeroed(), cuDeviceGetDevResource(1; SM));
    ok(status);
    let second = machine.split(&second, 1, 0, 8).expect("it fits");
    assert_eq!(
        machine.desc(&[machine.units().groups[0], second.groups[0]]),
        Err(BAD_CONFIGURATION)
    );
    let foreign = Machine::new().units().groups[0];
    assert_eq!(machine.desc(&[foreign]), Err(BAD_CONFIGURATION));
}

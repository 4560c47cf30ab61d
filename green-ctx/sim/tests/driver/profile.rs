//! Every profile with every driver that supports it, and the blocks and clusters that fit.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::ptr::null_mut;

use green_ctx_sim::{Profile, Spec};
use green_ctx_sys::*;

use crate::machine::*;

/// The first driver that reports minimum and alignment of partitions.
const LIMITS: u32 = 13_000;
/// The first driver that supports contexts of several groups, and direct creation of green streams.
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
        // SAFETY: the device was queried for SMs, so this field of the union is in use.
        let sms = unsafe { device.__bindgen_anon_1.sm };
        let said = (sms.minSmPartitionSize, sms.smCoscheduledAlignment);
        let known = spec.version() >= LIMITS;
        let states = (topology.min_group, topology.coarse_unit);
        assert_eq!(said, if known { states } else { (0, 0) }, "{spec}");
        let bytes = get!(machine, 0, cuDeviceTotalMem(; 0));
        assert_eq!(bytes as u64, spec.profile().memory_bytes, "{name}");
    }
}

/// The groups and the remainder of a split contain each SM of the device once, and their contexts run only
/// on their own SMs.
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

/// (profile, groups of the minimum size, SMs per group, SMs left, groups of TPCs).
#[test]
fn devices_are_cut_into_their_units() {
    for (name, groups, each, left, tpcs) in [
        ("a100", 27, 4, 0, 54),
        ("b200", 16, 8, 20, 74),
        ("h100", 15, 8, 12, 66),
        ("h200", 15, 8, 12, 66),
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

/// From the minimum on, 8.x accepts every even count, and 9.0 accepts multiples of 8.
#[test]
fn counts_are_rounded_up_to_the_alignment() {
    let given = |name: &str, minimum| {
        let machine = Machine::with_devices(name, 1);
        let split = machine.split(&machine.device(), 1, 0, minimum).expect("it fits");
        (sm_count(&split.groups[0]), sm_count(&split.rest))
    };
    for (minimum, count) in [(1, 4), (4, 4), (5, 6), (22, 22), (99, 100)] {
        assert_eq!(given("a100", minimum), (count, 108 - count));
    }
    for (minimum, count) in [(1, 2), (3, 4), (19, 20)] {
        assert_eq!(given("thor", minimum), (count, 20 - count));
    }
    assert_eq!(given("b200", 17), (24, 124));
    let machine = Machine::with_devices("thor", 1);
    assert_eq!(machine.split(&machine.device(), 1, 0, 21).err(), Some(BAD_CONFIGURATION));
}

/// Returns how many clusters of a size run on the whole device at the same time.
fn on_all(name: &str, size: u32) -> (CUresult, i32) {
    let machine = Machine::with_devices(name, 1);
    ok(machine.push(machine.retain()));
    machine.clusters(null_mut(), size)
}

#[test]
fn clusters_run_where_the_architecture_has_them() {
    const NONE: CUresult = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    assert_eq!((on_all("a100", 1).0, on_all("a100", 2).0), (OK, NONE));
    // A block of 1024 threads takes an SM, and a cluster lies in one GPC.
    for (name, fours, eights) in [("b200", 2 * 10 + 6 * 9, 2 * 5 + 6 * 4), ("thor", 4, 1)] {
        assert_eq!((on_all(name, 4), on_all(name, 8)), ((OK, fours), (OK, eights)), "{name}");
        assert_eq!(on_all(name, 16).0, NONE, "{name}");
    }
}

/// For every profile, a kernel in PTX text for its architecture loads and fits, and can use as much shared
/// memory as the device attributes say.
#[test]
fn blocks_fit_on_every_part() {
    for profile in Profile::all() {
        let name = profile.name;
        let machine = Machine::with_devices(name, 1);
        ok(machine.push(machine.retain()));
        let (major, minor) = profile.compute_capability;
        let text = format!(".version 9.0 .target sm_{major}{minor} .entry x() {{ ret; }}");
        let text = CString::new(text).expect("text");
        let kernel = machine.kernel_of(&text, "x");
        let number =
            |number| get!(machine, 0, cuDeviceGetAttribute(; CUdevice_attribute(number), 0));
        let (threads_of_sm, opted_in) = (number(39), number(97));
        let blocks = |threads, shared| {
            get!(
                machine,
                -9,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(; kernel.cast(), threads, shared)
            )
        };
        assert_eq!(blocks(512, 0), threads_of_sm / 512, "{name}");
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let allow = |bytes| call!(machine, cuKernelSetAttribute(attribute, bytes, kernel, 0));
        assert_eq!([opted_in, opted_in + 1].map(allow), [OK, INVALID_VALUE], "{name}");
        assert_eq!(blocks(32, opted_in as usize), 1, "{name}");
    }
}

/// No conformance case covers this, because the recorded answer would depend on the compiler.
#[test]
fn registers_of_a_binary_limit_blocks() {
    let machine = Machine::with_primary();
    let image = include_bytes!("../../images/probe.sm_90.cubin");
    // The probe with another register count in its `.nv.info`.
    let with = |registers: u32| {
        let mut image = image.to_vec();
        let entry = image.windows(4).position(|bytes| bytes == [4, 0x2f, 8, 0]).expect("a count");
        image[entry + 8..entry + 12].copy_from_slice(&registers.to_le_bytes());
        let module = get!(machine, null_mut(), cuModuleLoadData(; image.as_ptr().cast()));
        get!(machine, null_mut(), cuModuleGetFunction(; module, c"green_ctx_probe".as_ptr()))
    };
    // A warp gets registers in units of 256, so 41 registers per thread count as 48.
    for (registers, of_1024, of_384) in [(32, 2, 5), (41, 1, 3), (48, 1, 3), (64, 1, 2), (65, 0, 2)]
    {
        let blocks = |threads| {
            get!(
                machine,
                -9,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(; with(registers), threads, 0)
            )
        };
        assert_eq!((blocks(1024), blocks(384)), (of_1024, of_384), "{registers} registers");
    }
    let launched = machine.launch(with(65).cast(), 1, null_mut(), &[0, 0]);
    assert_eq!(launched, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
}

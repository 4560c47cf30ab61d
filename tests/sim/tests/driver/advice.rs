//! Advice on managed memory.

use std::ffi::c_void;

use green_ctx_sys::*;

use crate::machine::*;

const PAGE: usize = 4096;
const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
const NUMA: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
/// `CU_DEVICE_CPU` and `CU_DEVICE_INVALID`.
const CPU: i32 = -1;
const NONE: i32 = -2;

fn managed(machine: &Machine, bytes: usize) -> CUdeviceptr {
    let (status, memory) = ask!(machine, 0, cuMemAllocManaged(; bytes, 1));
    ok(status);
    memory
}

/// The form of 8.0, with an ordinal.
fn advise(machine: &Machine, memory: u64, bytes: usize, advice: u32, device: i32) -> CUresult {
    old!(machine, c"cuMemAdvise", 8000 (
        memory => u64, bytes => usize, advice => u32, device => i32))
}

/// The form of 12.2, with a location.
fn advise_at(
    machine: &Machine,
    memory: u64,
    bytes: usize,
    advice: u32,
    (type_, id): (CUmemLocationType, i32),
) -> CUresult {
    let at = CUmemLocation { type_, __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id } };
    old!(machine, c"cuMemAdvise", 12_020 (
        memory => u64, bytes => usize, advice => u32, at => CUmemLocation))
}

/// As many numbers of an attribute as are asked for.
fn get<const N: usize>(
    machine: &Machine,
    attribute: u32,
    memory: u64,
    bytes: usize,
) -> Result<[i32; N], CUresult> {
    let mut out = [99; N];
    let place = out.as_mut_ptr().cast();
    let status = old!(machine, c"cuMemRangeGetAttribute", 8000 (
        place => *mut c_void, size_of_val(&out) => usize, attribute => u32,
        memory => u64, bytes => usize));
    if status == OK { Ok(out) } else { Err(status) }
}

#[test]
fn advice_is_kept_for_a_range() {
    let machine = Machine::with_devices("h200", 2);
    ok(machine.push(machine.retain()));
    let memory = managed(&machine, 9 * PAGE).next_multiple_of(PAGE as u64);
    let middle = memory + 2 * PAGE as u64;
    let number = |attribute| get::<1>(&machine, attribute, memory, 8 * PAGE).map(|[it]| it);
    assert_eq!([1, 2, 4, 5, 6, 7, 8].map(number), [0, NONE, NONE, 0, NONE, 0, NONE].map(Ok));

    // All of it, and then all but the middle.
    ok(advise(&machine, memory, 8 * PAGE, 1, 0));
    assert_eq!(number(1), Ok(1));
    ok(advise(&machine, middle, PAGE, 2, 0));
    assert_eq!(number(1), Ok(0));
    assert_eq!(get(&machine, 1, memory, 2 * PAGE), Ok([1]));
    assert_eq!(get(&machine, 1, middle, 1), Ok([0]));
    assert_eq!(get(&machine, 1, middle + PAGE as u64, PAGE), Ok([1]));

    // One location at a time is preferred, and must be that of the whole range.
    ok(advise(&machine, memory, 8 * PAGE, 3, 1));
    assert_eq!([2, 5, 6].map(number), [1, DEVICE.0 as i32, 1].map(Ok));
    ok(advise_at(&machine, middle, PAGE, 3, (HOST, 5)));
    assert_eq!([2, 5].map(number), [NONE, 0].map(Ok));
    assert_eq!(get(&machine, 2, middle, PAGE), Ok([CPU]));
    ok(advise_at(&machine, memory, 8 * PAGE, 3, (NUMA, 0)));
    assert_eq!([2, 5, 6].map(number), [CPU, NUMA.0 as i32, 0].map(Ok));
    ok(advise(&machine, memory, 8 * PAGE, 4, 99));
    assert_eq!([2, 5].map(number), [NONE, 0].map(Ok));

    let by = || get(&machine, 3, memory, 8 * PAGE);
    for device in [1, CPU, 0] {
        ok(advise(&machine, memory, 8 * PAGE, 5, device));
    }
    assert_eq!(by(), Ok([CPU, 0, 1, NONE]));
    assert_eq!(get(&machine, 3, memory, PAGE), Ok([CPU]));
    ok(advise(&machine, middle, PAGE, 6, 0));
    assert_eq!(by(), Ok([CPU, 1, NONE, NONE]));
    // Whole pages are advised.
    ok(advise(&machine, middle + 1, 1, 5, 0));
    assert_eq!(by(), Ok([CPU, 0, 1, NONE]));
}

#[test]
fn several_attributes_are_asked_at_once() {
    let (machine, _) = Machine::with_primary();
    let memory = managed(&machine, PAGE);
    ok(advise(&machine, memory, PAGE, 1, 0));
    ok(advise(&machine, memory, PAGE, 5, 0));
    let (mut mostly, mut by) = (99, [99; 2]);
    let mut places: [*mut c_void; 2] = [(&raw mut mostly).cast(), by.as_mut_ptr().cast()];
    let (mut bytes, mut attributes) = ([4, 8], [1_u32, 3]);
    let (places, bytes) = (places.as_mut_ptr(), bytes.as_mut_ptr());
    let attributes = attributes.as_mut_ptr();
    let ask = |count: usize| {
        old!(machine, c"cuMemRangeGetAttributes", 8000 (
            places => *mut *mut c_void, bytes => *mut usize, attributes => *mut u32,
            count => usize, memory => u64, PAGE => usize))
    };
    ok(ask(2));
    assert_eq!((mostly, by), (1, [0, NONE]));
    assert_eq!(ask(0), INVALID_VALUE);
}

#[test]
fn only_managed_memory_takes_advice() {
    let (machine, _) = Machine::with_primary();
    let memory = managed(&machine, PAGE);
    let device = ask!(machine, 0, cuMemAlloc(; PAGE)).1;
    for (memory, bytes) in [(device, PAGE), (memory, 0), (memory, 2 * PAGE), (0, PAGE)] {
        assert_eq!(advise(&machine, memory, bytes, 1, 0), INVALID_VALUE);
        assert_eq!(get::<1>(&machine, 1, memory, bytes), Err(INVALID_VALUE));
    }
    let no_device = CUresult::CUDA_ERROR_INVALID_DEVICE;
    for (advice, device, expected) in [
        (0, 0, INVALID_VALUE),
        (7, 0, INVALID_VALUE),
        (3, 1, no_device),
        (5, 1, no_device),
        (6, -2, no_device),
        // These have no location.
        (2, 1, OK),
        (4, 1, OK),
    ] {
        assert_eq!(advise(&machine, memory, PAGE, advice, device), expected, "{advice}");
    }
    assert_eq!(advise_at(&machine, memory, PAGE, 5, (NUMA, 0)), INVALID_VALUE);
    assert_eq!(advise_at(&machine, memory, PAGE, 3, (CUmemLocationType(0), 0)), INVALID_VALUE);
    for attribute in [0, 9] {
        assert_eq!(get::<1>(&machine, attribute, memory, PAGE), Err(INVALID_VALUE));
    }
    assert_eq!(get::<2>(&machine, 1, memory, PAGE), Err(INVALID_VALUE));
    assert_eq!(get::<0>(&machine, 3, memory, PAGE), Err(INVALID_VALUE));
    ok(call!(machine, cuMemFree(memory)));
    assert_eq!(advise(&machine, memory, PAGE, 1, 0), INVALID_VALUE);
}

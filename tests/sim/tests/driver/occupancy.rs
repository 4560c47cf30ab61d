//! How much fits, and what the driver suggests.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;

use green_ctx_sim::Profile;
use green_ctx_sys::*;

use crate::machine::*;

const TEXT: &str = ".version 8.0 .target sm_90
    .visible .entry plain() { ret; }
    .visible .entry small() .maxntid 96 { .shared .b8 s[1000]; ret; }
    .visible .entry exact() .reqntid 64 { ret; }
    .visible .entry pairs() .reqnctapercluster 2 { ret; }
    .visible .entry open() .explicitcluster { ret; }";

fn function(machine: &Machine, name: &str) -> CUfunction {
    let kernel = machine.kernel_of(TEXT, name).expect("the text has it");
    let (status, function) = ask!(machine, null_mut(), cuKernelGetFunction(; kernel));
    ok(status);
    function
}

fn set(machine: &Machine, function: CUfunction, number: u32, value: i32) {
    ok(call!(machine, cuFuncSetAttribute(function, CUfunction_attribute(number), value)));
}

fn blocks(machine: &Machine, function: CUfunction, threads: i32, shared: usize) -> (CUresult, i32) {
    ask!(
        machine,
        -9,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(; function, threads, shared, 0)
    )
}

#[test]
fn blocks_are_limited_by_threads_and_shared_memory() {
    let (machine, _) = Machine::with_primary();
    let plain = function(&machine, "plain");
    let by_threads = [1, 64, 65, 160, 1024, 1025].map(|it| blocks(&machine, plain, it, 0).1);
    assert_eq!(by_threads, [32, 32, 21, 12, 2, 0]);
    assert_eq!(blocks(&machine, plain, -1, 0), (INVALID_VALUE, -9));
    let by_shared = |bytes| blocks(&machine, plain, 32, bytes).1;
    assert_eq!([7168, 32_768, 49_152, 49_153].map(by_shared), [28, 6, 4, 0]);
    set(&machine, plain, 8, 232_448);
    assert_eq!([49_152, 49_153, 115_712, 115_713, 232_448].map(by_shared), [4, 4, 2, 1, 1]);
    // A kernel that is allowed less than blocks have anyway is taken to be allowed that much.
    set(&machine, plain, 8, 1024);
    assert_eq!([1025, 49_152, 49_153].map(by_shared), [32, 4, 0]);
    // What the kernel declares counts, in pieces of 128 bytes.
    let small = function(&machine, "small");
    let by_shared = |bytes| blocks(&machine, small, 32, bytes).1;
    assert_eq!([0, 5248, 5400].map(by_shared), [32, 32, 31]);
    let flags = |flags| {
        let function =
            machine.api.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags().expect("it exists");
        // SAFETY: `out` takes the answer.
        unsafe { function(&mut 0, plain, 32, 0, flags) }
    };
    assert_eq!([0, 1, 2].map(flags), [OK, OK, INVALID_VALUE]);
}

#[test]
fn a_carveout_limits_blocks_but_never_to_none() {
    let (machine, _) = Machine::with_primary();
    let plain = function(&machine, "plain");
    let on = |carveout, bytes| {
        set(&machine, plain, 9, carveout);
        blocks(&machine, plain, 32, bytes).1
    };
    assert_eq!([-1, 100, 50, 0].map(|it| on(it, 8192)), [25, 25, 14, 1]);
    assert_eq!(on(0, 49_152), 1);
}

#[test]
fn registers_of_a_binary_limit_blocks() {
    // The probe with another number of registers in its `.nv.info`.
    let (machine, _) = Machine::with_primary();
    let image = include_bytes!("../../images/probe.sm_90.cubin");
    let with = |registers: u32| {
        let mut image = image.to_vec();
        let entry = image.windows(4).position(|bytes| bytes == [4, 0x2f, 8, 0]).expect("a count");
        image[entry + 8..entry + 12].copy_from_slice(&registers.to_le_bytes());
        let (status, module) = ask!(machine, null_mut(), cuModuleLoadData(; image.as_ptr().cast()));
        ok(status);
        let name = c"green_ctx_probe".as_ptr();
        let (status, function) = ask!(machine, null_mut(), cuModuleGetFunction(; module, name));
        ok(status);
        let number = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
        let (_, count) = ask!(machine, 0, cuFuncGetAttribute(; number, function));
        assert_eq!(count, registers as i32);
        let by_threads = [1024, 384].map(|threads| blocks(&machine, function, threads, 0).1);
        (by_threads, function)
    };
    // Registers come in pieces of 256 a warp, so that 41 of them are 48.
    let expected = [[2, 5], [1, 3], [1, 3], [1, 2], [0, 2]];
    assert_eq!([32, 41, 48, 64, 65].map(|it| with(it).0), expected);
    let launch = |function| {
        let mut zero = 0_u64;
        let mut params = [(&raw mut zero).cast(), (&raw mut zero).cast()];
        let params = params.as_mut_ptr();
        let stream = null_mut();
        call!(machine, cuLaunchKernel(function, 1, 1, 1, 1024, 1, 1, 0, stream, params, null_mut()))
    };
    assert_eq!(launch(with(65).1), CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
}

#[test]
fn the_rest_of_an_sms_shared_memory_is_reported() {
    let (machine, _) = Machine::with_primary();
    let available = |function, blocks, threads| ask!(machine, 9, cuOccupancyAvailableDynamicSMemPerBlock(; function, blocks, threads));
    let plain = function(&machine, "plain");
    assert_eq!(available(plain, 1, 32), (OK, 49_152));
    set(&machine, plain, 8, 232_448);
    assert_eq!(
        [1, 2, 7, 32].map(|it| available(plain, it, 32).1),
        [232_448, 116_736, 33_280, 7296]
    );
    for (blocks, threads) in [(0, 32), (-1, 32), (33, 32), (3, 1024), (1, 0)] {
        assert_eq!(available(plain, blocks, threads), (INVALID_VALUE, 9), "{blocks} of {threads}");
    }
    // A block that is alone gets all, whatever is preferred; others share what is preferred.
    set(&machine, plain, 9, 0);
    assert_eq!([1, 2].map(|it| available(plain, it, 32).1), [232_448, 4096]);
    set(&machine, plain, 9, -1);
    // As many bytes as are said to be available would be, were none of them reserved.
    for count in 2..=32 {
        let (status, bytes) = available(plain, count, 32);
        ok(status);
        assert!(blocks(&machine, plain, 32, bytes - 1024).1 >= count, "{count}");
        assert!(blocks(&machine, plain, 32, bytes + 1 - 1024).1 < count, "{count}");
    }
    set(&machine, plain, 8, 1024);
    assert_eq!(available(plain, 2, 32), (OK, 1024));
}

thread_local! {
    /// How often the function below was called, and what of the driver it calls.
    static CALLS: Cell<(u32, Option<PFN_cuDeviceGetCount_v2000>)> = const { Cell::new((0, None)) };
}

/// A function that calls the driver, and wants 512 bytes a thread.
unsafe extern "C" fn shared_of(threads: c_int) -> usize {
    let (calls, function) = CALLS.get();
    CALLS.set((calls + 1, function));
    if let Some(Some(function)) = function {
        let mut count = 0;
        // SAFETY: `count` takes the answer.
        ok(unsafe { function(&mut count) });
    }
    512 * threads as usize
}

#[test]
fn a_block_size_is_suggested() {
    let (machine, _) = Machine::with_primary();
    let suggest = |function, shared_of, shared, limit| {
        let mut block = -9;
        let (status, grid) = ask!(
            machine,
            -9,
            cuOccupancyMaxPotentialBlockSize(; &mut block, function, shared_of, shared, limit)
        );
        (status, grid, block)
    };
    let plain = function(&machine, "plain");
    assert_eq!(suggest(plain, None, 0, 0), (OK, 264, 1024));
    assert_eq!(suggest(plain, None, 0, 768), (OK, 528, 512));
    assert_eq!(suggest(plain, None, 0, 33), (OK, 32 * 132, 33));
    assert_eq!(suggest(plain, None, 49_153, 0), (OK, 0, 0));
    assert_eq!(suggest(plain, None, 0, -1), (INVALID_VALUE, -9, -9));
    assert_eq!(suggest(function(&machine, "small"), None, 0, 0), (OK, 32 * 132, 64));
    // The only block that a kernel is launched with is no bound.
    assert_eq!(suggest(function(&machine, "exact"), None, 0, 0), (OK, 264, 1024));
    // The fixed amount does not count beside a function, which may call the driver.
    CALLS.set((0, Some(Some(machine.api.cuDeviceGetCount()))));
    assert_eq!(suggest(plain, Some(shared_of), usize::MAX, 0), (OK, 13 * 132, 32));
    assert_eq!(CALLS.get().0, 32);
    ok(machine.push(machine.context(machine.green_of(8))));
    assert_eq!(suggest(plain, None, 0, 0), (OK, 16, 1024));
}

#[test]
fn occupancy_needs_a_context() {
    let machine = Machine::new();
    let kernel: CUfunction = machine.kernel_of(TEXT, "plain").expect("the text has it").cast();
    assert_eq!(blocks(&machine, kernel, 32, 0).0, INVALID_CONTEXT);
    ok(machine.push(machine.retain()));
    assert_eq!(blocks(&machine, kernel, 32, 0), (OK, 32));
    assert_eq!(blocks(&machine, null_mut(), 32, 0).0, INVALID_HANDLE);
    // Even of a function, which is bound to a device.
    let (status, function) = ask!(machine, null_mut(), cuKernelGetFunction(; kernel.cast()));
    ok(status);
    ok(machine.pop());
    assert_eq!(blocks(&machine, function, 32, 0).0, INVALID_CONTEXT);
}

#[test]
fn the_largest_cluster_is_what_fits_and_is_allowed() {
    let (machine, _) = Machine::with_primary();
    let largest = |function, stream, threads| {
        let config = CUlaunchConfig {
            gridDimX: 3,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: null_mut(),
            numAttrs: 0,
        };
        ask!(machine, -9, cuOccupancyMaxPotentialClusterSize(; function, &config))
    };
    let plain = function(&machine, "plain");
    assert_eq!([1024, 1025].map(|it| largest(plain, null_mut(), it)), [(OK, 8), (OK, 0)]);
    assert_eq!(largest(plain, null_mut(), 0).0, INVALID_VALUE);
    assert_eq!(largest(null_mut(), null_mut(), 32).0, INVALID_VALUE);
    // What a kernel requires does not count, but one that requires some cluster must be given one.
    assert_eq!(largest(function(&machine, "pairs"), null_mut(), 32), (OK, 8));
    let open = largest(function(&machine, "open"), null_mut(), 32).0;
    assert_eq!(open, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
    let tail = machine.green_stream(machine.green(&[machine.units().rest]));
    assert_eq!(largest(plain, tail, 1024), (OK, 2));
    // Beyond what is portable as much is allowed as fits: 16 blocks in a GPC, 8 in a unit.
    set(&machine, plain, 14, -1);
    let unit = machine.green_stream(machine.green_of(8));
    assert_eq!([null_mut(), unit, tail].map(|it| largest(plain, it, 1024).1), [16, 8, 2]);
}

/// On every part a kernel of text for it is read, fits, and may use as much shared memory as the
/// part's attributes say.
#[test]
fn blocks_fit_on_every_part() {
    for profile in Profile::all() {
        let machine = Machine::with_devices(profile.name, 1);
        ok(machine.push(machine.retain()));
        let (major, minor) = profile.compute_capability;
        let text = format!(".version 9.0 .target sm_{major}{minor} .entry x() {{ ret; }}");
        let kernel: CUfunction = machine.kernel_of(&text, "x").expect("it runs here").cast();
        let device = |number| {
            let attribute = CUdevice_attribute(number);
            let (status, value) = ask!(machine, 0, cuDeviceGetAttribute(; attribute, 0));
            ok(status);
            value
        };
        let (threads_of_sm, opted_in) = (device(39), device(97));
        let name = profile.name;
        assert_eq!(blocks(&machine, kernel, 512, 0), (OK, threads_of_sm / 512), "{name}");
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let allow =
            |bytes| call!(machine, cuKernelSetAttribute(attribute, bytes, kernel.cast(), 0));
        assert_eq!([opted_in, opted_in + 1].map(allow), [OK, INVALID_VALUE], "{name}");
        assert_eq!(blocks(&machine, kernel, 32, opted_in as usize), (OK, 1), "{name}");
        assert_eq!(
            ask!(machine, 0, cuOccupancyAvailableDynamicSMemPerBlock(; kernel, 1, 32)),
            (OK, opted_in as usize),
            "{name}"
        );
    }
}

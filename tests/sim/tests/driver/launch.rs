//! Launches: where they run, what they may be, what kernels see.

use std::ffi::c_void;
use std::ptr::{from_mut, null_mut};
use std::sync::{Arc, Mutex};

use green_ctx_sys::*;

use crate::machine::*;

fn probe(machine: &Machine, stream: CUstream, blocks: u32, duration: u64) -> Vec<(u32, u64, u64)> {
    let size = blocks as usize * 24;
    let (status, out) = ask!(machine, 0, cuMemAllocAsync(; size, stream));
    ok(status);
    ok(machine.launch(machine.kernel("green_ctx_probe"), blocks, stream, &[out, duration]));
    let mut bytes = vec![0_u8; size];
    ok(call!(machine, cuMemcpyDtoHAsync(bytes.as_mut_ptr().cast(), out, size, stream)));
    ok(machine.sync(stream));
    ok(call!(machine, cuMemFreeAsync(out, stream)));
    let word = |record: &[u8], at: usize| {
        u64::from_ne_bytes(record[at..at + 8].try_into().expect("eight bytes"))
    };
    bytes
        .chunks(24)
        .map(|record| (word(record, 0) as u32, word(record, 8), word(record, 16)))
        .collect()
}

#[test]
fn the_probe_sees_the_partition_s_sms() {
    let machine = Machine::new();
    let split = machine.split(&machine.device(), 1, 0, 64).expect("it fits");
    for (resource, count) in [(split.groups[0], 64), (split.rest, 68)] {
        let stream = machine.green_stream(machine.green(&[resource]));
        let blocks = probe(&machine, stream, 4 * count, 5000);
        let mut sms: Vec<u32> = blocks.iter().map(|block| block.0).collect();
        assert!(blocks.iter().all(|&(_, start, end)| end >= start + 5000));
        sms.sort_unstable();
        sms.dedup();
        assert_eq!(sms.len(), count as usize);
        assert_eq!(sms, machine.sms());
        // Two blocks of 1024 threads fit on an SM, so that four need two waves.
        let (first, last) = (blocks[0], blocks[blocks.len() - 1]);
        assert_eq!(last.1, first.2);
    }
}

#[test]
fn partitions_run_at_the_same_time() {
    let machine = Machine::new();
    let units = machine.units();
    let streams = [0, 1].map(|unit| machine.green_stream(machine.green(&[units.groups[unit]])));
    let kernel = machine.kernel("green_ctx_probe");
    let (status, out) = ask!(machine, 0, cuMemAllocAsync(; 4096, streams[0]));
    ok(status);
    for stream in streams {
        ok(machine.launch(kernel, 8, stream, &[out, 1_000_000]));
    }
    let launches = machine.sim.launches();
    assert!(launches[0].overlaps(&launches[1]));
    assert!(launches.iter().all(|launch| launch.end_ns - launch.start_ns == 1_000_000));
    assert_eq!(call!(machine, cuStreamQuery(streams[0])), CUresult::CUDA_ERROR_NOT_READY);
    ok(machine.sync(streams[0]));
    ok(call!(machine, cuStreamQuery(streams[0])));
}

#[test]
fn shapes_that_no_gpu_runs_are_refused() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(64));
    let kernel: CUfunction = machine.kernel("nothing").cast();
    let launch = |grid: [u32; 3], block: [u32; 3], shared| {
        call!(
            machine,
            cuLaunchKernel(
                kernel,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared,
                stream,
                null_mut(),
                null_mut()
            )
        )
    };
    assert_eq!(launch([1; 3], [1; 3], 0), OK);
    assert_eq!(launch([u32::MAX >> 1, 1, 1], [1024, 1, 1], 48 << 10), OK);
    for (grid, block, shared) in [
        ([0, 1, 1], [1; 3], 0),
        ([1, 65536, 1], [1; 3], 0),
        ([u32::MAX, 1, 1], [1; 3], 0),
        ([1; 3], [1, 0, 1], 0),
        ([1; 3], [1025, 1, 1], 0),
        ([1; 3], [32, 33, 1], 0),
        ([1; 3], [1, 1, 65], 0),
        ([1; 3], [1; 3], (48 << 10) + 1),
    ] {
        assert_eq!(launch(grid, block, shared), INVALID_VALUE, "{grid:?} {block:?} {shared}");
    }
}

#[test]
fn cooperative_launches_fit_the_partition() {
    let machine = Machine::new();
    let split = machine.split(&machine.device(), 1, 0, 64).expect("it fits");
    let stream = machine.green_stream(machine.green(&split.groups));
    let kernel: CUfunction = machine.kernel("nothing").cast();
    for (blocks, expected) in [
        (128, OK),
        (130, CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE),
        (264, CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE),
    ] {
        let status = call!(
            machine,
            cuLaunchCooperativeKernel(kernel, blocks, 1, 1, 1024, 1, 1, 0, stream, null_mut())
        );
        assert_eq!(status, expected, "{blocks} blocks");
    }
    ok(machine.push(machine.retain()));
    assert_eq!(
        ask!(machine, 0, cuOccupancyMaxActiveBlocksPerMultiprocessor(; kernel, 1024, 0)),
        (OK, 2)
    );
    assert_eq!(
        ask!(machine, 0, cuOccupancyMaxActiveBlocksPerMultiprocessor(; kernel, 0, 0)).0,
        INVALID_VALUE
    );
}

/// How many clusters of this size fit at once, at one block of 1024 threads an SM.
pub(crate) fn clusters(machine: &Machine, stream: CUstream, size: u32) -> (CUresult, i32) {
    // SAFETY: an attribute is plain numbers.
    let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    // SAFETY: zero is a valid value of each member.
    let cluster = unsafe { &mut attribute.value.clusterDim };
    (cluster.x, cluster.y, cluster.z) = (size, 1, 1);
    let config = CUlaunchConfig {
        gridDimX: 16 * size,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1024,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: &mut attribute,
        numAttrs: 1,
    };
    ask!(machine, -1, cuOccupancyMaxActiveClusters(; machine.kernel("nothing").cast(), &config))
}

#[test]
fn clusters_fit_as_recorded() {
    let (machine, _) = Machine::with_primary();
    let split = machine.split(&machine.device(), 1, 0, 64).expect("it fits");
    let group = machine.green_stream(machine.green(&split.groups));
    let rest = machine.green_stream(machine.green(&[split.rest]));
    let on = |stream| [1, 2, 4, 8].map(|size| clusters(&machine, stream, size).1);
    assert_eq!(on(null_mut()), [264, 132, 62, 30]);
    assert_eq!(on(group), [128, 64, 32, 16]);
    assert_eq!(on(rest), [136, 68, 30, 14]);
    for stream in [null_mut(), group, rest] {
        assert_eq!(clusters(&machine, stream, 16), (CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE, -1));
    }
    let units = machine.units();
    let mut composed = units.groups[3..].to_vec();
    composed.push(units.rest);
    assert_eq!(on(machine.green_stream(machine.green(&composed)))[1..], [108, 48, 24]);
    let direct = machine.split(&machine.device(), 1, 0, 24).expect("it fits");
    assert_eq!(on(machine.green_stream(machine.green(&[direct.rest])))[1..], [108, 50, 24]);
    assert_eq!(on(machine.green_stream(machine.green(&[units.rest])))[1..], [12, 0, 0]);
}

#[test]
fn of_no_cluster_none_are_active() {
    let (machine, _) = Machine::with_primary();
    let kernel = machine.kernel("nothing").cast();
    let config = CUlaunchConfig {
        gridDimX: 16,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1024,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: null_mut(),
        attrs: null_mut(),
        numAttrs: 0,
    };
    assert_eq!(ask!(machine, -1, cuOccupancyMaxActiveClusters(; kernel, &config)), (OK, 0));
}

#[test]
fn kernels_see_their_parameters() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(8));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    machine.sim.register_kernel("mixed", move |kernel| {
        let params =
            (0..5).map(|index| kernel.param_bytes(index).map(<[u8]>::to_vec)).collect::<Vec<_>>();
        log.lock().expect("no panic").push((
            params,
            kernel.param_u64(1),
            kernel.param_u32(1),
            kernel.grid(),
            kernel.block(),
        ));
    });
    let kernel = machine.kernel("mixed");
    let (mut a, mut b, mut c, mut d) = (7_u8, u64::MAX - 1, 0x1234_u16, [9_u8; 20]);
    let mut params: [*mut c_void; 4] = [
        from_mut(&mut a).cast(),
        from_mut(&mut b).cast(),
        from_mut(&mut c).cast(),
        from_mut(&mut d).cast(),
    ];
    ok(call!(
        machine,
        cuLaunchKernel(kernel.cast(), 2, 3, 1, 4, 5, 1, 0, stream, params.as_mut_ptr(), null_mut())
    ));
    // The same as one buffer.
    let mut buffer = [0_u8; 52];
    buffer[0] = 7;
    buffer[8..16].copy_from_slice(&b.to_ne_bytes());
    buffer[16..18].copy_from_slice(&c.to_ne_bytes());
    buffer[32..].copy_from_slice(&d);
    let mut size = buffer.len();
    let tag = std::ptr::without_provenance_mut;
    let mut extra: [*mut c_void; 5] =
        [tag(1), buffer.as_mut_ptr().cast(), tag(2), from_mut(&mut size).cast(), null_mut()];
    ok(call!(
        machine,
        cuLaunchKernel(kernel.cast(), 2, 3, 1, 4, 5, 1, 0, stream, null_mut(), extra.as_mut_ptr())
    ));
    let expected = (
        vec![
            Some(vec![7]),
            Some(b.to_ne_bytes().to_vec()),
            Some(c.to_ne_bytes().to_vec()),
            Some(d.to_vec()),
            None,
        ],
        Some(b),
        None,
        [2, 3, 1],
        [4, 5, 1],
    );
    assert_eq!(*seen.lock().expect("no panic"), [expected.clone(), expected]);
    let none = call!(
        machine,
        cuLaunchKernel(kernel.cast(), 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut())
    );
    assert_eq!(none, INVALID_VALUE);
}

#[test]
fn parameters_are_described() {
    let machine = Machine::new();
    let kernel = machine.kernel("mixed");
    let without = call!(machine, cuKernelGetParamInfo(kernel, 0, &mut 0, &mut 0));
    assert_eq!(without, INVALID_CONTEXT);
    ok(machine.push(machine.retain()));
    let info = |index| {
        let (mut offset, mut size) = (0, 0);
        let status = call!(machine, cuKernelGetParamInfo(kernel, index, &mut offset, &mut size));
        (status, offset, size)
    };
    assert_eq!([0, 1, 2, 3].map(info), [(OK, 0, 1), (OK, 8, 8), (OK, 16, 2), (OK, 32, 20)]);
    assert_eq!(info(4).0, INVALID_VALUE);
    let (status, name) = ask!(machine, std::ptr::null(), cuKernelGetName(; kernel));
    ok(status);
    // SAFETY: the driver's text ends with a null byte and lives as long as the kernel.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }, c"mixed");
}

#[test]
fn images_are_checked() {
    let machine = Machine::new();
    let load = |ptx: &str| machine.kernel_of(ptx, "work").err();
    assert_eq!(load(".version 8.0\n.target sm_90a\n.entry work() {}"), None);
    assert_eq!(load("not a kernel"), Some(CUresult::CUDA_ERROR_INVALID_IMAGE));
    assert_eq!(load(""), Some(CUresult::CUDA_ERROR_INVALID_IMAGE));
    assert_eq!(load(".version 7.0"), Some(CUresult::CUDA_ERROR_INVALID_PTX));
    assert_eq!(
        load(".version 9.0\n.target sm_100\n.entry work() {}"),
        Some(CUresult::CUDA_ERROR_INVALID_PTX)
    );
    assert_eq!(
        load(".version 7.0\n.target sm_52\n.entry other() {}"),
        Some(CUresult::CUDA_ERROR_NOT_FOUND)
    );
    // A module is read when it is loaded.
    ok(machine.push(machine.retain()));
    let module = |text: &std::ffi::CStr| {
        ask!(machine, null_mut(), cuModuleLoadData(; text.as_ptr().cast())).0
    };
    assert_eq!(module(c"not a kernel"), CUresult::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(module(c".version 7.0\n.target gpu"), CUresult::CUDA_ERROR_INVALID_PTX);
}

#[test]
fn memory_is_bounded() {
    let (machine, _) = Machine::with_primary();
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 100));
    ok(status);
    assert_eq!(memory % 512, 0);
    let copy =
        |to, len: usize| call!(machine, cuMemcpyHtoD(to, vec![1_u8; len].as_ptr().cast(), len));
    assert_eq!(copy(memory, 100), OK);
    assert_eq!(copy(memory + 99, 1), OK);
    assert_eq!(copy(memory, 101), INVALID_VALUE);
    assert_eq!(copy(memory + 100, 1), INVALID_VALUE);
    assert_eq!(copy(memory - 1, 1), INVALID_VALUE);
    assert_eq!(copy(0, 1), INVALID_VALUE);
    assert_eq!(call!(machine, cuMemsetD32Async(memory + 2, 1, 1, null_mut())), INVALID_VALUE);
    ok(call!(machine, cuMemsetD32Async(memory + 4, 0x0102_0304, 2, null_mut())));
    let mut bytes = [0_u8; 16];
    ok(call!(machine, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), memory, 16)));
    assert_eq!(bytes, [1, 1, 1, 1, 4, 3, 2, 1, 4, 3, 2, 1, 1, 1, 1, 1]);
    assert_eq!(call!(machine, cuMemFree(memory + 1)), INVALID_VALUE);
    ok(call!(machine, cuMemFree(memory)));
    assert_eq!(call!(machine, cuMemFree(memory)), INVALID_VALUE);
    ok(call!(machine, cuMemFree(0)));
    assert_eq!(ask!(machine, 0, cuMemAlloc(; 0)).0, INVALID_VALUE);
    assert_eq!(ask!(machine, 0, cuMemAlloc(; 1 << 40)).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
}

#[test]
fn a_panic_in_a_kernel_does_not_cross() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(8));
    machine.sim.register_kernel("nothing", |_| panic!("a kernel's own mistake"));
    let kernel = machine.kernel("nothing");
    assert_eq!(machine.launch(kernel, 1, stream, &[]), CUresult::CUDA_ERROR_UNKNOWN);
    machine.sim.register_kernel("nothing", |_| {});
    ok(machine.launch(kernel, 1, stream, &[]));
}

#[test]
fn a_kernel_may_call_the_driver() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(8));
    let (get_count, nothing) = (machine.api.cuDeviceGetCount(), machine.kernel("nothing").addr());
    let launch = machine.api.cuLaunchKernel().expect("it exists");
    let stream_number = stream.addr();
    machine.sim.register_kernel("green_ctx_fault", move |_| {
        let mut count = 0;
        // SAFETY: `count` takes the answer.
        ok(unsafe { get_count(&mut count) });
        assert_eq!(count, 1);
        let (kernel, stream) = (
            std::ptr::without_provenance_mut(nothing),
            std::ptr::without_provenance_mut(stream_number),
        );
        // SAFETY: the kernel has no parameters.
        ok(unsafe { launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()) });
    });
    ok(machine.launch(machine.kernel("green_ctx_fault"), 1, stream, &[0]));
    let names: Vec<_> =
        machine.sim.launches().iter().map(|launch| launch.kernel.to_string()).collect();
    assert_eq!(names, ["nothing", "green_ctx_fault"]);
}

#[test]
fn what_is_of_one_device_is_not_of_another() {
    let machine = Machine::with_devices("h200", 2);
    let contexts =
        [0, 1].map(|device| ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; device)).1);
    ok(machine.push(contexts[0]));
    let kernel = machine.kernel("nothing");
    let (status, function) = ask!(machine, null_mut(), cuKernelGetFunction(; kernel));
    assert_eq!((status, function), ask!(machine, null_mut(), cuKernelGetFunction(; kernel)));
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 64));
    ok(status);
    ok(machine.launch(function.cast(), 1, null_mut(), &[]));
    ok(machine.push(contexts[1]));
    assert_eq!(machine.launch(function.cast(), 1, null_mut(), &[]), INVALID_HANDLE);
    ok(machine.launch(kernel, 1, null_mut(), &[]));
    assert_eq!(machine.sim.launches().last().map(|launch| launch.device), Some(1));
    let read = std::sync::Arc::new(Mutex::new(None));
    let result = Arc::clone(&read);
    machine.sim.register_kernel("green_ctx_fault", move |kernel| {
        let address = kernel.param_u64(0).expect("an address");
        *result.lock().expect("no panic") = Some(kernel.read(address, &mut [0; 4]));
    });
    let fault = machine.kernel("green_ctx_fault");
    ok(machine.pop());
    ok(machine.launch(fault, 1, null_mut(), &[memory]));
    assert_eq!(*read.lock().expect("no panic"), Some(Ok(())));
    ok(machine.push(contexts[1]));
    ok(machine.launch(fault, 1, null_mut(), &[memory]));
    let error = read.lock().expect("no panic").take().and_then(Result::err).expect("it failed");
    assert_eq!((error.address, error.bytes), (memory, 4));
    // The device that made the access is the poisoned one.
    assert_eq!(call!(machine, cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    ok(machine.pop());
    ok(call!(machine, cuCtxSynchronize()));
}

#[test]
fn a_kernel_does_not_write_to_another_device() {
    let machine = Machine::with_devices("h200", 2);
    let contexts =
        [0, 1].map(|device| ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; device)).1);
    ok(machine.push(contexts[0]));
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 64));
    ok(status);
    ok(machine.push(contexts[1]));
    ok(machine.launch(machine.kernel("green_ctx_fault"), 1, null_mut(), &[memory]));
    assert_eq!(call!(machine, cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn copies_and_memsets_come_in_all_forms() {
    let (machine, _) = Machine::with_primary();
    let stream = machine.stream(NON_BLOCKING);
    let (status, memory) = ask!(machine, 0, cuMemAllocAsync(; 8, stream));
    ok(status);
    let mut bytes = [0_u8; 8];
    let from = [1_u8, 2, 3, 4];
    ok(call!(machine, cuMemsetD8(memory, 9, 8)));
    ok(call!(machine, cuMemcpyHtoDAsync(memory, from.as_ptr().cast(), 4, stream)));
    ok(call!(machine, cuMemcpyDtoHAsync(bytes.as_mut_ptr().cast(), memory, 8, stream)));
    assert_eq!(bytes, [1, 2, 3, 4, 9, 9, 9, 9]);
    assert_eq!(call!(machine, cuMemsetD8Async(memory, 0, 9, stream)), INVALID_VALUE);
    ok(call!(machine, cuMemsetD8Async(memory, 0, 0, stream)));
    ok(call!(machine, cuMemFreeAsync(memory, stream)));
    assert_eq!(call!(machine, cuMemFreeAsync(memory, stream)), INVALID_VALUE);
    // Nothing is the null address.
    assert_eq!(ask!(machine, 9, cuMemAllocAsync(; 0, stream)), (OK, 0));
    ok(call!(machine, cuMemFreeAsync(0, stream)));
}

#[test]
fn extended_launches_read_their_attributes() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(64));
    let kernel: CUfunction = machine.kernel("nothing").cast();
    // SAFETY: an attribute is plain numbers.
    let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute.value.cooperative = 1;
    let launch = |blocks, count, attrs| {
        let config = CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1024,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs,
            numAttrs: count,
        };
        call!(machine, cuLaunchKernelEx(&config, kernel, null_mut(), null_mut()))
    };
    let too_large = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    assert_eq!(launch(130, 0, null_mut()), OK);
    assert_eq!(launch(128, 1, from_mut(&mut attribute)), OK);
    assert_eq!(launch(130, 1, from_mut(&mut attribute)), too_large);
    assert_eq!(launch(1, 1, null_mut()), INVALID_VALUE);
    // SAFETY: zero is a valid value of each member.
    let cluster = unsafe { &mut attribute.value.clusterDim };
    (cluster.x, cluster.y, cluster.z) = (4, 1, 1);
    attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    assert_eq!(launch(8, 1, from_mut(&mut attribute)), OK);
    let not_whole = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    assert_eq!(launch(9, 1, from_mut(&mut attribute)), not_whole);
}

#[test]
fn kernels_have_attributes() {
    let machine = Machine::new();
    let kernel = machine.kernel("nothing");
    let ask_for = |attribute| ask!(machine, -9, cuKernelGetAttribute(; attribute, kernel, 0));
    let threads = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    assert_eq!(ask_for(threads), (OK, 1024));
    assert_eq!(ask_for(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), (OK, 0));
    assert_eq!(ask_for(CUfunction_attribute(999)).0, INVALID_VALUE);
}

//! The speed of the simulated driver: launches, and calls while many objects exist.
//!
//! Programs are tested on the simulator, so a launch must cost well under a microsecond, and other existing
//! objects must not slow calls down. Compare the figures of one run with each other: the number of objects
//! grows by a factor of ten from row to row.

#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr::null_mut;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use green_ctx_sim::Sim;
use green_ctx_sys::{
    Api, CUcontext, CUdevResource, CUdevResourceType, CUevent, CUfunction, CUgreenCtx, CUkernel,
    CUlibrary, CUresult, CUstream,
};

/// A simulated driver and a kernel to launch.
struct Machine {
    _sim: Sim,
    api: Api,
    kernel: CUfunction,
}

fn ok(status: CUresult) {
    assert_eq!(status, CUresult::CUDA_SUCCESS);
}

/// Makes a call that must succeed.
macro_rules! call {
    ($machine:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let function = $machine.api.$function().expect("the simulated driver has it");
        // SAFETY: each pointer is null or points to a local variable of the type that the function fills, and each
        // handle comes from this driver.
        ok(unsafe { function($($argument),*) })
    }};
}

impl Machine {
    /// Creates a machine that keeps the default number of launches, as most tests do.
    fn new() -> Machine {
        let sim = Sim::new("h200@13.0").expect("the profile is built in");
        // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
        let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) };
        let api = api.expect("the simulated driver is a driver");
        // SAFETY: `cuInit` has no precondition.
        ok(unsafe { api.cuInit()(0) });
        let mut machine = Machine { _sim: sim, api, kernel: null_mut() };
        let mut primary: CUcontext = null_mut();
        call!(machine, cuDevicePrimaryCtxRetain(&raw mut primary, 0));
        call!(machine, cuCtxPushCurrent(primary));
        let ptx = c".version 7.0 .target sm_52 .visible .entry work() { ret; }";
        let (mut library, mut kernel): (CUlibrary, CUkernel) = (null_mut(), null_mut());
        let none = null_mut;
        call!(
            machine,
            cuLibraryLoadData(
                &raw mut library,
                ptx.as_ptr().cast(),
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                none(),
                0,
            )
        );
        call!(machine, cuLibraryGetKernel(&raw mut kernel, library, c"work".as_ptr()));
        machine.kernel = kernel.cast();
        machine
    }

    fn green(&self) -> CUgreenCtx {
        // SAFETY: a resource consists of integers and a nullable pointer, for which zero bytes are valid.
        let mut resource: CUdevResource = unsafe { std::mem::zeroed() };
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        call!(self, cuDeviceGetDevResource(0, &raw mut resource, kind));
        let (mut descriptor, mut green) = (null_mut(), null_mut());
        call!(self, cuDevResourceGenerateDesc(&raw mut descriptor, &raw mut resource, 1));
        call!(self, cuGreenCtxCreate(&raw mut green, descriptor, 0, 1));
        green
    }

    fn stream(&self, green: CUgreenCtx) -> CUstream {
        let mut stream = null_mut();
        call!(self, cuGreenCtxStreamCreate(&raw mut stream, green, 1, 0));
        stream
    }

    fn event(&self) -> CUevent {
        let mut event = null_mut();
        call!(self, cuEventCreate(&raw mut event, 2));
        event
    }

    fn launch(&self, stream: CUstream) {
        let none = null_mut;
        call!(self, cuLaunchKernel(self.kernel, 1, 1, 1, 32, 1, 1, 0, stream, none(), null_mut()));
    }

    fn synchronize(&self, stream: CUstream) {
        call!(self, cuStreamSynchronize(stream));
    }
}

/// One launch on a partition's stream, on one thread.
fn launch(criterion: &mut Criterion) {
    let machine = Machine::new();
    let stream = machine.stream(machine.green());
    let mut group = criterion.benchmark_group("launch");
    group.throughput(Throughput::Elements(1));
    group.bench_function("on a partition's stream", |bencher| {
        bencher.iter(|| machine.launch(stream));
    });
    machine.synchronize(stream);
}

/// A launch, a record and a wait while `count` contexts with one stream each exist.
fn contexts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("with contexts alive");
    for count in [10, 100, 1000] {
        let machine = Machine::new();
        let streams: Vec<CUstream> = (0..count).map(|_| machine.stream(machine.green())).collect();
        let event = machine.event();
        let mut next = streams.iter().copied().zip(streams.iter().copied().skip(1)).cycle();
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                let (from, to) = next.next().expect("there are at least two streams");
                machine.launch(from);
                call!(machine, cuEventRecord(event, from));
                call!(machine, cuStreamWaitEvent(to, event, 0));
            });
        });
    }
}

/// A record, a query and a wait of one of `count` events.
fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("with events alive");
    for count in [1000, 10_000, 100_000] {
        let machine = Machine::new();
        let stream = machine.stream(machine.green());
        let events: Vec<CUevent> = (0..count).map(|_| machine.event()).collect();
        let mut next = events.iter().copied().cycle();
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                let event = next.next().expect("there are events");
                call!(machine, cuEventRecord(event, stream));
                call!(machine, cuEventSynchronize(event));
                call!(machine, cuStreamWaitEvent(stream, event, 0));
            });
        });
    }
}

/// Creating and destroying as many objects as a large program has.
fn lives(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("made and destroyed");
    group.sample_size(10);
    for count in [1000_u64, 10_000, 100_000] {
        let machine = Machine::new();
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new("events", count), |bencher| {
            bencher.iter(|| {
                let events: Vec<CUevent> = (0..count).map(|_| machine.event()).collect();
                events.into_iter().for_each(|event| call!(machine, cuEventDestroy(event)));
            });
        });
    }
    for count in [10_u64, 100, 1000] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new("green contexts", count), |bencher| {
            // Each iteration has its own driver, because the memory of a context is never released.
            bencher.iter_batched(
                Machine::new,
                |machine| {
                    let contexts: Vec<CUgreenCtx> = (0..count).map(|_| machine.green()).collect();
                    contexts.iter().for_each(|green| call!(machine, cuGreenCtxDestroy(*green)));
                    machine
                },
                BatchSize::PerIteration,
            );
        });
    }
}

criterion_group!(benches, launch, contexts, events, lives);
criterion_main!(benches);

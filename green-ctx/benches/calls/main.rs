//! Measures what the safe layer adds to each call. The same work runs through the function table and through the
//! safe interface.
//!
//! Criterion measures each side. Machines drift, and a driver slows down with the number of streams that it has
//! ever created. So the ratios come from short batches of both sides, interleaved. They are printed as a table, and
//! written as JSON to the file that `GREEN_CTX_RATIOS` names. `GREEN_CTX_QUICK=1` runs only the interleaved
//! batches. So does `--json`, which prints the JSON instead of the table.
//!
//! The benchmark runs on the simulator by default, and on the installed driver with `GREEN_CTX_DRIVER=cuda`. A
//! filter such as `launch` selects calls by name.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

mod resident;
mod runner;
mod threads;

use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use green_ctx::sim::Sim;
use green_ctx::sys::{Api, CUresult, CUstream, CUstream_flags};
use green_ctx::{
    DeviceBuffer, Driver, Event, Kernel, LaunchConfig, Library, Stream, StreamOptions,
    context::Context, event::EventOptions,
};

use crate::runner::{BATCH, Runner, end_slice, median};

const PTX: &str = "
.version 5.0
.target sm_52
.address_size 64
.visible .entry nothing(.param .u64 pointer, .param .u32 count) { ret; }
";

/// The driver under test, with one partition and its objects.
struct Bench {
    sim: Option<Sim>,
    driver: Driver,
    context: Context,
    stream: Stream,
    event: Event,
    kernel: Kernel,
    buffer: DeviceBuffer<u32>,
}

impl Bench {
    fn new() -> green_ctx::Result<Bench> {
        let real = std::env::var("GREEN_CTX_DRIVER").is_ok_and(|driver| driver == "cuda");
        let sim = if real { None } else { Some(Sim::builder("h200").trace(0).build()?) };
        let driver = match &sim {
            Some(sim) => Driver::simulated(sim)?,
            None => Driver::load()?,
        };
        let device = driver.device(0)?;
        let split = device.resources().sm()?.split([32])?;
        let group = split.groups.into_iter().next().expect("one group was requested");
        let context = device.create_context(group)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let event = device.create_event(EventOptions::default())?;
        let kernel = Library::from_ptx(&device, PTX)?.kernel("nothing")?;
        let buffer = DeviceBuffer::zeroed(&device, 1)?;
        Ok(Bench { sim, driver, context, stream, event, kernel, buffer })
    }
}

fn timed(calls: u64, mut call: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed()
}

fn ok(status: CUresult) {
    assert_eq!(status, CUresult::CUDA_SUCCESS, "{status}");
}

fn load(runner: &mut Runner<'_>, bench: &Bench) {
    runner.single("load and resolve all symbols", 1, || match &bench.sim {
        // SAFETY: the simulated driver's entry point stays valid while `sim` exists, which outlives the table.
        Some(sim) => unsafe { Api::from_get_proc_address(sim.get_proc_address()) },
        None => Api::load(),
    });
}

fn stream(runner: &mut Runner<'_>, bench: &Bench) {
    let api = bench.driver.api();
    let create = api.cuGreenCtxStreamCreate().expect("CUDA 12.5");
    let destroy = api.cuStreamDestroy().expect("every driver");
    let green = bench.context.as_raw_green().expect("a green context");
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    let create = || -> CUstream {
        let mut stream = ptr::null_mut();
        // SAFETY: the context is alive, and `stream` is a live local.
        ok(unsafe { create(&raw mut stream, green, flags, 0) });
        stream
    };
    // SAFETY: each stream was created above and is destroyed once.
    let destroy = |stream: CUstream| ok(unsafe { destroy(stream) });
    let safe = || bench.context.create_stream(StreamOptions::default()).expect("a stream");

    runner.compare(
        "stream create",
        |calls| {
            let mut streams = Vec::with_capacity(BATCH as usize);
            let time = timed(calls, || streams.push(create()));
            streams.into_iter().for_each(destroy);
            time
        },
        |calls| {
            let mut streams = Vec::with_capacity(BATCH as usize);
            timed(calls, || streams.push(safe()))
        },
    );
    runner.compare(
        "stream drop",
        |calls| {
            let streams: Vec<CUstream> = (0..calls).map(|_| create()).collect();
            let mut streams = streams.into_iter();
            timed(calls, || streams.next().into_iter().for_each(destroy))
        },
        |calls| {
            let streams: Vec<Stream> = (0..calls).map(|_| safe()).collect();
            let mut streams = streams.into_iter();
            timed(calls, || drop(streams.next()))
        },
    );
    runner.compare(
        "stream create+drop",
        |calls| timed(calls, || destroy(create())),
        |calls| timed(calls, || drop(safe())),
    );
}

fn event(runner: &mut Runner<'_>, bench: &Bench) {
    let api = bench.driver.api();
    let (raw_stream, raw_event) = (bench.stream.as_raw(), bench.event.as_raw());
    let record = api.cuEventRecord().expect("every driver");
    runner.compare(
        "event record",
        // SAFETY: `bench` keeps the stream and the event alive.
        |calls| timed(calls, || ok(unsafe { record(black_box(raw_event), black_box(raw_stream)) })),
        |calls| {
            timed(calls, || {
                black_box(&bench.stream).record(black_box(&bench.event)).expect("recorded");
            })
        },
    );
    let wait = api.cuStreamWaitEvent().expect("every driver");
    runner.compare(
        "stream wait",
        |calls| {
            timed(calls, || {
                // SAFETY: `bench` keeps the stream and the event alive.
                ok(unsafe { wait(black_box(raw_stream), black_box(raw_event), 0) });
            })
        },
        |calls| {
            timed(calls, || {
                black_box(&bench.stream).wait(black_box(&bench.event)).expect("waits");
            })
        },
    );
}

fn launch(runner: &mut Runner<'_>, bench: &Bench) {
    let function = bench.driver.api().cuLaunchKernel().expect("every driver");
    let kernel = bench.kernel.as_raw().cast();
    let stream = bench.stream.as_raw();
    let address = bench.buffer.as_raw();
    let raw = || {
        let (mut pointer, mut count) = (black_box(address), black_box(1u32));
        let mut arguments = [(&raw mut pointer).cast(), (&raw mut count).cast()];
        let (arguments, none) = (arguments.as_mut_ptr(), ptr::null_mut());
        // SAFETY: these are the kernel's two parameters, and the kernel accesses no memory.
        ok(unsafe { function(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, none) });
    };
    let safe = || {
        let arguments = (black_box(bench.buffer.as_argument()), black_box(1u32));
        // SAFETY: these are the kernel's two parameters, and the kernel accesses no memory.
        unsafe { bench.stream.launch(&bench.kernel, LaunchConfig::new(1, 32), arguments) }
            .expect("launched");
    };
    // The queue is emptied after the time is taken.
    let settle = || bench.stream.synchronize().expect("the launches succeeded");
    let side = |calls, launch: &dyn Fn()| {
        let time = timed(calls, launch);
        settle();
        time
    };
    runner.compare("launch", |calls| side(calls, &raw), |calls| side(calls, &safe));
}

fn current(runner: &mut Runner<'_>, bench: &Bench) {
    let api = bench.driver.api();
    let push = api.cuCtxPushCurrent().expect("every driver");
    let pop = api.cuCtxPopCurrent().expect("every driver");
    let context = bench.context.as_raw();
    let raw = || {
        // SAFETY: the context is alive.
        ok(unsafe { push(context) });
        let mut popped = ptr::null_mut();
        // SAFETY: `popped` is a live local.
        ok(unsafe { pop(&raw mut popped) });
    };
    let safe = || drop(bench.context.make_current().expect("a live context"));
    runner.compare("make current", |calls| timed(calls, raw), |calls| timed(calls, safe));
}

/// Compares acquiring a recycled partition with creating and destroying one. Few are created, because the driver
/// leaks 4 MiB each time.
fn acquire(runner: &mut Runner<'_>, bench: &Bench) {
    let device = bench.driver.device(0).expect("a device");
    let sms = device.resources().sm().expect("a driver with green contexts");
    let acquire = || {
        let group = sms.split([24]).expect("it fits").groups.remove(0);
        let context = device.create_context(group).expect("a context");
        context.create_stream(StreamOptions::default()).expect("a stream")
    };
    drop(acquire());
    let sampled = runner.sample(
        "partition",
        &mut [("recycled acquire of context and stream", &mut |iterations| {
            (0..iterations)
                .map(|_| {
                    let start = Instant::now();
                    let stream = acquire();
                    let time = start.elapsed();
                    drop(stream);
                    time
                })
                .sum()
        })],
    );
    if !sampled {
        return;
    }
    const CONTEXTS: usize = 20;
    device.release_idle();
    let made = median((0..CONTEXTS).map(|_| {
        end_slice();
        let start = Instant::now();
        let stream = acquire();
        let time = start.elapsed().as_nanos() as f64;
        drop(stream);
        device.release_idle();
        time
    }));
    drop(acquire());
    let recycled = median((0..CONTEXTS * 100).map(|round| {
        if round % CONTEXTS == 0 {
            end_slice();
        }
        let start = Instant::now();
        let stream = acquire();
        let time = start.elapsed().as_nanos() as f64;
        drop(stream);
        time
    }));
    runner.line(format_args!("partition: made {made:.0} ns, recycled {recycled:.0} ns"));
    runner.found(serde_json::json!({
        "call": "partition acquire", "made_ns": made, "recycled_ns": recycled,
    }));
}

/// Measures the bookkeeping alone, without driver calls.
fn ledger(runner: &mut Runner<'_>, bench: &Bench) {
    let device = bench.driver.device(0).expect("a device");
    let sms = device.resources().sm().expect("a driver with green contexts");
    runner.single("ledger: plan 4 groups", 16, || sms.dry_run([8, 16, 24, 40]).expect("it fits"));
    runner.single("ledger: split into 4 groups, and back", 16, || {
        sms.split([8, 16, 24, 40]).expect("it fits")
    });
    let raw = bench.stream.as_raw();
    runner.single("registry: find a stream", 256, || {
        bench.driver.find_stream(black_box(raw)).expect("it lives")
    });
}

fn all(runner: &mut Runner<'_>) {
    let bench = Bench::new().expect("a driver to measure");
    eprintln!("measured on: {}", bench.driver.info());
    load(runner, &bench);
    stream(runner, &bench);
    event(runner, &bench);
    launch(runner, &bench);
    resident::launches(runner, &bench);
    current(runner, &bench);
    threads::all(runner, &bench);
    acquire(runner, &bench);
    ledger(runner, &bench);

    let device = bench.driver.device(0).and_then(|device| device.name()).expect("a device");
    runner.finish(&device, &bench.driver.info().to_string());
}

fn sampled(criterion: &mut Criterion) {
    all(&mut Runner::sampling(criterion));
}

criterion_group! {
    name = calls;
    config = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .without_plots();
    targets = sampled
}

fn main() {
    match Runner::quick() {
        Some(mut runner) => all(&mut runner),
        None => {
            calls();
            Criterion::default().configure_from_args().final_summary();
        }
    }
}

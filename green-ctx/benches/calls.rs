//! What the safe layer adds to each call: the same work through the table of functions and through
//! the safe interface.
//!
//! Criterion measures each side; since machines drift, and a driver slows down with the streams that
//! it has ever made, the ratio is then taken from short runs of both sides in turn, and printed as a
//! table (and as JSON to the file named by `GREEN_CTX_RATIOS`).
//!
//! On the simulator by default; `GREEN_CTX_DRIVER=cuda` runs on the installed driver. A filter such
//! as `launch` picks some.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::cell::RefCell;
use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use green_ctx::sim::Sim;
use green_ctx::sys::{Api, CUresult, CUstream, CUstream_flags};
use green_ctx::{
    Context, DeviceBuffer, Driver, Event, EventOptions, Kernel, LaunchConfig, Library, Stream,
    StreamOptions,
};

const PTX: &str = "
.version 5.0
.target sm_52
.address_size 64
.visible .entry nothing(.param .u64 pointer, .param .u32 count) { ret; }
";

/// Calls between two untimed clean-ups: as many launches as a driver queues without making the
/// caller wait.
const BATCH: u64 = 256;

/// Pairs of batches behind a ratio.
const PAIRS: usize = 400;

/// The driver under test and one partition of it.
struct Bench {
    sim: Option<Sim>,
    driver: Driver,
    context: Context,
    stream: Stream,
    event: Event,
    kernel: Kernel,
    buffer: DeviceBuffer<u32>,
    ratios: RefCell<Vec<serde_json::Value>>,
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
        let group = split.groups.into_iter().next().expect("one group was asked for");
        let context = device.create_context(group)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let event = device.create_event(EventOptions::default())?;
        let kernel = Library::from_ptx(&device, PTX)?.kernel("nothing")?;
        let buffer = DeviceBuffer::zeroed(&device, 1)?;
        let ratios = RefCell::default();
        Ok(Bench { sim, driver, context, stream, event, kernel, buffer, ratios })
    }

    /// Measures both sides of a call. Each does its batch of calls and returns the time of what is
    /// to be measured.
    fn compare(
        &self,
        criterion: &mut Criterion,
        name: &str,
        mut raw: impl FnMut(u64) -> Duration,
        mut safe: impl FnMut(u64) -> Duration,
    ) {
        let mut measured = false;
        let mut group = criterion.benchmark_group(name);
        group.bench_function("raw", |bencher| {
            measured = true;
            bencher.iter_custom(|iterations| in_batches(iterations, &mut raw));
        });
        group.bench_function("safe", |bencher| {
            bencher.iter_custom(|iterations| in_batches(iterations, &mut safe));
        });
        group.finish();
        if measured {
            self.ratios.borrow_mut().push(ratio(name, &mut raw, &mut safe));
        }
    }
}

fn in_batches(iterations: u64, side: &mut impl FnMut(u64) -> Duration) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let batch = left.min(BATCH);
        total += side(batch);
        left -= batch;
    }
    total
}

/// Both sides in turn, batch by batch: their medians, and the median of the differences.
fn ratio(
    name: &str,
    raw: &mut impl FnMut(u64) -> Duration,
    safe: &mut impl FnMut(u64) -> Duration,
) -> serde_json::Value {
    let a_call = |batch: Duration| batch.as_nanos() as f64 / BATCH as f64;
    let pairs: Vec<(f64, f64)> = (0..PAIRS)
        .map(|pair| {
            // Whoever comes second finds warmer caches: each side is second half of the time.
            if pair % 2 == 0 {
                let raw = a_call(raw(BATCH));
                (raw, a_call(safe(BATCH)))
            } else {
                let safe = a_call(safe(BATCH));
                (a_call(raw(BATCH)), safe)
            }
        })
        .collect();
    let raw = median(pairs.iter().map(|(raw, _)| *raw));
    let safe = median(pairs.iter().map(|(_, safe)| *safe));
    let added = median(pairs.iter().map(|(raw, safe)| safe - raw));
    let percent = added / raw * 100.0;
    println!(
        "{name:<24} raw {raw:8.1} ns  safe {safe:8.1} ns  added {added:6.1} ns  {percent:5.1} %"
    );
    serde_json::json!({
        "call": name, "raw_ns": raw, "safe_ns": safe, "added_ns": added, "added_percent": percent,
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
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

fn load(criterion: &mut Criterion, bench: &Bench) {
    criterion.bench_function("load and resolve all symbols", |bencher| {
        bencher.iter(|| match &bench.sim {
            // SAFETY: the pointer is the simulated driver's, which outlives the table.
            Some(sim) => unsafe { Api::from_get_proc_address(sim.get_proc_address()) },
            None => Api::load(),
        });
    });
}

fn stream(criterion: &mut Criterion, bench: &Bench) {
    let api = bench.driver.api();
    let create = api.cuGreenCtxStreamCreate().expect("CUDA 12.5");
    let destroy = api.cuStreamDestroy().expect("every driver");
    let green = bench.context.as_raw_green().expect("a green context");
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    let create = || -> CUstream {
        let mut stream = ptr::null_mut();
        // SAFETY: the context is alive, the pointer is to a live handle.
        ok(unsafe { create(&raw mut stream, green, flags, 0) });
        stream
    };
    // SAFETY: each stream was created above and is destroyed once.
    let destroy = |stream: CUstream| ok(unsafe { destroy(stream) });
    let safe = || bench.context.create_stream(StreamOptions::default()).expect("a stream");

    bench.compare(
        criterion,
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
    bench.compare(
        criterion,
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
    bench.compare(
        criterion,
        "stream create+drop",
        |calls| timed(calls, || destroy(create())),
        |calls| timed(calls, || drop(safe())),
    );
}

fn event(criterion: &mut Criterion, bench: &Bench) {
    let api = bench.driver.api();
    let (raw_stream, raw_event) = (bench.stream.as_raw(), bench.event.as_raw());
    let record = api.cuEventRecord().expect("every driver");
    bench.compare(
        criterion,
        "event record",
        // SAFETY: both handles are alive.
        |calls| timed(calls, || ok(unsafe { record(black_box(raw_event), black_box(raw_stream)) })),
        |calls| {
            timed(calls, || {
                black_box(&bench.stream).record(black_box(&bench.event)).expect("recorded");
            })
        },
    );
    let wait = api.cuStreamWaitEvent().expect("every driver");
    bench.compare(
        criterion,
        "stream wait",
        |calls| {
            timed(calls, || {
                // SAFETY: both handles are alive.
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

fn launch(criterion: &mut Criterion, bench: &Bench) {
    let function = bench.driver.api().cuLaunchKernel().expect("every driver");
    let kernel = bench.kernel.as_raw().cast();
    let stream = bench.stream.as_raw();
    let address = bench.buffer.as_raw();
    let raw = || {
        let (mut pointer, mut count) = (black_box(address), black_box(1u32));
        let mut arguments = [(&raw mut pointer).cast(), (&raw mut count).cast()];
        let (arguments, none) = (arguments.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the kernel's two parameters, and it touches no memory.
        ok(unsafe { function(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, none) });
    };
    let safe = || {
        let arguments = (black_box(bench.buffer.as_argument()), black_box(1u32));
        // SAFETY: the kernel's two parameters, and it touches no memory.
        unsafe { bench.stream.launch(&bench.kernel, LaunchConfig::new(1, 32), arguments) }
            .expect("launched");
    };
    // The queue is emptied outside of the time taken.
    let settle = || bench.stream.synchronize().expect("the launches succeeded");
    let side = |calls, launch: &dyn Fn()| {
        let time = timed(calls, launch);
        settle();
        time
    };
    bench.compare(criterion, "launch", |calls| side(calls, &raw), |calls| side(calls, &safe));
}

fn current(criterion: &mut Criterion, bench: &Bench) {
    let api = bench.driver.api();
    let push = api.cuCtxPushCurrent().expect("every driver");
    let pop = api.cuCtxPopCurrent().expect("every driver");
    let context = bench.context.as_raw();
    let raw = || {
        // SAFETY: the context is alive.
        ok(unsafe { push(context) });
        let mut popped = ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        ok(unsafe { pop(&raw mut popped) });
    };
    let safe = || drop(bench.context.make_current().expect("a live context"));
    bench.compare(criterion, "make current", |calls| timed(calls, raw), |calls| timed(calls, safe));
}

/// A partition that was there before, against what the driver takes to make and destroy one. The
/// driver leaks 4 MiB each time, so that there are few of these.
fn acquire(criterion: &mut Criterion, bench: &Bench) {
    let device = bench.driver.device(0).expect("a device");
    let sms = device.resources().sm().expect("a driver with green contexts");
    let acquire = || {
        let group = sms.split([24]).expect("it fits").groups.remove(0);
        let context = device.create_context(group).expect("a context");
        context.create_stream(StreamOptions::default()).expect("a stream")
    };
    drop(acquire());
    let mut measured = false;
    let mut group = criterion.benchmark_group("partition");
    group.bench_function("recycled acquire of context and stream", |bencher| {
        measured = true;
        bencher.iter_custom(|iterations| {
            (0..iterations)
                .map(|_| {
                    let start = Instant::now();
                    let stream = acquire();
                    let time = start.elapsed();
                    drop(stream);
                    time
                })
                .sum()
        });
    });
    group.finish();
    if !measured {
        return;
    }
    const CONTEXTS: usize = 20;
    device.release_idle();
    let made = median((0..CONTEXTS).map(|_| {
        let start = Instant::now();
        let stream = acquire();
        let time = start.elapsed().as_nanos() as f64;
        drop(stream);
        device.release_idle();
        time
    }));
    drop(acquire());
    let recycled = median((0..CONTEXTS * 100).map(|_| {
        let start = Instant::now();
        let stream = acquire();
        let time = start.elapsed().as_nanos() as f64;
        drop(stream);
        time
    }));
    println!("partition: made {made:.0} ns, recycled {recycled:.0} ns");
    let ratio = serde_json::json!({
        "call": "partition acquire", "made_ns": made, "recycled_ns": recycled,
    });
    bench.ratios.borrow_mut().push(ratio);
}

/// The bookkeeping alone: no driver call is in it.
fn ledger(criterion: &mut Criterion, bench: &Bench) {
    let device = bench.driver.device(0).expect("a device");
    let sms = device.resources().sm().expect("a driver with green contexts");
    criterion.bench_function("ledger: plan 4 groups", |bencher| {
        bencher.iter(|| sms.plan([8, 16, 24, 40]).expect("it fits"));
    });
    criterion.bench_function("ledger: split into 4 groups, and back", |bencher| {
        bencher.iter(|| sms.split([8, 16, 24, 40]).expect("it fits"));
    });
    let raw = bench.stream.as_raw();
    criterion.bench_function("registry: find a stream", |bencher| {
        bencher.iter(|| bench.driver.find_stream(black_box(raw)).expect("it lives"));
    });
}

fn all(criterion: &mut Criterion) {
    let bench = Bench::new().expect("a driver to measure");
    eprintln!("measured on: {}", bench.driver.info());
    load(criterion, &bench);
    stream(criterion, &bench);
    event(criterion, &bench);
    launch(criterion, &bench);
    current(criterion, &bench);
    acquire(criterion, &bench);
    ledger(criterion, &bench);

    if let Some(path) = std::env::var_os("GREEN_CTX_RATIOS") {
        let device = bench.driver.device(0).and_then(|device| device.name()).expect("a device");
        let driver = bench.driver.info().to_string();
        let ratios = bench.ratios.take();
        let report = serde_json::json!({ "driver": driver, "device": device, "calls": ratios });
        std::fs::write(path, format!("{report:#}\n")).expect("the file can be written");
    }
}

criterion_group! {
    name = calls;
    config = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .without_plots();
    targets = all
}
criterion_main!(calls);

//! Measures how much slower the safe layer becomes when two threads make the same calls at the same time, compared
//! with the raw calls.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use green_ctx::sys::{CUevent, CUevent_flags, CUstream, CUstream_flags};
use green_ctx::{StreamOptions, context::Context, event::EventOptions};
use serde_json::json;

use crate::runner::{Runner, interleaved, median};
use crate::{Bench, ok, timed};

const THREADS: usize = 2;
/// Calls per thread in a batch. The batch is long enough for the threads to overlap.
const BATCH: u64 = 256;
/// Batches of each arm.
const ROUNDS: usize = 200;
const ARMS: [&str; 4] = ["raw on one thread", "safe on one", "raw on two", "safe on two"];

pub(crate) fn all(runner: &mut Runner<'_>, bench: &Bench) {
    events(runner, bench);
    let device = bench.driver.device(0).expect("a device");
    let sms = device.resources().sm().expect("a driver with green contexts");
    let groups = sms.split([16, 16]).expect("it fits").groups;
    let partitions: Vec<Context> =
        groups.into_iter().map(|group| device.create_context(group).expect("a context")).collect();
    streams(runner, bench, "two threads: stream, own", |thread| &partitions[thread]);
    streams(runner, bench, "two threads: stream, shared", |_| &partitions[0]);
    current(runner, &partitions);
}

/// Measures events, which the driver creates only while a context is current. The first comparison runs with the
/// primary context current. The second runs without a current context, so each call pushes and pops one, in both
/// arms alike.
fn events(runner: &mut Runner<'_>, bench: &Bench) {
    let device = bench.driver.device(0).expect("a device");
    let primary = device.primary_context().expect("a primary context");
    let create = bench.driver.api().cuEventCreate().expect("every driver");
    let destroy = bench.driver.api().cuEventDestroy().expect("every driver");
    let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
    let make = || {
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: `event` is a live local, and a context is current.
        ok(unsafe { create(&raw mut event, flags) });
        event
    };
    // SAFETY: each event was created above and is destroyed once.
    let end = |event: CUevent| ok(unsafe { destroy(event) });
    let safe_event = || drop(device.create_event(EventOptions::default()).expect("an event"));

    let raw = |_: usize| {
        let _current = primary.make_current().expect("a live context");
        timed(BATCH, || end(make()))
    };
    let safe = |_: usize| {
        let _current = primary.make_current().expect("a live context");
        timed(BATCH, safe_event)
    };
    compare(runner, "two threads: event", &raw, &safe);

    let (push, pop) = (bench.driver.api().cuCtxPushCurrent(), bench.driver.api().cuCtxPopCurrent());
    let (push, pop) = (push.expect("every driver"), pop.expect("every driver"));
    let raw = |_: usize| {
        let context = primary.as_raw();
        timed(BATCH, || {
            // SAFETY: the context is alive.
            ok(unsafe { push(context) });
            let event = make();
            let mut popped = ptr::null_mut();
            // SAFETY: `popped` is a live local.
            ok(unsafe { pop(&raw mut popped) });
            end(event);
        })
    };
    let safe = |_: usize| timed(BATCH, safe_event);
    compare(runner, "two threads: event, none current", &raw, &safe);
}

fn streams<'a>(
    runner: &mut Runner<'_>,
    bench: &Bench,
    name: &str,
    context: impl Fn(usize) -> &'a Context + Sync,
) {
    let create = bench.driver.api().cuGreenCtxStreamCreate().expect("CUDA 12.5");
    let destroy = bench.driver.api().cuStreamDestroy().expect("every driver");
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    let raw = |thread: usize| {
        let green = context(thread).as_raw_green().expect("a green context");
        timed(BATCH, || {
            let mut stream: CUstream = ptr::null_mut();
            // SAFETY: the context is alive, and `stream` is a live local.
            ok(unsafe { create(&raw mut stream, green, flags, 0) });
            // SAFETY: the stream was created above and is destroyed once.
            ok(unsafe { destroy(stream) });
        })
    };
    let safe = |thread: usize| {
        let context = context(thread);
        timed(BATCH, || drop(context.create_stream(StreamOptions::default()).expect("a stream")))
    };
    compare(runner, name, &raw, &safe);
}

/// Measures making a context current, which creating an event needs.
fn current(runner: &mut Runner<'_>, partitions: &[Context]) {
    let api = partitions[0].device().driver().api();
    let push = api.cuCtxPushCurrent().expect("every driver");
    let pop = api.cuCtxPopCurrent().expect("every driver");
    let raw = |thread: usize| {
        let context = partitions[thread].as_raw();
        timed(BATCH, || {
            // SAFETY: the context is alive.
            ok(unsafe { push(context) });
            let mut popped = ptr::null_mut();
            // SAFETY: `popped` is a live local.
            ok(unsafe { pop(&raw mut popped) });
        })
    };
    let safe = |thread: usize| {
        let context = &partitions[thread];
        timed(BATCH, || drop(context.make_current().expect("a live context")))
    };
    compare(runner, "two threads: make current", &raw, &safe);
}

type Side<'a> = &'a (dyn Fn(usize) -> Duration + Sync);

/// Measures both sides on one thread and on two. A side runs a batch on the thread with the given number and
/// returns the batch's time.
fn compare(runner: &mut Runner<'_>, name: &str, raw: Side<'_>, safe: Side<'_>) {
    if !runner.picks(name) {
        return;
    }
    let turns = Turns::default();
    let [raw_one, safe_one, raw_two, safe_two] = thread::scope(|scope| {
        scope.spawn(|| turns.follow(1, raw, safe));
        let values = interleaved(ROUNDS, |arm| {
            let time = turns.lead(arm, raw, safe);
            time / BATCH as f64
        });
        turns.end();
        values
    });
    let loss = |two: &[f64], one: &[f64]| median(two.iter().zip(one).map(|(two, one)| two / one));
    let (raw_loss, safe_loss) = (loss(&raw_two, &raw_one), loss(&safe_two, &safe_one));
    let to_raw = safe_loss / raw_loss;
    let times = [raw_one, safe_one, raw_two, safe_two].map(median);
    let [raw_one, safe_one, raw_two, safe_two] = times;
    let shown: Vec<String> =
        ARMS.iter().zip(times).map(|(arm, time)| format!("{arm} {time:.1} ns")).collect();
    runner.line(format_args!("{name:<28} {}", shown.join("  ")));
    runner.line(format_args!(
        "{:<28} loss raw {raw_loss:.2} ×  loss safe {safe_loss:.2} ×  safe's to raw's {to_raw:.2} ×",
        ""
    ));
    runner.found(json!({
        "call": name, "raw_one_ns": raw_one, "safe_one_ns": safe_one, "raw_two_ns": raw_two,
        "safe_two_ns": safe_two, "added_one_ns": safe_one - raw_one,
        "added_two_ns": safe_two - raw_two, "raw_loss": raw_loss, "safe_loss": safe_loss,
        "safe_loss_to_raw_loss": to_raw,
    }));
}

/// Makes a second thread run the same arm as the first, at the same time.
#[derive(Default)]
struct Turns {
    /// The arm to run next, or `END`.
    arm: AtomicU32,
    /// The turn to which `arm` belongs.
    turn: AtomicUsize,
    /// The number of arrivals at the start and at the end of a turn, over all turns.
    started: AtomicUsize,
    ended: AtomicUsize,
    /// The second thread's time in this turn, in nanoseconds.
    time: AtomicU64,
}

const END: u32 = u32::MAX;

impl Turns {
    /// Runs a batch of an arm, on both threads if the arm is for two. Returns the mean time of the threads that ran
    /// it, in nanoseconds.
    fn lead(&self, arm: usize, raw: Side<'_>, safe: Side<'_>) -> f64 {
        let turn = self.turn.load(Ordering::Relaxed) + 1;
        self.arm.store(arm as u32, Ordering::Relaxed);
        self.turn.store(turn, Ordering::Release);
        let own = self.take_part(0, turn, arm, raw, safe).as_nanos() as f64;
        if arm < 2 { own } else { (own + self.time.load(Ordering::Relaxed) as f64) / 2.0 }
    }

    fn end(&self) {
        self.arm.store(END, Ordering::Relaxed);
        self.turn.fetch_add(1, Ordering::Release);
    }

    fn follow(&self, thread: usize, raw: Side<'_>, safe: Side<'_>) {
        for turn in 1.. {
            wait_until(|| self.turn.load(Ordering::Acquire) == turn);
            let arm = self.arm.load(Ordering::Relaxed);
            if arm == END {
                return;
            }
            self.take_part(thread, turn, arm as usize, raw, safe);
        }
    }

    /// Runs one turn on one thread. Both threads begin and leave a turn together, so that neither gets ahead.
    fn take_part(
        &self,
        thread: usize,
        turn: usize,
        arm: usize,
        raw: Side<'_>,
        safe: Side<'_>,
    ) -> Duration {
        let side = if arm.is_multiple_of(2) { raw } else { safe };
        let takes_part = thread == 0 || arm >= 2;
        meet(&self.started, turn);
        let time = if takes_part { side(thread) } else { Duration::ZERO };
        if thread > 0 {
            self.time.store(time.as_nanos() as u64, Ordering::Relaxed);
        }
        meet(&self.ended, turn);
        time
    }
}

/// Waits until all threads have arrived in this turn.
fn meet(arrived: &AtomicUsize, turn: usize) {
    arrived.fetch_add(1, Ordering::AcqRel);
    wait_until(|| arrived.load(Ordering::Acquire) >= turn * THREADS);
}

/// Spins until `done`, because waking a sleeping thread takes longer than a batch. Yields now and then, for
/// machines with fewer processors than threads.
fn wait_until(done: impl Fn() -> bool) {
    for spins in 0u32.. {
        if done() {
            return;
        }
        if spins % (1 << 18) == (1 << 18) - 1 {
            thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

//! Measures a call, with Criterion's samples and with interleaved batches of all sides.

use std::fmt;
use std::hint::black_box;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use criterion::Criterion;
use serde_json::{Value, json};

/// Calls between two clean-ups, which are not timed. A driver queues this number of launches without making the
/// caller wait, and little drifts between the two batches of a pair.
pub(crate) const BATCH: u64 = 32;

/// The first batches of a slice find cold caches, so they must be few. A machine's speed changes between slices.
const ROUNDS_PER_SLICE: usize = 10;

/// The number of pairs of batches behind a ratio.
const PAIRS: usize = 4000;

/// One side of a comparison. It makes the given number of calls and returns their time.
pub(crate) type Side<'a> = &'a mut dyn FnMut(u64) -> Duration;

/// Measures calls and collects the results.
pub(crate) struct Runner<'a> {
    /// `None` in a quick run.
    criterion: Option<&'a mut Criterion>,
    filter: Option<String>,
    /// True if standard output is for the JSON alone.
    json: bool,
    found: Vec<Value>,
}

impl<'a> Runner<'a> {
    /// Creates a runner that lets Criterion sample each side before the interleaved batches.
    pub(crate) fn sampling(criterion: &'a mut Criterion) -> Runner<'a> {
        Runner { criterion: Some(criterion), filter: None, json: false, found: Vec::new() }
    }

    /// Creates a runner for interleaved batches alone, if the environment or the command line requests it.
    pub(crate) fn quick() -> Option<Runner<'static>> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let json = arguments.iter().any(|argument| argument == "--json");
        if !json && std::env::var_os("GREEN_CTX_QUICK").is_none() {
            return None;
        }
        let filter = arguments.into_iter().find(|argument| !argument.starts_with('-'));
        Some(Runner { criterion: None, filter, json, found: Vec::new() })
    }

    /// Returns whether only interleaved batches are run.
    pub(crate) fn is_quick(&self) -> bool {
        self.criterion.is_none()
    }

    /// Compares a call through the function table with the same call through the safe interface.
    pub(crate) fn compare(
        &mut self,
        name: &str,
        mut raw: impl FnMut(u64) -> Duration,
        mut safe: impl FnMut(u64) -> Duration,
    ) {
        if !self.sample(name, &mut [("raw", &mut raw), ("safe", &mut safe)]) {
            return;
        }
        let pairs = if self.is_quick() { PAIRS / 2 } else { PAIRS };
        let [raw, safe] = interleaved(pairs, |side| {
            let batch = if side == 0 { raw(BATCH) } else { safe(BATCH) };
            batch.as_nanos() as f64 / BATCH as f64
        });
        let added = median(raw.iter().zip(&safe).map(|(raw, safe)| safe - raw));
        let (raw, safe) = (median(raw), median(safe));
        let percent = added / raw * 100.0;
        self.line(format_args!(
            "{name:<28} raw {raw:8.1} ns  safe {safe:8.1} ns  added {added:6.1} ns  {percent:5.1} %"
        ));
        self.found(json!({
            "call": name, "raw_ns": raw, "safe_ns": safe, "added_ns": added,
            "added_percent": percent,
        }));
    }

    /// Measures a call that has no counterpart. `calls` is the number of calls between two readings of the clock.
    pub(crate) fn single<T>(&mut self, name: &str, calls: u64, mut call: impl FnMut() -> T) {
        let mut side = |calls| {
            let start = Instant::now();
            (0..calls).for_each(|_| drop(black_box(call())));
            start.elapsed()
        };
        if !self.sample(name, &mut [("safe", &mut side)]) {
            return;
        }
        const BATCHES: usize = 200;
        let time = median((0..BATCHES).map(|batch| {
            if batch % ROUNDS_PER_SLICE == 0 {
                end_slice();
            }
            side(calls).as_nanos() as f64 / calls as f64
        }));
        self.line(format_args!("{name:<40} {time:8.1} ns"));
        self.found(json!({ "call": name, "safe_ns": time }));
    }

    /// Lets Criterion sample each side, unless the run is quick. Returns whether the filter selects this call.
    pub(crate) fn sample(&mut self, name: &str, sides: &mut [(&str, Side<'_>)]) -> bool {
        let Some(criterion) = &mut self.criterion else { return self.picks(name) };
        let mut picked = false;
        let mut group = criterion.benchmark_group(name);
        for (side, batch) in sides {
            group.bench_function(*side, |bencher| {
                picked = true;
                bencher.iter_custom(|iterations| in_batches(iterations, batch));
            });
        }
        group.finish();
        picked
    }

    /// Returns whether the filter of a quick run selects this call. Criterion does not report its filter.
    pub(crate) fn picks(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter))
    }

    /// Prints a line of the table.
    pub(crate) fn line(&self, line: fmt::Arguments<'_>) {
        if !self.json {
            println!("{line}");
        }
    }

    /// Stores the results of a call.
    pub(crate) fn found(&mut self, figures: Value) {
        self.found.push(figures);
    }

    /// Writes the results as JSON, if requested.
    pub(crate) fn finish(&mut self, device: &str, driver: &str) {
        let calls = std::mem::take(&mut self.found);
        let report = json!({ "driver": driver, "device": device, "calls": calls });
        if self.json {
            println!("{report:#}");
        }
        if let Some(path) = std::env::var_os("GREEN_CTX_RATIOS") {
            std::fs::write(path, format!("{report:#}\n")).expect("the file can be written");
        }
    }
}

fn in_batches(iterations: u64, side: &mut dyn FnMut(u64) -> Duration) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let batch = left.min(BATCH);
        total += side(batch);
        left -= batch;
    }
    total
}

/// Measures several sides in turn and returns their values. Every second round runs in reverse order, because the
/// later sides find warmer caches.
pub(crate) fn interleaved<const SIDES: usize>(
    rounds: usize,
    mut measure: impl FnMut(usize) -> f64,
) -> [Vec<f64>; SIDES] {
    let mut values = [(); SIDES].map(|()| Vec::with_capacity(rounds));
    for round in 0..rounds {
        if round % ROUNDS_PER_SLICE == 0 {
            end_slice();
        }
        for place in 0..SIDES {
            let side = if round % 2 == 0 { place } else { SIDES - 1 - place };
            values[side].push(measure(side));
        }
    }
    values
}

/// Ends a time slice if `green-ctx-bench compare` runs this build, and waits for the next slice.
pub(crate) fn end_slice() {
    if std::env::var_os("GREEN_CTX_SLICES").is_some() {
        print!(".");
        std::io::stdout().flush().expect("`compare` reads");
        std::io::stdin().read_exact(&mut [0]).expect("`compare` answers");
    }
}

pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

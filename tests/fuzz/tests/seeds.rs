//! Fixed seeds over all parts and driver versions: on one thread, with faults, and on eight threads. `cargo
//! xtask fuzz` continues with more seeds.

use std::time::Duration;

use green_ctx_fuzz::operation::Choice;
use green_ctx_fuzz::program;
use green_ctx_fuzz::runner::{self, Mode, Options};
use green_ctx_fuzz::shrink::shrink;

/// Runs seeds. Panics at the first that breaks the promise, with the reduced program if it can be shrunk.
fn clean(mode: Mode, seeds: u64, operations: usize) {
    let options = Options {
        mode,
        first: 0,
        seeds,
        // A slow machine runs fewer seeds.
        at_most: Some(Duration::from_secs(12)),
        operations,
        choice: Choice::default(),
        workers: std::thread::available_parallelism().map_or(1, Into::into),
        patience: Duration::from_secs(20),
    };
    let report = runner::explore(&options, |_, _| {});
    let Some(found) = report.found else {
        // A tenth is left on a machine that is 40 times slower than two cores of 2026.
        assert!(report.seeds >= seeds / 10, "{mode:?}: only {} of {seeds} seeds ran", report.seeds);
        return;
    };
    let (seed, mut failure) = (found.seed, found.failure);
    let mut text = String::new();
    if program::can_shrink(mode, &failure) {
        let plan = runner::plan(&options, seed);
        let (plan, shrunk) = shrink(plan, failure, &Default::default());
        (text, failure) = (program::print(&plan, &shrunk), shrunk);
    }
    panic!("seed {seed} of {operations} operations ({mode:?}): {}\n{text}", failure.violation);
}

#[test]
fn seeds_keep_the_promise() {
    clean(Mode::Plain, 360, 1000);
}

#[test]
fn seeds_with_faults_keep_the_promise() {
    clean(Mode::Faults, 180, 1000);
}

#[test]
fn seeds_on_threads_keep_the_promise() {
    clean(Mode::Threads, 24, 1600);
}

/// A seed determines its operations, whatever else runs in the process.
#[test]
fn one_seed_is_one_run() {
    let plan = |seed| green_ctx_fuzz::run::Plan::of(seed, 500, &Choice::default());
    for seed in 0..12 {
        assert_eq!(plan(seed).operations, plan(seed).operations);
    }
}

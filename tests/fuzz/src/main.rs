//! `green-ctx-fuzz`: runs seeds until one breaks the promise, and prints that one as a program.

use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use green_ctx_fuzz::operation::{Choice, Kind};
use green_ctx_fuzz::program;
use green_ctx_fuzz::runner::{self, Found, Mode, Options};
use green_ctx_fuzz::shrink::shrink;

/// Random operations on simulated drivers, checked by a model of who may use which SM.
#[derive(Parser)]
#[command(name = "green-ctx-fuzz")]
struct Arguments {
    /// Start no more seeds after this many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// The first seed; without --seconds and --seeds, the only one
    #[arg(long)]
    seed: Option<u64>,
    /// The maximum number of seeds
    #[arg(long)]
    seeds: Option<u64>,
    /// The number of operations per seed, over all its threads. The result counts those that had something to do
    #[arg(long, default_value_t = 4000)]
    operations: usize,
    /// Whether driver calls fail, and on how many threads a seed runs
    #[arg(long, value_enum, default_value_t = ModeArgument::Mixed)]
    mode: ModeArgument,
    /// Kinds of operations to leave out, separated by commas
    #[arg(long, value_delimiter = ',')]
    without: Vec<Kind>,
    /// The number of seeds to run at the same time; by default the number of cores
    #[arg(long)]
    workers: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArgument {
    /// One thread, and no driver call is made to fail
    Plain,
    /// One thread, and driver calls fail
    Faults,
    /// Eight threads on one driver
    Threads,
    /// Seven of ten seeds plain, two with faults and one with threads
    Mixed,
}

/// The time without progress after which a seed counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let alone = arguments.seed.is_some() && arguments.seconds.is_none();
    let endless = if arguments.seconds.is_some() { u64::MAX } else { 1000 };
    let options = Options {
        mode: match arguments.mode {
            ModeArgument::Plain => Mode::Plain,
            ModeArgument::Faults => Mode::Faults,
            ModeArgument::Threads => Mode::Threads,
            ModeArgument::Mixed => Mode::Mixed,
        },
        first: arguments.seed.unwrap_or(0),
        seeds: arguments.seeds.unwrap_or(if alone { 1 } else { endless }),
        at_most: arguments.seconds.map(Duration::from_secs),
        operations: arguments.operations,
        choice: Choice { faults: false, without: arguments.without },
        workers: arguments
            .workers
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)),
        patience: PATIENCE,
    };
    let report = runner::explore(&options, |seeds, operations| {
        eprintln!("{seeds} seeds, {operations} operations");
    });
    println!("{}", report.table);
    let rate = report.table.tried() as f64 / report.took.as_secs_f64().max(1e-9);
    println!(
        "{} seeds clean, {} operations in {:.1} s, {rate:.0} per second",
        report.seeds,
        report.table.tried(),
        report.took.as_secs_f64()
    );
    if let Some(found) = report.found {
        explain(&options, found);
        return ExitCode::FAILURE;
    }
    let failing = report.table.failing();
    if failing.is_empty() {
        return ExitCode::SUCCESS;
    }
    let names: Vec<_> = failing.iter().map(|kind| kind.name()).collect();
    println!("these operations hardly ever succeed, so they test little: {}", names.join(", "));
    ExitCode::FAILURE
}

/// Prints a failing seed as a short program.
fn explain(options: &Options, Found { seed, mode, failure }: Found) {
    println!("seed {seed} ({mode:?}), operation {}: {}", failure.operations, failure.violation);
    println!(
        "to repeat: cargo xtask fuzz --seed {seed} --mode {} --operations {}{}",
        format!("{mode:?}").to_lowercase(),
        options.operations,
        without(&options.choice.without)
    );
    if !program::can_shrink(mode, &failure) {
        return;
    }
    let plan = runner::plan(&Options { mode, ..options.clone() }, seed);
    let (plan, failure) = shrink(plan, failure, &AtomicU64::new(0));
    println!("{}", program::print(&plan, &failure));
}

fn without(kinds: &[Kind]) -> String {
    if kinds.is_empty() {
        return String::new();
    }
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    format!(" --without {}", names.join(","))
}

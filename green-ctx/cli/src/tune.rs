//! `green-ctx tune`: measures jobs beside each other, and says how to divide the device, or not to.

mod progress;
mod question;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx::{Device, resource::Granularity};
use green_ctx_report::{
    DeviceObject, Tuning, heading, machine_of, tuning_lines, tuning_svg, tuning_table,
};
use green_ctx_tune::{self as tune, ArmKind, Outcome as Tuned, RequestError, Store, TuneError};

use self::progress::Bar;
use self::question::Question;
use crate::Options;
use crate::failure::{Failure, NOT_VERIFIED};
use crate::jobs::{self, Builder};
use crate::output::Outcome;
use crate::picture::Picture;

pub(crate) const HELP: &str = "Jobs, each one iteration of it captured in a graph:
    gemm[:N]       a product of N x N matrices; by cuBLAS where it is found
    gemv[:N]       a product of an N x N matrix with a vector: bound by memory
    copy[:MIB]     reads and writes so many MiB: bound by memory
    small[:N]      N small kernels, one after the other
    attention[:N]  exponentials and products over a sequence of N, as attention has
  A job's name in other options is its kind; of several of one kind, the kind with its size: gemm4096.

Arrivals: closed:DEPTH, rate:HZ, poisson:HZ:SEED, trace:FILE with the seconds of each arrival on a line.

Goals:
    throughput                    the most of all jobs, each by its rate alone (the default)
    makespan                      the least time for one iteration of all
    keep:JOB:p99:500us            the most of the others while JOB's p99 is at most 500 us
    least:JOB:p99:keep:OTHER:0.8  the smallest p99 of JOB while OTHER keeps 0.8 of its rate alone

Examples:
  green-ctx tune --job gemm --job copy --svg gemm-copy.svg
  green-ctx tune --job small --job gemm:8192 --goal keep:small:p99:500us --out small.json
  green-ctx tune --show small.json

Without a GPU the jobs run in a model of co-running jobs, which every output then says.";

/// What the sentence of a verdict says of jobs in the model.
const MARK: &str = " (By a model of co-running jobs: there is no GPU.)";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A job, for example gemm or gemm:8192; two to four of them.
    #[arg(long = "job", value_name = "NAME[:SIZE]", required_unless_present = "show")]
    jobs: Vec<jobs::Spec>,
    /// When iterations of a job are due: closed:2 unless it is given, closed:1 for the job of a percentile.
    #[arg(long = "arrival", value_name = "JOB=ARRIVAL")]
    arrivals: Vec<String>,
    /// What is to be best.
    #[arg(long, value_name = "GOAL", default_value = "throughput")]
    goal: tune::Goal,
    /// How many seconds tuning may take: 19 for two jobs, and half of that more for each further one.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    budget: Option<f64>,
    /// SMs that a job must have for itself, as in gemm=32. With a floor only partitions are chosen.
    #[arg(long = "floor", value_name = "JOB=SMS")]
    floors: Vec<String>,
    /// Tries counts of SMs in steps of so many, rounded up to what the device can give.
    #[arg(
        long,
        value_name = "SMS",
        default_value_t = 1,
        value_parser = crate::request::count,
        allow_negative_numbers = true
    )]
    step: u32,
    /// Leaves out arms of a kind: sequential, streams, priority or partition.
    #[arg(long, value_name = "KIND")]
    leave_out: Vec<ArmKind>,
    /// The library libcublas.so, or its folder, where it is not found by itself.
    #[arg(long, value_name = "PATH")]
    cublas: Option<PathBuf>,
    /// Shows every arm that was tried, and not only the best few.
    #[arg(long)]
    all: bool,
    /// Keeps what was found.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draws a point for each arm: what it brings to one job and to the others.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Shows what a file keeps, and measures nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["jobs", "arrivals", "goal", "budget", "floors", "step", "leave_out", "cublas", "out"])]
    show: Option<PathBuf>,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    // What is wrong with the arguments is said before minutes are spent on measuring.
    let asked = match &arguments.show {
        Some(file) => Err(file),
        None => Ok((Question::read(arguments)?, options.driver.device(options.device)?)),
    };
    let picture = arguments.svg.clone().map(Picture::open).transpose()?;
    let store = arguments.out.as_ref().map(Store::new);
    let failed = |store: &Store, source| Failure::File { path: store.path().to_owned(), source };
    if let Some(store) = &store {
        store.can_save().map_err(|source| failed(store, source))?;
    }
    let outcome = match &asked {
        Ok((question, device)) => measure(device, arguments, question)?,
        Err(file) => Store::new(file).read().map_err(|miss| Failure::Request(miss.to_string()))?,
    };
    if let Some(picture) = picture {
        picture.write(&tuning_svg(&outcome))?;
    }
    let mut files = match &store {
        Some(store) if store.save(&outcome).map_err(|source| failed(store, source))? => {
            format!("kept in  {}\n", store.path().display())
        }
        Some(_) => "not kept: files are read-only\n".to_owned(),
        None => String::new(),
    };
    if let Some(path) = &arguments.svg {
        files.push_str(&format!("picture  {}\n", path.display()));
    }
    let on = match &asked {
        Ok((_, device)) => (Some(device.driver().info()), Some(DeviceObject::of(device)?)),
        Err(_) => machine_of(&outcome),
    };
    let status = if outcome.verdict.meets { 0 } else { NOT_VERIFIED };
    if options.json {
        return Outcome::json(&Tuning::of(on, &outcome), status);
    }
    let heading = on.0.zip(on.1).map_or_else(String::new, |(driver, on)| heading(&driver, &on));
    let answer = Outcome { text: heading + &text(arguments, &outcome) + &files, status };
    Ok(match &asked {
        Ok((_, device)) => answer.marked(options, device.driver()),
        Err(_) => answer,
    })
}

/// What is printed of an outcome below the heading.
fn text(arguments: &Arguments, outcome: &Tuned) -> String {
    let mut text = format!("\n{}\n\n", outcome.verdict.sentence);
    text.push_str(&tuning_table(outcome, arguments.all));
    text.push_str(&format!("\n{}", tuning_lines(outcome)));
    for note in &outcome.notes {
        text.push_str(&format!("Note: {note}.\n"));
    }
    if !outcome.complete {
        text.push_str("Tuning was interrupted: this is the best so far.\n");
    }
    text
}

/// Measures on the device or, without a GPU, in the model.
fn measure(device: &Device, arguments: &Arguments, question: &Question) -> Result<Tuned, Failure> {
    let interrupted = interruption();
    let mut bar = Bar::new();
    let mut go_on = |progress: &tune::Progress<'_>| {
        bar.show(progress);
        !interrupted.load(Ordering::Relaxed)
    };
    let request = &question.request;
    if device.driver().is_simulated() {
        let pieces = device.resources().sm()?.unit_sizes(Granularity::default())?;
        let mut model = tune::Model::new(pieces, question.models(pieces), 1);
        let jobs = &question.profiles();
        let mut outcome = tune::with(&mut model, jobs, pieces, request, &mut go_on)
            .map_err(|error| failure(error, |never| match never {}))?;
        outcome.verdict.sentence.push_str(MARK);
        return Ok(outcome);
    }
    let builder = Builder::new(device, arguments.cublas.as_deref())?;
    let mut jobs = question.jobs(&builder)?;
    let mut outcome = tune::run(device, &mut jobs, request, &mut go_on)
        .map_err(|error| failure(error, Failure::Library))?;
    if let (Some(machine), Some(version)) = (&mut outcome.machine, builder.cublas_version()?) {
        machine.libraries.insert("cublas".to_owned(), version);
    }
    Ok(outcome)
}

/// A job that cannot keep up is a bound that cannot be met, and no wrong use.
fn failure<E>(error: TuneError<E>, failed: impl FnOnce(E) -> Failure) -> Failure {
    match error {
        TuneError::Failed(error) => failed(error),
        TuneError::Request(error @ RequestError::TooFast { .. }) => {
            Failure::NotMet(error.to_string())
        }
        TuneError::Request(error) => Failure::Request(error.to_string()),
    }
}

/// Set when the user interrupts: the search ends with the best so far. A second time ends the program.
fn interruption() -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    // Without a handler an interruption ends the program, which is right too.
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
    interrupted
}

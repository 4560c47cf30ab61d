//! `green-ctx tune`: measures how jobs run together, and recommends whether and how to divide the device.

mod progress;
mod question;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use green_ctx::{Device, Error, Version, resource::Granularity};
use green_ctx_report::{
    DeviceObject, Tuning, heading, machine_of, tuning_lines, tuning_svg, tuning_table,
};
use green_ctx_tune::{self as tune, ArmKind, Outcome as Tuned, RequestError, Store, TuneError};

use self::progress::Bar;
use self::question::Question;
use crate::Options;
use crate::failure::{Failure, NOT_VERIFIED};
use crate::hinted::Hinted;
use crate::jobs::{self, Builder};
use crate::output::Outcome;
use crate::picture::Picture;

pub(crate) const HELP: &str = "Jobs (one iteration of each is captured in a graph):
    gemm[:N]       product of two N x N matrices, by cuBLAS if it is found
    gemv[:N]       product of an N x N matrix and a vector; memory-bound
    copy[:MIB]     copy of MIB MiB of device memory; memory-bound
    small[:N]      N small kernels, one after the other
    attention[:N]  forward pass of attention over N tokens
  Other options name a job by its kind. If there are several of a kind, the name also has the size
  that was given: --job gemm --job gemm:2048 are gemm and gemm2048.

Arrivals:
    closed:DEPTH      DEPTH iterations are always in flight
    rate:HZ           HZ iterations per second, at equal intervals
    poisson:HZ:SEED   HZ iterations per second on average, at random times
    trace:FILE        the times in FILE, in seconds from the start, one per line

Arms (the ways to run all jobs):
    sequential        one after the other, in one stream
    streams           plain streams
    priority          streams with different priorities
    partition         partitions

Goals:
    throughput                    maximise the sum of (rate / rate alone) over all jobs (default)
    makespan                      minimise the time for one iteration of every job
    keep:JOB:p99:500us            maximise the other rates while JOB's p99 latency is at most 500 us
    least:JOB:p99:keep:OTHER:0.8  minimise JOB's p99 latency while OTHER keeps 0.8 of its rate alone
  Other percentiles are p50 or p99.9, and other units of time ms and s.

Examples:
  green-ctx tune --job gemm --job copy --svg gemm-copy.svg
  green-ctx tune --job small --job gemm:8192 --goal keep:small:p99:500us --out small.json
  green-ctx tune --show small.json

Jobs of your own are tuned by green_ctx_torch.tune in Python, and by green_ctx_tune::run in Rust.
Without a GPU, the jobs run in a model; the text, the JSON and the picture say so. The command that
pip installs needs the simulated libcuda.so.1 for this.";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A job, for example gemm or gemm:8192. Repeat the option for two to four jobs. For one job, see green-ctx curve.
    #[arg(long = "job", value_name = "NAME[:SIZE]", required_unless_present = "show", value_parser = jobs::hinted(), hide_possible_values = true)]
    jobs: Vec<jobs::Spec>,
    /// The times at which a job's iterations are due; see Arrivals below. The default is closed:2. If the goal names a
    /// latency percentile of the job, the default is closed:1.
    #[arg(long = "arrival", value_name = "JOB=ARRIVAL")]
    arrivals: Vec<String>,
    /// The quantity to optimise; see Goals below.
    #[arg(long, value_name = "GOAL", default_value = "throughput", value_parser = Hinted::<tune::Goal>::new(["throughput", "makespan", "keep:", "least:"]), hide_possible_values = true)]
    goal: tune::Goal,
    /// The maximum tuning time in seconds. The default is 19.5 for two jobs, and 9.75 more for each further job.
    #[arg(long, value_name = "SECONDS", value_parser = crate::request::seconds, allow_negative_numbers = true)]
    budget: Option<Duration>,
    /// The minimum number of SMs that only this job may use, for example gemm=32. If any job has a floor, the verdict
    /// always recommends partitions.
    #[arg(long = "floor", value_name = "JOB=SMS")]
    floors: Vec<String>,
    /// The step between partition sizes, in SMs, rounded up to whole units of the device.
    #[arg(
        long,
        value_name = "SMS",
        default_value_t = 1,
        value_parser = crate::request::count,
        allow_negative_numbers = true
    )]
    step: u32,
    /// A kind of arm to leave out: sequential, streams, priority or partition; see Arms below.
    #[arg(long, value_name = "KIND", value_parser = Hinted::<ArmKind>::new(ArmKind::ALL.map(ArmKind::as_str)), hide_possible_values = true)]
    leave_out: Vec<ArmKind>,
    /// The path of libcublas.so, or of the folder that contains it. The option is needed only if the system does not
    /// find cuBLAS.
    #[arg(long, value_name = "PATH")]
    cublas: Option<PathBuf>,
    /// Shows every arm that was tried, instead of only the best few arms.
    #[arg(long)]
    all: bool,
    /// Saves the outcome in a file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draws a chart with one point per arm. The chart shows the rate or latency of one job against the rates of the
    /// other jobs.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Shows the outcome that was saved in a file, and measures nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["jobs", "arrivals", "goal", "budget", "floors", "step", "leave_out", "cublas", "out"])]
    show: Option<PathBuf>,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    // Invalid arguments are reported before minutes are spent on measuring.
    let asked = match arguments.show.as_ref().map(Store::new) {
        Some(shown) => Err(shown),
        None => Ok((Question::read(arguments)?, options.driver.device(options.device)?)),
    };
    let picture = arguments.svg.clone().map(Picture::open).transpose()?;
    let store = arguments.out.as_ref().map(Store::new);
    if let Some(picture) = &picture {
        for (option, other) in [("--out", store.as_ref()), ("--show", asked.as_ref().err())] {
            other.iter().try_for_each(|other| picture.differs_from(option, other.path()))?;
        }
    }
    let failed = |store: &Store, source| Failure::File { path: store.path().to_owned(), source };
    if let Some(store) = &store {
        store.can_save().map_err(|source| failed(store, source))?;
    }
    let mut outcome = match &asked {
        Ok((question, device)) => measure(device, arguments, question)?,
        Err(shown) => shown.read().map_err(|miss| Failure::Request(miss.to_string()))?,
    };
    if let Some(picture) = picture {
        picture.write(&tuning_svg(&outcome))?;
    }
    let mut files = match &store {
        Some(store) if store.save(&outcome).map_err(|source| failed(store, source))? => {
            format!("outcome  {}\n", store.path().display())
        }
        Some(_) => {
            let note = "outcome not saved: GREEN_CTX_TUNE_READ_ONLY forbids writing";
            outcome.notes.push(note.to_owned());
            String::new()
        }
        None => String::new(),
    };
    if let Some(path) = &arguments.svg {
        files.push_str(&format!("picture  {}\n", path.display()));
    }
    let on = match &asked {
        Ok((_, device)) => (Some(device.driver().info()), Some(DeviceObject::of(device)?)),
        Err(_) => machine_of(outcome.machine.as_ref()),
    };
    let status = if outcome.verdict.meets { 0 } else { NOT_VERIFIED };
    let heading = match &on {
        (Some(driver), Some(on)) => heading(driver, on) + "\n",
        _ => String::new(),
    };
    if let Some(data) = Outcome::data(options, &Tuning::of(on, &outcome), "arms", status)? {
        return Ok(data);
    }
    let answer = Outcome { text: heading + &text(arguments, &outcome) + &files, status };
    Ok(match &asked {
        Ok((_, device)) => answer.marked(options, device.driver()),
        Err(_) => answer,
    })
}

/// Returns the text that describes an outcome, without the heading.
fn text(arguments: &Arguments, outcome: &Tuned) -> String {
    let mut text = format!("{}\n\n", outcome.verdict.sentence);
    text.push_str(&tuning_table(outcome, arguments.all));
    text.push_str(&format!("\n{}", tuning_lines(outcome)));
    for note in &outcome.notes {
        text.push_str(&format!("Note: {note}.\n"));
    }
    if !outcome.complete {
        text.push_str("Tuning was interrupted: this is the best result so far.\n");
    }
    text
}

/// Measures the jobs on the device, or in the model if the driver is simulated.
fn measure(device: &Device, arguments: &Arguments, question: &Question) -> Result<Tuned, Failure> {
    let request = &question.request;
    if device.driver().is_simulated() {
        has_plans(device)?;
        let pieces = device.resources().sm()?.unit_sizes(Granularity::default())?;
        let mut model = tune::Model::new(pieces, question.models(pieces), 1);
        let jobs = &question.profiles();
        let mut outcome = watched(|go_on| tune::with(&mut model, jobs, pieces, request, go_on))
            .map_err(|error| failure(error, |never| match never {}))?;
        outcome.notes.extend(without_reserve(device)?);
        return Ok(outcome);
    }
    let builder = Builder::new(device, arguments.cublas.as_deref())?;
    let mut jobs = question.jobs(&builder)?;
    let mut outcome = watched(|go_on| tune::run(device, &mut jobs, request, go_on))
        .map_err(|error| failure(error, Failure::Library))?;
    if let (Some(machine), Some(version)) = (&mut outcome.machine, builder.cublas_version()?) {
        machine.libraries.insert("cublas".to_owned(), version);
    }
    Ok(outcome)
}

/// Returns an error if the driver is too old for the plans with which jobs are measured, which a model does not need.
pub(crate) fn has_plans(device: &Device) -> Result<(), Failure> {
    let (needs, found) = (Version::new(12, 5), device.driver().version());
    let call = "a measurement in partitions of several sizes";
    if found < needs { Err(Error::Unsupported { call, needs, found }.into()) } else { Ok(()) }
}

/// Returns a note about the reserve of a device, which the model of the jobs does not know, if there is one.
pub(crate) fn without_reserve(device: &Device) -> Result<Option<String>, Failure> {
    let reserved = device.reserved_sm_count()?;
    Ok((reserved > 0).then(|| {
        format!(
            "the model ignores the reserve of {reserved} SMs: on a GPU, plain streams run on the other SMs, and all floors \
             must fit into the reserve"
        )
    }))
}

/// Converts an error. If a job cannot keep up with its arrivals, the result is [`Failure::NotMet`], not bad usage.
pub(crate) fn failure<E>(error: TuneError<E>, failed: impl FnOnce(E) -> Failure) -> Failure {
    match error {
        TuneError::Failed(error) => failed(error),
        TuneError::Request(error @ (RequestError::TooFast { .. } | RequestError::Interrupted)) => {
            Failure::NotMet(error.to_string())
        }
        TuneError::Request(error) => Failure::Request(error.to_string()),
    }
}

/// Runs a measurement with a progress bar. The measurement ends with the result so far after the first interruption
/// (Ctrl-C). A second interruption ends the program immediately.
pub(crate) fn watched<T>(
    measure: impl FnOnce(&mut dyn FnMut(&tune::Progress<'_>) -> bool) -> T,
) -> T {
    watched_by(&Arc::default(), measure)
}

/// Runs a measurement like [`watched`], with a flag that is set by the first interruption.
pub(crate) fn watched_by<T>(
    interrupted: &Arc<AtomicBool>,
    measure: impl FnOnce(&mut dyn FnMut(&tune::Progress<'_>) -> bool) -> T,
) -> T {
    let flag = Arc::clone(interrupted);
    // If no handler can be installed, an interruption ends the program, which is acceptable.
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
    let mut bar = Bar::new();
    measure(&mut |progress| {
        bar.show(progress);
        !interrupted.load(Ordering::Relaxed)
    })
}

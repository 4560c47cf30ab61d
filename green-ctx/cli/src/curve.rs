//! `green-ctx curve`: measures how a job scales with its SMs.

mod program;

use std::path::PathBuf;
use std::time::Duration;

use green_ctx::Device;
use green_ctx::resource::Granularity;
use green_ctx_report::{CurveObject, DeviceObject, curve_svg, curve_text, heading};
use green_ctx_tune::{self as tune, Curve, CurveRequest};

use crate::Options;
use crate::failure::Failure;
use crate::jobs::{self, Builder};
use crate::output::Outcome;
use crate::picture::Picture;
use crate::tune::{failure, has_plans, watched, without_reserve};

pub(crate) const HELP: &str = "Jobs: as for tune (green-ctx tune --help).

Examples:
  green-ctx curve --job gemm:2048
  green-ctx curve --job attention:8192 --sms 16,32,64 --svg attention.svg
  green-ctx curve --sms 16,32,64 -- python train.py --steps 100
  green-ctx curve --metric '([0-9.]+) tokens/s' --unit tokens/s -- python bench.py

A program after -- runs as with green-ctx run --sms, on each number of SMs in turn (Linux). Its wall
time is measured, including its start, or with --metric a number that it prints. Its output is not
shown; if it fails, the last line of its errors is.

A job of your own is measured by green_ctx_torch.curve in Python, and by green_ctx_tune::curve in Rust.
Without a GPU, a job runs in a model, and the text, the JSON and the picture say so. A program, and the
command that pip installs, then need the simulated libcuda.so.1.";

/// The exit statuses that only a curve of a program has.
pub(crate) const STATUS: &str = "\
  For curve -- PROGRAM also
  2    the program fails in the warm-up or in its first measured run, on the whole device
  126  the program cannot be run
  127  the program is not found";

/// The headings of the options that only one of the two forms has.
const JOB: &str = "Options with --job";
const PROGRAM: &str = "Options with a program";

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("measured").required(true).args(["job", "program"]))]
#[command(override_usage = "\
    green-ctx curve [OPTIONS] --job <NAME[:SIZE]>
       green-ctx curve [OPTIONS] -- <PROGRAM>...")]
pub(crate) struct Arguments {
    /// The job, for example gemm or gemm:2048.
    #[arg(long, value_name = "NAME[:SIZE]", value_parser = jobs::hinted(), hide_possible_values = true)]
    job: Option<jobs::Spec>,
    /// The numbers of SMs to measure, rounded up to whole units. The default is about eight. The whole device is always
    /// measured, and numbers that are not smaller are left out.
    #[arg(long, value_name = "SMS,...", value_delimiter = ',', value_parser = crate::request::count)]
    sms: Option<Vec<u32>>,
    /// The duration of the measurement in seconds. The default is 10.
    #[arg(long, value_name = "SECONDS", value_parser = crate::request::seconds, allow_negative_numbers = true, conflicts_with = "program", help_heading = JOB)]
    budget: Option<Duration>,
    /// The path of libcublas.so, or of the folder that contains it. The option is needed only if the system does not
    /// find cuBLAS.
    #[arg(long, value_name = "PATH", conflicts_with = "program", help_heading = JOB)]
    cublas: Option<PathBuf>,
    #[command(flatten)]
    program: program::ProgramRequest,
    /// Draws the curve, and marks the number of SMs from which on the job is within 10 % of its full speed.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    let mut request = CurveRequest::default();
    if let Some(sms) = &arguments.sms {
        request = request.counts(sms.iter().copied());
    }
    if let Some(budget) = arguments.budget {
        request = request.budget(budget);
    }
    let picture = arguments.svg.clone().map(Picture::open).transpose()?;
    let (device, curve) = match &arguments.job {
        Some(spec) => of_job(options, arguments, spec, &request)?,
        None => program::curve(options, &arguments.program, request)?,
    };
    if let Some(picture) = picture {
        picture.write(&curve_svg(&curve))?;
    }
    let (driver, on) = (device.driver().info(), DeviceObject::of(&device)?);
    let mut text = format!("{}\n{}", heading(&driver, &on), curve_text(&curve));
    let object = CurveObject::of((Some(driver), Some(on)), &curve);
    if let Some(data) = Outcome::data(options, &object, "points", 0)? {
        return Ok(data);
    }
    if let Some(path) = &arguments.svg {
        text.push_str(&format!("picture  {}\n", path.display()));
    }
    Ok(Outcome { text, status: 0 }.marked(options, device.driver()))
}

/// Measures a built-in job, on the device or in the model.
fn of_job(
    options: &Options,
    arguments: &Arguments,
    spec: &jobs::Spec,
    request: &CurveRequest,
) -> Result<(Device, Curve), Failure> {
    let device = options.driver.device(options.device)?;
    let name = spec.to_string();
    let mut notes = None;
    let mut curve = if device.driver().is_simulated() {
        has_plans(&device)?;
        notes = without_reserve(&device)?;
        let pieces = device.resources().sm()?.unit_sizes(Granularity::default())?;
        let mut model = tune::Model::new(pieces, vec![jobs::model(spec, pieces)], 1);
        watched(|go_on| tune::curve_with(&mut model, &name, pieces, request, go_on))
            .map_err(|error| failure(error, |never| match never {}))?
    } else {
        let builder = Builder::new(&device, arguments.cublas.as_deref())?;
        let mut job = builder.job(&name, spec)?;
        watched(|go_on| tune::curve(&device, &mut job, request, go_on))
            .map_err(|error| failure(error, Failure::Library))?
    };
    curve.notes.extend(notes);
    Ok((device, curve))
}

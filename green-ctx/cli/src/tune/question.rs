//! Reads the jobs and the tuning request from the command line.

use std::fs;
use std::path::Path;

use green_ctx_tune::{Arrival, Job, ModelJob, Profile, Request, UnitSizes};

use super::Arguments;
use crate::failure::Failure;
use crate::jobs::{self, Builder, Kind, Spec};

/// The input of a tuning run.
pub(super) struct Question {
    jobs: Vec<Named>,
    pub(super) request: Request,
}

/// A job with a unique name.
pub(super) struct Named {
    profile: Profile,
    spec: Spec,
}

impl Question {
    pub(super) fn read(arguments: &Arguments) -> Result<Question, Failure> {
        let wrong = |reason: String| Failure::Request(reason);
        let mut jobs: Vec<Named> = named(&arguments.jobs);
        for (index, job) in jobs.iter().enumerate() {
            let (name, kind) = (job.profile.name(), job.spec.kind());
            if jobs[..index].iter().any(|other| other.profile.name() == name) {
                return Err(wrong(format!(
                    "two jobs are named {name}; give one another size ({kind}:SIZE)"
                )));
            }
        }
        for text in &arguments.arrivals {
            let (name, arrival) = text.split_once(['=', ':']).ok_or_else(|| {
                wrong(format!(
                    "{text:?} is not a job's arrival pattern; write JOB=ARRIVAL, as in gemm=closed:2"
                ))
            })?;
            let job = find(&mut jobs, name)?;
            let arrival = match arrival.strip_prefix("trace:") {
                Some(file) => trace(Path::new(file))?,
                None => arrival
                    .parse()
                    .map_err(|error| wrong(format!("{name}: {error}, or trace:FILE")))?,
            };
            job.profile = job.profile.clone().arrival(arrival);
        }
        let mut request = Request::new(arguments.goal.clone()).step(arguments.step);
        if let Some(budget) = arguments.budget {
            request = request.budget(budget);
        }
        for text in &arguments.floors {
            let floor =
                text.split_once(['=', ':']).and_then(|(name, sms)| Some((name, sms.parse().ok()?)));
            let (name, sms) = floor.ok_or_else(|| {
                wrong(format!("{text:?} is not a floor; write JOB=SMS, as in gemm=32"))
            })?;
            find(&mut jobs, name)?;
            request = request.floor(name, sms);
        }
        for kind in &arguments.leave_out {
            request = request.leave_out(*kind);
        }
        Ok(Question { jobs, request })
    }

    pub(super) fn profiles(&self) -> Vec<Profile> {
        self.jobs.iter().map(|job| job.profile.clone()).collect()
    }

    /// Returns models of the jobs. An iteration of a model takes approximately as long as an iteration of the job on an
    /// H200.
    pub(super) fn models(&self, pieces: UnitSizes) -> Vec<ModelJob> {
        let model = |job: &Named| {
            let mut model = jobs::model(&job.spec, pieces);
            model.arrival = job.profile.arrival_for(self.request.goal());
            model
        };
        self.jobs.iter().map(model).collect()
    }

    /// Builds the jobs on a device.
    pub(super) fn jobs(&self, builder: &Builder) -> Result<Vec<Job>, Failure> {
        let build = |job: &Named| builder.job(job.profile.name(), &job.spec);
        self.jobs.iter().map(|job| Ok(build(job)?.profile(job.profile.clone()))).collect()
    }
}

/// Names each job after its kind. If several jobs are of the same kind, their names also contain their sizes.
fn named(specs: &[Spec]) -> Vec<Named> {
    let of_kind = |kind: Kind| specs.iter().filter(|spec| spec.kind() == kind).count();
    let name = |spec: &Spec| match (of_kind(spec.kind()), spec.size()) {
        (1, _) | (_, None) => spec.kind().to_string(),
        (_, Some(size)) => format!("{}{size}", spec.kind()),
    };
    let profile = |spec: &Spec| Profile::new(name(spec)).key(spec.to_string());
    specs.iter().map(|spec| Named { profile: profile(spec), spec: *spec }).collect()
}

fn find<'a>(jobs: &'a mut [Named], name: &str) -> Result<&'a mut Named, Failure> {
    let known: Vec<String> = jobs.iter().map(|job| job.profile.name().to_owned()).collect();
    jobs.iter_mut().find(|job| job.profile.name() == name).ok_or_else(|| {
        Failure::Request(format!("there is no job {name}; the jobs are {}", known.join(", ")))
    })
}

/// Reads a trace: one arrival time per line, in seconds.
fn trace(file: &Path) -> Result<Arrival, Failure> {
    let wrong =
        |reason: String| Failure::Request(format!("the trace {}: {reason}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let seconds = lines
        .map(|(number, line)| {
            let second = line.trim().parse::<f64>();
            second.map_err(|_| wrong(format!("line {} is not a number of seconds", number + 1)))
        })
        .collect::<Result<Vec<f64>, Failure>>()?;
    Arrival::trace(seconds).map_err(|error| wrong(error.to_string()))
}

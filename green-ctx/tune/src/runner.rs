//! Runs jobs on a device, and measures them.

mod block;
mod submit;
mod trial;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use green_ctx::context::Context;
use green_ctx::graph::{GraphCache, GraphExec};
use green_ctx::plan::{Plan, PlanRequest, PlanSet, SwitchOptions};
use green_ctx::resource::{Granularity, SmGroup};
use green_ctx::sys::with_sources;
use green_ctx::{Device, Error, Result, Share, SplitRequest, Stream, StreamOptions};

use self::block::StreamJob;
use crate::arm::{Arm, ArmKind};
use crate::arrival::Arrival;
use crate::job::{Job, Work};
use crate::measure::{Block, Measure, Refusal, Sample, Task};
use crate::outcome::{Machine, Outcome};
use crate::request::{Profile, Request, TuneError, with};
use crate::search::Progress;
use green_ctx::resource::UnitSizes;

/// Runs and measures jobs on a device, one arm at a time. The runner holds the device's free SMs while it exists, and
/// creates partitions on these SMs.
pub(crate) struct Runner<'j> {
    primary: Context,
    jobs: &'j mut [Job],
    /// The arrival pattern of each job.
    arrivals: Vec<Arrival>,
    pieces: UnitSizes,
    /// This field is declared before `set` and therefore dropped before `set`. Graph executables hold references to the
    /// contexts of the plans in `set`.
    graphs: GraphCache,
    plans: HashMap<String, Arc<Plan>>,
    set: PlanSet,
    began: Instant,
}

/// The name of the plan that is active before any job runs.
const IDLE: &str = "tune: none";

/// Tunes jobs on the free SMs of a device. The tuner calls `go_on` before each measurement block. If `go_on` returns
/// `false`, tuning ends with the best arm so far.
///
/// The tuner creates partitions on the free SMs and closes them at the end. Other work on the device distorts the
/// result. If the rates drift, the outcome contains a note. The tuner needs CUDA 12.5.
///
/// # Errors
///
/// [`TuneError::Request`] if the request is refused, or if the search ends without an outcome. [`TuneError::Failed`]
/// with the driver's error if the device fails or no SMs are free.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use green_ctx::{Driver, LaunchConfig, Library, sim::Sim};
/// use green_ctx_tune::{self as tune, Goal, Job, Request};
///
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
/// # let kernel = Library::from_ptx(&device, ptx)?.kernel("step")?;
/// let job = |name| {
///     let kernel = kernel.clone();
///     Job::new(name, move |stream| {
///         // SAFETY: the kernel takes no parameters.
///         unsafe { stream.launch(&kernel, LaunchConfig::new(132, 128), ()) }.map_err(Into::into)
///     })
/// };
/// let request = Request::new(Goal::throughput()).budget(Duration::from_secs(1));
/// let outcome = tune::run(&device, &mut [job("decode"), job("prefill")], &request, &mut |_| true)?;
/// println!("{}", outcome.verdict.sentence);
///
/// // This works for every verdict: each job gets a stream.
/// let applied = outcome.apply(&device)?;
/// let _stream = applied.stream("decode");
/// # Ok(())
/// # }
/// ```
pub fn run(
    device: &Device,
    jobs: &mut [Job],
    request: &Request,
    go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
) -> Result<Outcome, TuneError<Error>> {
    let profiles: Vec<Profile> = jobs.iter().map(|job| job.profile.clone()).collect();
    let arrivals = profiles.iter().map(|job| job.arrival_for(request.goal())).collect();
    let mut runner = Runner::new(device, jobs, arrivals).map_err(TuneError::Failed)?;
    let pieces = runner.pieces;
    request.check(&profiles, pieces)?;
    let notes = runner.try_out()?;
    let mut outcome = with(&mut runner, &profiles, pieces, request, go_on)?;
    let machine = Machine::of(device).map_err(TuneError::Failed)?;
    outcome.notes.extend(notes.into_iter().chain(machine.note()));
    outcome.machine = Some(machine);
    Ok(outcome)
}

impl<'j> Runner<'j> {
    /// Creates a runner that holds the device's free SMs. The SMs are not divided yet.
    pub(crate) fn new(
        device: &Device,
        jobs: &'j mut [Job],
        arrivals: Vec<Arrival>,
    ) -> Result<Runner<'j>> {
        let primary = device.primary_context()?;
        let (group, pieces) = free(device)?;
        let whole = PlanRequest::new(IDLE, SplitRequest::new().group("all", ..));
        let set = PlanSet::new(group, whole)?;
        let (graphs, plans) = (GraphCache::new(), HashMap::new());
        Ok(Runner { primary, jobs, arrivals, pieces, graphs, plans, set, began: Instant::now() })
    }

    pub(crate) fn pieces(&self) -> UnitSizes {
        self.pieces
    }

    /// Switches to the plan with this name, and returns the plan. At the first use of a name, prepares the plan from
    /// `request`.
    fn enter(&mut self, request: SplitRequest, name: String) -> Result<Arc<Plan>> {
        let plan = match self.plans.get(&name) {
            Some(plan) => Arc::clone(plan),
            None => {
                let plan = PlanRequest::new(name.as_str(), request);
                let plan = self.set.prepare(plan)?;
                self.plans.insert(name, Arc::clone(&plan));
                plan
            }
        };
        self.set.switch(&plan, SwitchOptions::default())?;
        Ok(plan)
    }

    /// Returns new streams for the jobs of a task.
    fn streams(&mut self, task: &Task, as_applied: bool) -> Result<Vec<(usize, Stream)>> {
        let options = |priority| StreamOptions::default().priority(priority);
        let plain = |priority: &i32| self.primary.create_stream(options(*priority));
        match task {
            &Task::Alone { job, sms: None } => Ok(vec![(job, plain(&0)?)]),
            &Task::Alone { job, sms: Some(sms) } => {
                let name = format!("{job} alone on {sms}");
                let request = request([(job, Share::from(sms))], false);
                let plan = self.enter(request, name)?;
                Ok(vec![(job, stream(&plan, job, 0)?)])
            }
            Task::Together(arm) => {
                let priorities = arm.priorities().iter().enumerate();
                match arm.kind() {
                    ArmKind::Sequential => {
                        let one = plain(&0)?;
                        Ok((0..self.jobs.len()).map(|job| (job, one.clone())).collect())
                    }
                    ArmKind::Streams | ArmKind::Priority => {
                        priorities.map(|(job, priority)| Ok((job, plain(priority)?))).collect()
                    }
                    ArmKind::Partition => {
                        let shares = shares(arm, self.pieces.sms);
                        let name = shares.iter().map(|(_, share)| share.to_string());
                        let mut name = name.collect::<Vec<_>>().join(" | ");
                        if as_applied {
                            name.push_str(", as applied");
                        }
                        let plan = self.enter(request(shares, as_applied), name)?;
                        priorities
                            .map(|(job, priority)| Ok((job, stream(&plan, job, *priority)?)))
                            .collect()
                    }
                }
            }
        }
    }

    /// Returns an executable of the job's graph that runs in the context of the stream. Returns `None` if the job is
    /// not a graph.
    fn executable(&self, job: usize, stream: &Stream) -> Result<Option<GraphExec>, String> {
        let Work::Graph(graph) = &self.jobs[job].work else { return Ok(None) };
        let moved = self.graphs.get(graph, stream.context());
        moved.map(Some).map_err(|error| with_sources(&error))
    }

    /// Returns the reason why a task cannot run. If the task runs several jobs, the reason begins with the name of
    /// `job`.
    fn reason(&self, task: &Task, job: usize, reason: String) -> String {
        match task {
            Task::Alone { .. } => reason,
            Task::Together(_) => format!("{}: {reason}", self.jobs[job].name()),
        }
    }
}

fn failed(error: Error) -> Refusal<Error> {
    match error.is_sticky() {
        true => Refusal::Stop(error),
        false => Refusal::Skip(with_sources(&error)),
    }
}

impl Measure for Runner<'_> {
    type Error = Error;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<Error>> {
        let device = self.primary.device().clone();
        let streams = self.streams(task, block.as_applied).map_err(failed)?;
        let mut executables = Vec::with_capacity(streams.len());
        for (job, stream) in &streams {
            let executable = self.executable(*job, stream);
            executables
                .push(executable.map_err(|reason| Refusal::Skip(self.reason(task, *job, reason)))?);
        }
        let ours: Vec<usize> = streams.iter().map(|(job, _)| *job).collect();
        let arrivals = &self.arrivals;
        let jobs = self.jobs.iter_mut().enumerate().filter(|(job, _)| ours.contains(job));
        let mut jobs: Vec<StreamJob<'_>> = jobs
            .zip(streams)
            .zip(executables)
            .map(|(((place, job), (_, stream)), executable)| {
                let arrival = match block.saturated == Some(place) {
                    true => Arrival::closed(2),
                    false => arrivals[place].clone(),
                };
                StreamJob { job, arrival, stream, executable }
            })
            .collect();
        let running = Running(jobs.iter().map(|job| job.stream.clone()).collect());
        let sample = block::prepare(&mut jobs).and_then(|()| block::run(&device, &mut jobs, block));
        let ended = running.end();
        drop(jobs);
        // A failure of the device takes precedence over the job's own error.
        ended.map_err(failed)?;
        sample.map_err(|block::Failure { job, error }| match error {
            block::Cause::Driver(error) => failed(error),
            block::Cause::Job(error) => {
                Refusal::Skip(self.reason(task, ours[job], with_sources(&*error)))
            }
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn stand_in(&self) -> Option<String> {
        let driver = self.primary.device().driver().info();
        driver.is_simulated().then(|| format!("the {driver}, whose kernels take no real time"))
    }
}

/// Takes the device's free SMs. Returns the SMs as one group, and the sizes of their units.
pub(crate) fn free(device: &Device) -> Result<(SmGroup, UnitSizes)> {
    let split =
        device.resources().sm()?.split(SplitRequest::new().rest("the free part of the device"))?;
    let Some(group) = split.remainder else {
        let reason = "there are no free SMs to divide; close the partitions that hold SMs";
        return Err(Error::InUse(reason.to_owned()));
    };
    let counts = device.resources().sm()?.unit_counts(Granularity::default())?;
    let counts: Vec<u32> = group.unit_indices().iter().map(|unit| counts[*unit]).collect();
    Ok((group, UnitSizes::of(&counts)))
}

/// The streams of a measurement block. Dropping this value waits for the work on the streams, so no work runs during
/// the next block or after the jobs are dropped, even if a job panics.
struct Running(Vec<Stream>);

impl Running {
    /// Waits for the work on every stream, and returns the first error.
    fn end(mut self) -> Result<()> {
        let ends: Vec<Result<()>> = self.0.drain(..).map(|stream| stream.synchronize()).collect();
        ends.into_iter().collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for stream in &self.0 {
            // The next call returns the same error.
            let _ = stream.synchronize();
        }
    }
}

/// Returns the name of a job's group in plans.
fn group(job: usize) -> String {
    format!("job {job}")
}

/// Returns a split request with the jobs' shares. If `as_applied` is true, the SMs are those that a verdict gets.
/// Otherwise, the first job gets units from the front of the device and the other jobs get units from the end, so that
/// arms share contexts.
fn request(shares: impl IntoIterator<Item = (usize, Share)>, as_applied: bool) -> SplitRequest {
    let empty = SplitRequest::new().deterministic(as_applied);
    shares.into_iter().fold(empty, |request, (job, share)| {
        let request = request.group(group(job), share);
        if job == 0 || as_applied { request } else { request.at_end(group(job)) }
    })
}

fn shares(arm: &Arm, sms: u32) -> Vec<(usize, Share)> {
    (0..arm.parts().len()).map(|job| (job, arm.share(job, sms))).collect()
}

fn stream(plan: &Plan, job: usize, priority: i32) -> Result<Stream> {
    let options = StreamOptions::default().priority(priority);
    let partition = plan.partition(&group(job));
    let none = || Error::InvalidRequest(format!("the plan has no SMs for {}", group(job)));
    partition.ok_or_else(none)?.create_stream(options)
}

#[cfg(test)]
mod tests {
    use green_ctx::Driver;
    use green_ctx::sim::Sim;

    use super::*;
    use crate::arm::Part;

    #[test]
    fn a_job_that_fails_in_a_block_ends_the_others() {
        let sim = Sim::new("h200@13.0").expect("a profile");
        let device = Driver::simulated(&sim).and_then(|driver| driver.device(0)).expect("a device");
        let mut left = 3;
        let tired = Job::new("tired", move |_| {
            left -= 1;
            if left < 0 { Err("it has had enough".into()) } else { Ok(()) }
        });
        let mut jobs = [tired, Job::new("b", |_| Ok(()))];
        let arrivals = vec![Arrival::closed(1), Arrival::rate(1.0)];
        let mut runner = Runner::new(&device, &mut jobs, arrivals).expect("free SMs");
        let task = Task::Together(Arm::streams(2, 132));
        let (began, minute) = (Instant::now(), Duration::from_secs(60));
        for duration in [minute, Duration::MAX] {
            let failed = runner.run(&task, &Block { duration, iterations: 2, ..Block::default() });
            let words = "tired: it has had enough";
            assert!(matches!(&failed, Err(Refusal::Skip(why)) if why == words), "{failed:?}");
            // Without an early end the block would take longer than a minute, even on a busy machine.
            assert!(began.elapsed() < minute, "{:?}", began.elapsed());
        }
    }

    #[test]
    fn blocks_as_applied_run_on_the_sms_of_a_new_process() {
        let open = || {
            let sim = Sim::new("h200@13.0").expect("a profile");
            Driver::simulated(&sim).and_then(|driver| driver.device(0)).expect("a device")
        };
        let seen = Arc::new(std::sync::Mutex::new([Vec::new(), Vec::new()]));
        let job = |place: usize, name: &str| {
            let seen = Arc::clone(&seen);
            Job::new(name, move |stream: &Stream| {
                let group = stream.context().group().expect("a partition");
                seen.lock().expect("it is not poisoned")[place] = group.unit_indices().to_vec();
                Ok(())
            })
        };
        let (device, mut jobs) = (open(), [job(0, "a"), job(1, "b")]);
        let arrivals = vec![Arrival::closed(1); 2];
        let mut runner = Runner::new(&device, &mut jobs, arrivals).expect("free SMs");
        let shares =
            ["52..=60 72..=80", "60 72", "44 80", "..=60 72..", "52..=60 72..=80", "..=100 32.."];
        for as_applied in [false, true] {
            for pair in shares {
                let shares: Vec<Share> =
                    pair.split(' ').map(|share| share.parse().expect("a share")).collect();
                let part = |share: &Share| Part {
                    floor: share.floor().unwrap_or(0),
                    ceiling: share.ceiling().unwrap_or(132),
                };
                let task = Task::Together(Arm::partition(shares.iter().map(part).collect()));
                let block = Block { iterations: 1, as_applied, ..Block::default() };
                runner.run(&task, &block).expect("it runs");
                let parts = open().partition(shares).expect("they fit");
                let new = [0, 1].map(|place| parts[place].unit_indices().to_vec());
                let seen = seen.lock().expect("it is not poisoned");
                assert!(!as_applied || *seen == new, "{pair}: {seen:?}, {new:?}");
            }
        }
    }
}

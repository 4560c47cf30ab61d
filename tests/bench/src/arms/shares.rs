//! A job with a floor next to a load with a ceiling, compared with a wall between them and with plain streams.
#![allow(unsafe_code, reason = "launches graphs")]

use std::time::{Duration, Instant};

use green_ctx::{
    PlanRequest, PlanSet, Share, SplitRequest, Stream, StreamOptions,
    graph::{CaptureMode, GraphExec},
    plan::SwitchOptions,
    verify,
};
use green_ctx_cli::jobs::cublas::{Handle, Product};

use super::Found;
use crate::kernels::Marks;
use crate::load::{Kind, Load, numbers, product};
use crate::measure::{Pauses, Times, figure};
use crate::report::Unit;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "Host time of a job from its submission until it is done. \
    `decode` is a graph of 16 products of 4096 × 4096 with 8 columns in bf16, each with its own \
    factors; `small` is an addition of 256 × 256 numbers. Each runs alone, and while a thread \
    keeps launches of a load in flight: `gemm` is cuBLAS's product of 8192³, `memory` reads and \
    writes 1 GiB of numbers. Next to a load a job is submitted at irregular moments, up to 400 \
    µs after the last one, or immediately (`without pause`). `wall`: the job has 32 SMs and the \
    load the rest. `shares`: the job has `32..` and the load `..=100`. `plain`: both on plain \
    streams. `priority`: the job's stream has the highest priority. All modes take turns in \
    windows of 400 ms, for several rounds. Without cuBLAS, `decode` is 16 additions and the load \
    is `persistent` instead of `gemm`.";

/// The job's SMs.
const SMS: u32 = 32;
/// A lower number is a higher priority. The driver clamps it to the device's range.
const HIGHEST: i32 = -100;
/// The layers of the job, the rows of each, and the columns that they are multiplied with.
const LAYERS: usize = 16;
const ROWS: usize = 4096;
const COLUMNS: usize = 8;
/// The longest pause before a job.
const PAUSE: Duration = Duration::from_micros(400);

/// The ways in which the job and the load share the device.
pub(crate) const MODES: [&str; 6] =
    ["plain", "priority", "wall", "wall, priority", "shares", "shares, priority"];
/// The plan of each mode, if it has one.
const PLANS: [Option<&str>; 6] =
    [None, None, Some("wall"), Some("wall, priority"), Some("shares"), Some("shares, priority")];

pub(crate) const JOBS: [&str; 2] = ["decode", "small"];

/// The timing of a job's submissions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Irregular,
    WithoutPause,
}

/// The streams of one mode, and the job captured on its stream.
struct Mode {
    job: Stream,
    load: Stream,
    decode: GraphExec,
    /// The graph uses the workspace of this handle.
    _handle: Option<Handle>,
}

struct Arms<'a> {
    bench: &'a Bench,
    set: PlanSet,
    modes: Vec<Mode>,
}

/// The results of one job in one mode: its times, and the load's launches in `seconds`.
#[derive(Default)]
struct Measured {
    times: Option<Times>,
    launches: u64,
    seconds: f64,
}

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let set = plans(bench)?;
    let layers = match bench.loads.cublas() {
        Some(_) => layers(bench)?,
        None => Vec::new(),
    };
    let modes = modes(bench, &set, &layers)?;
    let arms = Arms { bench, set, modes };
    let mut found = Found::default();
    arms.blocks_on_the_floor(&mut found)?;
    arms.alone(&mut found)?;
    let product = if bench.loads.cublas().is_some() { Kind::Gemm } else { Kind::Persistent };
    for kind in [product, Kind::Memory] {
        let load = bench.loads.prepare_one(bench, kind)?;
        arms.beside(&load, &mut found)?;
    }
    Ok(found)
}

/// Creates a set with a plan for each mode that has one, so that their contexts exist at the same time.
fn plans(bench: &Bench) -> Result<PlanSet> {
    let beside = bench.device.sm_count()?.saturating_sub(SMS);
    let plan = |name: &str| {
        let request = SplitRequest::new().group(
            "job",
            if name.starts_with("wall") { Share::from(SMS) } else { Share::from(SMS..) },
        );
        let request = match name.starts_with("wall") {
            true => request.rest("load"),
            false => request.group("load", ..=beside),
        };
        let priority = if name.ends_with("priority") { HIGHEST } else { 0 };
        PlanRequest::new(name, request.priority("job", priority))
    };
    let mut names = PLANS.into_iter().flatten();
    let set = PlanSet::new(bench.device.rest("all")?, plan(names.next().ok_or("no plans")?))?;
    for name in names {
        set.prepare(plan(name))?;
    }
    Ok(set)
}

fn layers(bench: &Bench) -> Result<Vec<Product>> {
    let factors = [numbers(1, ROWS * ROWS), numbers(2, ROWS * COLUMNS)];
    let layer = |_| product(&bench.device, [ROWS, COLUMNS, ROWS], &factors);
    (0..LAYERS).map(layer).collect()
}

fn modes(bench: &Bench, set: &PlanSet, layers: &[Product]) -> Result<Vec<Mode>> {
    let mut modes = Vec::new();
    for (name, plan) in MODES.into_iter().zip(PLANS) {
        let (job, load) = match plan {
            Some(plan) => {
                let plan = set.plan(plan)?;
                let stream = |name: &str| plan.partitions()[name].stream().clone();
                (stream("job"), stream("load"))
            }
            None => {
                let priority = if name == "priority" { HIGHEST } else { 0 };
                let options = StreamOptions::default().priority(priority);
                (bench.primary.create_stream(options)?, bench.plain_stream()?)
            }
        };
        let handle = bench.loads.cublas().map(|cublas| Handle::new(cublas, &job)).transpose()?;
        let graph = job.capture(CaptureMode::Relaxed, || {
            match &handle {
                Some(handle) => layers.iter().try_for_each(|layer| handle.launch(layer, 0.0))?,
                None => (0..LAYERS).try_for_each(|_| bench.kernels.add(&job))?,
            }
            Ok::<_, crate::setup::Failure>(())
        })?;
        modes.push(Mode { decode: graph.instantiate()?, _handle: handle, job, load });
    }
    Ok(modes)
}

impl Arms<'_> {
    /// Activates a mode's plan.
    fn enter(&self, mode: usize) -> Result<()> {
        if let Some(plan) = PLANS[mode] {
            self.set.switch(&self.set.plan(plan)?, SwitchOptions::default())?;
        }
        Ok(())
    }

    /// Runs a job once.
    fn submit(&self, job: &str, Mode { job: stream, decode, .. }: &Mode) -> Result<()> {
        match job {
            // SAFETY: the arm keeps everything that the graph's kernels use alive, and freeing it waits for the
            // device's work. The launches run one after the other.
            "decode" => unsafe { stream.launch_graph(decode) }?,
            _ => self.bench.kernels.add(stream)?,
        }
        Ok(stream.synchronize()?)
    }

    /// Runs a job repeatedly for one window.
    fn window(&self, job: &str, pace: Pace, mode: &Mode, times: &mut Times) -> Result<()> {
        // In shorter windows the clocks are still those of the preceding pause.
        let window = Duration::from_millis(self.bench.count(400, 2) as u64);
        let least = self.bench.count(20, 2);
        self.submit(job, mode)?;
        let mut pauses = Pauses::up_to(PAUSE);
        let (start, before) = (Instant::now(), times.len());
        while start.elapsed() < window || times.len() < before + least {
            if pace == Pace::Irregular {
                pauses.pause();
            }
            times.take(|| self.submit(job, mode))?;
        }
        Ok(())
    }

    fn rounds(&self) -> usize {
        self.bench.count(4, 1)
    }

    /// Measures the jobs without a load, in every mode.
    fn alone(&self, found: &mut Found) -> Result<()> {
        for job in JOBS {
            self.bench.progress.step(&format!("  {job}: alone"));
            let mut times: Vec<Times> =
                MODES.iter().map(|_| Times::with_capacity(1 << 16)).collect();
            for round in 0..self.rounds() {
                for index in in_order(round) {
                    self.enter(index)?;
                    self.window(job, Pace::WithoutPause, &self.modes[index], &mut times[index])?;
                }
                self.bench.progress.at(round + 1, self.rounds());
            }
            let first = found.samples.len();
            let samples = MODES.iter().zip(times);
            found
                .samples
                .extend(samples.map(|(mode, times)| times.sample(format!("{job} alone: {mode}"))));
            let plain = found.samples[first].p50;
            for (mode, index) in MODES.iter().zip(first..) {
                let speed = plain / found.samples[index].p50;
                let name = format!("{job} alone: {mode}, speed to plain");
                found.figures.push(figure(name, Unit::Times, speed));
            }
        }
        Ok(())
    }

    /// Measures the jobs next to a load, and the load's rate, in every mode.
    fn beside(&self, load: &Load, found: &mut Found) -> Result<()> {
        let name = load.name();
        let alone = load.alone(self.bench, &self.modes[0].load)?;
        found.figures.push(figure(format!("{name}: alone"), Unit::PerSecond, alone));
        let runs = [
            (JOBS[0], Pace::Irregular, ""),
            (JOBS[1], Pace::Irregular, ""),
            (JOBS[0], Pace::WithoutPause, " without pause"),
        ];
        let runs = if matches!(load, Load::Memory(_)) { &runs[..2] } else { &runs };
        for &(job, pace, how) in runs {
            self.bench.progress.step(&format!("  {job} next to {name}{how}"));
            let mut measured: Vec<Measured> = MODES.iter().map(|_| Measured::default()).collect();
            for round in 0..self.rounds() {
                for index in in_order(round) {
                    self.beside_in(load, (job, pace), index, &mut measured[index])?;
                }
                self.bench.progress.at(round + 1, self.rounds());
            }
            for (mode, measured) in MODES.iter().zip(measured) {
                let name = format!("{job} beside {name}{how}: {mode}");
                let rate = measured.launches as f64 / measured.seconds;
                let times = measured.times.ok_or("no windows")?;
                let jobs = times.len() as f64 / measured.seconds;
                found.figures.push(figure(format!("{name}, load"), Unit::PerSecond, rate));
                found.figures.push(figure(
                    format!("{name}, load kept"),
                    Unit::Percent,
                    100.0 * rate / alone,
                ));
                found.figures.push(figure(format!("{name}, jobs"), Unit::PerSecond, jobs));
                found.samples.push(times.sample(name));
            }
        }
        Ok(())
    }

    fn beside_in(
        &self,
        load: &Load,
        (job, pace): (&str, Pace),
        index: usize,
        into: &mut Measured,
    ) -> Result<()> {
        self.enter(index)?;
        let mode = &self.modes[index];
        load.run(self.bench, &mode.load, |running| {
            let mut times = into.times.take().unwrap_or_else(|| Times::with_capacity(1 << 16));
            let (start, before) = (Instant::now(), running.done());
            self.window(job, pace, mode, &mut times)?;
            running.check()?;
            into.launches += running.done() - before;
            into.seconds += start.elapsed().as_secs_f64();
            into.times = Some(times);
            Ok(())
        })
    }

    /// Checks where many launches of the load's partition run while the job runs.
    fn blocks_on_the_floor(&self, found: &mut Found) -> Result<()> {
        let bench = self.bench;
        let shares = MODES.iter().position(|mode| *mode == "shares").ok_or("a mode")?;
        self.enter(shares)?;
        let active = self.set.active();
        let report = verify::partitions(active.partitions(), Duration::from_millis(1))?;
        let floor = &report.partitions[0].floor_sms;
        let launches = bench.count(10_000, 50);
        let mode = &self.modes[shares];
        let marks = Marks::new(&bench.device, launches, bench.device.sm_count()?)?;
        for place in 0..launches {
            bench.kernels.mark(&mode.load, &marks, place, bench.device.sm_count()?)?;
            if place % 8 == 0 {
                self.submit("decode", mode)?;
            }
        }
        let sms = marks.read(&mode.load)?;
        let blocks = || sms.iter().flatten();
        let missing = blocks().filter(|sm| sm.is_none()).count();
        let on_the_floor = blocks().flatten().filter(|sm| floor.contains(sm)).count();
        let count = |name: &str, value: usize| figure(name, Unit::Count, value as f64);
        found.figures.extend([
            count("SMs of the floor", floor.len()),
            count("launches of the capped job", launches),
            count("blocks of the capped job that did not run", missing),
            count("blocks of the capped job on the floor", on_the_floor),
            count("shares verified", usize::from(report.ok())),
        ]);
        Ok(())
    }
}

/// Returns the modes in alternating order, so that none always comes first.
fn in_order(round: usize) -> Box<dyn Iterator<Item = usize>> {
    match round % 2 {
        0 => Box::new(0..MODES.len()),
        _ => Box::new((0..MODES.len()).rev()),
    }
}

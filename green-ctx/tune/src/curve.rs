//! How one job scales with the number of its SMs.

use std::collections::BTreeSet;
use std::time::Duration;

use green_ctx::resource::UnitSizes;
use green_ctx::{Device, Error};
use serde::Serialize;

use crate::arrival::Arrival;
use crate::job::Job;
use crate::measure::{Block, HOST_BOUND, Measure, Refusal, Task};
use crate::outcome::Machine;
use crate::request::{RequestError, TuneError};
use crate::runner::Runner;
use crate::search::Progress;
use crate::stats::median;

/// The input of [`curve`]: the numbers of SMs to measure, and the time for it.
///
/// By default, about eight numbers are measured for 10 s in total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a request does nothing until a curve is measured"]
pub struct CurveRequest {
    counts: Option<Vec<u32>>,
    budget: Option<Duration>,
    blocks: Option<u32>,
}

impl CurveRequest {
    /// Sets the numbers of SMs to measure, each rounded up to whole units. The whole device is always measured, so
    /// numbers that are not smaller are left out.
    pub fn counts(mut self, counts: impl IntoIterator<Item = u32>) -> CurveRequest {
        self.counts = Some(counts.into_iter().collect());
        self
    }

    /// Sets the duration of the measurement. Each number of SMs is measured at least once, even if that takes longer.
    pub fn budget(mut self, budget: Duration) -> CurveRequest {
        self.budget = Some(budget);
        self
    }

    /// Sets the number of blocks of each number of SMs, whatever the duration.
    pub fn blocks(mut self, blocks: u32) -> CurveRequest {
        self.blocks = Some(blocks);
        self
    }

    /// Returns the numbers of SMs below the whole device, in ascending order.
    fn counts_on(&self, pieces: UnitSizes) -> BTreeSet<u32> {
        // Rounded down, so that half of a count is a count too.
        let unit = pieces.unit.max(1);
        let parts = || PARTS.iter().map(|(part, whole)| pieces.sms * part / whole / unit * unit);
        let counts = self.counts.clone().unwrap_or_else(|| parts().collect());
        let whole_units = |sms: u32| {
            let sms = sms.max(1);
            let regular = pieces.round_up(sms, false);
            let with_odd = pieces.odd + pieces.round_up(sms.saturating_sub(pieces.odd), false);
            // As in a partition, the odd unit takes part if the others are too few, or do not give the number.
            match with_odd == sms || regular > pieces.sms - pieces.odd {
                true => with_odd,
                false => regular,
            }
        };
        counts.into_iter().map(whole_units).filter(|sms| *sms < pieces.sms).collect()
    }
}

/// The time of a job's iterations on several numbers of SMs, when the job runs alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Curve {
    /// The job's name.
    pub job: String,
    /// The machine; `None` if the job was not measured on a device.
    #[serde(skip)]
    pub machine: Option<Machine>,
    /// The quantity that was measured, if it is not the time of an iteration in µs. The points then have times that give
    /// the same speeds; [`CurveMetric::value`] returns the measured value of such a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<CurveMetric>,
    /// The points, from the fewest SMs to the whole device. On the whole device, the job runs in a plain stream.
    pub points: Vec<CurvePoint>,
    /// The shape of the curve.
    pub shape: CurveShape,
    /// The shape, and the number of SMs that the job needs, in words. If no GPU ran the job, another sentence says so.
    pub sentence: String,
    /// The time that the host needs to submit one iteration, in µs; `None` if it is not known.
    pub host_us: Option<f64>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// False if the measurement was interrupted. The curve then consists of the blocks until the interruption.
    pub complete: bool,
}

/// A quantity that a program measures itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CurveMetric {
    /// The unit, such as `s` or `tokens/s`.
    pub unit: String,
    /// Whether smaller values are better, as for a time.
    pub lower_is_better: bool,
}

impl CurveMetric {
    /// Returns the value for a time of a [`CurvePoint`] in µs.
    #[must_use]
    pub fn value(&self, time_us: f64) -> f64 {
        if self.lower_is_better { time_us / 1e6 } else { 1e6 / time_us }
    }

    /// Returns the speed for a value: its inverse if smaller values are better, and otherwise the value.
    #[must_use]
    pub fn rate(&self, value: f64) -> f64 {
        if self.lower_is_better { 1.0 / value } else { value }
    }
}

/// The measurements of a job on one number of SMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CurvePoint {
    /// The number of SMs.
    pub sms: u32,
    /// The mean time of an iteration in each measurement block, in µs, in the order of the blocks.
    pub blocks_us: Vec<f64>,
    /// The median of the blocks, in µs; `None` if there are no blocks.
    pub median_us: Option<f64>,
    /// The difference between the slowest and the fastest block, as a fraction of the median; `None` if there are fewer
    /// than two blocks.
    pub spread: Option<f64>,
    /// The job's speed, as a fraction of its speed on the whole device.
    pub speed: Option<f64>,
    /// The factor by which the job is faster than on half of the SMs, if about half of them was measured.
    pub doubling: Option<f64>,
    /// The reason why the job does not run on this number of SMs.
    pub skipped: Option<String>,
}

/// The shape of a [`Curve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "sms")]
#[non_exhaustive]
pub enum CurveShape {
    /// The job needs almost all SMs to be within 10 % of its full speed.
    Scales,
    /// The job is within 10 % of its full speed from this number of SMs on.
    Saturates(u32),
    /// The host submits iterations so slowly that the whole device is hardly faster than fewer SMs.
    HostBound,
    /// The blocks of equal points differ so much that they hide a difference of 10 %.
    Hidden,
    /// The job was not measured on the whole device and on enough other numbers of SMs.
    Unknown,
}

/// The parts of the device that are measured by default.
const PARTS: [(u32, u32); 7] = [(1, 16), (1, 8), (3, 16), (1, 4), (3, 8), (1, 2), (3, 4)];
/// The default duration.
const BUDGET: Duration = Duration::from_secs(10);
/// The number of blocks of each point in the default budget. The order of the points is reversed each time, so that a
/// device that becomes slower does not favour a point. A longer budget gives more blocks.
const ROUNDS: u32 = 6;
/// The minimum and the maximum length of a block. An interruption takes effect after a block.
const SHORTEST: Duration = Duration::from_millis(8);
const LONGEST: Duration = Duration::from_secs(1);
/// The fraction of a block that does not count, because the clocks still follow the previous load.
const LEAD_IN: f64 = 0.25;
/// A curve names the smallest number of SMs for this loss of speed, and for twice this loss.
const LOSS: f64 = 0.05;
/// The fraction of the SMs from which on a job that needs them scales.
const ALMOST_ALL: f64 = 0.85;

impl Curve {
    /// Creates a complete curve from points that have only blocks. Without `host_us`, `host_bound` says whether the host
    /// is the limit.
    pub(crate) fn of(job: &str, points: Vec<CurvePoint>, host_bound: bool) -> Curve {
        let mut curve = Curve {
            job: job.to_owned(),
            machine: None,
            metric: None,
            points,
            shape: CurveShape::Unknown,
            sentence: String::new(),
            host_us: None,
            notes: Vec::new(),
            complete: true,
        };
        for point in &mut curve.points {
            let blocks = || point.blocks_us.iter().copied();
            point.median_us = median(&point.blocks_us);
            let range = blocks().fold(0.0, f64::max) - blocks().fold(f64::INFINITY, f64::min);
            let median = point.median_us.filter(|_| point.blocks_us.len() > 1);
            point.spread = median.map(|time| range / time);
        }
        let times: Vec<_> = curve.points.iter().map(|it| (it.sms, it.median_us)).collect();
        for point in &mut curve.points {
            let Some(time) = point.median_us else { continue };
            let is_half = |(half, _): &&(u32, _)| (2 * half).abs_diff(point.sms) <= point.sms / 16;
            let faster = |(_, other): &(u32, Option<f64>)| Some((*other)? / time);
            point.speed = times.last().and_then(faster);
            point.doubling = times.iter().find(is_half).and_then(faster);
        }
        (curve.shape, curve.sentence) = curve.judged(host_bound);
        curve
    }

    /// Returns the smallest measured number of SMs from which on the job loses at most this fraction of its full speed,
    /// or `None` if the spread hides it.
    #[must_use]
    pub fn within(&self, loss: f64) -> Option<u32> {
        let is_known = self.shape != CurveShape::Hidden;
        let measured = self.points.iter().rev().filter_map(|it| Some((it.sms, it.speed?)));
        let fast = measured.take_while(|(_, speed)| is_known && *speed >= 1.0 - loss);
        fast.last().map(|(sms, _)| sms)
    }

    /// Returns the shape, and the sentence about it.
    fn judged(&self, host_bound: bool) -> (CurveShape, String) {
        let job = &self.job;
        let mut measured = self.points.iter().rev().filter_map(|it| Some((it.sms, it.speed?)));
        let (knee, five) = (self.within(2.0 * LOSS), self.within(LOSS));
        let (Some(knee), Some(five), Some((sms, _)), Some((part, speed))) =
            (knee, five, measured.next(), measured.next())
        else {
            let words =
                "was not measured both on the whole device and on fewer SMs: its need is unknown";
            return (CurveShape::Unknown, format!("{job} {words}."));
        };
        let spreads = self.points.iter().filter(|point| 2 * point.sms >= knee);
        let spread = spreads.filter_map(|point| point.spread).fold(0.0, f64::max);
        if host_bound {
            let words = "submitting an iteration takes about as long as the iteration";
            let words = format!("On {knee} SMs or more, the host limits {job}: {words}.");
            (CurveShape::HostBound, words)
        } else if spread > 2.0 * LOSS {
            let words = "which hides its need: let each block take longer, or use an idle machine";
            let percent = 100.0 * spread;
            let words = format!(
                "The blocks of {job} on equal SMs differ by up to {percent:.0} %, {words}."
            );
            (CurveShape::Hidden, words)
        } else if f64::from(knee) > ALMOST_ALL * f64::from(sms) {
            let percent = 100.0 * speed;
            let words = format!("on {part} of {sms} SMs, it has {percent:.0} % of its full speed");
            match 5 * part < 2 * sms {
                true => (CurveShape::Unknown, format!("{job} needs more SMs: {words}.")),
                false => (CurveShape::Scales, format!("{job} scales: {words}.")),
            }
        } else {
            let words = format!("on {knee} of {sms} SMs, and within 5 % on {five}");
            let words = format!("{job} saturates: it is within 10 % of its full speed {words}.");
            (CurveShape::Saturates(knee), words)
        }
    }
}

/// Measures how a job scales with its SMs: the job runs alone in partitions of several sizes, and in a plain stream on
/// the whole device, in alternating blocks. The job's arrivals are ignored: two iterations are always in flight. Calls
/// `go_on` before each block; if it returns `false`, the curve consists of the blocks so far.
///
/// The partitions use the free SMs of the device and are closed at the end. If other partitions hold SMs, larger numbers
/// are not measured. The measurement needs CUDA 12.5.
///
/// # Errors
///
/// [`TuneError::Request`] if the job does not run, or if `go_on` ended the measurement before the first block.
/// [`TuneError::Failed`] with the driver's error if the device fails or no SMs are free. A job that fails on some
/// numbers of SMs is not an error: their points state the reason.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use green_ctx::{Driver, LaunchConfig, Library, sim::Sim};
/// use green_ctx_tune::{CurveRequest, Job, curve};
///
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
/// let kernel = Library::from_ptx(&device, ptx)?.kernel("step")?;
/// let mut job = Job::new("decode", move |stream| {
///     // SAFETY: the kernel takes no parameters.
///     unsafe { stream.launch(&kernel, LaunchConfig::new(132, 128), ()) }.map_err(Into::into)
/// });
/// let request = CurveRequest::default().budget(Duration::from_millis(200));
/// let curve = curve(&device, &mut job, &request, &mut |_| true)?;
/// println!("{}", curve.sentence);
/// assert_eq!(curve.points.last().map(|whole| whole.sms), Some(132));
/// # Ok(())
/// # }
/// ```
pub fn curve(
    device: &Device,
    job: &mut Job,
    request: &CurveRequest,
    go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
) -> Result<Curve, TuneError<Error>> {
    let name = job.name().to_owned();
    let jobs = std::slice::from_mut(job);
    let mut runner =
        Runner::new(device, jobs, vec![Arrival::closed(2)]).map_err(TuneError::Failed)?;
    // A plain stream runs on all SMs, even if partitions hold some of them, or on the rest under a reserve.
    let sms = device.primary_context().and_then(|primary| primary.sm_count());
    let sms = sms.map_err(TuneError::Failed)?;
    let (free, mut request) = (runner.pieces(), request.clone());
    let mut notes = runner.try_out()?;
    if request.counts.is_none() && free.sms < sms {
        request.counts = Some(request.counts_on(free).into_iter().chain([free.sms]).collect());
        notes.push(format!(
            "the largest partition has {} SMs, because the others are held or not reserved; the plain stream has {sms}",
            free.sms
        ));
    }
    let pieces = UnitSizes { sms, ..free };
    let mut curve = curve_with(&mut runner, &name, pieces, &request, go_on)?;
    (curve.notes, curve.machine) = (notes, Some(Machine::of(device).map_err(TuneError::Failed)?));
    Ok(curve)
}

/// Measures how the first job of a [`Measure`] implementation scales with its SMs, like [`curve`].
///
/// # Errors
///
/// As for [`curve`].
pub fn curve_with<M: Measure>(
    measure: &mut M,
    name: &str,
    pieces: UnitSizes,
    request: &CurveRequest,
    go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
) -> Result<Curve, TuneError<M::Error>> {
    let sizes = request.counts_on(pieces).into_iter().chain([pieces.sms]);
    let point = |sms| CurvePoint { sms, ..CurvePoint::default() };
    let mut points: Vec<CurvePoint> = sizes.map(point).collect();
    let last = points.len() - 1;
    let (began, budget) = (measure.now(), request.budget.unwrap_or(BUDGET));
    let block = (budget / (ROUNDS * points.len() as u32)).clamp(SHORTEST, LONGEST);
    let lead_in = block.mul_f64(LEAD_IN);
    let block = Block { lead_in, duration: block - lead_in, iterations: 2, ..Block::default() };
    let (mut host_us, mut blocks, mut complete) = (f64::INFINITY, 0, true);
    for turn in 0.. {
        let (round, place) = (turn / points.len(), turn % points.len());
        let elapsed = measure.now() - began;
        let (spent, all) = match request.blocks {
            Some(blocks) => {
                let spent = turn as f64 / (blocks as usize * points.len()).max(1) as f64;
                (spent, elapsed.div_f64(spent.max(1e-6)))
            }
            None => (elapsed.div_duration_f64(budget).min(1.0), budget),
        };
        if round > 0 && spent >= 1.0 || points.iter().all(|point| point.skipped.is_some()) {
            break;
        }
        // The whole device comes first, so that a job that does not run is an error at once.
        let place = if round % 2 == 0 { last - place } else { place };
        let point = &mut points[place];
        if point.skipped.is_some() {
            continue;
        }
        let step = format!("{} of {} SMs", point.sms, pieces.sms);
        let left = all.mul_f64((1.0 - spent).max(0.0));
        let progress = Progress { step: &step, spent, left, blocks, best: None };
        complete = go_on(&progress);
        if !complete {
            break;
        }
        blocks += 1;
        let sms = (place < last).then_some(point.sms);
        match measure.run(&Task::Alone { job: 0, sms }, &block) {
            Ok(sample) if sample.is_sound(1) && sample.jobs[0].rate > 0.0 => {
                point.blocks_us.push(1e6 / sample.jobs[0].rate);
                host_us = sample.jobs[0].host_us.min(host_us);
            }
            Err(Refusal::Stop(error)) => return Err(TuneError::Failed(error)),
            // The interruption of a job is not its failure.
            _ if !go_on(&progress) => complete = false,
            Ok(_) => point.skipped = Some("it finished no iteration".to_owned()),
            Err(Refusal::Skip(reason)) => point.skipped = Some(reason),
        }
        if !complete {
            break;
        }
        if let (0, None, Some(reason)) = (round, sms, &point.skipped) {
            let (job, reason) = (name.to_owned(), reason.clone());
            return Err(RequestError::Job { job, reason }.into());
        }
    }
    if points.iter().all(|point| point.blocks_us.is_empty()) {
        return Err(RequestError::Interrupted.into());
    }
    let time = points.last().and_then(|whole| median(&whole.blocks_us));
    let host_bound = time.is_some_and(|time| host_us > HOST_BOUND * time);
    let mut curve = Curve { complete, ..Curve::of(name, points, host_bound) };
    curve.host_us = Some(host_us);
    if let Some(stand_in) = measure.stand_in() {
        let words = format!(" (This curve comes from {stand_in}, not from a GPU.)");
        curve.sentence.push_str(&words);
    }
    Ok(curve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, ModelJob};

    const H200: UnitSizes = UnitSizes { sms: 132, unit: 8, odd: 12 };

    #[test]
    fn counts_are_possible_ones() {
        let rtx5080 = UnitSizes { sms: 84, unit: 8, odd: 28 };
        for (pieces, asked, counts) in [
            (H200, [0, 60, 61, 120, 121], &[8, 60, 64, 120, 124][..]),
            (rtx5080, [50, 57, 61, 69, 77], &[56, 60, 68, 76]),
            (UnitSizes { sms: 20, unit: 2, odd: 0 }, [0, 1, 3, 18, 19], &[2, 4, 18]),
        ] {
            let found = CurveRequest::default().counts(asked).counts_on(pieces);
            assert!(found.iter().eq(counts), "{found:?}");
        }
    }

    fn of(job: ModelJob, jitter: f64) -> Curve {
        let mut model = Model::new(H200, vec![job], 1).with_jitter(jitter);
        curve_with(&mut model, "job", H200, &CurveRequest::default(), &mut |_| true)
            .expect("it runs")
    }

    #[test]
    fn shapes_are_recognised() {
        let scaling = ModelJob { blocks: 10_000, block_us: 10.0, ..ModelJob::default() };
        let curve = of(scaling, 0.01);
        let counts: Vec<u32> = curve.points.iter().map(|point| point.sms).collect();
        assert_eq!(counts, [8, 16, 24, 32, 48, 64, 96, 132]);
        assert_eq!((curve.shape, curve.within(0.4)), (CurveShape::Scales, Some(96)));
        let doubled: Vec<_> = curve.points.iter().filter_map(|it| it.doubling).collect();
        assert_eq!(doubled.len(), 6, "all but 8 and 24");
        assert!(doubled.iter().all(|factor| (1.9..2.2).contains(factor)), "{doubled:?}");
        // One wave on 48 SMs or more.
        let saturating = ModelJob { blocks: 48, block_us: 500.0, ..ModelJob::default() };
        assert_eq!(of(saturating, 0.01).shape, CurveShape::Saturates(48));
        let host = ModelJob { blocks: 8, block_us: 10.0, host_us: 50.0, ..ModelJob::default() };
        assert_eq!(of(host, 0.01).shape, CurveShape::HostBound);
    }

    #[test]
    fn a_spread_hides_the_answer() {
        let job = ModelJob { blocks: 40, block_us: 20_000.0, ..ModelJob::default() };
        let curve = of(job, 0.3);
        assert_eq!(curve.shape, CurveShape::Hidden, "{curve:?}");
        assert!(curve.sentence.contains("hides its need"), "{curve:?}");
    }

    #[test]
    fn a_job_that_fails_on_few_sms_keeps_the_rest() {
        let job = ModelJob { least_sms: 24, ..ModelJob::default() };
        let curve = of(job, 0.01);
        let skipped: Vec<bool> = curve.points.iter().map(|it| it.skipped.is_some()).collect();
        assert_eq!(skipped, [true, true, false, false, false, false, false, false]);
        assert!(curve.points.iter().all(|it| it.skipped.is_some() || it.blocks_us.len() > 1));
    }

    #[test]
    fn each_number_of_sms_has_the_requested_blocks() {
        let mut model =
            Model::new(H200, vec![ModelJob { least_sms: 16, ..ModelJob::default() }], 1);
        let request = CurveRequest::default().counts([8, 64]).blocks(3);
        let mut spent = Vec::new();
        let mut go_on = |progress: &Progress<'_>| {
            spent.push(progress.spent);
            true
        };
        let curve = curve_with(&mut model, "job", H200, &request, &mut go_on).expect("it ran");
        let blocks: Vec<_> = curve.points.iter().map(|it| it.blocks_us.len()).collect();
        assert_eq!((blocks, curve.complete), (vec![0, 3, 3], true));
        assert!(spent.is_sorted() && spent.iter().all(|it| (0.0..1.0).contains(it)), "{spent:?}");
    }

    #[test]
    fn a_metric_gives_its_value_for_a_time() {
        for lower_is_better in [false, true] {
            let metric = CurveMetric { unit: "steps/s".to_owned(), lower_is_better };
            let time_us = 1e6 / metric.rate(40.0);
            assert!((metric.value(time_us) - 40.0).abs() < 1e-9, "{lower_is_better}");
        }
    }

    #[test]
    fn an_interruption_keeps_the_blocks_so_far() {
        let mut model = Model::new(H200, vec![ModelJob::default()], 1);
        let mut left = 3;
        let mut go_on = |progress: &Progress<'_>| {
            assert!(progress.step.ends_with(" of 132 SMs"), "{}", progress.step);
            left -= 1;
            left >= 0
        };
        let request = CurveRequest::default().counts([8, 9, 64, 500]);
        let curve = curve_with(&mut model, "job", H200, &request, &mut go_on).expect("it ran");
        let blocks: Vec<_> = curve.points.iter().map(|it| (it.sms, it.blocks_us.len())).collect();
        assert_eq!((blocks, curve.complete), (vec![(8, 0), (16, 1), (64, 1), (132, 1)], false));
        assert_eq!(curve.shape, CurveShape::Scales);
        // Before the first block, and within it.
        for interrupted in [0, 1] {
            let (mut job, mut asked) = (ModelJob::default(), 0);
            job.least_sms = 200;
            let mut go_on = |_: &Progress<'_>| {
                asked += 1;
                asked <= interrupted
            };
            let mut model = Model::new(H200, vec![job], 1);
            let none = curve_with(&mut model, "job", H200, &request, &mut go_on);
            assert!(matches!(none, Err(TuneError::Request(RequestError::Interrupted))));
        }
    }
}

//! Switches between prepared plans.

use std::hint::black_box;
use std::iter;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use green_ctx::event::{Event, EventOptions};
use green_ctx::plan::SwitchOptions;
use green_ctx::{Partition, Plan, PlanSet, Stream, StreamOptions};

use super::Found;
use crate::measure::Times;
use crate::plans::{self, Turns};
use crate::report::Sample;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "Host time of a switch between plans of two partitions each, \
    which have none in common, with and without fences. `idle`: no work runs. `in flight`: each \
    partition of the plan that is left has 20 µs of work in flight. With several streams per \
    partition, one has a kernel that lasts until the switch, and the others wait for it. `by hand`: \
    in turn with these switches, and instead of one, the stream of each partition of the plan that \
    is left records an event, and the stream of each partition of the next plan waits for all of \
    them. Switches are timed one by one. The active plan and an `Arc` in an `RwLock` are read in \
    turn, 1000 times at a time.";

/// The duration of the work in each partition.
pub(super) const WORK: Duration = Duration::from_micros(20);
/// The number of switches between waits for all work, so that no queue is ever full. It is not a multiple of four, so
/// that switches and the order by hand come first after a wait equally often.
pub(super) const SETTLE: usize = 62;
const READS: u32 = 1000;
/// The longest time of submitting a wait. The kernel lasts until all other streams wait for it, which
/// [`Plans::switch`] checks. Kernels in all streams would not do: of 256 kernels of 4 ms, an H200 (driver 580.159.04)
/// had finished the first one before 26 to 112 of 112 switches.
const SUBMIT: Duration = Duration::from_micros(8);
/// The streams per partition, and the number of switches in a whole run and in a quick one.
const STREAMS: [(u32, usize, usize); 4] =
    [(2, 2500, 20), (8, 1000, 10), (32, 250, 4), (128, 100, 2)];

/// Plans to switch between.
struct Plans {
    set: PlanSet,
    plans: Vec<Arc<Plan>>,
    /// The jobs of each plan.
    jobs: Vec<Vec<Job>>,
    /// Streams per partition.
    each: u32,
}

/// How a sample is taken.
#[derive(Clone, Copy)]
struct How {
    fence: bool,
    /// Whether the order by hand takes turns with the switches.
    by_hand: bool,
}

impl How {
    const FENCED: How = How { fence: true, by_hand: false };
}

/// The streams of a partition.
struct Job {
    first: Stream,
    /// The SMs that the work on the first stream fills.
    sm_count: u32,
    others: Vec<Stream>,
    /// The end of the work on the first stream.
    done: Event,
}

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let mut samples = Vec::new();
    let counts = (bench.count(10_000, 100), bench.count(500, 20));
    // One set at a time, since each holds all SMs of the device.
    for (count, name) in [(2, "two plans"), (8, "eight plans")] {
        let plans = Plans::prepare(bench, count, 1)?;
        for (fence, fences) in [(true, "fences"), (false, "no fences")] {
            let how = How { fence, by_hand: count == 2 };
            samples.extend(plans.measure(bench, how, &format!("{name}, {fences}"), counts)?);
        }
        if count == 2 {
            samples.extend(reads(bench, &plans));
            // Real programs give the streams' handles to PyTorch and cuBLAS.
            for job in plans.jobs.iter().flatten() {
                black_box(job.first.as_raw());
            }
            let name = format!("{name}, fences, handles given out");
            samples.extend(plans.measure(bench, How::FENCED, &name, counts)?);
        }
    }
    for (streams, whole, quick) in STREAMS {
        let plans = Plans::prepare(bench, 2, streams)?;
        let count = bench.count(whole, quick);
        let name = format!("{streams} streams, fences");
        samples.extend(plans.measure(bench, How::FENCED, &name, (count, count / 10 + 2))?);
    }
    Ok(Found { samples, ..Found::default() })
}

impl Plans {
    /// Creates a set with all SMs of the device, and `plans` plans with `each` streams per partition.
    fn prepare(bench: &Bench, plans: u32, each: u32) -> Result<Plans> {
        let (set, plans) = plans::prepare(&bench.device, plans)?;
        let job = |partition: &Partition| -> Result<Job> {
            let other = |_| partition.create_stream(StreamOptions::default());
            let others = (1..each).map(other).collect::<green_ctx::Result<_>>()?;
            let (first, sm_count) = (partition.stream().clone(), partition.sm_count());
            let done = bench.device.create_event(EventOptions::default())?;
            Ok(Job { first, sm_count, others, done })
        };
        let jobs = plans.iter().map(|plan| plan.partitions().iter().map(job).collect());
        let jobs = jobs.collect::<Result<_>>()?;
        Ok(Plans { set, plans, jobs, each })
    }

    /// Measures switches with idle partitions and with busy ones.
    fn measure(
        &self,
        bench: &Bench,
        how: How,
        name: &str,
        counts: (usize, usize),
    ) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        for (busy, state) in [(false, "idle"), (true, "in flight")] {
            let name = format!("{name}, {state}");
            bench.progress.step(&format!("  {name}"));
            let [switches, by_hand] = self.switch(bench, how, busy, counts)?;
            samples.push(switches.sample(&name));
            if how.by_hand {
                samples.push(by_hand.sample(format!("{name}, by hand")));
            }
        }
        Ok(samples)
    }

    /// Returns the times of switches and of the order by hand.
    fn switch(
        &self,
        bench: &Bench,
        how: How,
        busy: bool,
        (count, warm_up): (usize, usize),
    ) -> Result<[Times; 2]> {
        let options = SwitchOptions::default().fence(how.fence);
        let rounds = bench.rounds(WORK + SUBMIT * (2 * self.each - 2));
        let settle = (SETTLE / self.each as usize).max(1);
        let ways = if how.by_hand { 2 } else { 1 };
        let mut turns = Turns::new(&self.set, &self.plans);
        let mut times = [(); 2].map(|()| Times::with_capacity(count));
        let mut ended = 0;
        for turn in 0..ways * (warm_up + count) {
            // Each way comes twice in a row, so that both go from the first plan to the second as often as back.
            let by_hand = how.by_hand && turn.div_ceil(2) % 2 == 1;
            let left = &self.jobs[turns.at()];
            if busy {
                left.iter().try_for_each(|job| job.submit(bench, rounds))?;
            }
            let plan = turns.next();
            let start = Instant::now();
            let switched = if by_hand {
                order(left, &self.jobs[turns.at()])?;
                None
            } else {
                Some(self.set.switch(plan, options))
            };
            let time = start.elapsed();
            // After the order by hand too, so that the next turn finds the same state.
            switched.unwrap_or_else(|| self.set.switch(plan, options))?;
            if turn >= ways * warm_up {
                let must_last = busy && self.each > 1;
                ended += usize::from(must_last && left[0].first.is_idle()?);
                times[usize::from(by_hand)].push(time);
            }
            if turn % settle == settle - 1 {
                self.synchronize()?;
                bench.slices.next();
            }
        }
        self.synchronize()?;
        if ended > count / 4 {
            return Err(format!("work had ended before {ended} of {count} switches").into());
        }
        Ok(times)
    }

    /// Waits for the work of all streams.
    fn synchronize(&self) -> Result<()> {
        for job in self.jobs.iter().flatten() {
            iter::once(&job.first).chain(&job.others).try_for_each(Stream::synchronize)?;
        }
        Ok(())
    }
}

impl Job {
    /// Submits work to the first stream, and makes the other streams wait for it.
    fn submit(&self, bench: &Bench, rounds: u32) -> Result<()> {
        bench.kernels.busy(&self.first, self.sm_count, 1, rounds)?;
        if !self.others.is_empty() {
            self.first.record(&self.done)?;
        }
        Ok(self.others.iter().try_for_each(|stream| stream.wait(&self.done))?)
    }
}

/// Makes the next plan's first streams wait for those of the plan that is left, as a program without plan sets does.
fn order(left: &[Job], next: &[Job]) -> Result<()> {
    left.iter().try_for_each(|job| job.first.record(&job.done))?;
    let mut pairs = next.iter().flat_map(|next| left.iter().map(move |left| (next, left)));
    Ok(pairs.try_for_each(|(next, left)| next.first.wait(&left.done))?)
}

/// Measures reads of the active plan, and of an `Arc` that threads can replace, as a program without plan sets does.
fn reads(bench: &Bench, plans: &Plans) -> [Sample; 2] {
    let count = bench.count(2000, 20);
    let lock = RwLock::new(Arc::clone(&plans.plans[0]));
    let [mut active, mut locked] = [(); 2].map(|()| Times::with_capacity(count));
    for _ in 0..count {
        let start = Instant::now();
        for _ in 0..READS {
            black_box(&**black_box(&plans.set).active());
        }
        active.push_each(start.elapsed(), READS);
        let start = Instant::now();
        for _ in 0..READS {
            let plan = Arc::clone(&black_box(&lock).read().unwrap_or_else(PoisonError::into_inner));
            black_box(&*plan);
        }
        locked.push_each(start.elapsed(), READS);
    }
    [active.sample("active plan read"), locked.sample("plan in an RwLock read")]
}

//! Loads that saturate the SMs that they run on.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use green_ctx::{Device, DeviceBuffer, Event, Stream, event::EventOptions};
use green_ctx_cli::jobs::cublas::{Cublas, Handle, Product};

use crate::kernels::Kernels;
use crate::progress::Progress;
use crate::setup::{Bench, Failure, Result};

/// Rows and columns of the product's matrices.
const SIDE: usize = 8192;
/// The duration of one launch of a load on the whole device: about that of a product of 8192³ in bf16 on an H200.
const TARGET: Duration = Duration::from_micros(1500);
/// The same in a quick run.
const QUICK_TARGET: Duration = Duration::from_micros(100);
/// The number of launches in flight.
const IN_FLIGHT: usize = 4;
/// The interval at which the load's thread polls for the end of a launch. It is long, since the thread shares
/// the driver with the measured calls.
const POLL: Duration = Duration::from_micros(100);
/// The number of values that the memory load reads and writes: 1 GiB.
const NUMBERS: usize = 1 << 29;
/// The number of blocks of `waves`, as a multiple of the blocks that the SMs hold at the same time.
const WAVES: u32 = 16;

/// The kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// FMA, in as many blocks as fit on the SMs at the same time
    Persistent,
    /// FMA, in 16 times as many blocks as fit on the SMs at the same time
    Waves,
    /// cuBLAS's product of 8192³ in bf16
    Gemm,
    /// Reading and writing 1 GiB of numbers
    Memory,
}

/// The default loads of the latency arm.
const USUAL: [Kind; 3] = [Kind::Persistent, Kind::Waves, Kind::Gemm];

/// The requested loads.
pub(crate) struct Loads {
    kinds: Vec<Kind>,
    cublas: Option<Cublas>,
}

impl Loads {
    /// Opens what the loads need. If `kinds` is empty, the loads are those of FMA, and the product if cuBLAS is found.
    pub(crate) fn open(
        device: &Device,
        kinds: &[Kind],
        cublas: Option<&Path>,
        progress: &Progress,
    ) -> Result<Loads> {
        let is_needed = kinds.contains(&Kind::Gemm) || cublas.is_some();
        if !kinds.is_empty() && !is_needed {
            return Ok(Loads { kinds: kinds.to_vec(), cublas: None });
        }
        let cublas = match Cublas::open(device.driver(), cublas) {
            Ok(cublas) => Some(cublas),
            Err(error) if is_needed => return Err(error.into()),
            Err(_) => {
                progress.step("no cuBLAS found: only the FMA loads run");
                None
            }
        };
        let kinds = match kinds {
            [] if cublas.is_some() => USUAL.to_vec(),
            [] => vec![Kind::Persistent, Kind::Waves],
            kinds => kinds.to_vec(),
        };
        Ok(Loads { kinds, cublas })
    }

    /// Returns cuBLAS, if it was found and is needed.
    pub(crate) fn cublas(&self) -> Option<&Cublas> {
        self.cublas.as_ref()
    }

    /// Prepares all loads.
    pub(crate) fn prepare(&self, bench: &Bench) -> Result<Vec<Load>> {
        self.kinds.iter().map(|kind| self.prepare_one(bench, *kind)).collect()
    }

    /// Prepares one load.
    pub(crate) fn prepare_one(&self, bench: &Bench, kind: Kind) -> Result<Load> {
        let target = if bench.quick { QUICK_TARGET } else { TARGET };
        let (sms, rounds) = (bench.device.sm_count()?, bench.rounds(target));
        Ok(match (kind, &self.cublas) {
            (Kind::Persistent, _) => Load::Persistent { sms, rounds },
            (Kind::Waves, _) => Load::Waves { sms, rounds: (rounds / WAVES).max(1) },
            (Kind::Gemm, Some(cublas)) => {
                Load::Gemm(cublas.clone(), square_product(&bench.device, SIDE)?)
            }
            (Kind::Gemm, None) => {
                return Err(Failure::from("the load gemm needs cuBLAS, which was not found"));
            }
            (Kind::Memory, _) => {
                let numbers = bench.count(NUMBERS, NUMBERS >> 10);
                Load::Memory(DeviceBuffer::zeroed(&bench.device, numbers)?)
            }
        })
    }
}

/// A load that is ready to run.
pub(crate) enum Load {
    /// Each block runs for `rounds` if the load has the whole device.
    Persistent {
        sms: u32,
        rounds: u32,
    },
    /// Each block runs for `rounds`.
    Waves {
        sms: u32,
        rounds: u32,
    },
    Gemm(Cublas, Product),
    Memory(DeviceBuffer<u16>),
}

/// Creates a product of two square matrices.
pub(crate) fn square_product(device: &Device, side: usize) -> Result<Product> {
    product(device, [side; 3], &[numbers(1, side * side), numbers(2, side * side)])
}

/// Creates a product of two matrices with these sides, in the order of [`Product::new`].
pub(crate) fn product(
    device: &Device,
    sides: [usize; 3],
    factors: &[Vec<u16>; 2],
) -> Result<Product> {
    let [first, second] = factors.each_ref().map(|factor| DeviceBuffer::from_slice(device, factor));
    Ok(Product::new(device, sides, [first?, second?])?)
}

/// Returns `count` numbers between -1 and 1, the same for each seed. Zeros would cost the GPU less power, and
/// therefore less time.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<u16> {
    let mut rng = fastrand::Rng::with_seed(seed);
    // The upper half of an `f32` is the same number in bf16, truncated.
    let number = |_| ((2.0 * rng.f32() - 1.0).to_bits() >> 16) as u16;
    (0..count).map(number).collect()
}

/// A running load.
pub(crate) struct Running<'a> {
    state: &'a State,
}

#[derive(Default)]
struct State {
    done: AtomicU64,
    stop: AtomicBool,
    ended: AtomicBool,
}

impl Load {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Load::Persistent { .. } => "persistent",
            Load::Waves { .. } => "waves",
            Load::Gemm(..) => "gemm",
            Load::Memory(_) => "memory",
        }
    }

    /// Keeps launches of this load in flight on a stream, from its own thread, while `meanwhile` runs.
    pub(crate) fn run<T>(
        &self,
        bench: &Bench,
        stream: &Stream,
        meanwhile: impl FnOnce(&Running<'_>) -> Result<T>,
    ) -> Result<T> {
        let (state, kernels, device) = (State::default(), &bench.kernels, &bench.device);
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _ended = Ended(&state);
                self.keep_in_flight(device, kernels, stream, &state)
            });
            while state.done.load(Ordering::Relaxed) < IN_FLIGHT as u64
                && !state.ended.load(Ordering::Acquire)
            {
                thread::sleep(Duration::from_millis(1));
            }
            let stop = Stop(&state);
            let result = meanwhile(&Running { state: &state });
            drop(stop);
            // If both failed, the load's failure is the cause, and is the one returned.
            thread.join().map_err(|_| "the load's thread panicked")??;
            result
        })
    }

    /// Returns the load's launches per second while no other work runs.
    pub(crate) fn alone(&self, bench: &Bench, stream: &Stream) -> Result<f64> {
        self.run(bench, stream, |running| {
            let rate = Rate::start(bench, running);
            while !rate.is_measured()? {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(rate.end())
        })
    }

    fn keep_in_flight(
        &self,
        device: &Device,
        kernels: &Kernels,
        stream: &Stream,
        state: &State,
    ) -> Result<()> {
        let launch = self.launcher(kernels, stream)?;
        let event = || device.create_event(EventOptions::default());
        let events: Vec<Event> =
            (0..IN_FLIGHT).map(|_| event()).collect::<green_ctx::Result<_>>()?;
        for (launched, event) in events.iter().cycle().enumerate() {
            if launched >= IN_FLIGHT {
                while !event.is_complete()? {
                    thread::sleep(POLL);
                }
                state.done.fetch_add(1, Ordering::Relaxed);
            }
            if state.stop.load(Ordering::Relaxed) {
                break;
            }
            launch()?;
            stream.record(event)?;
        }
        Ok(stream.synchronize()?)
    }

    /// Returns a function that launches the load on a stream, for use on this thread.
    fn launcher<'a>(
        &'a self,
        kernels: &'a Kernels,
        stream: &'a Stream,
    ) -> Result<Box<dyn Fn() -> Result<()> + 'a>> {
        let own = stream.context().sm_count()?;
        Ok(match self {
            Load::Persistent { sms, rounds } => {
                // The same amount of work on fewer SMs: each block gets more of it.
                let rounds = u64::from(*rounds) * u64::from(*sms) / u64::from(own.max(1));
                let rounds = u32::try_from(rounds)?;
                Box::new(move || Ok(kernels.busy(stream, own, 1, rounds)?))
            }
            Load::Waves { sms, rounds } => {
                Box::new(move || Ok(kernels.busy(stream, *sms, WAVES, *rounds)?))
            }
            Load::Gemm(cublas, product) => {
                let handle = Handle::new(cublas, stream)?;
                Box::new(move || Ok(handle.launch(product, 0.0)?))
            }
            Load::Memory(numbers) => Box::new(move || Ok(kernels.halve(stream, numbers)?)),
        })
    }
}

impl Running<'_> {
    /// Returns the number of launches that are done.
    pub(crate) fn done(&self) -> u64 {
        self.state.done.load(Ordering::Relaxed)
    }

    /// Returns an error if the load has failed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.state.ended.load(Ordering::Acquire) {
            return Err("the load failed".into());
        }
        Ok(())
    }
}

/// A measurement of the load's rate, from its creation on.
pub(crate) struct Rate<'a> {
    running: &'a Running<'a>,
    start: Instant,
    done: u64,
    /// The minimum time to measure.
    window: Duration,
}

impl<'a> Rate<'a> {
    /// The minimum number of launches to measure.
    const LEAST: u64 = 4;

    pub(crate) fn start(bench: &Bench, running: &'a Running<'a>) -> Rate<'a> {
        let window = Duration::from_millis(bench.count(1000, 20) as u64);
        Rate { running, start: Instant::now(), done: running.done(), window }
    }

    /// Returns whether enough time and launches have passed, or an error if the load failed.
    pub(crate) fn is_measured(&self) -> Result<bool> {
        self.running.check()?;
        let launches = self.running.done() - self.done;
        Ok(launches >= Self::LEAST && self.start.elapsed() >= self.window)
    }

    /// Returns the launches per second.
    pub(crate) fn end(self) -> f64 {
        (self.running.done() - self.done) as f64 / self.start.elapsed().as_secs_f64()
    }
}

/// Tells the load's thread to stop, even after a panic: the scope waits for the thread.
struct Stop<'a>(&'a State);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Marks the load's thread as ended, even after a panic.
struct Ended<'a>(&'a State);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

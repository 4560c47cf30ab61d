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
/// What a launch of a load on the whole device takes: about as much as a product of 8192³ in bf16 on
/// an H200.
const TARGET: Duration = Duration::from_micros(1500);
/// The same in a quick run.
const QUICK_TARGET: Duration = Duration::from_micros(100);
/// Launches that are in flight.
const IN_FLIGHT: usize = 4;
/// How often the thread of a load looks whether a launch is done. Rarely, since it shares the driver
/// with whoever is measured.
const POLL: Duration = Duration::from_micros(100);
/// Numbers of the load that reads and writes memory: 1 GiB.
const NUMBERS: usize = 1 << 29;
/// How many times as many blocks as the SMs hold at once.
const WAVES: u32 = 16;

/// The kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// FMA, in as many blocks as the SMs hold at once
    Persistent,
    /// FMA, in 16 times as many blocks as the SMs hold at once
    Waves,
    /// cuBLAS's product of 8192³ in bf16
    Gemm,
    /// Numbers of 1 GiB, read and written
    Memory,
}

/// The loads of the latency arm, unless others are asked for.
const USUAL: [Kind; 3] = [Kind::Persistent, Kind::Waves, Kind::Gemm];

/// The loads that were asked for.
pub(crate) struct Loads {
    kinds: Vec<Kind>,
    cublas: Option<Cublas>,
}

impl Loads {
    /// Finds what the loads need. Without kinds: those of FMA, and the product where cuBLAS is.
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
                progress.step("no cuBLAS found: the loads are those of FMA");
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

    /// cuBLAS, where it was found and is needed.
    pub(crate) fn cublas(&self) -> Option<&Cublas> {
        self.cublas.as_ref()
    }

    /// Makes the loads ready to run.
    pub(crate) fn prepare(&self, bench: &Bench) -> Result<Vec<Load>> {
        self.kinds.iter().map(|kind| self.prepare_one(bench, *kind)).collect()
    }

    /// Makes one load ready to run.
    pub(crate) fn prepare_one(&self, bench: &Bench, kind: Kind) -> Result<Load> {
        let target = if bench.quick { QUICK_TARGET } else { TARGET };
        let (sms, rounds) = (bench.device.sm_count()?, bench.rounds(target));
        Ok(match (kind, &self.cublas) {
            (Kind::Persistent, _) => Load::Persistent { sms, rounds },
            (Kind::Waves, _) => Load::Waves { sms, rounds: (rounds / WAVES).max(1) },
            (Kind::Gemm, Some(cublas)) => {
                Load::Gemm(cublas.clone(), square_product(&bench.device, SIDE)?)
            }
            (Kind::Gemm, None) => return Err(Failure::from("there is no cuBLAS")),
            (Kind::Memory, _) => {
                let numbers = bench.count(NUMBERS, NUMBERS >> 10);
                Load::Memory(DeviceBuffer::zeroed(&bench.device, numbers)?)
            }
        })
    }
}

/// One load, ready to run.
pub(crate) enum Load {
    /// So many rounds of each block where it has the whole device.
    Persistent {
        sms: u32,
        rounds: u32,
    },
    /// So many rounds of each block.
    Waves {
        sms: u32,
        rounds: u32,
    },
    Gemm(Cublas, Product),
    Memory(DeviceBuffer<u16>),
}

/// A product of two square matrices.
pub(crate) fn square_product(device: &Device, side: usize) -> Result<Product> {
    product(device, [side; 3], &[numbers(1, side * side), numbers(2, side * side)])
}

/// A product of two matrices of these sides, as [`Product::new`] takes them.
pub(crate) fn product(
    device: &Device,
    sides: [usize; 3],
    factors: &[Vec<u16>; 2],
) -> Result<Product> {
    let [first, second] = factors.each_ref().map(|factor| DeviceBuffer::from_slice(device, factor));
    Ok(Product::new(device, sides, [first?, second?])?)
}

/// Numbers between -1 and 1, the same for each seed. Zeros would cost the GPU less power, and with
/// it less time.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<u16> {
    let mut rng = fastrand::Rng::with_seed(seed);
    // The upper half of a float is the same number in bf16, cut off.
    let number = |_| ((2.0 * rng.f32() - 1.0).to_bits() >> 16) as u16;
    (0..count).map(number).collect()
}

/// A load that runs.
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

    /// Keeps launches of this load in flight on a stream, from a thread of its own, while something
    /// else is done.
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
            // Its failure is why the other failed, where both did.
            thread.join().map_err(|_| "the load's thread panicked")??;
            result
        })
    }

    /// Launches a second of this load, if nothing else runs.
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

    /// What launches it on a stream, to be used on this thread.
    fn launcher<'a>(
        &'a self,
        kernels: &'a Kernels,
        stream: &'a Stream,
    ) -> Result<Box<dyn Fn() -> Result<()> + 'a>> {
        let own = stream.context().sm_count()?;
        Ok(match self {
            Load::Persistent { sms, rounds } => {
                // As much work on fewer SMs, which each have more of it then.
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
    /// Launches that are done.
    pub(crate) fn done(&self) -> u64 {
        self.state.done.load(Ordering::Relaxed)
    }

    /// Returns an error where the load has broken off.
    pub(crate) fn check(&self) -> Result<()> {
        if self.state.ended.load(Ordering::Acquire) {
            return Err("the load broke off".into());
        }
        Ok(())
    }
}

/// The rate of a load from now on.
pub(crate) struct Rate<'a> {
    running: &'a Running<'a>,
    start: Instant,
    done: u64,
    /// The least time over which the rate is measured.
    window: Duration,
}

impl<'a> Rate<'a> {
    /// The least launches that a rate is measured over.
    const LEAST: u64 = 4;

    pub(crate) fn start(bench: &Bench, running: &'a Running<'a>) -> Rate<'a> {
        let window = Duration::from_millis(bench.count(1000, 20) as u64);
        Rate { running, start: Instant::now(), done: running.done(), window }
    }

    /// Whether the rate is measured. An error if the load broke off.
    pub(crate) fn is_measured(&self) -> Result<bool> {
        self.running.check()?;
        let launches = self.running.done() - self.done;
        Ok(launches >= Self::LEAST && self.start.elapsed() >= self.window)
    }

    /// Launches a second.
    pub(crate) fn end(self) -> f64 {
        (self.running.done() - self.done) as f64 / self.start.elapsed().as_secs_f64()
    }
}

/// Stops the thread, also where a panic ends what is done meanwhile: the scope waits for it.
struct Stop<'a>(&'a State);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Says that the thread has ended, by a panic too.
struct Ended<'a>(&'a State);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

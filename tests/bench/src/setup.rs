//! State that all arms share.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use green_ctx::{Device, Stream, StreamOptions, context::Context, event::EventOptions};

use crate::kernels::Kernels;
use crate::load::{Kind, Loads};
use crate::progress::Progress;
use crate::slices::Slices;

/// An error of any kind.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// The device to measure, with the settings of the run.
pub(crate) struct Bench {
    pub(crate) device: Device,
    /// Keeps the primary context, so that no arm pays for its creation.
    pub(crate) primary: Context,
    pub(crate) kernels: Kernels,
    pub(crate) loads: Loads,
    pub(crate) progress: Progress,
    pub(crate) slices: Slices,
    pub(crate) simulated: bool,
    pub(crate) quick: bool,
    /// Rounds of the busy kernel per microsecond, on fully occupied SMs.
    rounds_per_us: f64,
}

impl Bench {
    pub(crate) fn new(
        device: Device,
        simulated: bool,
        quick: bool,
        (loads, cublas): (&[Kind], Option<&Path>),
    ) -> Result<Bench> {
        let progress = Progress::new();
        progress.step("loading kernels and measuring their speed");
        let primary = device.primary_context()?;
        let kernels = Kernels::load(&device)?;
        let rounds_per_us = calibrate(&primary, &kernels)?;
        let loads = Loads::open(&device, loads, cublas, &progress)?;
        let slices = Slices::new();
        Ok(Bench {
            device,
            primary,
            kernels,
            loads,
            progress,
            slices,
            simulated,
            quick,
            rounds_per_us,
        })
    }

    /// Returns the number of repetitions: `whole`, or `quick` in a quick run.
    pub(crate) fn count(&self, whole: usize, quick: usize) -> usize {
        if self.quick { quick } else { whole }
    }

    /// Returns the rounds for which the busy kernel runs this long on fully occupied SMs.
    pub(crate) fn rounds(&self, time: Duration) -> u32 {
        // A cast from a float saturates.
        ((time.as_secs_f64() * 1e6 * self.rounds_per_us) as u32).max(1)
    }

    /// Creates a stream of the primary context.
    pub(crate) fn plain_stream(&self) -> Result<Stream> {
        Ok(self.primary.create_stream(StreamOptions::default())?)
    }
}

/// Measures the busy kernel's rounds per microsecond, on a device that the first attempts have warmed up.
fn calibrate(primary: &Context, kernels: &Kernels) -> Result<f64> {
    let device = primary.device();
    let sms = device.sm_count()?;
    let stream = primary.create_stream(StreamOptions::default())?;
    let timed = || device.create_event(EventOptions::default().timing(true));
    let (start, end) = (timed()?, timed()?);
    // In the last attempt of about 2 ms, the launch itself takes a negligible part.
    let mut rounds = 1000u32;
    let mut per_us = 0.0;
    for _ in 0..8 {
        const LAUNCHES: u32 = 10;
        stream.record(&start)?;
        for _ in 0..LAUNCHES {
            kernels.busy(&stream, sms, 1, rounds)?;
        }
        stream.record(&end)?;
        end.synchronize()?;
        let us = end.elapsed_since(&start)?.as_secs_f64() * 1e6 / f64::from(LAUNCHES);
        if us <= 0.0 {
            return Err("the device's clock stands still".into());
        }
        per_us = f64::from(rounds) / us;
        rounds = ((per_us * 2000.0) as u32).max(1);
    }
    Ok(per_us)
}

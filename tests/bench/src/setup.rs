//! What all arms share.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use green_ctx::{Device, Stream, StreamOptions, context::Context, event::EventOptions};

use crate::kernels::Kernels;
use crate::load::{Kind, Loads};
use crate::progress::Progress;

/// Why something could not be done.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A device to measure on, and how.
pub(crate) struct Bench {
    pub(crate) device: Device,
    /// Kept, so that no arm pays for bringing the device up.
    pub(crate) primary: Context,
    pub(crate) kernels: Kernels,
    pub(crate) loads: Loads,
    pub(crate) progress: Progress,
    pub(crate) simulated: bool,
    pub(crate) quick: bool,
    /// Rounds of the busy kernel in a microsecond, on SMs that are full of it.
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
        progress.step("loading kernels, and measuring how fast they are");
        let primary = device.primary_context()?;
        let kernels = Kernels::load(&device)?;
        let rounds_per_us = calibrate(&primary, &kernels)?;
        let loads = Loads::open(&device, loads, cublas, &progress)?;
        Ok(Bench { device, primary, kernels, loads, progress, simulated, quick, rounds_per_us })
    }

    /// How often something is done: in a whole run, or in a quick one.
    pub(crate) fn count(&self, whole: usize, quick: usize) -> usize {
        if self.quick { quick } else { whole }
    }

    /// The rounds for which the busy kernel takes this long on SMs that are full of it.
    pub(crate) fn rounds(&self, time: Duration) -> u32 {
        // A cast from a float saturates.
        ((time.as_secs_f64() * 1e6 * self.rounds_per_us) as u32).max(1)
    }

    /// A stream of the primary context.
    pub(crate) fn plain_stream(&self) -> Result<Stream> {
        Ok(self.primary.create_stream(StreamOptions::default())?)
    }
}

/// Measures the busy kernel's rounds in a microsecond, on a device that is warm by then.
fn calibrate(primary: &Context, kernels: &Kernels) -> Result<f64> {
    let device = primary.device();
    let sms = device.sm_count()?;
    let stream = primary.create_stream(StreamOptions::default())?;
    let timed = || device.create_event(EventOptions::default().timing(true));
    let (start, end) = (timed()?, timed()?);
    // What a launch takes besides its rounds is little of the last attempt's 2 ms.
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

/// An error and what it came from, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

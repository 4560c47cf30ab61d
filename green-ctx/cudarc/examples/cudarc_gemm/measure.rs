//! Measures the time of each kind of work, alone and while the other kind runs.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::cublas::CudaBlas;
use cudarc::driver::{CudaStream, DriverError};

use crate::work::{Addition, Hold, Product, Result};

/// The length of each measurement.
const WINDOW: Duration = Duration::from_secs(1);
/// The approximate duration of the work that is submitted in one batch.
const BATCH: Duration = Duration::from_millis(5);

/// The stream on which one kind of work runs.
pub(crate) struct Lane {
    pub(crate) stream: Arc<CudaStream>,
    /// The number of SMs that kernels on this stream can use.
    pub(crate) sm_count: u32,
}

/// The times of a product and of an addition, in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) product: f64,
    pub(crate) addition: f64,
}

/// Measures both kinds of work alone, and then at the same time.
pub(crate) fn both(
    product: (&mut Product, &CudaBlas, &Lane),
    addition: (&mut Addition, &Lane),
) -> Result<(Times, Times)> {
    let (matrices, blas, products) = product;
    let (vectors, additions) = addition;
    let mut multiply = || matrices.submit(blas, &products.stream);
    let mut add = || vectors.submit(&additions.stream, additions.sm_count);

    let batches = (batch(&products.stream, &mut multiply)?, batch(&additions.stream, &mut add)?);
    let alone = Times {
        product: pace(&products.stream, batches.0, &mut multiply)?,
        addition: pace(&additions.stream, batches.1, &mut add)?,
    };
    let start = Barrier::new(2);
    let (product, addition) = thread::scope(|scope| {
        let other = scope.spawn(|| {
            start.wait();
            pace(&additions.stream, batches.1, &mut add)
        });
        start.wait();
        let product = pace(&products.stream, batches.0, &mut multiply);
        (product, other.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    });
    Ok((alone, Times { product: product?, addition: addition? }))
}

/// Returns the number of submissions per batch.
fn batch(stream: &CudaStream, submit: &mut impl FnMut() -> Result) -> Result<u32> {
    // The first submission loads what it needs.
    submit()?;
    stream.synchronize()?;
    let start = Instant::now();
    submit()?;
    stream.synchronize()?;
    let times = BATCH.as_secs_f64() / start.elapsed().as_secs_f64().max(1e-6);
    Ok(times.clamp(1.0, 200.0) as u32)
}

/// Returns the time of one submission in milliseconds. The stream never runs out of work during the
/// measurement.
fn pace(stream: &CudaStream, batch: u32, submit: &mut impl FnMut() -> Result) -> Result<f64> {
    let (start, mut count, mut before) = (Instant::now(), 0u32, None);
    while start.elapsed() < WINDOW {
        for _ in 0..batch {
            submit()?;
        }
        count += batch;
        // While this thread waits for one batch, the next is already in the stream.
        let end = stream.record_event(None)?;
        before.replace(end).map_or(Ok::<(), DriverError>(()), |end| end.synchronize())?;
    }
    stream.synchronize()?;
    Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(count))
}

/// The times of a product while a kernel occupies SMs, in milliseconds.
pub(crate) struct Confinement {
    /// The time for which the kernel occupies the SMs.
    pub(crate) hold: f64,
    /// The product's time while the SMs of its own partition are occupied.
    pub(crate) own: f64,
    /// The product's time while the SMs of the other partition are occupied.
    pub(crate) other: f64,
}

impl Confinement {
    /// Returns whether the product waited for the SMs of its own partition and not for those of the other
    /// partition. In this case the product ran only in its own partition.
    pub(crate) fn holds(&self) -> bool {
        self.own > self.hold / 2.0 && self.other < self.hold / 2.0
    }
}

/// Times a product while a kernel occupies all SMs of the product's partition, and again while the kernel
/// occupies all SMs of the other partition. `sides` contains a second stream of each partition, on which that
/// kernel runs.
pub(crate) fn confinement(
    product: (&mut Product, &CudaBlas, &Lane),
    alone: f64,
    hold: &mut Hold,
    sides: (&Lane, &Lane),
) -> Result<Confinement> {
    let (matrices, blas, lane) = product;
    let held = 200.0 + 20.0 * alone;
    let mut timed = |side: &Lane| -> Result<f64> {
        hold.submit(&side.stream, side.sm_count, (held * 1e6) as u64)?;
        // Waits until the kernel occupies the SMs.
        thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        matrices.submit(blas, &lane.stream)?;
        lane.stream.synchronize()?;
        let elapsed = start.elapsed();
        side.stream.synchronize()?;
        let sms = hold.take_sms(&side.stream)?;
        if sms.len() != side.sm_count as usize {
            return Err(format!("{} of {} SMs were held", sms.len(), side.sm_count).into());
        }
        Ok(elapsed.as_secs_f64() * 1e3)
    };
    Ok(Confinement { hold: held, own: timed(sides.0)?, other: timed(sides.1)? })
}

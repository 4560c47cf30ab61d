//! The built-in jobs as the tuner's model has them.

use green_ctx_tune::{ModelJob, UnitSizes};

use super::spec::{Kind, Spec};

/// About what a job takes on an H200, for [`Model`](green_ctx_tune::Model): the tuner's jobs on a machine
/// without a GPU. Two iterations are in flight.
///
/// # Example
///
/// ```
/// use green_ctx_tune::{Model, UnitSizes};
/// use green_ctx_cli::jobs;
///
/// let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
/// let copy = jobs::model(&"copy:256".parse()?, pieces);
/// // Memory limits it: half of the SMs are as good as all of them.
/// let model = Model::new(pieces, vec![copy], 1);
/// assert!(model.time_alone(0, 68) < 1.1 * model.time_alone(0, 132));
/// # Ok::<(), jobs::SpecError>(())
/// ```
#[must_use]
pub fn model(spec: &Spec, pieces: UnitSizes) -> ModelJob {
    let size = |usual: u32| f64::from(spec.size().unwrap_or(usual));
    let sms = f64::from(pieces.sms);
    // Blocks, what each takes, and what memory takes; all but the first in microseconds.
    let (blocks, block_us, memory_us) = match spec.kind() {
        Kind::Gemm => {
            let side = size(4096);
            ((side / 128.0).powi(2) / 2.0, side / 90.0, side * side / 1e6)
        }
        Kind::Gemv => {
            let side = size(8192);
            (side, 2.0 * side / 8192.0, side * side / 1e6)
        }
        Kind::Copy => (8.0 * size(256), 3.0, 0.55 * size(256)),
        // One after the other: as many blocks as are there at once.
        Kind::Small => (0.5 * sms, 3.0 * size(64), 0.2 * size(64)),
        Kind::Attention => (size(2048) / 4.0, size(2048) / 20.0, size(2048) / 50.0),
    };
    let mut job = ModelJob::default();
    job.blocks = (blocks as u32).max(1);
    job.block_us = block_us;
    job.memory_us = memory_us;
    job.weight = block_us.max(1.0).sqrt();
    job
}

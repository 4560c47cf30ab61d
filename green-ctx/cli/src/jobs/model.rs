//! Models of the built-in jobs, for tuning without a GPU.

use green_ctx_tune::{ModelJob, UnitSizes};

use super::spec::{Kind, Spec};

/// Returns a model of a job. An iteration of the model takes approximately as long as an iteration of the job on an
/// H200. On a machine without a GPU, the tuner can measure the returned job in a [`Model`](green_ctx_tune::Model). The
/// arrival of the returned job is a closed loop with two iterations in flight.
///
/// # Examples
///
/// ```
/// use green_ctx_tune::{Model, UnitSizes};
/// use green_ctx_cli::jobs;
///
/// let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
/// let copy = jobs::model(&"copy:256".parse()?, pieces);
/// // The copy is memory-bound: half of the SMs are as good as all of them.
/// let model = Model::new(pieces, vec![copy], 1);
/// assert!(model.time_alone(0, 68) < 1.1 * model.time_alone(0, 132));
/// # Ok::<(), jobs::SpecError>(())
/// ```
#[must_use]
pub fn model(spec: &Spec, pieces: UnitSizes) -> ModelJob {
    let size = |usual: u32| f64::from(spec.size().unwrap_or(usual));
    let sms = f64::from(pieces.sms);
    // The number of blocks, the time of a block and the memory time of an iteration, in microseconds.
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
        // The kernels run one after the other, so this is the number of blocks at any one time.
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

//! The built-in jobs in the model, for machines without a GPU.

use green_ctx::tune::{ModelJob, Outcome, Pieces};

use super::question::{Named, Question};
use crate::jobs::Kind;

/// What the sentence of a verdict says then.
const MARK: &str = " (By a model of co-running jobs: there is no GPU.)";

/// About what each job takes on an H200.
pub(super) fn of(question: &Question, pieces: &Pieces) -> Vec<ModelJob> {
    question.jobs.iter().map(|job| model(job, pieces)).collect()
}

fn model(Named { spec, arrival, .. }: &Named, pieces: &Pieces) -> ModelJob {
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
    job.arrival = arrival.clone();
    job
}

/// Says where an outcome comes from.
pub(super) fn mark(outcome: &mut Outcome) {
    outcome.verdict.sentence.push_str(MARK);
}

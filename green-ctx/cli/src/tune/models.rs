//! The built-in jobs in the model, for machines without a GPU.

use green_ctx::tune::{ModelJob, Outcome, Pieces};

use super::question::{Named, Question};
use crate::jobs;

/// What the sentence of a verdict says then.
const MARK: &str = " (By a model of co-running jobs: there is no GPU.)";

/// About what each job takes on an H200.
pub(super) fn of(question: &Question, pieces: &Pieces) -> Vec<ModelJob> {
    let model = |Named { spec, arrival, .. }: &Named| {
        let mut job = jobs::model(spec, pieces);
        job.arrival = arrival.clone();
        job
    };
    question.jobs.iter().map(model).collect()
}

/// Says where an outcome comes from.
pub(super) fn mark(outcome: &mut Outcome) {
    outcome.verdict.sentence.push_str(MARK);
}

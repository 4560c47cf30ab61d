//! The built-in jobs in the model, for machines without a GPU.

use green_ctx_tune::{ModelJob, Outcome, Pieces, Profile};

use super::question::{Named, Question};
use crate::jobs;

/// What the sentence of a verdict says then.
const MARK: &str = " (By a model of co-running jobs: there is no GPU.)";

/// About what each job takes on an H200.
pub(super) fn of(question: &Question, pieces: &Pieces) -> Vec<ModelJob> {
    let request = question.request();
    let model = |(job, profile): (&Named, Profile)| {
        let mut model = jobs::model(&job.spec, pieces);
        model.arrival = profile.arrival_for(request.goal());
        model
    };
    question.jobs.iter().zip(question.profiles()).map(model).collect()
}

/// Says where an outcome comes from.
pub(super) fn mark(outcome: &mut Outcome) {
    outcome.verdict.sentence.push_str(MARK);
}

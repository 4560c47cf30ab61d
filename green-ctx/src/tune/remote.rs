//! Measuring in another process, by requests and answers as text.

use std::error::Error;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::measure::{Block, Measure, Refusal, Sample, Task};

/// What is asked of the other process.
#[derive(Debug, Serialize, Deserialize)]
struct Call {
    task: Task,
    block: Block,
}

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Sample(Sample),
    Skip(String),
    Stop(String),
}

/// A [`Measure`] whose jobs run in another process, such as a Python program with jobs of PyTorch's.
///
/// It calls a function with one line of JSON for each block, and that returns the line which
/// [`answer`] gave in the other process.
#[derive(Debug)]
pub struct Remote<F> {
    call: F,
    began: Instant,
}

impl<F> Remote<F> {
    /// Measures through a function that brings a line to the other process, and back its answer.
    #[must_use]
    pub fn new(call: F) -> Remote<F> {
        Remote { call, began: Instant::now() }
    }
}

/// Why another process measures no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Nothing can run there any more.
    #[error("{reason}")]
    Stopped {
        /// Why, as it says.
        reason: String,
    },
    /// It cannot be reached.
    #[error("the other process did not answer")]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
}

impl<F> Measure for Remote<F>
where
    F: FnMut(&str) -> Result<String, Box<dyn Error + Send + Sync>>,
{
    type Error = RemoteError;

    fn run(&mut self, task: &Task, block: &Block) -> Result<Sample, Refusal<RemoteError>> {
        let unreachable = |error| Refusal::Stop(RemoteError::Unreachable(error));
        let line = serde_json::to_string(&Call { task: task.clone(), block: *block })
            .map_err(|error| unreachable(error.into()))?;
        let line = (self.call)(&line).map_err(unreachable)?;
        match serde_json::from_str(&line).map_err(|error| unreachable(error.into()))? {
            Answer::Sample(sample) => Ok(sample),
            Answer::Skip(reason) => Err(Refusal::Skip(reason)),
            Answer::Stop(reason) => Err(Refusal::Stop(RemoteError::Stopped { reason })),
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Runs what a line of [`Remote`]'s asks for, and returns the line that answers it.
///
/// # Errors
///
/// Text that is no such line.
pub fn answer<M>(measure: &mut M, line: &str) -> Result<String, serde_json::Error>
where
    M: Measure + ?Sized,
    M::Error: Error,
{
    let Call { task, block } = serde_json::from_str(line)?;
    let answer = match measure.run(&task, &block) {
        Ok(sample) => Answer::Sample(sample),
        Err(Refusal::Skip(reason)) => Answer::Skip(reason),
        Err(Refusal::Stop(error)) => Answer::Stop(error.to_string()),
    };
    serde_json::to_string(&answer)
}

#[cfg(test)]
mod tests {
    use super::super::arm::{Arm, Pieces};
    use super::super::model::{Model, ModelJob};
    use super::*;

    #[test]
    fn blocks_are_the_same_at_a_distance() {
        let pieces = Pieces::of(&[8; 16]);
        let hungry = ModelJob { least_sms: 16, ..ModelJob::default() };
        let model = || Model::new(pieces.clone(), vec![hungry.clone(), ModelJob::default()], 7);
        let (mut near, mut far) = (model(), model());
        let mut remote = Remote::new(|line: &str| Ok(answer(&mut far, line)?));
        let duration = Duration::from_micros(12_345);
        let start = Duration::from_micros(77);
        let block = Block { duration, iterations: 2, rounds: false, first: 1, start };
        let tasks = [
            Task::Alone { job: 1, sms: None },
            Task::Alone { job: 0, sms: Some(24) },
            Task::Together(Arm::ceilings([120, 24], 128).with_priorities(vec![0, -1])),
        ];
        for task in tasks {
            let [near, far] = [near.run(&task, &block).ok(), remote.run(&task, &block).ok()];
            assert!(near.is_some());
            assert_eq!(near, far, "{task:?}");
        }
        let too_few = remote.run(&Task::Alone { job: 0, sms: Some(8) }, &block);
        assert!(matches!(too_few, Err(Refusal::Skip(reason)) if reason.contains("16 SMs")));
    }

    #[test]
    fn what_is_no_answer_ends_the_search() {
        let [duration, start] = [Duration::ZERO; 2];
        let block = Block { duration, iterations: 1, rounds: false, first: 0, start };
        let run = |answer: Result<&str, &str>| {
            let call = |_: &str| answer.map(str::to_owned).map_err(|error| error.to_owned().into());
            let refused = Remote::new(call).run(&Task::Alone { job: 0, sms: None }, &block);
            match refused {
                Err(Refusal::Stop(error)) => error,
                other => panic!("{other:?}"),
            }
        };
        let stopped = run(Ok(r#"{"stop": "the device failed"}"#));
        assert_eq!(stopped.to_string(), "the device failed");
        for unreachable in [Ok("{}"), Ok(""), Err("it has exited")] {
            assert!(matches!(run(unreachable), RemoteError::Unreachable(_)), "{unreachable:?}");
        }
        let mut model = Model::new(Pieces::of(&[8; 16]), vec![ModelJob::default()], 7);
        assert!(answer(&mut model, "{}").is_err());
    }
}

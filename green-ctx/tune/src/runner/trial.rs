//! Whether jobs submit anything, before any of them is measured.

use green_ctx::graph::CaptureMode;
use green_ctx::{Error, Stream, StreamOptions};

use super::{Runner, chain};
use crate::job::{Job, JobError, Work};
use crate::request::{RequestError, TuneError};

impl Runner<'_> {
    /// Has each job submit one iteration that does not run, in a capture, after what it does before each block.
    /// Returns notes about jobs that cannot be captured.
    pub(super) fn try_out(&mut self) -> Result<Vec<String>, TuneError<Error>> {
        let stream = self.primary.create_stream(StreamOptions::default());
        let stream = stream.map_err(TuneError::Failed)?;
        let mut notes = Vec::new();
        let tried = self.jobs.iter_mut().filter(|job| job.is_tried).try_for_each(|job| {
            notes.extend(try_job(job, &stream).map_err(|reason| {
                let job = job.name().to_owned();
                RequestError::Job { job, reason }
            })?);
            Ok(())
        });
        // A failure on the device is already an error of the job.
        let _ = stream.synchronize();
        tried.map(|()| notes)
    }
}

/// Tries a job. Returns a note where it cannot be captured, and why it cannot run as an error.
fn try_job(job: &mut Job, stream: &Stream) -> Result<Option<String>, String> {
    let nothing = || Err("it submits nothing to the stream that it is given".to_owned());
    let submit = match &mut job.work {
        Work::Graph(graph) => {
            return match graph.node_count().map_err(|error| chain(&error))? {
                0 => nothing(),
                _ => Ok(None),
            };
        }
        Work::Submit(submit) => submit,
    };
    if let Some(before) = &mut job.before {
        before(stream).map_err(|error| chain(&*error))?;
        stream.synchronize().map_err(|error| chain(&error))?;
    }
    let captured = stream
        .capture(CaptureMode::Relaxed, || submit(stream))
        .and_then(|graph| Ok::<_, JobError>(graph.node_count()?));
    match captured {
        Ok(0) => nothing(),
        Ok(_) => Ok(None),
        Err(error) => {
            // What fails now fails for a reason of its own.
            submit(stream).map_err(|error| chain(&*error))?;
            stream.synchronize().map_err(|error| chain(&error))?;
            let (name, error) = (&job.profile.name, chain(&*error));
            let error = error.lines().next().unwrap_or_default();
            Ok(Some(format!(
                "{name} cannot be captured, as what waits for the device cannot ({error}): its iterations are \
                 as long as the host makes them"
            )))
        }
    }
}

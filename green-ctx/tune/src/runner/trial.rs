//! Checks whether the jobs submit work, before any job is measured.

use green_ctx::graph::CaptureMode;
use green_ctx::sys::with_sources;
use green_ctx::{Error, Stream, StreamOptions};

use super::Runner;
use crate::job::{Job, JobError, Work};
use crate::request::{RequestError, TuneError};

impl Runner<'_> {
    /// Checks each job by capturing one iteration, which does not run the iteration. The closure from
    /// [`Job::before_block`] runs first. Returns notes about jobs that cannot be captured.
    pub(crate) fn try_out(&mut self) -> Result<Vec<String>, TuneError<Error>> {
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
        // A failure on the device has already been returned as an error of the job.
        let _ = stream.synchronize();
        tried.map(|()| notes)
    }
}

/// Checks one job. Returns a note if the job cannot be captured, and an error if the job cannot run.
fn try_job(job: &mut Job, stream: &Stream) -> Result<Option<String>, String> {
    let nothing = || Err("it submits nothing to the stream that it is given".to_owned());
    let submit = match &mut job.work {
        Work::Graph(graph) => {
            return match graph.node_count().map_err(|error| with_sources(&error))? {
                0 => nothing(),
                _ => Ok(None),
            };
        }
        Work::Submit(submit) => submit,
    };
    if let Some(before) = &mut job.before {
        before(stream).map_err(|error| with_sources(&*error))?;
        stream.synchronize().map_err(|error| with_sources(&error))?;
    }
    let captured = stream
        .capture(CaptureMode::Relaxed, || submit(stream))
        .and_then(|graph| Ok::<_, JobError>(graph.node_count()?));
    match captured {
        Ok(0) => nothing(),
        Ok(_) => Ok(None),
        Err(error) => {
            // Submit without a capture: if this fails too, the cause is not the capture.
            submit(stream).map_err(|error| with_sources(&*error))?;
            stream.synchronize().map_err(|error| with_sources(&error))?;
            let (name, error) = (&job.profile.name, with_sources(&*error));
            let error = error.lines().next().unwrap_or_default();
            Ok(Some(format!(
                "{name} waits for the device or for other work while it submits ({error}), so its times are also \
                 those of the host; cudarc waits until `disable_event_tracking` is called"
            )))
        }
    }
}

//! Whether jobs submit anything, before any of them is measured.

use std::mem;
use std::slice;
use std::sync::atomic::AtomicBool;

use crate::error::Error;
use crate::graph::CaptureMode;
use crate::stream::{Stream, StreamOptions};

use super::super::job::{Job, JobError, Work};
use super::super::measure::Peers;
use super::super::request::{RequestError, TuneError};
use super::block::Cause;
use super::watch::{Patience, Watch};
use super::{Runner, chain};

impl Runner<'_> {
    /// Has each job submit one iteration that does not run, in a capture, after what it does before each block.
    /// Returns what a reader should know of jobs that cannot be captured. Where those wait for other processes,
    /// the peers are asked whether to give up.
    pub(in crate::tune) fn try_out(
        &mut self,
        peers: Option<&mut dyn Peers>,
    ) -> Result<Vec<String>, TuneError<Error>> {
        let stream = self.primary.create_stream(StreamOptions::default());
        let stream = stream.map_err(TuneError::Failed)?;
        let given_up = AtomicBool::new(false);
        let mut watch = Watch::of(peers, &given_up);
        let patience = watch.patience();
        let tried = watch.run_one(|| {
            let mut notes = Vec::new();
            for job in self.jobs.iter_mut().filter(|job| job.is_tried) {
                match try_job(job, &stream, patience) {
                    Ok(note) => notes.extend(note),
                    Err(reason) => {
                        let job = job.name().to_owned();
                        return Err(RequestError::Job { job, reason }.into());
                    }
                }
            }
            Ok(notes)
        });
        // What failed on the device is an error of the job already.
        if let Ok(false) = watch.settle(slice::from_ref(&stream)) {
            self.jobs.iter_mut().for_each(Job::abandon);
            mem::forget(stream);
        }
        tried
    }
}

/// Tries a job. Returns a note where it cannot be captured, and why it cannot run as an error.
fn try_job(
    job: &mut Job,
    stream: &Stream,
    patience: Patience<'_>,
) -> Result<Option<String>, String> {
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
    let waited = |cause| match cause {
        Cause::Driver(error) => chain(&error),
        Cause::Job(error) => chain(&*error),
        Cause::GivenUp => "another process has failed".to_owned(),
    };
    if let Some(before) = &mut job.before {
        before(stream).map_err(|error| chain(&*error))?;
        patience.stream(stream).map_err(waited)?;
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
            patience.stream(stream).map_err(waited)?;
            let (name, error) = (&job.profile.name, chain(&*error));
            let error = error.lines().next().unwrap_or_default();
            Ok(Some(format!(
                "{name} cannot be captured, as what waits for the device cannot ({error}): its iterations are \
                 as long as the host makes them"
            )))
        }
    }
}

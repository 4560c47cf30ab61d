//! Outcomes in files, for programs that start again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, process};

use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::Error;

use super::arm::Pieces;
use super::job::Job;
use super::outcome::{Machine, Outcome};
use super::request::{Profile, Request, TuneError};
use super::runner;
use super::search::Progress;

/// Names the folder of files whose names are relative.
const FOLDER: &str = "GREEN_CTX_TUNE_DIR";
/// Not empty and not 0: nothing is written.
const READ_ONLY: &str = "GREEN_CTX_TUNE_READ_ONLY";
/// Tells files apart that threads write at the same time.
static SAVED: AtomicU32 = AtomicU32::new(0);
/// What a file says it is.
const FORMAT: &str = "green-ctx tune 1";

/// A file that keeps an outcome.
///
/// A relative name is looked for in the folder that the environment variable `GREEN_CTX_TUNE_DIR` names, if
/// it does. With `GREEN_CTX_TUNE_READ_ONLY=1`, or [`read_only`](Store::read_only), the file is read and never
/// written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
    read_only: bool,
}

/// Why a file has no outcome that can be used. That is no error: what is asked for is measured then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Miss {
    reason: String,
}

impl Miss {
    fn new(reason: impl Into<String>) -> Miss {
        Miss { reason: reason.into() }
    }
}

#[derive(Serialize, Deserialize)]
struct Contents<T> {
    format: String,
    outcome: T,
}

impl Store {
    /// The file of this name.
    pub fn new(path: impl AsRef<Path>) -> Store {
        let is_set = |value: &std::ffi::OsString| !value.is_empty() && value != "0";
        let folder = env::var_os(FOLDER).filter(|folder| !folder.is_empty());
        // An absolute path replaces what it is joined to.
        let path = folder
            .map_or_else(|| path.as_ref().to_owned(), |folder| Path::new(&folder).join(&path));
        Store { path, read_only: env::var_os(READ_ONLY).as_ref().is_some_and(is_set) }
    }

    /// Sets whether the file is never written.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Store {
        self.read_only = read_only;
        self
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the outcome, whatever it was found for.
    ///
    /// # Errors
    ///
    /// [`Miss`], where there is no file, or none of this format.
    pub fn read(&self) -> Result<Outcome, Miss> {
        let text = fs::read(&self.path).map_err(|error| {
            Miss::new(format!("{} cannot be read: {error}", self.path.display()))
        })?;
        let wrong = |what: &dyn std::fmt::Display| {
            Miss::new(format!("{} holds no outcome of tuning: {what}", self.path.display()))
        };
        let contents: Contents<Outcome> =
            serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
        if contents.format != FORMAT {
            return Err(wrong(&format_args!(
                "its format is {:?} and not {FORMAT:?}",
                contents.format
            )));
        }
        Ok(contents.outcome)
    }

    /// Reads the outcome, and checks that it was found for these jobs and this request, on such a device with
    /// such a driver.
    ///
    /// # Errors
    ///
    /// [`Miss`], with what differs.
    pub fn load(
        &self,
        device: &Device,
        jobs: &[Profile],
        request: &Request,
    ) -> Result<Outcome, Miss> {
        let outcome = self.read()?;
        let here = here(device).map_err(|error| Miss::new(error.to_string()))?;
        check(&outcome, &here, jobs, request)?;
        Ok(outcome)
    }

    /// Writes an outcome: whoever reads at the same time finds the former file or the new one. Does nothing
    /// where the file is never to be written, and returns false.
    ///
    /// # Errors
    ///
    /// What the system says. The former file is as it was then.
    pub fn save(&self, outcome: &Outcome) -> io::Result<bool> {
        if self.read_only {
            return Ok(false);
        }
        let contents = Contents { format: FORMAT.to_owned(), outcome };
        let mut text = serde_json::to_vec(&contents)?;
        text.push(b'\n');
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        let number = SAVED.fetch_add(1, Ordering::Relaxed);
        name.push(format!(".{}.{number}.{:08x}.part", process::id(), fastrand::u32(..)));
        let part = self.path.with_file_name(name);
        let write = || {
            let mut file = File::create_new(&part)?;
            file.write_all(&text)?;
            file.sync_all()?;
            drop(file);
            fs::rename(&part, &self.path)
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })?;
        Ok(true)
    }
}

/// The outcome that a file keeps for these jobs and this request on this device or, where there is none, a
/// new one, which the file keeps from then on. `missed` is called with why, before anything is measured.
///
/// # Errors
///
/// As [`run`](super::run). That the file cannot be written is no error: it goes to the driver's clean-up hook.
pub fn tuned(
    device: &Device,
    jobs: &mut [Job],
    request: &Request,
    store: &Store,
    missed: impl FnOnce(&Miss),
    go_on: &mut dyn FnMut(&Progress<'_>) -> bool,
) -> Result<Outcome, TuneError<Error>> {
    let profiles: Vec<Profile> = jobs.iter().map(|job| job.profile.clone()).collect();
    match store.load(device, &profiles, request) {
        Ok(outcome) => return Ok(outcome),
        Err(miss) => missed(&miss),
    }
    let outcome = runner::run(device, jobs, request, go_on)?;
    if outcome.complete
        && let Err(error) = store.save(&outcome)
    {
        let reason = format!("{} cannot be written: {error}", store.path.display());
        device.driver().report(Err(Error::InvalidRequest(reason)));
    }
    Ok(outcome)
}

fn here(device: &Device) -> Result<(Machine, Pieces), Error> {
    // What a search would divide now.
    let (_, pieces) = runner::free(device)?;
    Ok((Machine::of(device)?, pieces))
}

/// What an outcome was found for, against what is asked for now.
fn check(
    outcome: &Outcome,
    (machine, pieces): &(Machine, Pieces),
    jobs: &[Profile],
    request: &Request,
) -> Result<(), Miss> {
    let differs = |what: &str, there: String, here: String| {
        if there == here {
            Ok(())
        } else {
            Err(Miss::new(format!("{what} was {there} and is {here}")))
        }
    };
    if !outcome.complete {
        return Err(Miss::new("the search was interrupted"));
    }
    let Some(then) = &outcome.machine else {
        return Err(Miss::new("it was not measured on a device"));
    };
    differs("the device", then.device.clone(), machine.device.clone())?;
    differs("the number of SMs", then.sm_count.to_string(), machine.sm_count.to_string())?;
    differs("the driver", then.driver.to_string(), machine.driver.to_string())?;
    differs("the version of green-ctx", then.green_ctx.clone(), machine.green_ctx.clone())?;
    let all = |pieces: &Pieces| format!("{} SMs in units of {}", pieces.sms, pieces.unit);
    differs("what was divided", all(&outcome.pieces), all(pieces))?;
    differs("the goal", outcome.goal.to_string(), request.goal().to_string())?;
    if outcome.goal != *request.goal() {
        return Err(Miss::new("the goal has other weights"));
    }
    if outcome.limits != *request.limits() {
        return Err(Miss::new("other arms were allowed"));
    }
    let names = |names: &mut dyn Iterator<Item = &str>| names.collect::<Vec<_>>().join(", ");
    let then = names(&mut outcome.jobs.iter().map(|job| job.name.as_str()));
    differs("the list of jobs", then, names(&mut jobs.iter().map(|job| job.name.as_str())))?;
    for (then, now) in outcome.jobs.iter().zip(jobs) {
        differs(&format!("the key of {}", now.name), then.key.clone(), now.key.clone())?;
        if then.arrival != now.arrival {
            let (then, now_at) = (then.arrival.to_string(), now.arrival.to_string());
            return Err(Miss::new(format!(
                "the arrival of {} was {then} and is {now_at}",
                now.name
            )));
        }
    }
    Ok(())
}

//! Outcomes in files, for programs that start again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, process};

use green_ctx::{Device, Error};
use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::outcome::{Machine, Outcome};
use crate::request::{Profile, Request, TuneError};
use crate::runner;
use crate::search::Progress;
use green_ctx::resource::UnitSizes;

/// Names the folder of files whose names are relative.
const FOLDER: &str = "GREEN_CTX_TUNE_DIR";
/// Not empty and not 0: nothing is written.
const READ_ONLY: &str = "GREEN_CTX_TUNE_READ_ONLY";
/// Tells files apart that threads write at the same time.
static SAVED: AtomicU32 = AtomicU32::new(0);
/// What a file says it is.
const FORMAT: &str = "green-ctx tune 2";

/// A file that keeps an outcome.
///
/// A relative name is looked for in the folder that the environment variable `GREEN_CTX_TUNE_DIR` names, if
/// it does. With `GREEN_CTX_TUNE_READ_ONLY=1`, or [`read_only`](Store::read_only), the file is read and never
/// written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
    read_only: bool,
    libraries: BTreeMap<String, String>,
}

/// Why a file has no outcome that can be used. That is no error: what is asked for is measured then.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Miss {
    reason: String,
}

green_ctx::sys::debug_as_text!(Miss);

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
        let read_only = env::var_os(READ_ONLY).as_ref().is_some_and(is_set);
        Store { path, read_only, libraries: BTreeMap::new() }
    }

    /// Sets whether the file is never written.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Store {
        self.read_only = read_only;
        self
    }

    /// Names the version of a library that the jobs' kernels come from, such as cuBLAS or torch: what was
    /// found with another one is not used, and what is written has been found with this one.
    #[must_use]
    pub fn library(mut self, name: impl Into<String>, version: impl Into<String>) -> Store {
        self.libraries.insert(name.into(), version.into());
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
    /// [`Miss`], if there is no file or it does not have this format.
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
    /// such a driver and such [libraries](Store::library), and that the device has the SMs for it.
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
        let refused = |error: Error| Miss::new(error.to_string());
        let (mut machine, pieces) = here(device).map_err(refused)?;
        machine.libraries.clone_from(&self.libraries);
        check(&outcome, &(machine, pieces), jobs, request)?;
        outcome.dry_run(device).map_err(refused)?;
        Ok(outcome)
    }

    /// Whether [`save`](Store::save) would write the file: false where it is never to be written. Makes a
    /// file beside it and removes that, for programs that measure for long before they save.
    ///
    /// # Errors
    ///
    /// What the system says, such as that there is no such folder.
    pub fn can_save(&self) -> io::Result<bool> {
        if self.read_only {
            return Ok(false);
        }
        let part = part(&self.target()?);
        File::create_new(&part)?;
        fs::remove_file(&part)?;
        Ok(true)
    }

    /// Writes an outcome. A reader finds the former file or the new one at any time. If the path is a symbolic link,
    /// the file that it points to is replaced. Returns false, and does nothing, if the file is never to be written.
    ///
    /// # Errors
    ///
    /// The system's error, and [`InvalidInput`](io::ErrorKind::InvalidInput) for a device, a pipe or anything else that
    /// is not a regular file. If it fails, the former file is unchanged.
    pub fn save(&self, outcome: &Outcome) -> io::Result<bool> {
        if self.read_only {
            return Ok(false);
        }
        let mut outcome = Cow::Borrowed(outcome);
        if !self.libraries.is_empty() {
            self.add_libraries(outcome.to_mut());
        }
        let contents = Contents { format: FORMAT.to_owned(), outcome };
        let mut text = serde_json::to_vec(&contents)?;
        text.push(b'\n');
        let target = self.target()?;
        let part = part(&target);
        let write = || {
            let mut file = File::create_new(&part)?;
            file.write_all(&text)?;
            file.sync_all()?;
            drop(file);
            fs::rename(&part, &target)
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })?;
        Ok(true)
    }

    /// The file that is written. Only a regular file, or none, can be replaced without harm.
    fn target(&self) -> io::Result<PathBuf> {
        let target = match fs::canonicalize(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(self.path.clone()),
            found => found?,
        };
        match fs::metadata(&target)? {
            found if found.is_file() => Ok(target),
            found if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    }

    fn add_libraries(&self, outcome: &mut Outcome) {
        if let Some(machine) = &mut outcome.machine {
            machine.libraries.extend(self.libraries.clone());
        }
    }
}

/// A name next to the file that no other writer uses.
fn part(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    let number = SAVED.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}.{number}.{:08x}.part", process::id(), fastrand::u32(..)));
    target.with_file_name(name)
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
    let mut outcome = runner::run(device, jobs, request, go_on)?;
    store.add_libraries(&mut outcome);
    if outcome.complete
        && let Err(error) = store.save(&outcome)
    {
        let reason = format!("{} cannot be written: {error}", store.path.display());
        device.driver().report(Err(Error::InvalidRequest(reason)));
    }
    Ok(outcome)
}

fn here(device: &Device) -> Result<(Machine, UnitSizes), Error> {
    // What a search would divide now.
    let (_, pieces) = runner::free(device)?;
    Ok((Machine::of(device)?, pieces))
}

/// What an outcome was found for, against what is asked for now.
fn check(
    outcome: &Outcome,
    (machine, pieces): &(Machine, UnitSizes),
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
    if let (Some(then), Some(now)) = (&then.driver_version, &machine.driver_version) {
        differs("the driver's version", then.clone(), now.clone())?;
    }
    for (name, version) in &machine.libraries {
        let known = then.libraries.get(name).map_or("not recorded", String::as_str);
        differs(&format!("the version of {name}"), known.to_owned(), version.clone())?;
    }
    differs("the version of green-ctx", then.green_ctx.clone(), machine.green_ctx.clone())?;
    let all = |pieces: UnitSizes| format!("{} SMs in units of {}", pieces.sms, pieces.unit);
    differs("what was divided", all(outcome.pieces), all(*pieces))?;
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
        let arrival = now.arrival_for(request.goal());
        if then.arrival != arrival {
            let (name, then) = (&now.name, &then.arrival);
            return Err(Miss::new(format!("the arrival of {name} was {then} and is {arrival}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, ModelJob};
    use green_ctx::Driver;
    use green_ctx::sim::Sim;

    #[test]
    fn drivers_of_one_version_of_cuda_differ() {
        let sim = Sim::new("h200@13.0").expect("a profile");
        let device = Driver::simulated(&sim).and_then(|driver| driver.device(0)).expect("a device");
        let (machine, pieces) = here(&device).expect("free SMs");
        let mut model = Model::new(pieces, vec![ModelJob::default(); 2], 1);
        let (jobs, request) = (["a", "b"].map(Profile::new), Request::default());
        let tuned = crate::with(&mut model, &jobs, pieces, &request, &mut |_| true);
        let mut outcome = tuned.expect("it runs");
        let machine = |driver: Option<&str>| Machine {
            driver_version: driver.map(str::to_owned),
            ..machine.clone()
        };
        let mut checked = |then, now| {
            outcome.machine = Some(machine(then));
            let checked = check(&outcome, &(machine(now), pieces), &jobs, &request);
            checked.map_err(|miss| miss.to_string())
        };
        assert_eq!(checked(Some("580.1"), Some("580.1")), Ok(()));
        let differs = "the driver's version was 580.1 and is 580.2".to_owned();
        assert_eq!(checked(Some("580.1"), Some("580.2")), Err(differs));
        // A system that reports no version accepts every version.
        assert_eq!((checked(None, Some("580.1")), checked(Some("580.1"), None)), (Ok(()), Ok(())));
    }
}

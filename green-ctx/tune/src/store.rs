//! Stores outcomes in files, so that a program does not have to measure at each start.

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

/// The environment variable that names the folder for relative paths.
const FOLDER: &str = "GREEN_CTX_TUNE_DIR";
/// The environment variable that forbids writing, unless its value is empty or 0.
const READ_ONLY: &str = "GREEN_CTX_TUNE_READ_ONLY";
/// A counter for the names of temporary files, so that threads that save at the same time use different files.
static SAVED: AtomicU32 = AtomicU32::new(0);
/// The format tag of the file.
const FORMAT: &str = "green-ctx tune 2";

/// A file that stores an outcome.
///
/// A relative path is resolved in the folder that the environment variable `GREEN_CTX_TUNE_DIR` names, if the variable
/// is set. If `GREEN_CTX_TUNE_READ_ONLY=1` or [`read_only`](Store::read_only) forbids writing, the store only reads the
/// file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
    read_only: bool,
    libraries: BTreeMap<String, String>,
}

/// The reason why a file has no usable outcome. A miss is not an error: the caller measures again.
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
    /// Creates a store for the file at this path. The file does not need to exist.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use green_ctx_tune::Store;
    /// # use green_ctx_tune::{self as tune, Model, ModelJob, Profile, Request, UnitSizes};
    /// # let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
    /// # let mut model = Model::new(pieces, vec![ModelJob::default(); 2], 1);
    /// # let jobs = [Profile::new("decode"), Profile::new("prefill")];
    /// # let outcome = tune::with(&mut model, &jobs, pieces, &Request::default(), &mut |_| true)?;
    /// # let folder = std::env::temp_dir().join(format!("green-ctx-doc-store-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    ///
    /// let store = Store::new(folder.join("pair.json"));
    /// assert!(store.save(&outcome)?);
    /// assert_eq!(store.read()?.verdict.sentence, outcome.verdict.sentence);
    /// # std::fs::remove_dir_all(folder)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(path: impl AsRef<Path>) -> Store {
        let is_set = |value: &std::ffi::OsString| !value.is_empty() && value != "0";
        let folder = env::var_os(FOLDER).filter(|folder| !folder.is_empty());
        // Joining an absolute path replaces the folder.
        let path = folder
            .map_or_else(|| path.as_ref().to_owned(), |folder| Path::new(&folder).join(&path));
        let read_only = env::var_os(READ_ONLY).as_ref().is_some_and(is_set);
        Store { path, read_only, libraries: BTreeMap::new() }
    }

    /// Sets whether writing is forbidden.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Store {
        self.read_only = read_only;
        self
    }

    /// Sets the version of a library that the jobs' kernels come from, such as cuBLAS or torch. The store does not load
    /// outcomes that were measured with another version, and writes this version into outcomes that it saves.
    #[must_use]
    pub fn library(mut self, name: impl Into<String>, version: impl Into<String>) -> Store {
        self.libraries.insert(name.into(), version.into());
        self
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the outcome without checking whether it applies to the current device, jobs and request.
    ///
    /// # Errors
    ///
    /// [`Miss`] if the file cannot be read or does not have the current format.
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
            let format = contents.format;
            return Err(wrong(&format!("its format is {format:?}, not {FORMAT:?}")));
        }
        Ok(contents.outcome)
    }

    /// Reads the outcome and checks that it applies. The jobs, request, device, driver, crate version, free SMs and
    /// those [libraries](Store::library) that are set here must be the same, except that the request may set a smaller
    /// budget or none.
    ///
    /// # Errors
    ///
    /// [`Miss`] if the file has no outcome that applies. The message states the reason.
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

    /// Checks whether [`save`](Store::save) can write the file, by creating and removing a temporary file in the same
    /// folder. Call `can_save` before a long measurement. Returns false if writing is forbidden.
    ///
    /// # Errors
    ///
    /// Returns the system's error, for example if the folder does not exist.
    pub fn can_save(&self) -> io::Result<bool> {
        if self.read_only {
            return Ok(false);
        }
        let part = part(&self.target()?);
        File::create_new(&part)?;
        fs::remove_file(&part)?;
        Ok(true)
    }

    /// Writes an outcome. The file is replaced atomically: a reader sees either the old or the new content. If the path
    /// is a symbolic link, the link's target is replaced. If writing is forbidden, returns false and does not write.
    ///
    /// # Errors
    ///
    /// Returns the system's error, or [`InvalidInput`](io::ErrorKind::InvalidInput) if the path is a device, a pipe or
    /// another special file. After an error, the old file is unchanged.
    pub fn save(&self, outcome: &Outcome) -> io::Result<bool> {
        if self.read_only {
            return Ok(false);
        }
        let mut outcome = outcome.clone();
        self.add_libraries(&mut outcome);
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

    /// Returns the path of the file to write, with symbolic links resolved. Fails if the path exists but is not a
    /// regular file, because `save` cannot replace it safely.
    fn target(&self) -> io::Result<PathBuf> {
        let target = match fs::canonicalize(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(self.path.clone()),
            found => found?,
        };
        match fs::metadata(&target)? {
            found if found.is_file() => Ok(target),
            found if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is not a regular file")),
        }
    }

    fn add_libraries(&self, outcome: &mut Outcome) {
        if let Some(machine) = &mut outcome.machine {
            machine.libraries.extend(self.libraries.clone());
        }
    }
}

/// Returns a path in the folder of `target` that no other writer uses.
fn part(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    let number = SAVED.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}.{number}.{:08x}.part", process::id(), fastrand::u32(..)));
    target.with_file_name(name)
}

/// Returns the stored outcome if it applies to these jobs, this request and this device. If no stored outcome applies,
/// calls `missed` with the reason, tunes the jobs, and stores the new outcome. An interrupted outcome is returned but
/// not stored.
///
/// # Errors
///
/// Returns the same errors as [`run`](super::run). If the file cannot be written, `tuned` does not fail, but reports
/// the error to the driver's [clean-up hook](green_ctx::Driver::on_cleanup_failure).
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use green_ctx::{Driver, LaunchConfig, Library, sim::Sim};
/// use green_ctx_tune::{self as tune, Goal, Job, Request, Store};
///
/// # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
/// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
/// # let kernel = Library::from_ptx(&device, ptx)?.kernel("step")?;
/// # let job = |name| {
/// #     let kernel = kernel.clone();
/// #     Job::new(name, move |stream| {
/// #         // SAFETY: the kernel takes no parameters.
/// #         unsafe { stream.launch(&kernel, LaunchConfig::new(132, 128), ()) }.map_err(Into::into)
/// #     })
/// # };
/// # let folder = std::env::temp_dir().join(format!("green-ctx-doc-tuned-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let store = Store::new(folder.join("pair.json"));
/// let request = Request::new(Goal::throughput()).budget(Duration::from_secs(1));
/// let mut jobs = [job("decode"), job("prefill")];
///
/// let missed = |miss: &tune::Miss| println!("measuring, because {miss}");
/// let first = tune::tuned(&device, &mut jobs, &request, &store, missed, &mut |_| true)?;
/// // The second call reads the file and measures nothing.
/// let second = tune::tuned(&device, &mut jobs, &request, &store, missed, &mut |_| true)?;
/// assert_eq!(first.verdict.sentence, second.verdict.sentence);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok(())
/// # }
/// ```
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
    // The SMs that a search would divide now.
    let (_, pieces) = runner::free(device)?;
    Ok((Machine::of(device)?, pieces))
}

/// Checks that an outcome was measured for the current machine, SMs, jobs and request.
fn check(
    outcome: &Outcome,
    (machine, pieces): &(Machine, UnitSizes),
    jobs: &[Profile],
    request: &Request,
) -> Result<(), Miss> {
    let differs = |what: &str, there: String, here: String| match there == here {
        true => Ok(()),
        false => Err(Miss::new(format!("{what} was {there} and is {here}"))),
    };
    if !outcome.complete {
        return Err(Miss::new("the search was interrupted"));
    }
    let Some(then) = &outcome.machine else {
        return Err(Miss::new("the outcome was not measured on a device"));
    };
    differs("the device", then.device.clone(), machine.device.clone())?;
    differs("the number of SMs", then.sm_count.to_string(), machine.sm_count.to_string())?;
    differs("the number of reserved SMs", then.reserved.to_string(), machine.reserved.to_string())?;
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
    differs("the free part of the device", all(outcome.pieces), all(*pieces))?;
    differs("the goal", outcome.goal.to_string(), request.goal().to_string())?;
    if outcome.goal != *request.goal() {
        return Err(Miss::new("the weights of the goal have changed"));
    }
    if outcome.limits != *request.limits() {
        return Err(Miss::new("the limits were different: step, floors or kinds of arm"));
    }
    if let (Some(then), Some(now)) = (outcome.budget, request.wanted_budget())
        && now > then
    {
        return Err(Miss::new(format!("the budget was {then} s and is {now} s")));
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
        // If the system reports no version, every version matches.
        assert_eq!((checked(None, Some("580.1")), checked(Some("580.1"), None)), (Ok(()), Ok(())));
    }

    #[test]
    fn a_reserve_changes_where_plain_streams_run() {
        let sim = Sim::new("h200@13.0").expect("a profile");
        let device = Driver::simulated(&sim).and_then(|driver| driver.device(0)).expect("a device");
        let (machine, pieces) = here(&device).expect("free SMs");
        let mut model = Model::new(pieces, vec![ModelJob::default(); 2], 1);
        let (jobs, request) = (["a", "b"].map(Profile::new), Request::default());
        let tuned = crate::with(&mut model, &jobs, pieces, &request, &mut |_| true);
        let mut outcome = tuned.expect("it runs");
        let reserved = Machine { reserved: 32, ..machine.clone() };
        assert_eq!(machine.note(), None);
        assert!(reserved.note().is_some_and(|note| note.ends_with("on the other 100 SMs")));
        outcome.machine = Some(reserved);
        let whole = outcome.curves()[0].points.last().map(|point| point.sms);
        assert_eq!(whole, Some(100));
        let checked = check(&outcome, &(machine, pieces), &jobs, &request);
        let differs = "the number of reserved SMs was 32 and is 0";
        assert_eq!(checked.map_err(|miss| miss.to_string()), Err(differs.to_owned()));
    }
}

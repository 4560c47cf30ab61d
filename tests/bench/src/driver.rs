//! Which driver is measured.

use std::path::PathBuf;
use std::str::FromStr;

use green_ctx::sim::{Sim, Spec};
use green_ctx::{CUresult, Driver, Error, LoadError, Result};

use crate::kernels;

/// The value of `--driver`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The installed driver, or a simulated one where there is none.
    Auto,
    /// The installed driver.
    Installed,
    /// The driver library at a path.
    Library(PathBuf),
    /// A simulated driver.
    Simulated(Spec),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Choice, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Choice::Auto),
            None if text == "cuda" => Ok(Choice::Installed),
            None if text == "sim" => Ok(Choice::Simulated(Spec::default())),
            Some(("cuda", path)) if !path.is_empty() => Ok(Choice::Library(path.into())),
            Some(("sim", spec)) => {
                spec.parse().map(Choice::Simulated).map_err(|error| format!("{error}"))
            }
            _ => Err("a driver is auto, cuda, cuda:PATH, sim or sim:PROFILE[@VERSION]".to_owned()),
        }
    }
}

/// Loads the driver, and tells whether it is a simulated one.
pub(crate) fn open(choice: &Choice) -> Result<(Driver, bool)> {
    match choice {
        Choice::Auto => installed_or_simulated(),
        Choice::Installed => Ok((Driver::load()?, false)),
        Choice::Library(path) => Ok((Driver::load_from(path)?, false)),
        Choice::Simulated(spec) => simulated(*spec),
    }
}

fn installed_or_simulated() -> Result<(Driver, bool)> {
    match Driver::load() {
        Ok(driver) if driver.devices().next().is_some() => return Ok((driver, false)),
        Ok(_) | Err(Error::Load(LoadError::NotFound { .. })) => {}
        Err(error) if error.status() == Some(CUresult::CUDA_ERROR_NO_DEVICE) => {}
        // A driver that is there and does not work is for its user to know, not to be hidden.
        Err(error) => return Err(error),
    }
    let (driver, simulated) = simulated(Spec::default())?;
    eprintln!("note: no GPU found; on the {}, whose times mean nothing", driver.info());
    Ok((driver, simulated))
}

fn simulated(spec: Spec) -> Result<(Driver, bool)> {
    // What was launched is not looked at, and would be a lot.
    let sim = Sim::builder(spec).trace(0).build()?;
    kernels::register(&sim);
    Ok((Driver::simulated(&sim)?, true))
}

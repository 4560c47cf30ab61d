//! Which driver a command uses.

use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use crate::sim::{Sim, Spec};
use crate::{CUresult, Device, Driver, Error, LoadError, Result};

/// The value of `--driver`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The installed driver, or the simulated one where there is none.
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

    fn from_str(text: &str) -> Result<Choice, String> {
        let simulated = |spec: &str| {
            spec.parse::<Spec>().map(Choice::Simulated).map_err(|error| error.to_string())
        };
        match text.split_once(':') {
            None if text == "auto" => Ok(Choice::Auto),
            None if text == "cuda" => Ok(Choice::Installed),
            None if text == "sim" => Ok(Choice::Simulated(Spec::default())),
            Some(("cuda", "")) => Err("the path of the driver library is missing".to_owned()),
            Some(("cuda", path)) => Ok(Choice::Library(path.into())),
            Some(("sim", spec)) => simulated(spec),
            _ => Err("a driver is auto, cuda, cuda:PATH, sim or sim:PROFILE[@VERSION]".to_owned()),
        }
    }
}

impl Choice {
    /// Loads the driver. A fall back to the simulated one is noted on standard error.
    pub(crate) fn load(&self) -> Result<Driver> {
        self.load_with(|spec| Driver::simulated(&Sim::new(spec)?))
    }

    /// Loads the driver, a simulated one as the caller makes it. A fall back to that is noted on
    /// standard error.
    ///
    /// # Errors
    ///
    /// As [`Driver::load`], and what `simulated` returns.
    pub fn load_with(&self, simulated: impl FnOnce(Spec) -> Result<Driver>) -> Result<Driver> {
        match self {
            Choice::Auto => installed_or_simulated(simulated),
            Choice::Installed => Driver::load(),
            #[allow(unsafe_code, reason = "opens the library that the command line names")]
            // SAFETY: whoever runs the program names their CUDA driver, and runs its code as their own.
            Choice::Library(path) => unsafe { Driver::load_from(path) },
            Choice::Simulated(spec) => simulated(*spec),
        }
    }

    /// Loads the driver and takes the device of this ordinal.
    pub(crate) fn device(&self, ordinal: Option<u32>) -> Result<Device> {
        self.load()?.device(ordinal.unwrap_or(0))
    }
}

fn installed_or_simulated(simulated: impl FnOnce(Spec) -> Result<Driver>) -> Result<Driver> {
    let missing = match Driver::load() {
        Ok(driver) if driver.devices().next().is_none() => "the NVIDIA driver has no device",
        Err(error) if error.status() == Some(CUresult::CUDA_ERROR_NO_DEVICE) => {
            "the NVIDIA driver has no device"
        }
        Err(Error::Load(LoadError::NotFound { .. })) => "no NVIDIA driver found",
        // A driver that is there and does not work is for its user to know, not to be hidden.
        other => return other,
    };
    let driver = simulated(Spec::default())?;
    // Every output says it too, where standard error is closed.
    let _ = writeln!(io::stderr(), "note: {missing}; using the {}", driver.info());
    Ok(driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read() {
        let read = |text: &str| text.parse::<Choice>();
        assert_eq!(read("auto"), Ok(Choice::Auto));
        assert_eq!(read("cuda"), Ok(Choice::Installed));
        assert_eq!(read("cuda:/opt/a:b.so"), Ok(Choice::Library("/opt/a:b.so".into())));
        assert_eq!(read("sim"), read("sim:h200"));
        assert_ne!(read("sim:h200@12.4"), read("sim:h200"));
        for spec in Spec::all() {
            assert_eq!(read(&format!("sim:{spec}")), Ok(Choice::Simulated(spec)));
        }
        for wrong in
            ["", "cuda:", "sim:", "sim:h201", "sim:h200@9.9", "sim:thor@12.8", "nvidia", "AUTO"]
        {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}

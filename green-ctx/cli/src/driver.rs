//! The option `--driver`, which selects the installed driver, a driver library or a simulated driver.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

#[cfg(feature = "sim")]
use green_ctx::sim::{Sim, Spec};
use green_ctx::{Device, Driver, Result};
#[cfg(feature = "sim")]
use green_ctx::{Error, LoadError};

use crate::failure::Failure;

pub(crate) use self::texts::{ABOUT, CHOICES, WITHOUT_A_GPU};

/// Advice for a machine without a GPU if the driver must be a library.
#[cfg(target_os = "linux")]
pub(crate) const WITH_A_LIBRARY: &str = "\
    without a GPU, build the simulated driver with `cargo xtask sim-lib` in the repository of green-ctx, and set \
    LD_LIBRARY_PATH=target/sim-lib and GREEN_CTX_SIM=h200";

/// Texts about `--driver`: its choices, the rest of its help, and advice for a machine without a GPU.
#[cfg(feature = "sim")]
mod texts {
    pub(crate) const CHOICES: &str = "auto, cuda, cuda:PATH, sim or sim:PROFILE[@VERSION]";
    pub(crate) const ABOUT: &str = "\
        `auto` uses the installed NVIDIA driver. If no driver library is installed, `auto` simulates an H200, and a note \
        on standard error says so. A program after -- and \
        GREEN_CTX_RESERVE need a driver library, so nothing is simulated for them. An installed driver that does not work is an error. `cuda` uses only the installed \
        driver, and `cuda:PATH` uses the driver library at PATH. `sim:h200@12.4` simulates an H200 with a driver for \
        CUDA 12.4, and `sim:36sm,cc12.0` a GPU with 36 SMs and compute capability 12.0. If a profile or version is unknown, the error message lists the known profiles or versions.";
    pub(crate) const WITHOUT_A_GPU: &str = "use --driver sim for a simulated GPU";
}

/// The same texts for a build without the simulated driver, such as the command that pip installs.
#[cfg(not(feature = "sim"))]
mod texts {
    pub(crate) const CHOICES: &str = "auto, cuda or cuda:PATH";
    pub(crate) const ABOUT: &str = "\
        `auto` and `cuda` use the installed NVIDIA driver, and `cuda:PATH` uses the driver library at PATH. This build \
        has no simulated driver.";
    pub(crate) const WITHOUT_A_GPU: &str = "\
        without a GPU, build the simulated driver with `cargo xtask sim-lib` in the repository of green-ctx, and set \
        LD_LIBRARY_PATH=target/sim-lib and GREEN_CTX_SIM=h200, or use the command of `cargo install green-ctx-cli`, \
        which contains a simulated GPU";
}

/// The driver that the option `--driver` selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverChoice {
    /// The installed driver, or a simulated driver if no driver library is installed.
    Auto,
    /// The installed driver.
    Installed,
    /// The driver library at this path.
    Library(PathBuf),
    /// A simulated driver.
    #[cfg(feature = "sim")]
    Simulated(Spec),
}

/// Returns the choices with a fixed name.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let names = ["auto", "cuda", "sim"].into_iter().map(str::to_owned);
    #[cfg(feature = "sim")]
    let names = names.chain(green_ctx::sim::Profile::names().map(|name| format!("sim:{name}")));
    names
}

impl FromStr for DriverChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DriverChoice, String> {
        #[cfg(feature = "sim")]
        let simulated = |spec: &str| {
            spec.parse::<Spec>().map(DriverChoice::Simulated).map_err(|error| error.to_string())
        };
        #[cfg(not(feature = "sim"))]
        let simulated =
            |_: &str| Err(format!("this build has no simulated driver; {WITHOUT_A_GPU}"));
        match text.split_once(':') {
            None if text == "auto" => Ok(DriverChoice::Auto),
            None if text == "cuda" => Ok(DriverChoice::Installed),
            None if text == "sim" => simulated("h200"),
            Some(("cuda", "")) => Err("the path of the driver library is missing".to_owned()),
            Some(("cuda", path)) => Ok(DriverChoice::Library(path.into())),
            Some(("sim", spec)) => simulated(spec),
            _ => Err(format!("a driver is {CHOICES}")),
        }
    }
}

impl DriverChoice {
    /// Loads the driver. Writes a note to standard error if `Auto` falls back to the simulated driver, and if a reserve
    /// is requested that this driver does not have.
    pub(crate) fn load(&self) -> Result<Driver, Failure> {
        if !matches!(self, DriverChoice::Auto | DriverChoice::Installed)
            && env::var_os("GREEN_CTX_RESERVE").is_some_and(|amount| !amount.is_empty())
        {
            // If standard error is closed, the output shows that there is no reserve.
            let _ = writeln!(
                io::stderr(),
                "note: GREEN_CTX_RESERVE holds only for the installed driver, so nothing is reserved"
            );
        }
        #[cfg(feature = "sim")]
        let driver = self.load_with(|spec| Driver::simulated(&Sim::new(spec)?));
        #[cfg(not(feature = "sim"))]
        let driver = self.installed();
        driver.map_err(|error| match (self, &error) {
            #[cfg(target_os = "linux")]
            (_, green_ctx::Error::Reserve(_)) => Failure::Library(error),
            // The driver works, but a reserve leaves no SMs.
            (_, green_ctx::Error::InvalidRequest(_)) => Failure::Library(error),
            (DriverChoice::Auto, _) => Failure::NoDriver(error, WITHOUT_A_GPU),
            _ => Failure::Library(error),
        })
    }

    /// Loads the driver, or calls `simulated` if the choice is a simulated driver. If [`Auto`](DriverChoice::Auto)
    /// falls back to the simulated driver, this function writes a note to standard error.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Driver::load`] and of `simulated`. [`Auto`](DriverChoice::Auto) falls back to the
    /// simulated driver only after [`LoadError::NotFound`]. An installed driver that does not work or has no device is
    /// an error.
    #[cfg(feature = "sim")]
    pub fn load_with(&self, simulated: impl FnOnce(Spec) -> Result<Driver>) -> Result<Driver> {
        match self {
            DriverChoice::Auto => installed_or_simulated(simulated),
            DriverChoice::Simulated(spec) => simulated(*spec),
            _ => self.installed(),
        }
    }

    /// Loads the installed driver, or the driver library at the chosen path.
    fn installed(&self) -> Result<Driver> {
        match self {
            #[allow(unsafe_code, reason = "opens the library that the command line names")]
            // SAFETY: `load_from` runs the code of the library at this path. By naming the path on the command line,
            // the user vouches that the file is a CUDA driver library.
            DriverChoice::Library(path) => unsafe { Driver::load_from(path) },
            _ => Driver::load(),
        }
    }

    /// Loads the driver and returns the device with this ordinal. `None` selects device 0.
    pub(crate) fn device(&self, ordinal: Option<u32>) -> Result<Device, Failure> {
        Ok(self.load()?.device(ordinal.unwrap_or(0))?)
    }
}

#[cfg(feature = "sim")]
fn installed_or_simulated(simulated: impl FnOnce(Spec) -> Result<Driver>) -> Result<Driver> {
    match Driver::load() {
        Ok(driver) if driver.devices().next().is_none() => {
            Err(Error::NoSuchDevice { ordinal: 0, count: 0 })
        }
        Err(Error::Load(LoadError::NotFound { .. })) => {
            let driver = simulated(Spec::default())?;
            // Standard error may be closed. The output says the same.
            let _ =
                writeln!(io::stderr(), "note: no NVIDIA driver found; using the {}", driver.info());
            Ok(driver)
        }
        other => other,
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read() {
        let read = |text: &str| text.parse::<DriverChoice>();
        assert_eq!(read("auto"), Ok(DriverChoice::Auto));
        assert_eq!(read("cuda"), Ok(DriverChoice::Installed));
        assert_eq!(read("cuda:/opt/a:b.so"), Ok(DriverChoice::Library("/opt/a:b.so".into())));
        assert_eq!(read("sim"), read("sim:h200"));
        assert_ne!(read("sim:h200@12.4"), read("sim:h200"));
        for spec in Spec::all() {
            assert_eq!(read(&format!("sim:{spec}")), Ok(DriverChoice::Simulated(spec)));
        }
        for wrong in
            ["", "cuda:", "sim:", "sim:h201", "sim:h200@9.9", "sim:thor@12.8", "nvidia", "AUTO"]
        {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}

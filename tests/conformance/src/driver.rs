//! Choosing and opening the driver.

use core::ffi::CStr;
use core::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use green_ctx_sim::{Sim, Spec, SpecError};
use green_ctx_sys::{Api, CUdevice_attribute, LoadError};

use crate::answer::Failure;
use crate::calls::Calls;
use crate::record::Header;

/// The driver to run the cases on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The installed CUDA driver, or the library at a path.
    Cuda(Option<PathBuf>),
    /// A simulated driver: the profile and, after an `@`, the version.
    Simulated(String),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        match text.split_once(':') {
            None if text == "cuda" => Ok(Choice::Cuda(None)),
            Some(("cuda", path)) if !path.is_empty() => Ok(Choice::Cuda(Some(path.into()))),
            Some(("sim", profile)) if !profile.is_empty() => {
                Ok(Choice::Simulated(profile.to_owned()))
            }
            _ => Err("expected cuda, cuda:PATH or sim:PROFILE such as sim:h200@13.0".to_owned()),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Cuda(None) => f.write_str("cuda"),
            Choice::Cuda(Some(path)) => write!(f, "cuda:{}", path.display()),
            Choice::Simulated(profile) => write!(f, "sim:{profile}"),
        }
    }
}

/// Why a driver could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The simulator has no such driver.
    #[error("no simulated driver {profile}: {reason}")]
    Simulated {
        /// The requested profile.
        profile: String,
        /// The simulator's error.
        reason: String,
    },
    /// The driver was loaded but returns an error, as without a GPU.
    #[error("the driver cannot be used: {0}")]
    Unusable(String),
}

/// An open driver.
pub(crate) struct Driver {
    pub(crate) calls: Calls,
    /// Keeps a simulated driver alive, whose functions are valid as long as it is.
    simulator: Option<Sim>,
}

impl Driver {
    /// Opens the driver. Calls no driver function beyond its version.
    pub(crate) fn open(choice: &Choice) -> Result<Driver, OpenError> {
        let (api, simulator) = match choice {
            Choice::Cuda(None) => (Api::load()?, None),
            // SAFETY: the program's user names a CUDA driver library.
            Choice::Cuda(Some(path)) => (unsafe { Api::load_from(path) }?, None),
            Choice::Simulated(profile) => {
                let (api, simulator) = simulated(profile)?;
                (api, Some(simulator))
            }
        };
        Ok(Driver { calls: Calls { api }, simulator })
    }

    /// Returns whether the driver is simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulator.is_some()
    }

    /// Returns the header of a record. Creates no context.
    pub(crate) fn header(&self, choice: &Choice) -> Result<Header, OpenError> {
        self.describe(choice).map_err(|error| OpenError::Unusable(error.to_string()))
    }

    fn describe(&self, choice: &Choice) -> Result<Header, Failure> {
        let calls = &self.calls;
        calls.cuInit().must()?;
        let device = calls.cuDeviceGet(0).must()?;
        let mut name = [0; 128];
        calls.cuDeviceGetName(&mut name, device)?.must()?;
        // SAFETY: the driver writes a NUL-terminated name within the given length.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |which| calls.cuDeviceGetAttribute(which, device)?.must();
        let sm_count = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let cuda = matches!(choice, Choice::Cuda(_));
        Ok(Header {
            driver: if cuda { "cuda" } else { "simulated" }.to_owned(),
            driver_version: calls.api.version().to_string(),
            device: name,
            sm_count: u32::try_from(sm_count).unwrap_or(0),
            compute_capability: format!("{major}.{minor}"),
            date: crate::record::today(),
            kernel_driver: if cuda { green_ctx_sys::kernel_driver() } else { None },
        })
    }
}

fn simulated(profile: &str) -> Result<(Api, Sim), OpenError> {
    let refused = |reason: String| OpenError::Simulated { profile: profile.to_owned(), reason };
    let spec: Spec = profile.parse().map_err(|error: SpecError| refused(error.to_string()))?;
    let sim = Sim::new(spec).map_err(|error| refused(error.to_string()))?;
    // SAFETY: the pointer is the simulated driver's, whose functions are valid while `sim` is alive. The caller
    // keeps `sim` next to the `Api`.
    let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
    Ok((api, sim))
}

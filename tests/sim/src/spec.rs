//! Which part and which driver version a simulated driver plays.

use std::fmt;
use std::str::FromStr;

use crate::Profile;

/// The driver versions that can be simulated, as the driver itself counts them.
pub const VERSIONS: &[u32] = &[12_040, 12_050, 12_080, 13_000, 13_010, 13_040];

/// The version that a [`Spec`] without one means: the version that the records are of.
const DEFAULT_VERSION: u32 = 13_000;

/// A profile and a driver version, written `h200@13.0` or just `h200`.
///
/// # Example
///
/// ```
/// use green_ctx_sim::Spec;
///
/// let spec: Spec = "h200@12.4".parse()?;
/// assert_eq!(spec.version(), 12040);
/// assert_eq!(spec.to_string(), "h200@12.4");
/// assert_eq!("h200".parse::<Spec>()?.to_string(), "h200@13.0");
///
/// let error = "h200@9.9".parse::<Spec>().unwrap_err();
/// assert!(error.to_string().contains("13.1"));
/// # Ok::<(), green_ctx_sim::SpecError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Spec {
    profile: &'static Profile,
    version: u32,
}

/// Why a [`Spec`] could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// There is no profile of this name.
    #[error("unknown profile {name:?}; the profiles are {}", list(Profile::names()))]
    Profile {
        /// The name that was given.
        name: String,
    },
    /// This driver version is not simulated.
    #[error("unknown driver version {version:?}; the versions are {}", list(VERSIONS.iter().map(|&version| dotted(version))))]
    Version {
        /// The version that was given.
        version: String,
    },
}

fn list(items: impl Iterator<Item = impl fmt::Display>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// The version as people write it: 13000 is 13.0.
pub(crate) fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

impl Spec {
    /// The profile of the simulated devices.
    #[must_use]
    pub fn profile(&self) -> &'static Profile {
        self.profile
    }

    /// The driver version as `cuDriverGetVersion` returns it, 13000 for CUDA 13.0.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The same part with another driver version, as in `13.1`.
    ///
    /// # Errors
    ///
    /// [`SpecError::Version`] for a version that is not simulated.
    pub fn with_version(mut self, version: &str) -> Result<Spec, SpecError> {
        let known = VERSIONS.iter().find(|&&known| dotted(known) == version);
        self.version = *known.ok_or_else(|| SpecError::Version { version: version.to_owned() })?;
        Ok(self)
    }
}

impl TryFrom<&str> for Spec {
    type Error = SpecError;

    fn try_from(text: &str) -> Result<Spec, SpecError> {
        text.parse()
    }
}

impl From<std::convert::Infallible> for SpecError {
    fn from(never: std::convert::Infallible) -> SpecError {
        match never {}
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let unknown = || SpecError::Profile { name: name.to_owned() };
        let profile = Profile::by_name(name).ok_or_else(unknown)?;
        let spec = Spec { profile, version: DEFAULT_VERSION };
        match version {
            Some(version) => spec.with_version(version),
            None => Ok(spec),
        }
    }
}

impl Default for Spec {
    /// An H200 with driver 13.0, the part and version that the records are of.
    fn default() -> Spec {
        Spec { profile: &Profile::all()[0], version: DEFAULT_VERSION }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.profile.name, dotted(self.version))
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spec({self})")
    }
}

impl PartialEq for Spec {
    fn eq(&self, other: &Spec) -> bool {
        (self.profile.name, self.version) == (other.profile.name, other.version)
    }
}

impl Eq for Spec {}

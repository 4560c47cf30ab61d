//! The GPU and the driver version of a simulated driver.

use std::fmt;
use std::str::FromStr;

use crate::Profile;
use crate::profile::{H200, by_rule, dotted};

/// The driver versions that behave differently, as `cuDriverGetVersion` returns them. A [`Spec`] may also name 12.6,
/// 12.7, 12.9, 13.2 and 13.3.
pub const VERSIONS: &[u32] = &[12_040, 12_050, 12_080, 13_000, 13_010, 13_040, 13_050];

/// Further versions that a [`Spec`] may name. They behave as the version before them, except for the functions that
/// they add.
const BETWEEN: &[u32] = &[12_060, 12_070, 12_090, 13_020, 13_030];

/// The driver version of a [`Spec`] that names no version. This version was recorded, and it supports
/// every profile.
const DEFAULT_VERSION: u32 = 13_000;

/// A profile and a driver version, written `h200@13.0` or just `h200`.
///
/// A GPU without a profile is written as its number of SMs and its compute capability: `36sm,cc12.0` is an RTX 5060 Ti.
/// All else is then as on another GPU of the same generation, and was recorded on none.
///
/// The driver must be new enough for the GPU, so `b200@12.4` is an error.
///
/// # Examples
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

/// An error from reading a [`Spec`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No profile has this name.
    #[error(
        "unknown profile {name:?}; the profiles are {}, or a number of SMs and a compute capability as in 36sm,cc12.0",
        list(Profile::names())
    )]
    Profile {
        /// The name in the spec.
        name: String,
    },
    /// A number of SMs or a compute capability that no GPU can have.
    #[error("{name:?} is no GPU that can be simulated: {why}")]
    Rule {
        /// The name in the spec.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// This driver version is not simulated.
    #[error("unknown driver version {version:?}; the versions are {}", list(versions().map(dotted)))]
    Version {
        /// The version in the spec.
        version: String,
    },
    /// A driver of this version does not support the GPU.
    #[error("a driver for CUDA {} does not support {profile}; use CUDA {} or newer", dotted(*version), dotted(*first))]
    TooOld {
        /// The profile's name.
        profile: &'static str,
        /// The version in the spec, as `cuDriverGetVersion` returns it.
        version: u32,
        /// The first version that supports the GPU.
        first: u32,
    },
}

green_ctx_sys::debug_as_text!(SpecError);

/// Returns all versions, in order.
fn versions() -> impl Iterator<Item = u32> {
    let mut all = [VERSIONS, BETWEEN].concat();
    all.sort_unstable();
    all.into_iter()
}

fn list(items: impl Iterator<Item = impl fmt::Display>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

impl Spec {
    /// Returns every profile with every version in [`VERSIONS`] that supports it, ordered by name and version.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::Spec;
    ///
    /// let thor = Spec::all().filter(|spec| spec.profile().name == "thor");
    /// assert_eq!(thor.map(|spec| spec.version()).min(), Some(13_000));
    /// ```
    pub fn all() -> impl Iterator<Item = Spec> {
        Profile::all().iter().flat_map(|profile| {
            let versions = VERSIONS.iter().filter(|&&version| version >= profile.first_driver);
            versions.map(move |&version| Spec { profile, version })
        })
    }

    /// Returns the profile of the simulated devices.
    #[must_use]
    pub fn profile(&self) -> &'static Profile {
        self.profile
    }

    /// Returns the driver version in the format of `cuDriverGetVersion`, such as 13000 for CUDA 13.0.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the same GPU with another driver version, such as `13.1`.
    ///
    /// # Errors
    ///
    /// - [`SpecError::Version`] if the version is not simulated.
    /// - [`SpecError::TooOld`] if the version does not support the GPU.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::Spec;
    ///
    /// let newer = Spec::default().with_version("13.1")?;
    /// assert_eq!(newer.to_string(), "h200@13.1");
    /// # Ok::<(), green_ctx_sim::SpecError>(())
    /// ```
    pub fn with_version(self, version: &str) -> Result<Spec, SpecError> {
        let known = versions().find(|&known| dotted(known) == version);
        let version = known.ok_or_else(|| SpecError::Version { version: version.to_owned() })?;
        let Profile { name: profile, first_driver: first, .. } = *self.profile;
        if version < first {
            return Err(SpecError::TooOld { profile, version, first });
        }
        Ok(Spec { version, ..self })
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
        let profile = match by_rule(name) {
            Some(made) => made.map_err(|why| SpecError::Rule { name: name.to_owned(), why })?,
            None => Profile::by_name(name).ok_or_else(unknown)?,
        };
        let spec = Spec { profile, version: DEFAULT_VERSION };
        match version {
            Some(version) => spec.with_version(version),
            None => Ok(spec),
        }
    }
}

impl Default for Spec {
    /// Returns the spec of the recorded GPU and driver, which are an H200 and CUDA 13.0.
    fn default() -> Spec {
        static RECORDED: Profile = H200;
        Spec { profile: &RECORDED, version: DEFAULT_VERSION }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        text.parse::<Spec>().expect_err("it is not a spec").to_string()
    }

    #[test]
    fn every_spec_is_read_back() {
        for spec in Spec::all() {
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
        for name in Profile::names() {
            let spec: Spec = name.parse().expect("the default version supports every GPU");
            assert_eq!((spec.profile().name, spec.version()), (name, DEFAULT_VERSION));
        }
        assert_eq!(Spec::default(), "h200@13.0".parse().expect("a spec"));
        let made: Spec = "36sm,cc12.0@13.2".parse().expect("a spec");
        assert_eq!((made.to_string().as_str(), made.version()), ("36sm,cc12.0@13.2", 13_020));
        assert_eq!(made.to_string().parse(), Ok(made));
    }

    /// One spec per GPU and version, without GPUs that are newer than the driver.
    #[test]
    fn old_drivers_do_not_know_new_parts() {
        let newer = |version: u32| {
            let unknown = Profile::all().iter().filter(move |part| part.first_driver > version);
            unknown.map(|part| part.name).collect::<Vec<_>>()
        };
        assert_eq!(newer(12_050), ["b200", "rtx5080", "thor"]);
        assert_eq!(newer(12_080), ["thor"]);
        assert!(newer(13_000).is_empty());
        assert_eq!(Spec::all().count(), 7 * 7 - 3 * 2 - 1);
        assert_eq!(
            message("b200@12.4"),
            "a driver for CUDA 12.4 does not support b200; use CUDA 12.8 or newer"
        );
        assert!(message("thor@12.8").ends_with("use CUDA 13.0 or newer"));
    }

    #[test]
    fn errors_list_what_there_is() {
        assert_eq!(
            message("h201@13.0"),
            "unknown profile \"h201\"; the profiles are a100, b200, h100, h200, l40s, rtx5080, thor, or a number of \
             SMs and a compute capability as in 36sm,cc12.0"
        );
        assert_eq!(
            message("h200@9.9"),
            "unknown driver version \"9.9\"; the versions are 12.4, 12.5, 12.6, 12.7, 12.8, 12.9, 13.0, 13.1, \
             13.2, 13.3, 13.4, 13.5"
        );
        assert!(message("h200@").starts_with("unknown driver version \"\""));
        assert!(message("35sm,cc12.0").ends_with("so their number must be even"));
        assert!(message("36sm,cc12.0@12.4").ends_with("use CUDA 12.8 or newer"));
        assert!(message("").starts_with("unknown profile \"\""));
    }
}

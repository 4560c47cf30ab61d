//! CUDA versions as the driver numbers them.

use core::fmt;
use std::fs;

/// A CUDA version: 13000 is 13.0, and 12040 is 12.4.
///
/// `cuDriverGetVersion` returns a version as such a number, and `cuGetProcAddress` takes such a number as an
/// argument.
///
/// # Examples
///
/// ```
/// use green_ctx_sys::Version;
///
/// assert_eq!(Version::new(12, 4).number(), 12040);
/// assert!(Version::new(12, 4) < Version::from_number(13000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u32);

impl Version {
    /// Creates a version from the driver's number, `1000 * major + 10 * minor`.
    #[must_use]
    pub const fn from_number(number: u32) -> Version {
        Version(number)
    }

    /// Creates the version `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Version {
        Version(major * 1000 + minor * 10)
    }

    /// Returns the driver's number, for example 13000 for 13.0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the major version, for example 13 for 13.0.
    #[must_use]
    pub const fn major(self) -> u32 {
        self.0 / 1000
    }

    /// Returns the minor version, for example 0 for 13.0.
    #[must_use]
    pub const fn minor(self) -> u32 {
        self.0 % 1000 / 10
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// Returns the version of the kernel driver, such as `580.159.04`, if the system reports it. Linux reports this
/// version in `/proc/driver/nvidia/version`. The result does not depend on which driver library is loaded.
///
/// For the newest CUDA version that the driver supports, use [`Api::version`](crate::Api::version).
///
/// # Examples
///
/// ```
/// println!("driver {}", green_ctx_sys::kernel_driver().as_deref().unwrap_or("unknown"));
/// ```
#[must_use]
pub fn kernel_driver() -> Option<String> {
    version_in(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// Returns the version in the first line of the text, where the version follows the module's name.
fn version_in(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.') && word.chars().all(|letter| letter == '.' || letter.is_ascii_digit())
    };
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_own_version_is_found() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n\
                    GCC version:  gcc 13.3.0\n";
        assert_eq!(version_in(text).as_deref(), Some("580.159.04"));
        assert_eq!(version_in("nothing\n1.2"), None);
    }
}

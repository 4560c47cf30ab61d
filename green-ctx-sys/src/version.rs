//! CUDA versions as the driver counts them.

use core::fmt;
use std::fs;

/// A CUDA version: 13000 is 13.0, 12040 is 12.4.
///
/// The number is what `cuDriverGetVersion` returns and what symbols are asked for at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u32);

impl Version {
    /// The version behind the driver's number, `1000 * major + 10 * minor`.
    #[must_use]
    pub const fn from_number(number: u32) -> Version {
        Version(number)
    }

    /// The version `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Version {
        Version(major * 1000 + minor * 10)
    }

    /// The driver's number, 13000 for 13.0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// 13 of 13.0.
    #[must_use]
    pub const fn major(self) -> u32 {
        self.0 / 1000
    }

    /// 0 of 13.0.
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

/// The version of the driver itself, such as `580.159.04`, where the system reports it (Linux does, in
/// `/proc/driver/nvidia/version`). `cuDriverGetVersion` returns the newest version of CUDA that it supports.
///
/// It is that of the driver's part in the kernel, whichever library has been loaded.
#[must_use]
pub fn kernel_driver() -> Option<String> {
    version_in(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The version in the first line, behind the name of the module.
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

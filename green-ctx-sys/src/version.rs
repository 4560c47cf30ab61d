//! CUDA versions as the driver counts them.

use core::fmt;

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

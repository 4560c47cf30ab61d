//! Loads a library in front of the CUDA driver that confines work outside of partitions. `front/front.rs` is the
//! library, and explains the mechanism. Programs use it through the feature `reserve` of `green-ctx`.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub mod program;

#[cfg(target_os = "linux")]
pub use linux::{files, reserve};

/// The reason why no SMs can be reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver is in use already, or another library has opened it.
    #[error(
        "libcuda is loaded already, so it is too late to confine work outside of partitions: reserve SMs before \
         the program uses CUDA or imports a library that does, or set GREEN_CTX_RESERVE"
    )]
    Loaded,
    /// As [`Loaded`](Error::Loaded), for the amount in the environment variable.
    #[error(
        "{VARIABLE} is set, but libcuda was loaded first, so it is too late to confine work outside of partitions: load \
         this library before others that use CUDA (in Python, import green_ctx_torch before torch), or start the \
         program with `green-ctx run --reserve`"
    )]
    LoadedFirst,
    /// This process has requested this other amount before.
    #[error(
        "a reserve of {0} was requested in this process already, by a call, {VARIABLE} or `green-ctx run --reserve`, and cannot be changed"
    )]
    Other(Amount),
    /// The environment variable is not a number of SMs or a percentage.
    #[error("{VARIABLE}={0} is not a number of SMs such as 32, or a percentage such as 25%")]
    Variable(String),
    /// There is no driver.
    #[error("the system's loader finds no {}", green_ctx_sys::LIBRARY)]
    NotFound,
    /// The system is not Linux.
    #[error("a reserve needs Linux")]
    System,
    /// The driver lacks a function.
    #[error("the driver {} lacks a function of green contexts; a reserve needs CUDA 12.5", .0.display())]
    Unsupported(std::path::PathBuf),
    /// The library cannot be written to memory, or the driver's path is too long for it.
    #[error("the library in front of the driver cannot be written")]
    Memory(#[source] std::io::Error),
    /// The system's loader refuses the library.
    #[error("the library in front of the driver cannot be loaded")]
    Load(#[source] libloading::Error),
}

/// The environment variable that [`from_environment`] reads.
pub const VARIABLE: &str = "GREEN_CTX_RESERVE";

/// Reserves the amount in [`VARIABLE`], if it is set and not empty.
///
/// # Errors
///
/// As for [`reserve`], but [`Error::LoadedFirst`] in place of [`Error::Loaded`], and [`Error::Variable`].
pub fn from_environment() -> Result<(), Error> {
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(());
    };
    reserve(Amount::parse(&text.to_string_lossy())?).map_err(|error| match error {
        Error::Loaded => Error::LoadedFirst,
        error => error,
    })
}

/// An amount of SMs of each device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The number of SMs, or the percentage.
    pub number: u32,
    /// Whether the number is a percentage of the device's SMs.
    pub percent: bool,
    /// Whether this is the amount of the rest. In this case, nothing is reserved for partitions: the rest is the whole
    /// device for everybody, green-ctx included. It is rounded down to whole units, like a ceiling.
    pub of_rest: bool,
}

impl Amount {
    /// Reads the amount of a reserve, such as `32` or `25%`.
    ///
    /// # Errors
    ///
    /// [`Error::Variable`].
    pub fn parse(text: &str) -> Result<Amount, Error> {
        let (number, percent) = text.strip_suffix('%').map_or((text, false), |part| (part, true));
        match number.trim().parse() {
            Ok(number) if number > 0 && !(percent && number > 100) => {
                Ok(Amount { number, percent, of_rest: false })
            }
            _ => Err(Error::Variable(text.to_owned())),
        }
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{} SMs", self.number, if self.percent { " % of the" } else { "" })
    }
}

/// Fails: a reserve needs Linux.
///
/// # Errors
///
/// [`Error::System`].
#[cfg(not(target_os = "linux"))]
pub fn reserve(_: Amount) -> Result<(), Error> {
    Err(Error::System)
}

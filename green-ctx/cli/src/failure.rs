//! Failures of commands, and their exit statuses.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;

use green_ctx::{Error, LoadError, error::ErrorKind, resource::NotEnoughSms};

use crate::jobs::JobError;

/// The exit status if verification fails or no arm is certain to meet a bound.
pub(crate) const NOT_VERIFIED: u8 = 1;
/// The exit status for invalid arguments.
pub(crate) const BAD_USAGE: u8 = 2;
/// The exit status if the driver is missing, too old or broken.
pub(crate) const NO_DRIVER: u8 = 3;
/// The exit statuses if a program cannot be run, and if it is not found, as of `env` and `timeout`.
#[cfg(target_os = "linux")]
const NOT_RUN: u8 = 126;
#[cfg(target_os = "linux")]
const NOT_FOUND: u8 = 127;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The arguments could not be parsed.
    #[error("{}", summary(.0))]
    Usage(clap::Error),
    /// The arguments could be parsed, but the request is invalid.
    #[error("{0}")]
    Request(String),
    /// The goal of `tune` cannot be met, or a measurement was interrupted before there was a result.
    #[error("{0}")]
    NotMet(String),
    /// The library refused the request, or the driver failed.
    #[error(transparent)]
    Library(#[from] Error),
    /// The request does not fit, but the same request with `--fine` would fit.
    #[error("{0}; with --fine the request fits")]
    FitsFinely(Error),
    /// No driver is installed, or the installed one does not work, and `--driver` is `auto`. The text is advice for a
    /// machine without a GPU.
    #[error("{}; {}", state(.0), .1)]
    NoDriver(#[source] Error, &'static str),
    /// A program cannot be held to its SMs.
    #[cfg(target_os = "linux")]
    #[error("the program cannot be held to its SMs, so it does not run")]
    Unheld(#[from] green_ctx_reserve::program::Error),
    /// A program does not start.
    #[cfg(target_os = "linux")]
    #[error("cannot run {}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The command cannot write to standard output.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Failure {
        match error {
            JobError::Library(error) => Failure::Library(error),
            other => Failure::Request(other.to_string()),
        }
    }
}

impl Failure {
    /// Returns the kind of the failure as one word, for JSON output.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Failure::Usage(_) | Failure::Request(_) => "usage",
            Failure::NotMet(_) => "not_met",
            Failure::Library(error) | Failure::FitsFinely(error) | Failure::NoDriver(error, _) => {
                kind(error).as_str()
            }
            #[cfg(target_os = "linux")]
            Failure::Unheld(_) | Failure::Program { .. } => "io",
            Failure::File { .. } | Failure::Output(_) => "io",
        }
    }

    /// Returns the details of the shortage, if the request does not fit.
    pub(crate) fn shortage(&self) -> Option<&NotEnoughSms> {
        match self {
            Failure::Library(Error::NotEnoughSms(shortage))
            | Failure::FitsFinely(Error::NotEnoughSms(shortage)) => Some(shortage),
            _ => None,
        }
    }

    /// Returns the exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Failure::NoDriver(..) => NO_DRIVER,
            Failure::NotMet(_) => NOT_VERIFIED,
            Failure::Library(error) | Failure::FitsFinely(error) => match kind(error) {
                ErrorKind::InvalidRequest | ErrorKind::Unavailable => BAD_USAGE,
                _ => NO_DRIVER,
            },
            #[cfg(target_os = "linux")]
            Failure::Program { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => NOT_RUN,
            },
            _ => BAD_USAGE,
        }
    }

    /// Returns the failure's own message, followed by the messages of the failure's sources.
    pub(crate) fn chain(&self) -> Vec<String> {
        let mut layers = vec![self.to_string()];
        let mut source = self.source();
        while let Some(error) = source {
            layers.push(error.to_string());
            source = error.source();
        }
        layers
    }
}

/// Returns words for an error of loading the installed driver.
fn state(error: &Error) -> &'static str {
    match error {
        Error::Load(LoadError::NotFound { .. }) => "no NVIDIA driver is installed",
        error if kind(error) == ErrorKind::NoDriver => {
            "the NVIDIA driver finds no GPU, or CUDA_VISIBLE_DEVICES hides it"
        }
        _ => "the installed NVIDIA driver does not work",
    }
}

/// Returns the kind of an error. If the driver has no devices, returns `NoDriver` for any device number.
fn kind(error: &Error) -> ErrorKind {
    match error {
        Error::NoSuchDevice { count: 0, .. } => ErrorKind::NoDriver,
        error => error.kind(),
    }
}

/// Returns the first paragraph of a clap error on one line.
fn summary(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let paragraph = paragraph.strip_prefix("error: ").unwrap_or(paragraph);
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::WITHOUT_A_GPU;
    use green_ctx::{CUresult, Version};

    #[test]
    fn the_status_says_whose_turn_it_is() {
        let status = |error: Error| Failure::from(error).status();
        assert_eq!(status(Error::InvalidRequest(String::new())), BAD_USAGE);
        assert_eq!(status(Error::NoSuchDevice { ordinal: 9, count: 1 }), BAD_USAGE);
        assert_eq!(status(Error::NoSuchDevice { ordinal: 0, count: 0 }), NO_DRIVER);
        let (needs, found) = (Version::new(12, 5), Version::new(12, 4));
        assert_eq!(status(Error::Unsupported { call: "cuInit", needs, found }), NO_DRIVER);
        let status_999 = CUresult::CUDA_ERROR_UNKNOWN;
        assert_eq!(status(Error::Driver { call: "cuInit", status: status_999 }), NO_DRIVER);
        assert_eq!(Failure::from(io::Error::other("disk full")).status(), BAD_USAGE);
    }

    #[test]
    fn a_missing_driver_is_not_called_broken() {
        let missing = crate::DriverChoice::Library("/nowhere/libcuda.so.1".into()).load();
        let Err(Failure::Library(missing)) = missing else { panic!("it is not there") };
        let empty = Error::NoSuchDevice { ordinal: 0, count: 0 };
        for (error, begins) in
            [(missing, "no NVIDIA driver is"), (empty, "the NVIDIA driver finds no GPU")]
        {
            let failure = Failure::NoDriver(error, WITHOUT_A_GPU);
            assert!(failure.to_string().starts_with(begins), "{failure}");
            assert!(failure.to_string().ends_with(WITHOUT_A_GPU), "{failure}");
        }
    }

    #[test]
    fn the_chain_goes_down_to_the_cause() {
        let failure = Failure::File { path: "a.svg".into(), source: io::Error::other("disk full") };
        assert_eq!(failure.chain(), ["cannot write a.svg", "disk full"]);
    }
}

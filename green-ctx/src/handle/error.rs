//! What can go wrong, and how a driver's answer becomes an [`Error`].

mod hint;

use std::fmt;

use green_ctx_sys::{CUresult, LoadError, Unsupported, Version};

use crate::handle::escape::Escape;
use crate::handle::token::DefaultStream;
use crate::ledger::{Holder, NotEnoughSms, Refusal};
use crate::work::fit::DoesNotFit;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Whatever the reason, nothing was created, taken or changed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no usable CUDA driver.
    #[error("no usable CUDA driver: {}", with_causes(.0))]
    Load(LoadError),
    /// The driver answered a call with an error.
    #[error("{call} failed: {status} ({}){}", status.0, hint::clause(*status))]
    Driver {
        /// The driver function.
        call: &'static str,
        /// Its answer.
        status: CUresult,
    },
    /// This driver lacks what the operation needs.
    #[error("{call} needs CUDA {needs}, the driver supports {found}")]
    Unsupported {
        /// The driver function, or what of it is needed.
        call: &'static str,
        /// The version that it needs.
        needs: Version,
        /// The driver's version.
        found: Version,
    },
    /// There is no device of this ordinal.
    #[error("there is no device {ordinal}; {}", available_devices(*count))]
    NoSuchDevice {
        /// The ordinal that was asked for.
        ordinal: u32,
        /// How many devices there are.
        count: u32,
    },
    /// The groups that were asked for do not fit into the SMs that are free.
    #[error("{0}")]
    NotEnoughSms(Box<NotEnoughSms>),
    /// A request that no device could fulfil.
    #[error("{0}")]
    InvalidRequest(String),
    /// The device is cut into other units, of which some are held.
    ///
    /// The driver does not report how fine and coarse units overlap, so both at once could share
    /// SMs without anybody knowing. On a 12.4 driver the same holds for groups of different sizes.
    #[error(
        "the device is cut into {held}, of which some are held{}; drop them to cut it otherwise",
        by(holders)
    )]
    CutInUse {
        /// What the device is cut into: `coarse units`, `fine units`, `coarse groups of 16 SMs`.
        held: String,
        /// Who holds some, or shares some.
        holders: Vec<Holder>,
    },
    /// A context was provisioned with another count than the group's.
    #[error("the context was provisioned with {found} SMs instead of the group's {expected}")]
    WrongSmCount {
        /// The group's count.
        expected: u32,
        /// What the driver says of the context.
        found: u32,
    },
    /// Two objects of different devices or drivers met in one operation.
    #[error("{what} belong to different devices")]
    DeviceMismatch {
        /// Which objects.
        what: &'static str,
    },
    /// A kernel's parameters and the arguments given differ.
    #[error("kernel {kernel} {problem}")]
    Arguments {
        /// The kernel's name.
        kernel: String,
        /// How they differ.
        problem: String,
    },
    /// The SMs of a stream's context have no room for a launch whose blocks have to be there at once.
    #[error("{0}")]
    DoesNotFit(Box<DoesNotFit>),
    /// A context made current by a guard was not the thread's current one when the guard ended.
    #[error("a guard ended out of order: another context is current")]
    GuardOrder,
    /// The driver was initialised before this process was forked from another.
    #[error(
        "the driver was initialised before this process was forked, and CUDA does not survive that; \
         use it in a process that is started anew, or fork before it is loaded"
    )]
    Forked,
    /// A default-stream token was given for a stream's handle.
    #[error(
        "{token} is no handle: it stands for a stream of whatever context is current when it is \
         used, so that no object can stand for it; use `DefaultStream`"
    )]
    DefaultStream {
        /// The token.
        token: DefaultStream,
    },
    /// A raw handle was to be owned that an object stands for already.
    #[error("an object stands for this {what} already; a second owner would destroy it twice")]
    AlreadyOwned {
        /// What the handle is of: `stream` or `event`.
        what: &'static str,
    },
    /// What happens once, such as a function of the program, a copy to the host or the end of an allocation,
    /// was submitted to a stream that is being captured.
    #[error(
        "the stream is being captured into a graph, which may run often, and this happens once: \
         end the capture first"
    )]
    Capturing,
    /// A launch that is checked ([`Driver::check_launches`](crate::Driver::check_launches)) would run
    /// outside of the partition that it should be in. Nothing was launched.
    #[error("{0}")]
    Escapes(Box<Escape>),
    /// A function of the program panicked where the driver had called it.
    #[error("a function submitted to a stream panicked: {message}")]
    HostPanic {
        /// What it panicked with, when that is text.
        message: String,
    },
    /// The simulated driver could not be made.
    #[cfg(feature = "sim")]
    #[error("the simulated driver could not be made: {}", with_causes(.0))]
    Simulator(green_ctx_sim::SimError),
}

green_ctx_sys::debug_as_text!(Error);

/// Something that was not done, with what was given for it. It prints as the reason.
///
/// What was given is as usable as before. `?` makes an [`Error`] of a refusal whose reason is one, and drops what was
/// given.
pub struct Refused<T, R = Error> {
    /// What was given.
    pub given: T,
    /// Why it was not done.
    pub reason: R,
}

impl<T, R: fmt::Display> fmt::Display for Refused<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<T, R: std::error::Error> fmt::Debug for Refused<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        green_ctx_sys::fmt_with_sources(self, f)
    }
}

impl<T, R: std::error::Error> std::error::Error for Refused<T, R> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.reason.source()
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Error {
        refused.reason
    }
}

impl<T> From<Box<Refused<T>>> for Error {
    fn from(refused: Box<Refused<T>>) -> Error {
        refused.reason
    }
}

/// What an [`Error`] means for the program that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no driver, or no device, to work with.
    NoDriver,
    /// The driver is too old for this.
    Unsupported,
    /// The request was wrong; another one can succeed.
    InvalidRequest,
    /// The request was right and not now possible: what it needs is in use.
    Unavailable,
    /// The driver failed.
    Driver,
}

impl ErrorKind {
    /// The kind as one word, for reports: `no_driver`, `unsupported`, `invalid_request`,
    /// `unavailable` or `driver`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::NoDriver => "no_driver",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::InvalidRequest => "invalid_request",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Driver => "driver",
        }
    }
}

impl Error {
    /// A call that succeeded and gave no handle, which no driver is known to do.
    #[cold]
    pub(crate) const fn null(call: &'static str) -> Error {
        Error::Driver { call, status: CUresult::CUDA_ERROR_INVALID_HANDLE }
    }

    /// What the error means for the caller.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Load(_) | Error::Forked => ErrorKind::NoDriver,
            #[cfg(feature = "sim")]
            Error::Simulator(_) => ErrorKind::NoDriver,
            Error::NoSuchDevice { count: 0, .. } => ErrorKind::NoDriver,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::NotEnoughSms(shortage)
                if shortage.holders.is_empty()
                    && shortage.sharers.is_empty()
                    && shortage.quarantined == 0 =>
            {
                ErrorKind::InvalidRequest
            }
            Error::NotEnoughSms(_) | Error::CutInUse { .. } => ErrorKind::Unavailable,
            Error::NoSuchDevice { .. }
            | Error::InvalidRequest(_)
            | Error::DeviceMismatch { .. }
            | Error::Arguments { .. }
            | Error::DoesNotFit(_)
            | Error::DefaultStream { .. }
            | Error::AlreadyOwned { .. }
            | Error::Capturing
            | Error::Escapes(_)
            | Error::HostPanic { .. }
            | Error::GuardOrder => ErrorKind::InvalidRequest,
            Error::Driver { call: "cuInit", .. } => ErrorKind::NoDriver,
            Error::Driver { .. } | Error::WrongSmCount { .. } => ErrorKind::Driver,
        }
    }

    /// Whether the driver is too old for the operation.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.kind() == ErrorKind::Unsupported
    }

    /// Whether the program asked for what cannot be, here or now, so that asking otherwise can
    /// succeed: a wrong request, a handle of something destroyed, a call that a capture forbids. The
    /// message says which constraint it was.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        match self {
            Error::Driver { status, .. } => hint::is_misuse(*status),
            Error::Forked => true,
            _ => self.kind() == ErrorKind::InvalidRequest,
        }
    }

    /// Whether work on the device failed in a way that ends all its contexts, as an illegal address
    /// does: every call answers the same until the process ends, whatever it is.
    ///
    /// Handles can be dropped as usual. The clean-up hook hears of such an error once a driver, not
    /// once a handle.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        self.status().is_some_and(hint::is_sticky)
    }

    /// The driver's answer, when it is what failed.
    #[must_use]
    pub fn status(&self) -> Option<CUresult> {
        match self {
            Error::Driver { status, .. } => Some(*status),
            _ => None,
        }
    }
}

fn by(holders: &[Holder]) -> String {
    let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
    if holders.is_empty() { String::new() } else { format!(" by {}", holders.join(", ")) }
}

/// An error and its causes on one line. [`Error`] returns no source for it, so nothing is printed twice.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Error {
        Error::Load(error)
    }
}

#[cfg(feature = "sim")]
impl From<green_ctx_sim::SimError> for Error {
    fn from(error: green_ctx_sim::SimError) -> Error {
        Error::Simulator(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::InvalidRequest(reason) => Error::InvalidRequest(reason),
            Refusal::NotEnoughSms(shortage) => Error::NotEnoughSms(shortage),
            Refusal::CutInUse { held, holders } => Error::CutInUse { held, holders },
        }
    }
}

impl From<Unsupported> for Error {
    fn from(Unsupported { call, needs, found }: Unsupported) -> Error {
        Error::Unsupported { call, needs, found }
    }
}

fn available_devices(count: u32) -> String {
    match count {
        0 => "the driver has none".to_owned(),
        1 => "the driver has one, device 0".to_owned(),
        count => format!("the driver has {count}, devices 0 to {}", count - 1),
    }
}

/// Turns a driver's answer into a result.
///
/// # Errors
///
/// [`Error::Driver`] with the call's name.
#[inline]
pub fn check(call: &'static str, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failure(call, status)) }
}

/// Turns the answer of a query into whether the work is done.
pub(crate) fn check_done(call: &'static str, status: CUresult) -> Result<bool> {
    match status {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        status => check(call, status).map(|()| true),
    }
}

#[cold]
fn failure(call: &'static str, status: CUresult) -> Error {
    Error::Driver { call, status }
}

/// Calls a driver function by name: looks it up, calls it, checks the answer; a [`Result`].
///
/// Expands to a call of a foreign function, so it stands in an `unsafe` block at the call site, with
/// the reason why the arguments are right.
///
/// # Example
///
/// ```
/// # fn main() -> green_ctx::Result<()> {
/// # let sim = green_ctx::sim::Sim::new("h200")?;
/// # let driver = green_ctx::Driver::simulated(&sim)?;
/// let mut free = 0;
/// let mut total = 0;
/// let _current = driver.device(0)?.primary_context()?.make_current()?;
/// // SAFETY: both pointers are to live integers.
/// unsafe { green_ctx::call!(driver.api(), cuMemGetInfo(&raw mut free, &raw mut total)) }?;
/// assert!(free <= total);
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $api.$function() {
            Ok(function) => {
                $crate::error::check(stringify!($function), function($($argument),*))
            }
            Err(lacking) => Err($crate::error::Error::from(lacking)),
        }
    };
}
pub(crate) use call;

//! Errors, and the functions that check the status of driver calls.

mod hint;

use std::fmt;

use green_ctx_sys::{CUresult, LoadError, Unsupported, Version};

use crate::handle::escape::Escape;
use crate::handle::token::DefaultStream;
use crate::ledger::{Holder, NotEnoughSms, Refusal, ShareError, UNBOUND};
use crate::work::fit::DoesNotFit;

#[cfg(feature = "reserve")]
pub use green_ctx_reserve::Error as ReserveError;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation failed. A failed operation takes no SMs. If it has another effect, such as an invalidated
/// capture, its documentation says so. A context that it has already created stays idle, for the next partition of these
/// SMs.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, Error, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// match device.partition([100, 100]) {
///     Err(Error::NotEnoughSms(shortage)) => println!("try {:?} SMs", shortage.nearest),
///     other => drop(other?),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no usable CUDA driver.
    #[error("no usable CUDA driver: {}", with_causes(.0))]
    Load(LoadError),
    /// No SMs can be reserved.
    #[cfg(feature = "reserve")]
    #[error("no SMs can be reserved: {}", with_causes(.0))]
    Reserve(ReserveError),
    /// A driver call returned an error.
    #[error("{call} failed: {status} ({}){}", status.0, hint::clause(*status))]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The status that the function returned.
        status: CUresult,
    },
    /// The driver is too old for the operation.
    #[error("{call} needs CUDA {needs}, but the driver supports only {found}")]
    Unsupported {
        /// The driver function that the operation needs, or the feature of a driver function.
        call: &'static str,
        /// The oldest CUDA version that has this function or feature.
        needs: Version,
        /// The CUDA version of the driver.
        found: Version,
    },
    /// There is no device with this ordinal.
    #[error("there is no device {ordinal}; {}", available_devices(*count))]
    NoSuchDevice {
        /// The requested ordinal.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// The requested groups do not fit into the free SMs.
    #[error("{0}")]
    NotEnoughSms(Box<NotEnoughSms>),
    /// The request is invalid: it cannot succeed on this device, or not in the present state.
    #[error("{0}")]
    InvalidRequest(String),
    /// The device is divided (*cut*) into units that differ from the requested ones, and some of the existing units are
    /// in use.
    ///
    /// The driver does not report how fine and coarse units overlap. If fine and coarse units were in use at the same
    /// time, partitions could share SMs without being detected. With a CUDA 12.4 driver, the same applies to groups of
    /// different sizes.
    #[error(
        "the device is cut into {held}, and some of them are in use{}; {}",
        by(holders),
        cut_advice(holders)
    )]
    CutInUse {
        /// The units that the device is cut into, such as `coarse units`, `fine units` or `coarse groups of 16 SMs`.
        held: String,
        /// The groups that hold or share some of the units in use.
        holders: Vec<Holder>,
    },
    /// An object, or work that has not ended, still uses what the operation needs.
    #[error("{0}")]
    InUse(String),
    /// The driver created a context with a different number of SMs than its group has.
    #[error("the driver created a context with {found} SMs for a group of {expected} SMs")]
    WrongSmCount {
        /// The number of SMs in the group.
        expected: u32,
        /// The number of SMs that the driver reports for the context.
        found: u32,
    },
    /// Two objects of different devices or drivers were used in one operation.
    #[error("{what} belong to different devices")]
    DeviceMismatch {
        /// The objects, such as `the kernel and the stream`.
        what: &'static str,
    },
    /// The arguments of a launch do not match the kernel's parameters.
    #[error("kernel {kernel} {problem}")]
    Arguments {
        /// The kernel's name.
        kernel: String,
        /// The mismatch.
        problem: String,
    },
    /// All blocks of the launch must be resident at the same time, but the SMs of the stream's context cannot hold
    /// them.
    #[error("{0}")]
    DoesNotFit(Box<DoesNotFit>),
    /// A [`Current`](crate::context::Current) guard was dropped while another context was current.
    #[error(
        "a guard was dropped out of order: another context is current; drop the newest guard first"
    )]
    GuardOrder,
    /// This process was forked after the driver was initialised.
    #[error(
        "the driver was initialised before this process was forked, and CUDA does not survive a \
         fork; use it in a newly started process, or fork before it is loaded"
    )]
    Forked,
    /// A default-stream token was passed instead of a stream handle.
    #[error(
        "{token} is not a stream handle: it means a stream of the context that is current when it \
         is used, so no object can represent it; use `DefaultStream`"
    )]
    DefaultStream {
        /// The token.
        token: DefaultStream,
    },
    /// Taking ownership of a raw handle failed, because an object of this crate already represents it.
    #[error(
        "an object already represents this {what}, and a second owner would destroy it twice; use \
         that object, or borrow the handle"
    )]
    AlreadyOwned {
        /// The kind of handle: `stream`, `event` or `graph`.
        what: &'static str,
    },
    /// An operation that can happen only once was submitted to a stream that is being captured. Examples are a host
    /// function, a copy to the host, and the end of an allocation.
    #[error(
        "the stream is being captured into a graph that can run many times, but this operation can \
         happen only once; end the capture first"
    )]
    Capturing,
    /// A checked launch ([`Driver::check_launches`](crate::Driver::check_launches)) would run outside its partition.
    /// Nothing was launched.
    #[error("{0}")]
    Escapes(Box<Escape>),
    /// A host function that the driver called from a stream panicked.
    #[error("a function submitted to a stream panicked: {message}")]
    HostPanic {
        /// The panic message, if the panic had one.
        message: String,
    },
    /// The simulated driver could not be created.
    #[cfg(feature = "sim")]
    #[error("could not create the simulated driver: {}", with_causes(.0))]
    Simulator(green_ctx_sim::SimError),
}

green_ctx_sys::debug_as_text!(Error);

/// The error of an operation that refused its argument. The error contains the argument and the reason, and is
/// displayed as the reason.
///
/// The argument can be used as before the call. In a function that returns [`Error`], the operator `?` converts the
/// refusal into the reason and drops the argument.
pub struct Refused<T, R = Error> {
    /// The value that was passed to the operation.
    pub given: T,
    /// The reason for the refusal.
    pub reason: R,
}

impl<T, R: fmt::Display> fmt::Display for Refused<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<T, R: std::error::Error> fmt::Debug for Refused<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        green_ctx_sys::write_with_sources(self, f)
    }
}

impl<T, R: std::error::Error> std::error::Error for Refused<T, R> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.reason.source()
    }
}

impl<T, R: Into<Error>> From<Refused<T, R>> for Error {
    fn from(refused: Refused<T, R>) -> Error {
        refused.reason.into()
    }
}

/// The class of an [`Error`], on which a program can base its reaction to the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no driver, or no device.
    NoDriver,
    /// The driver is too old for the operation, or for this crate, or the system cannot make a reserve.
    Unsupported,
    /// The request is wrong. A different request can succeed.
    InvalidRequest,
    /// The request is valid, but the resources that it needs are in use.
    Unavailable,
    /// The driver failed. It may be damaged or not ready, or the process was forked.
    Driver,
}

impl ErrorKind {
    /// Returns the name of the kind for reports: `no_driver`, `unsupported`, `invalid_request`, `unavailable` or
    /// `driver`.
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
    /// Returns the error for a driver call that succeeded but returned a null handle. No known driver does this.
    #[cold]
    pub(crate) const fn null(call: &'static str) -> Error {
        Error::Driver { call, status: CUresult::CUDA_ERROR_INVALID_HANDLE }
    }

    /// Returns the error for a reason that is not a failure of the driver.
    pub(crate) fn refusal(kind: ErrorKind, reason: &dyn std::error::Error) -> Error {
        let text = with_causes(reason);
        if kind == ErrorKind::Unavailable {
            Error::InUse(text)
        } else {
            Error::InvalidRequest(text)
        }
    }

    /// Returns the class of the error.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, error::ErrorKind, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let _decode = device.partition([100])?;
    /// let error = device.partition([100]).expect_err("the first partition has those SMs");
    /// assert_eq!(error.kind(), ErrorKind::Unavailable);
    /// assert_eq!(error.kind().as_str(), "unavailable");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Load(LoadError::NotFound { .. }) => ErrorKind::NoDriver,
            Error::Load(LoadError::TooOld { .. }) => ErrorKind::Unsupported,
            Error::Driver { call: "cuInit", status: CUresult::CUDA_ERROR_NO_DEVICE } => {
                ErrorKind::NoDriver
            }
            #[cfg(feature = "reserve")]
            Error::Reserve(error) => match error {
                green_ctx_reserve::Error::NotFound => ErrorKind::NoDriver,
                green_ctx_reserve::Error::Variable(_) => ErrorKind::InvalidRequest,
                green_ctx_reserve::Error::Loaded
                | green_ctx_reserve::Error::LoadedFirst
                | green_ctx_reserve::Error::Other(_) => ErrorKind::Unavailable,
                _ => ErrorKind::Unsupported,
            },
            #[cfg(feature = "sim")]
            Error::Simulator(green_ctx_sim::SimError::Spec(_)) => ErrorKind::InvalidRequest,
            #[cfg(feature = "sim")]
            Error::Simulator(_) => ErrorKind::Driver,
            Error::NoSuchDevice { count: 0, .. } => ErrorKind::NoDriver,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::NotEnoughSms(shortage)
                if shortage.exceeds_reserve()
                    || shortage.holders.is_empty()
                        && shortage.sharers.is_empty()
                        && shortage.quarantined == 0 =>
            {
                ErrorKind::InvalidRequest
            }
            Error::NotEnoughSms(_) | Error::CutInUse { .. } | Error::InUse(_) => {
                ErrorKind::Unavailable
            }
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
            // A program may continue without partitions if there is no driver. A driver that is damaged or not ready is no
            // reason for that.
            Error::Load(_) | Error::Forked | Error::Driver { .. } | Error::WrongSmCount { .. } => {
                ErrorKind::Driver
            }
        }
    }

    /// Returns whether the driver is too old for the operation, or the system cannot make a reserve.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.kind() == ErrorKind::Unsupported
    }

    /// Returns whether the caller made a mistake, so that a different call can succeed. Examples are an invalid
    /// request, a handle of a destroyed object, and a call that a capture forbids. The error's message names the
    /// violated constraint.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        match self {
            Error::Driver { status, .. } => hint::is_misuse(*status),
            Error::Forked => true,
            _ => self.kind() == ErrorKind::InvalidRequest,
        }
    }

    /// Returns whether work on the device failed in a way that ends all contexts of the device, such as an illegal
    /// address. Every later call on the device returns the same error until the process ends.
    ///
    /// Objects can still be dropped as usual. The clean-up hook receives such an error once per driver, not once per
    /// object.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        self.status().is_some_and(hint::is_sticky)
    }

    /// Returns the driver's status if a driver call failed, or `None` for other errors.
    #[must_use]
    pub fn status(&self) -> Option<CUresult> {
        match self {
            Error::Driver { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Returns what the caller can do to have the device cut differently.
fn cut_advice(holders: &[Holder]) -> &'static str {
    match holders.iter().any(|holder| &*holder.name == UNBOUND) {
        true => "a reserve keeps it cut like this",
        false => "drop those to cut it differently",
    }
}

fn by(holders: &[Holder]) -> String {
    let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
    if holders.is_empty() { String::new() } else { format!(" by {}", holders.join(", ")) }
}

/// Returns an error and its causes on one line. [`Error`] does not return this error as its `source`, so no cause is
/// printed twice.
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

impl From<ShareError> for Error {
    fn from(error: ShareError) -> Error {
        Error::InvalidRequest(error.to_string())
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

/// Converts a driver's status to a result.
///
/// # Errors
///
/// [`Error::Driver`] with the name of the call, unless the status is `CUDA_SUCCESS`.
#[inline]
pub fn check(call: &'static str, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failure(call, status)) }
}

/// Converts the status of a completion query to a `bool`: true if the work is done, and false if it is not.
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

/// Calls a driver function by name and returns a [`Result`]. The macro looks up the function, calls it and checks the
/// status.
///
/// The macro expands to a call of a foreign function. Each use of the macro therefore needs an `unsafe` block, with a
/// comment that explains why the arguments are valid.
///
/// # Examples
///
/// ```
/// # fn main() -> green_ctx::Result<()> {
/// # let sim = green_ctx::sim::Sim::new("h200")?;
/// # let driver = green_ctx::Driver::simulated(&sim)?;
/// let mut free = 0;
/// let mut total = 0;
/// let _current = driver.device(0)?.primary_context()?.make_current()?;
/// // SAFETY: `free` and `total` are live locals that the driver writes.
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

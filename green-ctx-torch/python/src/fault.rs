//! Errors as Python's exceptions, whose classes are in `green_ctx_torch._errors`.

use std::error::Error as StdError;

use green_ctx::{
    Error, Share,
    error::ErrorKind,
    graph::RetargetError,
    plan::PlanError,
    resource::{Amount, Holder, ShareKind},
};
use green_ctx_torch::TorchError;
use green_ctx_torch::allocator::AllocatorError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::code::{Code, import};
use crate::drop_in::DropIn;
use crate::named::is_set;

/// Why a call failed, until there is a GIL to make an exception with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// This module refuses the call.
    #[error("{message}")]
    Refused {
        /// The class of the exception.
        reason: Reason,
        /// Its text.
        message: String,
    },
    /// A request fits as soon as something else is closed.
    #[error("{}; {advice}", fault.message())]
    Advised {
        /// Why it does not fit.
        fault: Box<Fault>,
        /// How it fits.
        advice: String,
    },
    /// A drop-in failed, whose original raises RuntimeError for every failure.
    #[error("{}", .0.message())]
    Runtime(Box<Fault>),
    /// The library refused, or the driver failed.
    #[error(transparent)]
    Library(#[from] Error),
    /// A plan was not prepared, switched to or retired.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A graph was not moved.
    #[error(transparent)]
    Retarget(#[from] RetargetError),
    /// PyTorch is too old or of another kind, or what this thread has entered is not as it was.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// The allocator refused.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// Python code, a handler of a signal say, has raised this.
    #[error(transparent)]
    Python(PyErr),
}

/// The class of an exception: one per [`ErrorKind`], two for invalid requests, and one for closed objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    NoDriver,
    Unsupported,
    /// An invalid request that is a `ValueError`.
    Value,
    /// An invalid request that is a `RuntimeError`.
    State,
    Unavailable,
    Driver,
    Closed,
}

impl Reason {
    /// The name of the class in `green_ctx_torch._errors`.
    const fn class(self) -> &'static str {
        match self {
            Reason::NoDriver => "NoDriverError",
            Reason::Unsupported => "UnsupportedError",
            Reason::Value => "InvalidValueError",
            Reason::State => "InvalidStateError",
            Reason::Unavailable => "UnavailableError",
            Reason::Driver => "DriverError",
            Reason::Closed => "ClosedError",
        }
    }

    fn of(error: &Error) -> Reason {
        match (error, error.kind()) {
            // These depend on what a thread or a stream is doing.
            (
                Error::Capturing | Error::GuardOrder | Error::HostPanic { .. } | Error::Escapes(_),
                _,
            ) => Reason::State,
            // The device has fewer SMs, even if all of them are free.
            (Error::NotEnoughSms(shortage), _)
                if shortage
                    .requested
                    .iter()
                    .map(|share| least(*share, shortage.total))
                    .sum::<u64>()
                    > u64::from(shortage.total) =>
            {
                Reason::Value
            }
            (_, ErrorKind::NoDriver) => Reason::NoDriver,
            (_, ErrorKind::Unsupported) => Reason::Unsupported,
            (_, ErrorKind::InvalidRequest) => Reason::Value,
            (_, ErrorKind::Unavailable) => Reason::Unavailable,
            // A kind that is newer than this module counts as the driver's.
            (_, _) => Reason::Driver,
        }
    }
}

impl Fault {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Fault {
        Fault::Refused { reason, message: message.into() }
    }

    pub(crate) fn value(message: impl Into<String>) -> Fault {
        Fault::new(Reason::Value, message)
    }

    pub(crate) fn state(message: impl Into<String>) -> Fault {
        Fault::new(Reason::State, message)
    }

    pub(crate) fn closed(message: impl Into<String>) -> Fault {
        Fault::new(Reason::Closed, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Fault {
        Fault::new(Reason::Unavailable, message)
    }

    /// This fault with a way to make the request fit.
    pub(crate) fn advised(self, advice: impl Into<String>) -> Fault {
        Fault::Advised { fault: Box::new(self), advice: advice.into() }
    }

    /// What an exception says.
    pub(crate) fn message(&self) -> String {
        let mut message = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            message = format!("{message}: {error}");
            source = error.source();
        }
        message.push_str(self.library().map_or("", advice));
        message
    }

    /// The library's error, where that is what it is.
    pub(crate) fn library(&self) -> Option<&Error> {
        match self {
            Fault::Library(error)
            | Fault::Plan(PlanError::Error(error))
            | Fault::Retarget(RetargetError::Error(error))
            | Fault::Torch(TorchError::Driver(error))
            | Fault::Allocator(AllocatorError::Driver(error)) => Some(error),
            _ => None,
        }
    }

    pub(crate) fn reason(&self) -> Reason {
        if let Some(error) = self.library() {
            return Reason::of(error);
        }
        match self {
            Fault::Refused { reason, .. } => *reason,
            Fault::Advised { .. } => Reason::Unavailable,
            Fault::Runtime(fault) => match fault.reason() {
                Reason::Value => Reason::State,
                reason => reason,
            },
            Fault::Library(_) | Fault::Python(_) => Reason::State,
            Fault::Torch(error) => match error {
                TorchError::InvalidRequest(_) => Reason::Value,
                TorchError::Call { .. } => Reason::Driver,
                TorchError::NotLoaded
                | TorchError::NotFound { .. }
                | TorchError::NotALibrary { .. }
                | TorchError::CpuBuild
                | TorchError::TooOld { .. } => Reason::Unsupported,
                _ => Reason::State,
            },
            Fault::Allocator(error) => match error {
                AllocatorError::InvalidRequest(_)
                | AllocatorError::UnknownBlock { .. }
                | AllocatorError::NotShareable { .. } => Reason::Value,
                _ => Reason::Unavailable,
            },
            Fault::Plan(error) => match error {
                PlanError::Unknown { .. }
                | PlanError::NotOfThisSet { .. }
                | PlanError::Exists { .. }
                | PlanError::TwoOfOneName { .. } => Reason::Value,
                PlanError::NotDrained { .. } => Reason::Unavailable,
                _ => Reason::State,
            },
            Fault::Retarget(error) => match error {
                RetargetError::Immovable { .. } | RetargetError::DoesNotFit { .. } => Reason::Value,
                _ => Reason::Driver,
            },
        }
    }

    /// The exception, with the numbers of a request that does not fit.
    fn exception(&self, py: Python<'_>) -> PyResult<PyErr> {
        let class = import(py, "green_ctx_torch._errors")?.getattr(self.reason().class())?;
        let raised = class.run((self.message(),))?;
        let mut cause = self;
        while let Fault::Advised { fault, .. } | Fault::Runtime(fault) = cause {
            cause = fault;
        }
        let Some(error) = cause.library() else { return Ok(PyErr::from_value(raised)) };
        if let Error::NotEnoughSms(shortage) = error {
            let requested = shortage.requested.iter().map(ToString::to_string);
            raised.setattr("requested", requested.collect::<Vec<_>>())?;
            raised.setattr("free", shortage.free)?;
        }
        let holders = held_by(error).iter();
        let holders = holders.map(|holder| (holder.name.to_string(), holder.sm_count));
        raised.setattr("holders", holders.collect::<Vec<_>>())?;
        Ok(PyErr::from_value(raised))
    }
}

/// The holders of SMs that a request needs.
fn held_by(error: &Error) -> &[Holder] {
    match error {
        Error::NotEnoughSms(shortage) => &shortage.holders,
        Error::CutInUse { holders, .. } => holders,
        _ => &[],
    }
}

/// A sentence that an error lacks: how to work without a driver, or which object of this module to close.
fn advice(error: &Error) -> &'static str {
    match error {
        Error::Load(_) => {
            " (without a GPU, `cargo xtask sim-lib` in the repository of green-ctx builds a simulated \
             driver: start Python with LD_LIBRARY_PATH=target/sim-lib GREEN_CTX_SIM=h200@13.1)"
        }
        Error::NotEnoughSms(shortage)
            if shortage
                .sharers
                .iter()
                .any(|who| DropIn::of(&who.name) == Some(DropIn::GreenContext)) =>
        {
            " (a GreenContext without num_sms shares every SM that nobody has when it is created: \
             create it after what needs SMs of its own, or close it)"
        }
        _ if held_by(error).iter().any(|holder| is_set(&holder.name)) => {
            " (close() the set of plans first, or make it of fewer SMs with sm_count)"
        }
        _ => "",
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> PyErr {
        if let Fault::Python(raised) = fault {
            return raised;
        }
        let made = Python::try_attach(|py| fault.exception(py).unwrap_or_else(|error| error));
        // The interpreter is ending, and has no classes left.
        made.unwrap_or_else(|| PyRuntimeError::new_err(fault.message()))
    }
}

/// The SMs that a share needs for itself, of a device with `total`.
fn least(share: Share, total: u32) -> u64 {
    match share.kind() {
        ShareKind::Percent(percent)
        | ShareKind::Between { floor: Amount::Percent(percent), .. } => {
            u64::from(percent) * u64::from(total) / 100
        }
        _ => share.floor().map_or(0, u64::from),
    }
}

/// A number that cannot be negative, as the type that is needed.
pub(crate) fn unsigned<T: TryFrom<i64>>(what: &str, number: i64) -> Result<T, Fault> {
    let advice = match number < 0 {
        true => "give a whole number from 0 on",
        false => "give a smaller whole number",
    };
    let number = match number {
        // What these stand for is further from 0.
        i64::MIN => Err("so small".to_owned()),
        i64::MAX => Err("so large".to_owned()),
        number => T::try_from(number).map_err(|_| number.to_string()),
    };
    number.map_err(|number| Fault::value(format!("{what} cannot be {number}; {advice}")))
}

/// The name of an object's type, for messages.
pub(crate) fn kind(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

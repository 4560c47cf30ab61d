//! The conversion of errors to Python exceptions. The classes of the exceptions are in `green_ctx_torch._errors`.

use std::error::Error as StdError;

use green_ctx::{Error, error::ErrorKind, graph::RetargetError, plan::PlanError, resource::Holder};
use green_ctx_torch::TorchError;
use green_ctx_torch::allocator::AllocatorError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::code::{Code, import};
use crate::drop_in::DropIn;
use crate::named::is_set;

/// The reason why a call failed. The fault is converted to an exception once the thread holds the GIL.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// This module refuses the call.
    #[error("{message}")]
    Refused {
        /// The class of the exception.
        reason: Reason,
        /// The message of the exception.
        message: String,
    },
    /// The request would fit if the caller closed other partitions.
    #[error("{}; {advice}", fault.message())]
    Advised {
        /// The reason why the request does not fit.
        fault: Box<Fault>,
        /// Advice on how to make the request fit.
        advice: String,
    },
    /// A drop-in failed. The original class or function raises RuntimeError for every failure.
    #[error("{}", .0.message())]
    Runtime(Box<Fault>),
    /// The library refused the call, or the driver failed.
    #[error(transparent)]
    Library(#[from] Error),
    /// A plan could not be prepared, switched to or retired.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A graph could not be retargeted.
    #[error(transparent)]
    Retarget(#[from] RetargetError),
    /// PyTorch is missing, too old or built without CUDA, or a thread left partitions in the wrong order.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// The allocator refused the call.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// Python code, for example a signal handler, raised this exception.
    #[error(transparent)]
    Python(PyErr),
}

/// The class of an exception. There is one class per [`ErrorKind`], a second one for invalid requests, and one for
/// closed objects.
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
    /// Returns the name of the class in `green_ctx_torch._errors`.
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
            // These depend on the state of a thread or a stream.
            (
                Error::Capturing | Error::GuardOrder | Error::HostPanic { .. } | Error::Escapes(_),
                _,
            ) => Reason::State,
            (_, ErrorKind::NoDriver) => Reason::NoDriver,
            (_, ErrorKind::Unsupported) => Reason::Unsupported,
            (_, ErrorKind::InvalidRequest) => Reason::Value,
            (_, ErrorKind::Unavailable) => Reason::Unavailable,
            // An error kind that this module does not know yet.
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

    /// Adds advice on how to make the request fit.
    pub(crate) fn advised(self, advice: impl Into<String>) -> Fault {
        Fault::Advised { fault: Box::new(self), advice: advice.into() }
    }

    /// Returns the message of the exception, which consists of this error, its sources, and advice.
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

    /// Returns the error of the `green_ctx` crate that this fault contains, if there is one.
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
                RetargetError::Immovable { .. }
                | RetargetError::SeveralContexts { .. }
                | RetargetError::DoesNotFit { .. } => Reason::Value,
                _ => Reason::Driver,
            },
        }
    }

    /// Creates the exception. If the request does not fit, the exception has the attributes `requested`, `free` and
    /// `holders`.
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

/// Returns the holders of the SMs that a request needs.
fn held_by(error: &Error) -> &[Holder] {
    match error {
        Error::NotEnoughSms(shortage) => &shortage.holders,
        Error::CutInUse { holders, .. } => holders,
        _ => &[],
    }
}

/// Returns advice that the library's message lacks: how to work without a driver, or which Python object to close.
fn advice(error: &Error) -> &'static str {
    match error {
        Error::Load(_) => {
            " (without a GPU, build the simulated driver with `cargo xtask sim-lib` in the repository of \
             green-ctx, and start Python with LD_LIBRARY_PATH=target/sim-lib GREEN_CTX_SIM=h200@13.1; with torch, \
             `cargo xtask sim-lib --torch` says what more it needs)"
        }
        Error::NotEnoughSms(shortage)
            if shortage
                .sharers
                .iter()
                .any(|who| DropIn::of(&who.name) == Some(DropIn::GreenContext)) =>
        {
            " (a GreenContext without num_sms shares every SM that is in no floor when it is created: \
             create it after all partitions that need a floor, or close it)"
        }
        _ if held_by(error).iter().any(|holder| is_set(&holder.name)) => {
            " (close() the plan set first, or give it fewer SMs with sm_count; a closed set holds its SMs until no \
             thread is inside it, and its streams, moved graphs and memory pools are deleted)"
        }
        Error::NotEnoughSms(shortage)
            if !shortage.holders.is_empty() && error.kind() == ErrorKind::Unavailable =>
        {
            " (a partition that has been closed holds its SMs until no thread is inside it, and its streams, moved \
             graphs and memory pools are deleted)"
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
        // While the interpreter shuts down there is no GIL to take, and the classes are gone.
        made.unwrap_or_else(|| PyRuntimeError::new_err(fault.message()))
    }
}

/// Converts a number to an unsigned type, or returns an error if the number does not fit into it.
pub(crate) fn unsigned<T: TryFrom<i64>>(what: &str, number: i64) -> Result<T, Fault> {
    let advice = match number < 0 {
        true => "give a whole number, 0 or greater",
        false => "give a smaller whole number",
    };
    let number = match number {
        // `Whole` clamps to these, so the caller's number may be further from 0.
        i64::MIN => Err("that small".to_owned()),
        i64::MAX => Err("that large".to_owned()),
        number => T::try_from(number).map_err(|_| number.to_string()),
    };
    number.map_err(|number| Fault::value(format!("{what} cannot be {number}; {advice}")))
}

/// Returns the name of an object's type, for messages.
pub(crate) fn kind(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

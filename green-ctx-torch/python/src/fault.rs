//! Errors as Python's exceptions: `ValueError` for what was asked for wrongly, `RuntimeError` for what
//! cannot be now or failed.

use std::error::Error as StdError;

use green_ctx::{Error, error::ErrorKind, graph::RetargetError, plan::PlanError};
use green_ctx_torch::TorchError;
use green_ctx_torch::allocator::AllocatorError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::provision::DropIn;

/// Why a call failed, until there is a GIL to make an exception with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// An argument is wrong.
    #[error("{0}")]
    Value(String),
    /// The arguments are right, and it cannot be now.
    #[error("{0}")]
    State(String),
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

impl Fault {
    pub(crate) fn value(message: impl Into<String>) -> Fault {
        Fault::Value(message.into())
    }

    pub(crate) fn state(message: impl Into<String>) -> Fault {
        Fault::State(message.into())
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

    /// Whether the arguments are to blame, so that others can succeed at this moment.
    pub(crate) fn is_value(&self) -> bool {
        if let Some(error) = self.library() {
            return is_value(error);
        }
        match self {
            Fault::Value(_) => true,
            Fault::State(_) | Fault::Library(_) | Fault::Python(_) => false,
            Fault::Torch(error) => matches!(error, TorchError::InvalidRequest(_)),
            Fault::Allocator(error) => matches!(
                error,
                AllocatorError::InvalidRequest(_)
                    | AllocatorError::UnknownBlock { .. }
                    | AllocatorError::NotShareable { .. }
            ),
            Fault::Plan(error) => matches!(
                error,
                PlanError::Unknown { .. }
                    | PlanError::NotOfThisSet { .. }
                    | PlanError::Exists { .. }
                    | PlanError::TwoOfOneName { .. }
            ),
            Fault::Retarget(error) => {
                matches!(error, RetargetError::Immovable { .. } | RetargetError::DoesNotFit { .. })
            }
        }
    }
}

fn is_value(error: &Error) -> bool {
    match error {
        // What a thread or a stream is just doing, not what was given.
        Error::Capturing | Error::GuardOrder | Error::HostPanic { .. } | Error::Escapes(_) => false,
        // More than there are, whoever holds or shares them.
        Error::NotEnoughSms(shortage) => {
            let floors = shortage.requested.iter().filter_map(|share| share.floor());
            let requested: u64 = floors.map(u64::from).sum();
            requested > u64::from(shortage.total)
                || (error.kind() == ErrorKind::InvalidRequest && shortage.sharers.is_empty())
        }
        error => error.kind() == ErrorKind::InvalidRequest,
    }
}

/// What an error does not say: how to go on without a driver, and what the only objects of this module
/// are that share SMs.
pub(crate) fn advice(error: &Error) -> &'static str {
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
        _ => "",
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> PyErr {
        if let Fault::Python(raised) = fault {
            return raised;
        }
        let message = fault.message();
        if fault.is_value() {
            PyValueError::new_err(message)
        } else {
            PyRuntimeError::new_err(message)
        }
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

//! Shares: the SMs that a partition has for itself, and the most that it may use.

use pyo3::prelude::*;

use crate::argument::Whole;
use crate::fault::Fault;

/// The SMs that a partition has for itself, its floor, and the most that it may use, its ceiling: None
/// for no bound. Between the two it shares with whoever else may use them.
///
/// As text `"32.."`, `"16..48"`, `"..100"` or `".."`. A plain count, `16`, is exclusive.
#[pyclass(frozen, eq, hash, module = "green_ctx_torch")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Share(pub(crate) green_ctx::Share);

impl Share {
    /// Reads text.
    pub(crate) fn parse(text: &str) -> Result<Share, Fault> {
        let share = text
            .parse()
            .map_err(|error: green_ctx::resource::ShareError| Fault::value(error.to_string()))?;
        Ok(Share(share))
    }
}

#[pymethods]
impl Share {
    #[new]
    #[pyo3(signature = (floor=Whole(0), ceiling=None), text_signature = "(floor=0, ceiling=None)")]
    fn new(floor: Whole, ceiling: Option<Whole>) -> PyResult<Share> {
        let ceiling = ceiling.map_or_else(String::new, |Whole(ceiling)| ceiling.to_string());
        Ok(Share::parse(&format!("{}..{ceiling}", floor.0))?)
    }

    /// The SMs that nobody else may use; None where they depend on what is free.
    #[getter]
    fn floor(&self) -> Option<u32> {
        self.0.floor()
    }

    /// The most SMs that it may use; None for no bound.
    #[getter]
    fn ceiling(&self) -> Option<u32> {
        self.0.ceiling()
    }

    /// The share as text.
    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        match (self.0.is_exclusive(), self.0.floor(), self.0.ceiling()) {
            (false, Some(floor), None) => format!("Share(floor={floor})"),
            (false, Some(floor), Some(ceiling)) => {
                format!("Share(floor={floor}, ceiling={ceiling})")
            }
            _ => format!("<Share {}>", self.0),
        }
    }
}

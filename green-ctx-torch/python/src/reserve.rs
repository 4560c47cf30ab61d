//! The reserve: SMs that work outside of partitions may not use.

use green_ctx::Driver;
use green_ctx::resource::Amount;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::argument::{DeviceId, Whole, unexpected};
use crate::device::device;
use crate::fault::{Fault, unsigned};
use crate::gil::blocking;

/// The SMs of a device that are reserved for partitions.
#[pyclass(frozen, get_all, module = "green_ctx_torch")]
pub(crate) struct Reserve {
    /// The device's ordinal.
    device: i64,
    /// The number of reserved SMs. Floors of partitions come from these.
    sm_count: u32,
    /// The number of the other SMs, on which all work outside of partitions runs.
    rest: u32,
}

#[pymethods]
impl Reserve {
    fn __repr__(&self) -> String {
        let Reserve { device, sm_count, rest } = self;
        format!(
            "<Reserve of device {device}: {sm_count} SMs for partitions, {rest} for all other work>"
        )
    }
}

/// Reserves SMs of every device for partitions: all work of the process outside of partitions, whatever library or
/// thread submits it, runs on the other SMs. So a floor holds against the whole process.
///
///     green_ctx_torch.reserve(32)          # before `import torch`, `info` and `dry_run`
///     parts = green_ctx_torch.partition({"decode": 32})
///
/// Default streams, autograd, cuBLAS, cuDNN and NCCL run on the other SMs, and are told their number.
/// `amount` is a number of SMs, rounded up to whole units like a floor, or a whole percentage such as "25%". It
/// cannot be changed afterwards. `cuCtxCreate` is refused. The environment variable GREEN_CTX_RESERVE=32 reserves when
/// this module is imported, without a call of the driver, so processes that fork CUDA workers can use it.
///
/// Returns the counts of `device`. Needs Linux and CUDA 12.5.
///
/// Raises RuntimeError if a library has opened the driver already, or if another amount is reserved.
/// Raises TypeError for text without a percent sign, and ValueError for an amount that is not valid, or that leaves no
/// SMs of a device. In the last case, the amount stays.
#[pyfunction]
#[pyo3(signature = (amount, device=None), text_signature = "(amount, device=None)")]
pub(crate) fn reserve(
    py: Python<'_>,
    amount: &Bound<'_, PyAny>,
    device: Option<DeviceId>,
) -> PyResult<Reserve> {
    let amount = match amount.cast::<PyString>() {
        Ok(text) => {
            let text = text.to_string_lossy();
            let wrong = || {
                unexpected(amount, "a reserve is a number of SMs or a percentage such as \"25%\"")
            };
            let percent = text.trim_end().strip_suffix('%').ok_or_else(wrong)?;
            let broken = |_| {
                Fault::value(format!(
                    "{text:?} is not a reserve; a percentage is a whole number such as 25%"
                ))
            };
            Amount::Percent(percent.trim().parse().map_err(broken)?)
        }
        Err(_) => match amount.extract::<Whole>()?.0 {
            ..0 => {
                return Err(Fault::value(
                    "a reserve cannot be negative; ask for 1 SM or more".to_owned(),
                )
                .into());
            }
            number => Amount::Sms(unsigned("a reserve", number)?),
        },
    };
    blocking(py, || Driver::reserve(amount).map(drop).map_err(Fault::from))?;
    let ordinal = device.unwrap_or(DeviceId::Ordinal(0)).ordinal(py)?;
    blocking(py, || {
        let device = self::device(ordinal)?;
        let sm_count = device.reserved_sm_count()?;
        Ok(Reserve { device: ordinal, sm_count, rest: device.sm_count()? - sm_count })
    })
}

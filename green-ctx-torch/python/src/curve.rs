//! Curves: how one Python job scales with its SMs.

use green_ctx_report::{CurveObject, curve_svg, curve_text, machine_of, to_json};
use green_ctx_tune::{self as tune, CurveRequest, CurveShape, Job, Profile};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::argument::{self, DeviceId, Whole};
use crate::device::device;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::tuner::{GoOn, Work, addresses, measured};
use crate::tuning_request::seconds;

/// A checked request for a curve, without the work of the job.
#[pyclass(frozen, module = "green_ctx_torch._native")]
pub(crate) struct _CurveRequest {
    device: i64,
    job: Profile,
    request: CurveRequest,
}

#[pymethods]
impl _CurveRequest {
    #[new]
    fn new(
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        sms: Option<Vec<Whole>>,
        device: DeviceId,
        budget: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<_CurveRequest> {
        let mut request = CurveRequest::default();
        if let Some(sms) = sms {
            let count = |count: Whole| {
                let known = u32::try_from(count.0).ok().filter(|count| *count > 0);
                known
                    .ok_or_else(|| Fault::value("a number of SMs is 1 or more, as in [16, 32, 64]"))
            };
            request = request.counts(sms.into_iter().map(count).collect::<Result<Vec<_>, _>>()?);
        }
        if let Some(budget) = budget {
            request = request.budget(seconds(budget)?);
        }
        let (job, device) = (Profile::new(argument::name("job", name)?), device.ordinal(py)?);
        blocking(py, || self::device(device).map(drop))?;
        Ok(_CurveRequest { device, job, request })
    }

    /// The device's ordinal.
    #[getter]
    fn device(&self) -> i64 {
        self.device
    }

    /// Measures the curve. `progress` is called before each measurement block. `notes` are added to the curve's notes.
    fn run(
        &self,
        py: Python<'_>,
        works: Vec<Work<Bound<'_, PyAny>>>,
        notes: Vec<String>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Curve> {
        let works = addresses(works)?;
        let (found, end) = py.detach(|| {
            let measure = |device: &_, jobs: &mut [Job], go_on: GoOn<'_>| {
                tune::curve(device, &mut jobs[0], &self.request, go_on)
            };
            let jobs = std::slice::from_ref(&self.job);
            measured(self.device, jobs, works, progress, measure)
        });
        let is_part = |curve: &tune::Curve| curve.shape != CurveShape::Unknown;
        let mut curve = match (found, end) {
            // The points so far are what an interruption asks for.
            (Ok(curve), Some(end))
                if is_part(&curve) && end.is_instance_of::<PyKeyboardInterrupt>(py) =>
            {
                curve
            }
            (_, Some(end)) => return Err(end),
            (found, None) => found?,
        };
        curve.notes.extend(notes);
        Ok(Curve { curve })
    }
}

/// How a job scales with its SMs. `print` shows a curve as a table, and a notebook shows it as a picture.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct Curve {
    curve: tune::Curve,
}

#[pymethods]
impl Curve {
    /// The curve as (number of SMs, median time of an iteration in µs), from the fewest SMs to the whole device. The
    /// time is None if the job does not run on this number of SMs, or if the measurement ended before it.
    #[getter]
    fn points(&self) -> Vec<(u32, Option<f64>)> {
        self.curve.points.iter().map(|point| (point.sms, point.median_us)).collect()
    }

    /// Returns the smallest measured number of SMs from which on the job loses at most this fraction of its full speed, or
    /// None if the spread hides it. Raises ValueError for a fraction below 0 or above 1.
    #[pyo3(signature = (loss=0.05))]
    fn within(&self, loss: f64) -> PyResult<Option<u32>> {
        if !(0.0..=1.0).contains(&loss) {
            return Err(
                Fault::value(format!("a loss is a fraction from 0 to 1, got {loss}")).into()
            );
        }
        Ok(self.curve.within(loss))
    }

    /// Returns a picture as SVG, with a mark at the number of SMs from which on the job is within 10 % of its full
    /// speed.
    fn to_svg(&self, py: Python<'_>) -> String {
        py.detach(|| curve_svg(&self.curve))
    }

    fn _repr_svg_(&self, py: Python<'_>) -> String {
        self.to_svg(py)
    }

    /// Returns the curve as JSON, in the format of `green-ctx --json curve`.
    fn to_json(&self, py: Python<'_>) -> String {
        let machine = self.curve.machine.as_ref();
        py.detach(|| to_json(&CurveObject::of(machine_of(machine), &self.curve)))
    }

    fn __str__(&self) -> String {
        curve_text(&self.curve)
    }

    fn __repr__(&self) -> String {
        format!("<Curve: {}>", self.curve.sentence)
    }
}

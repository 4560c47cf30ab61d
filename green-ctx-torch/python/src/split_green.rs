//! The contexts of the drop-ins for FlashInfer and SGLang.

use green_ctx::{Error, SplitRequest, resource::Granularity};
use pyo3::prelude::*;

use crate::argument::Whole;
use crate::create::Created;
use crate::drop_in::DropIn;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::green_context::GreenContext;
use crate::limits::{limits, runtime};

/// Creates contexts with exactly these numbers of SMs, or with at least as many if `exact` is False. If one context
/// cannot be created, no context is created. The contexts share no SMs with each other. Other contexts without a
/// floor may use the same SMs.
#[pyfunction]
#[pyo3(signature = (device, counts, name, exact=true))]
pub(crate) fn split_green(
    py: Python<'_>,
    device: Whole,
    counts: Vec<u32>,
    name: &str,
    exact: bool,
) -> PyResult<Vec<GreenContext>> {
    let of = DropIn::ALL.into_iter().find(|known| known.name() == name);
    let of = of.ok_or_else(|| Fault::value(format!("there is no drop-in {name}")))?;
    blocking(py, move || {
        let (device, _) = limits(device.0)?;
        let sms = device.resources().sm().map_err(runtime)?;
        let group = |request: SplitRequest, count: &u32| request.group(of.fresh_name(), *count);
        let request = counts.iter().fold(SplitRequest::new().overlapping(true), group);
        let given = |granularity| {
            let would = sms.dry_run(request.clone().granularity(granularity))?;
            Ok::<Vec<u32>, Error>(would.groups.iter().map(|group| group.sm_count).collect())
        };
        // An H200 has units of 8 SMs and one of 12, which make neither 64 and 64 nor 60 and 4.
        let coarse = given(Granularity::Coarse);
        let is_exact = |given: &Result<Vec<u32>, Error>| given.as_ref().is_ok_and(|g| *g == counts);
        let granularity = if exact && !is_exact(&coarse) && is_exact(&given(Granularity::Fine)) {
            Granularity::Fine
        } else {
            Granularity::Coarse
        };
        if exact && granularity == Granularity::Coarse && !is_exact(&coarse) {
            let given = coarse.map_err(runtime)?;
            return Err(Fault::unavailable(format!(
                "{counts:?} SMs were requested, but of the SMs in no floor the device can give {given:?}; ask \
                 for these"
            )));
        }
        let split = sms.split(request.granularity(granularity)).map_err(runtime)?;
        let contexts = split.groups.into_iter().zip(counts).map(|(group, count)| {
            let context =
                device.create_context(group).map_err(|error| runtime(Error::from(error)))?;
            Ok(GreenContext::of(Created::counted(context, Some(count))))
        });
        contexts.collect()
    })
}

//! The SM counts that a device can give, for the drop-in replacements of other libraries. Counts are rounded as the
//! driver rounds them.

use green_ctx::{
    Device, Driver, Version,
    resource::{Granularity, UnitSizes},
};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::argument::Whole;
use crate::device::device;
use crate::fault::Fault;
use crate::gil::blocking;

/// The first driver version with green contexts.
const OLDEST: Version = Version::new(12, 4);

/// The limits for dividing a device's SMs.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) sizes: UnitSizes,
    min: u32,
    pub(crate) alignment: u32,
}

impl Limits {
    /// Returns the number of SMs that the driver would give for `count`: whole units, or all SMs of the device.
    pub(crate) fn rounded(self, count: u32) -> u32 {
        let rounded = self.sizes.round_up(count.max(self.min), false);
        if count <= self.sizes.sms { rounded.min(self.sizes.sms) } else { rounded }
    }

    /// Divides `sm_count` SMs into groups of exactly these counts. Returns the groups' counts and the number of SMs
    /// that remain. A count of 0 takes as many SMs as can be scheduled together.
    pub(crate) fn divide(self, sm_count: u32, counts: &[u32]) -> Result<(Vec<u32>, u32), Fault> {
        let too_many = || {
            let counts = counts.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            Fault::state(format!(
                "groups of {counts} SMs do not fit into {sm_count} SMs, which come in {}; ask for fewer",
                self.pieces(sm_count)
            ))
        };
        let (mut units, mut odd) = self.sizes.exactly(sm_count).ok_or_else(too_many)?;
        let mut given = Vec::with_capacity(counts.len());
        for count in counts {
            let (regular, has_odd) = match count {
                0 if units > 0 => (units, false),
                0 => (0, true),
                _ => self.sizes.exactly(*count).ok_or_else(|| self.inexact(*count, sm_count))?,
            };
            if regular > units || (has_odd && !odd) {
                return Err(too_many());
            }
            units -= regular;
            odd &= !has_odd;
            given.push(self.sms(regular, has_odd));
        }
        Ok((given, self.sms(units, odd)))
    }

    fn sms(self, units: u32, odd: bool) -> u32 {
        units * self.sizes.unit + if odd { self.sizes.odd } else { 0 }
    }

    /// Describes, as text, the units that make up a count.
    fn pieces(self, count: u32) -> String {
        match self.sizes.exactly(count) {
            Some((units, true)) => {
                format!("{units} units of {} SMs and one of {}", self.sizes.unit, self.sizes.odd)
            }
            _ => format!("units of {} SMs", self.sizes.unit),
        }
    }

    /// Returns the error for a count that is not a sum of whole units.
    fn inexact(self, count: u32, sm_count: u32) -> Fault {
        let is_exact = |count: &u32| self.sizes.exactly(*count).is_some();
        let end = sm_count.saturating_add(1);
        let (below, above) =
            ((1..count.min(end)).rev().find(is_exact), (count..end).find(is_exact));
        let near: Vec<String> =
            [below, above].into_iter().flatten().map(|count| count.to_string()).collect();
        let finer = match count % 2 {
            0 => " or, with CUDA 13.1 or newer, use smaller units with coscheduled_sm_count=2",
            _ => "",
        };
        let near = near.join(" or ");
        Fault::state(format!("{count} SMs cannot be given exactly; ask for {near}{finer}"))
    }
}

/// The limits of each device, cached so that later look-ups need no driver call. This mutex is locked only without
/// the GIL.
static KNOWN: Mutex<Vec<(u32, Limits)>> = Mutex::new(Vec::new());

/// Returns a device and its limits.
pub(crate) fn limits(ordinal: i64) -> Result<(Device, Limits), Fault> {
    let device = device(ordinal).map_err(runtime)?;
    let known = KNOWN.lock().iter().find(|(known, _)| *known == device.ordinal()).copied();
    if let Some((_, limits)) = known {
        return Ok((device, limits));
    }
    let sms = device.resources().sm().map_err(runtime)?;
    let limits = Limits {
        sizes: sms.unit_sizes(Granularity::Coarse).map_err(runtime)?,
        min: sms.min_partition(),
        alignment: sms.alignment(),
    };
    KNOWN.lock().push((device.ordinal(), limits));
    Ok((device, limits))
}

/// Turns an error into a RuntimeError. The classes and functions that the drop-ins replace raise this exception for
/// every failure.
pub(crate) fn runtime(error: impl Into<Fault>) -> Fault {
    Fault::Runtime(Box::new(error.into()))
}

/// Returns whether the installed driver has green contexts (CUDA 12.4 or newer).
#[pyfunction]
pub(crate) fn supported(py: Python<'_>) -> bool {
    py.detach(|| Driver::load().is_ok_and(|driver| driver.version() >= OLDEST))
}

/// Returns four numbers of SMs for a device: all its SMs, the smallest partition, the alignment, and the unit to
/// which counts are rounded.
#[pyfunction]
pub(crate) fn sm_limits(py: Python<'_>, device: Whole) -> PyResult<(u32, u32, u32, u32)> {
    let Limits { sizes, min, alignment } = blocking(py, || Ok(limits(device.0)?.1))?;
    Ok((sizes.sms, min, alignment, sizes.unit))
}

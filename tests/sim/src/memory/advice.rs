//! Advice on how managed memory is used. It is kept and can be asked for, and changes nothing else: which
//! processor memory is with is not simulated. The answers follow the header, and none is recorded.

use std::ffi::c_void;
use std::ops::Range;

use green_ctx_sys::{CUmemLocationType as Type, CUresult};

use super::{Allocation, Kind};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if};
use crate::state::State;

/// Advice takes hold of whole pages of the host.
const PAGE: u64 = 4096;
/// `CU_DEVICE_CPU` and `CU_DEVICE_INVALID`.
const CPU: i32 = -1;
const NO_DEVICE: i32 = -2;

/// Advice that holds for a range of addresses.
pub(crate) struct Advice {
    what: What,
    range: Range<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    ReadMostly,
    Preferred(Location),
    AccessedBy(Location),
}

/// The type and the number of a `CUmemLocation`.
pub(crate) type Location = (Type, i32);

impl What {
    /// Whether both cannot hold for the same address.
    fn excludes(self, other: What) -> bool {
        self == other || matches!((self, other), (What::Preferred(_), What::Preferred(_)))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

impl Allocation {
    /// Withdraws what excludes advice, as far as a range goes.
    fn withdraw(&mut self, what: What, range: &Range<u64>) {
        for old in std::mem::take(&mut self.advice) {
            if !old.what.excludes(what) || overlap(&old.range, range).is_empty() {
                self.advice.push(old);
                continue;
            }
            let around = [old.range.start..range.start, range.end..old.range.end];
            let left = around.into_iter().filter(|range| !range.is_empty());
            self.advice.extend(left.map(|range| Advice { what: old.what, range }));
        }
    }

    /// Whether advice holds for all of a range.
    fn has(&self, what: What, range: &Range<u64>) -> bool {
        let same = self.advice.iter().filter(|advice| advice.what == what);
        let held = same.map(|advice| overlap(&advice.range, range)).filter(|it| !it.is_empty());
        held.map(|part| part.end - part.start).sum::<u64>() == range.end - range.start
    }
}

impl State {
    /// The managed memory that a range is in, and the pages of the range.
    fn managed(&mut self, address: u64, len: usize) -> Answer<(&mut Allocation, Range<u64>)> {
        self.usable_if_current()?;
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let found = self.memory.range_mut(..=address).next_back();
        let (&base, allocation) = found.ok_or(invalid)?;
        let end = address.checked_add(len as u64).filter(|_| len > 0).ok_or(invalid)?;
        if allocation.kind != Kind::Managed
            || allocation.freed
            || end > base + allocation.len() as u64
        {
            return Err(invalid);
        }
        Ok((allocation, address / PAGE * PAGE..end.next_multiple_of(PAGE)))
    }
}

/// The location that advice names; the host alone and devices, unless any processor will do.
fn location(state: &State, (kind, id): Location, any: bool) -> Answer<Location> {
    match kind {
        Type::CU_MEM_LOCATION_TYPE_DEVICE => state.device(id).map(|_| (kind, id)),
        Type::CU_MEM_LOCATION_TYPE_HOST => Ok((kind, 0)),
        Type::CU_MEM_LOCATION_TYPE_HOST_NUMA | Type::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
            if any =>
        {
            Ok((kind, id))
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn advise(
    driver: &Driver,
    address: u64,
    len: usize,
    advice: u32,
    at: Location,
) -> Answer {
    let mut state = driver.state();
    // Of the six kinds every other one withdraws the one before it.
    let what = match advice {
        1 | 2 => What::ReadMostly,
        3 => What::Preferred(location(&state, at, true)?),
        4 => What::Preferred(at),
        5 | 6 => What::AccessedBy(location(&state, at, false)?),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    let (allocation, range) = state.managed(address, len)?;
    allocation.withdraw(what, &range);
    if !advice.is_multiple_of(2) {
        allocation.advice.push(Advice { what, range });
    }
    Ok(())
}

/// The form of 8.0, whose locations are ordinals and the host.
pub(crate) fn advise_device(
    driver: &Driver,
    address: u64,
    len: usize,
    advice: u32,
    device: i32,
) -> Answer {
    let kind = match device {
        CPU => Type::CU_MEM_LOCATION_TYPE_HOST,
        _ => Type::CU_MEM_LOCATION_TYPE_DEVICE,
    };
    advise(driver, address, len, advice, (kind, device))
}

pub(crate) fn get_attribute(
    driver: &Driver,
    out: Ptr<c_void>,
    bytes: usize,
    attribute: u32,
    address: u64,
    len: usize,
) -> Answer {
    let mut state = driver.state();
    let (allocation, range) = state.managed(address, len)?;
    let numbers = bytes / 4;
    invalid_if(!bytes.is_multiple_of(4) || numbers == 0 || attribute != 3 && numbers > 1)?;
    let of_advice = allocation.advice.iter().map(|advice| advice.what);
    let mut preferred = of_advice.clone().filter_map(|what| match what {
        What::Preferred(location) if allocation.has(what, &range) => Some(location),
        _ => None,
    });
    let preferred = preferred.next();
    let number = |(kind, id)| if kind == Type::CU_MEM_LOCATION_TYPE_DEVICE { id } else { CPU };
    let mut values = match attribute {
        1 => vec![i32::from(allocation.has(What::ReadMostly, &range))],
        2 => vec![preferred.map_or(NO_DEVICE, number)],
        3 => {
            let all = of_advice.filter(|what| allocation.has(*what, &range));
            let devices = all.filter_map(|what| match what {
                What::AccessedBy(location) => Some(number(location)),
                _ => None,
            });
            let mut devices: Vec<i32> = devices.collect();
            devices.sort_unstable();
            devices.dedup();
            devices
        }
        5 => vec![preferred.map_or(0, |(kind, _)| kind.0 as i32)],
        6 => vec![preferred.map_or(NO_DEVICE, |(_, id)| id)],
        // Nothing was ever prefetched.
        4 | 8 => vec![NO_DEVICE],
        7 => vec![0],
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    values.resize(numbers, NO_DEVICE);
    let out = out.given()?.cast();
    (0..).zip(values).try_for_each(|(index, value)| out.element(index).write(value))
}

/// Several attributes at once, each as [`get_attribute`] answers it.
pub(crate) fn get_attributes(
    driver: &Driver,
    out: Ptr<*mut c_void>,
    bytes: Ptr<usize>,
    attributes: Ptr<u32>,
    count: usize,
    address: u64,
    len: usize,
) -> Answer {
    invalid_if(count == 0 || out.is_null() || bytes.is_null())?;
    (0..count).try_for_each(|index| {
        let attribute = attributes.given()?.element(index).read()?;
        let (out, bytes) = (out.element(index).follow()?, bytes.element(index).read()?);
        get_attribute(driver, out, bytes, attribute, address, len)
    })
}

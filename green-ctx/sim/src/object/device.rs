//! The driver itself and its devices.

use std::ffi::{c_char, c_void};

use green_ctx_sys::{CUdevice_attribute, CUresult, CUuuid};

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};
use crate::profile::attribute;

/// The PCI bus number of the first device. Each further device has the next bus number.
const FIRST_BUS: usize = 0x19;

pub(crate) fn init(driver: &Driver, flags: u32) -> Answer {
    let none = driver.state().ordinals == 0;
    invalid_if(flags != 0)?;
    // The status follows the header; a machine without devices was not recorded.
    refuse_if(none, CUresult::CUDA_ERROR_NO_DEVICE)?;
    driver.initialize();
    Ok(())
}

pub(crate) fn driver_get_version(driver: &Driver, out: Ptr<i32>) -> Answer {
    out.write(driver.spec.version() as i32)
}

pub(crate) fn get(driver: &Driver, out: Ptr<i32>, ordinal: i32) -> Answer {
    driver.state().device(ordinal)?;
    out.write(ordinal)
}

pub(crate) fn get_count(driver: &Driver, out: Ptr<i32>) -> Answer {
    let count = driver.state().ordinals;
    out.write(count as i32)
}

pub(crate) fn get_name(driver: &Driver, out: Ptr<c_char>, len: i32, ordinal: i32) -> Answer {
    driver.state().device(ordinal)?;
    out.write_str(driver.spec.profile().device_name, len)
}

/// Writes a UUID that depends only on the profile and the ordinal.
pub(crate) fn get_uuid(driver: &Driver, out: Ptr<CUuuid>, ordinal: i32) -> Answer {
    driver.state().device(ordinal)?;
    // FNV-1a over the profile's name and the ordinal, once per half.
    let half = |seed: u64| {
        let bytes = driver.spec.profile().name.bytes().chain(ordinal.to_le_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash.to_be_bytes()
    };
    let mut bytes = [0; 16];
    let halves = half(0).into_iter().chain(half(1));
    bytes.iter_mut().zip(halves).for_each(|(to, from)| *to = from as c_char);
    out.write(CUuuid { bytes })
}

pub(crate) fn total_mem(driver: &Driver, out: Ptr<usize>, ordinal: i32) -> Answer {
    driver.state().device(ordinal)?;
    out.write(driver.spec.profile().memory_bytes as usize)
}

pub(crate) fn get_attribute(
    driver: &Driver,
    out: Ptr<i32>,
    attribute: CUdevice_attribute,
    ordinal: i32,
) -> Answer {
    let device = driver.state().device(ordinal)?;
    let topology = &driver.spec.profile().topology;
    let value = match attribute.0 {
        attribute::PCI_BUS_ID => Some((FIRST_BUS + device) as i32),
        attribute::LOCALITY_DOMAIN_COUNT if driver.spec.version() >= 13_040 => {
            Some(topology.domains.len() as i32)
        }
        attribute::LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT if driver.spec.version() >= 13_040 => {
            Some(topology.domain_size() as i32)
        }
        number => driver.spec.profile().attribute(number),
    };
    out.write(valid(value)?)
}

pub(crate) fn get_pci_bus_id(driver: &Driver, out: Ptr<c_char>, len: i32, ordinal: i32) -> Answer {
    let device = driver.state().device(ordinal)?;
    out.write_str(&format!("0000:{:02X}:00.0", FIRST_BUS + device), len)
}

/// Accepts every form of an id that the header describes: domain, bus, device and function as hexadecimal
/// numbers. Either the domain or the function may be omitted.
pub(crate) fn get_by_pci_bus_id(driver: &Driver, out: Ptr<i32>, id: Ptr<c_char>) -> Answer {
    out.given()?;
    let [domain, bus, slot, function] = valid(parse_pci_bus_id(id.c_str()?.to_bytes()))?;
    let count = driver.state().ordinals;
    let device = (0..count).find(|device| FIRST_BUS + device == bus);
    match device {
        Some(device) if (domain, slot, function) == (0, 0, 0) => out.write(device as i32),
        _ => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
    }
}

fn parse_pci_bus_id(id: &[u8]) -> Option<[usize; 4]> {
    let text = std::str::from_utf8(id).ok()?;
    let (place, function) = match text.split_once('.') {
        Some((place, function)) => (place, Some(function)),
        None => (text, None),
    };
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let parts = place.split(':').map(number).collect::<Option<Vec<_>>>()?;
    match (parts.as_slice(), function) {
        (&[domain, bus, slot], function) => {
            Some([domain, bus, slot, number(function.unwrap_or("0"))?])
        }
        (&[bus, slot], Some(function)) => Some([0, bus, slot, number(function)?]),
        _ => None,
    }
}

pub(crate) fn compute_capability(
    driver: &Driver,
    major: Ptr<i32>,
    minor: Ptr<i32>,
    ordinal: i32,
) -> Answer {
    driver.state().device(ordinal)?;
    let capability = driver.spec.profile().compute_capability;
    minor.given()?;
    major.write(capability.0 as i32)?;
    minor.write(capability.1 as i32)
}

/// Fills `CUdevprop`, a struct of consecutive attributes.
pub(crate) fn get_properties(driver: &Driver, out: Ptr<c_void>, ordinal: i32) -> Answer {
    let out = out.cast::<i32>();
    driver.state().device(ordinal)?;
    // The fields are the first attributes, in the order of their numbers.
    (1..=14).try_for_each(|number| {
        let value = driver.spec.profile().attribute(number).unwrap_or(0);
        out.element(number as usize - 1).write(value)
    })
}

/// Contexts with a limited number of SMs need MPS, which is not simulated. Unknown affinity types are also
/// reported as unsupported (recorded on hardware).
pub(crate) fn get_exec_affinity_support(
    driver: &Driver,
    out: Ptr<i32>,
    _kind: u32,
    ordinal: i32,
) -> Answer {
    driver.state().device(ordinal)?;
    out.write(0)
}

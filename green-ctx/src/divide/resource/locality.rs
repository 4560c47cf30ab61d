//! Locality domains: parts of a device whose SMs are close to the same memory.

use green_ctx_sys::CUdevice_attribute as Attribute;

use super::cut::LOCALITY;
use super::sm::check_version;
use crate::handle::device::Device;
use crate::handle::error::Result;

/// The locality domains of a device (CUDA 13.4 or newer).
///
/// Support for locality domains follows the CUDA header, and has not yet run on hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalityDomains {
    /// The number of domains; 1 if the device is not divided into domains. Domains are numbered from 0.
    pub count: u32,
    /// The number of SMs that the driver reports for each domain. A domain with more SMs has
    /// [supplemental](crate::SplitRequest::supplemental) SMs. SMs beyond the domains and their supplemental
    /// SMs belong to no domain.
    pub sm_count: u32,
}

impl LocalityDomains {
    pub(crate) fn of(device: &Device) -> Result<LocalityDomains> {
        check_version(device, LOCALITY, "cuDeviceGetAttribute of locality domains")?;
        let count = device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT)?;
        // A device that is not divided is one domain. The driver reports no SM count for it.
        if count <= 1 {
            return Ok(LocalityDomains { count: 1, sm_count: device.sm_count()? });
        }
        let each = device
            .attribute(Attribute::CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT)?;
        Ok(LocalityDomains {
            count: count.cast_unsigned(),
            sm_count: u32::try_from(each).unwrap_or(0),
        })
    }
}

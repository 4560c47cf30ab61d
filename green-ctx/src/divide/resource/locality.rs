//! Locality domains: parts of a device whose SMs are near to one memory.

use green_ctx_sys::CUdevice_attribute as Attribute;

use super::sm::check_version;
use super::structure::LOCALITY;
use crate::handle::device::Device;
use crate::handle::error::Result;

/// The locality domains of a device, from CUDA 13.4 on.
///
/// From the header; not yet run on hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalityDomains {
    /// How many there are; their numbers are 0 and up. 1 where the device is not divided.
    pub count: u32,
    /// The SMs that the driver counts for each. A larger domain has
    /// [supplemental](crate::SplitRequest::supplemental) ones, and what is over belongs to none.
    pub sm_count: u32,
}

impl Device {
    /// The locality domains: parts whose SMs are near to one memory.
    /// [`SplitRequest::locality_domain`](crate::SplitRequest::locality_domain) takes SMs of one.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) before CUDA 13.4,
    /// [`Error::Driver`](crate::Error::Driver).
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, resource::LocalityDomain, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("b200@13.4")?)?;
    /// let device = driver.device(0)?;
    /// let domains = device.locality_domains()?;
    /// assert_eq!((domains.count, domains.sm_count), (2, 72));
    /// let request = SplitRequest::from([72, 72])
    ///     .coscheduled(2)
    ///     .locality_domain([LocalityDomain::Id(0), LocalityDomain::Id(1)]);
    /// let groups = device.resources().sm()?.split(request)?.groups;
    /// assert_eq!(groups[1].sm_count(), 72);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT")]
    pub fn locality_domains(&self) -> Result<LocalityDomains> {
        check_version(self, LOCALITY, "cuDeviceGetAttribute of locality domains")?;
        let count = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT)?;
        // A device that is not divided is one domain, of which the driver says nothing.
        if count <= 1 {
            return Ok(LocalityDomains { count: 1, sm_count: self.sm_count()? });
        }
        let each =
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT)?;
        Ok(LocalityDomains {
            count: count.cast_unsigned(),
            sm_count: u32::try_from(each).unwrap_or(0),
        })
    }
}

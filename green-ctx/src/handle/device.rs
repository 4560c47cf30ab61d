//! Devices and their properties.
#![allow(unsafe_code, reason = "calls the driver")]

mod state;

use std::ffi::{CStr, c_char};
use std::fmt;
use std::hash::{Hash, Hasher};

use green_ctx_sys::{Api, CUdevice, CUdevice_attribute, CUuuid};

use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};

/// A GPU. Clones are cheap, and all handles of the same GPU are equal.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// let device = driver.device(0)?;
/// assert_eq!(device.name()?, "NVIDIA H200");
/// assert_eq!(device.sm_count()?, 132);
/// assert_eq!(device.compute_capability()?.to_string(), "9.0");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    index: usize,
}

impl Driver {
    /// Returns the devices, in the driver's order.
    pub fn devices(&self) -> impl Iterator<Item = Device> + '_ {
        (0..self.raw_devices().len()).map(|index| Device { driver: self.clone(), index })
    }

    /// Returns the device with this ordinal. Ordinals count the devices that `CUDA_VISIBLE_DEVICES` leaves visible.
    ///
    /// # Errors
    ///
    /// - [`Error::NoSuchDevice`] if the ordinal is too large. The error contains the number of devices.
    /// - [`Error::Forked`] if this process was forked after the driver was loaded.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Error, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// assert_eq!(driver.device(0)?.ordinal(), 0);
    /// let missing = driver.device(7);
    /// assert!(matches!(missing, Err(Error::NoSuchDevice { ordinal: 7, count: 1 })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        self.check_process()?;
        let index = ordinal as usize;
        if index < self.raw_devices().len() {
            return Ok(Device { driver: self.clone(), index });
        }
        let count = u32::try_from(self.raw_devices().len()).unwrap_or(u32::MAX);
        Err(Error::NoSuchDevice { ordinal, count })
    }
}

impl Device {
    /// Returns the driver that the device belongs to.
    #[must_use]
    #[inline]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the device's ordinal, as passed to [`Driver::device`].
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        // Never saturates: the driver counts its devices in an `int`.
        u32::try_from(self.index).unwrap_or(u32::MAX)
    }

    /// Returns the driver's handle.
    #[must_use]
    #[doc(alias = "CUdevice")]
    pub fn as_raw(&self) -> CUdevice {
        self.driver.raw_devices()[self.index]
    }

    /// Returns the product name, such as `NVIDIA H200`.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> Result<String> {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the buffer has 256 bytes. The driver writes at most 256 bytes, including the terminating zero.
        unsafe {
            call!(self.functions()?, cuDeviceGetName(name.as_mut_ptr(), 256, self.as_raw()))
        }?;
        // SAFETY: the buffer was filled with zeros, and the driver terminates the text that it writes.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(name.to_string_lossy().into_owned())
    }

    /// Returns the device's UUID, which is the same in every process and after every boot.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    #[doc(alias = "cuDeviceGetUuid")]
    pub fn uuid(&self) -> Result<Uuid> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is a live local of 16 bytes, the size that the driver writes.
        unsafe { call!(self.functions()?, cuDeviceGetUuid(&raw mut uuid, self.as_raw())) }?;
        Ok(Uuid(uuid.bytes.map(|byte| byte.to_ne_bytes()[0])))
    }

    /// Returns the compute capability, such as 9.0 for Hopper.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    pub fn compute_capability(&self) -> Result<ComputeCapability> {
        use CUdevice_attribute as Attribute;
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(ComputeCapability { major, minor })
    }

    /// Returns the number of SMs on the whole device.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    pub fn sm_count(&self) -> Result<u32> {
        let count = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns the value of a device attribute, in the unit that the driver's documentation gives for it.
    ///
    /// # Errors
    ///
    /// - [`Error::Driver`], for example if the driver does not support the attribute.
    /// - [`Error::Forked`] in a forked process.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim, sys::CUdevice_attribute};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let count = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    /// assert_eq!(count, 132);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` is a live local that the driver writes. The driver checks the attribute.
        unsafe {
            call!(self.functions()?, cuDeviceGetAttribute(&raw mut value, attribute, self.as_raw()))
        }?;
        Ok(value)
    }

    /// Returns the size of the device's memory in bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    #[doc(alias = "cuDeviceTotalMem")]
    pub fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a live local that the driver writes.
        unsafe { call!(self.functions()?, cuDeviceTotalMem(&raw mut bytes, self.as_raw())) }?;
        Ok(bytes)
    }

    /// Returns the driver's functions, or [`Error::Forked`] in a forked process.
    #[inline]
    pub(crate) fn functions(&self) -> Result<&Api> {
        self.driver.functions()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.index == other.index && self.driver == other.driver
    }
}

impl Eq for Device {}

impl Hash for Device {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state);
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.index).finish_non_exhaustive()
    }
}

/// The compute capability of a device, displayed as the two numbers `major.minor`, such as `9.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The major version, such as 9 in 9.0.
    pub major: i32,
    /// The minor version, such as 0 in 9.0.
    pub minor: i32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The UUID of a device, displayed in the format of `nvidia-smi`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}

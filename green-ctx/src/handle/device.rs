//! Devices: what they are, and the start of their contexts and partitions.
#![allow(unsafe_code, reason = "calls the driver")]

mod state;

use std::ffi::{CStr, c_char};
use std::fmt;
use std::hash::{Hash, Hasher};

use green_ctx_sys::{Api, CUdevice, CUdevice_attribute, CUuuid};

use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};

/// One GPU. Cheap to clone, and equal to every other handle of the same GPU.
///
/// # Example
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
    /// The devices, in the driver's order.
    pub fn devices(&self) -> impl Iterator<Item = Device> + '_ {
        (0..self.raw_devices().len()).map(|index| Device { driver: self.clone(), index })
    }

    /// The device of this ordinal, as `CUDA_VISIBLE_DEVICES` numbers them.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`], which says how many there are, and [`Error::Forked`] in a process
    /// that was forked since the driver was loaded.
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
    /// The driver that the device belongs to.
    #[must_use]
    #[inline]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The device's number in [`Driver::device`].
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        // There are as many states as devices, and the driver counts those in an int.
        u32::try_from(self.index).unwrap_or(u32::MAX)
    }

    /// The driver's handle.
    #[must_use]
    #[doc(alias = "CUdevice")]
    pub fn as_raw(&self) -> CUdevice {
        self.driver.raw_devices()[self.index]
    }

    /// The product name, such as `NVIDIA H200`.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> Result<String> {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the driver writes at most the given length, the terminator included.
        unsafe {
            call!(self.functions()?, cuDeviceGetName(name.as_mut_ptr(), 256, self.as_raw()))
        }?;
        // SAFETY: the buffer was zeroed and the driver terminates what it writes.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(name.to_string_lossy().into_owned())
    }

    /// The device's UUID, the same in every process and after every boot.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDeviceGetUuid")]
    pub fn uuid(&self) -> Result<Uuid> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the pointer is to a live structure of 16 bytes.
        unsafe { call!(self.functions()?, cuDeviceGetUuid(&raw mut uuid, self.as_raw())) }?;
        Ok(Uuid(uuid.bytes.map(|byte| byte.to_ne_bytes()[0])))
    }

    /// The compute capability, 9.0 on Hopper.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn compute_capability(&self) -> Result<ComputeCapability> {
        use CUdevice_attribute as Attribute;
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(ComputeCapability { major, minor })
    }

    /// The number of SMs.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn sm_count(&self) -> Result<u32> {
        let count = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// A device attribute, in the unit that the driver's documentation gives for it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], for an attribute that the driver does not know too.
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer; the driver checks the attribute.
        unsafe {
            call!(self.functions()?, cuDeviceGetAttribute(&raw mut value, attribute, self.as_raw()))
        }?;
        Ok(value)
    }

    /// The device's memory in bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDeviceTotalMem")]
    pub fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a live integer.
        unsafe { call!(self.functions()?, cuDeviceTotalMem(&raw mut bytes, self.as_raw())) }?;
        Ok(bytes)
    }

    /// The driver's functions, in the process that loaded it.
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

/// What a device's processors can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// 9 of 9.0.
    pub major: i32,
    /// 0 of 9.0.
    pub minor: i32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A device's UUID; prints as `nvidia-smi` does.
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

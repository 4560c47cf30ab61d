//! Units: the smallest pieces that a device can be cut into.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::ptr;

use green_ctx_sys::{CUdevResource, CUdevResourceType, CUdevSmResourceSplitByCount_flags};

use super::sm::{device_resource, empty_resource, sm_part};
use crate::device::Device;
use crate::error::{Error, Result, call};

/// How finely a device is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// SMs that are scheduled together stay together: 8 of them on Hopper, so that clusters fit.
    #[default]
    Coarse,
    /// As fine as the driver can: 2 SMs on Hopper, where clusters of more than 2 blocks may not fit.
    Fine,
}

impl Granularity {
    /// The flag of `cuDevSmResourceSplitByCount`.
    fn flags(self) -> u32 {
        match self {
            Granularity::Coarse => 0,
            Granularity::Fine => {
                CUdevSmResourceSplitByCount_flags::CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING.0
            }
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Granularity::Coarse => "coarse",
            Granularity::Fine => "fine",
        })
    }
}

/// Into what a device is cut: its smallest pieces, unless the driver cannot make contexts of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) granularity: Granularity,
    /// The least SMs of a piece; 0 for the smallest that there are.
    pub(crate) size: u32,
    /// How many pieces of that size, before the rest; 0 for as many as there are.
    pub(crate) pieces: u32,
}

impl Cut {
    /// The smallest pieces.
    pub(crate) const fn smallest(granularity: Granularity) -> Cut {
        Cut { granularity, size: 0, pieces: 0 }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            0 => write!(f, "{} units", self.granularity),
            size => write!(f, "{} groups of {size} SMs", self.granularity),
        }
    }
}

/// A device cut into pieces: equal ones, and at the end whatever was left of it.
///
/// On an H200 the smallest are 15 units of 8 SMs and one of 12, or 66 of 2.
pub(crate) struct Units {
    resources: Box<[CUdevResource]>,
    counts: Box<[u32]>,
    /// The size of the equal units.
    size: u32,
}

// SAFETY: a resource is bytes that the driver wrote and reads. Its one pointer links resources of a
// kind that these are not, and nothing here follows it.
unsafe impl Send for Units {}
// SAFETY: as above; nothing changes them after the cut.
unsafe impl Sync for Units {}

impl Units {
    /// Cuts the device. The counts are the driver's own, read back: no rule is assumed.
    pub(crate) fn cut(device: &Device, cut: Cut) -> Result<Units> {
        let whole = device_resource(device)?;
        let api = device.api();
        // A minimum of 0 asks for units as small as the granularity allows.
        let (flags, least) = (cut.granularity.flags(), cut.size);
        let mut count = 0;
        // SAFETY: a null result asks for the number of groups only (cuda.h).
        unsafe {
            call!(
                api,
                cuDevSmResourceSplitByCount(
                    ptr::null_mut(),
                    &raw mut count,
                    &raw const whole,
                    ptr::null_mut(),
                    flags,
                    least,
                )
            )
        }?;
        if cut.pieces > 0 {
            count = count.min(cut.pieces);
        }
        let mut resources = vec![empty_resource(); count as usize];
        let mut rest = empty_resource();
        // SAFETY: the result has room for `count` groups, the remainder is one live structure.
        unsafe {
            call!(
                api,
                cuDevSmResourceSplitByCount(
                    resources.as_mut_ptr(),
                    &raw mut count,
                    &raw const whole,
                    &raw mut rest,
                    flags,
                    least,
                )
            )
        }?;
        resources.truncate(count as usize);
        if rest.type_ == CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM && sm_part(&rest).smCount > 0 {
            resources.push(rest);
        }
        let counts: Box<[u32]> = resources.iter().map(|unit| sm_part(unit).smCount).collect();
        let size = counts.first().copied().filter(|size| *size > 0).ok_or_else(|| {
            Error::InvalidRequest("the driver cut the device into no SMs".to_owned())
        })?;
        Ok(Units { resources: resources.into(), counts, size })
    }

    pub(crate) fn counts(&self) -> &[u32] {
        &self.counts
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    pub(crate) fn resource(&self, index: usize) -> CUdevResource {
        self.resources[index]
    }
}

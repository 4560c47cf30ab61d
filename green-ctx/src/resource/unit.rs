//! Units: the pieces that a device is cut into.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::ptr;
use std::sync::Arc;

use green_ctx_sys::{
    CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUdevResource, CUdevResourceType,
    CUdevSmResourceSplitByCount_flags as Flags, CUresult,
};

use super::raw;
use super::sm::SmResource;
use super::split::SplitRequest;
use super::structure::GroupParams;
use crate::device::Device;
use crate::error::{Error, NotEnoughSms, Result, call};
use crate::recycle::Place;

/// How finely a device is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// SMs that are scheduled together stay together: 8 of them on Hopper, so that clusters fit.
    #[default]
    Coarse,
    /// As fine as the driver can: 2 SMs on Hopper, where clusters of more than 2 blocks may not fit.
    Fine,
    /// Units for the largest clusters that the device can run, where the driver makes a difference;
    /// on an H200 they are the coarse ones (recorded on driver 580.159.04).
    LargestClusters,
}

impl Granularity {
    /// Every granularity, from the one that is used unless told otherwise.
    pub const ALL: [Granularity; 3] =
        [Granularity::Coarse, Granularity::Fine, Granularity::LargestClusters];

    /// The flag of `cuDevSmResourceSplitByCount`.
    fn flags(self) -> u32 {
        match self {
            Granularity::Coarse => 0,
            Granularity::Fine => Flags::CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING.0,
            Granularity::LargestClusters => {
                Flags::CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE.0
            }
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Granularity::Coarse => "coarse",
            Granularity::Fine => "fine",
            Granularity::LargestClusters => "largest-cluster",
        })
    }
}

/// Into what a device is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Equal pieces: the smallest, unless the driver cannot make contexts of several.
    Equal {
        granularity: Granularity,
        /// The least SMs of a piece; 0 for the smallest that there are.
        size: u32,
        /// How many pieces of that size, before the rest; 0 for as many as there are.
        pieces: u32,
    },
    /// The groups of a structured request, in order, and what they left.
    Structured {
        /// The SMs that were split; `None` for the device's.
        within: Option<Arc<Place>>,
        groups: Arc<[GroupParams]>,
    },
}

impl Cut {
    /// The smallest pieces.
    pub(crate) const fn smallest(granularity: Granularity) -> Cut {
        Cut::Equal { granularity, size: 0, pieces: 0 }
    }

    /// The granularity of pieces that can be put together.
    pub(crate) fn granularity(&self) -> Option<Granularity> {
        match self {
            Cut::Equal { granularity, .. } => Some(*granularity),
            Cut::Structured { .. } => None,
        }
    }
}

impl Default for Cut {
    fn default() -> Cut {
        Cut::smallest(Granularity::default())
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Equal { granularity, size: 0, .. } => write!(f, "{granularity} units"),
            Cut::Equal { granularity, size, pieces: 0 } => {
                write!(f, "{granularity} groups of {size} SMs")
            }
            Cut::Equal { granularity, size, pieces } => {
                write!(f, "{pieces} {granularity} groups of {size} SMs and the rest")
            }
            Cut::Structured { groups, .. } => {
                let counts: Vec<String> = groups.iter().map(ToString::to_string).collect();
                write!(f, "structured groups of {} SMs", counts.join(", "))
            }
        }
    }
}

/// A device cut into pieces.
///
/// Equal ones come first, and at the end whatever was left: on an H200 the smallest are 15 units of 8
/// SMs and one of 12, or 66 of 2. Those of a structured request are its groups.
pub(crate) struct Units {
    resources: Box<[CUdevResource]>,
    counts: Box<[u32]>,
    /// The size of the equal units; of structured groups the least that is scheduled together.
    size: u32,
}

// SAFETY: a resource is bytes that the driver wrote and reads. Its one pointer links resources of a
// kind that these are not, and nothing here follows it.
unsafe impl Send for Units {}
// SAFETY: as above; nothing changes them after the cut.
unsafe impl Sync for Units {}

impl Units {
    /// Cuts the device into equal pieces. The counts are the driver's own, read back: no rule is
    /// assumed.
    pub(super) fn equal(device: &Device, cut: &Cut) -> Result<Units> {
        let Cut::Equal { granularity, size: least, pieces } = *cut else {
            return Err(Error::InvalidRequest(format!("{cut} are not cut by count")));
        };
        let whole = raw::of_device(device, CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM)?;
        let api = device.api();
        // A minimum of 0 asks for units as small as the granularity allows.
        let flags = granularity.flags();
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
        if pieces > 0 {
            count = count.min(pieces);
        }
        let mut resources = vec![raw::empty(); count as usize];
        let mut rest = raw::empty();
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
        let size = resources.first().map(|unit| raw::sm_part(unit).smCount);
        let size = size.filter(|size| *size > 0).ok_or_else(|| {
            Error::InvalidRequest("the driver cut the device into no SMs".to_owned())
        })?;
        Ok(Units::new(resources, rest, size))
    }

    /// Splits SMs into the structured groups of a request: `input`, the device's or those of the
    /// group of the name `within`.
    pub(super) fn structured(
        sms: &SmResource,
        request: &SplitRequest,
        groups: &[GroupParams],
        input: &CUdevResource,
        within: Option<&str>,
    ) -> Result<Units> {
        let split = |groups| split_structured(sms.device(), input, groups);
        let refused = |error: &Error| {
            error.status() == Some(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)
        };
        match split(groups) {
            Ok((resources, rest)) => {
                let size =
                    groups.iter().map(|group| group.coscheduled).min().unwrap_or(sms.alignment());
                Ok(Units::new(resources, rest, size))
            }
            Err(error) if refused(&error) => {
                let mut fit = groups.len().saturating_sub(1);
                while fit > 0 && split(&groups[..fit]).is_err_and(|error| refused(&error)) {
                    fit -= 1;
                }
                Err(Error::NotEnoughSms(Box::new(NotEnoughSms {
                    within: within.map(str::to_owned),
                    requested: request.groups.iter().map(|group| group.sm_count).collect(),
                    fit,
                    free: raw::sm_part(input).smCount,
                    total: sms.sm_count(),
                    unit: groups.get(fit).map_or(sms.alignment(), |group| group.coscheduled),
                    ..NotEnoughSms::default()
                })))
            }
            Err(error) => Err(error),
        }
    }

    fn new(mut resources: Vec<CUdevResource>, rest: CUdevResource, size: u32) -> Units {
        let left = raw::sm_part(&rest).smCount > 0;
        if left && rest.type_ == CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM {
            resources.push(rest);
        }
        let counts = resources.iter().map(|unit| raw::sm_part(unit).smCount).collect();
        Units { resources: resources.into(), counts, size }
    }

    pub(crate) fn counts(&self) -> &[u32] {
        &self.counts
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn resource(&self, index: usize) -> CUdevResource {
        self.resources[index]
    }
}

/// The driver's structured split: the groups, and what they leave. Nothing is taken by it, so that it
/// serves as a dry run too; the driver's own dry run refuses counts (NVIDIA/cuda-python, issue 2765).
fn split_structured(
    device: &Device,
    input: &CUdevResource,
    groups: &[GroupParams],
) -> Result<(Vec<CUdevResource>, CUdevResource)> {
    if groups.is_empty() {
        return Ok((Vec::new(), *input));
    }
    let mut params: Vec<CU_DEV_SM_RESOURCE_GROUP_PARAMS> =
        groups.iter().map(|group| group.raw()).collect();
    let mut resources = vec![raw::empty(); groups.len()];
    let mut rest = raw::empty();
    let count = u32::try_from(groups.len()).unwrap_or(u32::MAX);
    // SAFETY: result and parameters have room for `count` groups, the input came from the driver,
    // the remainder is one live structure, and there are no flags (cuda.h of 13.1).
    unsafe {
        call!(
            device.api(),
            cuDevSmResourceSplit(
                resources.as_mut_ptr(),
                count,
                input,
                &raw mut rest,
                0,
                params.as_mut_ptr(),
            )
        )
    }?;
    Ok((resources, rest))
}

//! The cuts of a device: the ways in which the driver splits its SMs into units.
//!
//! A cut by count gives equal units, and one unit for the SMs that are left, if any. The SM counts are read
//! back from the driver and not computed from a rule. A structured request (co-scheduled counts, backfill,
//! locality) needs the driver's structured split (CUDA 13.1 or newer). The driver does not report how the
//! groups of a structured split overlap with units. The request itself is therefore the cut: one unit per
//! group, and one for the SMs that are left. The driver's dry run refuses counts (NVIDIA/cuda-python, issue
//! 2765), so a dry run of this crate makes the actual split, which takes no SMs. Structured splits have not
//! yet run on hardware.
//!
//! The driver also does not report how units of different cuts overlap. All groups of a device that exist at
//! the same time therefore belong to one cut. The ledger refuses a request for another cut, such as another
//! granularity, until every unit is free again. The exception is an overlapping request, which may use
//! another cut while no group has a floor.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;

use green_ctx_sys::{
    CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY, CU_DEV_SM_RESOURCE_GROUP_PARAMS,
    CUdevResource, CUdevResourceType, CUdevSmResourceGroup_flags as GroupFlags,
    CUdevSmResourceSplitByCount_flags as Flags, CUresult, Version,
};

use crate::handle::dev_resource;
use crate::handle::dev_resource::Units;
use crate::handle::device::Device;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::ledger::{
    Cut, Granularity, GroupParams, LocalityDomain, NotEnoughSms, SplitRequest, Structure,
    UnitCounts,
};

/// The first driver version with `cuDevSmResourceSplit`.
pub(super) const STRUCTURED: Version = Version::new(13, 1);
/// The first driver version with locality domains.
pub(super) const LOCALITY: Version = Version::new(13, 4);
/// The first driver version with supplemental SMs of a locality domain.
const SUPPLEMENTAL: Version = Version::new(13, 5);
/// The number that means any domain, converted to the unsigned type of the fields that hold it.
const ANY_DOMAIN: u32 = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY.cast_unsigned();

/// Returns the flags of `cuDevSmResourceSplitByCount` for a granularity.
fn flags(granularity: Granularity) -> u32 {
    match granularity {
        Granularity::Coarse => 0,
        Granularity::Fine => Flags::CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING.0,
        Granularity::LargestClusters => {
            Flags::CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE.0
        }
    }
}

/// Cuts the device into equal pieces. The SM counts of the pieces are read back from the driver and not
/// computed from a rule.
pub(super) fn equal(device: &Device, cut: &Cut) -> Result<Units> {
    let Cut::Equal { granularity, size: least, pieces } = *cut else {
        return Err(Error::InvalidRequest(format!("{cut} cannot be split by SM count")));
    };
    let whole = dev_resource::of_device(
        device.functions()?,
        device.as_raw(),
        CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM,
    )?;
    let all = dev_resource::sm_part(&whole).smCount;
    if least == all {
        // A split would round the count up.
        return Ok(Units::new(vec![whole], UnitCounts::new([all].into(), all)));
    }
    let api = device.functions()?;
    // A minimum of 0 gives the smallest units of the granularity.
    let flags = flags(granularity);
    let mut count = 0;
    // SAFETY: `whole` came from the driver, and `whole` and `count` are live locals. With a null result, the
    // driver only writes the number of groups to `count` (cuda.h).
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
    let mut resources = vec![dev_resource::empty(); count as usize];
    let mut rest = dev_resource::empty();
    // SAFETY: `resources` has `count` elements, `whole` came from the driver, and `whole`, `count` and `rest`
    // are live locals.
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
    let size = resources.first().map(|unit| dev_resource::sm_part(unit).smCount);
    let size = size
        .filter(|size| *size > 0)
        .ok_or_else(|| Error::InvalidRequest("the driver made groups without SMs".to_owned()))?;
    Ok(units(resources, rest, size))
}

/// The SMs for the driver's structured split: those of the device or of a group.
pub(super) struct Input<'a> {
    pub(super) resource: CUdevResource,
    /// The name of the group; `None` for the device.
    pub(super) within: Option<&'a str>,
    /// The number of the device's SMs.
    pub(super) total: u32,
    /// The number of SMs that the device schedules together by default.
    pub(super) alignment: u32,
}

/// Splits SMs into the groups of a structured request.
pub(super) fn structured(
    device: &Device,
    input: &Input<'_>,
    request: &SplitRequest,
    groups: &[GroupParams],
) -> Result<Units> {
    let split = |groups| split_structured(device, &input.resource, groups);
    let refused =
        |error: &Error| error.status() == Some(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    match split(groups) {
        Ok((resources, rest)) => {
            let size =
                groups.iter().map(|group| group.coscheduled).min().unwrap_or(input.alignment);
            Ok(units(resources, rest, size))
        }
        Err(error) if refused(&error) => {
            let mut fit = groups.len().saturating_sub(1);
            while fit > 0 && split(&groups[..fit]).is_err_and(|error| refused(&error)) {
                fit -= 1;
            }
            Err(Error::NotEnoughSms(Box::new(NotEnoughSms {
                within: input.within.map(str::to_owned),
                requested: request.requested(),
                fit,
                free: dev_resource::sm_part(&input.resource).smCount,
                total: input.total,
                unit: groups.get(fit).map_or(input.alignment, |group| group.coscheduled),
                local: groups.get(fit).is_some_and(|group| group.locality.is_some()),
                ..NotEnoughSms::default()
            })))
        }
        Err(error) => Err(error),
    }
}

/// Returns the total number of SMs in all sets of `coscheduled` SMs that the driver's structured split can
/// form.
pub(super) fn available(device: &Device, input: &CUdevResource, coscheduled: u32) -> Result<u32> {
    match split_structured(device, input, &[GroupParams::plain(0, coscheduled)]) {
        Ok((resources, _)) => {
            Ok(resources.first().map_or(0, |all| dev_resource::sm_part(all).smCount))
        }
        Err(error)
            if error.status() == Some(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION) =>
        {
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

/// Creates units from the driver's groups and the SMs left over.
fn units(mut resources: Vec<CUdevResource>, rest: CUdevResource, size: u32) -> Units {
    let left = dev_resource::sm_part(&rest).smCount > 0;
    if left && rest.type_ == CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM {
        resources.push(rest);
    }
    let counts = resources.iter().map(|unit| dev_resource::sm_part(unit).smCount).collect();
    Units::new(resources, UnitCounts::new(counts, size))
}

/// Calls the driver's structured split. Returns the groups and the SMs left over. The call takes no SMs, so
/// dry runs use it too. The driver's own dry run refuses counts (NVIDIA/cuda-python, issue 2765).
fn split_structured(
    device: &Device,
    input: &CUdevResource,
    groups: &[GroupParams],
) -> Result<(Vec<CUdevResource>, CUdevResource)> {
    if groups.is_empty() {
        return Ok((Vec::new(), *input));
    }
    let mut params: Vec<CU_DEV_SM_RESOURCE_GROUP_PARAMS> =
        groups.iter().map(|group| params(*group)).collect();
    let mut resources = vec![dev_resource::empty(); groups.len()];
    let mut rest = dev_resource::empty();
    let count = u32::try_from(groups.len()).unwrap_or(u32::MAX);
    // SAFETY: `resources` and `params` have `count` elements each, `input` came from the driver, `rest` is a
    // live local, and the flags are 0 (cuda.h of 13.1).
    unsafe {
        call!(
            device.functions()?,
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

/// Returns the first driver version that supports the structure, and the name of the feature that older
/// drivers lack.
pub(super) fn needs(structure: &Structure) -> (Version, &'static str) {
    match (&structure.locality, &structure.supplemental) {
        (_, Some(_)) => (SUPPLEMENTAL, "cuDevSmResourceSplit with supplemental SMs"),
        (Some(_), None) => (LOCALITY, "cuDevSmResourceSplit with a locality domain"),
        (None, None) => (STRUCTURED, "cuDevSmResourceSplit"),
    }
}

/// Returns the driver's parameters for one group.
fn params(group: GroupParams) -> CU_DEV_SM_RESOURCE_GROUP_PARAMS {
    let backfill = if group.backfill { GroupFlags::CU_DEV_SM_RESOURCE_GROUP_BACKFILL.0 } else { 0 };
    let supplemental = match group.supplemental {
        true => GroupFlags::CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS.0,
        false => 0,
    };
    let (local, domain) = match group.locality {
        None => (0, 0),
        Some(domain) => {
            let number = match domain {
                LocalityDomain::Any => ANY_DOMAIN,
                LocalityDomain::Id(number) => number,
            };
            (GroupFlags::CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID.0, number)
        }
    };
    CU_DEV_SM_RESOURCE_GROUP_PARAMS {
        smCount: group.sm_count,
        coscheduledSmCount: group.coscheduled,
        preferredCoscheduledSmCount: group.preferred,
        flags: backfill | local | supplemental,
        localityDomainId: domain,
        reserved: [0; 11],
    }
}

/// Returns the locality domain of a resource if `flags` contains the flag for a locality domain.
pub(super) fn locality_domain(flags: GroupFlags, number: u32) -> Option<LocalityDomain> {
    let has = flags.0 & GroupFlags::CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID.0 != 0;
    has.then_some(match number {
        ANY_DOMAIN => LocalityDomain::Any,
        number => LocalityDomain::Id(number),
    })
}

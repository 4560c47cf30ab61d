//! Splits of a device: which units a request is met from, and the groups that it takes.

use std::borrow::Cow;
use std::sync::Arc;

use green_ctx_sys::CUdevResourceType;

use super::cut::{self, Input};
use super::sm::{COMPOSITION, SmResource, check_version};
use crate::handle::dev_resource::{self, Units};
use crate::handle::device::Device;
use crate::handle::error::{Error, Result};
use crate::handle::fence::Fences;
use crate::handle::group::{Hold, SmGroup};
use crate::ledger::{
    Cut, DryRun, Granularity, GroupUnits, NotEnoughSms, RequestedGroup, Rounding, Share, ShareKind,
    SplitRequest, UnitSizes,
};

/// The groups that a split took. Make contexts of them, or drop them.
#[derive(Debug)]
#[non_exhaustive]
pub struct Split {
    /// The groups, in the request's order.
    pub groups: Vec<SmGroup>,
    /// What remained, when the request takes it and something did.
    pub remainder: Option<SmGroup>,
}

impl Split {
    /// Groups of chosen units, each with what still runs on its floor and who accounts for it.
    pub(super) fn of(
        device: &Device,
        units: &Arc<Units>,
        request: &SplitRequest,
        chosen: Vec<GroupUnits>,
        holds: impl IntoIterator<Item = (Fences, Hold)>,
    ) -> Split {
        let mut split = Split { groups: Vec::with_capacity(chosen.len()), remainder: None };
        for (chosen, (fences, hold)) in chosen.into_iter().zip(holds) {
            let share = chosen.sms.share;
            let priority = request.priority_of(&chosen.sms.name);
            let (device, units) = (device.clone(), Arc::clone(units));
            let group = SmGroup::new(device, units, chosen, priority, fences, hold);
            match share == Share::REST {
                true => split.remainder = Some(group),
                false => split.groups.push(group),
            }
        }
        split
    }
}

pub(super) fn would_give(
    sms: &SmResource,
    request: &SplitRequest,
    without: &[&SmGroup],
) -> Result<DryRun> {
    request.validate()?;
    let request = &*counted(sms, request)?;
    let (cut, units) = units_for(sms, request)?;
    let gone = without.iter().filter(|group| *group.device() == sms.device);
    let gone: Vec<_> = gone.filter_map(|group| group.entry()).collect();
    let (chosen, free, quarantined) = {
        let ledger = sms.device.ledger()?;
        let rest = (!gone.is_empty()).then(|| ledger.without(&gone));
        let ledger = rest.as_ref().unwrap_or(&ledger);
        let quarantined = ledger.sm_counts().map_or(0, |counts| counts.quarantined);
        let chosen = ledger.choose(units.counts(), &cut, request)?;
        (chosen, ledger.free(units.counts()), quarantined)
    };
    check_composition(&sms.device, &chosen)?;
    Ok(DryRun { quarantined, ..DryRun::new(units.counts(), free, chosen) })
}

/// What a refusal says of what fits, asked for where the driver makes a context of one piece only:
/// the ledger counts the smallest pieces, as if they could be put together.
#[cold]
pub(super) fn corrected(
    sms: &SmResource,
    request: &SplitRequest,
    without: &[&SmGroup],
    error: Error,
) -> Error {
    let Error::NotEnoughSms(mut shortage) = error else { return error };
    if sms.device.driver().version() < COMPOSITION {
        let fits =
            |shares: &[Share]| would_give(sms, &request.with_shares(shares), without).is_ok();
        let requested = &shortage.requested;
        let fit = (0..requested.len()).rev().find(|count| fits(&requested[..*count]));
        shortage.fit = fit.unwrap_or(0);
        if !fits(&shortage.nearest) {
            shortage.nearest.clear();
        }
    }
    Error::NotEnoughSms(shortage)
}

/// Takes all SMs that are free, as one group of this name.
pub(super) fn take_rest(sms: &SmResource, name: Arc<str>) -> Result<SmGroup> {
    loop {
        let rest = sms.split(SplitRequest::new().rest(Arc::clone(&name)))?.remainder;
        if let Some(rest) = rest {
            return Ok(rest);
        }
        // A request for one SM says who has them all.
        match sms.dry_run([1]) {
            Err(Error::NotEnoughSms(shortage)) => {
                let requested = vec![Share::REST];
                let shortage = NotEnoughSms { requested, ..*shortage };
                return Err(Error::NotEnoughSms(Box::new(shortage)));
            }
            Err(error) => return Err(error),
            // Another thread has given some back since.
            Ok(_) => {}
        }
    }
}

pub(super) fn take(sms: &SmResource, request: &SplitRequest) -> Result<Split> {
    request.validate()?;
    sms.device.driver().reclaim();
    sms.device.retry_quarantine();
    let request = &*counted(sms, request)?;
    let (cut, units) = units_for(sms, request)?;
    let (chosen, taken) = {
        let mut ledger = sms.device.ledger()?;
        let chosen = ledger.choose(units.counts(), &cut, request)?;
        check_composition(&sms.device, &chosen)?;
        let take = |chosen| ledger.take(units.counts(), chosen);
        let taken: Vec<_> = chosen.iter().map(take).collect();
        (chosen, taken)
    };
    let holds = taken.into_iter().map(|taken| (taken.fences.into(), Hold::Ledger(taken.group)));
    Ok(Split::of(&sms.device, &units, request, chosen, holds))
}

/// A valid request with counts in place of percentages of the device's SMs.
pub(super) fn counted<'a>(
    sms: &SmResource,
    request: &'a SplitRequest,
) -> Result<Cow<'a, SplitRequest>> {
    request.counted(|| {
        if request.is_structured() {
            let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
            let device = &sms.device;
            let available = |coscheduled| {
                let resource = dev_resource::of_device(device.functions()?, device.as_raw(), kind)?;
                cut::available(device, &resource, coscheduled)
            };
            let (needs, call) = cut::needs(&request.structure);
            check_version(device, needs, call)?;
            return request.structured_rounding(sms.sm_count(), sms.coscheduling()?, available);
        }
        let sizes = UnitSizes::of(smallest(sms, request.granularity)?.1.counts().counts());
        // Older drivers make equal groups only.
        Ok(match sms.device.driver().version() < COMPOSITION {
            true => Rounding { is_equal: true, ..UnitSizes { odd: 0, ..sizes }.into() },
            false => sizes.into(),
        })
    })
}

/// The units that a valid request is met from.
pub(super) fn units_for(sms: &SmResource, request: &SplitRequest) -> Result<(Cut, Arc<Units>)> {
    if sms.is_green {
        let reason = "these SMs are a context's own; split the device's, or the group that \
                      `Context::close` of a partition gives back";
        return Err(Error::InvalidRequest(reason.to_owned()));
    }
    if request.is_structured() {
        return structured(sms, request);
    }
    let (smallest, units) = smallest(sms, request.granularity)?;
    if sms.device.driver().version() >= COMPOSITION {
        return Ok((smallest, units));
    }
    if request.groups.iter().all(|group| group.share.kind() == ShareKind::Regular) {
        // A piece that others left, of the cut that is in use.
        let cut = sms.device.ledger()?.cut_in_use();
        let same = |cut: &Cut| cut.granularity() == Some(request.granularity);
        if let Some(cut) = cut.filter(same) {
            return equal(sms, cut);
        }
    }
    if !request.is_exclusive() || request.groups.is_empty() {
        return undivided(sms, &request.shares());
    }
    // One piece a group: the device is cut into pieces of the size asked for, or into one of all units
    // but the odd ones.
    let regular = || {
        let counts = units.counts().counts().iter();
        counts.filter(|count| **count == units.counts().size()).sum()
    };
    let count = |group: &RequestedGroup| match group.counted.kind() {
        ShareKind::Count(count) => Some(count),
        ShareKind::Regular => Some(regular()),
        ShareKind::Percent(_) | ShareKind::Between { .. } | ShareKind::Rest => None,
    };
    let Some(size) = request.groups.first().and_then(count) else {
        return Ok((smallest, units));
    };
    let same_size = request.groups.iter().all(|group| count(group) == Some(size));
    let alone = size <= units.counts().size() && request.rest_name().is_none();
    if !same_size || alone || size > sms.sm_count() {
        return Ok((smallest, units));
    }
    let pieces = match request.rest_name() {
        Some(_) => u32::try_from(request.groups.len()).unwrap_or(u32::MAX),
        None => 0,
    };
    let granularity = request.granularity;
    let (cut, sized) = equal(sms, Cut::Equal { granularity, size, pieces })?;
    let (counts, size) = (sized.counts().counts(), sized.counts().size());
    let made = counts.iter().filter(|count| **count == size).count();
    if made < request.groups.len() && !sms.device.ledger()?.is_cut(&cut) {
        // What would fit, and whether a newer driver could do it, shows in the smallest pieces.
        return Ok((smallest, units));
    }
    Ok((cut, sized))
}

/// The device as one piece, which several may share where the driver makes contexts of one piece.
fn undivided(sms: &SmResource, shares: &[Share]) -> Result<(Cut, Arc<Units>)> {
    if shares.iter().any(|share| *share != Share::from(..)) {
        check_version(&sms.device, COMPOSITION, "a share other than a count or `..`")?;
    }
    equal(sms, Cut::Equal { granularity: Granularity::default(), size: sms.sm_count(), pieces: 0 })
}

pub(super) fn smallest(sms: &SmResource, granularity: Granularity) -> Result<(Cut, Arc<Units>)> {
    equal(sms, Cut::smallest(granularity))
}

fn equal(sms: &SmResource, cut: Cut) -> Result<(Cut, Arc<Units>)> {
    let units = sms.device.units(&cut, || cut::equal(&sms.device, &cut))?;
    Ok((cut, units))
}

fn structured(sms: &SmResource, request: &SplitRequest) -> Result<(Cut, Arc<Units>)> {
    let device = &sms.device;
    let (needs, call) = cut::needs(&request.structure);
    check_version(device, needs, call)?;
    let groups: Arc<[_]> = request.structured_groups(sms.coscheduling()?)?.into();
    let cut = Cut::Structured { within: None, groups: Arc::clone(&groups) };
    let units = device.units(&cut, || {
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        let resource = dev_resource::of_device(device.functions()?, device.as_raw(), kind)?;
        let (total, alignment) = (sms.sm_count(), sms.alignment());
        let input = Input { resource, within: None, total, alignment };
        cut::structured(device, &input, request, &groups)
    })?;
    Ok((cut, units))
}

/// A 12.4 driver takes one resource a descriptor.
fn check_composition(device: &Device, chosen: &[GroupUnits]) -> Result<()> {
    if chosen.iter().all(|group| group.placement.members.len() == 1) {
        return Ok(());
    }
    check_version(device, COMPOSITION, "cuDevResourceGenerateDesc with several resources")
}

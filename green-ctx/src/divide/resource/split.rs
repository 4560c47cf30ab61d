//! Splits of a device: choosing the units for a request, and creating the groups.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use green_ctx_sys::CUdevResourceType;

use super::cut::{self, Input};
use super::sm::{COMPOSITION, SmResource, check_version};
use crate::handle::dev_resource::{self, Units};
use crate::handle::device::Device;
use crate::handle::error::{Error, Result};
use crate::handle::fence::Fences;
use crate::handle::group::{Hold, SmGroup};
use crate::ledger::{
    Cut, DryRun, Granularity, GroupSms, GroupUnits, NotEnoughSms, Placement, RequestedGroup,
    Rounding, Share, ShareKind, SplitRequest, UNBOUND, UnitSizes,
};

/// The groups that a split returned. Create contexts from the groups, or drop the groups to free their SMs.
#[derive(Debug)]
#[non_exhaustive]
pub struct Split {
    /// The groups, in the order of the request.
    pub groups: Vec<SmGroup>,
    /// The group that takes the rest; `None` if the request does not take the rest or no SMs remained.
    pub remainder: Option<SmGroup>,
}

impl Split {
    /// Creates groups from chosen units. `holds` contains, for each group, its fences and the account in
    /// which its SMs are recorded.
    pub(super) fn of(
        device: &Device,
        units: &Arc<Units>,
        request: &SplitRequest,
        chosen: Vec<GroupUnits>,
        holds: impl IntoIterator<Item = (Fences, Hold)>,
    ) -> Split {
        let group = |(record, (fences, hold)): (GroupUnits, _)| {
            let priority = request.priority_of(&record.sms.name);
            SmGroup::new(device.clone(), Arc::clone(units), record, priority, fences, hold)
        };
        let mut groups: Vec<SmGroup> = chosen.into_iter().zip(holds).map(group).collect();
        // The group that takes the rest is the last one.
        let remainder = groups.pop_if(|group| group.share() == Share::REST);
        Split { groups, remainder }
    }
}

pub(super) fn would_give(
    sms: &SmResource,
    request: &SplitRequest,
    without: &[&SmGroup],
) -> Result<DryRun> {
    request.validate()?;
    let counted = counted(sms, request)?;
    let request = counted.as_deref().unwrap_or(request);
    let (cut, units) = units_for(sms, request)?;
    let gone = without.iter().filter(|group| *group.device() == sms.device);
    let gone: Vec<_> = gone.filter_map(|group| group.entry()).collect();
    let (chosen, free, quarantined) = {
        let ledger = sms.device.ledger()?;
        let rest = (!gone.is_empty()).then(|| ledger.without(&gone));
        let ledger = rest.as_ref().unwrap_or(&ledger);
        let quarantined = ledger.quarantined_sms();
        let chosen = ledger.choose(units.counts(), &cut, request)?;
        (chosen, ledger.free(units.counts()), quarantined)
    };
    check_composition(&sms.device, &chosen)?;
    Ok(DryRun { quarantined, ..DryRun::new(units.counts(), free, chosen) })
}

/// Corrects a shortage error for drivers that cannot create a context from several pieces: the groups and
/// shares that the error reports as fitting. The ledger assumes that the smallest pieces can be combined.
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

/// Records work outside of partitions as a holder in the device's ledger, once, if SMs are reserved: it may use the SMs
/// that are not reserved, and has no floor. Floors therefore come from the reserve, ceilings may reach into the rest, and
/// refusals name the holder.
pub(super) fn hold_rest(sms: &SmResource) -> Result<()> {
    let (device, is_held) = (&sms.device, &sms.device.state().rest_is_held);
    if is_held.load(Ordering::Acquire) {
        return Ok(());
    }
    let Some(rest) = device.division()? else { return Ok(()) };
    let (cut, units) = smallest(sms, Granularity::default())?;
    let end = units.counts().counts().len() - usize::from(rest.odd_reserved);
    let members: Vec<usize> = (rest.first as usize..end).collect();
    let name = UNBOUND.into();
    let share = Share::from(..=rest.sms);
    let group = GroupUnits {
        sms: GroupSms { name, share, floor: 0, sm_count: rest.sms },
        placement: Placement { cut, members: members.clone() },
        pool: members,
    };
    let mut ledger = device.ledger()?;
    // Another thread may have been first.
    if !is_held.swap(true, Ordering::AcqRel) {
        let taken = ledger.take(units.counts(), &group);
        drop(ledger);
        drop(taken);
    }
    Ok(())
}

/// Takes all free SMs as one group with this name.
pub(super) fn take_rest(sms: &SmResource, name: Arc<str>) -> Result<SmGroup> {
    loop {
        let rest = sms.split(SplitRequest::new().rest(Arc::clone(&name)))?.remainder;
        if let Some(rest) = rest {
            return Ok(rest);
        }
        // The shortage of a request for one SM names all holders.
        match sms.dry_run([1]) {
            Err(Error::NotEnoughSms(shortage)) => {
                let requested = vec![Share::REST];
                let shortage = NotEnoughSms { requested, ..*shortage };
                return Err(Error::NotEnoughSms(Box::new(shortage)));
            }
            Err(error) => return Err(error),
            // Another thread has returned SMs in the meantime, so try again.
            Ok(_) => {}
        }
    }
}

pub(super) fn take(sms: &SmResource, request: &SplitRequest) -> Result<Split> {
    request.validate()?;
    sms.device.driver().reclaim();
    sms.device.retry_quarantine();
    let counted = counted(sms, request)?;
    let request = counted.as_deref().unwrap_or(request);
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

/// Returns the request with counts in place of percentages of the device's SMs, or `None` if it has no percentages. The
/// request must be valid.
pub(super) fn counted(
    sms: &SmResource,
    request: &SplitRequest,
) -> Result<Option<Box<SplitRequest>>> {
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
        // Older drivers make only equal groups.
        Ok(match sms.device.driver().version() < COMPOSITION {
            true => Rounding { is_equal: true, ..UnitSizes { odd: 0, ..sizes }.into() },
            false => sizes.into(),
        })
    })
}

/// Returns the cut that a valid request needs, and the units of that cut.
pub(super) fn units_for(sms: &SmResource, request: &SplitRequest) -> Result<(Cut, Arc<Units>)> {
    if sms.is_green {
        let reason = "these SMs belong to a context; split those of the device, or the group that \
                      `Context::close` returns";
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
        // Without combined pieces, only a piece that others left in the current cut can serve the request.
        let cut = sms.device.ledger()?.cut_in_use();
        let same = |cut: &Cut| cut.granularity() == Some(request.granularity);
        if let Some(cut) = cut.filter(same) {
            return equal(sms, cut);
        }
    }
    if !request.is_exclusive() || request.groups.is_empty() {
        return undivided(sms, &request.shares());
    }
    // Each group must be one piece: cut the device into pieces of the requested size, or into one piece of
    // all regular units.
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
        // The smallest pieces show how many groups would fit, and whether a newer driver could make them.
        return Ok((smallest, units));
    }
    Ok((cut, sized))
}

/// Returns the device as one piece. On drivers that cannot combine pieces, groups can share SMs only if each
/// group has all SMs.
fn undivided(sms: &SmResource, shares: &[Share]) -> Result<(Cut, Arc<Units>)> {
    if shares.iter().any(|share| *share != Share::from(..)) {
        check_version(&sms.device, COMPOSITION, "a range of SMs such as `16..48` or `32..`")?;
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

/// Fails if a group has several units and the driver (CUDA 12.4) accepts only one resource per descriptor.
fn check_composition(device: &Device, chosen: &[GroupUnits]) -> Result<()> {
    if chosen.iter().all(|group| group.placement.members.len() == 1) {
        return Ok(());
    }
    check_version(
        device,
        COMPOSITION,
        "a group of several units, as for groups of different sizes,",
    )
}

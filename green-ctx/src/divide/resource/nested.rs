//! Groups that the driver splits out of another group's SMs.
//!
//! The driver splits a group if the request is structured, or if the group comes from a structured split,
//! because each group of a structured split is one unit. All parts of the group are exclusive. Needs CUDA
//! 13.1 or newer; not yet run on hardware.
//!
//! The driver does not split the results of a split again, but it splits the resource of a context (recorded
//! on an H200 for splits by count; the header says the same for structured splits). The group therefore gets
//! a context that runs no work. The group and the context are held until the last part of the group is
//! dropped. Resources that were split from a context stay valid after the context is destroyed (recorded on
//! an H200: `lifetime/children-outlive-their-parent`).
//!
//! A dry run makes the same split but takes no SMs, and leaves the context for reuse.

use std::sync::Arc;

use green_ctx_sys::CUdevResourceType;

use super::create::obtain;
use super::cut::STRUCTURED;
use super::cut::{self, Input};
use super::sm::{SmResource, check_version};
use super::split::Split;
use crate::handle::dev_resource;
use crate::handle::dev_resource::Units;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::green::{self, Green};
use crate::handle::group::{Hold, Parent, SmGroup};
use crate::ledger::{
    self, Cut, DryRun, GroupParams, GroupUnits, RequestedGroup, Rounding, SplitRequest, UnitSet,
    UnitSizes,
};

/// Splits a group. If the split fails, the error returns the group.
pub(super) fn split(group: SmGroup, request: &SplitRequest) -> Result<Split, Refused<SmGroup>> {
    let Pieces { context, units, chosen } = match pieces(&group, request) {
        Ok(pieces) => pieces,
        Err(error) => return Err(Refused { given: group, reason: error }),
    };
    let device = group.device().clone();
    let fences = group.fences().clone();
    let parent = Parent::new(group, Some(context));
    let hold = |child: &GroupUnits| {
        let number = parent.enter(&units, child);
        (fences.clone(), Hold::Parent(Arc::clone(&parent), Some(number)))
    };
    let holds: Vec<_> = chosen.iter().map(hold).collect();
    Ok(Split::of(&device, &units, request, chosen, holds))
}

/// Returns the result that a split would have.
pub(super) fn dry_run(group: &SmGroup, request: &SplitRequest) -> Result<DryRun> {
    let Pieces { context, units, chosen } = pieces(group, request)?;
    green::leave(group.device(), context);
    Ok(DryRun::new(units.counts(), UnitSet::all(units.counts().counts().len()), chosen))
}

/// The result of the driver's split of a group.
struct Pieces {
    /// The context in which the group's SMs were split.
    context: Arc<Green>,
    units: Arc<Units>,
    /// The groups of the request with their units.
    chosen: Vec<GroupUnits>,
}

fn pieces(group: &SmGroup, request: &SplitRequest) -> Result<Pieces> {
    let device = group.device();
    let (needs, call) = cut::needs(&request.structure);
    check_version(device, needs.max(STRUCTURED), call)?;
    let sms = SmResource::of_device(device)?;
    // Check before creating a context, so that an invalid request leaves none behind.
    let guess = |sets: u32| Ok::<_, Error>(group.sm_count() / sets * sets);
    params(group, &sms, counted(group, &sms, request, guess)?.as_deref().unwrap_or(request))?;
    let context = obtain(device, group.units(), group.placement(), None, group.sm_count())?;
    let split = || {
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        let resource =
            || context.call(|green| dev_resource::of_green(device.functions()?, green, kind));
        let available = |sets| cut::available(device, &resource()?, sets);
        let counted = counted(group, &sms, request, available)?;
        let request = counted.as_deref().unwrap_or(request);
        let groups = params(group, &sms, request)?;
        let within = Some(Arc::new(group.placement().clone()));
        let cut = Cut::Structured { within, groups: Arc::clone(&groups) };
        let units = device.units(&cut, || {
            let (total, alignment) = (sms.sm_count(), sms.alignment());
            let input =
                Input { resource: resource()?, within: Some(group.name()), total, alignment };
            cut::structured(device, &input, request, &groups)
        })?;
        let chosen = ledger::each_its_own(units.counts(), &cut, request);
        Ok((units, chosen))
    };
    match split() {
        Ok((units, chosen)) => Ok(Pieces { context, units, chosen }),
        Err(error) => {
            green::leave(device, context);
            Err(error)
        }
    }
}

/// Returns the request with counts in place of percentages of the group's SMs, or `None` if it has no percentages.
fn counted(
    group: &SmGroup,
    sms: &SmResource,
    request: &SplitRequest,
    available: impl FnOnce(u32) -> Result<u32>,
) -> Result<Option<Box<SplitRequest>>> {
    request.counted(|| {
        if request.is_structured() {
            return request.structured_rounding(group.sm_count(), sms.coscheduling()?, available);
        }
        let unit = alignment(group, sms).max(1);
        let (sms, units) = (group.sm_count(), available(unit)? / unit);
        Ok(Rounding { sms, unit, units, odd: 0, is_equal: false })
    })
}

/// Returns the driver's parameters for a request without percentages.
fn params(group: &SmGroup, sms: &SmResource, request: &SplitRequest) -> Result<Arc<[GroupParams]>> {
    if request.is_structured() {
        return Ok(request.structured_groups(sms.coscheduling()?)?.into());
    }
    plain_groups(request, alignment(group, sms))
}

/// Returns the number of the group's SMs that are scheduled together.
fn alignment(group: &SmGroup, sms: &SmResource) -> u32 {
    match &group.placement().cut {
        Cut::Equal { .. } => sms.alignment(),
        Cut::Structured { groups, .. } => {
            let own = group.placement().members.iter().filter_map(|index| groups.get(*index));
            // In the rest of a structured split, SMs only come in pairs (cuda.h).
            own.map(|group| group.coscheduled).min().unwrap_or(2)
        }
    }
}

/// Returns the parameters for a request by count. Counts are rounded up to multiples of `alignment`, because
/// the structured split itself rounds nothing.
fn plain_groups(request: &SplitRequest, alignment: u32) -> Result<Arc<[GroupParams]>> {
    let sizes = UnitSizes { sms: 0, unit: alignment, odd: 0 };
    let group = |wanted: &RequestedGroup| {
        Ok(GroupParams::plain(sizes.round_up(wanted.structured_count()?, false), alignment))
    };
    request.groups.iter().map(group).collect()
}

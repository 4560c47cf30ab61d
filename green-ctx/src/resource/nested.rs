//! Groups that the driver splits out of another group's SMs.
//!
//! The driver does not split the results of a split again, but the resource of a context can be split
//! (recorded on an H200 for splits by count; of structured ones, from CUDA 13.1 on, the header says
//! it). So the group gets a context of its own, which nobody works in, and is held with it until the
//! last group that was split out of it is gone. Pieces of a context that was destroyed stay good
//! (recorded on an H200: `lifetime/children-outlive-their-parent`).

use std::mem;
use std::sync::Arc;

use green_ctx_sys::CUdevResourceType;
use parking_lot::Mutex;

use super::group::{Hold, SmGroup, SplitError};
use super::ledger::{self, Chosen};
use super::raw;
use super::sm::{SmResource, check_version};
use super::split::{Split, SplitPlan, SplitRequest};
use super::structure::{GroupParams, STRUCTURED};
use super::unit::{Cut, Units};
use crate::error::{Error, Result};
use crate::fence::{Fence, Fences};
use crate::green;
use crate::recycle::{Place, RawGreen};

/// A group that others were split out of.
pub(crate) struct Parent {
    group: SmGroup,
    /// The context that the driver split, if it did.
    context: Option<RawGreen>,
    /// What still ran on the SMs of the children that are gone.
    fences: Mutex<Vec<Arc<Fence>>>,
}

impl Parent {
    /// Splits a group, which comes back where that fails.
    pub(super) fn split(group: SmGroup, request: &SplitRequest) -> Result<Split, Box<SplitError>> {
        let Pieces { context, units, chosen } = match cut(&group, request) {
            Ok(pieces) => pieces,
            Err(error) => return Err(Box::new(SplitError { group, error })),
        };
        let device = group.device().clone();
        let fences = group.fences().clone();
        let context = Some(context);
        let parent = Arc::new(Parent { group, context, fences: Mutex::default() });
        let hold = |_: &Chosen| (fences.clone(), Hold::Parent(Arc::clone(&parent)));
        Ok(Split::of(&device, &units, chosen, hold))
    }

    /// What a split would give, of pieces of what size.
    pub(super) fn plan(group: &SmGroup, request: &SplitRequest) -> Result<SplitPlan> {
        let Pieces { context, units, chosen } = cut(group, request)?;
        green::leave(group.device(), context, group.place(), None, group.sm_count());
        Ok(SplitPlan::new(units.size(), group.sm_count(), chosen))
    }

    /// A group to be divided more than once, whose parts may share SMs with each other.
    pub(crate) fn of(group: SmGroup) -> Arc<Parent> {
        Arc::new(Parent { group, context: None, fences: Mutex::default() })
    }

    /// Divides the group by count, whatever others have of it; where there is a choice, into places
    /// that are in use by turns already.
    pub(crate) fn divide(
        self: &Arc<Self>,
        request: &SplitRequest,
        by_turns: &[Place],
    ) -> Result<Split> {
        if self.group.needs_driver(request) {
            let reason = "a structured request cannot be a plan; plans divide by count";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        let chosen = self.group.choose(request, by_turns)?;
        let gone = self.fences.lock().clone();
        let fences = self.group.fences().with(gone);
        let hold = |_: &Chosen| (fences.clone(), Hold::Parent(Arc::clone(self)));
        Ok(Split::of(self.group.device(), self.group.units(), chosen, hold))
    }

    pub(crate) fn group(&self) -> &SmGroup {
        &self.group
    }

    /// Takes the fences of a child that goes.
    pub(super) fn leave(&self, fences: Fences) {
        self.fences.lock().extend(fences.into_iter());
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let device = self.group.device().clone();
        if device.driver().is_forked() {
            return;
        }
        self.group.add_fences(mem::take(self.fences.get_mut()));
        // The context first: whoever gets the SMs next shall find it.
        if let Some(context) = self.context {
            green::leave(&device, context, self.group.place(), None, self.group.sm_count());
        }
    }
}

/// A group's SMs, split.
struct Pieces {
    /// The context that they were split in.
    context: RawGreen,
    units: Arc<Units>,
    /// Which group of the request gets which.
    chosen: Vec<Chosen>,
}

fn cut(group: &SmGroup, request: &SplitRequest) -> Result<Pieces> {
    group.check_request(request)?;
    let device = group.device();
    let (needs, call) = request.structure.needs();
    check_version(device, needs.max(STRUCTURED), call)?;
    let sms = SmResource::of_device(device)?;
    let groups: Arc<[GroupParams]> = if request.is_structured() {
        request.structure.groups(request, sms.coscheduling()?)?.into()
    } else {
        plain_groups(request, alignment(group, &sms))
    };
    let within = Some(Arc::new(group.place().clone()));
    let cut = Cut::Structured { within, groups: Arc::clone(&groups) };
    let context = green::obtain(device, group, None)?;
    let units = device.units(&cut, || {
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        let input = raw::of_green(device.api(), context.green, kind)?;
        Units::structured(&sms, request, &groups, &input, Some(group.name()))
    });
    match units {
        Ok(units) => {
            let chosen = ledger::each_its_own(&units, &cut, request);
            Ok(Pieces { context, units, chosen })
        }
        Err(error) => {
            green::leave(device, context, group.place(), None, group.sm_count());
            Err(error)
        }
    }
}

/// How many of a group's SMs are scheduled together.
fn alignment(group: &SmGroup, sms: &SmResource) -> u32 {
    match &group.place().cut {
        Cut::Equal { .. } => sms.alignment(),
        Cut::Structured { groups, .. } => {
            let own = group.place().members.iter().filter_map(|index| groups.get(*index));
            // What a structured split leaves has no structure but that SMs come in pairs (cuda.h).
            own.map(|group| group.coscheduled).min().unwrap_or(2)
        }
    }
}

/// The groups of a request by count, rounded up as such a request always is: the structured split
/// itself rounds nothing.
fn plain_groups(request: &SplitRequest, alignment: u32) -> Arc<[GroupParams]> {
    let round = |count: u32| count.div_ceil(alignment).saturating_mul(alignment);
    let group = |count: Option<u32>| GroupParams::plain(count.map_or(0, round), alignment);
    request.groups.iter().map(|wanted| group(wanted.sm_count)).collect()
}

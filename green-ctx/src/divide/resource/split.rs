//! What a split gives.

use std::sync::Arc;

use crate::handle::dev_resource::Units;
use crate::handle::device::Device;
use crate::handle::fence::Fences;
use crate::handle::group::{Hold, SmGroup};
use crate::ledger::{GroupUnits, Share, SplitRequest};

/// The groups that a split took, to be made into contexts or dropped.
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

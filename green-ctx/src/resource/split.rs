//! What a split gives.

use std::sync::Arc;

use crate::device::Device;
use crate::error::Error;
use crate::fence::Fences;
use crate::group::{Hold, SmGroup};
use crate::ledger::{Chosen, Origin};
use crate::units::Units;

/// The groups that a split took, to be made into contexts or dropped.
#[derive(Debug)]
#[non_exhaustive]
pub struct Split {
    /// The groups, in the request's order.
    pub groups: Vec<SmGroup>,
    /// What remained, when the request takes it and something did.
    pub remainder: Option<SmGroup>,
}

/// A group that was not split.
#[derive(Debug, thiserror::Error)]
#[error("the group was not split")]
pub struct SplitError {
    /// The group, as it was.
    pub group: SmGroup,
    /// Why it was not split.
    #[source]
    pub error: Error,
}

impl Split {
    /// Groups of chosen units, each with what still runs there and who accounts for it.
    pub(super) fn of(
        device: &Device,
        units: &Arc<Units>,
        chosen: Vec<Chosen>,
        mut hold: impl FnMut(&Chosen) -> (Fences, Hold),
    ) -> Split {
        let mut split = Split { groups: Vec::with_capacity(chosen.len()), remainder: None };
        for chosen in chosen {
            let origin = chosen.origin;
            let (fences, hold) = hold(&chosen);
            let group = SmGroup::new(device.clone(), Arc::clone(units), chosen, fences, hold);
            match origin {
                Origin::Requested(_) => split.groups.push(group),
                Origin::Remainder => split.remainder = Some(group),
            }
        }
        split
    }
}

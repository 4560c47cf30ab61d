//! The result of a dry run.

use std::sync::Arc;

use super::assign::GroupUnits;
use super::share::Share;
use super::units::{UnitCounts, UnitSet};

/// The result of a dry run: the groups that a split would give now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DryRun {
    /// The size of the units that the request uses, in SMs. One of them may have another size.
    pub unit: u32,
    /// The groups, in the order of the request.
    pub groups: Vec<GroupSms>,
    /// The free SMs that no group in `groups` uses. If the request takes the rest, these SMs go to the group of
    /// the rest.
    pub remainder: u32,
    /// The SMs that would be left for later floors. An unbounded share (`32..`, `..`) leaves no SMs for later
    /// floors. To get a floor as well as an unbounded share, request the two together, give the unbounded
    /// share a ceiling, or use plans.
    pub free_for_floors: u32,
    /// The SMs in quarantine, because work of a previous owner could not be recorded. A split tries again to
    /// record the work, and can use these SMs if that succeeds. A dry run changes nothing, so it treats these
    /// SMs as unavailable.
    pub quarantined: u32,
}

/// The requested share of a group and the resulting numbers of SMs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupSms {
    /// The group's name.
    pub name: Arc<str>,
    /// The requested share; [`Share::REST`] for the group that takes the rest.
    pub share: Share,
    /// The SMs that no other group may use.
    pub floor: u32,
    /// The SMs that the group may use: its ceiling.
    pub sm_count: u32,
}

impl DryRun {
    /// Creates the result for chosen groups. `free` contains the units that were free for floors. The result
    /// reports no SMs in quarantine.
    pub(crate) fn new(units: &UnitCounts, mut free: UnitSet, chosen: Vec<GroupUnits>) -> DryRun {
        free.take_out(chosen.iter().flat_map(|group| &group.placement.members));
        let left = free.iter().map(|unit| units.counts()[unit]).sum();
        let mut groups: Vec<GroupSms> = chosen.into_iter().map(|group| group.sms).collect();
        // The group that takes the rest is the last one.
        let rest = groups.pop_if(|group| group.share == Share::REST);
        let remainder = left + rest.map_or(0, |group| group.sm_count);
        DryRun { unit: units.size(), groups, remainder, free_for_floors: left, quarantined: 0 }
    }
}

//! The account of a device's units: the group that has each unit, and the fences that the unit's next owner
//! waits for.
//!
//! A unit is free, in the floor of one group, shared by groups, or quarantined. A unit is quarantined if work
//! of a previous owner could not be recorded. Only free units become floors. A quarantined unit can still be
//! shared, because a group that shares a unit does not wait for earlier work. A group does not grow when
//! other groups are dropped: a group with the share `16..` keeps the units that it got at first. A group with
//! the share `n..` or `..` shares every unit outside floors, and so leaves no unit for later floors. After
//! the device is cut into other units, each unit waits for all fences, because it is unknown how the units of
//! two cuts overlap.
//!
//! A group can be divided again (`Divided`). Units of the group's floor can become floors of the parts. Units
//! that the group shares can only be shared by the parts. If all parts are exclusive, the parts take over
//! units of the group in the group's account, and the other units of the group become free. If some parts
//! share units, or if the driver divides the group, the group keeps its units in its account. The group then
//! becomes a `Parent` (`handle/group.rs`), which has a second account for the parts and exists until the last
//! part is dropped. No account records the partitions of plans.

use std::borrow::Cow;
use std::fmt;
use std::mem;
use std::sync::Arc;

use super::assign::{GroupUnits, Supply};
use super::recycle::Recycler;
use super::refusal::{Holder, NotEnoughSms, Refusal};
use super::request::SplitRequest;
use super::units::{Cut, Placement, UnitCounts, UnitSet};

/// One device's account of its units, with fences `F` and driver contexts `C`.
///
/// Cloning a fence must be cheap, and two fences must compare equal only if they are the same fence. The
/// groups that hold units determine the cut. A new cut can begin only while every unit is free.
pub(crate) struct Ledger<F, C> {
    cut: Cut,
    /// The SMs of each unit; empty until the first group is taken.
    counts: Vec<u32>,
    units: Vec<Unit>,
    /// The groups that have units, indexed by group number; `None` for unused numbers.
    groups: Vec<Option<Held>>,
    /// The number of groups that have units.
    held: usize,
    /// The sum of `Unit::quarantined` over all units.
    quarantined: usize,
    /// The fences of work that may still run on units outside floors, without duplicates.
    pending: Vec<Pending<F>>,
    /// Idle contexts, on units that may be free or in use.
    pub(crate) recycler: Recycler<C>,
}

#[derive(Clone, Default)]
struct Unit {
    /// The group whose floor contains the unit.
    floor: Option<GroupNumber>,
    /// The groups that share the unit. Empty if the unit is in a floor.
    sharers: Vec<GroupNumber>,
    /// The number of previous owners whose work could not be recorded.
    quarantined: usize,
}

impl Unit {
    /// Returns whether a floor may take the unit.
    fn is_free(&self) -> bool {
        self.floor.is_none() && self.sharers.is_empty() && self.quarantined == 0
    }

    /// Returns the number of groups that share the unit, or `None` if it may not be shared.
    fn load(&self) -> Option<u32> {
        let sharers = u32::try_from(self.sharers.len()).unwrap_or(u32::MAX);
        self.floor.is_none().then_some(sharers)
    }
}

/// The number of a group that has units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupNumber(usize);

/// A fence, and the units whose next owner waits for it.
struct Pending<F> {
    fence: F,
    units: UnitSet,
}

/// The number of SMs in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SmCounts {
    pub(crate) free: u32,
    /// SMs in a floor.
    pub(crate) held: u32,
    pub(crate) shared: u32,
    pub(crate) quarantined: u32,
}

/// The result of taking a group's units.
#[must_use = "the caller must wait for the fences, and drop them without the ledger's lock"]
pub(crate) struct Taken<F> {
    /// The group's number, needed to give the units back.
    pub(crate) group: GroupNumber,
    /// The fences of work that may still run on the floor. Each fence occurs once.
    pub(crate) fences: Vec<F>,
    /// The previous cut, if this group began a new one. The field exists so that the caller drops the cut
    /// without the ledger's lock.
    _former: Option<Cut>,
}

/// A group that has units.
#[derive(Clone)]
struct Held {
    name: Arc<str>,
    units: usize,
    /// Whether the group was chosen in another cut. Such a group may overlap any unit of this cut, so it is
    /// recorded as sharing all units.
    of_other_cut: bool,
}

/// The name of a group that has given its last unit back.
#[must_use = "the caller must drop the name without the ledger's lock"]
pub(crate) struct Ended {
    pub(crate) _name: Option<Arc<str>>,
}

impl Ended {
    const NOT: Ended = Ended { _name: None };
}

/// A group that is divided again.
pub(crate) struct Divided<'a> {
    pub(crate) group: &'a GroupUnits,
    /// The group's number in the ledger; `None` for a part of another group.
    pub(crate) number: Option<GroupNumber>,
    /// Units in quarantine, which no floor may take.
    pub(crate) quarantined: &'a [usize],
}

impl<F, C> Default for Ledger<F, C> {
    fn default() -> Ledger<F, C> {
        Ledger {
            cut: Cut::default(),
            counts: Vec::new(),
            units: Vec::new(),
            groups: Vec::new(),
            held: 0,
            quarantined: 0,
            pending: Vec::new(),
            recycler: Recycler::default(),
        }
    }
}

impl<F: Clone + PartialEq, C> Ledger<F, C> {
    /// Chooses units of the device for every group of a request, without taking them.
    pub(crate) fn choose(
        &self,
        units: &UnitCounts,
        cut: &Cut,
        request: &SplitRequest,
    ) -> Result<Vec<GroupUnits>, Refusal> {
        let is_other = self.is_out() && self.cut != *cut;
        let has_floors = || self.units.iter().any(|unit| unit.floor.is_some());
        if is_other && (!request.overlapping || has_floors()) {
            let holders = self.holders().into_iter().chain(self.sharers(None)).collect();
            return Err(Refusal::CutInUse { held: self.describe_cut(), holders });
        }
        // Groups without floors may use another cut, provided that no floor exists that their units could
        // overlap.
        let is_known = self.is_out() && !is_other;
        let free = if is_known { self.free(units) } else { UnitSet::all(units.counts().len()) };
        let load = |unit: usize| if is_known { self.units[unit].load() } else { Some(0) };
        let idle = if request.deterministic { &[] } else { self.recycler.idle() };
        let supply = Supply { units, cut, free, load, preferred: &[], idle };
        supply.assign(request, || NotEnoughSms {
            holders: self.holders(),
            sharers: self.sharers(None),
            quarantined: if is_known { self.quarantined_sms() } else { 0 },
            ..NotEnoughSms::default()
        })
    }

    /// Returns a copy of the ledger without these groups, for a dry run. The copy has no fences and no idle
    /// contexts.
    pub(crate) fn without(&self, groups: &[(GroupNumber, &[usize])]) -> Ledger<F, C> {
        let mut rest = Ledger {
            cut: self.cut.clone(),
            counts: self.counts.clone(),
            units: self.units.clone(),
            groups: self.groups.clone(),
            held: self.held,
            quarantined: self.quarantined,
            ..Ledger::default()
        };
        for (group, members) in groups {
            // A group that is listed twice is already gone.
            if rest.groups[group.0].is_some() {
                drop(rest.give_back(*group, members, &[]));
            }
        }
        rest
    }

    /// Returns the units that a floor may take. `units` must belong to the cut that is in use, if there is
    /// one.
    pub(crate) fn free(&self, units: &UnitCounts) -> UnitSet {
        let count = units.counts().len();
        let is_free = |unit: &usize| self.units.get(*unit).is_none_or(Unit::is_free);
        match self.is_out() {
            true => UnitSet::of(count, (0..count).filter(is_free)),
            false => UnitSet::all(count),
        }
    }

    /// Chooses among a group's units for every group of a request. Floors come from the group's floor. Units
    /// of that floor that are left over, and units that the group shares, can be shared. Among placements
    /// with the same count, preferred ones are chosen first.
    pub(crate) fn choose_within(
        &self,
        units: &UnitCounts,
        Divided { group, number, quarantined }: &Divided<'_>,
        request: &SplitRequest,
        preferred: &[Placement],
    ) -> Result<Vec<GroupUnits>, Refusal> {
        let GroupUnits { sms, placement, pool } = group;
        let count = units.counts().len();
        let has = UnitSet::of(count, placement.members.iter().copied());
        let mut free = has.clone();
        free.take_out(pool.iter().chain(*quarantined));
        let load = |unit: usize| {
            // Do not count the group itself.
            let others = || self.units.get(unit).and_then(Unit::load).unwrap_or(0);
            let beside = || if pool.contains(&unit) { others().saturating_sub(1) } else { 0 };
            has.contains(unit).then(beside)
        };
        let cut = &placement.cut;
        let idle = if request.deterministic { &[] } else { self.recycler.idle() };
        let preferred = if request.deterministic { &[] } else { preferred };
        let supply = Supply { units, cut, free, load, preferred, idle };
        supply.assign(request, || NotEnoughSms {
            within: Some(sms.name.to_string()),
            sharers: number.map_or_else(Vec::new, |number| self.sharers(Some((pool, number)))),
            quarantined: quarantined.iter().map(|index| units.counts()[*index]).sum(),
            ..NotEnoughSms::default()
        })
    }

    /// Records a chosen group as the owner of its units, and returns the fences of its floor. A group does
    /// not wait for earlier work on units that it shares. The caller must have chosen the units under the
    /// same lock.
    pub(crate) fn take(&mut self, units: &UnitCounts, chosen: &GroupUnits) -> Taken<F> {
        let former = if self.is_out() { None } else { self.start(&chosen.placement.cut, units) };
        if self.cut != chosen.placement.cut {
            debug_assert!(chosen.sms.floor == 0);
            let group = self.enter_as(chosen, self.units.len(), true);
            self.units.iter_mut().for_each(|unit| unit.sharers.push(group));
            return Taken { group, fences: Vec::new(), _former: former };
        }
        let group = self.enter(chosen);
        for unit in chosen.floor_units() {
            debug_assert!(self.units[unit].is_free());
            self.units[unit].floor = Some(group);
        }
        for unit in &chosen.pool {
            debug_assert!(self.units[*unit].floor.is_none());
            self.units[*unit].sharers.push(group);
        }
        Taken { group, fences: self.take_pending(chosen), _former: former }
    }

    /// Assigns a number to a group.
    fn enter(&mut self, chosen: &GroupUnits) -> GroupNumber {
        self.enter_as(chosen, chosen.placement.members.len(), false)
    }

    fn enter_as(&mut self, chosen: &GroupUnits, units: usize, of_other_cut: bool) -> GroupNumber {
        let held = Held { name: Arc::clone(&chosen.sms.name), units, of_other_cut };
        self.held += 1;
        if let Some(number) = self.groups.iter().position(Option::is_none) {
            self.groups[number] = Some(held);
            return GroupNumber(number);
        }
        self.groups.push(Some(held));
        GroupNumber(self.groups.len() - 1)
    }

    /// Removes the fences of a floor and returns them.
    fn take_pending(&mut self, chosen: &GroupUnits) -> Vec<F> {
        let mut fences = Vec::new();
        if self.pending.is_empty() {
            return fences;
        }
        let taken = UnitSet::of(self.units.len(), chosen.floor_units());
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            let waits = pending.units.remove(&taken);
            if pending.units.is_empty() {
                fences.push(self.pending.remove(index).fence);
                continue;
            }
            if waits {
                fences.push(pending.fence.clone());
            }
            index += 1;
        }
        fences
    }

    /// Makes units of one group's floor the floor of another group.
    pub(crate) fn hand_over(&mut self, from: GroupNumber, to: &GroupUnits) -> (GroupNumber, Ended) {
        let group = self.enter(to);
        let ended = self.leave(from, &to.placement.members);
        for unit in &to.placement.members {
            self.units[*unit].floor = Some(group);
        }
        (group, ended)
    }

    /// Adds the floor of `from` to the floor of `into`. `from` must have no other units, and is removed from
    /// the account.
    pub(crate) fn join(
        &mut self,
        into: GroupNumber,
        from: GroupNumber,
        members: &[usize],
    ) -> Ended {
        let ended = self.leave(from, members);
        members.iter().for_each(|unit| self.units[*unit].floor = Some(into));
        if let Some(group) = &mut self.groups[into.0] {
            group.units += members.len();
        }
        ended
    }

    /// Returns the units that the account has for a group: its members, or all units for a group of another
    /// cut.
    fn units_of<'a>(&self, group: GroupNumber, members: &'a [usize]) -> Cow<'a, [usize]> {
        match &self.groups[group.0] {
            Some(Held { of_other_cut: true, .. }) => Cow::Owned((0..self.units.len()).collect()),
            _ => Cow::Borrowed(members),
        }
    }

    /// Starts a new cut, while all units are free. Returns the previous cut if it differs from the new one.
    fn start(&mut self, cut: &Cut, units: &UnitCounts) -> Option<Cut> {
        if self.cut == *cut && self.counts == units.counts() {
            return None;
        }
        let count = units.counts().len();
        self.counts.clear();
        self.counts.extend_from_slice(units.counts());
        self.units.clear();
        self.units.resize_with(count, Unit::default);
        // It is unknown how units of two cuts overlap, so each unit waits for all work that is still running.
        self.pending.iter_mut().for_each(|pending| pending.units = UnitSet::all(count));
        Some(mem::replace(&mut self.cut, cut.clone()))
    }

    /// Takes a group's units back. The next floor on these units waits for `fences`.
    pub(crate) fn give_back(
        &mut self,
        group: GroupNumber,
        members: &[usize],
        fences: &[F],
    ) -> Ended {
        let members = self.units_of(group, members);
        self.add_pending(&members, fences);
        self.leave(group, &members)
    }

    /// Takes back the units of a group whose work could not be recorded, and returns these units. No floor
    /// may take the units until [`end_quarantine`](Ledger::end_quarantine) is called.
    pub(crate) fn quarantine(
        &mut self,
        group: GroupNumber,
        members: &[usize],
    ) -> (Ended, Vec<usize>) {
        let members = self.units_of(group, members).into_owned();
        self.quarantined += members.len();
        members.iter().for_each(|unit| self.units[*unit].quarantined += 1);
        (self.leave(group, &members), members)
    }

    /// Ends the quarantine of units. The next floor on these units waits for `fences`.
    pub(crate) fn end_quarantine(&mut self, members: &[usize], fences: &[F]) {
        self.add_pending(members, fences);
        self.quarantined -= members.len();
        members.iter().for_each(|unit| self.units[*unit].quarantined -= 1);
    }

    /// Removes units from a group.
    fn leave(&mut self, group: GroupNumber, members: &[usize]) -> Ended {
        for index in members {
            let unit = &mut self.units[*index];
            if unit.floor.take_if(|floor| *floor == group).is_none() {
                let sharer = unit.sharers.iter().position(|sharer| *sharer == group);
                debug_assert!(sharer.is_some());
                sharer.map(|sharer| unit.sharers.swap_remove(sharer));
            }
        }
        let Some(held) = &mut self.groups[group.0] else { return Ended::NOT };
        held.units -= members.len();
        if held.units > 0 {
            return Ended::NOT;
        }
        self.held -= 1;
        Ended { _name: self.groups[group.0].take().map(|held| held.name) }
    }

    fn add_pending(&mut self, members: &[usize], fences: &[F]) {
        if members.is_empty() || fences.is_empty() {
            // A fence without a unit would never be removed.
            return;
        }
        let units = UnitSet::of(self.units.len(), members.iter().copied());
        for fence in fences {
            match self.pending.iter_mut().find(|pending| pending.fence == *fence) {
                Some(pending) => pending.units.add(&units),
                None => self.pending.push(Pending { fence: fence.clone(), units: units.clone() }),
            }
        }
    }

    /// Returns the fences that the next owners of units wait for, without duplicates.
    pub(crate) fn fences(&self) -> Vec<F> {
        self.pending.iter().map(|pending| pending.fence.clone()).collect()
    }

    /// Removes the fences that are in `which`, and returns them.
    #[must_use = "the caller must drop the fences without the ledger's lock"]
    pub(crate) fn take_fences(&mut self, which: &[F]) -> Vec<F> {
        let taken = self.pending.extract_if(.., |pending| which.contains(&pending.fence));
        taken.map(|pending| pending.fence).collect()
    }

    /// Returns the cut of the device, or `None` if every unit is free.
    pub(crate) fn cut_in_use(&self) -> Option<Cut> {
        self.is_out().then(|| self.cut.clone())
    }

    /// Returns whether this cut is in use.
    pub(crate) fn is_cut(&self, cut: &Cut) -> bool {
        self.is_out() && self.cut == *cut
    }

    /// Returns the number of SMs in each state, or `None` if all are free.
    pub(crate) fn sm_counts(&self) -> Option<SmCounts> {
        if !self.is_out() {
            return None;
        }
        let mut sms = SmCounts::default();
        for (unit, count) in self.units.iter().zip(&self.counts) {
            *match unit {
                Unit { floor: Some(_), .. } => &mut sms.held,
                Unit { sharers, .. } if !sharers.is_empty() => &mut sms.shared,
                Unit { quarantined: 1.., .. } => &mut sms.quarantined,
                Unit { .. } => &mut sms.free,
            } += count;
        }
        Some(sms)
    }

    pub(crate) fn quarantined_sms(&self) -> u32 {
        if self.quarantined == 0 { 0 } else { self.sm_counts().map_or(0, |sms| sms.quarantined) }
    }

    /// Returns whether any unit is not free, so that the cut cannot change.
    fn is_out(&self) -> bool {
        self.held + self.quarantined > 0
    }

    #[cold]
    fn describe_cut(&self) -> String {
        let cut = &self.cut;
        match self.quarantined_sms() {
            0 => cut.to_string(),
            sms => format!("{cut} ({sms} SMs wait for work that could not be recorded)"),
        }
    }

    /// Returns the groups that have floors, in the order of their units.
    fn holders(&self) -> Vec<Holder> {
        self.name(|unit| self.units[unit].floor.as_slice(), None)
    }

    /// Returns the groups that share units, in the order of the units. If `of` contains units and a group,
    /// returns only the other groups that share some of these units.
    pub(crate) fn sharers(&self, of: Option<(&[usize], GroupNumber)>) -> Vec<Holder> {
        let mut is_asked_for = vec![of.is_none(); self.units.len()];
        if let Some((units, group)) = of {
            let units = self.units_of(group, units);
            units.iter().for_each(|unit| is_asked_for[*unit] = true);
        }
        let sharers = |unit: usize| -> &[GroupNumber] {
            if is_asked_for[unit] { &self.units[unit].sharers } else { &[] }
        };
        self.name(sharers, of.map(|(_, group)| group))
    }

    /// Returns the groups that `groups` returns for the units, each with its number of SMs, except for the
    /// group `but_for`.
    fn name<'a>(
        &'a self,
        groups: impl Fn(usize) -> &'a [GroupNumber],
        but_for: Option<GroupNumber>,
    ) -> Vec<Holder> {
        // Two groups of the same name are two holders.
        let mut holders: Vec<(GroupNumber, Holder)> = Vec::new();
        for (unit, sm_count) in self.counts.iter().enumerate() {
            for number in groups(unit).iter().filter(|number| but_for != Some(**number)) {
                match holders.iter_mut().find(|(other, _)| other == number) {
                    Some((_, holder)) => holder.sm_count += sm_count,
                    None => {
                        let Some(group) = &self.groups[number.0] else { continue };
                        let holder = Holder { name: Arc::clone(&group.name), sm_count: *sm_count };
                        holders.push((*number, holder));
                    }
                }
            }
        }
        holders.into_iter().map(|(_, holder)| holder).collect()
    }
}

impl<F, C> fmt::Debug for Ledger<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("cut", &self.cut)
            .field("held", &self.held)
            .field("quarantined", &self.quarantined)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::share::Share;
    use super::super::units::Granularity;
    use super::*;

    type Account = Ledger<u32, ()>;

    /// Returns two cuts of a device with 36 SMs: into four units, and into units of one SM.
    fn cuts() -> [(Cut, UnitCounts); 2] {
        let cut = |granularity, counts: &[u32], size| {
            (Cut::smallest(granularity), UnitCounts::new(counts.into(), size))
        };
        [cut(Granularity::Coarse, &[8, 8, 8, 12], 8), cut(Granularity::Fine, &[1; 36], 1)]
    }

    /// Takes one group. Returns its number, its units and the fences that it waits for.
    fn take(account: &mut Account, (cut, units): &(Cut, UnitCounts), sms: u32) -> Group {
        let request = SplitRequest::from([Share::from(sms)]);
        let chosen = account.choose(units, cut, &request).expect("it fits").remove(0);
        let Taken { group, fences, .. } = account.take(units, &chosen);
        Group { number: group, members: chosen.placement.members, fences }
    }

    struct Group {
        number: GroupNumber,
        members: Vec<usize>,
        fences: Vec<u32>,
    }

    #[test]
    fn each_unit_waits_for_what_ran_there() {
        let (mut account, [coarse, _]) = (Account::default(), cuts());
        let first = take(&mut account, &coarse, 16);
        drop(account.give_back(first.number, &first.members, &[1, 2]));
        let waits: Vec<_> = [12, 8, 8, 8].map(|sms| take(&mut account, &coarse, sms).fences).into();
        assert_eq!(waits, [vec![], vec![1, 2], vec![1, 2], vec![]]);
        assert!(account.fences().is_empty());
    }

    #[test]
    fn each_unit_of_a_new_cut_waits_for_everything() {
        let (mut account, [coarse, fine]) = (Account::default(), cuts());
        let first = take(&mut account, &coarse, 8);
        drop(account.give_back(first.number, &first.members, &[1]));
        assert_eq!([1, 1, 34].map(|sms| take(&mut account, &fine, sms).fences), [[1], [1], [1]]);
    }

    #[test]
    fn no_floor_gets_units_in_quarantine() {
        let (mut account, [coarse, _]) = (Account::default(), cuts());
        let first = take(&mut account, &coarse, 8);
        let (ended, members) = account.quarantine(first.number, &first.members);
        drop(ended);
        assert_eq!(take(&mut account, &coarse, 28).members, [1, 2, 3]);
        account.end_quarantine(&members, &[1]);
        assert_eq!(take(&mut account, &coarse, 8).fences, [1]);
    }

    #[test]
    fn a_joined_group_has_the_units_of_both() {
        let (mut account, [coarse, _]) = (Account::default(), cuts());
        let [first, second] = [8, 8].map(|sms| take(&mut account, &coarse, sms));
        drop(account.join(first.number, second.number, &second.members));
        assert_eq!(account.sm_counts().map(|sms| (sms.held, sms.free)), Some((16, 20)));
        drop(account.give_back(first.number, &[first.members, second.members].concat(), &[]));
        assert_eq!(account.sm_counts(), None);
    }
}

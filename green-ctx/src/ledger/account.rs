//! Who has which of a device's units, and what the next owner of a free one waits for.

use std::fmt;
use std::mem;
use std::sync::Arc;

use super::assign::{Chosen, Supply};
use super::cut::{Cut, Placement, UnitCounts, UnitSet};
use super::recycle::Recycler;
use super::refusal::{Holder, NotEnoughSms, Refusal};
use super::request::SplitRequest;

/// One device's account of its units, with fences `F` and driver contexts `C`.
///
/// Each unit is free, held by a group of some name, or quarantined: its last owner's work could not be
/// recorded, so that nobody knows when it is done. Cloning a fence is cheap, and two are equal only if
/// they are the same one. The device is cut as the groups that are out ask for; a new cut begins when
/// every unit is free.
pub(crate) struct Ledger<F, C> {
    cut: Cut,
    /// The SMs of each unit; empty until the first group is taken.
    counts: Vec<u32>,
    units: Vec<Unit>,
    /// The groups that hold units, by their numbers; `None` for a number that is nobody's.
    groups: Vec<Option<Held>>,
    held: usize,
    quarantined: usize,
    /// What still runs on units that somebody may get, each fence once.
    pending: Vec<Pending<F>>,
    /// Contexts that nobody uses, of units that may be free or not.
    pub(crate) recycler: Recycler<C>,
}

enum Unit {
    Free,
    /// By the group of this number.
    Held(usize),
    Quarantined,
}

/// A fence, and the units whose next owner waits for it.
struct Pending<F> {
    fence: F,
    units: UnitSet,
}

/// How many SMs are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SmCounts {
    pub(crate) free: u32,
    pub(crate) held: u32,
    pub(crate) quarantined: u32,
}

/// What a group gets with its units.
#[must_use = "the fences are to be waited for, and to be dropped without the ledger's lock"]
pub(crate) struct Taken<F> {
    /// What still runs there, each fence once.
    pub(crate) fences: Vec<F>,
    /// The former cut, where this began a new one.
    _former: Option<Cut>,
}

/// A group that holds units.
struct Held {
    name: Arc<str>,
    units: usize,
}

/// The names of groups that hold nothing any more. Most often there is one, for which nothing is
/// allocated.
#[derive(Default)]
#[must_use = "the last of a name is to be dropped without the ledger's lock"]
pub(crate) struct Names {
    first: Option<Arc<str>>,
    others: Vec<Arc<str>>,
}

impl Names {
    fn add(&mut self, name: Arc<str>) {
        match self.first {
            None => self.first = Some(name),
            Some(_) => self.others.push(name),
        }
    }

    /// The name, if there is one alone.
    #[cfg(test)]
    pub(crate) fn only(&self) -> Option<&Arc<str>> {
        self.first.as_ref().filter(|_| self.others.is_empty())
    }
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
    /// Chooses units of the device for every group of a request, and takes none.
    pub(crate) fn choose(
        &self,
        units: &UnitCounts,
        cut: &Cut,
        request: &SplitRequest,
    ) -> Result<Vec<Chosen>, Refusal> {
        let count = units.counts().len();
        if request.overlapping {
            let supply = self.supply(units, cut, vec![true; count], &[]);
            return supply.assign(request, NotEnoughSms::default);
        }
        if self.is_out() && self.cut != *cut {
            return Err(Refusal::CutInUse { held: self.describe_cut() });
        }
        let free = match self.is_out() {
            true => self.units.iter().map(|unit| matches!(unit, Unit::Free)).collect(),
            false => vec![true; count],
        };
        self.supply(units, cut, free, &[]).assign(request, || NotEnoughSms {
            holders: self.holders(),
            quarantined: self.sm_counts().map_or(0, |sms| sms.quarantined),
            ..NotEnoughSms::default()
        })
    }

    /// Chooses among a group's units for every group of a request. Locations that are preferred come
    /// before all others of their count, and units in quarantine are not chosen.
    pub(crate) fn choose_within(
        &self,
        units: &UnitCounts,
        group: &Placement,
        name: &str,
        request: &SplitRequest,
        preferred: &[Placement],
        quarantined: &[usize],
    ) -> Result<Vec<Chosen>, Refusal> {
        let mut free = vec![false; units.counts().len()];
        group.members.iter().for_each(|index| free[*index] = true);
        quarantined.iter().for_each(|index| free[*index] = false);
        self.supply(units, &group.cut, free, preferred).assign(request, || NotEnoughSms {
            within: Some(name.to_owned()),
            quarantined: quarantined.iter().map(|index| units.counts()[*index]).sum(),
            ..NotEnoughSms::default()
        })
    }

    fn supply<'a>(
        &'a self,
        units: &'a UnitCounts,
        cut: &'a Cut,
        free: Vec<bool>,
        preferred: &'a [Placement],
    ) -> Supply<'a, C> {
        Supply { units, cut, free, preferred, recycler: &self.recycler }
    }

    /// Enters a chosen group's units as held, and returns their fences. The choice must have been made
    /// under the same lock.
    pub(crate) fn take(&mut self, units: &UnitCounts, chosen: &Chosen) -> Taken<F> {
        let Placement { cut, members } = &chosen.placement;
        let former = if self.is_out() { None } else { self.start(cut, units) };
        let group = self.enter(chosen);
        for index in members {
            debug_assert!(matches!(self.units[*index], Unit::Free));
            self.units[*index] = Unit::Held(group);
        }
        self.held += members.len();
        Taken { fences: self.take_pending(members), _former: former }
    }

    /// A number for a group.
    fn enter(&mut self, chosen: &Chosen) -> usize {
        let held = Held { name: Arc::clone(&chosen.name), units: chosen.placement.members.len() };
        if let Some(number) = self.groups.iter().position(Option::is_none) {
            self.groups[number] = Some(held);
            return number;
        }
        self.groups.push(Some(held));
        self.groups.len() - 1
    }

    /// Takes the fences of some units out.
    fn take_pending(&mut self, members: &[usize]) -> Vec<F> {
        let mut fences = Vec::new();
        if self.pending.is_empty() {
            return fences;
        }
        let taken = UnitSet::of(self.units.len(), members);
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

    /// Enters units that are held as held by another group. Returns the names of groups that hold
    /// nothing any more.
    pub(crate) fn rename(&mut self, chosen: &Chosen) -> Names {
        let group = self.enter(chosen);
        self.leave(&chosen.placement.members, || Unit::Held(group))
    }

    /// Begins to give out units of a cut, when all are free. Returns the former cut.
    fn start(&mut self, cut: &Cut, units: &UnitCounts) -> Option<Cut> {
        if self.cut == *cut && self.counts == units.counts() {
            return None;
        }
        let count = units.counts().len();
        self.counts.clear();
        self.counts.extend_from_slice(units.counts());
        self.units.clear();
        self.units.resize_with(count, || Unit::Free);
        // How units of one cut lie in those of another is not known: each unit waits for whatever is
        // still running anywhere.
        self.pending.iter_mut().for_each(|pending| pending.units = UnitSet::all(count));
        Some(mem::replace(&mut self.cut, cut.clone()))
    }

    /// Takes units back, with what must be done before they are really free. Returns the names of
    /// groups that hold nothing any more.
    pub(crate) fn give_back(&mut self, members: &[usize], fences: &[F]) -> Names {
        self.held -= members.len();
        self.add_pending(members, fences);
        self.leave(members, || Unit::Free)
    }

    /// Takes units back whose work could not be recorded: nobody gets them until
    /// [`end_quarantine`](Ledger::end_quarantine). Returns the names of groups that hold nothing any
    /// more.
    pub(crate) fn quarantine(&mut self, members: &[usize]) -> Names {
        self.held -= members.len();
        self.quarantined += members.len();
        self.leave(members, || Unit::Quarantined)
    }

    /// Frees units that are quarantined, with what must be done before they are really free.
    pub(crate) fn end_quarantine(&mut self, members: &[usize], fences: &[F]) {
        self.quarantined -= members.len();
        self.add_pending(members, fences);
        for index in members {
            debug_assert!(matches!(self.units[*index], Unit::Quarantined));
            self.units[*index] = Unit::Free;
        }
    }

    /// Changes units that are held, and returns the names of groups that hold nothing any more.
    fn leave(&mut self, members: &[usize], state: impl Fn() -> Unit) -> Names {
        let mut names = Names::default();
        for index in members {
            let former = mem::replace(&mut self.units[*index], state());
            debug_assert!(matches!(former, Unit::Held(_)));
            let Unit::Held(number) = former else { continue };
            let Some(group) = &mut self.groups[number] else { continue };
            group.units -= 1;
            if group.units == 0
                && let Some(ended) = self.groups[number].take()
            {
                names.add(ended.name);
            }
        }
        names
    }

    /// Has whoever gets units next wait for fences that a group left which did not hold them, whoever
    /// holds them now.
    pub(crate) fn leave_fences(&mut self, placement: &Placement, fences: &[F]) {
        let Placement { cut, members } = placement;
        if self.cut == *cut && !self.units.is_empty() {
            return self.add_pending(members, fences);
        }
        // How they lie among the units of another cut is not known.
        self.add_pending_on(&UnitSet::all(self.units.len()), fences);
    }

    fn add_pending(&mut self, members: &[usize], fences: &[F]) {
        // Without a unit, nobody would ever take the fence.
        if !members.is_empty() {
            self.add_pending_on(&UnitSet::of(self.units.len(), members), fences);
        }
    }

    fn add_pending_on(&mut self, units: &UnitSet, fences: &[F]) {
        for fence in fences {
            match self.pending.iter_mut().find(|pending| pending.fence == *fence) {
                Some(pending) => pending.units.add(units),
                None => self.pending.push(Pending { fence: fence.clone(), units: units.clone() }),
            }
        }
    }

    /// The fences that next owners wait for, each once.
    pub(crate) fn fences(&self) -> Vec<F> {
        self.pending.iter().map(|pending| pending.fence.clone()).collect()
    }

    /// Takes those fences out that are among the given ones.
    #[must_use = "the last of a fence is to be dropped without the ledger's lock"]
    pub(crate) fn take_fences(&mut self, which: &[F]) -> Vec<F> {
        let taken = self.pending.extract_if(.., |pending| which.contains(&pending.fence));
        taken.map(|pending| pending.fence).collect()
    }

    /// Whether groups of this cut are out.
    pub(crate) fn is_cut(&self, cut: &Cut) -> bool {
        self.is_out() && self.cut == *cut
    }

    /// How many SMs are in which state; `None` where all are free.
    pub(crate) fn sm_counts(&self) -> Option<SmCounts> {
        if !self.is_out() {
            return None;
        }
        let mut sms = SmCounts::default();
        for (unit, count) in self.units.iter().zip(&self.counts) {
            *match unit {
                Unit::Free => &mut sms.free,
                Unit::Held(_) => &mut sms.held,
                Unit::Quarantined => &mut sms.quarantined,
            } += count;
        }
        Some(sms)
    }

    /// Whether some unit is not free, so that the cut must stay as it is.
    fn is_out(&self) -> bool {
        self.held + self.quarantined > 0
    }

    #[cold]
    fn describe_cut(&self) -> String {
        let cut = &self.cut;
        match self.sm_counts() {
            Some(SmCounts { quarantined, .. }) if quarantined > 0 => {
                format!("{cut} ({quarantined} SMs wait for work that could not be recorded)")
            }
            _ => cut.to_string(),
        }
    }

    /// Who holds what, in the order of the units.
    fn holders(&self) -> Vec<Holder> {
        // Two groups of one name are two holders.
        let mut holders: Vec<(usize, Holder)> = Vec::new();
        for (unit, sm_count) in self.units.iter().zip(&self.counts) {
            let Unit::Held(number) = unit else { continue };
            match holders.iter_mut().find(|(other, _)| other == number) {
                Some((_, holder)) => holder.sm_count += sm_count,
                None => {
                    let Some(group) = &self.groups[*number] else { continue };
                    let holder = Holder { name: Arc::clone(&group.name), sm_count: *sm_count };
                    holders.push((*number, holder));
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

//! The ledger: who holds which of a device's units. Pure bookkeeping, no driver call.

use std::fmt;
use std::mem;
use std::sync::Arc;

use super::choose::choose;
use super::split::SplitRequest;
use super::unit::{Cut, Units};
use crate::error::{Error, NotEnoughSms, Result};
use crate::fence::{self, Fence, Fences};
use crate::recycle::{Place, Recycler};

/// One device's account of its units. Empty until the first group is taken, and again when the last
/// is back; the device is cut as the groups that are out ask for.
#[derive(Default)]
pub(crate) struct Ledger {
    cut: Cut,
    /// What it is cut into. The device keeps it too, so that it never ends here, under the lock.
    units: Option<Arc<Units>>,
    /// The holder of each unit that is out, by index.
    holders: Vec<Option<Arc<str>>>,
    out: usize,
    /// What must be done before a free unit is really free, by index.
    fences: Vec<fence::Shared>,
    /// Contexts that nobody uses, of units that may be free or not.
    pub(crate) recycler: Recycler,
}

/// Units that were chosen for one group.
pub(crate) struct Chosen {
    pub(crate) name: Arc<str>,
    /// What the group is: asked for, or what remained.
    pub(crate) origin: Origin,
    pub(crate) sm_count: u32,
    pub(crate) place: Place,
}

impl Chosen {
    fn new(
        units: &Units,
        cut: &Cut,
        name: &Arc<str>,
        origin: Origin,
        members: Vec<usize>,
    ) -> Chosen {
        let sm_count = members.iter().map(|index| units.counts()[*index]).sum();
        let place = Place { cut: cut.clone(), members };
        Chosen { name: Arc::clone(name), origin, sm_count, place }
    }
}

/// The pieces of a structured split for the groups that it was made for, and what it left for the
/// rest, if the request takes it.
pub(crate) fn each_its_own(units: &Units, cut: &Cut, request: &SplitRequest) -> Vec<Chosen> {
    let groups = request.groups.iter().enumerate().map(|(index, group)| {
        let origin = Origin::Requested(group.sm_count);
        Chosen::new(units, cut, &group.name, origin, vec![index])
    });
    let last = request.groups.len();
    let rest = request.rest.as_ref().filter(|_| last < units.counts().len());
    let rest = rest.map(|name| Chosen::new(units, cut, name, Origin::Remainder, vec![last]));
    groups.chain(rest).collect()
}

/// Why a group has the SMs that it has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A count was asked for, or with `None` as many as there are.
    Requested(Option<u32>),
    /// It is what remained.
    Remainder,
}

/// Who holds how many SMs of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The group's name.
    pub name: Arc<str>,
    /// Its SMs.
    pub sm_count: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} SMs)", self.name, self.sm_count)
    }
}

impl Ledger {
    /// Chooses units of the device for every group of a request, and takes none.
    pub(crate) fn plan(
        &self,
        units: &Units,
        cut: &Cut,
        request: &SplitRequest,
    ) -> Result<Vec<Chosen>> {
        let free = if request.overlapping {
            vec![true; units.counts().len()]
        } else {
            if self.out > 0 && self.cut != *cut {
                return Err(Error::CutInUse { held: self.cut.to_string() });
            }
            self.free(units.counts().len())
        };
        self.assign(units, cut, request, free.clone(), &[]).map_err(|fit| {
            let holders = if request.overlapping { Vec::new() } else { self.holders(units) };
            self.shortage(
                units,
                cut,
                request,
                free,
                NotEnoughSms { fit, holders, ..NotEnoughSms::default() },
            )
        })
    }

    /// Chooses among a group's units for every group of a request, places that are in use by turns
    /// before all others.
    pub(crate) fn plan_within(
        &self,
        units: &Units,
        place: &Place,
        name: &str,
        request: &SplitRequest,
        by_turns: &[Place],
    ) -> Result<Vec<Chosen>> {
        let mut free = vec![false; units.counts().len()];
        place.members.iter().for_each(|index| free[*index] = true);
        self.assign(units, &place.cut, request, free.clone(), by_turns).map_err(|fit| {
            let within = Some(name.to_owned());
            let shortage = NotEnoughSms { fit, within, ..NotEnoughSms::default() };
            self.shortage(units, &place.cut, request, free, shortage)
        })
    }

    /// Chooses among free units; the error is how many groups fit.
    fn assign(
        &self,
        units: &Units,
        cut: &Cut,
        request: &SplitRequest,
        mut free: Vec<bool>,
        by_turns: &[Place],
    ) -> Result<Vec<Chosen>, usize> {
        let (counts, size) = (units.counts(), units.size());
        let mut chosen = Vec::with_capacity(request.groups.len() + 1);
        for (position, group) in request.groups.iter().enumerate() {
            let members = match (cut, group.sm_count) {
                // Each group has a unit of its own.
                (Cut::Structured { .. }, _) => Some(vec![position]).filter(|_| free[position]),
                (Cut::Equal { .. }, Some(wanted)) => choose(counts, size, &free, wanted),
                (Cut::Equal { .. }, None) => {
                    Some(indices(counts.len(), |index| free[index] && counts[index] == size))
                        .filter(|regular| !regular.is_empty())
                }
            };
            let Some(mut members) = members else { return Err(chosen.len()) };
            // As many SMs elsewhere are better where there is a context for them: one that others use
            // by turns, or one that waits to be used again.
            let count = |members: &[usize]| members.iter().map(|index| counts[*index]).sum::<u32>();
            let given = count(&members);
            if let Cut::Equal { .. } = cut {
                let fits = |members: &&[usize]| {
                    count(members) == given && members.iter().all(|index| free[*index])
                };
                let by_turns = by_turns.iter().map(|place| place.members.as_slice()).find(fits);
                let waiting = || self.recycler.prefer(cut, given, &free);
                if let Some(preferred) = by_turns.or_else(waiting) {
                    members = preferred.to_vec();
                }
            }
            members.iter().for_each(|index| free[*index] = false);
            let origin = Origin::Requested(group.sm_count);
            chosen.push(Chosen::new(units, cut, &group.name, origin, members));
        }
        if let Some(name) = &request.rest {
            let members = indices(counts.len(), |index| free[index]);
            if !members.is_empty() {
                let origin = Origin::Remainder;
                chosen.push(Chosen::new(units, cut, name, origin, members));
            }
        }
        Ok(chosen)
    }

    /// Completes what is told of a request that does not fit into some free units.
    #[cold]
    fn shortage(
        &self,
        units: &Units,
        cut: &Cut,
        request: &SplitRequest,
        free: Vec<bool>,
        known: NotEnoughSms,
    ) -> Error {
        let counts = units.counts();
        Error::NotEnoughSms(Box::new(NotEnoughSms {
            requested: request.groups.iter().map(|group| group.sm_count).collect(),
            free: counts.iter().zip(&free).filter(|(_, free)| **free).map(|(sms, _)| sms).sum(),
            total: counts.iter().sum(),
            unit: units.size(),
            nearest: self.nearest(units, cut, request, &free),
            ..known
        }))
    }

    /// As many groups as a request has, reduced by the same share until they fit, and then each grown
    /// again as far as it can, unless they were to be equal; none where groups of one unit do not fit
    /// either.
    fn nearest(&self, units: &Units, cut: &Cut, request: &SplitRequest, free: &[bool]) -> Vec<u32> {
        let (total, unit): (u32, u32) = (units.counts().iter().sum(), units.size());
        let wanted: Option<Vec<u32>> = request.groups.iter().map(|group| group.sm_count).collect();
        let Some(wanted) = wanted.filter(|wanted| wanted.len() <= free.len()) else {
            return Vec::new();
        };
        if matches!(cut, Cut::Structured { .. }) {
            return Vec::new();
        }
        let reduced = |share: u32| -> Vec<u32> {
            let reduce = |count: &u32| {
                let part = u64::from((*count).min(total)) * u64::from(share) / u64::from(total);
                (u32::try_from(part).unwrap_or(total) / unit * unit).max(unit)
            };
            wanted.iter().map(reduce).collect()
        };
        let fits = |counts: &Vec<u32>| {
            let request = SplitRequest::from(counts.iter().copied());
            self.assign(units, cut, &request, free.to_vec(), &[]).is_ok()
        };
        if !fits(&reduced(0)) {
            return Vec::new();
        }
        // Halved rather than searched through: who waits for SMs may ask often, and this is done
        // under the ledger's lock.
        let (mut share, mut too_much) = (0, total);
        while too_much - share > 1 {
            let middle = share.midpoint(too_much);
            if fits(&reduced(middle)) {
                share = middle;
            } else {
                too_much = middle;
            }
        }
        let mut nearest = reduced(share);
        if wanted.iter().all(|count| *count == wanted[0]) {
            return nearest;
        }
        for group in 0..nearest.len() {
            while nearest[group] + unit <= wanted[group] {
                let mut larger = nearest.clone();
                larger[group] += unit;
                if !fits(&larger) {
                    break;
                }
                nearest = larger;
            }
        }
        nearest
    }

    /// Enters a chosen group's units as held, and returns their fences. The choice must come from a
    /// plan made under the same lock.
    pub(crate) fn take(
        &mut self,
        units: &Arc<Units>,
        chosen: &Chosen,
    ) -> Vec<Arc<Vec<Arc<Fence>>>> {
        let Place { cut, members } = &chosen.place;
        if self.out == 0 {
            self.start(cut, units);
        }
        self.out += members.len();
        self.rename(chosen);
        let mut fences: Vec<Arc<Vec<Arc<Fence>>>> = Vec::new();
        for fence in members.iter().filter_map(|index| self.fences[*index].take()) {
            if !fences.iter().any(|known| Arc::ptr_eq(known, &fence)) {
                fences.push(fence);
            }
        }
        fences
    }

    /// Enters units as held under a name.
    pub(crate) fn rename(&mut self, chosen: &Chosen) {
        for index in &chosen.place.members {
            self.holders[*index] = Some(Arc::clone(&chosen.name));
        }
    }

    /// Begins to give out units of a cut, when none is out.
    fn start(&mut self, cut: &Cut, units: &Arc<Units>) {
        let count = units.counts().len();
        self.holders = vec![None; count];
        self.units = Some(Arc::clone(units));
        if self.cut == *cut && self.fences.len() == count {
            return;
        }
        self.cut = cut.clone();
        // How units of one cut lie in those of another is not known: each unit waits for whatever
        // is still running anywhere.
        let former = mem::take(&mut self.fences);
        let running = Fences::gather(former.iter().flatten().flat_map(|fences| fences.iter()));
        // Every fence of `former` is in `running` too, so that none ends here, under the lock.
        let all = running.share();
        self.fences = vec![all; count];
    }

    /// Takes units back, with what must be done before they are really free.
    pub(crate) fn give_back(&mut self, members: &[usize], fences: &fence::Shared) {
        for index in members {
            debug_assert!(self.holders[*index].is_some());
            self.holders[*index] = None;
            // A unit's fences went with the group that took it.
            debug_assert!(self.fences[*index].is_none());
            self.fences[*index] = fences.clone();
        }
        self.out -= members.len();
    }

    /// The fences of the units that are free.
    pub(crate) fn fences(&self) -> Vec<Arc<Vec<Arc<Fence>>>> {
        self.fences.iter().flatten().map(Arc::clone).collect()
    }

    /// Takes those fences out that are among the given ones, to be ended outside of the lock.
    pub(crate) fn take_fences(&mut self, which: &[Arc<Vec<Arc<Fence>>>]) -> Vec<fence::Shared> {
        let is_one = |fence: &mut Arc<_>| which.iter().any(|one| Arc::ptr_eq(one, fence));
        self.fences.iter_mut().map(|fence| fence.take_if(is_one)).collect()
    }

    /// Whether groups of this cut are out.
    pub(crate) fn is_cut(&self, cut: &Cut) -> bool {
        self.out > 0 && self.cut == *cut
    }

    /// How many SMs are free; `None` where all are.
    pub(crate) fn free_sms(&self) -> Option<u32> {
        let units = self.units.as_ref().filter(|_| self.out > 0)?;
        let free = units.counts().iter().zip(&self.holders).filter(|(_, holder)| holder.is_none());
        Some(free.map(|(count, _)| count).sum())
    }

    fn free(&self, units: usize) -> Vec<bool> {
        if self.out == 0 {
            return vec![true; units];
        }
        self.holders.iter().map(Option::is_none).collect()
    }

    /// Who holds what, in the order of the units.
    fn holders(&self, units: &Units) -> Vec<Holder> {
        let mut holders: Vec<Holder> = Vec::new();
        if self.out == 0 {
            return holders;
        }
        for (name, sm_count) in self.holders.iter().zip(units.counts()) {
            let Some(name) = name else { continue };
            // Units of one group share one name object, so that two groups of the same name stay two
            // holders.
            match holders.iter_mut().find(|holder| Arc::ptr_eq(&holder.name, name)) {
                Some(holder) => holder.sm_count += sm_count,
                None => holders.push(Holder { name: Arc::clone(name), sm_count: *sm_count }),
            }
        }
        holders
    }
}

fn indices(units: usize, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
    (0..units).filter(|index| is_wanted(*index)).collect()
}

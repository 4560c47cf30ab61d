//! The ledger: who holds which of a device's units. Pure bookkeeping, no driver call.

use std::fmt;
use std::mem;
use std::sync::Arc;

use super::choose::choose;
use super::fence::{self, Fence, Fences};
use super::split::SplitRequest;
use super::unit::{Cut, Units};
use crate::error::{Error, NotEnoughSms, Result};
use crate::recycle::{Place, Recycler};

/// One device's account of its units. Empty until the first group is taken, and again when the last
/// is back; the device is cut as the groups that are out ask for.
#[derive(Default)]
pub(crate) struct Ledger {
    cut: Cut,
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
        cut: Cut,
        request: &SplitRequest,
    ) -> Result<Vec<Chosen>> {
        let free = if request.overlapping {
            vec![true; units.counts().len()]
        } else {
            if self.out > 0 && self.cut != cut {
                return Err(Error::CutInUse { held: self.cut.to_string() });
            }
            self.free(units.counts().len())
        };
        self.assign(units, cut, request, free).map_err(|fit| {
            let holders = if request.overlapping { Vec::new() } else { self.holders(units) };
            shortage(units, request, fit, self.free_sms(units), None, holders)
        })
    }

    /// Chooses among a group's units for every group of a request.
    pub(crate) fn plan_within(
        &self,
        units: &Units,
        place: &Place,
        name: &str,
        request: &SplitRequest,
    ) -> Result<Vec<Chosen>> {
        let counts = units.counts();
        let mut free = vec![false; counts.len()];
        place.members.iter().for_each(|index| free[*index] = true);
        self.assign(units, place.cut, request, free).map_err(|fit| {
            let has = place.members.iter().map(|index| counts[*index]).sum();
            shortage(units, request, fit, has, Some(name.to_owned()), Vec::new())
        })
    }

    /// Chooses among free units; the error is how many groups fit.
    fn assign(
        &self,
        units: &Units,
        cut: Cut,
        request: &SplitRequest,
        mut free: Vec<bool>,
    ) -> Result<Vec<Chosen>, usize> {
        let (counts, size) = (units.counts(), units.size());
        let mut chosen = Vec::with_capacity(request.groups.len() + 1);
        for group in &request.groups {
            let members = match group.sm_count {
                Some(wanted) => choose(counts, size, &free, wanted),
                None => Some(indices(counts.len(), |index| free[index] && counts[index] == size))
                    .filter(|regular| !regular.is_empty()),
            };
            let Some(mut members) = members else { return Err(chosen.len()) };
            // As many SMs elsewhere are better where a context for them waits to be used again.
            let given = members.iter().map(|index| counts[*index]).sum();
            if let Some(preferred) = self.recycler.prefer(cut, given, &free) {
                members = preferred.to_vec();
            }
            members.iter().for_each(|index| free[*index] = false);
            let origin = Origin::Requested(group.sm_count);
            let (name, place) = (Arc::clone(&group.name), Place { cut, members });
            chosen.push(Chosen { name, origin, sm_count: given, place });
        }
        if let Some(name) = &request.rest {
            let members = indices(counts.len(), |index| free[index]);
            if !members.is_empty() {
                let sm_count = members.iter().map(|index| counts[*index]).sum();
                let (name, place) = (Arc::clone(name), Place { cut, members });
                chosen.push(Chosen { name, origin: Origin::Remainder, sm_count, place });
            }
        }
        Ok(chosen)
    }

    /// Enters a chosen group's units as held, and returns their fences. The choice must come from a
    /// plan made under the same lock.
    pub(crate) fn take(&mut self, units: &Units, chosen: &Chosen) -> Vec<Arc<Vec<Arc<Fence>>>> {
        let Place { cut, members } = &chosen.place;
        if self.out == 0 {
            self.start(*cut, units.counts().len());
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
    fn start(&mut self, cut: Cut, units: usize) {
        self.holders = vec![None; units];
        if self.cut == cut && self.fences.len() == units {
            return;
        }
        self.cut = cut;
        // How units of one cut lie in those of another is not known: each unit waits for whatever
        // is still running anywhere.
        let former = mem::take(&mut self.fences);
        let running = Fences::gather(former.iter().flatten().flat_map(|fences| fences.iter()));
        // Every fence of `former` is in `running` too, so that none ends here, under the lock.
        let all = running.share();
        self.fences = vec![all; units];
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

    /// How the device is cut while groups are out.
    pub(crate) fn cut(&self) -> Option<Cut> {
        (self.out > 0).then_some(self.cut)
    }

    /// How many SMs are free, of a device cut into these units.
    pub(crate) fn free_sms(&self, units: &Units) -> u32 {
        let counts = units.counts();
        let free = self.free(counts.len());
        counts.iter().zip(free).filter(|(_, free)| *free).map(|(count, _)| count).sum()
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

#[cold]
fn shortage(
    units: &Units,
    request: &SplitRequest,
    fit: usize,
    free: u32,
    within: Option<String>,
    holders: Vec<Holder>,
) -> Error {
    Error::NotEnoughSms(Box::new(NotEnoughSms {
        within,
        requested: request.groups.iter().map(|group| group.sm_count).collect(),
        fit,
        free,
        total: units.counts().iter().sum(),
        unit: units.size(),
        holders,
    }))
}

fn indices(units: usize, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
    (0..units).filter(|index| is_wanted(*index)).collect()
}

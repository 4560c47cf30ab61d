//! The ledger: who holds which of a device's units. Pure bookkeeping, no driver call.

use std::fmt;
use std::mem;
use std::sync::Arc;

use super::choose::choose;
use super::fence;
use super::split::SplitRequest;
use super::unit::{Granularity, Units};
use crate::error::{Error, NotEnoughSms, Result};
use crate::event::Event;
use crate::recycle::{Place, Recycler};

/// One device's account of its units. Empty until the first group is taken, and again when the last
/// is back; the granularity is that of the groups that are out.
#[derive(Default)]
pub(crate) struct Ledger {
    granularity: Granularity,
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
    /// `None` for what remained.
    pub(crate) requested: Option<u32>,
    pub(crate) sm_count: u32,
    pub(crate) place: Place,
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
    /// Chooses units for every group of a request, and takes none.
    pub(crate) fn plan(&self, units: &Units, request: &SplitRequest) -> Result<Vec<Chosen>> {
        let granularity = request.granularity();
        self.check_granularity(granularity)?;
        let counts = units.counts();
        let mut free = self.free(counts.len());
        let mut chosen = Vec::with_capacity(request.groups().len() + 1);
        for (name, wanted) in request.groups() {
            let Some(mut members) = choose(counts, units.size(), &free, *wanted) else {
                return Err(self.shortage(units, request, chosen.len()));
            };
            // As many SMs elsewhere are better where a context for them waits to be used again.
            let given = members.iter().map(|index| counts[*index]).sum();
            if let Some(preferred) = self.recycler.prefer(granularity, given, &free) {
                members = preferred.to_vec();
            }
            members.iter().for_each(|index| free[*index] = false);
            let place = Place { granularity, members };
            chosen.push(taken(counts, Arc::clone(name), Some(*wanted), place));
        }
        if let Some(name) = request.remainder() {
            let members: Vec<usize> = (0..counts.len()).filter(|index| free[*index]).collect();
            if !members.is_empty() {
                let place = Place { granularity, members };
                chosen.push(taken(counts, Arc::clone(name), None, place));
            }
        }
        Ok(chosen)
    }

    /// Enters a chosen group's units as held, and returns their fences. The choice must come from a
    /// plan made under the same lock.
    pub(crate) fn take(&mut self, units: &Units, chosen: &Chosen) -> Vec<Arc<Vec<Event>>> {
        let Place { granularity, members } = &chosen.place;
        if self.out == 0 {
            self.start(*granularity, units.counts().len());
        }
        for index in members {
            debug_assert!(self.holders[*index].is_none());
            self.holders[*index] = Some(Arc::clone(&chosen.name));
        }
        self.out += members.len();
        let mut fences: Vec<Arc<Vec<Event>>> = Vec::new();
        for fence in members.iter().filter_map(|index| self.fences[*index].take()) {
            if !fences.iter().any(|known| Arc::ptr_eq(known, &fence)) {
                fences.push(fence);
            }
        }
        fences
    }

    /// Begins to give out units of a granularity, when none is out.
    fn start(&mut self, granularity: Granularity, units: usize) {
        self.holders = vec![None; units];
        if self.granularity == granularity && self.fences.len() == units {
            return;
        }
        self.granularity = granularity;
        // How units of one granularity lie in those of the other is not known: each unit waits for
        // whatever is still running anywhere.
        let mut running: Vec<Event> = Vec::new();
        let former = mem::take(&mut self.fences);
        for event in former.iter().flatten().flat_map(|events| events.iter()) {
            if !running.contains(event) {
                running.push(event.clone());
            }
        }
        // Every event of `former` is in `running` too, so that none ends here, under the lock.
        let all = (!running.is_empty()).then(|| Arc::new(running));
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

    /// The granularity of the groups that are out, if any are.
    pub(crate) fn granularity(&self) -> Option<Granularity> {
        (self.out > 0).then_some(self.granularity)
    }

    /// How many SMs are free, of a device cut into these units.
    pub(crate) fn free_sms(&self, units: &Units) -> u32 {
        let counts = units.counts();
        let free = self.free(counts.len());
        counts.iter().zip(free).filter(|(_, free)| *free).map(|(count, _)| count).sum()
    }

    fn check_granularity(&self, wanted: Granularity) -> Result<()> {
        match self.granularity() {
            Some(held) if held != wanted => Err(Error::GranularityInUse { held }),
            _ => Ok(()),
        }
    }

    fn free(&self, units: usize) -> Vec<bool> {
        if self.out == 0 {
            return vec![true; units];
        }
        self.holders.iter().map(Option::is_none).collect()
    }

    #[cold]
    fn shortage(&self, units: &Units, request: &SplitRequest, fit: usize) -> Error {
        let counts = units.counts();
        let mut holders: Vec<Holder> = Vec::new();
        if self.out > 0 {
            for (name, sm_count) in self.holders.iter().zip(counts) {
                let Some(name) = name else { continue };
                // Units of one group share one name object, so that two groups of the same name
                // stay two holders.
                match holders.iter_mut().find(|holder| Arc::ptr_eq(&holder.name, name)) {
                    Some(holder) => holder.sm_count += sm_count,
                    None => holders.push(Holder { name: Arc::clone(name), sm_count: *sm_count }),
                }
            }
        }
        Error::NotEnoughSms(Box::new(NotEnoughSms {
            requested: request.groups().iter().map(|(_, wanted)| *wanted).collect(),
            fit,
            free: self.free_sms(units),
            total: counts.iter().sum(),
            unit: units.size(),
            holders,
        }))
    }
}

fn taken(counts: &[u32], name: Arc<str>, requested: Option<u32>, place: Place) -> Chosen {
    let sm_count = place.members.iter().map(|index| counts[*index]).sum();
    Chosen { name, requested, sm_count, place }
}

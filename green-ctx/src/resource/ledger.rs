//! The ledger: who holds which of a device's units. Pure bookkeeping, no driver call.

use std::fmt;
use std::sync::Arc;

use super::choose::choose;
use super::split::SplitRequest;
use super::unit::{Granularity, Units};
use crate::error::{Error, NotEnoughSms, Result};

/// One device's account of its units. Empty until the first group is taken, and again when the last
/// is back; the granularity is that of the groups that are out.
#[derive(Default)]
pub(crate) struct Ledger {
    granularity: Granularity,
    /// The holder of each unit that is out, by index; empty while none is.
    holders: Vec<Option<Arc<str>>>,
    out: usize,
}

/// Units that were chosen for one group.
pub(crate) struct Chosen {
    pub(crate) name: Arc<str>,
    /// `None` for what remained.
    pub(crate) requested: Option<u32>,
    pub(crate) sm_count: u32,
    pub(crate) members: Vec<usize>,
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
        self.check_granularity(request.granularity())?;
        let counts = units.counts();
        let mut free = self.free(counts.len());
        let mut chosen = Vec::with_capacity(request.groups().len() + 1);
        for (name, wanted) in request.groups() {
            let Some(members) = choose(counts, units.size(), &mut free, *wanted) else {
                return Err(self.shortage(units, request, chosen.len()));
            };
            chosen.push(taken(counts, Arc::clone(name), Some(*wanted), members));
        }
        if let Some(name) = request.remainder() {
            let members: Vec<usize> = (0..counts.len()).filter(|index| free[*index]).collect();
            if !members.is_empty() {
                chosen.push(taken(counts, Arc::clone(name), None, members));
            }
        }
        Ok(chosen)
    }

    /// Enters chosen units as held. They must come from a plan made under the same lock.
    pub(crate) fn take(&mut self, units: &Units, granularity: Granularity, chosen: &[Chosen]) {
        if self.out == 0 {
            self.granularity = granularity;
            self.holders = vec![None; units.counts().len()];
        }
        for group in chosen {
            for index in &group.members {
                debug_assert!(self.holders[*index].is_none());
                self.holders[*index] = Some(Arc::clone(&group.name));
            }
            self.out += group.members.len();
        }
    }

    /// Takes units back.
    pub(crate) fn give_back(&mut self, members: &[usize]) {
        for index in members {
            debug_assert!(self.holders[*index].is_some());
            self.holders[*index] = None;
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

fn taken(counts: &[u32], name: Arc<str>, requested: Option<u32>, members: Vec<usize>) -> Chosen {
    let sm_count = members.iter().map(|index| counts[*index]).sum();
    Chosen { name, requested, sm_count, members }
}

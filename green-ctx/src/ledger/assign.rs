//! Which free units the groups of a request get.

use std::sync::Arc;

use super::choose::{Parts, choose};
use super::cut::{Cut, Placement, UnitCounts};
use super::recycle::Recycler;
use super::refusal::{NotEnoughSms, Refusal};
use super::request::{DryRun, DryRunGroup, RequestedGroup, SplitRequest};

/// Units that were chosen for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) name: Arc<str>,
    /// What the group is: asked for, or what remained.
    pub(crate) origin: Origin,
    pub(crate) sm_count: u32,
    pub(crate) placement: Placement,
}

/// Why a group has the SMs that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A count was asked for, or with `None` as many as there are.
    Requested(Option<u32>),
    /// It is what remained.
    Remainder,
}

impl Chosen {
    fn new(
        units: &UnitCounts,
        cut: &Cut,
        name: &Arc<str>,
        origin: Origin,
        members: Vec<usize>,
    ) -> Chosen {
        let sm_count = members.iter().map(|index| units.counts()[*index]).sum();
        let placement = Placement { cut: cut.clone(), members };
        Chosen { name: Arc::clone(name), origin, sm_count, placement }
    }
}

/// The pieces of a structured split for the groups that it was made for, and what it left for the
/// rest, if the request takes it.
pub(crate) fn each_its_own(units: &UnitCounts, cut: &Cut, request: &SplitRequest) -> Vec<Chosen> {
    let groups = request.groups.iter().enumerate().map(|(index, group)| {
        let origin = Origin::Requested(group.sm_count);
        Chosen::new(units, cut, &group.name, origin, vec![index])
    });
    let last = request.groups.len();
    let rest = request.rest.as_ref().filter(|_| last < units.counts().len());
    let rest = rest.map(|name| Chosen::new(units, cut, name, Origin::Remainder, vec![last]));
    groups.chain(rest).collect()
}

impl DryRun {
    /// What chosen units mean, of so many free SMs.
    pub(crate) fn new(unit: u32, free: u32, chosen: Vec<Chosen>) -> DryRun {
        let groups: Vec<DryRunGroup> = chosen
            .into_iter()
            .filter_map(|Chosen { name, origin, sm_count, .. }| match origin {
                Origin::Requested(requested) => Some(DryRunGroup { name, requested, sm_count }),
                Origin::Remainder => None,
            })
            .collect();
        let given: u32 = groups.iter().map(|group| group.sm_count).sum();
        DryRun { unit, groups, remainder: free.saturating_sub(given) }
    }
}

/// From what a request is met.
pub(super) struct Supply<'a, C> {
    pub(super) units: &'a UnitCounts,
    pub(super) cut: &'a Cut,
    /// Which units may be chosen.
    pub(super) free: Vec<bool>,
    /// Locations to be preferred to others of the same count.
    pub(super) preferred: &'a [Placement],
    /// Idle contexts, whose units come next.
    pub(super) recycler: &'a Recycler<C>,
}

impl<C> Supply<'_, C> {
    /// Chooses units for every group of a request. What the refusal is to say beside what fits is
    /// asked for only where it is needed.
    pub(super) fn assign(
        &self,
        request: &SplitRequest,
        known: impl FnOnce() -> NotEnoughSms,
    ) -> Result<Vec<Chosen>, Refusal> {
        self.fit(request).map_err(|fit| self.shortage(request, fit, known()))
    }

    /// Chooses units; the error is how many groups fit, from the first one on.
    fn fit(&self, request: &SplitRequest) -> Result<Vec<Chosen>, usize> {
        let groups = &request.groups;
        let mut free = self.free.clone();
        let Some(members) = self.members(groups, &mut free) else {
            let fits = |count: &usize| self.fits(&groups[..*count]);
            return Err((0..groups.len()).rev().find(fits).unwrap_or(0));
        };
        let mut chosen = Vec::with_capacity(groups.len() + 1);
        for (group, members) in groups.iter().zip(members) {
            let origin = Origin::Requested(group.sm_count);
            chosen.push(Chosen::new(self.units, self.cut, &group.name, origin, members));
        }
        if let Some(name) = &request.rest {
            let members = indices(free.len(), |index| free[index]);
            if !members.is_empty() {
                let origin = Origin::Remainder;
                chosen.push(Chosen::new(self.units, self.cut, name, origin, members));
            }
        }
        Ok(chosen)
    }

    fn fits(&self, groups: &[RequestedGroup]) -> bool {
        self.members(groups, &mut self.free.clone()).is_some()
    }

    /// The units of each group, which are free no more. Counts are met together, before whoever wants as
    /// many as there are.
    fn members(&self, groups: &[RequestedGroup], free: &mut [bool]) -> Option<Vec<Vec<usize>>> {
        if let Cut::Structured { .. } = self.cut {
            // Each group has a unit of its own.
            let members = 0..groups.len();
            let is_free = members.clone().all(|index| free.get(index) == Some(&true));
            free.iter_mut().take(groups.len()).for_each(|free| *free = false);
            return is_free.then(|| members.map(|index| vec![index]).collect());
        }
        let (counts, size) = (self.units.counts(), self.units.size());
        let wanted: Vec<u32> = groups.iter().filter_map(|group| group.sm_count).collect();
        let mut parts = choose(counts, size, free, &wanted)?.into_iter();
        let mut members = vec![Vec::new(); groups.len()];
        let (counted, others): (Vec<_>, Vec<_>) =
            groups.iter().zip(&mut members).partition(|(group, _)| group.sm_count.is_some());
        for ((_, members), parts) in counted.into_iter().zip(&mut parts) {
            *members = self.place(&parts, free);
            members.iter().for_each(|unit| free[*unit] = false);
        }
        for (_, members) in others {
            *members = indices(counts.len(), |unit| free[unit] && counts[unit] == size);
            if members.is_empty() {
                return None;
            }
            members.iter().for_each(|unit| free[*unit] = false);
        }
        Some(members)
    }

    /// Free units for the parts of a count: those for which there is a context, a preferred one or one
    /// that waits to be used again, or else the first ones.
    fn place(&self, parts: &Parts, free: &[bool]) -> Vec<usize> {
        let (counts, size) = (self.units.counts(), self.units.size());
        let fits = |members: &&[usize]| {
            let odd = members.iter().filter(|unit| counts[**unit] != size);
            members.len() == parts.odd.len() + parts.regulars
                && odd.eq(&parts.odd)
                && members.iter().all(|unit| free[*unit])
        };
        let preferred = self.preferred.iter().map(|placement| placement.members.as_slice());
        let mut idle = self.recycler.placements(self.cut);
        if let Some(members) = preferred.chain(&mut idle).find(fits) {
            return members.to_vec();
        }
        let regular = (0..counts.len()).filter(|unit| free[*unit] && counts[*unit] == size);
        let mut members: Vec<usize> = regular.take(parts.regulars).collect();
        if !parts.odd.is_empty() {
            members.extend(&parts.odd);
            members.sort_unstable();
        }
        members
    }

    /// Completes what is reported of a request that does not fit.
    #[cold]
    fn shortage(&self, request: &SplitRequest, fit: usize, known: NotEnoughSms) -> Refusal {
        let counts = self.units.counts();
        Refusal::NotEnoughSms(Box::new(NotEnoughSms {
            requested: request.groups.iter().map(|group| group.sm_count).collect(),
            fit,
            free: counts
                .iter()
                .zip(&self.free)
                .filter(|(_, free)| **free)
                .map(|(sms, _)| sms)
                .sum(),
            total: self.units.total(),
            unit: self.units.size(),
            nearest: self.nearest(request),
            ..known
        }))
    }

    /// As many groups as a request has, reduced by the same share until they fit, and then each grown
    /// again as far as it can, unless they were to be equal; none where groups of one unit do not fit
    /// either.
    fn nearest(&self, request: &SplitRequest) -> Vec<u32> {
        let (total, unit) = (self.units.total(), self.units.size());
        let wanted: Option<Vec<u32>> = request.groups.iter().map(|group| group.sm_count).collect();
        let Some(wanted) = wanted.filter(|wanted| wanted.len() <= self.free.len()) else {
            return Vec::new();
        };
        if matches!(self.cut, Cut::Structured { .. }) {
            return Vec::new();
        }
        let reduced = |share: u32| -> Vec<u32> {
            let reduce = |count: &u32| {
                let part = u64::from((*count).min(total)) * u64::from(share) / u64::from(total);
                (u32::try_from(part).unwrap_or(total) / unit * unit).max(unit)
            };
            wanted.iter().map(reduce).collect()
        };
        let (sizes, size) = (self.units.counts(), self.units.size());
        let fits = |wanted: &Vec<u32>| choose(sizes, size, &self.free, wanted).is_some();
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
}

fn indices(units: usize, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
    (0..units).filter(|index| is_wanted(*index)).collect()
}

//! Which free units the groups of a request get.

use std::sync::Arc;

use super::choose::choose;
use super::cut::{Cut, Placement, UnitCounts};
use super::recycle::Recycler;
use super::refusal::{NotEnoughSms, Refusal};
use super::request::{PlannedGroup, SplitPlan, SplitRequest};

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

impl SplitPlan {
    /// What chosen units mean, of so many free SMs.
    pub(crate) fn new(unit: u32, free: u32, chosen: Vec<Chosen>) -> SplitPlan {
        let groups: Vec<PlannedGroup> = chosen
            .into_iter()
            .filter_map(|Chosen { name, origin, sm_count, .. }| match origin {
                Origin::Requested(requested) => Some(PlannedGroup { name, requested, sm_count }),
                Origin::Remainder => None,
            })
            .collect();
        let given: u32 = groups.iter().map(|group| group.sm_count).sum();
        SplitPlan { unit, groups, remainder: free.saturating_sub(given) }
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
        self.fit(request, self.preferred).map_err(|fit| self.shortage(request, fit, known()))
    }

    /// Chooses units; the error is how many groups fit.
    fn fit(&self, request: &SplitRequest, preferred: &[Placement]) -> Result<Vec<Chosen>, usize> {
        let (counts, size) = (self.units.counts(), self.units.size());
        let mut free = self.free.clone();
        let mut chosen = Vec::with_capacity(request.groups.len() + 1);
        for (position, group) in request.groups.iter().enumerate() {
            let members = match (self.cut, group.sm_count) {
                // Each group has a unit of its own.
                (Cut::Structured { .. }, _) => {
                    Some(vec![position]).filter(|_| free.get(position) == Some(&true))
                }
                (Cut::Equal { .. }, Some(wanted)) => choose(counts, size, &free, wanted),
                (Cut::Equal { .. }, None) => {
                    Some(indices(counts.len(), |index| free[index] && counts[index] == size))
                        .filter(|regular| !regular.is_empty())
                }
            };
            let Some(mut members) = members else { return Err(chosen.len()) };
            if let Cut::Equal { .. } = self.cut
                && let Some(better) = self.with_context(&members, &free, preferred)
            {
                members = better.to_vec();
            }
            members.iter().for_each(|index| free[*index] = false);
            let origin = Origin::Requested(group.sm_count);
            chosen.push(Chosen::new(self.units, self.cut, &group.name, origin, members));
        }
        if let Some(name) = &request.rest {
            let members = indices(counts.len(), |index| free[index]);
            if !members.is_empty() {
                let origin = Origin::Remainder;
                chosen.push(Chosen::new(self.units, self.cut, name, origin, members));
            }
        }
        Ok(chosen)
    }

    /// Other free units of the same count for which there is a context: a preferred one, or one that
    /// waits to be used again.
    fn with_context<'a>(
        &'a self,
        members: &[usize],
        free: &[bool],
        preferred: &'a [Placement],
    ) -> Option<&'a [usize]> {
        let count = |members: &[usize]| {
            members.iter().map(|index| self.units.counts()[*index]).sum::<u32>()
        };
        let given = count(members);
        let fits = |members: &&[usize]| {
            count(members) == given && members.iter().all(|index| free[*index])
        };
        let preferred = preferred.iter().map(|placement| placement.members.as_slice()).find(fits);
        preferred.or_else(|| self.recycler.prefer(self.cut, given, free))
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
        let fits =
            |counts: &Vec<u32>| self.fit(&SplitRequest::from(counts.iter().copied()), &[]).is_ok();
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

//! The units that each group of a request gets.
//!
//! `Supply::meet` chooses in this order:
//!
//! 1. **Counted floors**, all together, from free units (`choose`). They are rounded up to whole units, never
//!    above the share's ceiling. One after the other, 115 SMs of an H200 would take all 15 units of 8, and 13
//!    would not fit.
//! 2. **`None`**: all free units of the regular size.
//! 3. **Bounded ceilings**, in the request's order, rounded down, from units that are in no floor (`fill`).
//! 4. **Unbounded ceilings**: every unit that is in no floor.
//! 5. **The rest**: the free units that are left, as a floor.
//!
//! An overlapping request gets its counts without floors, from units that no group shares if these suffice.
//! In a structured request, each group is one unit. Choosing takes nothing, so a refusal changes nothing.

use std::sync::Arc;

use super::choose::{Parts, choose, fill};
use super::recycle::Recycler;
use super::refusal::{NotEnoughSms, Refusal};
use super::request::{DryRun, GroupSms, RequestedGroup, SplitRequest};
use super::share::Share;
use super::units::{Cut, Placement, UnitCounts, UnitSet};

/// The record of a group: its SMs, and which units they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupUnits {
    pub(crate) sms: GroupSms,
    /// All units that the group may use.
    pub(crate) placement: Placement,
    /// The units that it shares.
    pub(crate) pool: Vec<usize>,
}

impl GroupUnits {
    /// The units that no other group may use.
    pub(crate) fn floor_units(&self) -> impl Iterator<Item = usize> {
        let members = self.placement.members.iter().copied();
        members.filter(|unit| !self.pool.contains(unit))
    }
}

/// The units of one group, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FloorAndPool {
    floor: Vec<usize>,
    pool: Vec<usize>,
}

/// The pieces of a structured split for the groups that it was made for, and what it left for the
/// rest, if the request takes it.
pub(crate) fn each_its_own(
    units: &UnitCounts,
    cut: &Cut,
    request: &SplitRequest,
) -> Vec<GroupUnits> {
    let choose = |name: &Arc<str>, share, unit| {
        let units_of_one = FloorAndPool { floor: vec![unit], pool: Vec::new() };
        chosen(units, cut, name, share, units_of_one)
    };
    let groups = request.groups.iter().enumerate();
    let groups = groups.map(|(index, group)| choose(&group.name, group.share, index));
    let last = request.groups.len();
    let rest = request.rest_name().filter(|_| last < units.counts().len());
    groups.chain(rest.map(|name| choose(name, Share::REST, last))).collect()
}

fn chosen(
    units: &UnitCounts,
    cut: &Cut,
    name: &Arc<str>,
    share: Share,
    FloorAndPool { floor, pool }: FloorAndPool,
) -> GroupUnits {
    let sms = |members: &[usize]| members.iter().map(|unit| units.counts()[*unit]).sum::<u32>();
    let floor_sms = sms(&floor);
    let sm_count = floor_sms + sms(&pool);
    let mut members = floor;
    if !pool.is_empty() {
        members.extend(&pool);
        members.sort_unstable();
    }
    GroupUnits {
        sms: GroupSms { name: Arc::clone(name), share, floor: floor_sms, sm_count },
        placement: Placement { cut: cut.clone(), members },
        pool,
    }
}

impl DryRun {
    /// What chosen units mean where these were free for floors, and no unit is in quarantine.
    pub(crate) fn new(units: &UnitCounts, mut free: UnitSet, chosen: Vec<GroupUnits>) -> DryRun {
        free.take_out(chosen.iter().flat_map(|group| &group.placement.members));
        let left = free.iter().map(|unit| units.counts()[unit]).sum();
        let mut remainder = left;
        let mut groups = Vec::with_capacity(chosen.len());
        for GroupUnits { sms, .. } in chosen {
            match sms.share == Share::REST {
                true => remainder += sms.sm_count,
                false => groups.push(sms),
            }
        }
        DryRun { unit: units.size(), groups, remainder, free_for_floors: left, quarantined: 0 }
    }
}

/// From what a request is met.
pub(super) struct Supply<'a, C, L> {
    pub(super) units: &'a UnitCounts,
    pub(super) cut: &'a Cut,
    /// The units that floors may have.
    pub(super) free: UnitSet,
    /// How many share a unit that may be shared; `None` for one that may not.
    pub(super) load: L,
    /// Locations to be preferred to others of the same count.
    pub(super) preferred: &'a [Placement],
    /// Idle contexts, whose units come next.
    pub(super) recycler: &'a Recycler<C>,
}

/// Why a request is not met.
enum Misfit {
    /// So many groups fit, from the first one on.
    Shortage(usize),
    /// No device could meet it that is cut like this one.
    Invalid(String),
}

impl<C, L: Fn(usize) -> Option<u32>> Supply<'_, C, L> {
    /// Chooses units for every group of a request. What the refusal is to say beside what fits is
    /// asked for only where it is needed.
    pub(super) fn assign(
        &self,
        request: &SplitRequest,
        known: impl FnOnce() -> NotEnoughSms,
    ) -> Result<Vec<GroupUnits>, Refusal> {
        let shares = request.shares();
        let Some((units, rest)) = self.meet(&shares, request) else {
            return Err(match self.misfit(request) {
                Misfit::Shortage(fit) => self.shortage(request, &shares, fit, known()),
                Misfit::Invalid(reason) => Refusal::InvalidRequest(reason),
            });
        };
        let mut all = Vec::with_capacity(units.len() + 1);
        for (RequestedGroup { name, share, .. }, units) in request.groups.iter().zip(units) {
            if request.takes(name) {
                all.push(chosen(self.units, self.cut, name, *share, units));
            }
        }
        if let Some((name, units)) = request.rest_name().zip(rest) {
            all.push(chosen(self.units, self.cut, name, Share::REST, units));
        }
        Ok(all)
    }

    /// The units of groups with these shares, and what is left for the rest. Counted floors are met
    /// together; whoever wants as many SMs as there are comes next, then ceilings in order, those
    /// without a bound last.
    fn meet(
        &self,
        shares: &[Share],
        request: &SplitRequest,
    ) -> Option<(Vec<FloorAndPool>, Option<FloorAndPool>)> {
        if request.overlapping {
            // What nobody shares yet, where that is enough.
            let count = self.units.counts().len();
            let at_most = |most| {
                let is_load = |unit: &usize| (self.load)(*unit).is_some_and(|load| load <= most);
                UnitSet::of(count, (0..count).filter(is_load))
            };
            let mut free = at_most(0);
            let mut given = self.floors(shares, request, &mut free);
            if given.is_none() || request.rest_name().is_some() {
                free = at_most(u32::MAX);
                given = self.floors(shares, request, &mut free);
            }
            let mut given = given?;
            let rest = self.rest(request, &free);
            given.iter_mut().for_each(|units| units.pool = std::mem::take(&mut units.floor));
            return Some((given, rest.map(|pool| FloorAndPool { floor: Vec::new(), pool })));
        }
        let mut free = self.free.clone();
        let mut given = self.floors(shares, request, &mut free)?;
        if shares.iter().any(|share| !share.is_exclusive()) {
            self.pools(shares, &mut given)?;
        }
        free.take_out(given.iter().flat_map(|units| &units.pool));
        let rest = self.rest(request, &free);
        if rest.is_none() && request.takes_rest_alone() {
            return None;
        }
        Some((given, rest.map(|floor| FloorAndPool { floor, pool: Vec::new() })))
    }

    /// What is left for a group that takes it, if there is one and something is left.
    fn rest(&self, request: &SplitRequest, free: &UnitSet) -> Option<Vec<usize>> {
        let name = request.rest_name()?;
        // Of a structured request that takes one group alone, the others' units are free too.
        let first = if request.is_partial() { request.groups.len() } else { 0 };
        let rest = self.all(|unit| unit >= first && free.contains(unit));
        (request.takes(name) && !rest.is_empty()).then_some(rest)
    }

    /// The units that nobody else may use, which are free no more.
    fn floors(
        &self,
        shares: &[Share],
        request: &SplitRequest,
        free: &mut UnitSet,
    ) -> Option<Vec<FloorAndPool>> {
        let mut given = vec![FloorAndPool::default(); shares.len()];
        if let Cut::Structured { .. } = self.cut {
            // Each group has a unit of its own.
            for (index, units) in given.iter_mut().enumerate() {
                if request.groups.get(index).is_some_and(|group| request.takes(&group.name)) {
                    free.contains(index).then_some(())?;
                    units.floor.push(index);
                    free.take_out(&units.floor);
                }
            }
            return Some(given);
        }
        let (counts, size) = (self.units.counts(), self.units.size());
        let parts = choose(counts, size, free, shares)?;
        for (group, (parts, units)) in parts.iter().zip(&mut given).enumerate() {
            let at_end =
                request.groups.get(group).is_some_and(|group| request.is_at_end(&group.name));
            units.floor = self.place(parts, free, shares[group].is_exclusive(), at_end);
            free.take_out(&units.floor);
        }
        for (share, units) in shares.iter().zip(&mut given) {
            if share.is_counted() {
                continue;
            }
            units.floor = self.all(|unit| free.contains(unit) && counts[unit] == size);
            if units.floor.is_empty() {
                return None;
            }
            free.take_out(&units.floor);
        }
        Some(given)
    }

    /// Adds what each share may use above its floor.
    fn pools(&self, shares: &[Share], given: &mut [FloorAndPool]) -> Option<()> {
        let counts = self.units.counts();
        let mut load: Vec<_> = (0..counts.len()).map(&self.load).collect();
        given.iter().flat_map(|units| &units.floor).for_each(|unit| load[*unit] = None);
        let (unbounded, bounded): (Vec<usize>, Vec<usize>) = (0..shares.len())
            .filter(|group| !shares[*group].is_exclusive())
            .partition(|group| shares[*group].is_unbounded());
        for group in bounded.into_iter().chain(unbounded) {
            let units = &mut given[group];
            let floor: u32 = units.floor.iter().map(|unit| counts[*unit]).sum();
            let budget = shares[group].ceiling().map(|ceiling| ceiling.saturating_sub(floor));
            let size = self.units.size();
            units.pool = fill(counts, size, &load, budget, &units.floor, self.existing());
            for unit in &units.pool {
                load[*unit] = load[*unit].map(|load| load + 1);
            }
            if units.floor.is_empty() && units.pool.is_empty() {
                return None;
            }
        }
        Some(())
    }

    fn all(&self, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..self.units.counts().len()).filter(|unit| is_wanted(*unit)).collect()
    }

    /// The units of contexts that there are: preferred ones, then those that wait to be used again.
    fn existing(&self) -> impl Iterator<Item = &[usize]> {
        let preferred = self.preferred.iter().map(|placement| placement.members.as_slice());
        preferred.chain(self.recycler.placements(self.cut))
    }

    /// Free units for the parts of a count: where they are to be all that a group has, those for which
    /// there is a context, or else the first ones, or the last.
    fn place(&self, parts: &Parts, free: &UnitSet, is_all: bool, at_end: bool) -> Vec<usize> {
        let (counts, size) = (self.units.counts(), self.units.size());
        let fits = |members: &&[usize]| {
            let odd = members.iter().filter(|unit| counts[**unit] != size);
            members.len() == parts.odd.len() + parts.regulars
                && odd.eq(&parts.odd)
                && members.iter().all(|unit| free.contains(*unit))
        };
        if parts.regulars == 0 && parts.odd.is_empty() {
            return Vec::new();
        }
        if is_all && let Some(members) = self.existing().find(fits) {
            return members.to_vec();
        }
        let regular = || free.iter().filter(|unit| counts[*unit] == size);
        let skipped = if at_end { regular().count().saturating_sub(parts.regulars) } else { 0 };
        let mut members = Vec::with_capacity(parts.regulars + parts.odd.len());
        members.extend(regular().skip(skipped).take(parts.regulars));
        if !parts.odd.is_empty() {
            members.extend(&parts.odd);
            members.sort_unstable();
        }
        members
    }

    /// Why a request is not met.
    #[cold]
    fn misfit(&self, request: &SplitRequest) -> Misfit {
        if !matches!(self.cut, Cut::Structured { .. }) {
            let wrong = request.groups.iter().find_map(|group| self.no_whole_unit(group));
            if let Some(reason) = wrong {
                return Misfit::Invalid(reason);
            }
        }
        let fits = |count: &usize| self.meet(&request.first_shares(*count), request).is_some();
        Misfit::Shortage((0..request.groups.len()).rev().find(fits).unwrap_or(0))
    }

    /// What is wrong with a share that no whole units of the device give, however many are free.
    fn no_whole_unit(
        &self,
        RequestedGroup { name, counted: share, .. }: &RequestedGroup,
    ) -> Option<String> {
        let (counts, size) = (self.units.counts(), self.units.size());
        let least = share.wanted().0;
        if share.is_exclusive() || least > self.units.total() {
            return None;
        }
        let ceiling = share.ceiling()?;
        let sms = |units: &[usize]| units.iter().map(|unit| counts[*unit]).sum::<u32>();
        let whole = |share: Share| {
            let parts = choose(counts, size, &UnitSet::all(counts.len()), &[share])?;
            parts.first().map(|parts| sms(&parts.odd) + parts.regulars as u32 * size)
        };
        let below = sms(&fill(
            counts,
            size,
            &vec![Some(0); counts.len()],
            Some(ceiling),
            &[],
            [].into_iter(),
        ));
        if least > 0 && whole(*share).is_some() || least == 0 && below > 0 {
            return None;
        }
        let above = ceiling.saturating_add(1);
        let above = (above..=ceiling.saturating_add(size))
            .find_map(|most| whole(Share::from(above..=most)));
        let near: Vec<String> = [Some(below).filter(|below| *below > 0), above]
            .into_iter()
            .flatten()
            .map(|sms| if least == 0 { format!("..={sms}") } else { sms.to_string() })
            .collect();
        Some(format!(
            "group {name}: no whole units of {size} SMs make {share}; {} would do",
            near.join(" or ")
        ))
    }

    /// Completes what is reported of a request that does not fit.
    fn shortage(
        &self,
        request: &SplitRequest,
        shares: &[Share],
        fit: usize,
        known: NotEnoughSms,
    ) -> Refusal {
        let counts = self.units.counts();
        let sms = |is_wanted: &dyn Fn(usize) -> bool| {
            self.all(is_wanted).into_iter().map(|unit| counts[unit]).sum()
        };
        Refusal::NotEnoughSms(Box::new(NotEnoughSms {
            requested: request.requested(),
            fit,
            free: sms(&|unit| self.free.contains(unit)),
            shareable: sms(&|unit| (self.load)(unit).is_some()),
            total: self.units.total(),
            unit: self.units.size(),
            nearest: self.nearest(request, shares),
            ..known
        }))
    }

    /// By how many SMs counts can differ: by a unit, or by an odd one in place of a regular one.
    fn steps(&self) -> Vec<u32> {
        let size = self.units.size();
        let counts = self.units.counts().iter();
        let mut steps: Vec<u32> = counts
            .flat_map(|count| [*count, count.abs_diff(size)])
            .filter(|step| *step > 0)
            .collect();
        steps.sort_unstable_by(|one, other| other.cmp(one));
        steps.dedup();
        steps
    }

    /// As many groups as a request has, with floors reduced by the same share until they fit, and then
    /// each grown again as far as it can, unless they were to be equal; none where floors of one unit
    /// do not fit either.
    fn nearest(&self, request: &SplitRequest, shares: &[Share]) -> Vec<Share> {
        let (total, unit) = (self.units.total(), self.units.size());
        let few = shares.len() <= self.units.counts().len();
        let counted = shares.iter().all(|share| share.is_counted());
        if !few || !counted || matches!(self.cut, Cut::Structured { .. }) {
            return Vec::new();
        }
        let least = |share: &Share| share.floor().unwrap_or(0);
        let reduced = |part: u32| -> Vec<Share> {
            let reduce = |share: &Share| match least(share) {
                0 => *share,
                floor => {
                    let sms = u64::from(floor.min(total)) * u64::from(part) / u64::from(total);
                    let sms = u32::try_from(sms).unwrap_or(total) / unit * unit;
                    share.with_floor(sms.max(unit))
                }
            };
            shares.iter().map(reduce).collect()
        };
        let fits = |shares: &[Share]| self.meet(shares, request);
        if fits(&reduced(0)).is_none() {
            return Vec::new();
        }
        // Halved rather than searched through: who waits for SMs may ask often, and this is done
        // under the ledger's lock.
        let (mut part, mut too_much) = (0, total + 1);
        while too_much - part > 1 {
            let middle = part.midpoint(too_much);
            match fits(&reduced(middle)) {
                Some(_) => part = middle,
                None => too_much = middle,
            }
        }
        let mut nearest = reduced(part);
        let equal = shares.iter().all(|share| *share == shares[0]);
        if equal && nearest.len() > 1 {
            return nearest;
        }
        let steps = self.steps();
        for group in 0..nearest.len() {
            let grown = |nearest: &[Share]| {
                steps.iter().find_map(|step| {
                    let floor = least(&nearest[group]);
                    let mut larger = nearest.to_vec();
                    larger[group] = larger[group].with_floor(floor + step);
                    let fits = floor > 0 && floor + step <= least(&shares[group]);
                    (fits && self.meet(&larger, request).is_some()).then_some(larger)
                })
            };
            while let Some(larger) = grown(&nearest) {
                nearest = larger;
            }
        }
        // What they would be given, which an odd unit can make more.
        let Some((given, _)) = fits(&nearest) else { return nearest };
        let counts = self.units.counts();
        let given = given.iter().zip(&nearest).map(|(units, share)| match least(share) {
            0 => *share,
            _ => {
                let counted = if request.overlapping { &units.pool } else { &units.floor };
                share.with_floor(counted.iter().map(|unit| counts[*unit]).sum())
            }
        });
        given.collect()
    }
}

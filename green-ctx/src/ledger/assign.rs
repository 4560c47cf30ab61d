//! The units that each group of a request gets.
//!
//! `Supply::meet` chooses in this order:
//!
//! 1. **Counted floors**, all chosen together from free units (`choose`). Each floor is rounded up to whole
//!    units, but never above the share's ceiling. If floors were chosen one after the other on an H200, a
//!    floor of 115 SMs would take all 15 units of 8 SMs, and a floor of 13 SMs would not fit afterwards.
//! 2. **`None` shares**: all free regular units.
//! 3. **Bounded ceilings**, in the order of the request, rounded down, from units that are in no floor
//!    (`fill`).
//! 4. **Unbounded ceilings**: every unit that is in no floor.
//! 5. **The rest**: the free units that are left, as a floor.
//!
//! The groups of an overlapping request get their counts as shared units, without floors. Units that no group
//! shares yet are used if there are enough of them. In a structured request, each group is one unit. Choosing
//! units does not take them, so a refusal changes nothing.

use std::sync::Arc;

use super::choose::{Parts, choose, fill};
use super::dry_run::GroupSms;
use super::recycle::Idle;
use super::refusal::{NotEnoughSms, Refusal};
use super::request::{RequestedGroup, SplitRequest};
use super::share::Share;
use super::units::{Cut, Placement, UnitCounts, UnitSet};

/// The record of a group: its SM counts and its units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupUnits {
    pub(crate) sms: GroupSms,
    /// All units that the group may use.
    pub(crate) placement: Placement,
    /// The units that the group shares.
    pub(crate) pool: Vec<usize>,
}

impl GroupUnits {
    /// Returns the units that no other group may use.
    pub(crate) fn floor_units(&self) -> impl Iterator<Item = usize> {
        let members = self.placement.members.iter().copied();
        members.filter(|unit| !self.pool.contains(unit))
    }
}

/// The units of one group, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FloorAndPool {
    floor: Vec<usize>,
    pool: Vec<usize>,
}

/// Returns the groups of a structured split. Each group is one unit. If the request takes the rest, the group
/// of the rest comes last.
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

/// The units from which a request is met.
pub(super) struct Supply<'a, C, L> {
    pub(super) units: &'a UnitCounts,
    pub(super) cut: &'a Cut,
    /// The units that floors may take.
    pub(super) free: UnitSet,
    /// Returns the number of groups that share a unit, or `None` for a unit that may not be shared.
    pub(super) load: L,
    /// Placements to prefer among those with the same count.
    pub(super) preferred: &'a [Placement],
    /// The idle contexts, whose units come second in preference, after `preferred`. Empty if the choice must not depend
    /// on them.
    pub(super) idle: &'a [Idle<C>],
}

/// The reason why a request cannot be met.
enum Misfit {
    /// Only this number of groups fit, counted from the first.
    Shortage(usize),
    /// No device with these units could meet the request.
    Invalid(String),
}

impl<C, L: Fn(usize) -> Option<u32>> Supply<'_, C, L> {
    /// Chooses units for every group of a request. If the units do not suffice, calls `known` for details to
    /// report.
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

    /// Returns the units of groups with these shares, and the units left for the rest. The module's
    /// documentation lists the order.
    fn meet(
        &self,
        shares: &[Share],
        request: &SplitRequest,
    ) -> Option<(Vec<FloorAndPool>, Option<FloorAndPool>)> {
        if request.overlapping {
            // Prefer units that no group shares, if they suffice.
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

    /// Returns the units left for the group that takes the rest, if there is such a group and any are left.
    fn rest(&self, request: &SplitRequest, free: &UnitSet) -> Option<Vec<usize>> {
        let name = request.rest_name()?;
        // If a structured request takes one group only, the units of the other groups are free too, but they
        // are not the rest.
        let first = if request.is_partial() { request.groups.len() } else { 0 };
        let rest = self.all(|unit| unit >= first && free.contains(unit));
        (request.takes(name) && !rest.is_empty()).then_some(rest)
    }

    /// Chooses the floors, and removes their units from `free`.
    fn floors(
        &self,
        shares: &[Share],
        request: &SplitRequest,
        free: &mut UnitSet,
    ) -> Option<Vec<FloorAndPool>> {
        let mut given = vec![FloorAndPool::default(); shares.len()];
        if let Cut::Structured { .. } = self.cut {
            // Each group is the unit with its index.
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

    /// Adds the units that each share may use above its floor.
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

    /// Returns the units of existing contexts: the preferred ones, then the idle ones.
    fn existing(&self) -> impl Iterator<Item = &[usize]> {
        let idle = self.idle.iter().map(|idle| &idle.placement);
        let of_cut = idle.filter(|placement| placement.cut == *self.cut);
        self.preferred.iter().chain(of_cut).map(|placement| placement.members.as_slice())
    }

    /// Chooses free units for a floor. If the group has no units above its floor (`is_all`), the units of an
    /// existing context are preferred. Otherwise, the first free units are chosen, or the last ones if
    /// `at_end` is true.
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

    /// Returns the reason why a request cannot be met.
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

    /// Returns an error message if no whole units of the device satisfy the share, even if all are free.
    fn no_whole_unit(
        &self,
        RequestedGroup { name, share: requested, counted: share }: &RequestedGroup,
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
            "group {name}: no whole units of {size} SMs satisfy {requested}; {} would do",
            near.join(" or ")
        ))
    }

    /// Completes the report on a request that does not fit.
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
            floors: shares.iter().filter_map(|share| share.floor()).map(u64::from).sum(),
            ..known
        }))
    }

    /// Returns the steps by which a floor can grow, in SMs and in descending order: the size of a unit, or
    /// the difference between an odd unit and a regular one.
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

    /// Returns the nearest shares that the same number of groups could have.
    ///
    /// All floors are first reduced in proportion until they fit. Then each floor grows as far as possible,
    /// unless equal shares were requested. Returns an empty list if even floors of one unit do not fit.
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
        // Bisect instead of trying every value: a caller that waits for SMs may retry often, and this runs
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
        // Report the SMs that the groups would get, which an odd unit can make more than requested.
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

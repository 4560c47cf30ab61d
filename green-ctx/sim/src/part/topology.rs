//! Which SMs a device has, how they hang together, and how the driver cuts them up.
//!
//! The rules that turn a [`Topology`] into splits and clusters are the ones that reproduce every
//! recorded split of an H100 and an H200 and every recorded number of clusters. That other parts
//! follow them too is not recorded: what is their own are the numbers.

mod domain;
mod gpc;
#[cfg(test)]
mod tests;

use crate::sm_set::SmSet;

pub(crate) use domain::Locality;
pub(crate) use gpc::GroupRequest;

/// The driver's flag `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
const IGNORE_COSCHEDULING: u32 = 1;
/// The driver's flag `CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE`.
const MAX_POTENTIAL_CLUSTER_SIZE: u32 = 2;

/// How the SMs of a device are numbered and grouped.
///
/// SMs come in texture processing clusters (TPCs), pairs of them on every part so far, and those in
/// graphics processing clusters (GPCs). TPC `t` of pairs holds the SMs `2t` and `2t + 1`.
///
/// TPCs are numbered across the GPCs: first those that form whole coarse units, one unit of each
/// GPC after the other and layer by layer within them, as recorded on an H200; then the rest, the
/// *tail*, which belongs to no unit, layer by layer too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// The number of SMs of the device.
    pub sm_count: u32,
    /// SMs of one TPC, the unit that the driver cuts with
    /// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
    pub fine_unit: u32,
    /// SMs of one unit of a split without that flag, the multiple that the driver states for partitions.
    pub coarse_unit: u32,
    /// SMs of the smallest group of a split without that flag, a multiple of the coarse unit; the
    /// smallest partition that the driver states.
    pub min_group: u32,
    /// The TPCs of each GPC, in the order of their numbers. A TPC that shares clusters with no other
    /// is a GPC of its own here.
    pub gpcs: &'static [u32],
    /// The GPCs of each locality domain, one domain after the other; empty where the device is not
    /// divided into domains.
    pub domains: &'static [usize],
    /// The order in which fine units are handed out, as ranges of TPC numbers; empty where it is theirs.
    pub fine_order: &'static [(u32, u32)],
    /// Splits of the whole device whose groups are known and follow from no rule. Such splits of
    /// anything else fill their groups up in the order of the SMs, which no record says.
    pub splits: &'static [RecordedSplit],
}

/// What the driver makes of a request for as many groups of a size as the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedSplit {
    /// The SMs of each group.
    pub size: u32,
    /// The TPCs of each group, ascending.
    pub groups: &'static [&'static [u32]],
}

/// What a split by count makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The groups, equally large and disjoint.
    pub(crate) groups: Vec<SmSet>,
    /// What is left over.
    pub(crate) remainder: SmSet,
}

/// Why a split by count cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitError {
    /// The flags contradict each other.
    Flags,
    /// No group of this size fits.
    Size,
}

/// Whether these flags of a split ask for fine units.
pub(crate) fn is_fine(flags: u32) -> bool {
    flags & IGNORE_COSCHEDULING != 0
}

impl Split {
    fn of(input: SmSet, groups: Vec<SmSet>) -> Split {
        let remainder = groups.iter().fold(input, |left, &group| left.difference(group));
        Split { groups, remainder }
    }
}

impl Topology {
    /// Every SM of the device.
    pub(crate) fn all(&self) -> SmSet {
        (0..self.sm_count).collect()
    }

    fn tpc(&self, tpc: u32) -> SmSet {
        (tpc * self.fine_unit..(tpc + 1) * self.fine_unit).collect()
    }

    fn tpcs_per_unit(&self) -> u32 {
        self.coarse_unit / self.fine_unit
    }

    /// The GPCs that have a first whole coarse unit, those that have a second, and so on.
    fn bands(&self) -> impl Iterator<Item = Vec<usize>> {
        let per_unit = self.tpcs_per_unit();
        let whole = move |nth: u32| {
            let gpcs = self.gpcs.iter().enumerate();
            gpcs.filter(|(_, tpcs)| **tpcs >= nth * per_unit).map(|(gpc, _)| gpc).collect()
        };
        (1..).map(whole).take_while(|gpcs: &Vec<usize>| !gpcs.is_empty())
    }

    /// The first TPC that belongs to no coarse unit.
    fn tail_start(&self) -> u32 {
        self.gpcs.iter().map(|tpcs| tpcs - tpcs % self.tpcs_per_unit()).sum()
    }

    /// The SMs of each coarse unit, in the order in which the driver hands them out.
    pub(crate) fn coarse_units(&self) -> Vec<SmSet> {
        let mut units = Vec::new();
        let mut start = 0;
        for band in self.bands() {
            let gpcs = band.len() as u32;
            for gpc in 0..gpcs {
                let mut unit = SmSet::default();
                for layer in 0..self.tpcs_per_unit() {
                    unit = unit.union(self.tpc(start + layer * gpcs + gpc));
                }
                units.push(unit);
            }
            start += gpcs * self.tpcs_per_unit();
        }
        units
    }

    /// The SMs of each fine unit, in the order in which the driver hands them out.
    pub(crate) fn fine_units(&self) -> Vec<SmSet> {
        let all = [(0, self.sm_count / self.fine_unit)];
        let ranges = if self.fine_order.is_empty() { &all } else { self.fine_order };
        ranges.iter().flat_map(|&(start, end)| start..end).map(|tpc| self.tpc(tpc)).collect()
    }

    /// Splits `input` into at most `wanted` groups of at least `minimum` SMs, as
    /// `cuDevSmResourceSplitByCount` does. `loose` says that groups are of any number of fine units.
    ///
    /// # Errors
    ///
    /// [`SplitError::Flags`] for flags that exclude each other, [`SplitError::Size`] where not one
    /// group of that size exists.
    pub(crate) fn split(
        &self,
        input: SmSet,
        loose: bool,
        wanted: Option<u32>,
        flags: u32,
        minimum: u32,
    ) -> Result<Split, SplitError> {
        let both = IGNORE_COSCHEDULING | MAX_POTENTIAL_CLUSTER_SIZE;
        if flags & both == both {
            return Err(SplitError::Flags);
        }
        let fine = loose || is_fine(flags);
        let unit = if fine { self.fine_unit } else { self.coarse_unit };
        let least = if is_fine(flags) { unit } else { self.min_group };
        let total = input.len();
        if minimum > total || !fine && !self.has_unit(input) {
            return Err(SplitError::Size);
        }
        let size = minimum.max(least).div_ceil(unit) * unit;
        if size >= total {
            return Ok(Split { groups: vec![input], remainder: SmSet::default() });
        }

        if !is_fine(flags) && input != self.all() {
            let most = wanted.unwrap_or(u32::MAX).min(total / size);
            return Ok(Split::of(input, self.in_layers(input, loose, size, most as usize)));
        }
        let mut units: Vec<SmSet> = if fine { self.fine_units() } else { self.coarse_units() };
        units.retain(|unit| unit.is_subset(input));
        let loose = units.iter().fold(input, |left, &unit| left.difference(unit));
        // SMs outside any whole unit fill groups up, but each group has at least one whole
        // unit: 132 SMs give fifteen groups of 8, not sixteen, and yet eight groups of 16.
        let most = (total / size).min(units.len() as u32);
        let loose: Vec<u32> = loose.iter().collect();
        units.extend(
            loose.chunks_exact(unit as usize).map(|sms| sms.iter().copied().collect::<SmSet>()),
        );

        let count = wanted.map_or(most, |wanted| wanted.min(most));
        if !fine && let Some(groups) = self.recorded(size, count) {
            return Ok(Split::of(input, groups));
        }
        let per_group = size / unit;
        let mut groups = vec![SmSet::default(); count as usize];
        // Units go round the groups in turn: two groups of 16 are the units 0, 2 and 1, 3.
        for (index, &unit) in units.iter().take((count * per_group) as usize).enumerate() {
            let group = &mut groups[index % count as usize];
            *group = group.union(unit);
        }
        Ok(Split::of(input, groups))
    }

    /// At most `most` groups of less than the device, and no more than GPCs give to. As recorded, they get a unit of another GPC in turn, the last one perhaps in part, as long as there is one for each;
    /// then as many SMs of no unit each, or one TPC of any if they have none yet. So they can be smaller
    /// than was asked for. (How much, follows an H200 for contexts of one group or remainder with at most
    /// three groups of 24 SMs, and is near it for others.)
    fn in_layers(&self, input: SmSet, fine: bool, size: u32, most: usize) -> Vec<SmSet> {
        let mut gpcs = vec![Vec::new(); self.gpcs.len()];
        let mut units = self.coarse_units();
        for (gpc, unit) in self.bands().flatten().zip(&units) {
            gpcs[gpc].extend(Some(*unit).filter(|unit| unit.is_subset(input)));
        }
        gpcs.retain(|units| !units.is_empty());
        units.retain(|unit| unit.is_subset(input));
        let loose = units.iter().fold(input, |loose, unit| loose.difference(*unit));
        // Two groups get theirs of whatever GPC, and all do where every SM is of a unit, as recorded.
        if most < 3 || loose.is_empty() {
            gpcs = units.iter().map(|unit| vec![*unit]).collect();
        }
        let places = if fine { self.places(input, false).len() } else { 0 };
        let count = most.min(places.max(gpcs.len()));
        let mut groups = vec![SmSet::default(); count];
        let mut give = |sms: &mut dyn Iterator<Item = SmSet>| {
            groups.iter_mut().zip(sms).for_each(|(group, sms)| *group = group.union(sms));
        };
        let mut missing = size;
        for nth in 0..gpcs.iter().map(Vec::len).max().unwrap_or(0) {
            let layer: Vec<SmSet> =
                gpcs.iter().filter_map(|units| units.get(nth).copied()).collect();
            for units in layer.chunks_exact(count) {
                let each = missing.min(self.coarse_unit);
                give(&mut units.iter().map(|unit| unit.iter().take(each as usize).collect()));
                missing -= each;
            }
        }
        let pairs = loose.len() / count as u32 / self.fine_unit;
        let (pairs, rest) = if pairs == 0 && missing == size { (1, input) } else { (pairs, loose) };
        let each = missing.min(pairs * self.fine_unit) as usize;
        let mut rest = rest.iter();
        give(&mut (0..count).map(|_| rest.by_ref().take(each).collect()));
        groups
    }

    /// The groups of a split of the whole device that is known.
    fn recorded(&self, size: u32, count: u32) -> Option<Vec<SmSet>> {
        let split = self
            .splits
            .iter()
            .find(|split| split.size == size && split.groups.len() == count as usize)?;
        let group =
            |tpcs: &[u32]| tpcs.iter().fold(SmSet::default(), |set, &tpc| set.union(self.tpc(tpc)));
        Some(split.groups.iter().map(|tpcs| group(tpcs)).collect())
    }

    /// The SMs of no coarse unit.
    fn tail(&self) -> SmSet {
        (self.tail_start() * self.fine_unit..self.sm_count).collect()
    }

    /// The SMs of one resource, in sets of those that clusters can lie in: the ones of each GPC, or
    /// of each fine unit where the resource was cut in those.
    pub(crate) fn places(&self, sms: SmSet, fine: bool) -> Vec<SmSet> {
        let mut places = if fine { self.fine_units() } else { self.gpc_sms() };
        places.iter_mut().for_each(|place| *place = place.intersection(sms));
        places.retain(|place| !place.is_empty());
        places
    }
}

/// Adds the places of one resource to those of others that are in the same context. Where resources
/// have an SM in common their places are one, so that each SM counts once.
pub(crate) fn join(mut places: Vec<SmSet>, others: Vec<SmSet>) -> Vec<SmSet> {
    for mut place in others {
        places.retain(|known| {
            let apart = known.intersection(place).is_empty();
            if !apart {
                place = place.union(*known);
            }
            apart
        });
        places.push(place);
    }
    places
}

/// How many clusters of `size` blocks are active at once in these places, where an SM holds so many
/// blocks: a place has room for all of its blocks, but no SM runs two of one cluster.
pub(crate) fn clusters(places: &[SmSet], blocks_per_sm: u32, size: u32) -> u32 {
    let sms = places.iter().map(|place| place.len());
    sms.filter(|sms| *sms >= size).map(|sms| sms * blocks_per_sm / size.max(1)).sum()
}

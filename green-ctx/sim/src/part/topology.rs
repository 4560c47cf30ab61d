//! The SMs of a device, their grouping, and how the driver splits them.
//!
//! The rules that turn a [`Topology`] into splits and clusters reproduce every recorded split and every
//! recorded number of clusters of an H100 and an H200. Other GPUs are simulated with the same rules and
//! their own numbers; whether real ones follow these rules was not recorded.

mod domain;
mod gpc;
#[cfg(test)]
mod tests;

use crate::sm_set::SmSet;

pub(crate) use domain::Locality;
pub(crate) use gpc::GroupRequest;

/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
const IGNORE_COSCHEDULING: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE`.
const MAX_POTENTIAL_CLUSTER_SIZE: u32 = 2;

/// The numbering and grouping of a device's SMs.
///
/// SMs form texture processing clusters (TPCs), which are pairs of SMs on every GPU so far. TPCs form
/// graphics processing clusters (GPCs). With pairs, TPC `t` holds the SMs `2t` and `2t + 1`.
///
/// The numbers of the TPCs run across the GPCs. The TPCs of whole coarse units have the lowest numbers.
/// These units are numbered in rounds, and each round takes one unit from each GPC that has another unit.
/// Within a round, the numbers run layer by layer; a layer has one TPC of each unit (recorded on an H200).
/// The remaining TPCs belong to no unit and are called the *tail*. The tail has the highest numbers, which
/// also run layer by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// The number of SMs of the device.
    pub sm_count: u32,
    /// The number of SMs per TPC. With the flag `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`, the
    /// driver splits in units of one TPC.
    pub fine_unit: u32,
    /// The number of SMs per unit of a split without `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`. The
    /// driver reports this number as the alignment of partitions.
    pub coarse_unit: u32,
    /// The minimum number of SMs per group of a split in coarse units, which is a multiple of the coarse
    /// unit. The driver reports this number as the minimum partition size.
    pub min_group: u32,
    /// The number of TPCs in each GPC, in the order of the GPCs' numbers. A TPC that cannot share a cluster
    /// with any other TPC counts as a separate GPC.
    pub gpcs: &'static [u32],
    /// The number of GPCs in each locality domain; empty if the device has no domains.
    pub domains: &'static [usize],
    /// The order in which the driver gives out fine units, as ranges of TPC numbers; empty if the order is
    /// ascending.
    pub fine_order: &'static [(u32, u32)],
    /// The recorded splits of the whole device that no rule explains. If only some of the SMs are split,
    /// the simulator fills such groups in the order of the SMs; this choice was not recorded.
    pub splits: &'static [RecordedSplit],
}

/// The recorded groups of a split of the whole device into the maximum number of groups of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedSplit {
    /// The number of SMs per group.
    pub size: u32,
    /// The TPCs of each group, in ascending order.
    pub groups: &'static [&'static [u32]],
}

/// The result of a split by count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The groups, which are disjoint and of equal size.
    pub(crate) groups: Vec<SmSet>,
    /// The SMs in no group.
    pub(crate) remainder: SmSet,
}

/// The reason why a split by count is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitError {
    /// The flags contradict each other.
    Flags,
    /// Not even one group of this size fits.
    Size,
}

/// Returns whether the flags of a split request fine units.
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
    /// Returns every SM of the device.
    pub(crate) fn all(&self) -> SmSet {
        (0..self.sm_count).collect()
    }

    fn tpc(&self, tpc: u32) -> SmSet {
        (tpc * self.fine_unit..(tpc + 1) * self.fine_unit).collect()
    }

    fn tpcs_per_unit(&self) -> u32 {
        self.coarse_unit / self.fine_unit
    }

    /// Returns the GPCs that have at least one whole coarse unit, then those that have at least two, and so
    /// on.
    fn bands(&self) -> impl Iterator<Item = Vec<usize>> {
        let per_unit = self.tpcs_per_unit();
        let whole = move |nth: u32| {
            let gpcs = self.gpcs.iter().enumerate();
            gpcs.filter(|(_, tpcs)| **tpcs >= nth * per_unit).map(|(gpc, _)| gpc).collect()
        };
        (1..).map(whole).take_while(|gpcs: &Vec<usize>| !gpcs.is_empty())
    }

    /// Returns the first TPC that belongs to no coarse unit.
    fn tail_start(&self) -> u32 {
        self.gpcs.iter().map(|tpcs| tpcs - tpcs % self.tpcs_per_unit()).sum()
    }

    /// Returns the SMs of each coarse unit, in the order in which the driver gives out the units.
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

    /// Returns the SMs of each fine unit, in the order in which the driver gives out the units.
    pub(crate) fn fine_units(&self) -> Vec<SmSet> {
        let all = [(0, self.sm_count / self.fine_unit)];
        let ranges = if self.fine_order.is_empty() { &all } else { self.fine_order };
        ranges.iter().flat_map(|&(start, end)| start..end).map(|tpc| self.tpc(tpc)).collect()
    }

    /// Splits `input` into at most `wanted` groups of at least `minimum` SMs, as
    /// `cuDevSmResourceSplitByCount` does. If `loose` is true, a group may consist of any number of fine
    /// units.
    ///
    /// # Errors
    ///
    /// - [`SplitError::Flags`] if the flags contradict each other.
    /// - [`SplitError::Size`] if not even one group of that size fits.
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
        // SMs outside whole units help to fill groups, but each group contains at least one whole unit. 132
        // SMs give 15 groups of 8, not 16, but 8 groups of 16.
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
        // The groups take units in turn: two groups of 16 get the units 0, 2 and 1, 3.
        for (index, &unit) in units.iter().take((count * per_group) as usize).enumerate() {
            let group = &mut groups[index % count as usize];
            *group = group.union(unit);
        }
        Ok(Split::of(input, groups))
    }

    /// Chooses at most `most` groups for a split of less than the whole device. There are at most as many
    /// groups as GPCs that can provide SMs. The groups take units from different GPCs in turn, as long as
    /// every group gets one; the driver may give only a part of the last unit (recorded on hardware). Then every group
    /// gets the same number of SMs outside units. If there are too few of these SMs and the groups are
    /// still empty, every group gets one TPC. A group can thus be smaller than requested.
    ///
    /// The group sizes are those of an H200 if the context consists of one group or of one remainder, and the split makes
    /// at most three groups of 24 SMs. Otherwise, they are approximate.
    fn in_layers(&self, input: SmSet, fine: bool, size: u32, most: usize) -> Vec<SmSet> {
        let mut gpcs = vec![Vec::new(); self.gpcs.len()];
        let mut units = self.coarse_units();
        for (gpc, unit) in self.bands().flatten().zip(&units) {
            gpcs[gpc].extend(Some(*unit).filter(|unit| unit.is_subset(input)));
        }
        gpcs.retain(|units| !units.is_empty());
        units.retain(|unit| unit.is_subset(input));
        let loose = units.iter().fold(input, |loose, unit| loose.difference(*unit));
        // With fewer than three groups, or if every SM belongs to a unit, the groups take units regardless
        // of GPCs (recorded on hardware).
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

    /// Returns the recorded groups of a split of the whole device; `None` if this split was not recorded.
    fn recorded(&self, size: u32, count: u32) -> Option<Vec<SmSet>> {
        let split = self
            .splits
            .iter()
            .find(|split| split.size == size && split.groups.len() == count as usize)?;
        let group =
            |tpcs: &[u32]| tpcs.iter().fold(SmSet::default(), |set, &tpc| set.union(self.tpc(tpc)));
        Some(split.groups.iter().map(|tpcs| group(tpcs)).collect())
    }

    /// Returns the SMs outside coarse units.
    fn tail(&self) -> SmSet {
        (self.tail_start() * self.fine_unit..self.sm_count).collect()
    }

    /// Returns the places of one resource, which are the sets of SMs that can hold clusters. There is one
    /// place per GPC, or one per fine unit if the resource was split into fine units.
    pub(crate) fn places(&self, sms: SmSet, fine: bool) -> Vec<SmSet> {
        let mut places = if fine { self.fine_units() } else { self.gpc_sms() };
        places.iter_mut().for_each(|place| *place = place.intersection(sms));
        places.retain(|place| !place.is_empty());
        places
    }
}

/// Adds the places of one resource to those of the other resources of a context. Places that have an SM in
/// common are merged, so that each SM counts once.
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

/// Returns how many clusters of `size` blocks run at the same time in these places, if each SM holds
/// `blocks_per_sm` blocks. A place can hold all blocks of its SMs, but an SM never runs two blocks of the
/// same cluster.
pub(crate) fn clusters(places: &[SmSet], blocks_per_sm: u32, size: u32) -> u32 {
    let sms = places.iter().map(|place| place.len());
    sms.filter(|sms| *sms >= size).map(|sms| sms * blocks_per_sm / size.max(1)).sum()
}

//! Which SMs a device has, how they hang together, and how the driver cuts them up.
//!
//! The numbers that a [`Topology`] holds were read off a real part; the rules that turn them into
//! splits are the ones that reproduce every recorded split of that part.

mod gpc;

use crate::sm_set::SmSet;

pub(crate) use gpc::Wish;

/// The driver's flag `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
const IGNORE_COSCHEDULING: u32 = 1;
/// The driver's flag `CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE`.
const MAX_POTENTIAL_CLUSTER_SIZE: u32 = 2;

/// How the SMs of a device are numbered and grouped.
///
/// SMs come in pairs (texture processing clusters, TPCs), numbered across the device's graphics
/// processing clusters (GPCs) layer by layer: TPC `t` holds the SMs `2t` and `2t + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// The number of SMs of the device.
    pub sm_count: u32,
    /// SMs of one TPC, the unit that the driver cuts with
    /// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
    pub fine_unit: u32,
    /// SMs of one unit of a split without that flag, and the alignment of its groups.
    pub coarse_unit: u32,
    /// The bands of TPCs that form whole coarse units: in each, a unit takes every `gpcs`-th TPC.
    /// TPCs after the last band are the tail, which belongs to no unit.
    pub bands: &'static [Band],
    /// The order in which fine units are handed out, as ranges of TPC numbers.
    pub fine_order: &'static [(u32, u32)],
    /// Whether two TPCs of the tail form one more cluster of four when the whole tail and at least
    /// one unit come in one resource.
    pub tail_pair: bool,
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

/// TPCs numbered across `gpcs` GPCs, one coarse unit in each GPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// The number of GPCs that this band runs across.
    pub gpcs: u32,
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

    /// The TPC number at which each band begins, with the band's GPC count.
    fn band_starts(&self) -> impl Iterator<Item = (u32, u32)> {
        let per_unit = self.tpcs_per_unit();
        self.bands.iter().scan(0, move |next, band| {
            let start = *next;
            *next += band.gpcs * per_unit;
            Some((start, band.gpcs))
        })
    }

    /// The first TPC that belongs to no coarse unit.
    fn tail_start(&self) -> u32 {
        self.bands.iter().map(|band| band.gpcs * self.tpcs_per_unit()).sum()
    }

    /// The SMs of each coarse unit, in the order in which the driver hands them out.
    pub(crate) fn coarse_units(&self) -> Vec<SmSet> {
        let mut units = Vec::new();
        for (start, gpcs) in self.band_starts() {
            for gpc in 0..gpcs {
                let mut unit = SmSet::default();
                for layer in 0..self.tpcs_per_unit() {
                    unit = unit.union(self.tpc(start + layer * gpcs + gpc));
                }
                units.push(unit);
            }
        }
        units
    }

    /// The SMs of each fine unit, in the order in which the driver hands them out.
    pub(crate) fn fine_units(&self) -> Vec<SmSet> {
        let ranges = self.fine_order.iter();
        ranges.flat_map(|&(start, end)| start..end).map(|tpc| self.tpc(tpc)).collect()
    }

    /// Splits `input` into at most `wanted` groups of at least `minimum` SMs, as
    /// `cuDevSmResourceSplitByCount` does. `of_fine` says that the input itself was cut in fine
    /// units, which are then what groups of any size consist of.
    ///
    /// # Errors
    ///
    /// [`SplitError::Flags`] for flags that exclude each other, [`SplitError::Size`] where not one
    /// group of that size exists.
    pub(crate) fn split(
        &self,
        input: SmSet,
        of_fine: bool,
        wanted: Option<u32>,
        flags: u32,
        minimum: u32,
    ) -> Result<Split, SplitError> {
        let both = IGNORE_COSCHEDULING | MAX_POTENTIAL_CLUSTER_SIZE;
        if flags & both == both {
            return Err(SplitError::Flags);
        }
        let step = if is_fine(flags) { self.fine_unit } else { self.coarse_unit };
        let total = input.len();
        if minimum > total {
            return Err(SplitError::Size);
        }
        let size = minimum.max(1).div_ceil(step) * step;
        if size >= total {
            return Ok(Split { groups: vec![input], remainder: SmSet::default() });
        }

        let fine = of_fine || is_fine(flags);
        let unit = if fine { self.fine_unit } else { self.coarse_unit };
        let mut units: Vec<SmSet> = if fine { self.fine_units() } else { self.coarse_units() };
        units.retain(|unit| unit.is_subset(input));
        let loose = units.iter().fold(input, |left, &unit| left.difference(unit));
        // SMs outside any whole unit fill groups up, but each group stands on one whole unit at
        // least: 132 SMs give fifteen groups of 8, not sixteen, and yet eight groups of 16.
        let most = (total / size).min(units.len() as u32);
        if most == 0 {
            return Err(SplitError::Size);
        }
        let loose: Vec<u32> = loose.iter().collect();
        units.extend(
            loose.chunks_exact(unit as usize).map(|sms| sms.iter().copied().collect::<SmSet>()),
        );

        let count = wanted.map_or(most, |wanted| wanted.min(most));
        if !fine
            && input == self.all()
            && let Some(groups) = self.recorded(size, count)
        {
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

    /// The SMs of one resource, not cut in fine units, that run clusters of more than one fine unit:
    /// those of a resource with a whole coarse unit, where the tail counts only as a whole.
    pub(crate) fn coscheduled(&self, sms: SmSet) -> SmSet {
        if !self.has_unit(sms) {
            return SmSet::default();
        }
        let tail = self.tail();
        if tail.is_subset(sms) { sms } else { sms.difference(tail) }
    }

    /// The SMs of no coarse unit.
    fn tail(&self) -> SmSet {
        (self.tail_start() * self.fine_unit..self.sm_count).collect()
    }

    /// How many clusters of `size` SMs fit on `sms` at one block an SM, where those of more than
    /// one fine unit need `coscheduled` SMs.
    ///
    /// This is the sum over the resources that a context was made of, each counted as
    /// [`coscheduled`](Topology::coscheduled) says, with SMs that are in several counted once. A
    /// cluster lies in one coarse unit, or `anywhere` in one GPC.
    pub(crate) fn clusters(
        &self,
        sms: SmSet,
        coscheduled: SmSet,
        anywhere: bool,
        size: u32,
    ) -> u32 {
        if size <= 1 {
            return sms.len();
        }
        if size <= self.fine_unit {
            let tpcs = 0..self.sm_count / self.fine_unit;
            return tpcs.map(|tpc| sms.intersection(self.tpc(tpc)).len() / size).sum();
        }
        let places = if anywhere { self.gpcs() } else { self.coarse_units() };
        let in_place = |place: &SmSet| coscheduled.intersection(*place).len() / size;
        let clusters: u32 = places.iter().map(in_place).sum();
        let tail = self.tail();
        let pair = self.tail_pair
            && size <= 2 * self.fine_unit
            && !tail.is_empty()
            && tail.is_subset(coscheduled);
        clusters + u32::from(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::H200;

    fn ids(set: SmSet) -> Vec<u32> {
        set.iter().collect()
    }

    /// Parses the form in which the record lists SM ids.
    fn recorded(ids: &str) -> SmSet {
        ids.split_whitespace().map(|id| id.parse::<u32>().unwrap_or(u32::MAX)).collect()
    }

    fn table(flags: u32) -> Vec<(u32, u32, u32, u32)> {
        let topology = &H200.topology;
        let unit = if flags & 1 == 1 { 2 } else { 8 };
        let mut rows = Vec::new();
        let mut minimum = 0;
        while minimum <= 132 {
            let split = topology
                .split(topology.all(), false, None, flags, minimum)
                .expect("every size fits");
            let each = split.groups[0].len();
            assert!(
                split.groups.iter().all(|group| group.len() == each),
                "unequal groups at {minimum}"
            );
            let mut seen = split.remainder;
            for &group in &split.groups {
                assert!(seen.intersection(group).is_empty(), "overlap at {minimum}");
                seen = seen.union(group);
            }
            assert_eq!(seen, topology.all(), "SMs lost at {minimum}");
            rows.push((minimum, split.groups.len() as u32, each, split.remainder.len()));
            minimum = if minimum == 0 { unit + 1 } else { minimum + unit };
        }
        rows
    }

    /// (minimum, groups, SMs in each, SMs left): the recorded table for flags 0, 2 and 4.
    const COARSE: [(u32, u32, u32, u32); 17] = [
        (0, 15, 8, 12),
        (9, 8, 16, 4),
        (17, 5, 24, 12),
        (25, 4, 32, 4),
        (33, 3, 40, 12),
        (41, 2, 48, 36),
        (49, 2, 56, 20),
        (57, 2, 64, 4),
        (65, 1, 72, 60),
        (73, 1, 80, 52),
        (81, 1, 88, 44),
        (89, 1, 96, 36),
        (97, 1, 104, 28),
        (105, 1, 112, 20),
        (113, 1, 120, 12),
        (121, 1, 128, 4),
        (129, 1, 132, 0),
    ];

    #[test]
    fn coarse_table_is_the_recorded_one() {
        for flags in [0, 2, 4, 0x8000_0000] {
            assert_eq!(table(flags), COARSE, "flags {flags}");
        }
    }

    /// The recorded table for flag 1, whose rows follow one formula throughout.
    #[test]
    fn fine_table_is_the_recorded_one() {
        let rows = table(1);
        assert_eq!(rows.len(), 66);
        for &(minimum, groups, each, left) in &rows {
            let size = minimum.max(1).div_ceil(2) * 2;
            assert_eq!((groups, each, left), (132 / size, size, 132 % size), "minimum {minimum}");
        }
        for row in [
            (0, 66, 2, 0),
            (7, 16, 8, 4),
            (19, 6, 20, 12),
            (45, 2, 46, 40),
            (67, 1, 68, 64),
            (131, 1, 132, 0),
        ] {
            assert!(rows.contains(&row), "{row:?}");
        }
    }

    /// (groups asked for, minimum, groups, SMs in each, SMs left), from the record.
    #[test]
    fn fewer_groups_than_fit_leave_more_over() {
        let topology = &H200.topology;
        for (wanted, minimum, groups, each, left) in [
            (1, 8, 1, 8, 124),
            (1, 20, 1, 24, 108),
            (1, 132, 1, 132, 0),
            (2, 16, 2, 16, 100),
            (3, 64, 2, 64, 4),
            (4, 32, 4, 32, 4),
            (8, 20, 5, 24, 12),
            (16, 8, 15, 8, 12),
            (17, 16, 8, 16, 4),
            (40, 100, 1, 104, 28),
        ] {
            let split =
                topology.split(topology.all(), false, Some(wanted), 0, minimum).expect("fits");
            let got = (split.groups.len() as u32, split.groups[0].len(), split.remainder.len());
            assert_eq!(got, (groups, each, left), "{wanted} groups of {minimum}");
        }
    }

    #[test]
    fn impossible_splits_are_refused() {
        let topology = &H200.topology;
        for flags in [0, 1, 2, 4] {
            assert_eq!(
                topology.split(topology.all(), false, None, flags, 133),
                Err(SplitError::Size)
            );
        }
        assert_eq!(topology.split(topology.all(), false, None, 3, 0), Err(SplitError::Flags));
        assert_eq!(
            topology.split(recorded("0 1 2 3"), false, None, 0, 0).map(|split| split.groups.len()),
            Ok(1)
        );
    }

    #[test]
    fn units_hold_the_recorded_sms() {
        let units = H200.topology.coarse_units();
        assert_eq!(units.len(), 15);
        for (unit, sms) in [
            (0, "0 1 16 17 32 33 48 49"),
            (1, "2 3 18 19 34 35 50 51"),
            (7, "14 15 30 31 46 47 62 63"),
            (8, "64 65 78 79 92 93 106 107"),
            (11, "70 71 84 85 98 99 112 113"),
            (14, "76 77 90 91 104 105 118 119"),
        ] {
            assert_eq!(units[unit], recorded(sms), "unit {unit}");
        }
        let split = H200.topology.split(H200.topology.all(), false, None, 0, 8).expect("fits");
        assert_eq!(split.groups, units);
        assert_eq!(ids(split.remainder), (120..132).collect::<Vec<_>>());
    }

    #[test]
    fn fine_units_hold_the_recorded_sms() {
        let units = H200.topology.fine_units();
        assert_eq!(units.len(), 66);
        for (unit, sms) in [
            (0, "0 1"),
            (1, "2 3"),
            (2, "4 5"),
            (7, "14 15"),
            (8, "124 125"),
            (31, "54 55"),
            (32, "56 57"),
            (33, "58 59"),
            (40, "72 73"),
            (65, "122 123"),
        ] {
            assert_eq!(units[unit], recorded(sms), "fine unit {unit}");
        }
        let scattered = (0..8).fold(SmSet::default(), |set, index| set.union(units[index * 4]));
        assert_eq!(scattered, recorded("0 1 8 9 16 17 24 25 32 33 40 41 48 49 124 125"));
    }

    #[test]
    fn groups_and_nested_groups_hold_the_recorded_sms() {
        let topology = &H200.topology;
        let direct = topology.split(topology.all(), false, Some(1), 0, 24).expect("fits");
        assert_eq!(
            direct.groups[0],
            recorded("0 1 2 3 4 5 16 17 18 19 20 21 32 33 34 35 36 37 48 49 50 51 52 53")
        );
        let half = topology.split(topology.all(), false, Some(1), 0, 64).expect("fits");
        assert_eq!(ids(half.groups[0]), (0..64).collect::<Vec<_>>());

        let parent = topology.split(topology.all(), false, Some(1), 0, 48).expect("fits").groups[0];
        let nested = topology.split(parent, false, Some(2), 0, 16).expect("fits");
        assert_eq!(nested.groups[0], recorded("0 1 4 5 16 17 20 21 32 33 36 37 48 49 52 53"));
        assert_eq!(nested.groups[1], recorded("2 3 6 7 18 19 22 23 34 35 38 39 50 51 54 55"));
        assert_eq!(nested.remainder, recorded("8 9 10 11 24 25 26 27 40 41 42 43 56 57 58 59"));

        let fine = topology.split(topology.coarse_units()[0], false, None, 1, 2).expect("fits");
        assert_eq!(fine.groups.len(), 4);
        assert_eq!(fine.groups[..2], [recorded("0 1"), recorded("16 17")]);
    }

    #[test]
    fn clusters_are_the_recorded_ones() {
        let topology = &H200.topology;
        let counts = |resources: &[SmSet]| {
            let sms = resources.iter().fold(SmSet::default(), |all, &sms| all.union(sms));
            let together = resources
                .iter()
                .fold(SmSet::default(), |all, &sms| all.union(topology.coscheduled(sms)));
            [2, 4, 8].map(|size| topology.clusters(sms, together, false, size) * 2)
        };
        let split = |count, size| {
            let split = topology.split(topology.all(), false, Some(count), 0, size);
            split.expect("it fits")
        };
        assert_eq!(counts(&[topology.all()]), [132, 62, 30]);
        let half = split(1, 64);
        assert_eq!(counts(&half.groups), [64, 32, 16]);
        assert_eq!(counts(&[half.remainder]), [68, 30, 14]);
        let (direct, units) = (split(1, 24), split(15, 8));
        assert_eq!(counts(&[direct.remainder]), [108, 50, 24]);
        let composed: Vec<SmSet> =
            units.groups[3..].iter().copied().chain([units.remainder]).collect();
        assert_eq!(counts(&composed), [108, 48, 24]);
        assert_eq!(counts(&[units.remainder]), [12, 0, 0]);
        let two = split(2, 32);
        assert_eq!(counts(&[two.groups[0], two.remainder]), [100, 46, 22]);
        assert_eq!(counts(&[units.groups[3], split(8, 16).groups[1]]), [24, 10, 4]);
        let fine = topology.fine_units();
        assert_eq!(counts(&[fine[0], fine[1], fine[2]]), [6, 0, 0]);
        assert_eq!(counts(&[fine[0], units.groups[5]]), [10, 4, 2]);
        assert_eq!(counts(&[fine[0], units.groups[0]]), [8, 4, 2]);
        assert_eq!(counts(&[units.groups[0], units.groups[0]]), [8, 4, 2]);
    }
}

//! Units: the pieces that a device is cut into.

use std::fmt;
use std::iter;
use std::sync::Arc;

use smallvec::SmallVec;

use super::structure::GroupParams;

/// The size of the units that a device is cut into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// Units of SMs that are scheduled together, so that clusters fit: 8 SMs on Hopper.
    #[default]
    Coarse,
    /// The smallest units that the driver makes: 2 SMs on Hopper. Clusters of more than 2 blocks may not fit.
    Fine,
    /// Units for the largest clusters that the device can run. On an H200, these units equal the coarse units
    /// (recorded, driver 580.159.04).
    LargestClusters,
}

impl Granularity {
    /// Every granularity, the default first.
    pub const ALL: [Granularity; 3] =
        [Granularity::Coarse, Granularity::Fine, Granularity::LargestClusters];
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Granularity::Coarse => "coarse",
            Granularity::Fine => "fine",
            Granularity::LargestClusters => "largest-cluster",
        })
    }
}

/// The way in which a device is cut into units.
#[derive(Clone, Debug, Eq)]
pub(crate) enum Cut {
    /// Pieces of equal size. The pieces are the smallest possible, unless the driver cannot create a context
    /// from several pieces.
    Equal {
        granularity: Granularity,
        /// The minimum number of SMs per piece; 0 for the smallest possible pieces.
        size: u32,
        /// The number of pieces of that size before the rest; 0 for as many as possible.
        pieces: u32,
    },
    /// The groups of a structured request, in order, and the SMs left over.
    Structured {
        /// The group's SMs that were split; `None` if the SMs of the device were split.
        within: Option<Arc<Placement>>,
        groups: Arc<[GroupParams]>,
    },
}

/// Written by hand because the derived function is not inlined, and every split compares cuts several times.
impl PartialEq for Cut {
    #[inline]
    fn eq(&self, other: &Cut) -> bool {
        match (self, other) {
            (
                Cut::Equal { granularity, size, pieces },
                Cut::Equal { granularity: other_granularity, size: other_size, pieces: others },
            ) => (granularity, size, pieces) == (other_granularity, other_size, others),
            (
                Cut::Structured { within, groups },
                Cut::Structured { within: other_within, groups: other_groups },
            ) => within == other_within && groups == other_groups,
            _ => false,
        }
    }
}

impl Cut {
    /// Returns the cut into the smallest pieces.
    pub(crate) const fn smallest(granularity: Granularity) -> Cut {
        Cut::Equal { granularity, size: 0, pieces: 0 }
    }

    /// Returns the granularity if pieces of this cut can be combined into one group.
    pub(crate) fn granularity(&self) -> Option<Granularity> {
        match self {
            Cut::Equal { granularity, .. } => Some(*granularity),
            Cut::Structured { .. } => None,
        }
    }
}

impl Default for Cut {
    fn default() -> Cut {
        Cut::smallest(Granularity::default())
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Equal { granularity, size: 0, .. } => write!(f, "{granularity} units"),
            Cut::Equal { granularity, size, pieces: 0 } => {
                write!(f, "{granularity} groups of {size} SMs")
            }
            Cut::Equal { granularity, size, pieces } => {
                write!(f, "{pieces} {granularity} groups of {size} SMs and the rest")
            }
            Cut::Structured { groups, .. } => {
                let counts: Vec<String> = groups.iter().map(ToString::to_string).collect();
                write!(f, "structured groups of {} SMs", counts.join(", "))
            }
        }
    }
}

/// The number of SMs in each unit of a cut device.
///
/// Units of equal size come first, and the rest comes last. An H200 has 15 coarse units of 8 SMs and one of
/// 12 SMs, or 66 fine units of 2 SMs each. In a structured request, each group is one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitCounts {
    counts: Box<[u32]>,
    /// The SMs of a regular unit. For structured groups, the smallest number of SMs that are scheduled
    /// together.
    size: u32,
}

impl UnitCounts {
    /// Creates the counts. `size` must not be 0.
    pub(crate) fn new(counts: Box<[u32]>, size: u32) -> UnitCounts {
        UnitCounts { counts, size }
    }

    /// Returns the SMs of each unit.
    pub(crate) fn counts(&self) -> &[u32] {
        &self.counts
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the SMs of all units together.
    pub(crate) fn total(&self) -> u32 {
        self.counts.iter().sum()
    }
}

/// The sizes of a device's units, with methods that round numbers of SMs to whole units.
///
/// An H200 has 132 SMs: 15 units of 8 SMs, and an odd unit of the remaining 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UnitSizes {
    /// The number of all SMs.
    pub sms: u32,
    /// The SMs of a regular unit.
    pub unit: u32,
    /// The SMs of the odd unit, or of all odd units together; 0 if there is none.
    pub odd: u32,
}

impl UnitSizes {
    /// Computes the sizes from the number of SMs in each unit, which
    /// [`SmResource::unit_counts`](crate::resource::SmResource::unit_counts) returns.
    #[must_use]
    pub fn of(counts: &[u32]) -> UnitSizes {
        let unit = counts.first().copied().unwrap_or(1);
        let odd = counts.iter().filter(|count| **count != unit).sum();
        UnitSizes { sms: counts.iter().sum(), unit, odd }
    }

    /// Returns the smallest number of SMs that is at least `sms` and consists of whole units. If `with_odd`
    /// is true, the odd unit is included when that gives fewer SMs. The result can exceed the SMs of the
    /// device.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx::resource::UnitSizes;
    ///
    /// let h200 = UnitSizes { sms: 132, unit: 8, odd: 12 };
    /// assert_eq!(h200.round_up(50, false), 56);
    /// assert_eq!(h200.round_up(50, true), 52);
    /// assert_eq!(h200.round_down(50, true), 48);
    /// ```
    #[must_use]
    pub fn round_up(self, sms: u32, with_odd: bool) -> u32 {
        let unit = self.unit.max(1);
        let regular = sms.div_ceil(unit).saturating_mul(unit);
        match with_odd {
            true => {
                let beside = sms.saturating_sub(self.odd).div_ceil(unit).saturating_mul(unit);
                regular.min(self.odd.saturating_add(beside))
            }
            false => regular,
        }
    }

    /// Returns the largest number of SMs that is at most `sms` and consists of whole units. If `with_odd` is
    /// true, the odd unit is included when that gives more SMs. If `sms` is at least the number of all SMs,
    /// returns all of them.
    #[must_use]
    pub fn round_down(self, sms: u32, with_odd: bool) -> u32 {
        if sms >= self.sms {
            return self.sms;
        }
        let unit = self.unit.max(1);
        let beside = sms.checked_sub(self.odd).filter(|_| with_odd);
        let with_odd = beside.map_or(0, |rest| self.odd + rest / unit * unit);
        with_odd.max(sms / unit * unit)
    }

    /// Returns the units that have exactly `sms` SMs together: the number of regular units, and whether the
    /// odd unit is included. Returns `None` if no combination of units has exactly `sms` SMs.
    #[must_use]
    pub fn exactly(self, sms: u32) -> Option<(u32, bool)> {
        let unit = self.unit.max(1);
        let most = self.sms.saturating_sub(self.odd);
        let is_regular = |count: &u32| count.is_multiple_of(unit) && *count <= most;
        if is_regular(&sms) {
            return Some((sms / unit, false));
        }
        let regular = sms.checked_sub(self.odd).filter(is_regular)?;
        Some((regular / unit, true))
    }
}

/// A choice of SMs: some of the units that a cut of a device gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) cut: Cut,
    /// The indices of the units, in ascending order.
    pub(crate) members: Vec<usize>,
}

/// A set of a device's units, with one bit per unit. Two words are enough for every device so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitSet(SmallVec<[u64; 2]>);

const WORD: usize = u64::BITS as usize;

impl UnitSet {
    fn empty(units: usize) -> UnitSet {
        UnitSet(SmallVec::from_elem(0, units.div_ceil(WORD)))
    }

    /// Returns the set of `members` on a device of `units` units.
    pub(crate) fn of(units: usize, members: impl IntoIterator<Item = usize>) -> UnitSet {
        UnitSet::empty(units).subset(members)
    }

    /// Returns the set of `members` on the same device.
    pub(crate) fn subset(&self, members: impl IntoIterator<Item = usize>) -> UnitSet {
        let mut set = UnitSet(SmallVec::from_elem(0, self.0.len()));
        let words = set.0.as_mut_slice();
        members.into_iter().for_each(|unit| words[unit / WORD] |= 1 << (unit % WORD));
        set
    }

    /// Returns the set of all units of a device that has `units` units.
    #[inline]
    pub(crate) fn all(units: usize) -> UnitSet {
        let mut set = UnitSet(SmallVec::from_elem(u64::MAX, units.div_ceil(WORD)));
        if let Some(last) = set.0.last_mut() {
            // Clear the bits beyond the last unit.
            *last >>= (WORD - units % WORD) % WORD;
        }
        set
    }

    pub(super) fn contains(&self, unit: usize) -> bool {
        self.0.get(unit / WORD).is_some_and(|word| word >> (unit % WORD) & 1 == 1)
    }

    /// Removes units.
    #[inline]
    pub(super) fn take_out<'a>(&mut self, units: impl IntoIterator<Item = &'a usize>) {
        let words = self.0.as_mut_slice();
        units.into_iter().for_each(|unit| words[unit / WORD] &= !(1 << (unit % WORD)));
    }

    /// Adds the units of another set.
    pub(crate) fn add(&mut self, other: &UnitSet) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(ours, theirs)| *ours |= theirs);
    }

    /// Removes the units of another set. Returns whether any units were removed.
    pub(crate) fn remove(&mut self, other: &UnitSet) -> bool {
        let mut removed = false;
        for (ours, theirs) in self.0.iter_mut().zip(other.0.iter()) {
            removed |= *ours & theirs != 0;
            *ours &= !theirs;
        }
        removed
    }

    /// Returns the units in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        let mut words = self.0.iter().copied();
        let (mut first, mut left) = (0, words.next().unwrap_or(0));
        iter::from_fn(move || {
            while left == 0 {
                left = words.next()?;
                first += WORD;
            }
            let unit = first + left.trailing_zeros() as usize;
            left &= left - 1;
            Some(unit)
        })
    }

    /// Returns whether the sets have a unit in common.
    pub(crate) fn overlaps(&self, other: &UnitSet) -> bool {
        self.0.iter().zip(other.0.iter()).any(|(ours, theirs)| ours & theirs != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::UnitSizes;

    #[test]
    fn counts_are_rounded_to_whole_units() {
        let sizes = UnitSizes::of(&[[8; 15].as_slice(), &[12]].concat());
        assert_eq!((sizes.sms, sizes.unit, sizes.odd), (132, 8, 12));
        let up = |odd, sms: [u32; 5]| sms.map(|sms| sizes.round_up(sms, odd));
        let down = |odd, sms: [u32; 5]| sms.map(|sms| sizes.round_down(sms, odd));
        assert_eq!(up(true, [1, 8, 9, 13, 50]), [8, 8, 12, 16, 52]);
        assert_eq!(up(false, [1, 8, 9, 13, 50]), [8, 8, 16, 16, 56]);
        assert_eq!(down(true, [4, 11, 12, 50, 200]), [0, 8, 12, 48, 132]);
        assert_eq!(down(false, [4, 11, 12, 50, 132]), [0, 8, 8, 48, 132]);
        let exact = [8, 12, 20, 10, 120, 132, 140].map(|sms| sizes.exactly(sms));
        let (odd, all) = (Some((1, true)), Some((15, true)));
        assert_eq!(
            exact,
            [Some((1, false)), Some((0, true)), odd, None, Some((15, false)), all, None]
        );
    }
}

//! Units: the pieces that a device is cut into.

use std::fmt;
use std::iter;
use std::sync::Arc;

use smallvec::SmallVec;

use super::structure::GroupParams;

/// How finely a device is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// SMs that are scheduled together stay together: 8 of them on Hopper, so that clusters fit.
    #[default]
    Coarse,
    /// As fine as the driver can: 2 SMs on Hopper, where clusters of more than 2 blocks may not fit.
    Fine,
    /// Units for the largest clusters that the device can run, where the driver makes a difference;
    /// on an H200 they are the coarse ones (recorded on driver 580.159.04).
    LargestClusters,
}

impl Granularity {
    /// Every granularity, from the one that is used by default.
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

/// Into what a device is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Equal pieces: the smallest, unless the driver cannot make contexts of several.
    Equal {
        granularity: Granularity,
        /// The least SMs of a piece; 0 for the smallest that there are.
        size: u32,
        /// How many pieces of that size, before the rest; 0 for as many as there are.
        pieces: u32,
    },
    /// The groups of a structured request, in order, and what they left.
    Structured {
        /// The SMs that were split; `None` for the device's.
        within: Option<Arc<Placement>>,
        groups: Arc<[GroupParams]>,
    },
}

impl Cut {
    /// The smallest pieces.
    pub(crate) const fn smallest(granularity: Granularity) -> Cut {
        Cut::Equal { granularity, size: 0, pieces: 0 }
    }

    /// The granularity of pieces that can be put together.
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

/// The SMs of each unit of a device that is cut in some way.
///
/// Equal units come first, and at the end whatever was left: on an H200 the smallest are 15 of 8 SMs
/// and one of 12, or 66 of 2. Those of a structured request are its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitCounts {
    counts: Box<[u32]>,
    /// The SMs of an equal unit; of structured groups the least that is scheduled together.
    size: u32,
}

impl UnitCounts {
    /// The size of equal units must not be 0.
    pub(crate) fn new(counts: Box<[u32]>, size: u32) -> UnitCounts {
        UnitCounts { counts, size }
    }

    /// The SMs of each unit.
    pub(crate) fn counts(&self) -> &[u32] {
        &self.counts
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The SMs of all units.
    pub(crate) fn total(&self) -> u32 {
        self.counts.iter().sum()
    }
}

/// The sizes of the units that SMs are given in. Counts are rounded to whole units here.
///
/// An H200's 132 SMs are 15 units of 8 SMs and an odd one of 12, whose SMs whole units leave over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UnitSizes {
    /// All SMs.
    pub sms: u32,
    /// The SMs of a unit.
    pub unit: u32,
    /// The SMs of the odd unit, or of all odd ones together; 0 if there is none.
    pub odd: u32,
}

impl UnitSizes {
    /// The sizes of units with these SMs, as
    /// [`SmResource::unit_counts`](crate::resource::SmResource::unit_counts) returns them.
    #[must_use]
    pub fn of(counts: &[u32]) -> UnitSizes {
        let unit = counts.first().copied().unwrap_or(1);
        let odd = counts.iter().filter(|count| **count != unit).sum();
        UnitSizes { sms: counts.iter().sum(), unit, odd }
    }

    /// The fewest SMs that are at least this many and make up whole units, with the odd unit among them if
    /// that is allowed and gives fewer. It may be more than there are.
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

    /// The most SMs that are at most this many and make up whole units, with the odd unit among them if that
    /// is allowed and gives more. From all SMs on it is all of them.
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

    /// The units that make up exactly this many SMs, and whether the odd one is among them; `None` if no units
    /// do.
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

/// Which SMs: units of a device that is cut in some way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) cut: Cut,
    /// The units' indices, in order.
    pub(crate) members: Vec<usize>,
}

/// Some of a device's units, a bit each. Two words are enough for every device so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitSet(SmallVec<[u64; 2]>);

const WORD: usize = u64::BITS as usize;

impl UnitSet {
    fn empty(units: usize) -> UnitSet {
        UnitSet(SmallVec::from_elem(0, units.div_ceil(WORD)))
    }

    /// Certain ones of so many units.
    pub(crate) fn of(units: usize, members: impl IntoIterator<Item = usize>) -> UnitSet {
        UnitSet::empty(units).subset(members)
    }

    /// Certain units of the device that this set is about.
    pub(crate) fn subset(&self, members: impl IntoIterator<Item = usize>) -> UnitSet {
        let mut set = UnitSet(SmallVec::from_elem(0, self.0.len()));
        members.into_iter().for_each(|unit| set.0[unit / WORD] |= 1 << (unit % WORD));
        set
    }

    /// All of so many units.
    pub(crate) fn all(units: usize) -> UnitSet {
        let mut set = UnitSet(SmallVec::from_elem(u64::MAX, units.div_ceil(WORD)));
        if let Some(last) = set.0.last_mut() {
            // Those that there are not.
            *last >>= (WORD - units % WORD) % WORD;
        }
        set
    }

    pub(super) fn contains(&self, unit: usize) -> bool {
        self.0.get(unit / WORD).is_some_and(|word| word >> (unit % WORD) & 1 == 1)
    }

    /// Takes some units out.
    pub(super) fn take_out<'a>(&mut self, units: impl IntoIterator<Item = &'a usize>) {
        units.into_iter().for_each(|unit| self.0[unit / WORD] &= !(1 << (unit % WORD)));
    }

    /// Adds the units of another set.
    pub(crate) fn add(&mut self, other: &UnitSet) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(ours, theirs)| *ours |= theirs);
    }

    /// Takes the units out that are in both, and returns whether there were any.
    pub(crate) fn remove(&mut self, other: &UnitSet) -> bool {
        let mut removed = false;
        for (ours, theirs) in self.0.iter_mut().zip(other.0.iter()) {
            removed |= *ours & theirs != 0;
            *ours &= !theirs;
        }
        removed
    }

    /// The units, in order.
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

    /// Whether some units are in both.
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

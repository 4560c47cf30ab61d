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

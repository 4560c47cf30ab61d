//! Sets of SMs.

/// A set of SM ids. All ids are below 256, because no simulated GPU has more than 256 SMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SmSet([u64; 4]);

impl SmSet {
    /// Returns the number of SMs.
    pub(crate) fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == [0; 4]
    }

    pub(crate) fn union(self, other: SmSet) -> SmSet {
        self.zip(other, |a, b| a | b)
    }

    pub(crate) fn intersection(self, other: SmSet) -> SmSet {
        self.zip(other, |a, b| a & b)
    }

    pub(crate) fn difference(self, other: SmSet) -> SmSet {
        self.zip(other, |a, b| a & !b)
    }

    pub(crate) fn is_subset(self, other: SmSet) -> bool {
        self.difference(other).is_empty()
    }

    /// Returns the ids in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        (0..256_u32).filter(move |&sm| self.0[(sm / 64) as usize] >> (sm % 64) & 1 == 1)
    }

    fn zip(self, other: SmSet, combine: impl Fn(u64, u64) -> u64) -> SmSet {
        SmSet(std::array::from_fn(|word| combine(self.0[word], other.0[word])))
    }
}

impl FromIterator<u32> for SmSet {
    fn from_iter<I: IntoIterator<Item = u32>>(sms: I) -> SmSet {
        let mut set = SmSet::default();
        for sm in sms {
            set.0[(sm / 64) as usize] |= 1 << (sm % 64);
        }
        set
    }
}

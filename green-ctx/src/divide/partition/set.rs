//! The partitions of one request.

use std::ops::Index;
use std::{slice, vec};

use super::Partition;

/// The partitions of one request, in the order of the request. The partition that takes the rest comes last.
#[derive(Clone, Debug)]
pub struct Partitions {
    partitions: Vec<Partition>,
}

impl Partitions {
    /// Returns the partition with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.name() == name)
    }

    /// Returns the number of partitions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Returns whether there are no partitions. A request that takes only the rest gives no partition if no
    /// SM is free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Returns an iterator over the partitions.
    pub fn iter(&self) -> slice::Iter<'_, Partition> {
        self.partitions.iter()
    }

    /// Returns the partitions as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[Partition] {
        &self.partitions
    }
}

impl FromIterator<Partition> for Partitions {
    fn from_iter<I: IntoIterator<Item = Partition>>(partitions: I) -> Partitions {
        Partitions { partitions: partitions.into_iter().collect() }
    }
}

/// Returns the partition with this name.
///
/// # Panics
///
/// Panics if no partition has the name.
impl Index<&str> for Partitions {
    type Output = Partition;

    fn index(&self, name: &str) -> &Partition {
        let Some(partition) = self.get(name) else {
            let names: Vec<&str> = self.iter().map(Partition::name).collect();
            panic!("there is no partition {name}; there are {}", names.join(", "));
        };
        partition
    }
}

/// Returns the partition at an index.
///
/// # Panics
///
/// Panics if the index is out of range.
impl Index<usize> for Partitions {
    type Output = Partition;

    fn index(&self, index: usize) -> &Partition {
        &self.partitions[index]
    }
}

impl IntoIterator for Partitions {
    type Item = Partition;
    type IntoIter = vec::IntoIter<Partition>;

    fn into_iter(self) -> vec::IntoIter<Partition> {
        self.partitions.into_iter()
    }
}

impl<'a> IntoIterator for &'a Partitions {
    type Item = &'a Partition;
    type IntoIter = slice::Iter<'a, Partition>;

    fn into_iter(self) -> slice::Iter<'a, Partition> {
        self.iter()
    }
}

//! The partitions of one request.

use std::ops::Index;
use std::{slice, vec};

use super::Partition;

/// The partitions of one request, by name and by position: in the request's order, with the one that
/// takes the rest last.
#[derive(Clone, Debug)]
pub struct Partitions {
    partitions: Vec<Partition>,
}

impl Partitions {
    /// The partition of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.name() == name)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Whether there is none, as for a rest of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> slice::Iter<'_, Partition> {
        self.partitions.iter()
    }

    /// All of them.
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

/// # Panics
///
/// Where no partition has the name.
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

/// # Panics
///
/// Where there are fewer.
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

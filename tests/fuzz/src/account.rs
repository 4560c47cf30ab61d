//! Who has which SMs, as counted handles that mirror those of green-ctx.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// SM ids as bits; no part has 256 SMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sms([u64; 4]);

impl Sms {
    /// These SMs.
    #[must_use]
    pub fn of(ids: &[u32]) -> Sms {
        let mut sms = Sms::default();
        ids.iter().for_each(|id| sms.0[(id / 64) as usize % 4] |= 1 << (id % 64));
        sms
    }

    /// Those that are in either.
    #[must_use]
    pub fn and(self, other: Sms) -> Sms {
        Sms(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Those that are not in the other.
    #[must_use]
    pub fn but(self, other: Sms) -> Sms {
        Sms(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Whether some are in both.
    #[must_use]
    pub fn meet(self, other: Sms) -> bool {
        self.but(other) != self
    }

    /// Whether all are in the other.
    #[must_use]
    pub fn within(self, other: Sms) -> bool {
        self.but(other) == Sms::default()
    }

    /// How many they are.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Sms::default()
    }

    fn ids(self) -> impl Iterator<Item = usize> {
        (0..256).filter(move |id| self.0[id / 64] >> (id % 64) & 1 == 1)
    }
}

/// Which SMs somebody has, by how many. Of some it is only known how many they are.
pub struct Table {
    had: [AtomicU32; 256],
    /// How many SMs somebody has of which nobody knows which they are.
    unknown: AtomicU32,
}

impl Default for Table {
    fn default() -> Table {
        Table { had: std::array::from_fn(|_| AtomicU32::new(0)), unknown: AtomicU32::new(0) }
    }
}

impl Table {
    /// How many SMs somebody has.
    #[must_use]
    pub fn count(&self) -> u32 {
        let known = self.had.iter().filter(|count| count.load(Ordering::Relaxed) > 0).count();
        u32::try_from(known).unwrap_or(u32::MAX) + self.unknown.load(Ordering::Relaxed)
    }
}

/// What somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// These SMs.
    Known(Sms),
    /// So many SMs of their own.
    Unknown(u32),
}

/// SMs that the device's ledger has as somebody's, until the last share of this is dropped.
pub struct Held {
    share: Share,
    table: Arc<Table>,
    /// What the SMs were divided from, if that is held until the last of its parts is gone.
    _parent: Option<Arc<Held>>,
}

impl Held {
    /// Takes SMs.
    pub fn take(table: &Arc<Table>, share: Share) -> Arc<Held> {
        Held::new(share, Arc::clone(table), None)
    }

    /// Uses SMs of a parent, which holds them.
    pub fn within(parent: &Arc<Held>) -> Arc<Held> {
        let (table, parent) = (Arc::clone(&parent.table), Some(Arc::clone(parent)));
        Held::new(Share::Known(Sms::default()), table, parent)
    }

    /// Part of the SMs of a group that is divided for good: what no part takes is free again.
    pub fn part(self: &Arc<Held>, share: Share) -> Arc<Held> {
        let within = self.share == Share::Known(Sms::default());
        let share = if within { self.share } else { share };
        Held::new(share, Arc::clone(&self.table), self._parent.clone())
    }

    fn new(share: Share, table: Arc<Table>, _parent: Option<Arc<Held>>) -> Arc<Held> {
        match share {
            Share::Known(sms) => sms.ids().for_each(|id| {
                table.had[id].fetch_add(1, Ordering::Relaxed);
            }),
            Share::Unknown(count) => {
                table.unknown.fetch_add(count, Ordering::Relaxed);
            }
        }
        Arc::new(Held { share, table, _parent })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.share {
            Share::Known(sms) => sms.ids().for_each(|id| {
                self.table.had[id].fetch_sub(1, Ordering::Relaxed);
            }),
            Share::Unknown(count) => {
                self.table.unknown.fetch_sub(count, Ordering::Relaxed);
            }
        }
    }
}

/// The SMs of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Those that are nobody else's.
    pub floor: Sms,
    /// All that it may use.
    pub ceiling: Sms,
}

/// A partition from the making of its context to the last handle.
pub struct Partition {
    /// Its number, never used again.
    pub number: u32,
    /// The driver's number of its context, which the next partition of the same SMs may get.
    pub context_id: u64,
    /// Its SMs; `None` where only its work will show them, and they are its own.
    pub place: Option<Place>,
    /// The device that it is on.
    pub device: usize,
    /// Whether only the driver can split its SMs.
    pub structured: bool,
    /// The set that it is a plan's partition of.
    pub set: Option<u32>,
    /// What it has.
    pub held: Arc<Held>,
    /// The partition whose workqueues it uses, and keeps.
    pub queues: Option<Arc<Partition>>,
}

impl Partition {
    /// Whether it has all of its SMs for itself.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.place.is_none_or(|place| place.floor == place.ceiling)
    }
}

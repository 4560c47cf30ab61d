//! The SMs that each object holds, as counted handles that mirror those of green-ctx.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use green_ctx::context::{Context, WeakContext};

/// A set of SM ids below 256, as bits. A simulated part has at most 256 SMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sms([u64; 4]);

impl Sms {
    /// Creates the set of these ids.
    #[must_use]
    pub fn of(ids: &[u32]) -> Sms {
        let mut sms = Sms::default();
        ids.iter().for_each(|id| sms.0[(id / 64) as usize % 4] |= 1 << (id % 64));
        sms
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn and(self, other: Sms) -> Sms {
        Sms(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Returns the SMs that are not in `other`.
    #[must_use]
    pub fn but(self, other: Sms) -> Sms {
        Sms(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Returns whether the sets have an SM in common.
    #[must_use]
    pub fn meet(self, other: Sms) -> bool {
        self.but(other) != self
    }

    /// Returns whether all SMs are in `other`.
    #[must_use]
    pub fn within(self, other: Sms) -> bool {
        self.but(other) == Sms::default()
    }

    /// Returns the number of SMs.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Sms::default()
    }

    fn ids(self) -> impl Iterator<Item = usize> {
        (0..256).filter(move |id| self.0[id / 64] >> (id % 64) & 1 == 1)
    }
}

/// The SMs of a device that are held: the number of holders of each SM, and the number of held SMs whose ids
/// are unknown.
pub struct Table {
    had: [AtomicU32; 256],
    /// The number of held SMs whose ids are unknown.
    unknown: AtomicU32,
}

impl Default for Table {
    fn default() -> Table {
        Table { had: std::array::from_fn(|_| AtomicU32::new(0)), unknown: AtomicU32::new(0) }
    }
}

impl Table {
    /// Returns the number of held SMs.
    #[must_use]
    pub fn count(&self) -> u32 {
        let known = self.had.iter().filter(|count| count.load(Ordering::Relaxed) > 0).count();
        u32::try_from(known).unwrap_or(u32::MAX) + self.unknown.load(Ordering::Relaxed)
    }
}

/// The SMs that an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// SMs with known ids.
    Known(Sms),
    /// A number of SMs, held exclusively, with unknown ids.
    Unknown(u32),
}

/// SMs that the ledger must count as held until the last clone of this handle is dropped.
pub struct Held {
    share: Share,
    table: Arc<Table>,
    /// The parent whose SMs these are, if it is held until its last part is dropped.
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

    /// Takes part of the SMs of a group that is consumed by its split. SMs that no part takes are free again.
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
    /// The SMs that no other partition may use.
    pub floor: Sms,
    /// All SMs that it may use.
    pub ceiling: Sms,
}

/// The library's object of a driver context, from its first handle to its last.
pub struct Partition {
    /// The driver's id of the context. The next partition on the same SMs may have the same id.
    pub context_id: u64,
    /// The device's ordinal.
    pub device: usize,
    /// The object.
    pub object: WeakContext,
    /// Unset while no partition has the context: a kept stream of an idle context was wrapped. The next partition on
    /// its SMs then leases this object.
    lease: OnceLock<Lease>,
}

/// A partition's use of a driver context.
pub struct Lease {
    /// A unique number.
    pub number: u32,
    /// The SMs; `None` if only a launch will show them. In that case the partition holds them exclusively.
    pub place: Option<Place>,
    /// Whether the SMs come from the driver's structured split.
    pub structured: bool,
    /// The plan set, if this is a partition of a plan.
    pub set: Option<u32>,
    /// The SMs that it holds.
    pub held: Arc<Held>,
    /// The partition whose workqueues it uses and keeps alive.
    pub queues: Option<Arc<Partition>>,
}

impl Partition {
    /// Creates the account of an object that no partition has.
    #[must_use]
    pub fn idle(context_id: u64, context: &Context) -> Partition {
        let device = context.device().ordinal() as usize;
        Partition { context_id, device, object: context.weak(), lease: OnceLock::new() }
    }

    /// Begins the use of the object by a partition. Returns whether no other partition has it.
    pub fn begin(&self, lease: Lease) -> bool {
        self.lease.set(lease).is_ok()
    }

    /// Returns the partition's lease, or `None` while the context is idle.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.get()
    }

    /// Returns the plan set, if this is a partition of a plan.
    #[must_use]
    pub fn set(&self) -> Option<u32> {
        self.lease()?.set
    }

    /// Returns whether it holds all of its SMs exclusively.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.lease().is_some_and(|lease| lease.place.is_none_or(|it| it.floor == it.ceiling))
    }
}

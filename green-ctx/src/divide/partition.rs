//! Partitions: contexts on their own SMs, each with a name and a stream.

mod close;
mod set;
mod shared;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::divide::resource::Resources;
use crate::handle::context::Context;
use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::ledger::{GroupUnits, Holder, Share, UnitSet};
use crate::work::stream::{Stream, StreamOptions};

pub use set::Partitions;
pub(crate) use shared::SharedContext;

/// A part of a device's SMs with a context and a stream: what is submitted to its streams runs there
/// and nowhere else. Clones share it.
///
/// Its [`floor`](Partition::floor) is its own: no block of another open partition runs there. Above its
/// floor it may use SMs that others use too, up to its [ceiling](Partition::sm_count). That holds among
/// the open partitions of this process, of plans among those of the active one. It does not bind the
/// primary context's streams, foreign contexts, and plans that were switched away from without a fence;
/// [`Watch`](crate::watch::Watch) finds those.
///
/// The last handle gives the SMs back, its streams included. Work that still runs goes on, and whoever
/// gets the SMs for a floor waits for it on the device.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, SplitRequest, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// let device = driver.device(0)?;
/// let request = SplitRequest::new().group("decode", 32..).group("prefill", ..=100);
/// let parts = device.partition(request)?;
///
/// let stream = parts["decode"].stream();
/// assert_eq!(stream.context(), parts["decode"].context());
/// assert_eq!(parts["decode"].shared_with()[0].to_string(), "prefill (100 SMs)");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Partition {
    inner: Arc<Inner>,
}

struct Inner {
    record: GroupUnits,
    /// The units of its floor.
    floor_units: UnitSet,
    /// Who shares with it in its plan.
    beside: Vec<Holder>,
    shared: Arc<SharedContext>,
}

impl Partition {
    /// The partition of a group whose context this is.
    pub(crate) fn new(
        record: GroupUnits,
        beside: Vec<Holder>,
        shared: Arc<SharedContext>,
    ) -> Partition {
        let floor_units = shared.set_of(record.floor_units());
        Partition { inner: Arc::new(Inner { record, floor_units, beside, shared }) }
    }

    pub(crate) fn shared(&self) -> &Arc<SharedContext> {
        &self.inner.shared
    }

    pub(crate) fn arc_name(&self) -> &Arc<str> {
        &self.inner.record.sms.name
    }

    /// The units of its floor.
    pub(crate) fn floor_units(&self) -> &UnitSet {
        &self.inner.floor_units
    }

    /// The name that the request gives it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.record.sms.name
    }

    /// The share that was asked for; [`Share::REST`] for what remained.
    #[must_use]
    pub fn share(&self) -> Share {
        self.inner.record.sms.share
    }

    /// The SMs that no other partition may use.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.inner.record.sms.floor
    }

    /// The SMs that it may use: its ceiling.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.inner.record.sms.sm_count
    }

    /// The units that it may use, by their places in
    /// [`SmResource::unit_counts`](crate::resource::SmResource::unit_counts).
    #[must_use]
    pub fn unit_indices(&self) -> &[usize] {
        &self.inner.record.placement.members
    }

    /// The units of its floor, by their places as above.
    #[must_use]
    pub fn floor_unit_indices(&self) -> Vec<usize> {
        self.floor_units().iter().collect()
    }

    /// Who may use SMs of this partition beside it, with how many of them each. Of a plan it is the
    /// plan's partitions, and whoever shares SMs of the set. A group that was divided again stands for
    /// its parts, by its name and with all that it shares, until the last of them is gone.
    #[must_use]
    pub fn shared_with(&self) -> Vec<Holder> {
        let mut holders = self.inner.beside.clone();
        if let Some(group) = self.context().group() {
            holders.extend(group.sharers_of(&self.inner.record.pool));
        }
        holders
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.context().device()
    }

    /// The context. Its streams take part in switches of plans, whoever makes them, from the moment on
    /// when an object of this crate stands for them.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.inner.shared.context()
    }

    /// The stream that it comes with, of the priority that the request sets.
    #[must_use]
    #[inline]
    pub fn stream(&self) -> &Stream {
        self.inner.shared.stream()
    }

    /// Makes one more stream. What holds for the first one holds for it: work of its plan waits for that
    /// of former plans, and later ones wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        self.context().create_stream(options)
    }

    /// What the driver says that the partition has.
    pub fn resources(&self) -> Resources {
        self.context().resources()
    }
}

impl PartialEq for Partition {
    fn eq(&self, other: &Partition) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Partition {}

impl Hash for Partition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("name", &self.name())
            .field("share", &format_args!("{}", self.share()))
            .field("floor", &self.floor())
            .field("sm_count", &self.sm_count())
            .finish_non_exhaustive()
    }
}

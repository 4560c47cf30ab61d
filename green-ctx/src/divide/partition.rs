//! Partitions: groups of SMs, each with a context and a stream.

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

/// A part of a device's SMs, with a context and a stream. Work in the partition's streams runs only on the
/// partition's SMs. Clones share the partition.
///
/// The [`floor`](Partition::floor) of a partition is exclusive: no block of another open partition runs on
/// the floor's SMs. Above its floor, a partition may use SMs that other partitions use too, up to its
/// [ceiling](Partition::sm_count). This guarantee covers the open partitions of this process and, in a plan
/// set, the partitions of the active plan. The guarantee does not cover streams of the primary context,
/// foreign contexts, or plans that were switched away from without a fence. A [`Watch`](crate::watch::Watch)
/// finds work that runs outside its partition.
///
/// The SMs become free when the last handle of the partition is dropped. The partition's streams count as
/// handles. Running work continues. The next partition that takes these SMs for its floor waits, on the
/// device, for work that is still running on them.
///
/// # Examples
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
    /// The units of the floor.
    floor_units: UnitSet,
    /// The partitions of the same plan that share SMs with this one.
    beside: Vec<Holder>,
    shared: Arc<SharedContext>,
}

impl Partition {
    /// Creates a partition from a group's record and the context on the group's SMs.
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

    /// Returns the units of the floor.
    pub(crate) fn floor_units(&self) -> &UnitSet {
        &self.inner.floor_units
    }

    /// Returns the name that the request gave the partition.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.record.sms.name
    }

    /// Returns the requested share; [`Share::REST`] for the partition that takes the rest.
    #[must_use]
    pub fn share(&self) -> Share {
        self.inner.record.sms.share
    }

    /// Returns the number of SMs that no other partition may use.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.inner.record.sms.floor
    }

    /// Returns the number of SMs that the partition may use: its ceiling.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.inner.record.sms.sm_count
    }

    /// Returns the units that the partition may use, as indices into
    /// [`SmResource::unit_counts`](crate::resource::SmResource::unit_counts).
    #[must_use]
    pub fn unit_indices(&self) -> &[usize] {
        &self.inner.record.placement.members
    }

    /// Returns the units of the floor, as indices into the same list as
    /// [`unit_indices`](Partition::unit_indices).
    #[must_use]
    pub fn floor_unit_indices(&self) -> Vec<usize> {
        self.floor_units().iter().collect()
    }

    /// Returns the partitions that may use SMs of this one, each with the number of common SMs.
    ///
    /// For a partition of a plan, the list contains partitions of the same plan, and partitions outside the
    /// plan set that may use the partition's SMs. A group that was divided again is listed under its own
    /// name, with all SMs that it shares, in place of its parts. Such a group stays in the list until its
    /// last part is dropped.
    #[must_use]
    pub fn shared_with(&self) -> Vec<Holder> {
        let mut holders = self.inner.beside.clone();
        if let Some(group) = self.context().group() {
            holders.extend(group.sharers_of(&self.inner.record.pool));
        }
        holders
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.context().device()
    }

    /// Returns the context.
    ///
    /// A plan switch orders the work of every stream of the context that has a [`Stream`] object.
    /// [`Stream::from_raw_borrowed`] creates such an object for a stream of another library.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.inner.shared.context()
    }

    /// Returns the partition's first stream, which is created with the partition. The stream has the priority
    /// that the request set.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// let parts = device.partition(SplitRequest::new().group("decode", 32))?;
    /// let stream = parts["decode"].stream();
    /// // SAFETY: the kernel takes no parameters.
    /// unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }?;
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[inline]
    pub fn stream(&self) -> &Stream {
        self.inner.shared.stream()
    }

    /// Creates another stream in the partition. The new stream takes part in plan switches like the first
    /// one: its work waits for work of earlier plans, and work of later plans waits for its work.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if the driver fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let parts = device.partition(SplitRequest::new().group("decode", 32))?;
    /// let urgent = parts["decode"].create_stream(StreamOptions::default().priority(-1))?;
    /// assert_eq!(urgent.context(), parts["decode"].context());
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        self.context().create_stream(options)
    }

    /// Returns the resources of the partition, as the driver reports them.
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

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

/// A part of a device's SMs, with a context and a stream. Work that is submitted to its streams runs only on
/// these SMs. Clones share the partition.
///
/// Its [`floor`](Partition::floor) is exclusive: no block of another open partition runs there. Above the
/// floor, it may use SMs that other partitions use too, up to its [ceiling](Partition::sm_count). This holds
/// among the open partitions of this process, and for plans among the partitions of the active plan. It does
/// not cover streams of the primary context, foreign contexts, and plans that were switched away from
/// without a fence. [`Watch`](crate::watch::Watch) finds their work.
///
/// The SMs are given back when the last handle is dropped, streams included. Running work continues. The
/// next partition that takes these SMs for its floor waits for that work on the device.
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
    /// Creates the partition of a group from the context on its SMs.
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
    /// For a partition of a plan, these are partitions of the same plan, and partitions outside the set that
    /// share its SMs. A group that was divided again is listed in place of its parts, by its name and with
    /// all SMs that it shares, until the last part is gone.
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
    /// A plan switch orders all streams of the context that this crate knows. It knows a stream of another
    /// library once a [`Stream`] represents it ([`Stream::from_raw_borrowed`]).
    #[must_use]
    pub fn context(&self) -> &Context {
        self.inner.shared.context()
    }

    /// Returns the stream that the partition comes with. It has the priority that the request set.
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

    /// Creates another stream in the partition. Like the first stream, it takes part in plan switches: its
    /// work waits for work of earlier plans, and later plans wait for its work.
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

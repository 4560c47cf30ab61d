//! The SMs of a device, a context or a stream: their number, the limits of a split, and the number of free
//! SMs. The module `split` makes the splits.

use std::fmt;
use std::sync::Arc;

use green_ctx_sys::{CUdevSmResource, CUdevSmResourceGroup_flags, Version};

use super::cut;
use super::split::{self, Split};
use crate::handle::device::{ComputeCapability, Device};
use crate::handle::error::{Error, Result};
use crate::handle::group::SmGroup;
use crate::ledger::{Coscheduling, DryRun, Granularity, LocalityDomain, SplitRequest, UnitSizes};

/// The SMs of a device, or those that a context or a stream was provisioned with.
///
/// An `SmResource` describes SMs but does not own them. [`split`](SmResource::split) takes SMs from the
/// device's ledger. A process has one ledger per device, so a group never gets SMs from another group's
/// floor, even if unrelated code created the other group.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let sms = device.resources().sm()?;
/// assert_eq!(sms.sm_count(), 132);
///
/// // Uneven groups, on every driver from CUDA 12.5 on.
/// let split = sms.split([8, 24, 100])?;
/// assert_eq!(sms.free_sm_count(), 0);
/// drop(split);
/// assert_eq!(sms.free_sm_count(), 132);
///
/// // What does not fit is an error, never fewer groups than asked.
/// let error = sms.split([64, 64, 64]).expect_err("192 SMs of 132");
/// assert!(error.to_string().contains("do not fit, 2 fit"));
/// assert!(error.to_string().contains("3 groups of 40 would fit"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias("CUdevSmResource", "CU_DEV_RESOURCE_TYPE_SM"))]
pub struct SmResource {
    pub(super) device: Device,
    sms: CUdevSmResource,
    min_partition: u32,
    alignment: u32,
    limits_from: LimitSource,
    /// Whether the SMs belong to a green context, and therefore to that context's group.
    pub(super) is_green: bool,
}

/// The source of the limits of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitSource {
    /// The driver reports the limits (CUDA 13.0 or newer).
    Driver,
    /// The driver is too old to report the limits, so the documented rule for the compute capability applies.
    Architecture,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitSource::Driver => "driver",
            LimitSource::Architecture => "architecture",
        })
    }
}

/// The first driver version that reports the limits of a split.
const LIMITS: Version = Version::new(13, 0);
/// The first driver version that reports flags.
const FLAGS: Version = Version::new(13, 1);
/// The first driver version whose resource descriptors accept several resources.
pub(super) const COMPOSITION: Version = Version::new(12, 5);

impl SmResource {
    pub(crate) fn of_device(device: &Device) -> Result<SmResource> {
        let sms = SmResource::new(device, *device.sms()?, false)?;
        split::hold_rest(&sms)?;
        Ok(sms)
    }

    pub(super) fn new(device: &Device, sms: CUdevSmResource, is_green: bool) -> Result<SmResource> {
        let (min_partition, alignment, limits_from) = if device.driver().version() >= LIMITS {
            (sms.minSmPartitionSize, sms.smCoscheduledAlignment, LimitSource::Driver)
        } else {
            let (least, multiple) = architecture_rule(device.compute_capability()?);
            (least, multiple, LimitSource::Architecture)
        };
        let device = device.clone();
        Ok(SmResource { device, sms, min_partition, alignment, limits_from, is_green })
    }

    /// Returns the number of SMs.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.sms.smCount
    }

    /// Returns the size of the smallest group that the driver makes by default, in SMs. Fine groups are smaller.
    /// [`limits_from`](SmResource::limits_from) returns the source of this number.
    #[must_use]
    #[doc(alias = "minSmPartitionSize")]
    pub fn min_partition(&self) -> u32 {
        self.min_partition
    }

    /// Returns the number of SMs that are scheduled together by default. From compute capability 9.0 on, most units
    /// have this size; before, units have [`min_partition`](SmResource::min_partition) SMs. An H200 also has one unit
    /// of 12 SMs, so a group need not be a multiple of 8. [`limits_from`](SmResource::limits_from) returns the source
    /// of this number.
    #[must_use]
    #[doc(alias = "smCoscheduledAlignment")]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Returns the source of [`min_partition`](SmResource::min_partition) and
    /// [`alignment`](SmResource::alignment). From CUDA 13.0 on, the driver reports these numbers. With older
    /// drivers, the numbers follow the rule for the device's compute capability, from which particular GPUs
    /// may differ. Splits do not rely on these numbers, but read the actual SM counts back from the driver.
    #[must_use]
    pub fn limits_from(&self) -> LimitSource {
        self.limits_from
    }

    /// Returns the flags of the split that the SMs come from. Before CUDA 13.1, splits have no such flags,
    /// and the result is 0.
    #[must_use]
    pub fn flags(&self) -> CUdevSmResourceGroup_flags {
        let flags = if self.device.driver().version() >= FLAGS { self.sms.flags } else { 0 };
        CUdevSmResourceGroup_flags(flags)
    }

    /// Returns the locality domain of the SMs. Returns `None` if the SMs were not split by locality domain,
    /// or if the driver is older than CUDA 13.4.
    #[must_use]
    #[doc(alias = "localityDomainId")]
    pub fn locality_domain(&self) -> Option<LocalityDomain> {
        let known = self.device.driver().version() >= cut::LOCALITY;
        cut::locality_domain(self.flags(), self.sms.localityDomainId).filter(|_| known)
    }

    /// Returns the number of SMs that are free for floors. These SMs are in no group, and their last work is
    /// recorded, so the next owner can wait for that work. Returns 0 for the SMs of a partition, and in a
    /// forked process.
    #[must_use]
    pub fn free_sm_count(&self) -> u32 {
        if self.is_green {
            return 0;
        }
        let Ok(counts) = self.device.ledger().map(|ledger| ledger.sm_counts()) else { return 0 };
        counts.map_or(self.sm_count(), |counts| counts.free)
    }

    /// Returns the number of SMs in each unit that the device is cut into at a granularity. Units of equal
    /// size come first, and the odd unit comes last. An H200 has 15 coarse units of 8 SMs and one of 12 SMs,
    /// or 66 fine units of 2 SMs each.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, resource::Granularity, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let units = device.resources().sm()?.unit_counts(Granularity::Coarse)?;
    /// assert_eq!((units.len(), units[0], units[15]), (16, 8, 12));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuDevSmResourceSplitByCount")]
    pub fn unit_counts(&self, granularity: Granularity) -> Result<Vec<u32>> {
        Ok(split::smallest(self, granularity)?.1.counts().counts().to_vec())
    }

    /// Returns the sizes of the units that [`unit_counts`](SmResource::unit_counts) lists. The result can
    /// round a number of SMs to whole units.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver fails.
    pub fn unit_sizes(&self, granularity: Granularity) -> Result<UnitSizes> {
        Ok(UnitSizes::of(split::smallest(self, granularity)?.1.counts().counts()))
    }

    /// Returns the number of SMs that each group of a structured request would get if all SMs of the device
    /// were free. If SMs are left over, the last entry is their number. This call takes no SMs.
    /// [`dry_run`](SmResource::dry_run) returns the result for the SMs that are free now.
    ///
    /// # Errors
    ///
    /// The errors of [`split`](SmResource::split), and [`Error::InvalidRequest`] for a request that is not
    /// structured.
    pub fn structured_counts(&self, request: impl Into<SplitRequest>) -> Result<Vec<u32>> {
        let request = request.into();
        request.validate()?;
        if !request.is_structured() {
            let reason = "only a structured request has counts that do not depend on free SMs; use `dry_run`";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        let counted = split::counted(self, &request)?;
        let request = counted.as_deref().unwrap_or(&request);
        Ok(split::units_for(self, request)?.1.counts().counts().to_vec())
    }

    /// Returns the result that a split would have now, without taking SMs.
    ///
    /// A dry run changes nothing. A split first tries to free more SMs: SMs in quarantine
    /// ([`DryRun::quarantined`]), and SMs of partitions that the hooks of
    /// [`Driver::on_reclaim`](crate::Driver::on_reclaim) release. A split can therefore succeed where a dry
    /// run fails.
    ///
    /// # Errors
    ///
    /// The errors of [`split`](SmResource::split).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let request = SplitRequest::new().group("decode", 17).group("prefill", ..=100);
    /// let given = device.resources().sm()?.dry_run(request)?;
    /// assert_eq!((given.groups[0].floor, given.groups[1].sm_count), (24, 100));
    /// assert_eq!(given.free_for_floors, 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dry_run(&self, request: impl Into<SplitRequest>) -> Result<DryRun> {
        self.dry_run_without(request, &[])
    }

    /// Returns the result that a split would have if these groups were dropped first. Use this method to find
    /// out whether dropping the groups would free enough SMs. Groups of other devices, and groups that were
    /// split from another group, are ignored. In all other respects, this method works like
    /// [`dry_run`](SmResource::dry_run).
    ///
    /// # Errors
    ///
    /// The errors of [`split`](SmResource::split).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let parts = device.partition(SplitRequest::new().group("decode", 100))?;
    /// let sms = device.resources().sm()?;
    /// assert!(sms.dry_run([132]).is_err());
    /// let held = parts["decode"].context().group().expect("a partition has a group");
    /// let given = sms.dry_run_without([132], &[held])?;
    /// assert_eq!(given.groups[0].sm_count, 132);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dry_run_without(
        &self,
        request: impl Into<SplitRequest>,
        groups: &[&SmGroup],
    ) -> Result<DryRun> {
        let request = request.into();
        split::would_give(self, &request, groups)
            .map_err(|error| split::corrected(self, &request, groups, error))
    }

    /// Splits the device's SMs into groups, and takes the SMs of these groups. The floors and ceilings are
    /// [rounded](crate::Share) to numbers of SMs that the device can give. Each group reports the requested share and the
    /// resulting numbers of SMs.
    ///
    /// A driver before CUDA 12.5 can create a context from only one piece of the device. With such a driver,
    /// all groups of the request must have the same size (the request may also take the rest), or all groups
    /// must share all SMs (`..`). Groups of different sizes cannot exist on the device at the same time. A
    /// request for `None` alone or for the rest alone also takes one piece. Such a request needs a device
    /// without held SMs, or a piece that other groups left.
    ///
    /// If the request is structured ([`SplitRequest::coscheduled`] and similar options), the driver makes the
    /// split (CUDA 13.1 or newer, not yet run on hardware). A structured split rounds nothing and divides all
    /// SMs of the device, so groups of another request must not exist at the same time.
    /// [`SmGroup::split`](crate::resource::SmGroup::split) accepts a structured request for the SMs of a
    /// group.
    ///
    /// # Errors
    ///
    /// A failed call takes no SMs.
    ///
    /// - [`Error::InvalidRequest`]: a count is 0, there is no group, the options exclude each other, or the
    ///   SMs belong to a partition. To split a partition's SMs, split the group that
    ///   [`Context::close`](crate::context::Context::close) returns.
    /// - [`Error::NotEnoughSms`]: not all groups fit. The error contains the number of groups that fit,
    ///   shares that would fit, and the groups that hold the other SMs.
    /// - [`Error::CutInUse`]: groups exist that divide the device into other units.
    /// - [`Error::Unsupported`]: the driver is too old for the request.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let split = device.resources().sm()?.split(SplitRequest::new().group("decode", 32).rest("prefill"))?;
    /// assert_eq!(split.groups[0].sm_count(), 32);
    /// assert_eq!(split.remainder.map(|group| group.sm_count()), Some(100));
    /// # Ok(())
    /// # }
    /// ```
    pub fn split(&self, request: impl Into<SplitRequest>) -> Result<Split> {
        crate::handle::trace::span!("split", device = self.device.ordinal());
        let request = request.into();
        split::take(self, &request).map_err(|error| split::corrected(self, &request, &[], error))
    }

    /// Takes all free SMs as one group with this name.
    pub(crate) fn take_rest(&self, name: Arc<str>) -> Result<SmGroup> {
        split::take_rest(self, name)
    }

    /// Returns the co-scheduled counts that the device accepts (cuda.h of CUDA 13.1).
    pub(super) fn coscheduling(&self) -> Result<Coscheduling> {
        let most = if self.device.compute_capability()?.major >= 9 { 32 } else { 2 };
        Ok(Coscheduling { default: self.alignment, most })
    }
}

/// Returns the smallest count of a group and the number that it must be a multiple of, as documented for the
/// compute capability (CUDA C++ programming guide and the header's general guideline).
fn architecture_rule(capability: ComputeCapability) -> (u32, u32) {
    match capability.major {
        ..=6 => (1, 1),
        7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

/// Fails if the driver is too old for `call`.
pub(super) fn check_version(device: &Device, needs: Version, call: &'static str) -> Result<()> {
    let found = device.driver().version();
    if found >= needs { Ok(()) } else { Err(Error::Unsupported { call, needs, found }) }
}

impl fmt::Debug for SmResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmResource")
            .field("device", &self.device.ordinal())
            .field("sm_count", &self.sm_count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_drivers_have_the_rule_of_their_architecture() {
        let rule = |major| architecture_rule(ComputeCapability { major, minor: 0 });
        assert_eq!([6, 7, 8, 9, 10, 12].map(rule).map(|rule| rule.0), [1, 2, 4, 8, 8, 8]);
        assert_eq!([6, 7, 8, 9, 10, 12].map(rule).map(|rule| rule.1), [1, 2, 2, 8, 8, 8]);
    }
}

//! SMs of a device, context or stream: their number, their limits, and how many are free. `split` makes the
//! splits.

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
/// It describes SMs and owns none. [`split`](SmResource::split) takes SMs from the device's ledger. A process
/// has one ledger per device, so no group has SMs of another group's floor, wherever it was created.
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
/// assert!(error.to_string().contains("2 fit"));
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
    /// Whether these are the SMs of a partition, which belong to its group.
    pub(super) is_green: bool,
}

/// The source of the limits of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitSource {
    /// The driver reports them (CUDA 13.0 or newer).
    Driver,
    /// The driver is too old to report them, so the documented rule for the compute capability applies.
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

/// The first driver version that reports more than the number of SMs.
const LIMITS: Version = Version::new(13, 0);
/// The first driver version that reports flags.
const FLAGS: Version = Version::new(13, 1);
/// The first version whose descriptors accept several resources.
pub(super) const COMPOSITION: Version = Version::new(12, 5);

impl SmResource {
    pub(crate) fn of_device(device: &Device) -> Result<SmResource> {
        SmResource::new(device, *device.sms()?, false)
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

    /// Returns the size of the smallest group that the driver makes, in SMs.
    /// [`limits_from`](SmResource::limits_from) returns the source of this number.
    #[must_use]
    #[doc(alias = "minSmPartitionSize")]
    pub fn min_partition(&self) -> u32 {
        self.min_partition
    }

    /// Returns the number of SMs that are scheduled together by default. The SMs of a group are a multiple of
    /// it. [`limits_from`](SmResource::limits_from) returns the source of this number.
    #[must_use]
    #[doc(alias = "smCoscheduledAlignment")]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Returns the source of [`min_partition`](SmResource::min_partition) and
    /// [`alignment`](SmResource::alignment): the driver from CUDA 13.0 on, before that the rule for the
    /// device's compute capability, from which particular GPUs may differ. Splits rely on neither number:
    /// they read back what the driver gives.
    #[must_use]
    pub fn limits_from(&self) -> LimitSource {
        self.limits_from
    }

    /// Returns the flags of the split that the SMs come from. Returns 0 before CUDA 13.1, where splits have no
    /// such flags.
    #[must_use]
    pub fn flags(&self) -> CUdevSmResourceGroup_flags {
        let flags = if self.device.driver().version() >= FLAGS { self.sms.flags } else { 0 };
        CUdevSmResourceGroup_flags(flags)
    }

    /// Returns the locality domain of the SMs. Returns `None` if they were not split off by domain, and
    /// before CUDA 13.4.
    #[must_use]
    #[doc(alias = "localityDomainId")]
    pub fn locality_domain(&self) -> Option<LocalityDomain> {
        let known = self.device.driver().version() >= cut::LOCALITY;
        cut::locality_domain(self.flags(), self.sms.localityDomainId).filter(|_| known)
    }

    /// Returns the number of SMs that are free for floors: those that no group has and whose last work is
    /// recorded, so that the next owner can wait for it. Returns 0 for the SMs of a partition, and in a
    /// forked process.
    #[must_use]
    pub fn free_sm_count(&self) -> u32 {
        if self.is_green {
            return 0;
        }
        let Ok(counts) = self.device.ledger().map(|ledger| ledger.sm_counts()) else { return 0 };
        counts.map_or(self.sm_count(), |counts| counts.free)
    }

    /// Returns the units that the device is cut into at a granularity, each in SMs. Units of equal size come
    /// first, and the odd unit last. An H200 has 15 units of 8 SMs and one of 12, or 66 of 2.
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

    /// Returns the sizes of the units that [`unit_counts`](SmResource::unit_counts) lists, for rounding
    /// counts to them.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver fails.
    pub fn unit_sizes(&self, granularity: Granularity) -> Result<UnitSizes> {
        Ok(UnitSizes::of(split::smallest(self, granularity)?.1.counts().counts()))
    }

    /// Returns the SMs that each group of a structured request would have if all SMs of the device were free,
    /// and at the end the SMs that the groups leave, if any. Takes nothing. [`dry_run`](SmResource::dry_run)
    /// returns what a request would give now.
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
        Ok(split::units_for(self, &*split::counted(self, &request)?)?.1.counts().counts().to_vec())
    }

    /// Returns the result that a split would have now, without taking SMs.
    ///
    /// A dry run only reads. A split first tries to free more SMs: those in quarantine
    /// ([`DryRun::quarantined`]), and those of partitions that the functions of
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

    /// Returns the result of a dry run as if these groups were returned first. Use it to release groups only
    /// if that makes enough room. Groups of other devices and parts of other groups make no difference.
    /// Otherwise it works as [`dry_run`](SmResource::dry_run).
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

    /// Takes groups of SMs. The floor of each group is rounded up and its ceiling is rounded down to what the
    /// device can give. The groups report the requested shares and the results.
    ///
    /// Drivers before CUDA 12.5 make a context from one piece only. On them, the groups must all have one
    /// size (the rest may be taken too), or all share all SMs (`..`), and the device can have only one size
    /// at a time. `None` alone and the rest alone are also one piece. They need a device without held SMs, or
    /// a piece that other groups left.
    ///
    /// The driver makes the split of a structured request ([`SplitRequest::coscheduled`] and others; CUDA
    /// 13.1 or newer, not yet run on hardware). It rounds nothing and divides all SMs of the device. Groups
    /// of another request may therefore not exist at the same time.
    /// [`SmGroup::split`](crate::resource::SmGroup::split) takes such a request for the SMs of a group.
    ///
    /// # Errors
    ///
    /// If it fails, it takes nothing.
    ///
    /// - [`Error::InvalidRequest`]: a count is 0, there is no group, the options exclude each other, or the
    ///   SMs belong to a partition. To split a partition's SMs, split the group that
    ///   [`Context::close`](crate::context::Context::close) returns.
    /// - [`Error::NotEnoughSms`]: not all groups fit. The error has the number that do, shares that would
    ///   fit, and the holders of the other SMs.
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

    /// Returns the co-scheduled counts that the device accepts (cuda.h of 13.1).
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

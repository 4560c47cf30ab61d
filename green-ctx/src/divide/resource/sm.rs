//! SMs described: how many there are, how they can be cut, how many are free. The splits themselves are in
//! `split`.

use std::fmt;
use std::sync::Arc;

use green_ctx_sys::{CUdevSmResource, CUdevSmResourceGroup_flags, Version};

use super::cut;
use super::split::{self, Split};
use crate::handle::device::{ComputeCapability, Device};
use crate::handle::error::{Error, Result};
use crate::handle::group::SmGroup;
use crate::ledger::{Coscheduling, DryRun, Granularity, LocalityDomain, SplitRequest, UnitSizes};

/// The SMs of a device, or those that a context or a stream was provisioned with: how many there
/// are, how they may be cut, how many are free.
///
/// It describes and owns nothing. [`split`](SmResource::split) takes SMs out of the device's one
/// ledger, so that no group of a process has SMs of another's floor, wherever they were made.
///
/// # Example
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
    /// Whether these are the SMs of a partition, which its group owns.
    pub(super) is_green: bool,
}

/// Where the limits of a split come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitSource {
    /// The driver said so (CUDA 13.0 or newer).
    Driver,
    /// The driver is too old to say; the documented rule for the compute capability does.
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

/// The first driver that says more than the count.
const LIMITS: Version = Version::new(13, 0);
/// The first driver that says flags.
const FLAGS: Version = Version::new(13, 1);
/// The first version whose descriptors take several resources.
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

    /// The SMs that there are.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.sms.smCount
    }

    /// The smallest group that the driver makes, in SMs; [`limits_from`](SmResource::limits_from)
    /// returns who says so.
    #[must_use]
    #[doc(alias = "minSmPartitionSize")]
    pub fn min_partition(&self) -> u32 {
        self.min_partition
    }

    /// How many SMs are scheduled together by default, and of what a group's count is a multiple;
    /// [`limits_from`](SmResource::limits_from) returns who says so.
    #[must_use]
    #[doc(alias = "smCoscheduledAlignment")]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Who says what the smallest group and the alignment are: the driver from CUDA 13.0 on, before
    /// that the rule for the device's compute capability, of which particular parts may differ. Splits
    /// do not rely on either: they read back what the driver really gives.
    #[must_use]
    pub fn limits_from(&self) -> LimitSource {
        self.limits_from
    }

    /// How the SMs were split off, from CUDA 13.1 on; before, no split has any of these flags.
    #[must_use]
    pub fn flags(&self) -> CUdevSmResourceGroup_flags {
        let flags = if self.device.driver().version() >= FLAGS { self.sms.flags } else { 0 };
        CUdevSmResourceGroup_flags(flags)
    }

    /// The locality domain that the SMs are of, from CUDA 13.4 on; `None` where they were not split
    /// off by domain, and on drivers that know none.
    #[must_use]
    #[doc(alias = "localityDomainId")]
    pub fn locality_domain(&self) -> Option<LocalityDomain> {
        let known = self.device.driver().version() >= cut::LOCALITY;
        cut::locality_domain(self.flags(), self.sms.localityDomainId).filter(|_| known)
    }

    /// SMs that are free for floors: those that no group has, and whose last work is recorded, so that the
    /// next owner can wait for it. A partition's SMs are never free, and a forked process has none.
    #[must_use]
    pub fn free_sm_count(&self) -> u32 {
        if self.is_green {
            return 0;
        }
        let Ok(counts) = self.device.ledger().map(|ledger| ledger.sm_counts()) else { return 0 };
        counts.map_or(self.sm_count(), |counts| counts.free)
    }

    /// The pieces that the device is cut into at a granularity, each in SMs: equal ones, and at the
    /// end what was left over. 15 of 8 and one of 12 on an H200, or 66 of 2.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDevSmResourceSplitByCount")]
    pub fn unit_counts(&self, granularity: Granularity) -> Result<Vec<u32>> {
        Ok(split::smallest(self, granularity)?.1.counts().counts().to_vec())
    }

    /// The sizes of the pieces that [`unit_counts`](SmResource::unit_counts) lists, to round counts to them.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn unit_sizes(&self, granularity: Granularity) -> Result<UnitSizes> {
        Ok(UnitSizes::of(split::smallest(self, granularity)?.1.counts().counts()))
    }

    /// The SMs of each group of a structured request were all SMs of the device free, and at the end what
    /// they leave, if anything. It only asks; [`dry_run`](SmResource::dry_run) says what a request would give
    /// now.
    ///
    /// # Errors
    ///
    /// As [`split`](SmResource::split); [`Error::InvalidRequest`] for a request that is not structured.
    pub fn structured_counts(&self, request: impl Into<SplitRequest>) -> Result<Vec<u32>> {
        let request = request.into();
        request.validate()?;
        if !request.is_structured() {
            let reason = "only a structured request has counts that do not depend on what is free";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        Ok(split::units_for(self, &*split::counted(self, &request)?)?.1.counts().counts().to_vec())
    }

    /// What a split would give now, without taking anything. It only reads: what a split first tries to get
    /// back does not count here, which is SMs in quarantine ([`DryRun::quarantined`]) and partitions that
    /// functions of [`Driver::on_reclaim`](crate::Driver::on_reclaim) let go of. So a split may give what a
    /// dry run refuses.
    ///
    /// # Errors
    ///
    /// As [`split`](SmResource::split).
    pub fn dry_run(&self, request: impl Into<SplitRequest>) -> Result<DryRun> {
        self.dry_run_without(request, &[])
    }

    /// What a split would give if these groups were given back first, as [`dry_run`](SmResource::dry_run): for a
    /// program that gives them up only if that makes enough room. Groups of other devices, and parts of other
    /// groups, make no difference.
    ///
    /// # Errors
    ///
    /// As [`split`](SmResource::split).
    ///
    /// # Example
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

    /// Takes groups of SMs. Each has the share asked for, with a floor rounded up and a ceiling rounded
    /// down to what the device can give, and says all of it.
    ///
    /// A driver before CUDA 12.5 makes a context of one piece, so there it is either groups of one
    /// size, with the rest if asked for, or groups that all share all SMs (`..`), or an error; and one
    /// size at a time. `None` alone, and the rest alone, are one piece too: of a device of which nothing is
    /// held, or one that others have left.
    ///
    /// A structured request ([`SplitRequest::coscheduled`] and others, CUDA 13.1 or newer, not yet
    /// run on hardware) is split by the driver, which rounds nothing, out of all SMs of the device. So
    /// no group may be out that another request gave, until all of its groups are back; within a
    /// group [`SmGroup::split`](crate::resource::SmGroup::split) takes such a request too.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for a count of 0, no group at all or what the constraints rule out,
    /// [`Error::NotEnoughSms`] when not all groups fit, with how many do, what would fit and who holds
    /// the rest, [`Error::CutInUse`], and [`Error::Unsupported`] for what the driver is too old for.
    /// Nothing is taken then. The SMs of a partition are split as its group
    /// ([`Context::close`](crate::context::Context::close) gives it back): of its resource this is an
    /// [`Error::InvalidRequest`].
    pub fn split(&self, request: impl Into<SplitRequest>) -> Result<Split> {
        crate::handle::trace::span!("split", device = self.device.ordinal());
        let request = request.into();
        split::take(self, &request).map_err(|error| split::corrected(self, &request, &[], error))
    }

    /// Takes all SMs that are free, as one group of this name.
    pub(crate) fn take_rest(&self, name: Arc<str>) -> Result<SmGroup> {
        split::take_rest(self, name)
    }

    /// What the device makes of co-scheduled counts (cuda.h of 13.1).
    pub(super) fn coscheduling(&self) -> Result<Coscheduling> {
        let most = if self.device.compute_capability()?.major >= 9 { 32 } else { 2 };
        Ok(Coscheduling { default: self.alignment, most })
    }
}

/// The least count of a group and what it is a multiple of, as documented for the compute capability
/// (CUDA C++ programming guide and the header's general guideline).
fn architecture_rule(capability: ComputeCapability) -> (u32, u32) {
    match capability.major {
        ..=6 => (1, 1),
        7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

/// Refuses what the driver is too old for.
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

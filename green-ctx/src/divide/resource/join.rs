//! Joining groups.

use std::sync::Arc;

use green_ctx_sys::CUdevSmResourceGroup_flags;

use super::cut;
use super::sm::{COMPOSITION, check_version};
use crate::handle::dev_resource;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::group::SmGroup;
use crate::ledger::Cut;

impl SmGroup {
    /// Joins two groups. The result has the SMs of both groups, and the name and priority of `self`. The
    /// [share](SmGroup::share) of the result is its SM count. A context created from the result waits for
    /// work that was still running on the SMs of either group.
    ///
    /// The driver can create one context from several resources only if the same split returned them. All
    /// groups that were split by count with the same granularity meet this condition, even if they come from
    /// different requests. Groups of structured requests must come from one split and have the same
    /// co-scheduling and locality domain (cuda.h; not yet run on hardware). If a group was split into groups
    /// that share SMs, or was split by the driver, the resulting groups can be joined only with each other.
    /// Groups that share SMs cannot be joined. To get a larger group with shared SMs, request a single share
    /// for the total.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which returns both groups, with one of these reasons:
    /// [`Error::DeviceMismatch`] for groups of two devices, [`Error::InvalidRequest`] for other groups that
    /// cannot be joined, and [`Error::Unsupported`] before CUDA 12.5.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let [first, second, third] = device.resources().sm()?.split([16, 24, 32])?.groups.try_into()
    ///     .expect("three groups");
    /// let context = device.create_context(first.join(third)?)?;
    /// assert_eq!((context.sm_count()?, second.sm_count()), (48, 24));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuDevResourceGenerateDesc")]
    pub fn join(mut self, other: SmGroup) -> Result<SmGroup, Refused<[SmGroup; 2]>> {
        match check(&self, &other) {
            Ok(()) => {
                self.absorb(other);
                Ok(self)
            }
            Err(error) => Err(Refused { given: [self, other], reason: error }),
        }
    }
}

/// Fails if the driver could not create one context on the SMs of both groups.
fn check(one: &SmGroup, other: &SmGroup) -> Result<()> {
    one.device().driver().check_process()?;
    if one.device() != other.device() {
        return Err(Error::DeviceMismatch { what: "the groups" });
    }
    let refused = |reason: &str| {
        let (one, other) = (one.name(), other.name());
        Err(Error::InvalidRequest(format!("groups {one} and {other} cannot be joined: {reason}")))
    };
    if !one.pool().is_empty() || !other.pool().is_empty() {
        return refused("some of their SMs are shared; ask for one share instead");
    }
    let of_one_split = match &one.placement().cut {
        cut @ Cut::Equal { .. } => *cut == other.placement().cut,
        // The driver combines only groups of the same structured split.
        Cut::Structured { .. } => Arc::ptr_eq(one.units(), other.units()),
    };
    if !of_one_split || !one.has_account_of(other) {
        return refused("they do not come from the same split");
    }
    if let Cut::Structured { .. } = &one.placement().cut {
        let constraints = |group: &SmGroup| {
            let units = group.placement().members.iter();
            let of = |unit: &usize| {
                let resource = group.units().resource(*unit);
                let sms = dev_resource::sm_part(&resource);
                let flags = CUdevSmResourceGroup_flags(sms.flags);
                let domain = cut::locality_domain(flags, sms.localityDomainId);
                (sms.smCoscheduledAlignment, domain)
            };
            units.map(of).collect::<Vec<_>>()
        };
        let (first, rest) = (constraints(one), constraints(other));
        if first.iter().chain(&rest).any(|unit| *unit != first[0]) {
            return refused("they differ in co-scheduled SMs or in locality domain");
        }
    }
    check_version(one.device(), COMPOSITION, "a group of several parts")
}

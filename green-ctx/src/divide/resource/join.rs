//! Groups put together.

use std::sync::Arc;

use green_ctx_sys::CUdevSmResourceGroup_flags;

use super::cut;
use super::sm::{COMPOSITION, check_version};
use crate::handle::dev_resource;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::group::SmGroup;
use crate::ledger::Cut;

impl SmGroup {
    /// Puts two groups together: the result has the SMs of both, its name and its priority are this one's, and
    /// its [share](SmGroup::share) is its count. A context of it has all the SMs, and waits for what was still
    /// running on any of them.
    ///
    /// The driver makes one context of several results of one split only. Groups by count are made of such
    /// results whichever request gave them; those of structured requests must be of one split, and have
    /// the same co-scheduling and locality domain (cuda.h; not yet run on hardware). Parts of a group that
    /// was divided with shares, or by the driver, join parts of the same division. Groups that share SMs do not
    /// join: a request for both shares' sum says which of the SMs are to be shared.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives both groups back: [`Error::DeviceMismatch`] for groups of two devices,
    /// [`Error::InvalidRequest`] for others that do not join, and [`Error::Unsupported`] before CUDA 12.5.
    ///
    /// # Example
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
    pub fn join(mut self, other: SmGroup) -> Result<SmGroup, Box<Refused<[SmGroup; 2]>>> {
        match check(&self, &other) {
            Ok(()) => {
                self.absorb(other);
                Ok(self)
            }
            Err(error) => Err(Box::new(Refused { given: [self, other], reason: error })),
        }
    }
}

/// Refuses what the driver would make no context of.
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
        // Each split of the driver is of its own.
        Cut::Structured { .. } => Arc::ptr_eq(one.units(), other.units()),
    };
    if !of_one_split || !one.has_account_of(other) {
        return refused("they are not of one split");
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
            return refused("they differ in how many SMs are scheduled together, or in locality");
        }
    }
    check_version(one.device(), COMPOSITION, "cuDevResourceGenerateDesc with several resources")
}

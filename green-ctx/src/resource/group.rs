//! SMs owned: what a split gives, to become a partition or to be split further.

use std::fmt;
use std::mem;
use std::sync::Arc;

use super::ledger::{Chosen, Origin};
use super::nested::Parent;
use super::sm::{COMPOSITION, check_version};
use super::split::{Split, SplitPlan, SplitRequest};
use super::unit::{Cut, Units};
use super::workqueue::{Provision, Workqueue};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::fence::{Fence, Fences};
use crate::recycle::Place;

/// SMs of a device that are this object's alone. It becomes a partition with
/// [`Device::create_context`], and returns its SMs when dropped.
///
/// It cannot be cloned, and making a context moves it: no two contexts get the same SMs.
///
/// ```compile_fail,E0382
/// # fn both(device: &green_ctx::Device, group: green_ctx::SmGroup) -> green_ctx::Result<()> {
/// let first = device.create_context(group)?;
/// let second = device.create_context(group)?;
/// # Ok(())
/// # }
/// ```
pub struct SmGroup {
    device: Device,
    units: Arc<Units>,
    place: Place,
    name: Arc<str>,
    origin: Origin,
    sm_count: u32,
    /// What still ran on these SMs when they were taken.
    fences: Fences,
    hold: Hold,
}

/// Who accounts for a group's SMs.
#[derive(Clone)]
pub(super) enum Hold {
    /// The device's ledger, which gets the units back.
    Ledger,
    /// Nobody: an overlapping group just uses them.
    Shared,
    /// The group that it was split out of, which is held until its last child is gone.
    Parent(Arc<Parent>),
}

impl SmGroup {
    pub(super) fn new(
        device: Device,
        units: Arc<Units>,
        chosen: Chosen,
        fences: Fences,
        hold: Hold,
    ) -> SmGroup {
        let Chosen { name, origin, sm_count, place } = chosen;
        SmGroup { device, units, place, name, origin, sm_count, fences, hold }
    }

    /// The device that the SMs are of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The group's name: that of the request, or `p0`, `p1`, … for a list of counts.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The SMs that were asked for; `None` for what remained, or for as many as there were.
    #[must_use]
    pub fn requested(&self) -> Option<u32> {
        match self.origin {
            Origin::Requested(requested) => requested,
            Origin::Remainder => None,
        }
    }

    /// Whether the group's SMs are its own; those of an overlapping one may be anybody's.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        match &self.hold {
            Hold::Ledger => true,
            Hold::Shared => false,
            Hold::Parent(parent) => parent.group().is_owned(),
        }
    }

    /// The SMs that the group has.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.sm_count
    }

    /// Adds a workqueue, for a context that has both ([`Device::create_context`]).
    ///
    /// CUDA 13.1 or newer; not yet run on hardware.
    pub fn with_workqueue(self, workqueue: Workqueue) -> Provision {
        Provision { group: self, workqueue: Some(workqueue) }
    }

    /// Splits the group into smaller ones, whose SMs are among its own. What no group takes is free
    /// again, unless the request takes the rest.
    ///
    /// A structured request, and any of a group that a structured request gave, is split by the driver
    /// among the SMs of a context that is made for it (CUDA 13.1 or newer, not yet run on hardware).
    /// All of the group's SMs stay held then until the last of the new groups is gone.
    ///
    /// # Errors
    ///
    /// [`SplitError`], which gives the group back, for the reasons of
    /// [`SmResource::split`](crate::SmResource::split): here [`Error::NotEnoughSms`] speaks of the
    /// group, the granularity must be the group's own, and an overlapping request is refused.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let sms = driver.device(0)?.resources().sm()?;
    /// let group = sms.split([64])?.groups.remove(0);
    /// let split = group.split(SplitRequest::from([16, 24]).rest("spare"))?;
    /// assert_eq!(split.groups[1].sm_count(), 24);
    /// assert_eq!(split.remainder.map(|rest| rest.sm_count()), Some(24));
    /// # Ok(())
    /// # }
    /// ```
    pub fn split(self, request: impl Into<SplitRequest>) -> Result<Split, Box<SplitError>> {
        crate::trace::span!("split", device = self.device.ordinal(), group = &*self.name);
        let request = request.into();
        if self.needs_driver(&request) {
            return Parent::split(self, &request);
        }
        match self.choose(&request, &[]) {
            Ok(chosen) => Ok(self.divide(chosen)),
            Err(error) => Err(Box::new(SplitError { group: self, error })),
        }
    }

    /// What a split would give now, without taking anything. Where the driver has to split, a context
    /// is made for the group as for the split itself, and kept to be used again.
    ///
    /// # Errors
    ///
    /// As [`split`](SmGroup::split).
    pub fn plan(&self, request: impl Into<SplitRequest>) -> Result<SplitPlan> {
        let request = request.into();
        if self.needs_driver(&request) {
            return Parent::plan(self, &request);
        }
        Ok(SplitPlan::new(self.units.size(), self.sm_count, self.choose(&request, &[])?))
    }

    /// Whether only the driver's structured split can do it: such a request, or any of SMs that are
    /// no units.
    pub(super) fn needs_driver(&self, request: &SplitRequest) -> bool {
        request.is_structured() || matches!(self.place.cut, Cut::Structured { .. })
    }

    /// Chooses units for a request, places that are in use by turns before all others.
    pub(super) fn choose(&self, request: &SplitRequest, by_turns: &[Place]) -> Result<Vec<Chosen>> {
        self.check_request(request)?;
        check_version(&self.device, COMPOSITION, "splitting a group")?;
        if Some(request.granularity) != self.place.cut.granularity() {
            return Err(Error::CutInUse { held: self.place.cut.to_string() });
        }
        let ledger = self.device.state().ledger.lock();
        ledger.plan_within(&self.units, &self.place, &self.name, request, by_turns)
    }

    /// Refuses what no group can be split into.
    pub(super) fn check_request(&self, request: &SplitRequest) -> Result<()> {
        request.validate()?;
        if request.overlapping {
            let reason = "groups that share SMs are split from the device, not from a group";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        Ok(())
    }

    /// Turns the group into groups of its units. Nothing can fail any more.
    fn divide(mut self, chosen: Vec<Chosen>) -> Split {
        let is_chosen =
            |index: &usize| chosen.iter().any(|group| group.place.members.contains(index));
        if let Hold::Ledger = self.hold {
            let mut ledger = self.device.state().ledger.lock();
            chosen.iter().for_each(|group| ledger.rename(group));
        }
        // What is left goes back when `self` is dropped.
        self.place.members.retain(|index| !is_chosen(index));
        let (fences, hold) = (self.fences.clone(), self.hold.clone());
        Split::of(&self.device, &self.units, chosen, |_| (fences.clone(), hold.clone()))
    }

    pub(super) fn units(&self) -> &Arc<Units> {
        &self.units
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Adds what still runs on the group's SMs.
    pub(crate) fn add_fences(&mut self, more: impl IntoIterator<Item = Arc<Fence>>) {
        self.fences.add(self.device.driver(), more);
    }
}

impl Drop for SmGroup {
    fn drop(&mut self) {
        if self.place.members.is_empty() || self.device.driver().is_forked() {
            return;
        }
        match &self.hold {
            Hold::Shared => {}
            Hold::Ledger => {
                self.fences.settle(self.device.driver());
                let fences = mem::take(&mut self.fences).share();
                self.device.state().ledger.lock().give_back(&self.place.members, &fences);
            }
            Hold::Parent(parent) => {
                self.fences.settle(self.device.driver());
                parent.leave(mem::take(&mut self.fences));
            }
        }
    }
}

impl fmt::Debug for SmGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmGroup")
            .field("name", &self.name)
            .field("requested", &self.requested())
            .field("sm_count", &self.sm_count)
            .finish_non_exhaustive()
    }
}

/// A group that was not split.
#[derive(Debug, thiserror::Error)]
#[error("the group was not split")]
pub struct SplitError {
    /// The group, as it was.
    pub group: SmGroup,
    /// Why it was not split.
    #[source]
    pub error: Error,
}

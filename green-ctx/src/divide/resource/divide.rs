//! Splits a group by count into smaller groups that consist of the same units.

use std::sync::Arc;

use super::nested;
use super::sm::{COMPOSITION, check_version};
use super::split::Split;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::fence::Fences;
use crate::handle::group::{Hold, Parent, SmGroup};
use crate::ledger::{Cut, DryRun, GroupUnits, Placement, SplitRequest, UnitSet, UnitSizes};

impl SmGroup {
    /// Splits the group into smaller groups, which get their SMs from this group. The floors of the new
    /// groups come from the floor of this group, and SMs that this group shares can only be shared by the new
    /// groups. SMs that no new group takes become free, unless the request takes the rest. If new groups
    /// share SMs, all SMs of this group stay held until the last new group is dropped, and partitions outside
    /// this group never use its floor.
    ///
    /// If the request is structured, or if this group comes from a structured request, the driver makes the
    /// split. For such a split, this call creates a context on the group's SMs (CUDA 13.1 or newer, not yet
    /// run on hardware). All SMs of the group then stay held until the last new group is dropped.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which returns the group, for the reasons that
    /// [`SmResource::split`](crate::resource::SmResource::split) lists. The numbers in
    /// [`Error::NotEnoughSms`] refer to the group. The request must have the granularity of the group, and an
    /// overlapping request is refused.
    ///
    /// # Examples
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
    pub fn split(self, request: impl Into<SplitRequest>) -> Result<Split, Refused<SmGroup>> {
        crate::handle::trace::span!("split", device = self.device().ordinal(), group = self.name());
        let request = request.into();
        if let Err(error) = self.check_request(&request) {
            return Err(Refused { given: self, reason: error });
        }
        self.device().retry_quarantine();
        if self.needs_driver(&request) {
            return nested::split(self, &request);
        }
        let chosen = match self.choose(&request, &[], &[]) {
            Ok(chosen) => chosen,
            Err(error) => return Err(Refused { given: self, reason: error }),
        };
        let (device, units) = (self.device().clone(), Arc::clone(self.units()));
        let holds: Vec<_> = if request.is_exclusive() {
            let (fences, holds) = self.hand_over(&chosen);
            holds.into_iter().map(|hold| (fences.clone(), hold)).collect()
        } else {
            let parent = Parent::new(self, None);
            let hold = |group: &GroupUnits| {
                // Shared SMs wait for nothing.
                let waits = group.sms.floor > 0;
                let fences =
                    if waits { parent.group().fences().clone() } else { Fences::default() };
                let number = parent.enter(&units, group);
                (fences, Hold::Parent(Arc::clone(&parent), Some(number)))
            };
            chosen.iter().map(hold).collect()
        };
        Ok(Split::of(&device, &units, &request, chosen, holds))
    }

    /// Returns the result that a split would have now, without taking SMs. If the driver has to make the
    /// split, this dry run creates the same context as the split would, and leaves the context available for
    /// reuse.
    ///
    /// # Errors
    ///
    /// The errors of [`split`](SmGroup::split). The group is only borrowed, so the error does not return it.
    pub fn dry_run(&self, request: impl Into<SplitRequest>) -> Result<DryRun> {
        let request = request.into();
        self.check_request(&request)?;
        if self.needs_driver(&request) {
            return nested::dry_run(self, &request);
        }
        let chosen = self.choose(&request, &[], &[])?;
        let units = self.units().counts();
        let free = UnitSet::of(units.counts().len(), self.floor_unit_indices());
        Ok(DryRun::new(units, free, chosen))
    }

    /// Returns whether only the driver's structured split can divide the group. This is true if the request
    /// is structured, or if the group comes from a structured split.
    fn needs_driver(&self, request: &SplitRequest) -> bool {
        request.is_structured() || matches!(self.placement().cut, Cut::Structured { .. })
    }

    /// Chooses units for a checked request. Preferred units come before all others, and units in quarantine
    /// are left out.
    fn choose(
        &self,
        request: &SplitRequest,
        preferred: &[Placement],
        quarantined: &[usize],
    ) -> Result<Vec<GroupUnits>> {
        check_version(self.device(), COMPOSITION, "splitting a group")?;
        let cut = &self.placement().cut;
        if Some(request.granularity) != cut.granularity() {
            let reason = format!("{} is cut into {cut}; ask for the same", self.name());
            return Err(Error::InvalidRequest(reason));
        }
        let counted = request.counted(|| {
            // Percentages refer to the group's floor, since new floors come from it, or to what it shares if
            // it has no floor.
            let (counts, own) = (self.units().counts().counts(), self.floor_unit_indices());
            let members = if own.is_empty() { &self.placement().members } else { &own };
            let counts: Vec<u32> = members.iter().map(|unit| counts[*unit]).collect();
            Ok::<_, Error>(UnitSizes::of(&counts).into())
        })?;
        let request = counted.as_deref().unwrap_or(request);
        let ledger = self.device().ledger()?;
        let divided = self.divided(quarantined);
        Ok(ledger.choose_within(self.units().counts(), &divided, request, preferred)?)
    }

    /// Fails for requests that cannot split a group.
    fn check_request(&self, request: &SplitRequest) -> Result<()> {
        self.device().driver().check_process()?;
        request.validate()?;
        if request.overlapping {
            let reason = "only a device accepts an overlapping request; within a group, ask for \
                          shares such as ..=16";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        if request.is_partial() {
            let reason = "`only` applies to a device; within a group, take all groups and drop those \
                          that are not needed";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        if self.needs_driver(request) && (!self.pool().is_empty() || !request.is_exclusive()) {
            let reason = "the driver splits only an exclusive group, and only into exclusive groups; \
                          ask for counts";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        Ok(())
    }
}

impl Parent {
    /// Divides the group by count, independently of other plans that divide the same group. Units on which
    /// the plan set already has a context are preferred.
    pub(crate) fn divide(
        self: &Arc<Self>,
        request: &SplitRequest,
        preferred: &[Placement],
    ) -> Result<Split> {
        if self.group().needs_driver(request) {
            let reason = "a plan cannot be a structured request; plans divide by count";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        let group = self.group();
        group.check_request(request)?;
        let quarantined = self.retry_quarantine();
        let chosen = group.choose(request, preferred, &quarantined)?;
        // Read the fences after the choice: if the work of a quarantined context is recorded in the meantime,
        // its fence was added before its SMs could be chosen.
        let fences = self.fences();
        let holds =
            std::iter::repeat_with(|| (fences.clone(), Hold::Parent(Arc::clone(self), None)));
        Ok(Split::of(group.device(), group.units(), request, chosen, holds))
    }
}

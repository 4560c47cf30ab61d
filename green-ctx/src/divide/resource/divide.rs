//! Groups divided by count, among the units that they have.

use std::sync::Arc;

use super::nested;
use super::sm::{COMPOSITION, check_version};
use super::split::Split;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::fence::Fences;
use crate::handle::group::{Hold, Parent, SmGroup};
use crate::ledger::{Cut, DryRun, GroupUnits, Placement, SplitRequest, UnitSet, UnitSizes};

impl SmGroup {
    /// Splits the group into smaller ones, whose SMs are among its own: their floors are of its floor, and
    /// what it shares can only be shared. What no group takes is free again, unless the request takes the
    /// rest. Where the request has groups that share SMs, all of the group's SMs stay held until the last
    /// of them is gone, and nobody else shares its floor.
    ///
    /// A structured request, and any of a group that a structured request gave, is split by the driver
    /// among the SMs of a context that is made for it (CUDA 13.1 or newer, not yet run on hardware).
    /// All of the group's SMs stay held then until the last of the new groups is gone.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives the group back, for the reasons of
    /// [`SmResource::split`](crate::resource::SmResource::split): here [`Error::NotEnoughSms`] speaks of the
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
    pub fn split(self, request: impl Into<SplitRequest>) -> Result<Split, Box<Refused<SmGroup>>> {
        crate::handle::trace::span!("split", device = self.device().ordinal(), group = self.name());
        let request = request.into();
        if let Err(error) = self.check_request(&request) {
            return Err(Box::new(Refused { given: self, reason: error }));
        }
        self.device().retry_quarantine();
        if self.needs_driver(&request) {
            return nested::split(self, &request);
        }
        let chosen = match self.choose(&request, &[], &[]) {
            Ok(chosen) => chosen,
            Err(error) => return Err(Box::new(Refused { given: self, reason: error })),
        };
        let (device, units) = (self.device().clone(), Arc::clone(self.units()));
        let holds: Vec<_> = if request.is_exclusive() {
            let (fences, holds) = self.hand_over(&chosen);
            holds.into_iter().map(|hold| (fences.clone(), hold)).collect()
        } else {
            let parent = Parent::of(self);
            let hold = |group: &GroupUnits| {
                // Sharing waits for nothing.
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

    /// What a split would give now, without taking anything. Where the driver has to split, a context
    /// is made for the group as for the split itself, and kept to be used again.
    ///
    /// # Errors
    ///
    /// As [`split`](SmGroup::split).
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

    /// Whether only the driver's structured split can do it: such a request, or any of SMs that are
    /// no units.
    fn needs_driver(&self, request: &SplitRequest) -> bool {
        request.is_structured() || matches!(self.placement().cut, Cut::Structured { .. })
    }

    /// Chooses units for a request that was checked: preferred units before all others, and no
    /// units in quarantine.
    fn choose(
        &self,
        request: &SplitRequest,
        preferred: &[Placement],
        quarantined: &[usize],
    ) -> Result<Vec<GroupUnits>> {
        check_version(self.device(), COMPOSITION, "splitting a group")?;
        let cut = &self.placement().cut;
        if Some(request.granularity) != cut.granularity() {
            return Err(Error::CutInUse { held: cut.to_string(), holders: Vec::new() });
        }
        let request = &*request.counted(|| {
            // Of the floor, since that is what floors can be of; of what it shares, if it has none.
            let (counts, own) = (self.units().counts().counts(), self.floor_unit_indices());
            let members = if own.is_empty() { &self.placement().members } else { &own };
            let counts: Vec<u32> = members.iter().map(|unit| counts[*unit]).collect();
            Ok::<_, Error>(UnitSizes::of(&counts).into())
        })?;
        let ledger = self.device().ledger()?;
        let divided = self.divided(quarantined);
        Ok(ledger.choose_within(self.units().counts(), &divided, request, preferred)?)
    }

    /// Refuses what no group can be split into.
    fn check_request(&self, request: &SplitRequest) -> Result<()> {
        self.device().driver().check_process()?;
        request.validate()?;
        if request.overlapping {
            let reason = "an overlapping request is for a device; within a group, ask for shares \
                          such as ..=16";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        if request.is_partial() {
            let reason = "one group alone can be taken of a device; take all groups here, and drop \
                          those that are not needed";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        if self.needs_driver(request) && (!self.pool().is_empty() || !request.is_exclusive()) {
            let reason = "the driver splits a group into exclusive ones only, and only a group of \
                          which nothing is shared";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        Ok(())
    }
}

impl Parent {
    /// Divides the group by count, whatever others have of it; where there is a choice, into
    /// units that are time-shared already.
    pub(crate) fn divide(
        self: &Arc<Self>,
        request: &SplitRequest,
        preferred: &[Placement],
    ) -> Result<Split> {
        if self.group().needs_driver(request) {
            let reason = "a structured request cannot be a plan; plans divide by count";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        let group = self.group();
        group.check_request(request)?;
        let quarantined = self.retry_quarantine();
        let chosen = group.choose(request, preferred, &quarantined)?;
        // After the choice: a context whose work is recorded meanwhile has left its fence before its
        // SMs were free to be chosen.
        let fences = self.fences();
        let holds =
            std::iter::repeat_with(|| (fences.clone(), Hold::Parent(Arc::clone(self), None)));
        Ok(Split::of(group.device(), group.units(), request, chosen, holds))
    }
}

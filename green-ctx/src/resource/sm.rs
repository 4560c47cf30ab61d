//! SMs described ([`SmResource`]) and owned ([`SmGroup`]).
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::mem;
use std::ptr;
use std::sync::Arc;

use green_ctx_sys::{
    CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevSmResource, Version,
};

use super::fence::Fences;
use super::ledger::{Chosen, Origin};
use super::split::{Plan, PlannedGroup, Split, SplitRequest};
use super::unit::{Cut, Granularity, Units};
use crate::device::Device;
use crate::error::{Error, Result, call};
use crate::recycle::Place;

/// The SMs of a device: how many there are, how they may be cut, how many are free.
///
/// It describes and owns nothing. [`split`](SmResource::split) takes SMs out of the device's one
/// ledger, so that any two groups of a process are disjoint, wherever they were made.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let sms = device.sm_resource()?;
/// assert_eq!(sms.sm_count(), 132);
///
/// // Uneven groups, on every driver from CUDA 12.5 on.
/// let split = sms.split([8, 24, 100])?;
/// assert_eq!(sms.free()?, 0);
/// drop(split);
/// assert_eq!(sms.free()?, 132);
///
/// // What does not fit is an error, never fewer groups than asked.
/// let error = sms.split([64, 64, 64]).expect_err("192 SMs of 132");
/// assert!(error.to_string().contains("2 fit"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "CUdevSmResource")]
pub struct SmResource {
    device: Device,
    sms: CUdevSmResource,
}

impl SmResource {
    pub(crate) fn of_device(device: &Device) -> Result<SmResource> {
        let resource = device_resource(device)?;
        Ok(SmResource { device: device.clone(), sms: *sm_part(&resource) })
    }

    /// The SMs that there are.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.sms.smCount
    }

    /// The smallest group that the driver makes, in SMs, by its own account; `None` before CUDA
    /// 13.0, whose drivers do not say.
    #[must_use]
    pub fn min_partition(&self) -> Option<u32> {
        self.said().then_some(self.sms.minSmPartitionSize)
    }

    /// The multiple that a group's count must be, in SMs, by the driver's own account; `None` before
    /// CUDA 13.0.
    #[must_use]
    pub fn alignment(&self) -> Option<u32> {
        self.said().then_some(self.sms.smCoscheduledAlignment)
    }

    /// Whether the driver is new enough to fill in more than the count.
    fn said(&self) -> bool {
        self.device.driver().version() >= Version::new(13, 0)
    }

    /// The SMs that no group holds.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], when the device is cut for the first time.
    pub fn free(&self) -> Result<u32> {
        let cut = self.device.state().ledger.lock().cut().unwrap_or_default();
        let units = self.device.units(cut)?;
        Ok(self.device.state().ledger.lock().free_sms(&units))
    }

    /// The pieces that the device is cut into at a granularity, each in SMs: equal ones, and at the
    /// end what was left over. 15 of 8 and one of 12 on an H200, or 66 of 2.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDevSmResourceSplitByCount")]
    pub fn unit_counts(&self, granularity: Granularity) -> Result<Vec<u32>> {
        Ok(self.device.units(Cut::smallest(granularity))?.counts().to_vec())
    }

    /// What a split would give now, without taking anything.
    ///
    /// # Errors
    ///
    /// As [`split`](SmResource::split).
    pub fn plan(&self, request: impl Into<SplitRequest>) -> Result<Plan> {
        let request = request.into();
        let (cut, units) = self.units_for(&request)?;
        let (chosen, free) = {
            let ledger = self.device.state().ledger.lock();
            let free = match request.overlapping {
                true => units.counts().iter().sum(),
                false => ledger.free_sms(&units),
            };
            (ledger.plan(&units, cut, &request)?, free)
        };
        check_composition(&self.device, &chosen)?;
        let groups: Vec<PlannedGroup> = chosen
            .into_iter()
            .filter_map(|Chosen { name, origin, sm_count, .. }| match origin {
                Origin::Requested(requested) => Some(PlannedGroup { name, requested, sm_count }),
                Origin::Remainder => None,
            })
            .collect();
        let given: u32 = groups.iter().map(|group| group.sm_count).sum();
        Ok(Plan { unit: units.size(), groups, remainder: free.saturating_sub(given) })
    }

    /// Takes groups of SMs. Each has the count asked for, or the next that the device can give, and
    /// says both.
    ///
    /// A driver before CUDA 12.5 makes a context of one piece, so there it is either groups of one
    /// size, with the rest if asked for, or an error; and one size at a time.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for a count of 0 or no group at all, [`Error::NotEnoughSms`] when
    /// not all groups fit, with how many do and who holds the rest, [`Error::CutInUse`], and
    /// [`Error::Unsupported`] on a 12.4 driver for what it cannot express. Nothing is taken then.
    pub fn split(&self, request: impl Into<SplitRequest>) -> Result<Split> {
        crate::trace::span!("split", device = self.device.ordinal());
        let request = request.into();
        let (cut, units) = self.units_for(&request)?;
        let taken: Vec<_> = {
            let mut ledger = self.device.state().ledger.lock();
            let chosen = ledger.plan(&units, cut, &request)?;
            check_composition(&self.device, &chosen)?;
            let take = |chosen| {
                let fences = match request.overlapping {
                    true => Vec::new(),
                    false => ledger.take(&units, &chosen),
                };
                (chosen, fences)
            };
            chosen.into_iter().map(take).collect()
        };
        let owned = !request.overlapping;
        let mut split = Split { groups: Vec::with_capacity(taken.len()), remainder: None };
        for (chosen, fences) in taken {
            let (device, units) = (self.device.clone(), Arc::clone(&units));
            let fences = Fences::gather(fences.iter().flat_map(|fences| fences.iter()));
            split.add(SmGroup::new(device, units, chosen, fences, owned));
        }
        Ok(split)
    }

    /// The units that a request is met from.
    fn units_for(&self, request: &SplitRequest) -> Result<(Cut, Arc<Units>)> {
        request.validate()?;
        let smallest = Cut::smallest(request.granularity);
        let units = self.device.units(smallest)?;
        if self.device.driver().version() >= COMPOSITION {
            return Ok((smallest, units));
        }
        // One piece a group: the device is cut into pieces of the size asked for.
        let Some(Some(size)) = request.groups.first().map(|group| group.sm_count) else {
            return Ok((smallest, units));
        };
        let equal = request.groups.iter().all(|group| group.sm_count == Some(size));
        let alone = size <= units.size() && request.rest.is_none();
        if !equal || alone || size > self.sm_count() {
            return Ok((smallest, units));
        }
        let pieces = match request.rest {
            Some(_) => u32::try_from(request.groups.len()).unwrap_or(u32::MAX),
            None => 0,
        };
        let cut = Cut { granularity: request.granularity, size, pieces };
        Ok((cut, self.device.units(cut)?))
    }
}

/// The first version whose descriptors take several resources.
const COMPOSITION: Version = Version::new(12, 5);

/// A 12.4 driver takes one resource a descriptor.
fn check_composition(device: &Device, chosen: &[Chosen]) -> Result<()> {
    let found = device.driver().version();
    if found >= COMPOSITION || chosen.iter().all(|group| group.place.members.len() == 1) {
        return Ok(());
    }
    let call = "cuDevResourceGenerateDesc with several resources";
    Err(Error::Unsupported { call, needs: COMPOSITION, found })
}

impl fmt::Debug for SmResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmResource")
            .field("device", &self.device.ordinal())
            .field("sm_count", &self.sm_count())
            .finish_non_exhaustive()
    }
}

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
    /// Whether the ledger holds the units for this group; an overlapping one just uses them.
    owned: bool,
}

impl SmGroup {
    fn new(
        device: Device,
        units: Arc<Units>,
        chosen: Chosen,
        fences: Fences,
        owned: bool,
    ) -> SmGroup {
        let Chosen { name, origin, sm_count, place } = chosen;
        SmGroup { device, units, place, name, origin, sm_count, fences, owned }
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
        self.owned
    }

    /// The SMs that the group has.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.sm_count
    }

    /// Splits the group into smaller ones, whose SMs are among its own. What no group takes is free
    /// again, unless the request takes the rest.
    ///
    /// # Errors
    ///
    /// [`SplitError`], which gives the group back, for the reasons of [`SmResource::split`]: here
    /// [`Error::NotEnoughSms`] speaks of the group, the granularity must be the group's own, and an
    /// overlapping request is refused.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let sms = driver.device(0)?.sm_resource()?;
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
        match self.plan_split(&request) {
            Ok(chosen) => Ok(self.divide(chosen)),
            Err(error) => Err(Box::new(SplitError { group: self, error })),
        }
    }

    fn plan_split(&self, request: &SplitRequest) -> Result<Vec<Chosen>> {
        request.validate()?;
        let found = self.device.driver().version();
        if found < COMPOSITION {
            let call = "splitting a group";
            return Err(Error::Unsupported { call, needs: COMPOSITION, found });
        }
        if request.overlapping {
            let reason = "groups that share SMs are split from the device, not from a group";
            return Err(Error::InvalidRequest(reason.to_owned()));
        }
        if request.granularity != self.place.cut.granularity {
            return Err(Error::CutInUse { held: self.place.cut.to_string() });
        }
        let ledger = self.device.state().ledger.lock();
        ledger.plan_within(&self.units, &self.place, &self.name, request)
    }

    /// Turns the group into groups of its units. Nothing can fail any more.
    fn divide(mut self, chosen: Vec<Chosen>) -> Split {
        let is_chosen =
            |index: &usize| chosen.iter().any(|group| group.place.members.contains(index));
        if self.owned {
            let mut ledger = self.device.state().ledger.lock();
            chosen.iter().for_each(|group| ledger.rename(group));
        }
        // What is left goes back when `self` is dropped.
        self.place.members.retain(|index| !is_chosen(index));
        let mut split = Split { groups: Vec::with_capacity(chosen.len()), remainder: None };
        for chosen in chosen {
            let (device, units) = (self.device.clone(), Arc::clone(&self.units));
            split.add(SmGroup::new(device, units, chosen, self.fences.clone(), self.owned));
        }
        split
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn fences(&self) -> &Fences {
        &self.fences
    }

    pub(crate) fn fences_mut(&mut self) -> &mut Fences {
        &mut self.fences
    }
}

impl Drop for SmGroup {
    fn drop(&mut self) {
        if !self.owned || self.place.members.is_empty() || self.device.driver().is_forked() {
            return;
        }
        self.fences.settle(self.device.driver());
        let fences = mem::take(&mut self.fences).share();
        self.device.state().ledger.lock().give_back(&self.place.members, &fences);
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

impl Split {
    fn add(&mut self, group: SmGroup) {
        match group.origin {
            Origin::Requested(_) => self.groups.push(group),
            Origin::Remainder => self.remainder = Some(group),
        }
    }
}

/// Generates the driver's descriptor of a group. It is never freed: the driver has no call for it.
pub(crate) fn describe(group: &SmGroup) -> Result<CUdevResourceDesc> {
    let mut resources: Vec<CUdevResource> =
        group.place.members.iter().map(|index| group.units.resource(*index)).collect();
    // The counts of units are small: a device has at most a few hundred SMs.
    let count = u32::try_from(resources.len()).unwrap_or(u32::MAX);
    let mut descriptor = ptr::null_mut();
    // SAFETY: as many live structures as the count says, all of one split of this device.
    unsafe {
        call!(
            group.device.api(),
            cuDevResourceGenerateDesc(&raw mut descriptor, resources.as_mut_ptr(), count)
        )
    }?;
    if descriptor.is_null() {
        // A null descriptor would be accepted for a context (recorded on an H200).
        return Err(Error::null("cuDevResourceGenerateDesc"));
    }
    Ok(descriptor)
}

/// The SM resource of the whole device.
pub(crate) fn device_resource(device: &Device) -> Result<CUdevResource> {
    let mut resource = empty_resource();
    let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
    // SAFETY: the pointer is to a live structure, of the size that it has on every driver.
    unsafe {
        call!(device.api(), cuDeviceGetDevResource(device.as_raw(), &raw mut resource, kind))
    }?;
    Ok(resource)
}

/// A resource for the driver to fill in.
pub(crate) fn empty_resource() -> CUdevResource {
    // SAFETY: integers, bytes and a pointer: all zeros is a value, the invalid resource.
    unsafe { mem::zeroed() }
}

/// The part of an SM resource that tells about SMs.
pub(crate) fn sm_part(resource: &CUdevResource) -> &CUdevSmResource {
    // SAFETY: every member of the union is integers and bytes, so that any bytes are a value.
    unsafe { &resource.__bindgen_anon_1.sm }
}

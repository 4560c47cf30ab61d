//! Requests to split SMs.

use std::sync::Arc;

use super::percent::{self, Others, Rounding};
use super::refusal::Refusal;
use super::share::{Share, ShareKind};
use super::structure::{Coscheduling, GroupParams, LocalityDomain, PerGroup, Structure};
use super::units::Granularity;

/// A request to divide SMs into named groups with [shares](Share). One of the groups can take all SMs that
/// remain.
///
/// A list of shares converts into a request: `[16, 24]` requests two groups named `p0` and `p1`.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, SplitRequest, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let request = SplitRequest::new().group("decode", 32..).group("prefill", ..=100);
/// let parts = device.partition(request)?;
/// assert_eq!((parts["decode"].floor(), parts["decode"].sm_count()), (32, 132));
/// assert_eq!((parts["prefill"].floor(), parts["prefill"].sm_count()), (0, 100));
/// # Ok(())
/// # }
/// ```
///
/// A range is not a list of counts, because `32..` has no end. This does not compile:
///
/// ```compile_fail,E0277
/// # fn endless(sms: green_ctx::resource::SmResource) -> green_ctx::Result<()> {
/// sms.split(32..)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a request does nothing until passed to a split"]
pub struct SplitRequest {
    pub(crate) groups: Vec<RequestedGroup>,
    /// The names of the groups that take the rest. A valid request has at most one.
    rests: Vec<Arc<str>>,
    priorities: Vec<(Arc<str>, i32)>,
    /// The groups whose floors consist of the last free units.
    at_end: Vec<Arc<str>>,
    pub(crate) granularity: Granularity,
    pub(crate) overlapping: bool,
    pub(crate) structure: Structure,
    pub(crate) deterministic: bool,
    /// The name of the only group to take; `None` to take every group.
    only: Option<Arc<str>>,
    /// The rounding that turned percentages into counts; `None` before [`SplitRequest::counted`].
    rounding: Option<Rounding>,
}

/// One group of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedGroup {
    pub(crate) name: Arc<str>,
    pub(crate) share: Share,
    /// The share with counts in place of percentages. Equals `share` until `SplitRequest::counted` replaces
    /// the percentages.
    pub(crate) counted: Share,
}

impl RequestedGroup {
    /// Returns the number of SMs to pass to the driver's structured split. The number 0 requests as many SMs
    /// as can be scheduled together.
    pub(crate) fn structured_count(&self) -> Result<u32, Refusal> {
        let RequestedGroup { name, share, counted } = self;
        match counted.kind() {
            ShareKind::Count(count) => Ok(count),
            ShareKind::Regular => Ok(0),
            ShareKind::Percent(_) | ShareKind::Between { .. } | ShareKind::Rest => {
                Err(Refusal::invalid(format!(
                    "group {name} asks for {share}, but a structured request takes only counts; ask for a count, or \
                 leave out co-scheduling, backfill and locality"
                )))
            }
        }
    }
}

impl SplitRequest {
    /// Creates an empty request.
    pub fn new() -> SplitRequest {
        SplitRequest::default()
    }

    /// Adds a group with a share: a count, a percentage, a range of counts or percentages, or `None` for as
    /// many SMs as can be scheduled together. [`Share`] lists the forms.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let request = SplitRequest::new().group("exclusive", 16).group("range", 16..=48).group("capped", ..=64);
    /// let parts = device.partition(request)?;
    /// assert_eq!((parts["exclusive"].floor(), parts["exclusive"].sm_count()), (16, 16));
    /// assert_eq!((parts["range"].floor(), parts["range"].sm_count()), (16, 48));
    /// assert_eq!((parts["capped"].floor(), parts["capped"].sm_count()), (0, 64));
    /// # Ok(())
    /// # }
    /// ```
    pub fn group(mut self, name: impl Into<Arc<str>>, share: impl Into<Share>) -> Self {
        self.add(name.into(), share.into());
        self
    }

    fn add(&mut self, name: Arc<str>, share: Share) {
        match share == Share::REST {
            true => self.rests.push(name),
            false => self.groups.push(RequestedGroup { name, share, counted: share }),
        }
    }

    /// Adds a last group that takes all SMs that the other groups leave free. If no SMs remain, the split
    /// returns no such group.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let parts = device.partition(SplitRequest::new().group("decode", 32).rest("prefill"))?;
    /// assert_eq!(parts["prefill"].sm_count(), 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rest(mut self, name: impl Into<Arc<str>>) -> Self {
        self.rests.push(name.into());
        self
    }

    /// Sets the priority of the first stream of the group's partition. Lower numbers run first, and the
    /// driver clamps the number to its range. The priority takes effect when a partition is created from the
    /// group; a split alone creates no streams.
    pub fn priority(mut self, name: impl Into<Arc<str>>, priority: i32) -> Self {
        self.priorities.push((name.into(), priority));
        self
    }

    /// Takes the group's floor from the end of the free units instead of from the start. Use this option if
    /// one group grows from the start of the units and another group grows from the end. Each group then has
    /// the same SMs whenever it has the same size, so few contexts are needed.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// for front in [16_u32, 24, 40] {
    ///     let request = SplitRequest::new().group("front", front).group("back", 24).at_end("back");
    ///     let split = device.resources().sm()?.split(request)?;
    ///     assert_eq!(split.groups[1].unit_indices(), [12, 13, 14]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn at_end(mut self, name: impl Into<Arc<str>>) -> Self {
        self.at_end.push(name.into());
        self
    }

    /// Makes the choice of SMs depend only on the request and on the SMs that are in use. By default, the SMs of idle
    /// contexts are preferred, and in a plan those of the other plans, so that fewer contexts are needed. Then a request
    /// can get other SMs than in a new process, and kernels can run several percent slower or faster on them.
    ///
    /// An idle context on exactly the chosen SMs is reused in any case. Structured requests are not affected: the driver
    /// chooses their SMs.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// // Leaves idle contexts on unit 0 and on units 1 to 3.
    /// drop(device.partition([8, 24])?);
    /// let request = SplitRequest::new().group("a", 24);
    /// assert_eq!(device.partition(request.clone())?[0].unit_indices(), [1, 2, 3]);
    /// assert_eq!(device.partition(request.deterministic(true))?[0].unit_indices(), [0, 1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.deterministic = deterministic;
        self
    }

    /// Returns whether the group's floor consists of the last free units.
    pub(crate) fn is_at_end(&self, name: &str) -> bool {
        self.at_end.iter().any(|other| **other == *name)
    }

    /// Sets the size of the units. All groups that exist on a device at the same time must have the same
    /// granularity, except for [`overlapping`](SplitRequest::overlapping) groups.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, resource::Granularity, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let request = SplitRequest::new().group("small", 6).granularity(Granularity::Fine);
    /// assert_eq!(device.partition(request)?["small"].sm_count(), 6);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn granularity(mut self, granularity: Granularity) -> Self {
        self.granularity = granularity;
        self
    }

    /// Gives each group its count, rounded up to whole units, as shared SMs without a floor. The shared SMs
    /// can be any SMs that are in no floor. Groups of the same request share no SMs with each other.
    ///
    /// Work of groups that share SMs competes for those SMs and runs in no defined order. While these groups
    /// exist, no group gets their SMs as a floor. If no group of the device has a floor, the granularity may
    /// differ from that of the existing groups. No group can get a floor while two granularities are in use.
    pub const fn overlapping(mut self, overlapping: bool) -> Self {
        self.overlapping = overlapping;
        self
    }

    /// Sets the number of SMs that are scheduled together, so that clusters fit.
    ///
    /// Devices of compute capability 9.0 and newer accept an even count up to 32, older ones up to 2. The
    /// count 0 selects the device's own [alignment](crate::resource::SmResource::alignment). Pass one count
    /// for all groups or a list with one count per group. Unless [`backfill`](SplitRequest::backfill) is set,
    /// the number of SMs of a group must be a multiple of its co-scheduled count.
    ///
    /// This option makes the request *structured*: the driver's own split (`cuDevSmResourceSplit`) chooses
    /// the groups. A structured split needs CUDA 13.1 or newer and rounds nothing. A structured split divides
    /// all SMs of the device, so no other groups may hold SMs of the device
    /// ([`SmResource::split`](crate::resource::SmResource::split)). Structured splits follow the CUDA header
    /// and have not yet run on hardware.
    #[doc(alias = "coscheduledSmCount")]
    pub fn coscheduled(mut self, sm_count: impl Into<PerGroup<u32>>) -> Self {
        self.structure.coscheduled = Some(sm_count.into());
        self
    }

    /// Sets the size, in SMs, up to which the driver may merge sets of SMs that are scheduled together. The
    /// option is for kernels with preferred cluster dimensions (compute capability 10.0 and newer). The
    /// driver merges sets only where possible.
    ///
    /// This option makes the request structured, as [`coscheduled`](SplitRequest::coscheduled) does. The
    /// option needs CUDA 13.1 or newer, and has not yet run on hardware.
    #[doc(alias = "preferredCoscheduledSmCount")]
    pub fn preferred_coscheduled(mut self, sm_count: impl Into<PerGroup<u32>>) -> Self {
        self.structure.preferred = Some(sm_count.into());
        self
    }

    /// Sets whether a group may be filled up with SMs that are not scheduled together. The group can then
    /// have an even number of SMs that is not a multiple of the co-scheduled count.
    ///
    /// This option makes the request structured, as [`coscheduled`](SplitRequest::coscheduled) does. The
    /// option needs CUDA 13.1 or newer, and has not yet run on hardware.
    #[doc(alias = "CU_DEV_SM_RESOURCE_GROUP_BACKFILL")]
    pub fn backfill(mut self, backfill: impl Into<PerGroup<bool>>) -> Self {
        self.structure.backfill = Some(backfill.into());
        self
    }

    /// Takes the SMs of each group from a locality domain.
    ///
    /// This option makes the request structured, as [`coscheduled`](SplitRequest::coscheduled) does. The
    /// option needs CUDA 13.4 or newer, and has not yet run on hardware.
    #[doc(alias = "CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID")]
    pub fn locality_domain(mut self, domain: impl Into<PerGroup<LocalityDomain>>) -> Self {
        self.structure.locality = Some(domain.into());
        self
    }

    /// Sets whether groups may take more SMs from their [locality domain](SplitRequest::locality_domain) than
    /// the driver reports for each domain ([`Device::locality_domains`](crate::Device::locality_domains)).
    /// Only larger domains have such additional SMs. The option needs CUDA 13.5 or newer, and has not yet run
    /// on hardware.
    #[doc(alias = "CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS")]
    pub fn supplemental(mut self, supplemental: impl Into<PerGroup<bool>>) -> Self {
        let supplemental = supplemental.into();
        self.structure.supplemental = supplemental.any().then_some(supplemental);
        self
    }

    /// Takes only the named group of a structured request, and leaves the SMs of the other groups free.
    ///
    /// A request with the same groups always gives each group the same SMs. A later request can therefore
    /// take another group while the first group exists.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200@13.1")?)?;
    /// # let sms = driver.device(0)?.resources().sm()?;
    /// let request = SplitRequest::from([16, 32]).coscheduled(16);
    /// let first = sms.split(request.clone().only("p0"))?.groups;
    /// assert_eq!((first.len(), sms.free_sm_count()), (1, 116));
    /// let second = sms.split(request.only("p1"))?.groups;
    /// assert_eq!((second[0].sm_count(), sms.free_sm_count()), (32, 84));
    /// # Ok(())
    /// # }
    /// ```
    pub fn only(mut self, name: impl Into<Arc<str>>) -> Self {
        self.only = Some(name.into());
        self
    }

    /// Returns whether the request takes the named group.
    pub(crate) fn takes(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == name)
    }

    /// Returns whether the request takes only one of its groups.
    pub(crate) fn is_partial(&self) -> bool {
        self.only.is_some()
    }

    /// Returns whether the request takes only the rest.
    pub(crate) fn takes_rest_alone(&self) -> bool {
        self.is_partial() && self.rest_name().is_some_and(|name| self.takes(name))
    }

    /// Returns whether only the driver's structured split can meet the request.
    pub(crate) fn is_structured(&self) -> bool {
        !self.structure.is_empty()
    }

    /// Returns the name of the group that takes the rest.
    pub(crate) fn rest_name(&self) -> Option<&Arc<str>> {
        self.rests.first()
    }

    /// Returns the shares of all groups except the one that takes the rest, in order. The shares are counts
    /// if the request was [counted](SplitRequest::counted).
    pub(crate) fn shares(&self) -> smallvec::SmallVec<[Share; 4]> {
        self.groups.iter().map(|group| group.counted).collect()
    }

    /// Returns the shares that the first groups would have if the request had no other groups.
    pub(super) fn first_shares(&self, groups: usize) -> Vec<Share> {
        let shares: Vec<Share> = self.groups[..groups].iter().map(|group| group.share).collect();
        let others = Others::of(&shares, !self.rests.is_empty());
        match self.rounding {
            Some(rounding) => percent::resolve(&shares, rounding, others),
            None => shares,
        }
    }

    /// Returns the rounding for a structured request, which rounds percentages to sets of SMs that are
    /// scheduled together. `available` returns the total number of SMs in sets of a given size.
    pub(crate) fn structured_rounding<E: From<Refusal>>(
        &self,
        sms: u32,
        device: Coscheduling,
        available: impl FnOnce(u32) -> Result<u32, E>,
    ) -> Result<Rounding, E> {
        let unit = self.structure.set_of_percentages(self.groups.len(), device)?;
        Ok(Rounding { sms, unit, units: available(unit)? / unit, odd: 0, is_equal: false })
    }

    /// Returns the request with counts in place of percentages. Returns `None`, without calling `rounding`,
    /// if there are no percentages. The copy is boxed, because a request has some 300 bytes and every caller
    /// moves the result.
    pub(crate) fn counted<E: From<Refusal>>(
        &self,
        rounding: impl FnOnce() -> Result<Rounding, E>,
    ) -> Result<Option<Box<SplitRequest>>, E> {
        if !self.groups.iter().any(|group| group.share.has_percent()) {
            return Ok(None);
        }
        let rounding = rounding()?;
        let mut request = Box::new(self.clone());
        self.groups
            .iter()
            .try_for_each(|group| percent::check(&group.name, group.share, rounding))?;
        request.rounding = Some(rounding);
        let counted = request.first_shares(self.groups.len());
        request.groups.iter_mut().zip(counted).for_each(|(group, share)| group.counted = share);
        Ok(Some(request))
    }

    /// Returns the shares as requested.
    pub(crate) fn requested(&self) -> Vec<Share> {
        self.groups.iter().map(|group| group.share).collect()
    }

    /// Returns the request with these shares. Groups for which there is no share are removed.
    pub(crate) fn with_shares(&self, shares: &[Share]) -> SplitRequest {
        let mut request = self.clone();
        request.groups.truncate(shares.len());
        request.groups.iter_mut().zip(shares).for_each(|(group, share)| {
            (group.share, group.counted) = (*share, *share);
        });
        request
    }

    /// Returns the priority of the first stream of the group's partition.
    pub(crate) fn priority_of(&self, name: &str) -> i32 {
        let of_name = self.priorities.iter().rfind(|(other, _)| **other == *name);
        of_name.map_or(0, |(_, priority)| *priority)
    }

    /// Returns whether all shares are exclusive.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.groups.iter().all(|group| group.share.is_exclusive())
    }

    /// Returns a name that two groups have, if there is one.
    pub(crate) fn twice(&self) -> Option<&str> {
        // Requests have few names, so comparing all pairs is cheaper than a set.
        let mut names = self.names().enumerate();
        names
            .find(|(index, name)| self.names().take(*index).any(|other| other == *name))
            .map(|(_, name)| name)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| &*group.name).chain(self.rests.iter().map(|name| &**name))
    }

    /// Fails if no device could meet the request.
    pub(crate) fn validate(&self) -> Result<(), Refusal> {
        if self.groups.is_empty() && self.rests.is_empty() {
            return Err(Refusal::invalid("a split needs at least one group"));
        }
        let is_unfit = |name: &&str| name.is_empty() || name.contains(char::is_control);
        if let Some(name) = self.names().find(is_unfit) {
            return Err(Refusal::invalid(match name {
                "" => "every group needs a name, but one group of the request has none".to_owned(),
                name => format!("the name {name:?} contains a control character; remove it"),
            }));
        }
        for RequestedGroup { name, share, .. } in &self.groups {
            if let Some(fault) = share.fault() {
                return Err(Refusal::invalid(format!("group {name} {fault}")));
            }
        }
        let percent: u32 = self.groups.iter().map(|group| group.share.floor_percent()).sum();
        if percent > 100 {
            return Err(Refusal::invalid(format!(
                "the floors add up to {percent}%; ask for at most 100%, or for ceilings such as ..50%"
            )));
        }
        if let Some(name) = self.twice() {
            return Err(Refusal::invalid(format!("two groups are named {name}")));
        }
        if let [first, second, ..] = self.rests.as_slice() {
            let reason =
                format!("groups {first} and {second} both ask for the rest; only one can take it");
            return Err(Refusal::invalid(reason));
        }
        if let Some((name, _)) =
            self.priorities.iter().find(|(name, _)| !self.names().any(|other| *other == **name))
        {
            let reason = format!(
                "a priority is set for group {name}, but the request has no group of that name"
            );
            return Err(Refusal::invalid(reason));
        }
        if let Some(name) =
            self.at_end.iter().find(|name| !self.names().any(|other| *other == ***name))
        {
            let reason =
                format!("`at_end` names group {name}, but the request has no group of that name");
            return Err(Refusal::invalid(reason));
        }
        self.validate_sharing()?;
        if let Some(only) = &self.only {
            if !self.names().any(|name| name == &**only) {
                return Err(Refusal::invalid(format!(
                    "`only` names group {only}, but the request has no group of that name"
                )));
            }
            if !self.is_structured() {
                let reason = "only a structured request gives its groups the same SMs each time; \
                              request the one group by its count";
                return Err(Refusal::invalid(reason));
            }
        }
        if !self.is_structured() {
            return Ok(());
        }
        if self.groups.is_empty() {
            let reason = "co-scheduling, backfill and locality apply to groups, but the \
                          request has none; add a group";
            return Err(Refusal::invalid(reason));
        }
        if self.granularity != Granularity::default() {
            let reason = "a granularity applies only to splits by count; in a structured \
                          request, set `coscheduled` instead";
            return Err(Refusal::invalid(reason));
        }
        self.structure.check(self.groups.len())
    }

    /// Fails for options that cannot be combined with shared groups.
    fn validate_sharing(&self) -> Result<(), Refusal> {
        if self.is_structured() {
            // Percentages become counts later.
            let is_percent = |group: &&RequestedGroup| group.share.floor_percent() > 0;
            let mut others = self
                .groups
                .iter()
                .filter(|group| !(is_percent(group) && group.share.is_exclusive()));
            others.try_for_each(|group| group.structured_count().map(drop))?;
        }
        let Some(sharer) = self.groups.iter().find(|group| !group.share.is_exclusive()) else {
            return Ok(());
        };
        let RequestedGroup { name, share, .. } = sharer;
        if self.overlapping {
            return Err(Refusal::invalid(format!(
                "group {name} asks for {share}, but an overlapping request takes only counts; ask for \
                 a count, or leave out `overlapping`"
            )));
        }
        let unbounded = self.groups.iter().find(|group| group.share.is_unbounded());
        if let (Some(group), Some(rest)) = (unbounded, self.rest_name()) {
            return Err(Refusal::invalid(format!(
                "group {rest} takes the rest, but {} of group {} leaves none; ask for `..` instead \
                 of the rest, or give {} a ceiling",
                group.share, group.name, group.name
            )));
        }
        Ok(())
    }

    /// Returns the parameters of the driver's structured split. Values that the CUDA header rules out are
    /// refused before the driver is called.
    pub(crate) fn structured_groups(
        &self,
        device: Coscheduling,
    ) -> Result<Vec<GroupParams>, Refusal> {
        let group = |(index, group): (usize, &RequestedGroup)| {
            self.structure.group(index, &group.name, group.structured_count()?, device)
        };
        self.groups.iter().enumerate().map(group).collect()
    }
}

/// Requests groups with these shares, named `p0`, `p1`, and so on. A range is one share, not a list of
/// counts.
impl<T: Into<Share> + Clone> From<&[T]> for SplitRequest {
    fn from(shares: &[T]) -> SplitRequest {
        let mut request = SplitRequest::new();
        request.groups.reserve_exact(shares.len());
        for (index, share) in shares.iter().cloned().enumerate() {
            request.add(numbered(index), share.into());
        }
        request
    }
}

impl<T: Into<Share> + Clone, const N: usize> From<[T; N]> for SplitRequest {
    fn from(shares: [T; N]) -> SplitRequest {
        SplitRequest::from(shares.as_slice())
    }
}

impl<T: Into<Share> + Clone, const N: usize> From<&[T; N]> for SplitRequest {
    fn from(shares: &[T; N]) -> SplitRequest {
        SplitRequest::from(shares.as_slice())
    }
}

impl<T: Into<Share> + Clone> From<Vec<T>> for SplitRequest {
    fn from(shares: Vec<T>) -> SplitRequest {
        SplitRequest::from(shares.as_slice())
    }
}

impl<T: Into<Share> + Clone> From<&Vec<T>> for SplitRequest {
    fn from(shares: &Vec<T>) -> SplitRequest {
        SplitRequest::from(shares.as_slice())
    }
}

/// Returns the name of a group for which the request gives no name. The names of the first groups are
/// constants and need no formatting.
fn numbered(index: usize) -> Arc<str> {
    const FEW: [&str; 8] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
    FEW.get(index).map_or_else(|| format!("p{index}").into(), |name| Arc::from(*name))
}

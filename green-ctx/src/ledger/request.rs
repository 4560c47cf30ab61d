//! Requests to split a device, and what they give.

use std::borrow::Cow;
use std::sync::Arc;

use super::percent::{self, Others, Rounding};
use super::refusal::Refusal;
use super::share::{Share, ShareKind};
use super::structure::{Coscheduling, GroupParams, LocalityDomain, PerGroup, Structure};
use super::units::Granularity;

/// How to divide SMs: groups with names and [shares](Share), and what happens to the rest.
///
/// A list of shares is a request: `[16, 24]` asks for groups named `p0` and `p1`.
///
/// # Example
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
/// A range is no list of counts, since `32..` would have no end. This does not compile:
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
    /// The names of groups that take the rest; a valid request has at most one.
    rests: Vec<Arc<str>>,
    priorities: Vec<(Arc<str>, i32)>,
    /// Groups whose floors are of the last units.
    at_end: Vec<Arc<str>>,
    pub(crate) granularity: Granularity,
    pub(crate) overlapping: bool,
    pub(crate) structure: Structure,
    /// The name of the one group that is taken; every group where there is none.
    only: Option<Arc<str>>,
    /// How its percentages were rounded.
    rounding: Option<Rounding>,
}

/// One group of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedGroup {
    pub(crate) name: Arc<str>,
    pub(crate) share: Share,
    /// The share with counts in place of percentages, once it is known what is divided.
    pub(crate) counted: Share,
}

impl RequestedGroup {
    /// The group's SMs as the driver's structured split takes them: 0 asks for as many as can be scheduled
    /// together.
    pub(crate) fn structured_count(&self) -> Result<u32, Refusal> {
        let RequestedGroup { name, share, counted } = self;
        match counted.kind() {
            ShareKind::Count(count) => Ok(count),
            ShareKind::Regular => Ok(0),
            ShareKind::Percent(_) | ShareKind::Between { .. } | ShareKind::Rest => {
                Err(Refusal::invalid(format!(
                    "group {name} asks for {share}, and a structured request takes counts; leave co-scheduling, \
                 backfill and locality out, or ask for a count"
                )))
            }
        }
    }
}

impl SplitRequest {
    /// A request for nothing yet.
    pub fn new() -> SplitRequest {
        SplitRequest::default()
    }

    /// Adds a group with a share: a count, a range of counts, or with `None` as many SMs as can be
    /// scheduled together ([`Share`] lists them).
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

    /// Takes all SMs that remain free as one more group, the last one, if any do.
    pub fn rest(mut self, name: impl Into<Arc<str>>) -> Self {
        self.rests.push(name.into());
        self
    }

    /// Sets the priority of the stream that a group's partition comes with; lower numbers run first,
    /// and the driver clamps it to its range. A split makes no streams and does not use it.
    pub fn priority(mut self, name: impl Into<Arc<str>>, priority: i32) -> Self {
        self.priorities.push((name.into(), priority));
        self
    }

    /// Takes the floor of a group from the last units that are free, where it would have the first ones. Requests
    /// in which one group grows from the front and another from the end give both the same SMs
    /// whenever they ask for as many, and so need few contexts.
    pub fn at_end(mut self, name: impl Into<Arc<str>>) -> Self {
        self.at_end.push(name.into());
        self
    }

    /// Whether a group's floor is of the last units.
    pub(crate) fn is_at_end(&self, name: &str) -> bool {
        self.at_end.iter().any(|other| **other == *name)
    }

    /// Sets how finely the device is cut. All groups of a device share one granularity.
    pub const fn granularity(mut self, granularity: Granularity) -> Self {
        self.granularity = granularity;
        self
    }

    /// Gives each group as many SMs as its count, rounded up to whole units, all of them shared and none
    /// for sure: they may be any that are in nobody's floor. Groups of one request share none with each other.
    ///
    /// Work of groups that share SMs competes for them, and nothing orders it. While the groups live,
    /// nobody gets their SMs for a floor. Where nobody has a floor, the granularity may be another than that
    /// of the groups that are out; nobody gets any floor then while both live.
    pub const fn overlapping(mut self, overlapping: bool) -> Self {
        self.overlapping = overlapping;
        self
    }

    /// Sets how many SMs of a group are scheduled together, so that clusters fit: an even count up to
    /// 32 on devices of compute capability 9.0 and up, 2 on older ones; 0 is the device's own
    /// [alignment](crate::resource::SmResource::alignment). One count for all groups, or a list with one for
    /// each. A group's SMs must be a multiple of it.
    ///
    /// This makes the request a *structured* one, for which the driver's own split is used: it needs
    /// CUDA 13.1 or newer, rounds nothing, and is met from SMs of which none is held
    /// ([`SmResource::split`](crate::resource::SmResource::split)). From the header; not yet run on hardware.
    #[doc(alias = "coscheduledSmCount")]
    pub fn coscheduled(mut self, sm_count: impl Into<PerGroup<u32>>) -> Self {
        self.structure.coscheduled = Some(sm_count.into());
        self
    }

    /// Sets into how large pieces the driver may merge what is scheduled together, where it can, for
    /// preferred cluster dimensions (compute capability 10.0 and up). Makes the request a structured
    /// one, as [`coscheduled`](SplitRequest::coscheduled) does; CUDA 13.1 or newer, not yet run on
    /// hardware.
    #[doc(alias = "preferredCoscheduledSmCount")]
    pub fn preferred_coscheduled(mut self, sm_count: impl Into<PerGroup<u32>>) -> Self {
        self.structure.preferred = Some(sm_count.into());
        self
    }

    /// Lets groups be filled up with SMs that are not scheduled together, to reach an even count that
    /// the constraints alone do not give. Makes the request a structured one, as
    /// [`coscheduled`](SplitRequest::coscheduled) does; CUDA 13.1 or newer, not yet run on hardware.
    #[doc(alias = "CU_DEV_SM_RESOURCE_GROUP_BACKFILL")]
    pub fn backfill(mut self, backfill: impl Into<PerGroup<bool>>) -> Self {
        self.structure.backfill = Some(backfill.into());
        self
    }

    /// Takes the groups' SMs from certain locality domains. Makes the request a structured one, as
    /// [`coscheduled`](SplitRequest::coscheduled) does; CUDA 13.4 or newer, not yet run on hardware.
    #[doc(alias = "CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID")]
    pub fn locality_domain(mut self, domain: impl Into<PerGroup<LocalityDomain>>) -> Self {
        self.structure.locality = Some(domain.into());
        self
    }

    /// Lets groups have SMs of their [locality domain](SplitRequest::locality_domain) beyond those that the
    /// driver counts for each ([`Device::locality_domains`](crate::Device::locality_domains)): a larger
    /// domain has more. CUDA 13.5 or newer, not yet run on hardware.
    #[doc(alias = "CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS")]
    pub fn supplemental(mut self, supplemental: impl Into<PerGroup<bool>>) -> Self {
        let supplemental = supplemental.into();
        self.structure.supplemental = supplemental.any().then_some(supplemental);
        self
    }

    /// Takes only the group of this name of a structured request, and leaves the SMs of the others free.
    /// A request with the same groups gives each of them the same SMs, so that another one can be taken
    /// later, beside this one.
    ///
    /// # Example
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

    /// Whether a group of this name is taken.
    pub(crate) fn takes(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == name)
    }

    /// Whether one group is taken of several.
    pub(crate) fn is_partial(&self) -> bool {
        self.only.is_some()
    }

    /// Whether the rest is all that is taken.
    pub(crate) fn takes_rest_alone(&self) -> bool {
        self.is_partial() && self.rest_name().is_some_and(|name| self.takes(name))
    }

    /// Whether only the driver's structured split can meet the request.
    pub(crate) fn is_structured(&self) -> bool {
        !self.structure.is_empty()
    }

    /// The name of the group that takes the rest.
    pub(crate) fn rest_name(&self) -> Option<&Arc<str>> {
        self.rests.first()
    }

    /// The shares of the groups besides the rest, in order, as counts if the request was
    /// [counted](SplitRequest::counted).
    pub(crate) fn shares(&self) -> Vec<Share> {
        self.groups.iter().map(|group| group.counted).collect()
    }

    /// The shares of the first groups as they would be without the others.
    pub(super) fn first_shares(&self, groups: usize) -> Vec<Share> {
        let shares: Vec<Share> = self.groups[..groups].iter().map(|group| group.share).collect();
        let others = Others::of(&shares, !self.rests.is_empty());
        match self.rounding {
            Some(rounding) => percent::resolve(&shares, rounding, others),
            None => shares,
        }
    }

    /// How percentages of a structured request are rounded: to sets of SMs that are scheduled together, of which
    /// `available` tells how many SMs there are in sets of a size.
    pub(crate) fn structured_rounding<E: From<Refusal>>(
        &self,
        sms: u32,
        device: Coscheduling,
        available: impl FnOnce(u32) -> Result<u32, E>,
    ) -> Result<Rounding, E> {
        let unit = self.structure.set_of_percentages(self.groups.len(), device)?;
        Ok(Rounding { sms, unit, units: available(unit)? / unit, odd: 0, is_equal: false })
    }

    /// The same request with counts in place of percentages. `rounding` is called only if it has any.
    pub(crate) fn counted<E: From<Refusal>>(
        &self,
        rounding: impl FnOnce() -> Result<Rounding, E>,
    ) -> Result<Cow<'_, SplitRequest>, E> {
        if !self.groups.iter().any(|group| group.share.has_percent()) {
            return Ok(Cow::Borrowed(self));
        }
        let mut request = self.clone();
        let rounding = rounding()?;
        self.groups
            .iter()
            .try_for_each(|group| percent::check(&group.name, group.share, rounding))?;
        request.rounding = Some(rounding);
        let counted = request.first_shares(self.groups.len());
        request.groups.iter_mut().zip(counted).for_each(|(group, share)| group.counted = share);
        Ok(Cow::Owned(request))
    }

    /// The shares as they were requested.
    pub(crate) fn requested(&self) -> Vec<Share> {
        self.groups.iter().map(|group| group.share).collect()
    }

    /// The same for as many groups as there are shares.
    pub(crate) fn with_shares(&self, shares: &[Share]) -> SplitRequest {
        let mut request = self.clone();
        request.groups.truncate(shares.len());
        request.groups.iter_mut().zip(shares).for_each(|(group, share)| {
            (group.share, group.counted) = (*share, *share);
        });
        request
    }

    /// The priority of a group's first stream.
    pub(crate) fn priority_of(&self, name: &str) -> i32 {
        let of_name = self.priorities.iter().rfind(|(other, _)| **other == *name);
        of_name.map_or(0, |(_, priority)| *priority)
    }

    /// Whether no group asks to share SMs.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.groups.iter().all(|group| group.share.is_exclusive())
    }

    /// A name that two groups have.
    pub(crate) fn twice(&self) -> Option<&str> {
        // There are few names, and a split is to cost little.
        let earlier =
            |index: usize, name: &str| self.names().take(index).any(|other| other == name);
        self.names().enumerate().find(|(index, name)| earlier(*index, name)).map(|(_, name)| name)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| &*group.name).chain(self.rests.iter().map(|name| &**name))
    }

    /// Refuses what no device could give.
    pub(crate) fn validate(&self) -> Result<(), Refusal> {
        if self.groups.is_empty() && self.rests.is_empty() {
            return Err(Refusal::invalid("a split needs at least one group"));
        }
        if self.names().any(|name| name.is_empty()) {
            return Err(Refusal::invalid("a group needs a name, and one of the request has none"));
        }
        if let Some(name) = self.names().find(|name| name.contains(char::is_control)) {
            return Err(Refusal::invalid(format!("the name {name:?} has a control character")));
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
                format!("groups {first} and {second} both ask for the rest; one can take it");
            return Err(Refusal::invalid(reason));
        }
        if let Some((name, _)) =
            self.priorities.iter().find(|(name, _)| !self.names().any(|other| *other == **name))
        {
            let reason = format!(
                "a priority is set for group {name}, and the request has none of that name"
            );
            return Err(Refusal::invalid(reason));
        }
        if let Some(name) =
            self.at_end.iter().find(|name| !self.names().any(|other| *other == ***name))
        {
            let reason = format!(
                "group {name} is to be from the end, and the request has none of that name"
            );
            return Err(Refusal::invalid(reason));
        }
        self.validate_sharing()?;
        if let Some(only) = &self.only {
            if !self.names().any(|name| name == &**only) {
                return Err(Refusal::invalid(format!(
                    "only group {only} is to be taken, and the request has none of that name"
                )));
            }
            if !self.is_structured() {
                let reason = "only a structured request gives its groups the same SMs each time; \
                              ask for the one group by its count";
                return Err(Refusal::invalid(reason));
            }
        }
        if !self.is_structured() {
            return Ok(());
        }
        if self.groups.is_empty() {
            let reason = "co-scheduling, backfill and locality are asked for groups, and the \
                          request has none";
            return Err(Refusal::invalid(reason));
        }
        if self.granularity != Granularity::default() {
            let reason = "a granularity is for splits by count; a structured request says with \
                          `coscheduled` what is scheduled together";
            return Err(Refusal::invalid(reason));
        }
        self.structure.check(self.groups.len())
    }

    /// Refuses what does not go with groups that share SMs.
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
                "group {name} asks for {share}, and an overlapping request takes counts; a share \
                 says by itself what it shares"
            )));
        }
        let unbounded = self.groups.iter().find(|group| group.share.is_unbounded());
        if let (Some(group), Some(rest)) = (unbounded, self.rest_name()) {
            return Err(Refusal::invalid(format!(
                "group {rest} takes the rest, and {} of group {} leaves none; ask for `..` instead \
                 of the rest, or give {} a ceiling",
                group.share, group.name, group.name
            )));
        }
        Ok(())
    }

    /// The groups as the driver's structured split takes them. Refuses what the header rules out,
    /// before the driver is asked.
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

/// Groups of these shares, named `p0`, `p1`, … A range is one share and no list of counts.
impl<T: Into<Share> + Clone> From<&[T]> for SplitRequest {
    fn from(shares: &[T]) -> SplitRequest {
        let mut request = SplitRequest::new();
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

/// The name of a group that was given none. Most often there are few.
fn numbered(index: usize) -> Arc<str> {
    const FEW: [&str; 8] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
    FEW.get(index).map_or_else(|| format!("p{index}").into(), |name| Arc::from(*name))
}

/// What a split would give now. Nothing is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DryRun {
    /// The smallest piece that the device is cut into, in SMs.
    pub unit: u32,
    /// The groups, in the request's order.
    pub groups: Vec<GroupSms>,
    /// The SMs that no group uses, or those of the group that takes the rest.
    pub remainder: u32,
    /// The SMs that later floors could have. An unbounded share (`32..`, `..`) leaves none: whoever
    /// needs a floor beside it asks for both in one request, gives it a ceiling, or uses plans.
    pub free_for_floors: u32,
    /// The SMs in quarantine: the work of a former user could not be recorded. A split tries again to record it,
    /// and may have these SMs too; a dry run only reads, and counts on none of them.
    pub quarantined: u32,
}

/// A group of SMs by its numbers: what was requested, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupSms {
    /// The group's name.
    pub name: Arc<str>,
    /// The share that was requested; [`Share::REST`] for what remained.
    pub share: Share,
    /// The SMs that no other group may use.
    pub floor: u32,
    /// The SMs that the group may use: its ceiling.
    pub sm_count: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Coscheduling = Coscheduling { default: 8, most: 32 };

    fn groups(request: SplitRequest) -> Result<Vec<GroupParams>, Refusal> {
        request.validate()?;
        request.structured_groups(H200)
    }

    fn refusal(request: SplitRequest) -> String {
        match groups(request) {
            Err(Refusal::InvalidRequest(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_value_is_for_all_groups_and_a_list_for_each() {
        let given = groups(SplitRequest::from([16, 32]).coscheduled(16)).expect("valid");
        assert_eq!(given.iter().map(|group| group.coscheduled).collect::<Vec<_>>(), [16, 16]);
        let given = groups(SplitRequest::from([16, 32]).coscheduled([4, 32])).expect("valid");
        assert_eq!(given.iter().map(|group| group.coscheduled).collect::<Vec<_>>(), [4, 32]);
        let given = groups(SplitRequest::from([16, 20]).backfill([false, true])).expect("valid");
        assert_eq!(given.iter().map(|group| group.backfill).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn lists_must_be_as_long_as_the_request() {
        let wrong = [
            SplitRequest::from([16, 16, 16]).coscheduled([8, 8]),
            SplitRequest::from([16, 16, 16]).preferred_coscheduled(vec![8; 4]),
            SplitRequest::from([16, 16, 16]).backfill([true]),
            SplitRequest::from([16, 16, 16]).locality_domain(Vec::new()),
        ];
        for (request, count) in wrong.into_iter().zip([2, 4, 1, 0]) {
            let error = refusal(request);
            assert!(error.contains(&format!("given for {count} groups, and the request has 3")));
        }
    }

    #[test]
    fn supplemental_sms_are_of_a_domain() {
        let error = refusal(SplitRequest::from([16]).supplemental(true));
        assert!(error.contains("say of which"), "{error}");
        assert!(!SplitRequest::from([16]).supplemental(false).is_structured());
        let domain = SplitRequest::from([16, 16]).locality_domain(LocalityDomain::Id(1));
        let given = groups(domain.supplemental([true, false])).expect("valid");
        assert_eq!(given.iter().map(|group| group.supplemental).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn counts_follow_the_header() {
        assert!(groups(SplitRequest::from([20]).backfill(true)).is_ok());
        assert!(groups(SplitRequest::from([20]).coscheduled(4)).is_ok());
        assert!(groups(SplitRequest::new().group("all", None).coscheduled(8)).is_ok());
        for (request, needle) in [
            (SplitRequest::from([20]).coscheduled(8), "ask for 16 or 24"),
            (SplitRequest::from([4]).coscheduled(8), "ask for 8, or"),
            // The device's own alignment is what a count is measured by where nothing is asked.
            (SplitRequest::from([20]).backfill(false), "ask for 16 or 24"),
            (SplitRequest::from([17]).backfill(true), "16 or 18"),
            (SplitRequest::from([16]).coscheduled(7), "7 co-scheduled SMs"),
            (SplitRequest::from([64]).coscheduled(64), "an even count up to 32"),
            (SplitRequest::from([64]).preferred_coscheduled(34), "34 preferred co-scheduled SMs"),
        ] {
            let error = refusal(request);
            assert!(error.contains(needle), "{error}");
        }
    }
}

//! Requests to split a device, and what they give.

use std::sync::Arc;

use super::cut::Granularity;
use super::refusal::Refusal;
use super::structure::{Coscheduling, GroupParams, LocalityDomain, PerGroup, Structure};

/// How to split SMs: groups with names and counts, and what happens to the rest.
///
/// A list of counts is a request: `resource.split([16, 24])` makes groups named `p0` and `p1`.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, SplitRequest, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let request = SplitRequest::new().group("decode", 16).rest("prefill");
/// let split = device.resources().sm()?.split(request)?;
/// assert_eq!(split.groups[0].sm_count(), 16);
/// assert_eq!(split.remainder.map(|rest| rest.sm_count()), Some(116));
/// # Ok(())
/// # }
/// ```
///
/// A range is no list of counts, since `32..` would have no end. This does not compile:
///
/// ```compile_fail,E0277
/// # fn endless(sms: green_ctx::SmResource) -> green_ctx::Result<()> {
/// sms.split(32..)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a request does nothing until passed to a split"]
pub struct SplitRequest {
    pub(crate) groups: Vec<RequestedGroup>,
    pub(crate) rest: Option<Arc<str>>,
    pub(crate) granularity: Granularity,
    pub(crate) overlapping: bool,
    pub(crate) structure: Structure,
}

/// One group of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedGroup {
    pub(crate) name: Arc<str>,
    /// `None` asks for as many as there are.
    pub(crate) sm_count: Option<u32>,
}

impl SplitRequest {
    /// A request for nothing yet.
    pub fn new() -> SplitRequest {
        SplitRequest::default()
    }

    /// Adds a group of at least `sm_count` SMs, or with `None` of as many as can be scheduled
    /// together: all regular units that are still free.
    pub fn group(mut self, name: impl Into<Arc<str>>, sm_count: impl Into<Option<u32>>) -> Self {
        let (name, sm_count) = (name.into(), sm_count.into());
        self.groups.push(RequestedGroup { name, sm_count });
        self
    }

    /// Takes all SMs that remain free as one more group, if any do.
    pub fn rest(mut self, name: impl Into<Arc<str>>) -> Self {
        self.rest = Some(name.into());
        self
    }

    /// Sets how finely the device is cut. All groups of a device share one granularity.
    pub const fn granularity(mut self, granularity: Granularity) -> Self {
        self.granularity = granularity;
        self
    }

    /// Lets the groups share SMs with any other group of the device, and take none from the ledger:
    /// the counts are met from the whole device, whoever holds it. Groups of one request are
    /// disjoint among themselves.
    ///
    /// Work of groups that share SMs competes for them, and nothing orders it. Only whoever takes SMs of
    /// such a group once it is gone waits for what it left there.
    pub const fn overlapping(mut self, overlapping: bool) -> Self {
        self.overlapping = overlapping;
        self
    }

    /// Sets how many SMs of a group are scheduled together, so that clusters fit: an even count up to
    /// 32 on devices of compute capability 9.0 and up, 2 on older ones; 0 is the device's own
    /// [alignment](crate::SmResource::alignment). One count for all groups, or a list with one for
    /// each. A group's SMs must be a multiple of it.
    ///
    /// This makes the request a *structured* one, for which the driver's own split is used: it needs
    /// CUDA 13.1 or newer, rounds nothing, and is met from SMs of which none is held
    /// ([`SmResource::split`](crate::SmResource::split)). From the header; not yet run on hardware.
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

    /// Whether only the driver's structured split can meet the request.
    pub(crate) fn is_structured(&self) -> bool {
        !self.structure.is_empty()
    }

    /// Refuses what no device could give.
    pub(crate) fn validate(&self) -> Result<(), Refusal> {
        if self.groups.is_empty() && self.rest.is_none() {
            return Err(Refusal::invalid("a split needs at least one group"));
        }
        if let Some(group) = self.groups.iter().find(|group| group.sm_count == Some(0)) {
            let reason = format!("group {} asks for 0 SMs; ask for 1 or more", group.name);
            return Err(Refusal::invalid(reason));
        }
        if !self.is_structured() {
            return Ok(());
        }
        if self.groups.is_empty() {
            let reason = "co-scheduling, backfill and locality are wishes for groups, and the \
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

    /// The groups as the driver's structured split takes them. Refuses what the header rules out,
    /// before the driver is asked.
    pub(crate) fn structured_groups(
        &self,
        device: Coscheduling,
    ) -> Result<Vec<GroupParams>, Refusal> {
        let group = |(index, group): (usize, &RequestedGroup)| {
            self.structure.group(index, &group.name, group.sm_count, device)
        };
        self.groups.iter().enumerate().map(group).collect()
    }
}

/// Groups of these counts. Ranges are not taken for lists of counts: `32..` would have no end.
impl From<&[u32]> for SplitRequest {
    fn from(counts: &[u32]) -> SplitRequest {
        let groups = counts.iter().enumerate().map(|(index, sm_count)| RequestedGroup {
            name: numbered(index),
            sm_count: Some(*sm_count),
        });
        SplitRequest { groups: groups.collect(), ..SplitRequest::new() }
    }
}

impl<const N: usize> From<[u32; N]> for SplitRequest {
    fn from(counts: [u32; N]) -> SplitRequest {
        SplitRequest::from(counts.as_slice())
    }
}

impl<const N: usize> From<&[u32; N]> for SplitRequest {
    fn from(counts: &[u32; N]) -> SplitRequest {
        SplitRequest::from(counts.as_slice())
    }
}

impl From<Vec<u32>> for SplitRequest {
    fn from(counts: Vec<u32>) -> SplitRequest {
        SplitRequest::from(counts.as_slice())
    }
}

impl From<&Vec<u32>> for SplitRequest {
    fn from(counts: &Vec<u32>) -> SplitRequest {
        SplitRequest::from(counts.as_slice())
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
    pub groups: Vec<DryRunGroup>,
    /// The SMs that remain free beside the groups, or in the group that takes the rest.
    pub remainder: u32,
}

/// One group of a [`DryRun`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DryRunGroup {
    /// The name.
    pub name: Arc<str>,
    /// The SMs asked for; `None` for as many as there are.
    pub requested: Option<u32>,
    /// The SMs that it gets: as many, or the next count that the device can give.
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
    fn counts_follow_the_header() {
        assert!(groups(SplitRequest::from([20]).backfill(true)).is_ok());
        assert!(groups(SplitRequest::from([20]).coscheduled(4)).is_ok());
        assert!(groups(SplitRequest::new().group("all", None).coscheduled(8)).is_ok());
        for (request, needle) in [
            (SplitRequest::from([20]).coscheduled(8), "ask for 16 or 24"),
            (SplitRequest::from([4]).coscheduled(8), "ask for 8, or"),
            // The device's own alignment is what a count without a wish is measured by.
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

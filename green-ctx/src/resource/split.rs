//! Requests to split a device, and what they give.

use std::sync::Arc;

use super::sm::SmGroup;
use super::unit::Granularity;
use crate::error::{Error, Result};

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
/// let split = device.sm_resource()?.split(request)?;
/// assert_eq!(split.groups[0].sm_count(), 16);
/// assert_eq!(split.remainder.map(|rest| rest.sm_count()), Some(116));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a request does nothing until passed to a split"]
pub struct SplitRequest {
    pub(super) groups: Vec<RequestedGroup>,
    pub(super) rest: Option<Arc<str>>,
    pub(super) granularity: Granularity,
    pub(super) overlapping: bool,
}

/// One group of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestedGroup {
    pub(super) name: Arc<str>,
    /// `None` asks for as many as there are.
    pub(super) sm_count: Option<u32>,
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
    /// Work of groups that share SMs competes for them, and nothing orders it.
    pub const fn overlapping(mut self, overlapping: bool) -> Self {
        self.overlapping = overlapping;
        self
    }

    /// Refuses what no device could give.
    pub(super) fn validate(&self) -> Result<()> {
        if self.groups.is_empty() && self.rest.is_none() {
            return Err(Error::InvalidRequest("a split needs at least one group".to_owned()));
        }
        match self.groups.iter().find(|group| group.sm_count == Some(0)) {
            Some(RequestedGroup { name, .. }) => Err(Error::InvalidRequest(format!(
                "group {name} asks for 0 SMs; ask for 1 or more"
            ))),
            None => Ok(()),
        }
    }
}

impl<I: IntoIterator<Item = u32>> From<I> for SplitRequest {
    fn from(counts: I) -> SplitRequest {
        counts.into_iter().enumerate().fold(SplitRequest::new(), |request, (index, sm_count)| {
            request.group(format!("p{index}"), sm_count)
        })
    }
}

/// What a split would give now. Nothing is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The smallest piece that the device is cut into, in SMs.
    pub unit: u32,
    /// The groups, in the request's order.
    pub groups: Vec<PlannedGroup>,
    /// The SMs that remain free beside the groups, or in the group that takes the rest.
    pub remainder: u32,
}

/// One group of a [`Plan`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedGroup {
    /// The name.
    pub name: Arc<str>,
    /// The SMs asked for; `None` for as many as there are.
    pub requested: Option<u32>,
    /// The SMs that it gets: as many, or the next count that the device can give.
    pub sm_count: u32,
}

/// The groups that a split took, to be made into contexts or dropped.
#[derive(Debug)]
#[non_exhaustive]
pub struct Split {
    /// The groups, in the request's order.
    pub groups: Vec<SmGroup>,
    /// What remained, when the request takes it and something did.
    pub remainder: Option<SmGroup>,
}

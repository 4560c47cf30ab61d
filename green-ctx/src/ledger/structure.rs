//! Structured requests: how the SMs of a group are scheduled together, from CUDA 13.1 on.

use std::fmt;

use super::refusal::Refusal;

/// One value for all groups of a request, or one for each.
///
/// A value turns into the former, a list into the latter; a list must be as long as the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerGroup<T>(Values<T>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Values<T> {
    All(T),
    Each(Vec<T>),
}

impl<T> From<T> for PerGroup<T> {
    fn from(value: T) -> PerGroup<T> {
        PerGroup(Values::All(value))
    }
}

impl<T> From<Vec<T>> for PerGroup<T> {
    fn from(values: Vec<T>) -> PerGroup<T> {
        PerGroup(Values::Each(values))
    }
}

impl<T, const N: usize> From<[T; N]> for PerGroup<T> {
    fn from(values: [T; N]) -> PerGroup<T> {
        PerGroup(Values::Each(values.into()))
    }
}

impl PerGroup<bool> {
    /// Whether it is true of some group.
    pub(super) fn any(&self) -> bool {
        match &self.0 {
            Values::All(value) => *value,
            Values::Each(values) => values.contains(&true),
        }
    }
}

impl<T: Copy> PerGroup<T> {
    /// Refuses a list of another length than the request's.
    fn check(&self, what: &str, groups: usize) -> Result<(), Refusal> {
        match &self.0 {
            Values::Each(values) if values.len() != groups => Err(Refusal::invalid(format!(
                "{what} is given for {} groups, and the request has {groups}; give one value for \
                 all, or as many as there are groups",
                values.len()
            ))),
            _ => Ok(()),
        }
    }

    /// The value for a group of a checked request.
    fn of(&self, group: usize) -> Option<T> {
        match &self.0 {
            Values::All(value) => Some(*value),
            Values::Each(values) => values.get(group).copied(),
        }
    }
}

/// A part of the device whose SMs are near to one memory, from CUDA 13.4 on.
///
/// From the header; not yet run on hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID")]
pub enum LocalityDomain {
    /// Any SMs that belong to some domain.
    Any,
    /// The SMs of the domain of this number.
    Id(u32),
}

/// What of a request needs the driver's structured split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Structure {
    pub(crate) coscheduled: Option<PerGroup<u32>>,
    pub(crate) preferred: Option<PerGroup<u32>>,
    pub(crate) backfill: Option<PerGroup<bool>>,
    pub(crate) locality: Option<PerGroup<LocalityDomain>>,
    pub(crate) supplemental: Option<PerGroup<bool>>,
}

/// One group of a structured split, as the driver takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupParams {
    /// 0 for as many as there are.
    pub(crate) sm_count: u32,
    /// Never 0, which means other counts to other drivers where the group is to have as many SMs as
    /// there are (NVIDIA/cuda-python, pull request 2389).
    pub(crate) coscheduled: u32,
    pub(crate) preferred: u32,
    pub(crate) backfill: bool,
    pub(crate) locality: Option<LocalityDomain>,
    /// Only of a locality domain.
    pub(crate) supplemental: bool,
}

impl GroupParams {
    /// A group of which only the count is requested.
    pub(crate) fn plain(sm_count: u32, coscheduled: u32) -> GroupParams {
        GroupParams {
            sm_count,
            coscheduled,
            preferred: 0,
            backfill: false,
            locality: None,
            supplemental: false,
        }
    }
}

/// The count alone, for messages.
impl fmt::Display for GroupParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sm_count {
            0 => f.write_str("any number of"),
            count => write!(f, "{count}"),
        }
    }
}

/// What a device makes of co-scheduled counts.
#[derive(Clone, Copy)]
pub(crate) struct Coscheduling {
    /// The count where none is asked for, in SMs.
    pub(crate) default: u32,
    /// The largest count, in SMs.
    pub(crate) most: u32,
}

impl Structure {
    /// Whether nothing needs a structured split.
    pub(super) fn is_empty(&self) -> bool {
        *self == Structure::default()
    }

    /// Refuses lists of other lengths than the request's.
    pub(super) fn check(&self, groups: usize) -> Result<(), Refusal> {
        let Structure { coscheduled, preferred, backfill, locality, supplemental } = self;
        let check = |values: &Option<PerGroup<u32>>, what| {
            values.as_ref().map_or(Ok(()), |values| values.check(what, groups))
        };
        check(coscheduled, "a co-scheduled count")?;
        check(preferred, "a preferred co-scheduled count")?;
        backfill.as_ref().map_or(Ok(()), |values| values.check("backfill", groups))?;
        supplemental.as_ref().map_or(Ok(()), |values| values.check("supplemental SMs", groups))?;
        match locality {
            Some(values) => values.check("a locality domain", groups),
            None if supplemental.is_some() => Err(Refusal::invalid(
                "supplemental SMs are those of a locality domain; say of which".to_owned(),
            )),
            None => Ok(()),
        }
    }

    /// The number of SMs that are scheduled together in each group of a request with percentages. It must be one number,
    /// since they are rounded together, and they do not count the SMs of a domain.
    pub(super) fn set_of_percentages(
        &self,
        groups: usize,
        device: Coscheduling,
    ) -> Result<u32, Refusal> {
        if self.locality.is_some() {
            let reason =
                "percentages count all SMs, and a locality domain has some of them; ask for counts";
            return Err(Refusal::invalid(reason));
        }
        let of = |group| self.coscheduled.as_ref().and_then(|values| values.of(group)).unwrap_or(0);
        let set = |group| if of(group) == 0 { device.default } else { of(group) };
        let first = set(0).max(1);
        match (0..groups).map(set).find(|other| *other != set(0)) {
            Some(other) => Err(Refusal::invalid(format!(
                "percentages are rounded together, and the groups have {first} and {other} co-scheduled SMs; give all \
                 groups the same number, or ask for counts"
            ))),
            None => Ok(first),
        }
    }

    /// One group of a request as the driver takes it. Refuses what the header rules out, before the
    /// driver is asked.
    pub(super) fn group(
        &self,
        index: usize,
        name: &str,
        sm_count: u32,
        device: Coscheduling,
    ) -> Result<GroupParams, Refusal> {
        let pick = |values: &Option<PerGroup<u32>>| {
            values.as_ref().and_then(|values| values.of(index)).unwrap_or(0)
        };
        let coscheduled = match pick(&self.coscheduled) {
            0 => device.default,
            count => count,
        };
        let mut params = GroupParams::plain(sm_count, coscheduled);
        params.preferred = pick(&self.preferred);
        let flag = |values: &Option<PerGroup<bool>>| {
            values.as_ref().and_then(|values| values.of(index)).unwrap_or(false)
        };
        params.backfill = flag(&self.backfill);
        params.supplemental = flag(&self.supplemental);
        params.locality = self.locality.as_ref().and_then(|values| values.of(index));
        validate(name, params, device)?;
        Ok(params)
    }
}

/// The header's rules for one group: even counts, and multiples of what is scheduled together unless
/// the rest is filled up.
fn validate(name: &str, group: GroupParams, device: Coscheduling) -> Result<(), Refusal> {
    let most = device.most;
    let wrong = |reason: String| Err(Refusal::invalid(format!("group {name} {reason}")));
    for (what, count) in
        [("co-scheduled", group.coscheduled), ("preferred co-scheduled", group.preferred)]
    {
        if !count.is_multiple_of(2) || count > most {
            return wrong(format!(
                "asks for {count} {what} SMs; on this device it can be an even count up to {most}"
            ));
        }
    }
    let count = group.sm_count;
    if !count.is_multiple_of(2) {
        let nearest = match (count - 1, count.checked_add(1)) {
            (0, _) => "2".to_owned(),
            (less, None) => less.to_string(),
            (less, Some(more)) => format!("{less} or {more}"),
        };
        return wrong(format!(
            "asks for {count} SMs; a structured group has an even count: {nearest}"
        ));
    }
    let step = group.coscheduled.max(1);
    if !group.backfill && !count.is_multiple_of(step) {
        let less = count / step * step;
        let nearest = match less {
            0 => step.to_string(),
            less => format!("{less} or {}", less.saturating_add(step)),
        };
        return wrong(format!(
            "asks for {count} SMs, of which {step} at a time are scheduled together; ask for \
             {nearest}, or let it be filled up with other SMs (backfill)"
        ));
    }
    Ok(())
}

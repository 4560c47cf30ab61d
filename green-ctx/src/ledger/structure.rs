//! Structured requests, which set how many SMs of a group are scheduled together (CUDA 13.1 and newer).

use std::fmt;

use super::refusal::Refusal;

/// One value for all groups of a request, or one value per group.
///
/// A single value applies to all groups. A list must have as many values as the request has groups.
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
    /// Returns whether the value is true for at least one group.
    pub(super) fn any(&self) -> bool {
        match &self.0 {
            Values::All(value) => *value,
            Values::Each(values) => values.contains(&true),
        }
    }
}

impl<T: Copy> PerGroup<T> {
    /// Fails if there is a list whose length is not the number of groups.
    fn check(&self, what: &str, groups: usize) -> Result<(), Refusal> {
        match &self.0 {
            Values::Each(values) if values.len() != groups => Err(Refusal::invalid(format!(
                "{what} is given for {} groups, but the request has {groups}; give one value for \
                 all groups, or one per group",
                values.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the value for a group. The request must have passed [`check`](PerGroup::check).
    fn of(&self, group: usize) -> Option<T> {
        match &self.0 {
            Values::All(value) => Some(*value),
            Values::Each(values) => values.get(group).copied(),
        }
    }
}

/// A part of the device whose SMs are close to the same memory (CUDA 13.4 and newer).
///
/// Support for locality domains follows the CUDA header, and has not yet run on hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID")]
pub enum LocalityDomain {
    /// Any SMs that belong to a domain.
    Any,
    /// The SMs of the domain with this number.
    Id(u32),
}

/// The options of a request that need the driver's structured split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Structure {
    pub(crate) coscheduled: Option<PerGroup<u32>>,
    pub(crate) preferred: Option<PerGroup<u32>>,
    pub(crate) backfill: Option<PerGroup<bool>>,
    pub(crate) locality: Option<PerGroup<LocalityDomain>>,
    pub(crate) supplemental: Option<PerGroup<bool>>,
}

/// The parameters of one group in the driver's structured split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupParams {
    /// The group's SMs; 0 for as many as possible.
    pub(crate) sm_count: u32,
    /// The number of SMs that are scheduled together. This number is never 0, because drivers differ in the
    /// meaning of 0 if `sm_count` is 0 (NVIDIA/cuda-python, pull request 2389).
    pub(crate) coscheduled: u32,
    pub(crate) preferred: u32,
    pub(crate) backfill: bool,
    pub(crate) locality: Option<LocalityDomain>,
    /// True only if `locality` is set.
    pub(crate) supplemental: bool,
}

impl GroupParams {
    /// Returns the parameters of a group without further options.
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

/// Shows the count alone, for use in messages.
impl fmt::Display for GroupParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sm_count {
            0 => f.write_str("any number of"),
            count => write!(f, "{count}"),
        }
    }
}

/// The co-scheduled counts that a device accepts.
#[derive(Clone, Copy)]
pub(crate) struct Coscheduling {
    /// The number of SMs that applies if the request sets no count.
    pub(crate) default: u32,
    /// The largest count, in SMs.
    pub(crate) most: u32,
}

impl Structure {
    /// Returns whether the request needs no structured split.
    pub(super) fn is_empty(&self) -> bool {
        // A comparison with the default would create and drop one, at every split.
        let Structure { coscheduled, preferred, backfill, locality, supplemental } = self;
        coscheduled.is_none()
            && preferred.is_none()
            && backfill.is_none()
            && locality.is_none()
            && supplemental.is_none()
    }

    /// Fails if a list has the wrong length, or if supplemental SMs are requested without a locality domain.
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
                "supplemental SMs belong to a locality domain; set a locality domain".to_owned(),
            )),
            None => Ok(()),
        }
    }

    /// Returns the number of SMs that are scheduled together in every group of a request with percentages.
    ///
    /// Fails if this number differs between groups, because percentages are rounded together. Fails for
    /// locality domains, because percentages are relative to all SMs and not to the SMs of a domain.
    pub(super) fn set_of_percentages(
        &self,
        groups: usize,
        device: Coscheduling,
    ) -> Result<u32, Refusal> {
        if self.locality.is_some() {
            let reason =
                "percentages refer to all SMs, but a locality domain has only some; ask for counts";
            return Err(Refusal::invalid(reason));
        }
        let of = |group| self.coscheduled.as_ref().and_then(|values| values.of(group)).unwrap_or(0);
        let set = |group| if of(group) == 0 { device.default } else { of(group) };
        let first = set(0).max(1);
        match (0..groups).map(set).find(|other| *other != set(0)) {
            Some(other) => Err(Refusal::invalid(format!(
                "percentages are rounded together, but the groups have {first} and {other} co-scheduled SMs; give all \
                 groups the same number, or ask for counts"
            ))),
            None => Ok(first),
        }
    }

    /// Returns the driver's parameters for one group. Values that the CUDA header rules out are refused
    /// before the driver is called.
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

/// Checks one group against the rules of the CUDA header: counts are even, and multiples of the co-scheduled
/// count unless backfill is allowed.
fn validate(name: &str, group: GroupParams, device: Coscheduling) -> Result<(), Refusal> {
    let most = device.most;
    let wrong = |reason: String| Err(Refusal::invalid(format!("group {name} {reason}")));
    for (what, count) in
        [("co-scheduled", group.coscheduled), ("preferred co-scheduled", group.preferred)]
    {
        if !count.is_multiple_of(2) || count > most {
            return wrong(format!(
                "asks for {count} {what} SMs; this device accepts an even count up to {most}"
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
            "asks for {count} SMs; a structured group needs an even count, such as {nearest}"
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
            "asks for {count} SMs, but {step} SMs are scheduled together; ask for {nearest}, or \
             allow other SMs to fill the group up (backfill)"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::request::SplitRequest;
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
            assert!(error.contains(&format!("given for {count} groups, but the request has 3")));
        }
    }

    #[test]
    fn supplemental_sms_are_of_a_domain() {
        let error = refusal(SplitRequest::from([16]).supplemental(true));
        assert!(error.contains("set a locality domain"), "{error}");
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
            // Without a co-scheduled count, the device's own alignment applies.
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

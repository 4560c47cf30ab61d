//! Descriptions of SMs that no context has taken yet. Each `SMPartition` contains a description.

use std::sync::{Arc, Weak};

use green_ctx::resource::{LocalityDomain, SmGroup};
use green_ctx::{Device, SplitRequest};
use parking_lot::Mutex;

use crate::fault::Fault;
use crate::limits::{Limits, limits, runtime};
use crate::locality;

/// A description of some SMs of a device: their number, and how to take them. The SMs themselves are chosen when a
/// context takes them.
pub(crate) struct Description {
    device: u32,
    sm_count: u32,
    /// The number of SMs that are scheduled together.
    coscheduled: u32,
    locality_domain: Option<u32>,
    kind: Kind,
    parent: Option<Arc<Description>>,
    /// The claims of contexts to this description, and to all other descriptions that were split from the same one.
    claims: Arc<Mutex<Vec<Weak<Claim>>>>,
}

enum Kind {
    /// Any free SMs. Their number is `sm_count`.
    Count,
    /// A group of a structured split (`cuDevSmResourceSplit`): all groups of the split, and the position of this
    /// group. The rest of the split has the position after the last group.
    Piece(Arc<[Group]>, usize),
}

/// One requested group of a split.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// The number of SMs. A count of 0 requests as many SMs as can be scheduled together.
    pub(crate) sm_count: u32,
    pub(crate) coscheduled: u32,
    pub(crate) preferred: u32,
    pub(crate) backfill: bool,
    pub(crate) locality_domain: Option<u32>,
}

impl Group {
    /// Returns whether the group requires the driver's structured split (`cuDevSmResourceSplit`).
    fn is_structured(self) -> bool {
        self.coscheduled > 0
            || self.preferred > 0
            || self.backfill
            || self.locality_domain.is_some()
    }
}

/// The groups of a split, and the SMs left over.
pub(crate) type Parts = (Vec<Arc<Description>>, Option<Arc<Description>>);

/// A context's claim to described SMs. The claim is made before the context is created, and ends when the context is
/// closed.
pub(crate) struct Claim {
    description: Arc<Description>,
    name: Arc<str>,
}

impl Claim {
    /// Returns the name under which the ledger records the SMs.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn description(&self) -> &Arc<Description> {
        &self.description
    }
}

impl Description {
    /// Describes all SMs of a device.
    pub(crate) fn of_device(ordinal: i64) -> Result<Arc<Description>, Fault> {
        let (device, limits) = limits(ordinal)?;
        Ok(Arc::new(Description::counted(device.ordinal(), limits.sizes.sms, limits.alignment)))
    }

    /// Describes the SMs of the context with this name, and claims these SMs for the context.
    pub(crate) fn of_context(device: u32, sm_count: u32, name: &str) -> Result<Arc<Claim>, Fault> {
        let alignment = limits(i64::from(device))?.1.alignment;
        Arc::new(Description::counted(device, sm_count, alignment)).claim(Arc::from(name))
    }

    fn counted(device: u32, sm_count: u32, coscheduled: u32) -> Description {
        let (kind, claims) = (Kind::Count, Arc::default());
        Description {
            device,
            sm_count,
            coscheduled,
            locality_domain: None,
            kind,
            parent: None,
            claims,
        }
    }

    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    pub(crate) fn sm_count(&self) -> u32 {
        self.sm_count
    }

    pub(crate) fn coscheduled(&self) -> u32 {
        self.coscheduled
    }

    pub(crate) fn locality_domain(&self) -> Option<u32> {
        self.locality_domain
    }

    /// Returns whether this description is `other` or was split from `other`.
    fn is_within(self: &Arc<Self>, other: &Arc<Description>) -> bool {
        let mut next = Some(self);
        while let Some(description) = next {
            if Arc::ptr_eq(description, other) {
                return true;
            }
            next = description.parent.as_ref();
        }
        false
    }

    /// Claims the SMs for a context with this name. Fails if another context has claimed some of these SMs.
    pub(crate) fn claim(self: &Arc<Self>, name: Arc<str>) -> Result<Arc<Claim>, Fault> {
        let claim = Arc::new(Claim { description: Arc::clone(self), name });
        let mut claims = self.claims.lock();
        claims.retain(|known| known.strong_count() > 0);
        let overlaps = |other: &Arc<Claim>| {
            let other = &other.description;
            self.is_within(other) || other.is_within(self)
        };
        match claims.iter().filter_map(Weak::upgrade).find(overlaps) {
            Some(other) => Err(Fault::unavailable(format!(
                "SMs of this SMPartition are held by {} ({} SMs); close that context first, or split \
                 off other SMs",
                other.name, other.description.sm_count
            ))),
            None => {
                claims.push(Arc::downgrade(&claim));
                Ok(claim)
            }
        }
    }

    /// Takes the SMs.
    pub(crate) fn take(&self, device: &Device, name: &str) -> Result<SmGroup, Fault> {
        let sms = device.resources().sm().map_err(runtime)?;
        let request = match &self.kind {
            Kind::Count => SplitRequest::new().group(name, self.sm_count),
            Kind::Piece(groups, place) => structured(groups, *place, name).only(name),
        };
        let split = sms.split(request).map_err(runtime)?;
        let Some(group) = split.groups.into_iter().chain(split.remainder).next() else {
            return Err(Fault::state("the split returned no group"));
        };
        let (described, given) = (self.sm_count, group.sm_count());
        if given == described {
            return Ok(group);
        }
        Err(Fault::unavailable(format!(
            "the SMPartition has {described} SMs, but of the free SMs the device can give {given}; close \
             other contexts first, or create a GreenContext with num_sms={given}"
        )))
    }

    /// Divides the SMs into groups, and returns the groups and the SMs left over. Takes no SMs.
    pub(crate) fn split(self: &Arc<Self>, groups: &[Group]) -> Result<Parts, Fault> {
        let (device, limits) = limits(i64::from(self.device))?;
        let is_structured = groups.iter().any(|group| group.is_structured());
        if matches!(self.kind, Kind::Piece(..)) {
            return Err(Fault::state(
                "SMs that were split off with co-scheduling, backfill or a locality domain cannot be split \
                 again; ask for all groups in one split of SMPartition.from_device()",
            ));
        }
        if !is_structured {
            return self.split_by_count(limits, groups);
        }
        if self.sm_count != limits.sizes.sms {
            return Err(Fault::state(
                "co-scheduling, backfill and locality domains need a split of all SMs of a device; ask for \
                 all groups in one split of SMPartition.from_device()",
            ));
        }
        self.split_structured(&device, groups)
    }

    fn split_by_count(self: &Arc<Self>, limits: Limits, groups: &[Group]) -> Result<Parts, Fault> {
        let counts: Vec<u32> = groups.iter().map(|group| group.sm_count).collect();
        let (counts, rest) = limits.divide(self.sm_count, &counts)?;
        let part = |sm_count| {
            Arc::new(Description {
                sm_count,
                parent: Some(Arc::clone(self)),
                claims: Arc::clone(&self.claims),
                ..Description::counted(self.device, sm_count, limits.alignment)
            })
        };
        Ok((counts.into_iter().map(part).collect(), (rest > 0).then(|| part(rest))))
    }

    fn split_structured(
        self: &Arc<Self>,
        device: &Device,
        groups: &[Group],
    ) -> Result<Parts, Fault> {
        let domains = groups.iter().filter_map(|group| group.locality_domain);
        if let Some(highest) = domains.clone().max() {
            if domains.count() < groups.len() {
                return Err(Fault::state(
                    "locality_domain_ids is given for some groups but not for others; give a domain for \
                     each",
                ));
            }
            locality::check(device, highest)?;
        }
        let groups: Arc<[Group]> = groups.into();
        let sms = device.resources().sm().map_err(runtime)?;
        // The names appear in the errors of the split.
        let request = structured(&groups, groups.len(), "rest");
        let counts = sms.structured_counts(request).map_err(runtime)?;
        let part = |(place, sm_count): (usize, &u32)| {
            let group = groups.get(place);
            let coscheduled = match group.map(|group| group.coscheduled) {
                Some(0) => sms.alignment(),
                Some(count) => count,
                // The rest of a structured split has no structure, except that SMs come in pairs (cuda.h).
                None => PAIR,
            };
            Arc::new(Description {
                locality_domain: group.and_then(|group| group.locality_domain),
                kind: Kind::Piece(Arc::clone(&groups), place),
                parent: Some(Arc::clone(self)),
                claims: Arc::clone(&self.claims),
                ..Description::counted(self.device, *sm_count, coscheduled)
            })
        };
        let mut parts: Vec<_> = counts.iter().enumerate().map(part).collect();
        let rest = if parts.len() > groups.len() { parts.pop() } else { None };
        Ok((parts, rest))
    }
}

/// The number of SMs in a pair. The driver always puts both SMs of a pair into the same group.
const PAIR: u32 = 2;

/// Returns a structured request in which the group at `place` has this name. The rest of the split comes last.
fn structured(groups: &[Group], place: usize, name: &str) -> SplitRequest {
    let named = |index: usize| match index == place {
        true => name.to_owned(),
        false => index.to_string(),
    };
    let mut request = SplitRequest::new();
    for (index, group) in groups.iter().enumerate() {
        request = request.group(named(index), (group.sm_count > 0).then_some(group.sm_count));
    }
    let each = |read: fn(&Group) -> u32| groups.iter().map(read).collect::<Vec<_>>();
    request = request
        .rest(named(groups.len()))
        .coscheduled(each(|group| group.coscheduled))
        .preferred_coscheduled(each(|group| group.preferred))
        .backfill(groups.iter().map(|group| group.backfill).collect::<Vec<_>>());
    let domain = |group: &Group| group.locality_domain.map(LocalityDomain::Id);
    match groups.iter().map(domain).collect::<Option<Vec<_>>>() {
        Some(domains) => request.locality_domain(domains),
        None => request,
    }
}

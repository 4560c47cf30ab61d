//! Locality domains: groups of SMs close to the same memory.
//!
//! None of this behaviour was recorded on hardware. The rules follow the header of CUDA 13.5.

use super::Topology;
use crate::sm_set::SmSet;

/// The locality that the SMs of a group must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locality {
    /// The number of the domain; `None` for any domain.
    pub(crate) domain: Option<u32>,
    /// Whether the group may use the domain's SMs beyond the number that the driver reports per domain.
    pub(crate) supplemental: bool,
}

impl Topology {
    /// Returns every SM of each domain.
    fn domain_sms(&self) -> Vec<SmSet> {
        let mut gpcs = self.gpc_sms().into_iter();
        let union = |sms: &mut dyn Iterator<Item = SmSet>| sms.fold(SmSet::default(), SmSet::union);
        self.domains.iter().map(|count| union(&mut gpcs.by_ref().take(*count))).collect()
    }

    /// Returns the number of SMs that the driver reports per domain. The driver reports a single number
    /// for all domains, so the result is the size of the smallest domain.
    pub(crate) fn domain_size(&self) -> u32 {
        self.domain_sms().into_iter().map(SmSet::len).min().unwrap_or(0)
    }

    /// Returns the SMs of a locality; the set is empty if the device does not have the domain.
    pub(crate) fn near(&self, locality: Locality) -> SmSet {
        let most = if locality.supplemental { self.sm_count } else { self.domain_size() };
        let domains = self.domain_sms().into_iter().zip(0..);
        let asked = domains.filter(|(_, number)| locality.domain.is_none_or(|it| it == *number));
        asked.fold(SmSet::default(), |near, (sms, _)| {
            near.union(sms.iter().take(most as usize).collect())
        })
    }

    /// Returns the SMs that are available only to a request that allows supplemental SMs.
    pub(super) fn between_domains(&self) -> SmSet {
        self.all().difference(self.near(Locality { domain: None, supplemental: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    fn topology() -> &'static Topology {
        &Profile::by_name("b200").expect("it is there").topology
    }

    fn near(domain: Option<u32>, supplemental: bool) -> SmSet {
        topology().near(Locality { domain, supplemental })
    }

    #[test]
    fn a_die_is_a_domain() {
        let [first, second] = [0, 1].map(|domain| near(Some(domain), true));
        assert_eq!((first.len(), second.len()), (76, 72));
        assert!(first.intersection(second).is_empty());
        assert_eq!(near(None, true), topology().all());
        assert!(near(Some(2), true).is_empty());
    }

    #[test]
    fn the_smallest_domain_is_what_is_counted_for_each() {
        let topology = topology();
        assert_eq!((topology.domain_size(), near(Some(0), false).len()), (72, 72));
        assert_eq!((near(None, false).len(), topology.between_domains().len()), (144, 4));
        assert!(topology.between_domains().is_subset(near(Some(0), true)));
    }
}

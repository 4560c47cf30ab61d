//! The SMs of each GPC, and the choice of co-scheduled SMs in a structured split.
//!
//! None of this behaviour was recorded on hardware. The rules follow the header's description of
//! `cuDevSmResourceSplit`. For cases that the header does not describe, the simplest rule was chosen.

use super::Topology;
use crate::sm_set::SmSet;

/// The requirements of one group of a structured split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupRequest {
    /// The number of SMs; `None` if the group takes all available SMs.
    pub(crate) count: Option<u32>,
    /// The number of SMs per co-scheduled set. All SMs of a set must lie in one GPC.
    pub(crate) coscheduled: u32,
    /// The preferred number of SMs per co-scheduled set, used while a GPC has enough free SMs.
    pub(crate) preferred: u32,
    /// Whether other SMs may fill up the group after the co-scheduled sets.
    pub(crate) backfill: bool,
    /// The SMs that co-scheduled sets may use.
    pub(crate) near: SmSet,
}

impl Topology {
    /// Returns the SMs of each GPC. Band n consists of the GPCs that have at least n units, and the i-th
    /// unit of a band belongs to the i-th GPC of that band. Layer n of the tail has one TPC of each GPC
    /// with at least n TPCs outside units.
    pub(super) fn gpc_sms(&self) -> Vec<SmSet> {
        let mut gpcs = vec![SmSet::default(); self.gpcs.len()];
        for (gpc, unit) in self.bands().flatten().zip(self.coarse_units()) {
            gpcs[gpc] = unit.union(gpcs[gpc]);
        }
        let mut tail = self.tail_start()..;
        for layer in 0..self.tpcs_per_unit() {
            for (sms, tpcs) in gpcs.iter_mut().zip(self.gpcs) {
                if tpcs % self.tpcs_per_unit() > layer
                    && let Some(tpc) = tail.next()
                {
                    *sms = self.tpc(tpc).union(*sms);
                }
            }
        }
        gpcs
    }

    /// Returns whether these SMs include a whole coarse unit.
    pub(crate) fn has_unit(&self, sms: SmSet) -> bool {
        self.coarse_units().iter().any(|unit| unit.is_subset(sms))
    }

    /// Chooses the SMs of one group from the `free` SMs. Returns an empty group if not even one
    /// co-scheduled set exists, and `None` if the requested count is not available.
    pub(crate) fn gather(&self, free: SmSet, request: GroupRequest) -> Option<SmSet> {
        let most = request.count.unwrap_or(free.len());
        let near = free.intersection(request.near);
        let mut group = SmSet::default();
        for size in [request.preferred, request.coscheduled] {
            while group.len() + size <= most
                && let Some(sms) = self.together(near.difference(group), size)
            {
                group = group.union(sms);
            }
        }
        if request.backfill && !group.is_empty() {
            // The tail comes first, so that coarse units stay whole for later groups; then the order of the
            // header applies.
            for part in [near.intersection(self.tail()), near, self.between_domains(), free] {
                let others = free.intersection(part).difference(group);
                let lacking = most.saturating_sub(group.len()) as usize;
                group = group.union(others.iter().take(lacking).collect());
            }
        }
        (group.len() >= request.count.unwrap_or(0)).then_some(group)
    }

    /// Returns `size` free SMs of one GPC, from one coarse unit if possible.
    fn together(&self, free: SmSet, size: u32) -> Option<SmSet> {
        let mut places = self.coarse_units().into_iter().chain(self.gpc_sms());
        places.find_map(|place| {
            let sms = place.intersection(free);
            (sms.len() >= size).then(|| sms.iter().take(size as usize).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::H200;

    fn request(count: Option<u32>, coscheduled: u32) -> GroupRequest {
        let near = H200.topology.all();
        GroupRequest { count, coscheduled, preferred: coscheduled, backfill: false, near }
    }

    fn most(coscheduled: u32) -> u32 {
        let topology = &H200.topology;
        let group = topology.gather(topology.all(), request(None, coscheduled));
        group.expect("nothing is required").len()
    }

    #[test]
    fn gpcs_are_made_of_the_units_at_the_same_place() {
        let (gpcs, units) = (H200.topology.gpc_sms(), H200.topology.coarse_units());
        assert_eq!(gpcs.len(), 12);
        assert_eq!(gpcs[0], units[0]);
        assert_eq!(gpcs[1], units[1].union(units[8]));
        // The tail continues with the GPCs that have a ninth TPC.
        let pair = |first: u32| (first..first + 2).collect::<SmSet>();
        assert_eq!(gpcs[7], units[7].union(units[14]).union(pair(122)));
        assert_eq!((gpcs[8], gpcs[11]), (pair(124), pair(130)));
    }

    #[test]
    fn as_many_are_found_as_the_gpcs_hold() {
        for (coscheduled, sms) in [
            (2, 132),
            (4, 120),
            (6, 102),
            (8, 120),
            (10, 70),
            (14, 98),
            (16, 112),
            (18, 36),
            (20, 0),
        ] {
            assert_eq!(most(coscheduled), sms, "{coscheduled} at a time");
        }
    }

    #[test]
    fn units_are_taken_in_the_order_of_the_driver() {
        let topology = &H200.topology;
        let group = topology.gather(topology.all(), request(Some(24), 8));
        let units = topology.coarse_units();
        assert_eq!(group, Some(units[0].union(units[1]).union(units[2])));
    }

    #[test]
    fn preferred_sets_are_merged_where_a_gpc_holds_them() {
        let topology = &H200.topology;
        let merged = GroupRequest { preferred: 16, ..request(Some(24), 8) };
        let units = topology.coarse_units();
        // One GPC with two units, and one unit of the next GPC.
        let expected = units[1].union(units[8]).union(units[0]);
        assert_eq!(topology.gather(topology.all(), merged), Some(expected));
        // The first GPC has only one unit, which is used without merging.
        let all = topology.gather(topology.all(), GroupRequest { count: None, ..merged });
        assert_eq!(all.map(SmSet::len), Some(120));
        // No GPC is large enough, so nothing is merged.
        let large = GroupRequest { preferred: 32, ..merged };
        assert_eq!(
            topology.gather(topology.all(), large),
            topology.gather(topology.all(), request(Some(24), 8))
        );
    }

    #[test]
    fn backfill_takes_the_tail_first_and_needs_one_set() {
        let topology = &H200.topology;
        let filled = GroupRequest { backfill: true, ..request(Some(18), 16) };
        let group = topology.gather(topology.all(), filled).expect("there are enough");
        let (tail, gpc) = (group.intersection(topology.tail()), topology.gpc_sms()[1]);
        assert_eq!((group.len(), tail.iter().collect::<Vec<_>>()), (18, vec![120, 121]));
        assert!(gpc.is_subset(group));
        let whole = GroupRequest { count: None, ..filled };
        assert_eq!(topology.gather(topology.all(), whole), Some(topology.all()));
        let none = GroupRequest { backfill: true, ..request(Some(20), 20) };
        assert_eq!(topology.gather(topology.all(), none), None);
        assert_eq!(
            topology.gather(topology.all(), GroupRequest { count: None, ..none }),
            Some(SmSet::default())
        );
    }

    /// The free SMs are half of each of two units of one GPC.
    #[test]
    fn a_set_may_lie_in_two_units_of_a_gpc() {
        let topology = &H200.topology;
        let units = topology.coarse_units();
        let half = |unit: SmSet| unit.iter().take(4).collect::<SmSet>();
        let free = half(units[1]).union(half(units[8]));
        assert_eq!(topology.gather(free, request(None, 8)), Some(free));
        let apart = half(units[0]).union(half(units[1]));
        assert_eq!(topology.gather(apart, request(None, 8)), Some(SmSet::default()));
        assert_eq!(topology.places(free, false), [free]);
        assert_eq!(topology.places(apart, false), [half(units[0]), half(units[1])]);
    }
}

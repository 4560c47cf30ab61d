//! The model: whose work may run on which SM at which time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use green_ctx::context::Context;
use green_ctx::sim::Launch;

use crate::account::{Lease, Partition, Place, Sms};
use crate::violation::{Rule, Violation};

/// The state of a plan's partition when work was submitted to it.
#[derive(Clone, Copy, Debug)]
struct InSet {
    set: u32,
    /// Whether the partition belonged to the active plan.
    active: bool,
    /// The number of switches that the set had made.
    switches: u32,
    /// The partition's name in the active plan.
    name: Option<u32>,
}

/// Work that may still run.
struct Work {
    launch: Launch,
    sms: Sms,
    partition: u32,
    in_set: Option<InSet>,
    /// Whether the work was submitted to a stream of the partition itself.
    direct: bool,
    /// Whether the work was submitted to a stream that no object wraps.
    foreign: bool,
}

/// The number of the switch of the set that made something so, and whether that switch had a fence.
type Since = (u32, bool);

/// The state of a plan's partition in its set.
#[derive(Clone, Debug)]
struct Member {
    set: u32,
    active: bool,
    /// The name in the active plan, or in the last plan that the partition was part of.
    name: Option<(u32, Since)>,
    /// The SMs of the floor, with the switch since which the partition has had them.
    floor: Vec<(Sms, Since)>,
}

impl Member {
    fn floor(&self) -> Sms {
        self.floor.iter().fold(Sms::default(), |all, (sms, _)| all.and(*sms))
    }
}

/// A partition of a plan that becomes active.
#[derive(Clone, Copy, Debug)]
pub struct InPlan {
    /// The driver's id of its context.
    pub context_id: u64,
    /// A number that represents its name.
    pub name: u32,
    /// The SMs that no other partition may use.
    pub floor: Sms,
}

/// How work was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To a stream or the default stream of the partition.
    Direct,
    /// As a graph, in any stream.
    Graph,
    /// To a stream that no object wraps.
    Foreign,
}

/// The known partitions and unfinished work.
#[derive(Default)]
pub struct Model {
    /// The current partition of each driver context.
    owners: HashMap<u64, Owner>,
    members: HashMap<u32, Member>,
    /// The number of switches of each set.
    switches: HashMap<u32, u32>,
    unfinished: Vec<Work>,
    /// Work that ended before this time was over before the last operation.
    now: u64,
}

struct Owner {
    number: u32,
    device: usize,
    set: Option<u32>,
    /// `None` until a launch shows it.
    place: Option<Place>,
    partition: Weak<Partition>,
}

impl Owner {
    /// Returns whether foreign code has a handle of the context while the context is idle.
    fn is_wrapped(&self) -> bool {
        self.partition.upgrade().is_some_and(|partition| partition.lease().is_none())
    }
}

/// The delay between the call and the start of a probe kernel in an idle stream, in nanoseconds.
const LATENCY: u64 = 2_000;

impl Model {
    /// Records a partition whose context was just created.
    pub fn open(&mut self, partition: &Arc<Partition>) {
        let (context_id, device) = (partition.context_id, partition.device);
        let Some(&Lease { number, place, set, .. }) = partition.lease() else { return };
        let former = self.owners.get(&context_id);
        // A partition of a set that reappears in the same context is the same partition: the set may have kept it.
        let again = former.filter(|former| set.is_some() && former.set == set);
        let number = again.map_or(number, |former| former.number);
        let partition = Arc::downgrade(partition);
        self.owners.insert(context_id, Owner { number, device, set, place, partition });
        if let Some(set) = set {
            let (name, floor) = (None, Vec::new());
            self.members.entry(number).or_insert(Member { set, active: false, name, floor });
        }
    }

    /// Records the object of an idle context, whose kept stream was wrapped. Until a partition leases the object, no
    /// work waits for the object's work, and that work waits for nothing.
    pub fn wrapped(&mut self, partition: &Arc<Partition>) {
        let (device, weak) = (partition.device, Arc::downgrade(partition));
        let fresh = Owner { number: 0, device, set: None, place: None, partition: Weak::new() };
        let owner = self.owners.entry(partition.context_id).or_insert(fresh);
        (owner.place, owner.partition) = (None, weak);
    }

    /// Returns whether foreign code has a handle of an idle context.
    #[must_use]
    pub fn has_wrapped(&self) -> bool {
        self.owners.values().any(Owner::is_wrapped)
    }

    /// Returns the account of a context's object.
    #[must_use]
    pub fn known(&self, context: &Context, id: u64) -> Option<Arc<Partition>> {
        let known = self.owners.get(&id)?.partition.upgrade();
        known.filter(|known| known.object.is(context))
    }

    /// Returns the set of the last partition that had a context.
    #[must_use]
    pub fn last_set(&self, id: u64) -> Option<u32> {
        self.owners.get(&id)?.set
    }

    /// Returns whether work of a partition may still run.
    #[must_use]
    pub fn is_busy(&self, number: u32) -> bool {
        self.unfinished.iter().any(|work| work.partition == number)
    }

    /// Records that a plan of a set became active.
    pub fn switched(&mut self, set: u32, plan: &[InPlan], fenced: bool) {
        let switches = self.switches.entry(set).or_default();
        *switches += 1;
        let since = (*switches, fenced);
        let number = |part: &InPlan| self.owners.get(&part.context_id).map(|owner| owner.number);
        let plan: HashMap<u32, &InPlan> =
            plan.iter().filter_map(|part| Some((number(part)?, part))).collect();
        for (number, member) in self.members.iter_mut().filter(|(_, member)| member.set == set) {
            let Some(part) = plan.get(number) else {
                member.active = false;
                continue;
            };
            if !member.active {
                (member.name, member.floor) = (None, Vec::new());
            }
            if member.name.is_none_or(|(name, _)| name != part.name) {
                member.name = Some((part.name, since));
            }
            // The SMs that the partition keeps, then those that it gains.
            member.floor.iter_mut().for_each(|(sms, _)| *sms = sms.but(sms.but(part.floor)));
            let more = part.floor.but(member.floor());
            member.floor.push((more, since));
            member.floor.retain(|(sms, _)| !sms.is_empty());
            member.active = true;
        }
        // Work submitted to a plan's partitions before the plan was active counts from now on.
        for work in &mut self.unfinished {
            if let Some(in_set) = &mut work.in_set
                && work.direct
                && !in_set.active
                && let Some(part) = plan.get(&work.partition)
            {
                (in_set.active, in_set.switches) = (true, since.0);
                in_set.name = Some(part.name);
            }
        }
    }

    /// Checks the launches of one operation. The last launch is a probe of the time.
    pub fn submitted(&mut self, mut launches: Vec<Launch>, way: Way) -> Result<(), Violation> {
        if let Some(probe) = launches.pop() {
            self.now = self.now.max(probe.start_ns.saturating_sub(LATENCY));
        }
        for launch in launches.into_iter().filter(|launch| launch.is_green) {
            let Some(owner) = self.owners.get_mut(&launch.context) else { continue };
            if owner.is_wrapped() {
                continue;
            }
            let sms = Sms::of(&launch.sms);
            let place = *owner.place.get_or_insert(Place { floor: sms, ceiling: sms });
            let (number, device) = (owner.number, owner.device);
            if !sms.within(place.ceiling) {
                return Err(Violation::new(
                    Rule::Share,
                    format!(
                        "partition {number} ran on SMs that it does not have: {:?}",
                        launch.sms
                    ),
                ));
            }
            let member = self.members.get(&number);
            if member.is_none_or(|member| member.active) {
                self.check_floors(sms, number, device)?;
            }
            let in_set = member.map(|member| InSet {
                set: member.set,
                active: member.active,
                switches: self.switches.get(&member.set).copied().unwrap_or_default(),
                name: member.name.map(|(name, _)| name),
            });
            let work = Work {
                launch,
                sms,
                partition: number,
                in_set,
                direct: way == Way::Direct,
                foreign: way == Way::Foreign,
            };
            for former in &self.unfinished {
                if let Some(how) = self.conflict(former, &work, place) {
                    return Err(how);
                }
            }
            self.unfinished.push(work);
        }
        self.unfinished.retain(|work| work.launch.end_ns > self.now);
        Ok(())
    }

    /// Returns whether a partition belongs to an active plan or to no set.
    #[must_use]
    pub fn is_active(&self, partition: &Partition) -> bool {
        let owner = self.owners.get(&partition.context_id);
        let member = owner.and_then(|owner| self.members.get(&owner.number));
        member.is_none_or(|member| member.active)
    }

    /// Returns an upper bound of the time that the device stays busy, in nanoseconds.
    #[must_use]
    pub fn busy_for(&self) -> u64 {
        let last = self.unfinished.iter().map(|work| work.launch.end_ns).max();
        last.unwrap_or_default().saturating_sub(self.now)
    }

    /// Checks that these SMs are not on the floor of another open partition; for plans, of the active one.
    fn check_floors(&self, sms: Sms, number: u32, device: usize) -> Result<(), Violation> {
        let others = self.owners.values().filter(|other| other.device == device);
        for other in others.filter(|other| other.number != number) {
            let Some(place) = other.place.filter(|_| other.partition.strong_count() > 0) else {
                continue;
            };
            let member = self.members.get(&other.number);
            let floor = match member {
                Some(member) if member.active => member.floor(),
                Some(_) => Sms::default(),
                None => place.floor,
            };
            if sms.meet(floor) {
                return Err(Violation::new(
                    Rule::Floor,
                    format!("partition {number} ran on the floor of partition {}", other.number),
                ));
            }
        }
        Ok(())
    }

    /// Returns the violation between a piece of work and one submitted before it, if any.
    fn conflict(&self, former: &Work, later: &Work, place: Place) -> Option<Violation> {
        if !self.must_wait(former, later, place) {
            return None;
        }
        let (a, b) = (&former.launch, &later.launch);
        let waits = a.happens_before(b);
        // No order is needed if the earlier work ended before the later work was submitted.
        if waits || !(a.overlaps(b) || a.end_ns > self.now) {
            return None;
        }
        let times = if a.overlaps(b) { "ran at the same time" } else { "is unordered" };
        Some(Violation::new(
            Rule::Exclusive,
            format!(
                "work on a floor or under a previous name does not wait: the earlier work {times}, \
                 partition {} from {} to {} ns on {} SMs, and partition {}, submitted later, from {} to \
                 {} ns on {} SMs",
                former.partition,
                a.start_ns,
                a.end_ns,
                a.sms.len(),
                later.partition,
                b.start_ns,
                b.end_ns,
                b.sms.len(),
            ),
        ))
    }

    /// Returns whether later work must wait for earlier work.
    fn must_wait(&self, former: &Work, later: &Work, place: Place) -> bool {
        if former.partition == later.partition || former.launch.device != later.launch.device {
            return false;
        }
        if later.foreign || later.in_set.is_some_and(|later| !later.active) {
            return false;
        }
        match (former.in_set, later.in_set) {
            (Some(old), Some(new)) if old.set == new.set => {
                let Some(member) = self.members.get(&later.partition) else { return false };
                // A switch fences the streams that objects wrap, and the work submitted before it.
                let knows = |(switches, fenced): Since| fenced && old.switches < switches;
                let on_the_floor = || {
                    member.floor.iter().any(|(sms, since)| former.sms.meet(*sms) && knows(*since))
                };
                let of_the_name = || {
                    member.name.is_some_and(|(name, since)| old.name == Some(name) && knows(since))
                };
                old.active && !former.foreign && (on_the_floor() || of_the_name())
            }
            // For different owners: SMs become part of a floor only with a fence.
            _ => former.sms.meet(place.floor),
        }
    }
}

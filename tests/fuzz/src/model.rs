//! The model: whose work may be on which SM at which time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use green_ctx::sim::Launch;

use crate::account::{Partition, Place, Sms};
use crate::violation::{Rule, Violation};

/// Where the work of a launch stands to the plans of a set.
#[derive(Clone, Copy, Debug)]
struct InSet {
    set: u32,
    /// Whether the partition was one of the active plan.
    active: bool,
    /// How many switches the set had made.
    switches: u32,
    /// The name that the partition had in the active plan.
    name: Option<u32>,
}

/// Work that may not be done yet.
struct Work {
    launch: Launch,
    sms: Sms,
    partition: u32,
    in_set: Option<InSet>,
    /// Whether it was submitted to a stream of the partition itself.
    direct: bool,
    /// Whether it went into a stream for which no object stands.
    foreign: bool,
}

/// After how many switches of its set something became so, and whether by one with a fence.
type Since = (u32, bool);

/// What a plan's partition is to its set.
#[derive(Clone, Debug)]
struct Member {
    set: u32,
    active: bool,
    /// Its name in the active plan, or the last one that it was in.
    name: Option<(u32, Since)>,
    /// Which SMs of its floor it has had since when.
    floor: Vec<(Sms, Since)>,
}

impl Member {
    fn floor(&self) -> Sms {
        self.floor.iter().fold(Sms::default(), |all, (sms, _)| all.and(*sms))
    }
}

/// A partition of a plan that becomes the active one.
#[derive(Clone, Copy, Debug)]
pub struct InPlan {
    /// The driver's number of its context.
    pub context_id: u64,
    /// What stands for its name.
    pub name: u32,
    /// The SMs that are nobody else's.
    pub floor: Sms,
}

/// How work was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To a stream or default stream of the partition.
    Direct,
    /// As a graph, on whatever stream.
    Graph,
    /// To a stream for which no object stands.
    Foreign,
}

/// What is known of who may be where.
#[derive(Default)]
pub struct Model {
    /// The partition that now has each of the driver's contexts.
    owners: HashMap<u64, Owner>,
    members: HashMap<u32, Member>,
    /// Switches of each set.
    switches: HashMap<u32, u32>,
    unfinished: Vec<Work>,
    /// A launch at least this late was not over when the model last looked.
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

/// The launch of a probe kernel in an idle stream begins this long after the call.
const LATENCY: u64 = 2_000;

impl Model {
    /// Notes a partition whose context was made just now.
    pub fn open(&mut self, partition: &Arc<Partition>) {
        let Partition { number, context_id, place, set, device, .. } = **partition;
        let former = self.owners.get(&context_id);
        // A plan's partition that comes back in the same context is the same one: its set may have
        // kept it.
        let again = former.filter(|former| set.is_some() && former.set == set);
        let number = again.map_or(number, |former| former.number);
        let partition = Arc::downgrade(partition);
        self.owners.insert(context_id, Owner { number, device, set, place, partition });
        if let Some(set) = set {
            let (name, floor) = (None, Vec::new());
            self.members.entry(number).or_insert(Member { set, active: false, name, floor });
        }
    }

    /// Notes that a set's plan is active now.
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
            // What it had and keeps, and what comes to it.
            member.floor.iter_mut().for_each(|(sms, _)| *sms = sms.but(sms.but(part.floor)));
            let more = part.floor.but(member.floor());
            member.floor.push((more, since));
            member.floor.retain(|(sms, _)| !sms.is_empty());
            member.active = true;
        }
        // What was submitted to a plan's partitions before it was active counts from now on.
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

    /// Takes the launches of one operation, the last of which is a probe of the time, and returns
    /// what is wrong with them.
    pub fn submitted(&mut self, mut launches: Vec<Launch>, way: Way) -> Result<(), Violation> {
        if let Some(probe) = launches.pop() {
            self.now = self.now.max(probe.start_ns.saturating_sub(LATENCY));
        }
        for launch in launches.into_iter().filter(|launch| launch.is_green) {
            let Some(owner) = self.owners.get_mut(&launch.context) else { continue };
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

    /// Whether a partition is one of an active plan, or of no set at all.
    #[must_use]
    pub fn is_active(&self, partition: &Partition) -> bool {
        let owner = self.owners.get(&partition.context_id);
        let member = owner.and_then(|owner| self.members.get(&owner.number));
        member.is_none_or(|member| member.active)
    }

    /// How long the device is busy at most, in nanoseconds.
    #[must_use]
    pub fn busy_for(&self) -> u64 {
        let last = self.unfinished.iter().map(|work| work.launch.end_ns).max();
        last.unwrap_or_default().saturating_sub(self.now)
    }

    /// Nobody runs on the floor of another open partition, of plans of an active one.
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

    /// What is wrong between work and what was submitted before it.
    fn conflict(&self, former: &Work, later: &Work, place: Place) -> Option<Violation> {
        if !self.must_wait(former, later, place) {
            return None;
        }
        let (a, b) = (&former.launch, &later.launch);
        let waits = a.happens_before(b);
        // Work that had ended before the later one was submitted needs no order.
        if waits || !(a.overlaps(b) || a.end_ns > self.now) {
            return None;
        }
        let times = if a.overlaps(b) { "ran at the same time" } else { "is in no order to it" };
        Some(Violation::new(
            Rule::Exclusive,
            format!(
                "work that comes to a floor, or has a former name, does not wait: the former {times}, \
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

    /// Whether later work must wait for former work.
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
                // A switch knows of the streams for which objects stand, and of what came before it.
                let knows = |(switches, fenced): Since| fenced && old.switches < switches;
                let on_the_floor = || {
                    member.floor.iter().any(|(sms, since)| former.sms.meet(*sms) && knows(*since))
                };
                let of_the_name = || {
                    member.name.is_some_and(|(name, since)| old.name == Some(name) && knows(since))
                };
                old.active && !former.foreign && (on_the_floor() || of_the_name())
            }
            // Of different owners: SMs become a floor only with a fence.
            _ => former.sms.meet(place.floor),
        }
    }
}

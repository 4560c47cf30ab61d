//! The model: whose work may be on which SM at which time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use green_ctx::sim::Launch;

use crate::account::Partition;
use crate::violation::{Rule, Violation};

/// SM ids as bits; no part has 256 SMs.
type Sms = [u64; 4];

/// Where the work of a launch stands to the plans of a set.
#[derive(Clone, Copy, Debug)]
struct InSet {
    set: u32,
    /// Whether the partition was one of the active plan.
    active: bool,
    /// How many switches the set had made.
    switches: u32,
    /// After how many switches the partition became one of the active plan, and whether with a
    /// fence.
    entered: Option<(u32, bool)>,
}

/// Work that may not be done yet.
struct Work {
    launch: Launch,
    sms: Sms,
    partition: u32,
    overlapping: bool,
    in_set: Option<InSet>,
    /// Whether it was submitted to a stream of the partition itself.
    direct: bool,
    /// Whether it went into a stream for which no object stands.
    foreign: bool,
}

/// What a plan's partition is to its set.
struct Member {
    set: u32,
    active: bool,
    entered: Option<(u32, bool)>,
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
    /// Partitions whose SMs a launch has shown.
    seen: Vec<(Sms, Weak<Partition>)>,
    /// A launch at least this late was not over when the model last looked.
    now: u64,
}

struct Owner {
    number: u32,
    overlapping: bool,
    set: Option<u32>,
    sms_known: bool,
    partition: Weak<Partition>,
}

/// The launch of a probe kernel in an idle stream begins this long after the call.
const LATENCY: u64 = 2_000;

impl Model {
    /// Notes a partition whose context was made just now.
    pub fn open(&mut self, partition: &Arc<Partition>) {
        let Partition { number, context_id, overlapping, set, .. } = **partition;
        let former = self.owners.get(&context_id);
        // A plan's partition that comes back in the same context is the same one: its set may have
        // kept it.
        let again = former.filter(|former| set.is_some() && former.set == set);
        let number = again.map_or(number, |former| former.number);
        let (sms_known, weak) = (false, Arc::downgrade(partition));
        self.owners
            .insert(context_id, Owner { number, overlapping, set, sms_known, partition: weak });
        if let Some(set) = set {
            self.members.entry(number).or_insert(Member { set, active: false, entered: None });
        }
    }

    /// Notes that a set's plan is active now: the contexts of its partitions, and those of the one
    /// before.
    pub fn switched(&mut self, set: u32, plan: &[u64], fenced: bool) {
        let switches = self.switches.entry(set).or_default();
        *switches += 1;
        let switches = *switches;
        let numbers: Vec<u32> =
            plan.iter().filter_map(|id| self.owners.get(id)).map(|owner| owner.number).collect();
        for (number, member) in self.members.iter_mut().filter(|(_, member)| member.set == set) {
            let stays = numbers.contains(number);
            if stays && !member.active {
                member.entered = Some((switches, fenced));
            }
            member.active = stays;
        }
        // What was submitted to a plan's partitions before it was active counts from now on.
        for work in &mut self.unfinished {
            if let Some(in_set) = &mut work.in_set
                && work.direct
                && !in_set.active
                && numbers.contains(&work.partition)
            {
                (in_set.active, in_set.switches) = (true, switches);
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
            let sms = bits(&launch.sms);
            if !owner.sms_known {
                owner.sms_known = true;
                let (number, weak, whole) =
                    (owner.number, owner.partition.clone(), (owner.overlapping, owner.set));
                self.seen.retain(|(_, partition)| partition.strong_count() > 0);
                if !whole.0 {
                    self.check_disjoint(sms, number, whole.1)?;
                    self.seen.push((sms, weak));
                }
            }
            let owner = &self.owners[&launch.context];
            let in_set = self.members.get(&owner.number).map(|member| InSet {
                set: member.set,
                active: member.active,
                switches: self.switches.get(&member.set).copied().unwrap_or_default(),
                entered: member.entered,
            });
            let work = Work {
                launch,
                sms,
                partition: owner.number,
                overlapping: owner.overlapping,
                in_set,
                direct: way == Way::Direct,
                foreign: way == Way::Foreign,
            };
            for former in &self.unfinished {
                if let Some(how) = self.conflict(former, &work) {
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

    /// Two open partitions never have an SM in common, but those of one set.
    fn check_disjoint(&self, sms: Sms, number: u32, set: Option<u32>) -> Result<(), Violation> {
        for (others, partition) in &self.seen {
            let Some(other) = partition.upgrade() else { continue };
            let same_set = set.is_some() && other.set == set;
            if other.number != number && !same_set && meet(&sms, others) {
                return Err(Violation::new(
                    Rule::Disjoint,
                    format!(
                        "partitions {number} and {} are open at the same time on common SMs",
                        other.number
                    ),
                ));
            }
        }
        Ok(())
    }

    /// What is wrong between work and what was submitted before it.
    fn conflict(&self, former: &Work, later: &Work) -> Option<Violation> {
        if !meet(&former.sms, &later.sms) || !must_wait(former, later) {
            return None;
        }
        let (a, b) = (&former.launch, &later.launch);
        let waits = a.happens_before(b);
        // Work that had ended before the later one was submitted needs no order.
        if waits || !(a.overlaps(b) || a.end_ns > self.now) {
            return None;
        }
        let times = if a.overlaps(b) { "ran at the same time" } else { "are in no order" };
        Some(Violation::new(
            Rule::Exclusive,
            format!(
                "work of two partitions on common SMs {times}: partition {} from {} to {} ns on {} SMs, \
             and partition {}, submitted later, from {} to {} ns on {} SMs",
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
}

/// Whether later work on a common SM must wait for former work.
fn must_wait(former: &Work, later: &Work) -> bool {
    if former.partition == later.partition || former.overlapping || later.overlapping {
        return false;
    }
    if later.foreign || later.in_set.is_some_and(|later| !later.active) {
        return false;
    }
    match (former.in_set, later.in_set) {
        (Some(old), Some(new)) if old.set == new.set => {
            // A switch knows of the streams for which objects stand.
            old.active
                && !former.foreign
                && new.entered.is_some_and(|(entered, fenced)| fenced && old.switches < entered)
        }
        // Of different owners: SMs go from one to the next only with a fence.
        _ => true,
    }
}

fn bits(ids: &[u32]) -> Sms {
    let mut sms = Sms::default();
    ids.iter().for_each(|id| sms[(id / 64) as usize % 4] |= 1 << (id % 64));
    sms
}

fn meet(a: &Sms, b: &Sms) -> bool {
    a.iter().zip(b).any(|(a, b)| a & b != 0)
}

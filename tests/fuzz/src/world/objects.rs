//! The objects of a world, each with the number in its name and the partitions that it keeps open.

use std::fmt;
use std::sync::{Arc, Weak};

use green_ctx::{
    Graph, Kernel, Plan, PlanSet, Stream, context::Context, graph::GraphExec, resource::SmGroup,
};

use super::second::SecondEntry;
use super::{Done, Lane, Place, World};
use crate::account::{Held, Lease, Partition};
use crate::model::InPlan;
use crate::raw::{Foreign, ForeignCapture, Kept};
use crate::violation::{Rule, Violation};

pub(super) struct GroupEntry {
    pub(super) name: u32,
    pub(super) group: SmGroup,
    pub(super) held: Arc<Held>,
    /// Whether the SMs come from the driver's structured split.
    pub(super) structured: bool,
    /// The set whose plans share these SMs, if this is the group of a closed partition of a plan.
    pub(super) set: Option<u32>,
}

pub(super) struct PartitionEntry {
    pub(super) name: u32,
    pub(super) partition: green_ctx::Partition,
    pub(super) account: Arc<Partition>,
}

pub(super) struct ContextEntry {
    pub(super) name: u32,
    pub(super) context: Context,
    pub(super) partition: Arc<Partition>,
}

pub(super) struct StreamEntry {
    pub(super) name: u32,
    pub(super) stream: Stream,
    /// `None` for the primary context.
    pub(super) partition: Option<Arc<Partition>>,
    /// Whether the object borrows the driver's stream, and therefore cannot keep it alive.
    pub(super) is_borrowed: bool,
}

pub(super) struct PlanEntry {
    pub(super) name: u32,
    pub(super) plan: Arc<Plan>,
    pub(super) lanes: Vec<Arc<Partition>>,
    /// The partitions as the model sees them when the plan is active.
    pub(super) parts: Vec<InPlan>,
}

/// Returns a partition by its number among those of several plans: its plan, its index there, and the partition.
fn lane_of<'a>(
    mut plans: impl Iterator<Item = &'a PlanEntry>,
    mut at: usize,
) -> Option<(&'a PlanEntry, usize, &'a Arc<Partition>)> {
    plans.find_map(|plan| {
        let lane = plan.lanes.get(at).map(|lane| (plan, at, lane));
        at = at.saturating_sub(plan.lanes.len());
        lane
    })
}

pub(super) struct SetEntry {
    pub(super) name: u32,
    pub(super) set: PlanSet,
    pub(super) base: Arc<Held>,
    pub(super) plans: Vec<PlanEntry>,
    /// All partitions that plans of this set have had, including retired plans: a graph or a stream may keep a
    /// partition alive until another plan uses the same SMs.
    pub(super) known: Vec<Weak<Partition>>,
    /// The name of the active plan.
    pub(super) active: u32,
}

impl SetEntry {
    pub(super) fn active(&self) -> Option<&PlanEntry> {
        self.plans.iter().find(|plan| plan.name == self.active)
    }
}

pub(super) struct GraphEntry {
    pub(super) name: u32,
    pub(super) graph: Graph,
    pub(super) keeps: Vec<Arc<Partition>>,
    /// Whether the graph may have nodes in several partitions, as far as the driver reports their contexts. Such a
    /// graph must not be moved.
    pub(super) is_divided: bool,
}

pub(super) struct ExecEntry {
    pub(super) name: u32,
    pub(super) exec: GraphExec,
    /// Keeps the partitions open as long as the executable.
    pub(super) _keeps: Vec<Arc<Partition>>,
}

/// The name of a partition's context or of a stream in a program.
#[derive(Clone, Copy)]
pub(super) enum Name {
    Context(u32),
    Stream(u32),
    PartContext(u32),
    PartStream(u32),
    /// A partition of a plan.
    LaneContext(u32, usize),
    LaneStream(u32, usize),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Context(name) => write!(f, "context{name}"),
            Name::Stream(name) => write!(f, "stream{name}"),
            Name::PartContext(name) => write!(f, "part{name}.context()"),
            Name::PartStream(name) => write!(f, "part{name}.stream()"),
            Name::LaneContext(plan, at) => write!(f, "plan{plan}.partitions()[{at}].context()"),
            Name::LaneStream(plan, at) => write!(f, "plan{plan}.partitions()[{at}].stream()"),
        }
    }
}

/// An object with a name that does not change when other operations are left out.
pub(super) trait Named {
    fn key(&self) -> u64;
}

macro_rules! named {
    ($($type:ty: $self:ident => $name:expr,)*) => {
        $(impl Named for $type {
            fn key(&$self) -> u64 {
                u64::from($name)
            }
        })*
    };
}
named! {
    GroupEntry: self => self.name,
    PartitionEntry: self => self.name,
    ContextEntry: self => self.name,
    StreamEntry: self => self.name,
    SetEntry: self => self.name,
    GraphEntry: self => self.name,
    ExecEntry: self => self.name,
    &PlanEntry: self => self.name,
    u32: self => *self,
    (u32, Arc<Foreign>): self => self.0,
    (u32, ForeignCapture): self => self.0,
    (u32, Kept): self => self.0,
    (u32, usize): self => self.0,
    SecondEntry: self => self.name,
}

impl Named for Name {
    fn key(&self) -> u64 {
        match *self {
            Name::Context(name)
            | Name::Stream(name)
            | Name::PartContext(name)
            | Name::PartStream(name) => u64::from(name),
            Name::LaneContext(plan, at) | Name::LaneStream(plan, at) => {
                (1 << 63) | (u64::from(plan) << 8) | at as u64
            }
        }
    }
}

/// Returns the driver's id of a context.
pub(super) fn id_of(context: &Context) -> Result<u64, Violation> {
    let unknown = |error| format!("a live context has no id: {error}");
    context.id().map_err(|error| Violation::new(Rule::Answer, unknown(error)))
}

impl World {
    /// Returns the index of the element that `number` chooses, or that was chosen when the operation was pinned.
    pub(super) fn pick<T: Named>(&self, number: u32, from: &[T]) -> Option<usize> {
        self.picked(number, from.len(), |at| from[at].key())
    }

    fn picked(&self, number: u32, len: usize, key: impl Fn(usize) -> u64) -> Option<usize> {
        let picks = self.picks.get();
        self.picks.set(picks + 1);
        let at = match self.pins.get(picks) {
            Some(pin) => (0..len).find(|at| key(*at) == *pin)?,
            None if len > 0 => number as usize % len,
            None => return None,
        };
        if let Some(chosen) = &self.chosen {
            chosen.borrow_mut().push(key(at));
        }
        Some(at)
    }

    /// Chooses a partition, either a separate one or one of a plan.
    pub(super) fn place(&self, number: u32) -> Option<Place> {
        let plans = self.sets.iter().flat_map(|set| &set.plans);
        let lanes = plans.clone().map(|plan| plan.lanes.len()).sum::<usize>();
        let lane = |at| lane_of(plans.clone(), at);
        let contexts = self.contexts.len();
        let own = contexts + self.partitions.len();
        let part = |at: usize| self.partitions.get(at.checked_sub(contexts)?);
        let name = |at: usize| match (self.contexts.get(at), part(at)) {
            (Some(entry), _) => Some(Name::Context(entry.name)),
            (_, Some(entry)) => Some(Name::PartContext(entry.name)),
            _ => lane(at - own).map(|(plan, at, _)| Name::LaneContext(plan.name, at)),
        };
        let at = self.picked(number, own + lanes, |at| name(at).map_or(0, |name| name.key()))?;
        if let Some(entry) = self.contexts.get(at) {
            let name = Name::Context(entry.name);
            return Some((entry.context.clone(), Arc::clone(&entry.partition), name));
        }
        if let Some(entry) = part(at) {
            let name = Name::PartContext(entry.name);
            return Some((entry.partition.context().clone(), Arc::clone(&entry.account), name));
        }
        let (plan, at, lane) = lane(at - own)?;
        let context = plan.plan.partitions()[at].context().clone();
        Some((context, Arc::clone(lane), Name::LaneContext(plan.name, at)))
    }

    /// Chooses a stream: a created or adopted one, or the first stream of a partition (for plans, of the active one).
    pub(super) fn lane(&self, number: u32) -> Option<Lane> {
        let plans = self.sets.iter().filter_map(SetEntry::active);
        let lanes = plans.clone().map(|plan| plan.lanes.len()).sum::<usize>();
        let lane = |at| lane_of(plans.clone(), at);
        let streams = self.streams.len();
        let own = streams + self.partitions.len();
        let part = |at: usize| self.partitions.get(at.checked_sub(streams)?);
        let name = |at: usize| match (self.streams.get(at), part(at)) {
            (Some(entry), _) => Some(Name::Stream(entry.name)),
            (_, Some(entry)) => Some(Name::PartStream(entry.name)),
            _ => lane(at - own).map(|(plan, at, _)| Name::LaneStream(plan.name, at)),
        };
        let at = self.picked(number, own + lanes, |at| name(at).map_or(0, |name| name.key()))?;
        if let Some(entry) = self.streams.get(at) {
            let name = Name::Stream(entry.name);
            return Some((entry.stream.clone(), entry.partition.clone(), name));
        }
        if let Some(entry) = part(at) {
            let (stream, name) = (entry.partition.stream().clone(), Name::PartStream(entry.name));
            return Some((stream, Some(Arc::clone(&entry.account)), name));
        }
        let (plan, at, lane) = lane(at - own)?;
        let stream = plan.plan.partitions()[at].stream().clone();
        Some((stream, Some(Arc::clone(lane)), Name::LaneStream(plan.name, at)))
    }

    /// Records a stream with this name.
    pub(super) fn enter_stream(
        &mut self,
        name: u32,
        stream: Stream,
        partition: Option<Arc<Partition>>,
        is_borrowed: bool,
    ) -> Done {
        self.streams.push(StreamEntry { name, stream, partition, is_borrowed });
        Done::Ok
    }

    /// Records a partition of a context that was just created.
    pub(super) fn open(
        &mut self,
        context: &Context,
        held: Arc<Held>,
        structured: bool,
        set: Option<u32>,
    ) -> Result<Arc<Partition>, Violation> {
        self.open_with(context, held, structured, set, None)
    }

    /// Records a partition of a context that was just created, with the partition whose workqueues it uses.
    pub(super) fn open_with(
        &mut self,
        context: &Context,
        held: Arc<Held>,
        structured: bool,
        set: Option<u32>,
        queues: Option<Arc<Partition>>,
    ) -> Result<Arc<Partition>, Violation> {
        let id = id_of(context)?;
        let number = self.name();
        let group = context.group().filter(|_| !structured);
        let place = group.and_then(|group| self.units.place(group));
        let known = self.model.known(context, id);
        let partition = known.unwrap_or_else(|| Arc::new(Partition::idle(id, context)));
        if !partition.begin(Lease { number, place, structured, set, held, queues }) {
            let seen = format!("context {id} of an open partition was given to another one");
            return Err(Violation::new(Rule::Answer, seen));
        }
        self.model.open(&partition);
        self.check_object(context, &partition)?;
        Ok(partition)
    }

    /// Returns the account of a context that foreign code had a handle of.
    pub(super) fn account_of(&mut self, context: &Context) -> Result<Arc<Partition>, Violation> {
        let id = id_of(context)?;
        let is_idle = context.group().is_none();
        if let Some(known) = self.model.known(context, id) {
            let may_differ = self.faults || !self.alone;
            if known.lease().is_none() != is_idle && !may_differ {
                let seen = format!("context {id} has a group (or none), unlike in the model");
                return Err(Violation::new(Rule::Answer, seen));
            }
            self.check_object(context, &known)?;
            return Ok(known);
        }
        // A set may hold a context that none of its plans uses.
        let last = self.model.last_set(id).filter(|_| !is_idle);
        if let Some(set) = self.sets.iter().position(|set| Some(set.name) == last) {
            let held = Held::within(&self.sets[set].base);
            let partition = self.open(context, held, false, last)?;
            self.sets[set].known.push(Arc::downgrade(&partition));
            return Ok(partition);
        }
        // Another thread's partition may have the context, or one whose creation failed.
        if (!is_idle || context.label() != "borrowed") && self.alone && !self.faults {
            let seen = format!("the idle context {id} has a partition named {}", context.label());
            return Err(Violation::new(Rule::Answer, seen));
        }
        let partition = Arc::new(Partition::idle(id, context));
        self.model.wrapped(&partition);
        self.check_object(context, &partition)?;
        Ok(partition)
    }

    /// Checks that this is the object of an account, and that all handles of the context lead to it.
    pub(super) fn check_object(
        &self,
        context: &Context,
        partition: &Partition,
    ) -> Result<(), Violation> {
        let id = partition.context_id;
        let is_of = |partition: &Partition| partition.context_id == id;
        let streams = self.streams.iter().filter(|it| it.partition.as_deref().is_some_and(is_of));
        let contexts = self.contexts.iter().filter(|it| is_of(&it.partition));
        let all = streams.map(|it| it.stream.context()).chain(contexts.map(|it| &it.context));
        let kept = self.kept_streams.lock().clone();
        let mut kept = kept.iter().filter(|(_, kept)| kept.context_id == id);
        if !partition.object.is(context)
            || all.into_iter().any(|other| other != context)
            || !kept.all(|(_, kept)| kept.leads_to(context))
        {
            let seen = format!("a handle of context {id} leads to another object");
            return Err(Violation::new(Rule::Answer, seen));
        }
        Ok(())
    }

    /// Returns the kernel for work in these partitions. With several threads, only kernel names show who
    /// launched what, so work that the promise does not cover has another name.
    pub(super) fn kernel_for<'a>(
        &self,
        partitions: impl IntoIterator<Item = &'a Arc<Partition>>,
    ) -> &Kernel {
        let exempt = |partition: &Arc<Partition>| {
            !partition.is_exclusive() || !self.model.is_active(partition)
        };
        if !self.alone && partitions.into_iter().any(exempt) {
            return &self.machine.exempt;
        }
        &self.machine.kernel
    }

    /// Returns the number of SMs that no object holds.
    pub(super) fn free(&self) -> u32 {
        if !self.alone {
            return self.sms.free_sm_count();
        }
        self.total - self.held.count().min(self.total)
    }
}

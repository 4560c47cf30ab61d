//! Operations on plan sets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use green_ctx::{
    Plan, PlanRequest, PlanSet, Share,
    context::CloseReason,
    error::Refused,
    plan::{CloseSetReason, SwitchOptions},
};

use super::groups::Asked;
use super::objects::{GroupEntry, PlanEntry, SetEntry, id_of};
use super::{Done, MOST, World};
use crate::account::{Held, Partition};
use crate::machine::panic_quietly;
use crate::model::{InPlan, Way};
use crate::operation::Kind;
use crate::raw;
use crate::violation::{Rule, Violation};

/// The maximum number of sets, and of plans per set.
const SETS: usize = 3;
const PLANS: usize = 6;

impl World {
    pub(super) fn new_set(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let wide = |entry: &&GroupEntry| {
            !entry.structured && entry.set.is_none() && entry.group.sm_count() >= 3 * self.unit
        };
        let wide: Vec<u32> = self.groups.iter().filter(wide).map(|entry| entry.name).collect();
        if self.sets.len() >= SETS || !self.composes() {
            return Ok(Done::Skipped);
        }
        let group = match self.pick(n[0], &wide) {
            Some(at) => Some(wide[at]),
            // Take all free SMs if there is no large enough group.
            None if self.free() >= 3 * self.unit => self.take_rest(),
            None => None,
        };
        let entry = group.and_then(|name| self.take_group(name));
        let Some(entry) = entry else { return Ok(Done::Skipped) };
        let GroupEntry { name: group_name, group, held, .. } = entry;
        let asked = self.asked(n[1], group.floor(), group.sm_count());
        let (name, plan_name) = (self.name(), self.name());
        let plan = PlanRequest::new(format!("plan{plan_name}"), self.request(&asked));
        let set = match PlanSet::new(group, plan) {
            Ok(set) => set,
            Err(error) => return Ok(Done::refused(&error)),
        };
        let end = self.granularity();
        self.say(|| {
            let request = asked.written(&end);
            format!(
                "let set{name} = PlanSet::new(group{group_name}, \
                 PlanRequest::new(\"plan{plan_name}\", {request}))?; let plan{plan_name} = \
                 set{name}.active().clone();"
            )
        });
        let first = Arc::clone(&set.active());
        let (plans, known) = (Vec::new(), Vec::new());
        let entry = SetEntry { name, set, base: held, plans, known, active: plan_name };
        self.sets.push(entry);
        let at = self.sets.len() - 1;
        self.prepared(at, plan_name, first)?;
        let parts = self.parts(at, plan_name);
        self.model.switched(name, &parts, true);
        Ok(Done::Ok)
    }

    /// Returns a plan's partitions as the model sees them when the plan becomes active.
    fn parts(&self, set: usize, plan: u32) -> Vec<InPlan> {
        let plan = self.sets[set].plans.iter().find(|entry| entry.name == plan);
        plan.map_or_else(Vec::new, |plan| plan.parts.clone())
    }

    /// Records a plan. Its partitions may also belong to other plans.
    fn prepared(&mut self, set: usize, name: u32, plan: Arc<Plan>) -> Result<(), Violation> {
        let (mut lanes, mut parts): (Vec<Arc<Partition>>, _) = (Vec::new(), Vec::new());
        for (index, part) in plan.partitions().iter().enumerate() {
            let id = id_of(part.context())?;
            let entry = &self.sets[set];
            let mut known = entry.known.iter().filter_map(Weak::upgrade);
            let lane = match known.find(|lane| lane.context_id == id) {
                Some(lane) => lane,
                None => {
                    let (number, held) = (entry.name, Held::within(&entry.base));
                    self.open(part.context(), held, false, Some(number))?
                }
            };
            let known = &mut self.sets[set].known;
            known.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&Arc::downgrade(&lane)));
            known.push(Arc::downgrade(&lane));
            lanes.push(lane);
            // The name of a partition is its index, except for the one that takes the rest.
            let name = if part.share() == Share::REST { u32::MAX } else { index as u32 };
            let floor = self.units.all(&part.floor_unit_indices()).unwrap_or_default();
            if parts.iter().any(|other: &InPlan| other.context_id == id) {
                let seen = "two partitions of one plan have the same context".to_owned();
                return Err(Violation::new(Rule::Share, seen));
            }
            parts.push(InPlan { context_id: id, name, floor });
        }
        self.sets[set].plans.push(PlanEntry { name, plan, lanes, parts });
        Ok(())
    }

    pub(super) fn prepare(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.sets) else { return Ok(Done::Skipped) };
        if self.sets[at].plans.len() >= PLANS {
            return Ok(Done::Skipped);
        }
        let asked = self.asked_of(at, n[1]);
        let name = self.name();
        self.prepare_one(at, name, &asked)
    }

    /// Returns shares of a set's SMs.
    fn asked_of(&self, at: usize, n: u32) -> Asked {
        let set = &self.sets[at].set;
        self.asked(n, set.floor(), set.sm_count())
    }

    fn prepare_one(&mut self, at: usize, name: u32, asked: &Asked) -> Result<Done, Violation> {
        let set_name = self.sets[at].name;
        let plan = PlanRequest::new(format!("plan{name}"), self.request(asked));
        let set = &self.sets[at].set;
        // On a separate thread or on this one.
        let (prepared, how) = match name.is_multiple_of(4) && self.alone {
            true => {
                let prepared = set.prepare_in_background(plan).join();
                let panicked =
                    || Violation::new(Rule::Panic, "a background preparation panicked".to_owned());
                (prepared.map_err(|_| panicked())?, "prepare_in_background")
            }
            false => (set.prepare(plan), "prepare"),
        };
        let plan = match prepared {
            Ok(plan) => plan,
            Err(error) => return Ok(Done::refused(&error)),
        };
        let end = self.granularity();
        self.say(|| {
            let request = asked.written(&end);
            format!(
                "let plan{name} = set{set_name}.{how}(PlanRequest::new(\"plan{name}\", {request}))?;"
            )
        });
        self.prepared(at, name, plan)?;
        Ok(Done::Ok)
    }

    pub(super) fn switch(&mut self, kind: Kind, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.sets) else { return Ok(Done::Skipped) };
        let set = &self.sets[at];
        let others: Vec<&PlanEntry> =
            set.plans.iter().filter(|plan| plan.name != set.active).collect();
        let Some(to) = self.pick(n[1], &others) else {
            return self.prepare(n).map(|_| Done::Skipped);
        };
        let name = others[to].name;
        let default = SwitchOptions::default();
        let (options, text) = match kind {
            Kind::SwitchUnfenced => (default.fence(false), ".fence(false)"),
            // The timeout of a drain is in real time, which must not affect a seed. So it is unlimited or zero.
            Kind::SwitchDrain if self.alone && self.model.busy_for() < 2_000_000 => {
                (default.drain(Duration::MAX), ".drain(Duration::MAX)")
            }
            Kind::SwitchDrain => (default.drain(Duration::ZERO), ".drain(Duration::ZERO)"),
            _ => (default, ""),
        };
        Ok(self.switch_to(at, name, (options, text), kind != Kind::SwitchUnfenced))
    }

    fn switch_to(
        &mut self,
        at: usize,
        name: u32,
        (options, text): (SwitchOptions, &str),
        fenced: bool,
    ) -> Done {
        let set = &self.sets[at];
        let Some(entry) = set.plans.iter().find(|plan| plan.name == name) else {
            return Done::Skipped;
        };
        if let Err(error) = set.set.switch(&entry.plan, options) {
            return Done::refused(&error);
        }
        let set_name = set.name;
        self.say(|| format!("set{set_name}.switch(&plan{name}, SwitchOptions::default(){text})?;"));
        self.sets[at].active = name;
        let parts = self.parts(at, name);
        self.model.switched(set_name, &parts, fenced);
        Done::Ok
    }

    /// Switches while the library repeatedly asks the program whether to continue. The program continues, gives
    /// up, or panics.
    pub(super) fn switch_while(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.sets) else { return Ok(Done::Skipped) };
        let set = &self.sets[at];
        let others: Vec<&PlanEntry> =
            set.plans.iter().filter(|plan| plan.name != set.active).collect();
        let Some(to) = self.pick(n[1], &others) else { return Ok(Done::Skipped) };
        let (name, plan) = (others[to].name, Arc::clone(&others[to].plan));
        let may_wait = self.alone && self.model.busy_for() < 2_000_000;
        let (mut asked, panics) = (0, n[2].is_multiple_of(3));
        let options = SwitchOptions::default().drain(Duration::MAX);
        let switched = catch_unwind(AssertUnwindSafe(|| {
            set.set.switch_while(&plan, options, || {
                asked += 1;
                if panics && asked == 2 {
                    panic_quietly("switch_while");
                }
                asked < 3 || may_wait
            })
        }));
        let done = match switched {
            Ok(Ok(())) => Done::Ok,
            Ok(Err(error)) => return Ok(Done::refused(&error)),
            Err(_) => return Ok(Done::Refused("the program panicked".to_owned())),
        };
        let set_name = set.name;
        self.say(|| format!("set{set_name}.switch_while(&plan{name}, /* drain */, || true)?;"));
        self.sets[at].active = name;
        let parts = self.parts(at, name);
        self.model.switched(set_name, &parts, true);
        Ok(done)
    }

    /// Closes a set. The close must be refused if something still uses the set.
    pub(super) fn close_set(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.sets) else { return Ok(Done::Skipped) };
        if self.groups.len() >= MOST {
            return Ok(Done::Skipped);
        }
        self.close_one(at, n)
    }

    fn close_one(&mut self, at: usize, n: [u32; 4]) -> Result<Done, Violation> {
        let SetEntry { name, set, base, plans, known, active } = self.sets.remove(at);
        // A partition is kept alive by another object if it has more handles than plans.
        let lanes: Vec<Arc<Partition>> = known.iter().filter_map(Weak::upgrade).collect();
        let of_plans = |lane: &Arc<Partition>| {
            let all = plans.iter().flat_map(|plan| &plan.lanes);
            all.filter(|other| Arc::ptr_eq(other, lane)).count()
        };
        let kept = lanes.iter().any(|lane| Arc::strong_count(lane) > 1 + of_plans(lane));
        drop(lanes);
        let lanes = plans.iter().flat_map(|plan| plan.plan.partitions().iter().zip(&plan.lanes));
        let lanes = lanes.map(|(part, lane)| (part.context(), lane));
        let stream = match n[1] % 4 {
            0 => self.kept_stream_of(lanes),
            _ => None,
        };
        let names: Vec<_> =
            plans.into_iter().map(|plan| (plan.name, plan.lanes, plan.parts)).collect();
        let (closed, wrapped) = self.beside_wrap(stream, n[2], || set.close());
        match closed {
            Ok(_) if kept || wrapped.is_some() => {
                let seen = format!("set{name} was closed, although its partitions are in use");
                Err(Violation::new(Rule::Answer, seen))
            }
            Ok(group) => {
                drop(names);
                let group_name = self.name();
                self.say(|| format!("let group{group_name} = set{name}.close()?;"));
                let (structured, set) = (false, None);
                self.groups.push(GroupEntry {
                    name: group_name,
                    group,
                    held: base,
                    structured,
                    set,
                });
                Ok(Done::Ok)
            }
            Err(Refused { given: set, reason }) => {
                let quiet = self.alone && !self.faults && !self.disturbed;
                let is_used = matches!(
                    reason,
                    CloseSetReason::InUse(_)
                        | CloseSetReason::Partition { reason: CloseReason::Shared { .. }, .. }
                );
                if quiet && (!kept && wrapped.is_none() || !is_used) {
                    let seen = format!("set{name} (in use: {kept}) was not closed: {reason}");
                    return Err(Violation::new(Rule::Answer, seen));
                }
                let mut plans = Vec::new();
                for (name, lanes, parts) in names {
                    let plan = set.plan(&format!("plan{name}")).map_err(|error| {
                        let seen = format!("a refused close lost a plan: {error}");
                        Violation::new(Rule::Refusal, seen)
                    })?;
                    for (part, lane) in plan.partitions().iter().zip(&lanes) {
                        self.check_object(part.context(), lane)?;
                    }
                    plans.push(PlanEntry { name, plan, lanes, parts });
                }
                self.sets.insert(at, SetEntry { name, set, base, plans, known, active });
                self.hold_wrapped(wrapped)?;
                Ok(Done::refused(&reason))
            }
        }
    }

    pub(super) fn retire(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.sets) else { return Ok(Done::Skipped) };
        let set = &self.sets[at];
        let may = |plan: &&PlanEntry| plan.name != set.active || n[2].is_multiple_of(16);
        let plans: Vec<u32> = set.plans.iter().filter(may).map(|plan| plan.name).collect();
        let Some(which) = self.pick(n[1], &plans) else { return Ok(Done::Skipped) };
        let name = plans[which];
        if !n[3].is_multiple_of(4) || self.partitions.len() >= MOST / 2 || self.groups.len() >= MOST
        {
            return Ok(self.retire_one(at, name));
        }
        // A partition of the retired plan keeps the set open, also if it shares its context with another plan.
        let (retired, others): (Vec<_>, Vec<_>) =
            set.plans.iter().partition(|plan| plan.name == name);
        let is_shared = |lane: &Arc<Partition>| {
            others.iter().flat_map(|plan| &plan.lanes).any(|other| Arc::ptr_eq(other, lane))
        };
        let Some(plan) = retired.first().filter(|plan| !plan.lanes.is_empty()) else {
            return Ok(self.retire_one(at, name));
        };
        let index = plan.lanes.iter().position(is_shared).unwrap_or(0);
        let (part, lane) = (plan.plan.partitions()[index].clone(), Arc::clone(&plan.lanes[index]));
        self.enter_partition(format_args!("plan{name}.partitions()[{index}]"), part, lane);
        let done = self.retire_one(at, name);
        if done == Done::Ok && n[3].is_multiple_of(8) {
            self.close_one(at, n)?;
        }
        Ok(done)
    }

    fn retire_one(&mut self, at: usize, name: u32) -> Done {
        let set = &self.sets[at];
        let set_name = set.name;
        match set.set.retire(&format!("plan{name}")) {
            Ok(()) => {
                self.say(|| format!("set{set_name}.retire(\"plan{name}\")?; drop(plan{name});"));
                self.disturbed |= !self.captures.is_empty();
                self.sets[at].plans.retain(|plan| plan.name != name);
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    pub(super) fn churn_plans(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.sets) else { return Ok(Done::Skipped) };
        if self.sets[at].plans.len() >= PLANS {
            return Ok(Done::Skipped);
        }
        let former = self.sets[at].active;
        for round in 0..30 {
            let asked = self.asked_of(at, n[1].rotate_left(round));
            let name = self.name();
            // The request may not be possible with the set's units.
            if self.prepare_one(at, name, &asked)? != Done::Ok {
                continue;
            }
            let fenced = SwitchOptions::default();
            for (to, stays) in [(name, false), (former, true)] {
                let done = self.switch_to(at, to, (fenced, ""), true);
                if done != Done::Ok {
                    return Ok(done);
                }
                let plan = self.sets[at].active();
                let first = plan
                    .and_then(|plan| plan.plan.partitions().iter().next().zip(plan.lanes.first()));
                let first = first.map(|(part, lane)| (part.stream().clone(), Arc::clone(lane)));
                let Some((stream, lane)) = first else { continue };
                if !stays {
                    self.say(|| {
                        format!("launch(&plan{name}.partitions()[0].stream(), &kernel, 100_000)?;")
                    });
                    let launched = raw::launch(&stream, self.kernel_for([&lane]), 100_000);
                    if self.alone {
                        self.check_launches(Way::Direct)?;
                    }
                    if let Err(error) = launched {
                        return Ok(Done::refused(&error));
                    }
                }
            }
            let done = self.retire_one(at, name);
            if done != Done::Ok {
                return Ok(done);
            }
        }
        Ok(Done::Ok)
    }

    pub(super) fn drop_set(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.sets) else { return Done::Skipped };
        let SetEntry { name, set, base, plans, .. } = self.sets.remove(at);
        self.say(|| {
            let plans: Vec<_> = plans.iter().map(|plan| format!("plan{}", plan.name)).collect();
            format!("drop((set{name}, {}));", plans.join(", "))
        });
        self.disturbed |= !self.captures.is_empty();
        drop((set, plans, base));
        Done::Ok
    }
}

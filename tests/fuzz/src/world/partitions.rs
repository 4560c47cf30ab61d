//! Operations on partitions.

use std::fmt;
use std::sync::Arc;

use green_ctx::{
    Device, Error, SplitRequest, Version,
    context::CloseReason,
    error::Refused,
    graph::CaptureMode,
    resource::{ContextResources, SmGroup},
};

use super::objects::{GroupEntry, PartitionEntry};
use super::{Done, MOST, World, endings};
use crate::account::{Held, Partition};
use crate::machine::Machine;
use crate::model::Way;
use crate::raw;
use crate::violation::{Rule, Violation};

/// The first driver with workqueues.
const WORKQUEUES: Version = Version::new(13, 1);

/// An obstacle to a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    Nothing,
    /// The context is current on the thread.
    Current,
    /// The stream takes part in a capture.
    Capture,
    /// An unrelated capture is being ended. The close must succeed.
    End,
    /// Another thread wraps a kept stream. The close must succeed only if that thread drops the stream again, and
    /// must wait for the work that it launched.
    Wrap,
}

fn wrong(seen: String) -> Violation {
    Violation::new(Rule::Answer, seen)
}

impl World {
    /// Returns a group, on newer drivers sometimes with its own workqueues or with those of another partition,
    /// which it keeps alive.
    pub(super) fn provision(
        &self,
        group: SmGroup,
        n: u32,
    ) -> (ContextResources, Option<Arc<Partition>>, String) {
        let plain = |group: SmGroup| (ContextResources::from(group), None, String::new());
        if self.version < WORKQUEUES || !self.alone {
            return plain(group);
        }
        match n % 8 {
            0 => match self.machine.device.resources().workqueue().and_then(|all| all.divide(2)) {
                Ok(half) => (group.with_workqueue(half), None, ".with_workqueue(half)".to_owned()),
                Err(_) => plain(group),
            },
            1 => {
                let Some((context, partition, of)) = self.place(n >> 3) else {
                    return plain(group);
                };
                // A plan's context could outlive its plan because of the queues, which the model does not support.
                if partition.set().is_some() {
                    return plain(group);
                }
                match context.shared_workqueue() {
                    Ok(queues) => {
                        // If that context itself shares queues, the owner is the first context.
                        let owner = partition.lease().and_then(|lease| lease.queues.clone());
                        let owner = owner.unwrap_or(partition);
                        let text = format!(".with_workqueue({of}.shared_workqueue()?)");
                        (group.with_workqueue(queues), Some(owner), text)
                    }
                    Err(_) => plain(group),
                }
            }
            _ => plain(group),
        }
    }

    pub(super) fn make_partition(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.partitions.len() >= MOST / 2 {
            return Ok(Done::Skipped);
        }
        if n[1].is_multiple_of(4) && self.alone && self.free() >= 2 * self.unit {
            return self.partition_device(n);
        }
        let Some(at) = self.pick(n[0], &self.groups) else { return Ok(Done::Skipped) };
        self.partition_group(at, n[2])
    }

    fn partition_group(&mut self, at: usize, n: u32) -> Result<Done, Violation> {
        let GroupEntry { name: group_name, group, held, structured, set } = self.groups.remove(at);
        let asked = group.sm_count();
        let (provision, queues, text) = self.provision(group, n);
        match self.machine.device.create_partition(provision) {
            Ok(partition) => {
                let name = self.name();
                self.say(|| {
                    format!("let part{name} = device.create_partition(group{group_name}{text})?;")
                });
                let account = self.open_with(partition.context(), held, structured, set, queues)?;
                self.partitions.push(PartitionEntry { name, partition, account });
                Ok(Done::Ok)
            }
            Err(error) => {
                let done = Done::refused(&error);
                let Some(provision) = error.given else {
                    // A second failed call, or a handle that was wrapped before, may have prevented the close of the
                    // failed partition's context.
                    if self.faults {
                        return Ok(done);
                    }
                    return Err(wrong("creating a partition failed and lost its group".to_owned()));
                };
                let group = provision.group;
                if group.sm_count() != asked {
                    return Err(wrong(format!("{} of {asked} SMs came back", group.sm_count())));
                }
                self.groups.push(GroupEntry { name: group_name, group, held, structured, set });
                Ok(done)
            }
        }
    }

    fn partition_device(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let asked = self.asked(n[2], self.free(), self.total);
        let priority = -i32::try_from(n[3] % 3).unwrap_or(0);
        let request = self.request(&asked);
        let parts = match self.machine.device.partition(request.priority("p0", priority)) {
            Ok(parts) => parts,
            Err(error) => return Ok(Done::refused(&error)),
        };
        let mut names = Vec::new();
        for partition in parts {
            let Some(group) = partition.context().group() else {
                return Err(wrong("a partition has no group".to_owned()));
            };
            let held = Held::take(&self.held, self.units.share(group, false));
            let name = self.name();
            let account = self.open(partition.context(), held, false, None)?;
            names.push(format!("part{name}"));
            self.partitions.push(PartitionEntry { name, partition, account });
        }
        let end = self.granularity();
        self.say(|| {
            let request = asked.written(&end);
            let names = names.join(", ");
            format!(
                "let [{names}] = device.partition({request}.priority(\"p0\", {priority}))?; \
                 // its partitions"
            )
        });
        Ok(Done::Ok)
    }

    pub(super) fn clone_partition(&mut self, n: [u32; 4]) -> Done {
        if self.partitions.len() >= MOST / 2 {
            return Done::Skipped;
        }
        let plans = self.sets.iter().flat_map(|set| &set.plans);
        let plans: Vec<_> = plans.filter(|plan| !plan.lanes.is_empty()).collect();
        let (of, partition, account) = if n[1].is_multiple_of(2) && !plans.is_empty() {
            let Some(plan) = self.pick(n[0], &plans).map(|at| plans[at]) else {
                return Done::Skipped;
            };
            let at = n[2] as usize % plan.lanes.len();
            let (partition, account) = (&plan.plan.partitions()[at], &plan.lanes[at]);
            let of = format!("plan{}.partitions()[{at}]", plan.name);
            (of, partition.clone(), Arc::clone(account))
        } else {
            let Some(at) = self.pick(n[0], &self.partitions) else { return Done::Skipped };
            let PartitionEntry { name, partition, account } = &self.partitions[at];
            (format!("part{name}"), partition.clone(), Arc::clone(account))
        };
        self.enter_partition(of, partition, account);
        Done::Ok
    }

    /// Records a clone of the partition `of`.
    pub(super) fn enter_partition(
        &mut self,
        of: impl fmt::Display,
        partition: green_ctx::Partition,
        account: Arc<Partition>,
    ) {
        let name = self.name();
        self.say(|| format!("let part{name} = {of}.clone();"));
        self.partitions.push(PartitionEntry { name, partition, account });
    }

    pub(super) fn drop_partition(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.partitions) else { return Ok(Done::Skipped) };
        let capturing = if self.alone && n[1].is_multiple_of(4) { self.lane(n[2]) } else { None };
        let PartitionEntry { name, partition, account } = self.partitions.remove(at);
        self.disturbed |= !self.captures.is_empty();
        let Some((origin, first, of)) = capturing else {
            self.say(|| format!("drop(part{name});"));
            drop(partition);
            drop(account);
            return Ok(Done::Ok);
        };
        let call = endings::call(n[3]);
        self.say(|| format!("// drop(part{name}) before {call} at the end of a capture of {of}"));
        let Machine { sim, device, kernel, .. } = &self.machine;
        let (on, unit, creates) = (device.clone(), self.unit, !self.model.has_wrapped());
        let drop_and_ask = move || {
            drop(partition);
            obtainable(&on, unit, creates)
        };
        let work = || raw::launch(&origin, kernel, 5_000);
        let (graph, during) = endings::interrupt((sim, &origin, call), work, drop_and_ask);
        drop((graph, account));
        let after = obtainable(device, unit, creates);
        drop((origin, first));
        if during != after && !self.faults && !self.disturbed {
            let seen = format!(
                "a program got {during} before {call} at the end of a capture, but {after} after it"
            );
            return Err(wrong(seen));
        }
        Ok(Done::Ok)
    }

    pub(super) fn close_partition(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.groups.len() >= MOST {
            return Ok(Done::Skipped);
        }
        // Usually a partition without other handles.
        let may = |entry: &&PartitionEntry| {
            n[3].is_multiple_of(2) || Arc::strong_count(&entry.account) == 1
        };
        let names: Vec<u32> = self.partitions.iter().filter(may).map(|entry| entry.name).collect();
        let Some(name) = self.pick(n[0], &names).map(|at| names[at]) else {
            return Ok(Done::Skipped);
        };
        let Some(at) = self.partitions.iter().position(|entry| entry.name == name) else {
            return Ok(Done::Skipped);
        };
        let obstacle = [
            Obstacle::Nothing,
            Obstacle::End,
            Obstacle::Current,
            Obstacle::Capture,
            Obstacle::Wrap,
        ][n[1] as usize % 5];
        // Another stream; the partition's stream joins its capture.
        let origin = self.lane(n[2]).filter(|(_, partition, _)| {
            let own = &self.partitions[at].account;
            partition.as_ref().is_none_or(|other| !Arc::ptr_eq(other, own))
        });
        let PartitionEntry { name, partition, account } = self.partitions.remove(at);
        let alone = Arc::strong_count(&account) == 1 && account.set().is_none();
        let stream = partition.stream().id();
        let kept = match obstacle {
            Obstacle::Wrap => self.kept_stream_of([(partition.context(), &account)]),
            _ => None,
        };
        let mut wrapped = None;
        let closed = match (obstacle, origin) {
            (Obstacle::Capture, Some((origin, _, of))) => {
                self.say(|| format!("// part{name}.close() while {of} captures its stream"));
                close_captured(partition, &origin)
            }
            (Obstacle::End, Some((origin, _, of))) if self.alone => {
                let call = endings::call(n[1] / 4);
                self.say(|| {
                    format!("// part{name}.close() before {call} at the end of a capture of {of}")
                });
                let Machine { sim, kernel, .. } = &self.machine;
                let work = || raw::launch(&origin, kernel, 5_000);
                endings::interrupt((sim, &origin, call), work, || partition.close()).1
            }
            (Obstacle::Wrap, _) => {
                let closed;
                (closed, wrapped) = self.beside_wrap(kept, n[2], || partition.close());
                closed
            }
            (Obstacle::Current, _) => {
                self.say(|| format!("// part{name}.close() while its context is current"));
                let current = partition.context().make_current();
                let closed = partition.close();
                drop(current);
                closed
            }
            _ => partition.close(),
        };
        match closed {
            Ok(group) => {
                if !alone || wrapped.is_some() {
                    return Err(wrong(format!(
                        "part{name} was closed, although other handles exist"
                    )));
                }
                self.check_done(&account)?;
                if obstacle == Obstacle::Current && !self.faults {
                    return Err(wrong(format!("part{name} was closed while it was current")));
                }
                self.closed(account, group, format_args!("part{name}.close()?"));
                Ok(Done::Ok)
            }
            Err(Refused { given: partition, reason }) => {
                let same_stream = match (stream, partition.stream().id()) {
                    (Ok(before), Ok(after)) => before == after,
                    // A planned fault may hit the query, or another thread may capture the stream.
                    _ => self.faults || !self.alone,
                };
                if !same_stream {
                    let seen = format!(
                        "a refused close ({reason}) returned another stream for part{name}"
                    );
                    return Err(Violation::new(Rule::Refusal, seen));
                }
                self.check_object(partition.context(), &account)?;
                let quiet = !self.faults && !self.disturbed && self.alone;
                let is_used = matches!(reason, CloseReason::Shared { .. } | CloseReason::InPlans);
                if quiet
                    && (alone && wrapped.is_none() || !is_used)
                    && matches!(obstacle, Obstacle::Nothing | Obstacle::End | Obstacle::Wrap)
                {
                    return Err(wrong(format!("part{name} was not closed: {reason}")));
                }
                self.hold_wrapped(wrapped)?;
                let done = Done::refused(&reason);
                self.partitions.insert(at, PartitionEntry { name, partition, account });
                Ok(done)
            }
        }
    }

    /// Joins two groups. If refused, both must be returned. The result often becomes a partition immediately,
    /// whose work then waits for everything that was running on the SMs of both.
    pub(super) fn join(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if n[3].is_multiple_of(2) && self.composes() && self.free() >= 2 * self.unit {
            // Two groups, which may have had other owners until recently.
            self.split_plainly(&[self.unit; 2])?;
        }
        let done = self.join_two(n)?;
        if done == Done::Ok && n[3] % 4 < 3 && self.partitions.len() < MOST / 2 {
            let made = self.partition_group(self.groups.len() - 1, n[1])?;
            if let (Done::Ok, Some(entry)) = (made, self.partitions.last()) {
                let (stream, account) =
                    (entry.partition.stream().clone(), Arc::clone(&entry.account));
                let name = entry.name;
                self.say(|| format!("launch(part{name}.stream(), &kernel, 5_000)?;"));
                self.launched = Some(Way::Direct);
                return Ok(Done::of(raw::launch(&stream, self.kernel_for([&account]), 5_000)));
            }
        }
        Ok(done)
    }

    fn join_two(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.groups.len() < 2 {
            return Ok(Done::Skipped);
        }
        let Some(at) = self.pick(n[0], &self.groups) else { return Ok(Done::Skipped) };
        let one = self.groups.remove(at);
        // Usually a group that may come from the same split and shares no SMs.
        let may = |other: &&GroupEntry| {
            let exclusive = |entry: &GroupEntry| entry.group.floor() == entry.group.sm_count();
            n[2].is_multiple_of(8)
                || exclusive(&one) && exclusive(other) && one.structured == other.structured
        };
        let others: Vec<u32> = self.groups.iter().filter(may).map(|other| other.name).collect();
        let other = self.pick(n[1], &others).and_then(|at| self.take_group(others[at]));
        let Some(other) = other else {
            self.groups.push(one);
            return Ok(Done::Skipped);
        };
        let counts = [one.group.sm_count(), other.group.sm_count()];
        match one.group.join(other.group) {
            Ok(group) => {
                let sum: u32 = counts.iter().sum();
                if group.sm_count() != sum || group.floor() != sum {
                    return Err(wrong(format!(
                        "groups of {counts:?} SMs were joined to {} SMs",
                        group.sm_count()
                    )));
                }
                let held = one.held.part(self.units.share(&group, one.structured));
                drop((one.held, other.held));
                let (name, first, second) = (self.name(), one.name, other.name);
                self.say(|| format!("let group{name} = group{first}.join(group{second})?;"));
                let (structured, set) = (one.structured, one.set);
                self.groups.push(GroupEntry { name, group, held, structured, set });
                Ok(Done::Ok)
            }
            Err(error) => {
                let done = Done::refused(&error);
                let [first, second] = error.given;
                if [first.sm_count(), second.sm_count()] != counts {
                    return Err(wrong(format!(
                        "a refused join of {counts:?} SMs returned other groups"
                    )));
                }
                self.groups.push(GroupEntry { group: first, ..one });
                self.groups.push(GroupEntry { group: second, ..other });
                Ok(done)
            }
        }
    }
}

/// Describes the free SMs, and the results of requests for SMs. `creates` is false if foreign code has a handle of an
/// idle context, since a partition that reuses the context would stay open.
fn obtainable(device: &Device, unit: u32, creates: bool) -> String {
    let free = device.resources().sm().map(|sms| sms.free_sm_count());
    let rest = device.rest("rest").map(|group| group.sm_count()).map_err(|error| error.to_string());
    let parts = match creates {
        true => device.partition([unit]).map(|parts| parts.len()),
        false => device.resources().sm().and_then(|sms| Ok(sms.split([unit])?.groups.len())),
    };
    let parts = parts.map_err(|error| error.to_string());
    format!("{free:?} free SMs, {rest:?} SMs as the rest and {parts:?} partitions of {unit}")
}

/// Closes a partition while its stream takes part in a capture. The close must be refused, and the capture must
/// continue.
fn close_captured(
    partition: green_ctx::Partition,
    origin: &green_ctx::Stream,
) -> Result<SmGroup, Refused<green_ctx::Partition, CloseReason>> {
    let mut closed = None;
    let mut partition = Some(partition);
    let captured = origin.capture(CaptureMode::Relaxed, || {
        let joined = partition.take().ok_or(Error::Capturing)?;
        if let Err(error) = joined.stream().wait_for(origin) {
            partition = Some(joined);
            return Err(error);
        }
        let refused = closed.insert(joined.close());
        match refused {
            Ok(_) => Ok(()),
            Err(error) => origin.wait_for(error.given.stream()),
        }
    });
    match (closed, partition, captured) {
        (Some(closed), ..) => closed,
        // The close was not attempted.
        (None, Some(partition), Err(error)) => {
            Err(Refused { given: partition, reason: CloseReason::Driver(error) })
        }
        (None, ..) => unreachable!("the capture ran or returned an error"),
    }
}

/// Returns a request for one group of `count` SMs.
pub(super) fn one_of(count: u32) -> SplitRequest {
    SplitRequest::from([count])
}

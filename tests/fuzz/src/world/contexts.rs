//! Operations on contexts.

use std::sync::Arc;

use super::objects::{ContextEntry, GroupEntry};
use super::{Done, MOST, World};
use crate::model::Way;
use crate::raw;
use crate::violation::{Rule, Violation};

impl World {
    pub(super) fn make_context(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.contexts.len() >= MOST {
            return Ok(Done::Skipped);
        }
        let Some(at) = self.pick(n[0], &self.groups) else { return Ok(Done::Skipped) };
        let GroupEntry { name: group_name, group, held, structured, set } = self.groups.remove(at);
        let asked = group.sm_count();
        let (provision, queues, text) = self.provision(group, n[2]);
        let context = match self.machine.device.create_context(provision) {
            Ok(context) => context,
            Err(error) => return Ok(Done::refused(&error)),
        };
        let partition = self.open_with(&context, held, structured, set, queues)?;
        if let Ok(found) = context.sm_count()
            && found != asked
        {
            return Err(Violation::new(
                Rule::Answer,
                format!("a context of {asked} SMs reports {found}"),
            ));
        }
        let name = self.name();
        self.say(|| {
            format!("let context{name} = device.create_context(group{group_name}{text})?;")
        });
        self.contexts.push(ContextEntry { name, context, partition });
        Ok(Done::Ok)
    }

    pub(super) fn clone_context(&mut self, n: [u32; 4]) -> Done {
        if self.contexts.len() >= MOST {
            return Done::Skipped;
        }
        let Some((context, partition, of)) = self.place(n[0]) else { return Done::Skipped };
        let name = self.name();
        self.say(|| format!("let context{name} = {of}.clone();"));
        self.contexts.push(ContextEntry { name, context, partition });
        Done::Ok
    }

    pub(super) fn close_context(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        // Usually a context without other handles, if there is one.
        let alone = |entry: &ContextEntry| Arc::strong_count(&entry.partition) == 1;
        let free: Vec<u32> =
            self.contexts.iter().filter(|e| alone(e)).map(|entry| entry.name).collect();
        let any: Vec<u32> = self.contexts.iter().map(|entry| entry.name).collect();
        let among = if free.is_empty() || n[1].is_multiple_of(8) { any } else { free };
        let Some(name) = self.pick(n[0], &among).map(|at| among[at]) else {
            return Ok(Done::Skipped);
        };
        let Some(at) = self.contexts.iter().position(|entry| entry.name == name) else {
            return Ok(Done::Skipped);
        };
        if self.groups.len() >= MOST {
            return Ok(Done::Skipped);
        }
        let ContextEntry { name, context, partition } = self.contexts.remove(at);
        let kept = match n[2] % 4 {
            0 => self.kept_stream_of([(&context, &partition)]),
            _ => None,
        };
        let wrong = |seen| Err(Violation::new(Rule::Answer, seen));
        let (closed, wrapped) = self.beside_wrap(kept, n[3], || context.close());
        match closed {
            Ok(group) => {
                let handles = Arc::strong_count(&partition) + usize::from(wrapped.is_some());
                if handles > 1 {
                    let others = handles - 1;
                    return wrong(format!(
                        "context{name} was closed, although {others} other handles exist"
                    ));
                }
                if group.is_some() != partition.lease().is_some() && self.alone && !self.faults {
                    return wrong(format!("context{name} was closed and returned {group:?}"));
                }
                if let Some(group) = group.filter(|_| partition.lease().is_some()) {
                    self.check_done(&partition)?;
                    let close = format_args!("context{name}.close()?.ok_or(\"a group\")?");
                    self.closed(partition, group, close);
                }
                Ok(Done::Ok)
            }
            Err(error) => {
                let done = Done::refused(&error);
                let context = error.given;
                self.check_object(&context, &partition)?;
                self.contexts.insert(at, ContextEntry { name, context, partition });
                self.hold_wrapped(wrapped)?;
                Ok(done)
            }
        }
    }

    pub(super) fn drop_context(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.contexts) else { return Done::Skipped };
        let ContextEntry { name, context, partition } = self.contexts.remove(at);
        self.say(|| format!("drop(context{name});"));
        self.disturbed |= !self.captures.is_empty();
        drop(context);
        drop(partition);
        Done::Ok
    }

    pub(super) fn launch_default(&mut self, n: [u32; 4]) -> Done {
        let Some((context, partition, of)) = self.place(n[0]) else { return Done::Skipped };
        let nanoseconds = duration(n[3]);
        self.say(|| format!("launch_default(&{of}, &kernel, {nanoseconds})?;"));
        self.launched = Some(Way::Direct);
        Done::of(raw::launch_default(&context, self.kernel_for([&partition]), nanoseconds))
    }
}

/// Returns a kernel duration in nanoseconds: usually short, sometimes very long.
pub(super) fn duration(number: u32) -> u64 {
    match number % 16 {
        0..6 => 5_000,
        6..10 => 200_000,
        10..14 => 5_000_000,
        _ => 1_000_000_000,
    }
}

//! Operations that use a second device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use green_ctx::{
    Error, Stream, StreamOptions, context::Context, error::Refused, graph::CaptureMode,
};

use super::contexts::duration;
use super::objects::GraphEntry;
use super::partitions::one_of;
use super::{Done, MOST, World};
use crate::account::{Held, Partition};
use crate::machine::panic_quietly;
use crate::model::Way;
use crate::raw;
use crate::violation::{Rule, Violation};

/// The maximum number of partitions of the second device.
const PARTITIONS: usize = 3;

/// A partition of the second device, with a stream.
pub(super) struct SecondEntry {
    pub(super) name: u32,
    context: Context,
    stream: Stream,
    partition: Arc<Partition>,
}

impl World {
    pub(super) fn second_make(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(device) = self.machine.second.clone().filter(|_| self.composes()) else {
            return Ok(Done::Skipped);
        };
        if self.second.len() >= PARTITIONS {
            return Ok(Done::Skipped);
        }
        let count = self.unit * (1 + n[0] % 4);
        let request = one_of(count).granularity(self.granularity);
        let made = device.resources().sm().and_then(|sms| sms.split(request)).and_then(|split| {
            let group = split.groups.into_iter().next().ok_or(Error::Capturing)?;
            let held = Held::take(&self.held_second, self.units.share(&group, false));
            let context = device.create_context(group)?;
            let stream = context.create_stream(StreamOptions::default())?;
            Ok((context, stream, held))
        });
        let (context, stream, held) = match made {
            Ok(made) => made,
            Err(error) => return Ok(Done::refused(&error)),
        };
        let partition = self.open(&context, held, false, None)?;
        let name = self.name();
        let end = self.granularity();
        self.say(|| {
            format!(
                "let group = second.resources().sm()?.split(SplitRequest::from([{count}]){end})?\
                 .groups.remove(0); let context{name} = second.create_context(group)?; \
                 let stream{name} = context{name}.create_stream(StreamOptions::default())?;"
            )
        });
        self.second.push(SecondEntry { name, context, stream, partition });
        self.check_second_ledger()?;
        Ok(Done::Ok)
    }

    /// Checks that the second device's ledger reports as free exactly the SMs that no object holds.
    pub(super) fn check_second_ledger(&self) -> Result<(), Violation> {
        let Some(device) = &self.machine.second else { return Ok(()) };
        let Ok(sms) = device.resources().sm() else { return Ok(()) };
        let (free, held) = (sms.free_sm_count(), self.held_second.count());
        let expected = self.total - held.min(self.total);
        let may_lack = self.faults || self.disturbed;
        if free > expected || (free < expected && !may_lack) {
            let seen =
                format!("{free} SMs of the second device are free, although {held} are held");
            return Err(Violation::new(Rule::Ledger, seen));
        }
        Ok(())
    }

    fn second_entry(&self, n: u32) -> Option<(Stream, Arc<Partition>, u32)> {
        let at = self.pick(n, &self.second)?;
        let SecondEntry { name, stream, partition, .. } = &self.second[at];
        Some((stream.clone(), Arc::clone(partition), *name))
    }

    pub(super) fn second_launch(&mut self, n: [u32; 4]) -> Done {
        let Some((stream, partition, name)) = self.second_entry(n[0]) else { return Done::Skipped };
        let nanoseconds = duration(n[3]);
        self.say(|| format!("launch(&stream{name}, &kernel, {nanoseconds})?;"));
        self.launched = Some(Way::Direct);
        Done::of(raw::launch(&stream, self.kernel_for([&partition]), nanoseconds))
    }

    pub(super) fn second_order(&mut self, n: [u32; 4]) -> Done {
        let Some((there, _, name)) = self.second_entry(n[0]) else { return Done::Skipped };
        let Some((here, _, of)) = self.lane(n[1]) else { return Done::Skipped };
        if n[2].is_multiple_of(2) {
            self.say(|| format!("stream{name}.wait_for(&{of})?;"));
            return Done::of(there.wait_for(&here));
        }
        self.say(|| format!("{of}.wait_for(&stream{name})?;"));
        Done::of(here.wait_for(&there))
    }

    pub(super) fn second_capture(&mut self, n: [u32; 4]) -> Done {
        if self.graphs.len() >= MOST / 2 {
            return Done::Skipped;
        }
        let Some((there, second, name)) = self.second_entry(n[0]) else { return Done::Skipped };
        let Some((here, first, of)) = self.lane(n[1]) else { return Done::Skipped };
        let nanoseconds = duration(n[3]);
        let kernel = &self.machine.kernel;
        let captured = here.capture(CaptureMode::Relaxed, || {
            raw::launch(&here, kernel, nanoseconds)?;
            there.wait_for(&here)?;
            raw::launch(&there, kernel, nanoseconds)?;
            here.wait_for(&there)
        });
        match captured {
            Ok(graph) => {
                let graph_name = self.name();
                self.say(|| {
                    format!(
                        "let graph{graph_name} = {of}.capture(CaptureMode::Relaxed, || {{ \
                         launch(&{of}, &kernel, {nanoseconds})?; stream{name}.wait_for(&{of})?; \
                         launch(&stream{name}, &kernel, {nanoseconds})?; \
                         {of}.wait_for(&stream{name}) }})?;"
                    )
                });
                let keeps = first.into_iter().chain([second]).collect();
                let is_divided = true;
                self.graphs.push(GraphEntry { name: graph_name, graph, keeps, is_divided });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    pub(super) fn second_drop(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.second) else { return Ok(Done::Skipped) };
        let SecondEntry { name, context, stream, partition } = self.second.remove(at);
        if n[1].is_multiple_of(2) {
            self.say(|| format!("drop((stream{name}, context{name}));"));
            self.disturbed |= !self.captures.is_empty();
            drop((stream, context));
            drop(partition);
            self.check_second_ledger()?;
            return Ok(Done::Ok);
        }
        self.say(|| format!("drop(stream{name}); drop(context{name}.close()?);"));
        drop(stream);
        let alone = Arc::strong_count(&partition) == 1;
        match context.close() {
            Ok(_) if !alone => {
                let seen = format!("context{name} was closed, although other handles exist");
                Err(Violation::new(Rule::Answer, seen))
            }
            Ok(group) => {
                drop(group);
                drop(partition);
                self.check_second_ledger()?;
                Ok(Done::Ok)
            }
            Err(Refused { reason, .. }) => Ok(Done::refused(&reason)),
        }
    }

    /// A reclaim hook panics. The split must do nothing.
    pub(super) fn reclaim_panics(&mut self) -> Result<Done, Violation> {
        if !self.alone {
            return Ok(Done::Skipped);
        }
        self.say(|| "// a split while a function of on_reclaim panics".to_owned());
        let hook = self.machine.device.driver().on_reclaim(|_| panic_quietly("on_reclaim"));
        let request = one_of(self.unit).granularity(self.granularity);
        let split = catch_unwind(AssertUnwindSafe(|| self.sms.split(request)));
        drop(hook);
        match split {
            Err(_) => Ok(Done::Ok),
            Ok(_) => {
                let seen = "a split did not call the reclaim hook".to_owned();
                Err(Violation::new(Rule::Answer, seen))
            }
        }
    }
}

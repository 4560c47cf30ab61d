//! Operations on graphs.

use std::sync::Arc;

use green_ctx::{
    Error, Version,
    context::Context,
    graph::{CaptureMode, RetargetError},
    watch::Watch,
};
use parking_lot::Mutex;

use super::contexts::duration;
use super::objects::{ExecEntry, GraphEntry, GroupEntry};
use super::{Done, MOST, World, endings};
use crate::account::Partition;
use crate::machine::{self, Machine};
use crate::model::Way;
use crate::raw;
use crate::violation::{Rule, Violation};

/// Returns each partition once.
fn distinct(partitions: impl IntoIterator<Item = Option<Arc<Partition>>>) -> Vec<Arc<Partition>> {
    let mut all: Vec<Arc<Partition>> = Vec::new();
    for partition in partitions.into_iter().flatten() {
        if !all.iter().any(|known| Arc::ptr_eq(known, &partition)) {
            all.push(partition);
        }
    }
    all
}

/// Returns whether two streams belong to different partitions. Streams of the primary context do not count.
fn are_apart(first: Option<&Arc<Partition>>, second: Option<&Arc<Partition>>) -> bool {
    first.zip(second).is_some_and(|(first, second)| first.context_id != second.context_id)
}

/// Drops the last handle of a partition.
type End = Box<dyn FnOnce() + Send>;

/// The work that is captured in the second stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    Nothing,
    Kernel,
    Memset,
}

impl World {
    pub(super) fn capture(&mut self, n: [u32; 4]) -> Done {
        self.capture_two(n, Second::Nothing)
    }

    pub(super) fn capture_fork(&mut self, n: [u32; 4]) -> Done {
        self.capture_two(n, Second::Kernel)
    }

    pub(super) fn capture_memset(&mut self, n: [u32; 4]) -> Done {
        self.capture_two(n, Second::Memset)
    }

    fn capture_two(&mut self, n: [u32; 4], second: Second) -> Done {
        if self.graphs.len() >= MOST / 2 {
            return Done::Skipped;
        }
        let Some((one, first, a)) = self.lane(n[0]) else { return Done::Skipped };
        let Some((two, other, b)) = self.lane(n[1]) else { return Done::Skipped };
        let nanoseconds = duration(n[3]);
        let exempt =
            |partition: &Arc<Partition>| !partition.is_exclusive() || partition.set().is_some();
        // Another plan may be active when the graph is launched.
        let kernel = match first.iter().chain(&other).any(exempt) && !self.alone {
            true => &self.machine.exempt,
            false => &self.machine.kernel,
        };
        let mode = if self.alone { CaptureMode::default() } else { CaptureMode::Relaxed };
        let captured = one.capture(mode, || {
            raw::launch(&one, kernel, nanoseconds)?;
            if second == Second::Nothing {
                return Ok::<(), Error>(());
            }
            two.wait_for(&one)?;
            match second {
                Second::Memset => raw::memset(&two, &self.machine.memory)?,
                _ => raw::launch(&two, kernel, nanoseconds)?,
            }
            one.wait_for(&two)
        });
        let graph = match captured {
            Ok(graph) => graph,
            Err(error) => return Done::refused(&error),
        };
        let name = self.name();
        self.say(|| {
            let rest = match second {
                Second::Nothing => String::new(),
                Second::Memset => {
                    format!(" {b}.wait_for(&{a})?; memset(&{b}, &memory)?; {a}.wait_for(&{b})?;")
                }
                Second::Kernel => format!(
                    " {b}.wait_for(&{a})?; launch(&{b}, &kernel, {nanoseconds})?; \
                     {a}.wait_for(&{b})?;"
                ),
            };
            format!(
                "let graph{name} = {a}.capture(CaptureMode::{mode:?}, || {{ \
                 launch(&{a}, &kernel, {nanoseconds})?;{rest} Ok(()) }})?;"
            )
        });
        let other = if second == Second::Nothing { None } else { other };
        let is_divided = are_apart(first.as_ref(), other.as_ref());
        self.graphs.push(GraphEntry { name, graph, keeps: distinct([first, other]), is_divided });
        Done::Ok
    }

    /// Captures work in a partition that is created during the capture and dropped before it ends, sometimes
    /// with a kernel of a library that is also new.
    pub(super) fn capture_drop(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.graphs.len() >= MOST / 2 || !self.alone {
            return Ok(Done::Skipped);
        }
        let Some((origin, first, a)) = self.lane(n[0]) else { return Ok(Done::Skipped) };
        let Some(at) = self.pick(n[1], &self.groups) else { return Ok(Done::Skipped) };
        let GroupEntry { name: group_name, group, held, structured, set } = self.groups.remove(at);
        let (loads, nanoseconds) = (n[2].is_multiple_of(2), duration(n[3]));
        let (sets, way, call) = (n[1] >> 30 == 0, n[1] >> 24 & 3, endings::call(n[1] >> 16));
        let Machine { sim, device, kernel, memory, .. } = &self.machine;
        let (mut inside, mut reads) = (None, false);
        let end: Arc<Mutex<Option<End>>> = Arc::default();
        let at_end = Arc::clone(&end);
        let work = || {
            let partition = device.create_partition(group)?;
            inside = Some(partition.context().id()?);
            let forked = partition.stream();
            forked.wait_for(&origin)?;
            if loads {
                raw::launch(forked, &machine::load(sim, device, "inside")?, nanoseconds)?;
            }
            match sets {
                true => raw::memset(forked, memory)?,
                false => raw::launch(forked, kernel, nanoseconds)?,
            }
            reads = memory.read(&origin).is_ok();
            origin.wait_for(forked)?;
            let stream = if way == 2 { Some(forked.clone()) } else { None };
            *end.lock() = match (way, stream) {
                (0, _) => Some(Box::new(move || drop(partition))),
                (1, _) => Some(Box::new(move || drop(partition.close()))),
                (_, Some(stream)) => Some(Box::new(move || drop(stream))),
                // The partition is dropped before the capture ends.
                _ => None,
            };
            Ok(())
        };
        let give_up = move || {
            let end = at_end.lock().take();
            end.into_iter().for_each(|end| end());
        };
        let (captured, ()) = endings::interrupt((sim, &origin, call), work, give_up);
        if reads {
            let seen = "memory was read in a stream during its capture".to_owned();
            return Err(Violation::new(Rule::Answer, seen));
        }
        let graph = match captured {
            Ok(graph) => graph,
            Err(error) => return Ok(Done::refused(&error)),
        };
        let name = self.name();
        self.say(|| {
            let library = if loads {
                format!("launch(part.stream(), &load(\"inside\")?, {nanoseconds})?; ")
            } else {
                String::new()
            };
            let last = match sets {
                true => "memset(part.stream(), &memory)?".to_owned(),
                false => format!("launch(part.stream(), &kernel, {nanoseconds})?"),
            };
            let end = match way {
                0 => format!("drop(part) before {call}"),
                1 => format!("part.close() before {call}"),
                2 => format!("drop(part), and drop(part.stream().clone()) before {call}"),
                _ => "drop(part)".to_owned(),
            };
            format!(
                "let graph{name} = {a}.capture(CaptureMode::Relaxed, || {{ let part = \
                 device.create_partition(group{group_name})?; part.stream().wait_for(&{a})?; \
                 {library}{last}; {a}.wait_for(part.stream()) }})?; // {end}"
            )
        });
        let ids = |context: &&Context| context.id().ok() == inside;
        let Some(context) = graph.contexts().iter().find(ids).cloned() else {
            if self.faults {
                return Ok(Done::Ok);
            }
            let seen = format!("graph{name} does not keep a captured partition alive");
            return Err(Violation::new(Rule::Answer, seen));
        };
        let second = self.open(&context, held, structured, set)?;
        // The only node is in the second partition. For a memset, older drivers do not report that.
        let is_reported = !sets || self.machine.device.driver().version() >= Version::new(13, 2);
        let is_divided = !is_reported && are_apart(first.as_ref(), Some(&second));
        let keeps = distinct([first, Some(second)]);
        self.graphs.push(GraphEntry { name, graph, keeps, is_divided });
        Ok(Done::Ok)
    }

    /// Checks that a graph's nodes run in contexts that it keeps alive, or in the primary context.
    pub(super) fn audit(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        let Some(at) = self.pick(n[0], &self.graphs) else { return Ok(Done::Skipped) };
        let GraphEntry { name, graph, .. } = &self.graphs[at];
        let name = *name;
        let audit = match graph.audit() {
            Ok(audit) => audit,
            Err(error) => return Ok(Done::refused(&error)),
        };
        let ids: Vec<u64> = graph.contexts().iter().filter_map(|it| it.id().ok()).collect();
        let mut outside = audit.nodes.iter().filter_map(|node| node.location.as_ref());
        let outside = outside
            .find(|location| location.context != "primary" && !ids.contains(&location.context_id));
        if let Some(location) = outside.filter(|_| !self.faults) {
            let seen =
                format!("graph{name} runs in a context that it does not keep alive: {location}");
            return Err(Violation::new(Rule::Answer, seen));
        }
        let Some((context, _, of)) = self.place(n[1]) else { return Ok(Done::Ok) };
        let watched = Watch::new(&context).graph("graph", &self.graphs[at].graph);
        self.say(|| {
            format!("graph{name}.audit()?; Watch::new(&{of}).graph(\"graph\", &graph{name})?;")
        });
        Ok(Done::of(watched))
    }

    pub(super) fn retarget(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.graphs.len() >= MOST / 2 {
            return Ok(Done::Skipped);
        }
        let Some(at) = self.pick(n[0], &self.graphs) else { return Ok(Done::Skipped) };
        let Some((context, partition, of)) = self.place(n[1]) else { return Ok(Done::Skipped) };
        if !self.alone && (!partition.is_exclusive() || partition.set().is_some()) {
            return Ok(Done::Skipped);
        }
        let from = self.graphs[at].name;
        let moved = self.graphs[at].graph.retarget(&context);
        self.check_move(at, &moved)?;
        Ok(match moved {
            Ok(graph) => {
                let name = self.name();
                self.say(|| format!("let graph{name} = graph{from}.retarget(&{of})?;"));
                let (keeps, is_divided) = (vec![partition], false);
                self.graphs.push(GraphEntry { name, graph, keeps, is_divided });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        })
    }

    /// Checks that a move was refused if the graph has nodes in several partitions, and was not refused for that
    /// reason otherwise. If calls fail, a graph may note contexts in which it has no nodes.
    fn check_move<T>(&self, at: usize, moved: &Result<T, RetargetError>) -> Result<(), Violation> {
        let &GraphEntry { name, is_divided, .. } = &self.graphs[at];
        let seen = match moved {
            Ok(_) if is_divided => format!("graph{name} of several partitions was moved"),
            Err(error @ RetargetError::SeveralContexts { .. }) if !is_divided && !self.faults => {
                format!("graph{name} of one partition was not moved: {error}")
            }
            _ => return Ok(()),
        };
        Err(Violation::new(Rule::Answer, seen))
    }

    pub(super) fn instantiate(&mut self, n: [u32; 4]) -> Done {
        if self.execs.len() >= MOST / 2 {
            return Done::Skipped;
        }
        let Some(at) = self.pick(n[0], &self.graphs) else { return Done::Skipped };
        let (from, keeps) = (self.graphs[at].name, self.graphs[at].keeps.clone());
        match self.graphs[at].graph.instantiate() {
            Ok(exec) => {
                let name = self.name();
                self.say(|| format!("let exec{name} = graph{from}.instantiate()?;"));
                self.execs.push(ExecEntry { name, exec, _keeps: keeps });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        }
    }

    pub(super) fn cache_get(&mut self, n: [u32; 4]) -> Result<Done, Violation> {
        if self.execs.len() >= MOST / 2 || self.cached.len() >= MOST {
            return Ok(Done::Skipped);
        }
        let Some(at) = self.pick(n[0], &self.graphs) else { return Ok(Done::Skipped) };
        let Some((context, partition, of)) = self.place(n[1]) else { return Ok(Done::Skipped) };
        if !self.alone && (!partition.is_exclusive() || partition.set().is_some()) {
            return Ok(Done::Skipped);
        }
        let GraphEntry { name: from, graph, keeps, .. } = &self.graphs[at];
        let from = *from;
        let found = self.cache.get(graph, &context);
        self.check_move(at, &found)?;
        Ok(match found {
            Ok(exec) => {
                let known = |(graph, kept, _): &(u32, Arc<Partition>, _)| {
                    *graph == from && Arc::ptr_eq(kept, &partition)
                };
                if !self.cached.iter().any(known) {
                    self.cached.push((from, Arc::clone(&partition), keeps.clone()));
                }
                let name = self.name();
                self.say(|| format!("let exec{name} = cache.get(&graph{from}, &{of})?;"));
                self.execs.push(ExecEntry { name, exec, _keeps: vec![partition] });
                Done::Ok
            }
            Err(error) => Done::refused(&error),
        })
    }

    pub(super) fn cache_forget(&mut self, n: [u32; 4]) -> Done {
        if self.cached.is_empty() {
            return Done::Skipped;
        }
        self.disturbed |= !self.captures.is_empty();
        // Only for a single partition: the order in which a cache drops several is not determined by the seed.
        let first = &self.cached[0].1;
        if n[1].is_multiple_of(2) && self.cached.iter().all(|(_, kept, _)| Arc::ptr_eq(kept, first))
        {
            self.say(|| "cache.clear();".to_owned());
            self.cache.clear();
            self.cached.clear();
            return Done::Ok;
        }
        let Some((context, partition, of)) = self.place(n[0]) else { return Done::Skipped };
        self.say(|| format!("cache.forget(&{of});"));
        self.cache.forget(&context);
        self.cached.retain(|(_, kept, _)| !Arc::ptr_eq(kept, &partition));
        Done::Ok
    }

    pub(super) fn drop_graph(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.graphs) else { return Done::Skipped };
        let GraphEntry { name, graph, keeps, .. } = self.graphs.remove(at);
        self.say(|| format!("drop(graph{name});"));
        self.disturbed |= !self.captures.is_empty();
        drop((graph, keeps));
        Done::Ok
    }

    pub(super) fn drop_exec(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.execs) else { return Done::Skipped };
        let exec = self.execs.remove(at);
        let name = exec.name;
        self.say(|| format!("drop(exec{name});"));
        self.disturbed |= !self.captures.is_empty();
        drop(exec);
        Done::Ok
    }

    pub(super) fn launch_graph(&mut self, n: [u32; 4]) -> Done {
        let Some(at) = self.pick(n[0], &self.execs) else { return Done::Skipped };
        let Some((stream, _, of)) = self.lane(n[1]) else { return Done::Skipped };
        let name = self.execs[at].name;
        self.say(|| format!("launch_graph(&{of}, &exec{name})?;"));
        self.launched = Some(Way::Graph);
        Done::of(raw::launch_graph(&stream, &self.execs[at].exec))
    }
}

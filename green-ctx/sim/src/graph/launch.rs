//! Launches of executable graphs.

use std::collections::BTreeMap;
use std::sync::Arc;

use green_ctx_sys::{CUgraphExec_st, CUresult, CUstream_st};
use parking_lot::MutexGuard;

use super::allocation::Allocate;
use super::exec::{AUTO_FREE, Exec, Plan, Step};
use super::node::Action;
use crate::clock::{Moment, Tick, VectorClock, cost};
use crate::driver::Driver;
use crate::effects::{Effect, Place};
use crate::pointer::{Answer, Ptr};
use crate::state::State;
use crate::stream::Admitted;
use crate::turn::Turn;
use crate::work::{self, Work};

/// One launch: its stream, and its number among all graph launches.
#[derive(Clone, Copy)]
struct Launch {
    stream: usize,
    /// The stream's context, in which nodes without their own context run.
    context: usize,
    number: u64,
}

impl State {
    /// Returns a tick for a graph operation that starts with the clock `clock`.
    ///
    /// The tick is the next tick of an actor whose last operation `clock` knows: the stream, or an earlier
    /// branch of the graphs in the stream. If no such actor exists, a new branch begins. Two operations
    /// thus have the same actor only if one of them precedes the other. The number of actors is the maximum
    /// number of concurrent operations in the stream.
    fn name_operation(&mut self, stream: usize, clock: &VectorClock) -> Tick {
        let known = |tick: &Tick| clock.knows(tick);
        let stream = self.streams.get_mut(&stream);
        let mut branches = match stream {
            Some(stream) if known(&stream.last) => return stream.last.advance(),
            Some(stream) => Some(&mut stream.branches),
            None => None,
        };
        let free = branches.as_mut().and_then(|branches| branches.iter_mut().find(|b| known(b)));
        if let Some(branch) = free {
            return branch.advance();
        }
        let branch = Tick::default().advance();
        branches.into_iter().for_each(|branches| branches.push(branch.clone()));
        branch
    }

    /// Returns whether the device memory that the work accesses exists.
    fn has_memory_of(&self, work: &Work) -> bool {
        match work {
            Work::Copy(copy) => [&copy.from, &copy.to].into_iter().all(|place| match place {
                Place::Device(address) => self.target(*address, copy.len).is_ok(),
                Place::Host(_) => true,
            }),
            Work::Fill(fill) => self.target(fill.to, fill.len).is_ok(),
            _ => true,
        }
    }
}

/// Executes one node and returns the moment at which the node ends.
fn run_step<'a>(
    driver: &'a Driver,
    mut state: MutexGuard<'a, State>,
    launch: Launch,
    step: &Step,
    mut begin: Moment,
) -> Answer<(MutexGuard<'a, State>, Moment)> {
    if let Action::Empty = step.action {
        return Ok((state, begin));
    }
    if let Some(child) = &step.child {
        return run_plan(driver, state, launch, child, begin);
    }
    let context = if step.context == 0 { launch.context } else { step.context };
    let tick = state.name_operation(launch.stream, &begin.clock);
    begin.clock.note(&tick);
    let mut done = begin.clone();
    let turn = Turn {
        stream: launch.stream,
        context,
        start: begin,
        tick,
        graph_launch: Some(launch.number),
    };
    match step.action {
        Action::Allocate(Allocate { address, .. }) => {
            state.set_reserved_memory(&turn, address, true)
        }
        Action::Free(address) => state.set_reserved_memory(&turn, address, false),
        _ => {}
    }
    for work in step.action.works() {
        if !state.has_memory_of(&work) {
            // To the device, freed memory is like any other invalid address.
            let device = state.contexts[&context].device;
            let fault = Effect::Fault(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            state.later(turn.start.time, device, fault);
            continue;
        }
        let end;
        (state, end) = work::perform(driver, state, &turn, work)?;
        done.time = done.time.max(end);
    }
    Ok((state, done))
}

/// Executes the nodes of a graph, each after its dependencies.
fn run_plan<'a>(
    driver: &'a Driver,
    mut state: MutexGuard<'a, State>,
    launch: Launch,
    plan: &Plan,
    start: Moment,
) -> Answer<(MutexGuard<'a, State>, Moment)> {
    let mut ends: Vec<Moment> = Vec::with_capacity(plan.steps.len());
    let mut whole = start.clone();
    for step in &plan.steps {
        let mut before = step.after.iter().map(|step| &ends[*step]);
        let mut begin = before.next().unwrap_or(&start).clone();
        before.for_each(|end| begin.join(end));
        let end;
        (state, end) = run_step(driver, state, launch, step, begin)?;
        whole.join(&end);
        ends.push(end);
    }
    Ok((state, whole))
}

/// Launches an executable graph. A graph launch cannot be captured. While the graph runs, only the stream's
/// context counts as busy, even if nodes run in other contexts (recorded on hardware).
pub(crate) fn launch(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let _in_turn = driver.launching.lock();
    let mut state = driver.state();
    state.now += cost::LAUNCH;
    let exec = exec.address();
    let &Exec { ref plan, flags, .. } = state.executable(exec)?;
    let plan = Arc::clone(plan);
    let stream = state.stream(stream.address())?;
    for step in plan.all() {
        if step.context != 0 {
            state.context(step.context)?;
        }
    }
    state.not_captured(stream)?;
    state.capturing(stream)?;
    state.can_allocate(&plan, flags)?;
    let mut start = state.next_start(stream);
    start.join(&state.executable(exec)?.done);
    state.graph_launches += 1;
    let context = state.streams[&stream].context;
    let launch = Launch { stream, context, number: state.graph_launches };
    let (mut state, done) = run_plan(driver, state, launch, &plan, start)?;
    if let Some(exec) = state.executables.get_mut(&exec) {
        exec.done.join(&done);
    }
    let end = done.time;
    state.conclude_graph(Admitted { stream, start: done, tick: Tick::default() }, end);
    Ok(())
}

impl State {
    /// Refuses to allocate memory that is already allocated, unless the executable graph frees this memory
    /// automatically (recorded). Also refuses to free memory that is not allocated (not recorded on hardware).
    fn can_allocate(&self, plan: &Plan, flags: u64) -> Answer {
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        let mut changed = BTreeMap::new();
        for step in plan.all() {
            let (address, wanted) = match step.action {
                Action::Allocate(Allocate { address, .. }) => (address, true),
                Action::Free(address) => (address, false),
                _ => continue,
            };
            let Some(present) = self.is_reserved_memory_there(address) else { return invalid };
            let is_there = changed.get(&address).copied();
            let frees_itself = wanted && flags & AUTO_FREE != 0 && is_there.is_none();
            if is_there.unwrap_or(present) == wanted && !frees_itself {
                return invalid;
            }
            let len = self.allocation(address).map_or(0, |(_, memory)| memory.len());
            let device = self.memory.get(&address).map_or(0, |memory| memory.device);
            if wanted && !present && len as u64 > self.free_bytes(device) {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
            changed.insert(address, wanted);
        }
        Ok(())
    }
}

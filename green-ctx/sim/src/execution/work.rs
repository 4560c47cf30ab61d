//! The execution of work on a device. A stream executes work at submission. A graph executes the work of
//! its nodes at each launch.

use std::ffi::c_void;
use std::sync::Arc;

use green_ctx_sys::{CUhostFn, CUresult, CUstream_st};
use parking_lot::MutexGuard;

use crate::callback::Callback;
use crate::clock::cost;
use crate::driver::Driver;
use crate::effects::{Copy, Effect, Place, Written, deliver};
use crate::image::KernelInfo;
use crate::kernel::{DURATION, KernelCall, blocks, end_ns, warn_unregistered};
use crate::launch::Shape;
use crate::memory::Kind;
use crate::pointer::{Answer, Ptr, valid};
use crate::race::{Accessor, joined};
use crate::state::State;
use crate::trace::Launch;
use crate::turn::Turn;

/// One piece of work, whose requirements were checked at submission.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel(KernelWork),
    Copy(Copy),
    Fill(Fill),
    Call(Callback),
}

/// A kernel with its arguments.
#[derive(Clone)]
pub(crate) struct KernelWork {
    /// The handle that was launched: a `CUfunction`, or a `CUkernel` cast to one.
    pub(crate) function: usize,
    pub(crate) info: Arc<KernelInfo>,
    pub(crate) shape: Shape,
    /// The parameters as one buffer.
    pub(crate) params: Vec<u8>,
    /// The number of the kernel's blocks that fit on one SM at the same time.
    pub(crate) blocks_per_sm: u32,
}

/// A pattern repeated over memory.
#[derive(Clone)]
pub(crate) struct Fill {
    pub(crate) to: u64,
    pub(crate) pattern: Vec<u8>,
    pub(crate) len: usize,
}

/// Returns the duration of a copy or memset in nanoseconds, at a rate of `bytes` per microsecond.
fn transfer_ns(len: usize, bytes: u64) -> u64 {
    cost::COPY + len as u64 * 1000 / bytes
}

/// Returns the rate of a copy in bytes per microsecond. A copy within a device runs on the SMs of the
/// turn's context; other copies use no SMs (recorded on hardware). A copy in a graph may be slower than the same copy
/// in a stream.
fn copy_rate(state: &State, turn: &Turn, copy: &Copy) -> u64 {
    let device = |place: &Place| match place {
        Place::Device(address) => {
            let found = state.allocation(*address).map(|(_, allocation)| allocation);
            let found = found.filter(|allocation| allocation.kind == Kind::Device);
            found.map(|allocation| state.physical(allocation.device))
        }
        Place::Host(_) => None,
    };
    match (device(&copy.from), device(&copy.to)) {
        (Some(from), Some(to)) if from == to => {
            let sms = state.contexts[&turn.context].sms.ids.len();
            let rates = &state.profile.transfer;
            if turn.graph_launch.is_some() { rates.graph_copy } else { rates.copy }.with(sms)
        }
        _ => cost::LINK_BYTES,
    }
}

/// Adds work to an existing stream. If the stream is being captured, adds the work to the graph and returns
/// `None`. Otherwise executes the work and returns its end time.
pub(crate) fn submit<'a>(
    driver: &'a Driver,
    mut state: MutexGuard<'a, State>,
    stream: usize,
    work: Work,
) -> Answer<(MutexGuard<'a, State>, Option<u64>)> {
    let Some(work) = state.capture(stream, work)? else { return Ok((state, None)) };
    let admitted = state.admit(stream);
    let context = state.streams[&stream].context;
    let turn = Turn::of(&admitted, context);
    let (mut state, end) = perform(driver, state, &turn, work)?;
    state.conclude(admitted, end);
    Ok((state, Some(end)))
}

/// Executes work and returns its end time. The state is unlocked while the closure of a kernel runs.
pub(crate) fn perform<'a>(
    driver: &'a Driver,
    mut state: MutexGuard<'a, State>,
    turn: &Turn,
    work: Work,
) -> Answer<(MutexGuard<'a, State>, u64)> {
    let start = turn.start.time;
    let device = state.contexts[&turn.context].device;
    let stream = state.stream_id(turn.stream);
    let end = match work {
        Work::Kernel(work) => return Ok(run_kernel(driver, state, turn, work)),
        Work::Copy(mut copy) => {
            state.recognise(&mut copy);
            let end = start + transfer_ns(copy.len, copy_rate(&state, turn, &copy));
            let operation = state.operation(turn, stream, Accessor::Copy, end);
            for (place, write) in [(&copy.from, false), (&copy.to, true)] {
                if let Place::Device(start) = *place {
                    state.touch(&operation, start..start + copy.len as u64, write);
                }
            }
            match copy.from {
                // The program may still change this memory until the copy ends.
                Place::Device(from) if state.is_on_host(from) => {
                    state.later(end, device, Effect::Copy { from, copy });
                }
                _ => {
                    let bytes = state.gather(start, &copy)?;
                    state.later(end, device, deliver(&copy, bytes));
                }
            }
            end
        }
        // The memset runs into addresses without memory.
        Work::Fill(Fill { to, len, .. }) if to.checked_add(len as u64).is_none() => {
            let end = start + cost::COPY;
            state.later(end, device, Effect::Fault(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
            end
        }
        Work::Fill(Fill { to, pattern, len }) => {
            let sms = state.contexts[&turn.context].sms.ids.len();
            let end = start + transfer_ns(len, state.profile.transfer.memset.with(sms));
            let operation = state.operation(turn, stream, Accessor::Fill, end);
            state.touch(&operation, to..to + len as u64, true);
            state.later(end, device, Effect::Fill { address: to, pattern, len });
            end
        }
        Work::Call(callback) => {
            state.later(start, device, Effect::Call(callback));
            driver.expect_callbacks();
            start
        }
    };
    Ok((state, end))
}

/// The time after which the device gives up on work that never ends, in nanoseconds.
const WATCHDOG: u64 = 3_600_000_000_000;

impl State {
    /// Handles a launch that never ends, because its blocks wait for each other but do not all fit on the
    /// SMs at the same time (recorded on hardware). On hardware, a wait for such a launch never returns. The simulated
    /// device instead fails after a long time, as a device with a watchdog does (header,
    /// `CUDA_ERROR_LAUNCH_TIMEOUT`), so that tests do not hang. Returns the time of the failure.
    pub(crate) fn never_ends(&mut self, start: u64, device: usize) -> u64 {
        let end = start.saturating_add(WATCHDOG);
        self.later(end, device, Effect::Fault(CUresult::CUDA_ERROR_LAUNCH_TIMEOUT));
        end
    }
}

fn run_kernel<'a>(
    driver: &'a Driver,
    mut state: MutexGuard<'a, State>,
    turn: &Turn,
    work: KernelWork,
) -> (MutexGuard<'a, State>, u64) {
    let KernelWork { info, shape, params, blocks_per_sm, .. } = work;
    let Shape { grid, block, shared_bytes, .. } = shape;
    let context = &state.contexts[&turn.context];
    let (device, context_id, is_green) = (context.device, context.id, context.green);
    let all_sms = Arc::clone(&context.sms.ids);
    let start_ns = turn.start.time;
    if shape.cooperative && blocks(grid) > all_sms.len() as u64 * u64::from(blocks_per_sm) {
        let end = state.never_ends(start_ns, device);
        return (state, end);
    }
    let mut end = end_ns(start_ns, DURATION, grid, &all_sms, blocks_per_sm);
    let kernel = Arc::clone(&info.name);
    let stream = state.stream_id(turn.stream);
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    if let Some(closure) = driver.kernel(&kernel) {
        drop(state);
        let mut call = KernelCall {
            driver,
            info,
            params,
            grid,
            block,
            shared_bytes,
            device,
            sms: Arc::clone(&all_sms),
            blocks_per_sm,
            start_ns,
            duration_ns: DURATION,
            writes: Vec::new(),
            reads: Vec::new(),
            faulted: false,
        };
        closure(&mut call);
        end = call.end_ns();
        state = driver.peek();
        reads = call.reads;
        writes = call.writes.iter().map(Written::range).collect();
        if !call.writes.is_empty() {
            state.later(end, device, Effect::Write(call.writes));
        }
        if call.faulted {
            state.later(end, device, Effect::Fault(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
        }
    } else {
        warn_unregistered(&kernel);
    }
    let context_sms = all_sms.len() as u32;
    let used = blocks(grid).min(all_sms.len() as u64) as usize;
    let sms = if used == all_sms.len() { all_sms } else { all_sms[..used].into() };
    if !reads.is_empty() || !writes.is_empty() {
        let what = Accessor::Kernel { name: Arc::clone(&kernel), sms: Arc::clone(&sms) };
        let operation = state.operation(turn, stream, what, end);
        joined(reads).into_iter().for_each(|range| state.touch(&operation, range, false));
        joined(writes).into_iter().for_each(|range| state.touch(&operation, range, true));
    }
    state.trace_launch(Launch {
        kernel,
        device,
        stream,
        context: context_id,
        is_green,
        context_sms,
        sms,
        grid,
        block,
        start_ns,
        end_ns: end,
        graph_launch: turn.graph_launch,
        tick: turn.tick.clone(),
        clock: turn.start.clock.clone(),
    });
    (state, end)
}

/// Adds a host function to a stream. Once the function is due, the next call to the driver runs the
/// function at the end of the call, on the calling thread. With [`Clock::Real`](crate::Clock::Real), the
/// clock thread runs the function instead.
pub(crate) fn launch_host(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    function: CUhostFn,
    user_data: Ptr<c_void>,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    let function = valid(function)?;
    let callback = Callback::host(function, user_data);
    submit(driver, state, handle, Work::Call(callback)).map(drop)
}

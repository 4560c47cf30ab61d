//! Primary contexts, the current context, and the queries that all contexts share.

use green_ctx_sys::{
    CUctx_st, CUdevResource, CUdevResourceType, CUevent_st, CUgreenCtx_st, CUresult,
};

use crate::Profile;
use crate::clock::{Graveyard, Moment, cost};
use crate::crash;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::resource::{Partition, Workqueue};
use crate::state::{Device, State};
use crate::stream::{NON_BLOCKING, Stream};
/// All flags that a context can have, and the scheduling flags. At most one scheduling flag may be set.
const KNOWN_FLAGS: u32 = 0xff;
const SCHEDULE: u32 = 7;
/// `CU_CTX_MAP_HOST`. Primary and green contexts report this flag (recorded on hardware); contexts from `cuCtxCreate`
/// do not.
const MAP_HOST: u32 = 8;
/// `CU_CTX_LMEM_RESIZE_TO_MAX`.
pub(crate) const KEEP_LOCAL_MEMORY: u32 = 16;
/// Refuses flags that no context can have.
pub(crate) fn check_flags(flags: u32) -> Answer {
    invalid_if(flags & !KNOWN_FLAGS != 0 || (flags & SCHEDULE).count_ones() > 1)
}

/// A primary or green context.
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) green: bool,
    /// A primary context is alive while the program or a green context retains it. A green context is alive
    /// until it is destroyed.
    pub(crate) alive: bool,
    pub(crate) id: u64,
    pub(crate) sms: Partition,
    /// The workqueues that the context was created with; `None` if the context uses the device's shared
    /// workqueues.
    pub(crate) workqueue: Option<Workqueue>,
    /// The handles of the default streams: the legacy stream, and the per-thread streams by thread number.
    pub(crate) legacy: usize,
    pub(crate) per_thread: Vec<(u32, usize)>,
    /// The end of all work submitted to the context so far.
    pub(crate) busy: Moment,
    /// The part of `busy` that a wait on the primary context includes; `None` if such a wait includes all
    /// of `busy`.
    pub(crate) covered: Option<Moment>,
    /// The clock actors of destroyed streams. `busy` includes the operations of these actors.
    pub(crate) graveyard: Graveyard,
    /// The end of the work in all blocking streams.
    pub(crate) blocking: Moment,
}

impl Context {
    /// Creates the primary context of a device. The context is not active yet.
    pub(crate) fn primary(device: usize, profile: &Profile) -> Context {
        Context::new(device, false, Partition::all(profile))
    }

    pub(crate) fn new(device: usize, green: bool, sms: Partition) -> Context {
        Context {
            device,
            green,
            alive: false,
            id: 0,
            sms,
            workqueue: None,
            legacy: 0,
            per_thread: Vec::new(),
            busy: Moment::default(),
            covered: None,
            graveyard: Graveyard::default(),
            blocking: Moment::default(),
        }
    }

    /// Returns the flags that all streams of the context have. No stream of a green context waits
    /// implicitly for the context's default stream (recorded on hardware).
    pub(crate) fn stream_flags(&self) -> u32 {
        if self.green { NON_BLOCKING } else { 0 }
    }

    /// Records work submitted to one of the context's streams, or a moment until which the whole context
    /// waits.
    pub(crate) fn submitted(&mut self, flags: u32, stream: usize, done: &Moment) {
        self.busy.join(done);
        if let Some(covered) = &mut self.covered {
            covered.join(done);
            self.covered.take_if(|covered| *covered == self.busy);
        }
        self.awaited(flags, stream, done);
    }

    /// Records a graph launched on one of the context's streams. For a green context, a wait on the primary
    /// context does not include the graph until other work follows the graph on the stream (recorded on an
    /// H100, driver 580.159.04).
    pub(crate) fn graph_submitted(&mut self, flags: u32, stream: usize, done: &Moment) {
        if self.green {
            self.covered.get_or_insert_with(|| self.busy.clone());
        }
        self.busy.join(done);
        self.awaited(flags, stream, done);
    }

    /// Records a moment until which one of the context's streams now waits. A wait on the context does not
    /// include this moment until other work follows on the stream (recorded on hardware).
    pub(crate) fn awaited(&mut self, flags: u32, stream: usize, event: &Moment) {
        if flags & NON_BLOCKING == 0 && stream != self.legacy {
            self.blocking.join(event);
        }
    }
}

/// The type behind a handle: any context, or a green context.
pub(crate) trait Handle {
    /// Returns the context with this handle, if it is usable.
    fn find(state: &State, handle: usize) -> Answer<&Context>;
}

impl Handle for CUctx_st {
    fn find(state: &State, handle: usize) -> Answer<&Context> {
        state.context(handle)
    }
}

impl Handle for CUgreenCtx_st {
    fn find(state: &State, handle: usize) -> Answer<&Context> {
        state.green(handle)
    }
}

impl State {
    /// Activates a context, and gives the context an id and a default stream.
    pub(crate) fn activate(&mut self, handle: usize) {
        let id = self.next_context_id;
        self.next_context_id += 1;
        let flags = self.contexts[&handle].stream_flags();
        let legacy = self.add_stream(Stream::hidden(handle, id, flags));
        if let Some(context) = self.contexts.get_mut(&handle) {
            context.alive = true;
            context.id = id;
            context.legacy = legacy;
            context.blocking = Moment::default();
        }
    }

    /// Activates the primary context if it is not active.
    pub(crate) fn activate_primary(&mut self, device: usize) -> Answer {
        let primary = self.devices[device].primary;
        if !self.contexts[&primary].alive {
            self.activate(primary);
            self.now += cost::PRIMARY_CREATE;
        }
        Ok(())
    }

    /// Deactivates the primary context and everything on the device, unless the program or a green context
    /// retains the primary context.
    pub(crate) fn deactivate_unheld_primary(&mut self, device: usize) {
        let Device { retains, greens, .. } = &self.devices[device];
        if *retains == 0 && greens.is_empty() {
            self.deactivate_primary(device);
        }
    }

    /// Deactivates a primary context, or a context from `cuCtxCreate`, and everything in that context.
    pub(crate) fn deactivate_primary(&mut self, device: usize) {
        self.settle_device(device);
        let primary = self.devices[device].primary;
        self.remove_default_streams(primary);
        if let Some(context) = self.contexts.get_mut(&primary) {
            context.alive = false;
            context.busy = Moment::default();
            context.graveyard = Graveyard::default();
        }
        // Streams and events stay in the tables, so that later calls report a destroyed context. They no
        // longer count as live.
        let contexts = &self.contexts;
        let here =
            |context: usize| contexts.get(&context).is_some_and(|context| context.device == device);
        self.streams
            .values_mut()
            .filter(|stream| here(stream.context))
            .for_each(|stream| stream.counted = false);
        self.events
            .values_mut()
            .filter(|event| event.device == device)
            .for_each(|event| event.counted = false);
        self.modules.retain(|_, module| module.device != device);
        self.functions.retain(|_, function| function.device != device);
        self.memory.retain(|_, allocation| allocation.device != device);
        self.spare.retain(|allocation| allocation.device != device);
        self.pools.reset_device(device);
        let device = &mut self.devices[device];
        device.allocated = 0;
        device.green_bytes = 0;
        device.flags = 0;
        device.fault = None;
    }

    /// Records the destruction of a green context. The green context's default streams are removed, and the
    /// primary context takes over the remaining work.
    pub(crate) fn forget_green(&mut self, device: usize, green: usize) {
        let Device { primary, greens, .. } = &mut self.devices[device];
        greens.retain(|other| *other != green);
        let primary = *primary;
        self.remove_default_streams(green);
        let Some(Context { busy, graveyard, .. }) = self.contexts.get(&green) else { return };
        let (busy, buried) = (busy.clone(), graveyard.last().clone());
        if let Some(primary) = self.contexts.get_mut(&primary) {
            primary.busy.join(&busy);
            primary.graveyard.bury(&buried, &mut primary.busy.clock);
        }
    }

    fn remove_default_streams(&mut self, handle: usize) {
        let Some(context) = self.contexts.get_mut(&handle) else { return };
        let (legacy, per_thread) = (context.legacy, std::mem::take(&mut context.per_thread));
        for stream in per_thread.into_iter().map(|(_, stream)| stream).chain([legacy]) {
            self.remove_stream(stream);
        }
    }

    /// Returns the end of all work submitted to a context. For the primary context, the result includes the
    /// green contexts of the device (cuda.h, `cuCtxSynchronize`, `cuCtxRecordEvent`), but not their graphs.
    pub(crate) fn busy(&self, handle: usize) -> Moment {
        let context = &self.contexts[&handle];
        let mut busy = context.busy.clone();
        if !context.green {
            let greens = &self.devices[context.device].greens;
            for green in greens {
                let Context { busy: all, covered, .. } = &self.contexts[green];
                busy.join(covered.as_ref().unwrap_or(all));
            }
        }
        busy
    }

    /// Fails if a stream of this context is capturing, and invalidates the capture. Captures in green
    /// contexts do not affect the primary context (recorded on hardware).
    pub(crate) fn not_capturing(&mut self, handle: usize) -> Answer {
        let own = self.streams.values().filter(|stream| stream.context == handle);
        let captures: Vec<usize> = own.filter_map(|stream| stream.capture).collect();
        self.invalidate_captures(&captures)
    }

    /// Makes the host wait for all work of a context.
    fn synchronize_context(&mut self, handle: usize) -> Answer {
        self.not_capturing(handle)?;
        let busy = self.busy(handle);
        self.wait_on_host(&busy);
        self.unpoisoned(self.contexts[&handle].device)
    }

    /// Makes the host wait until `moment`. Effects that are due by that moment take place.
    pub(crate) fn wait_on_host(&mut self, moment: &Moment) {
        self.now = self.now.max(moment.time);
        let thread = self.thread();
        thread.clock.join(&moment.clock);
        thread.waited = true;
        self.races.host_waited(&moment.clock);
        self.settle();
    }

    /// Records all work submitted to a context in an event.
    pub(crate) fn record_context(&mut self, handle: usize, event: usize) -> Answer {
        let device = self.contexts[&handle].device;
        refuse_if(self.event(event)?.device != device, CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        self.not_capturing(handle)?;
        let mut busy = self.busy(handle);
        busy.time = busy.time.max(self.now);
        self.set_event(event, busy);
        Ok(())
    }

    /// Makes later work in the streams of a context wait for an event. Streams created after this call do
    /// not wait (recorded on hardware).
    pub(crate) fn fence_context(&mut self, handle: usize, event: usize) -> Answer {
        self.not_capturing(handle)?;
        let Some(recorded) = self.uncaptured(event)?.recorded.clone() else { return Ok(()) };
        self.hold_context(handle, &recorded);
        Ok(())
    }
}

pub(crate) fn primary_retain(driver: &Driver, out: Ptr<*mut CUctx_st>, ordinal: i32) -> Answer {
    let mut state = driver.state();
    let device = state.device(ordinal)?;
    out.given()?;
    state.activate_primary(device)?;
    state.devices[device].retains += 1;
    out.write(handle::pointer(state.devices[device].primary))
}

pub(crate) fn primary_release(driver: &Driver, ordinal: i32) -> Answer {
    let mut state = driver.state();
    let device = state.device(ordinal)?;
    let retains = &mut state.devices[device].retains;
    *retains = retains.checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    state.deactivate_unheld_primary(device);
    Ok(())
}

pub(crate) fn primary_get_state(
    driver: &Driver,
    ordinal: i32,
    flags: Ptr<u32>,
    active: Ptr<i32>,
) -> Answer {
    let state = driver.state();
    let device = &state.devices[state.device(ordinal)?];
    flags.given()?;
    active.write(i32::from(state.contexts[&device.primary].alive))?;
    // No simulated function sets flags.
    flags.write(0)
}

pub(crate) fn primary_reset(driver: &Driver, ordinal: i32) -> Answer {
    let mut state = driver.state();
    let device = state.device(ordinal)?;
    refuse_if(!state.devices[device].greens.is_empty(), CUresult::CUDA_ERROR_NOT_PERMITTED)?;
    state.deactivate_primary(device);
    Ok(())
}

/// Checks that a context can be made current. Every handle that ever referred to a context is accepted. If
/// a destroyed green context is made current, the process aborts at exit (recorded on hardware).
fn check_can_be_current(state: &State, handle: usize) -> Answer {
    invalid_if(handle == 0)?;
    let context = state.known_context(handle)?;
    if context.green && !context.alive {
        crash::abort_at_exit();
    }
    Ok(())
}

pub(crate) fn push_current(driver: &Driver, context: Ptr<CUctx_st>) -> Answer {
    let mut state = driver.state();
    check_can_be_current(&state, context.address())?;
    state.thread().stack.push(context.address());
    Ok(())
}

pub(crate) fn pop_current(driver: &Driver, out: Ptr<*mut CUctx_st>) -> Answer {
    let popped = driver.state().thread().stack.pop().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    out.write_if_given(handle::pointer(popped));
    Ok(())
}

pub(crate) fn set_current(driver: &Driver, context: Ptr<CUctx_st>) -> Answer {
    let mut state = driver.state();
    if context.is_null() {
        state.thread().stack.pop();
        return Ok(());
    }
    check_can_be_current(&state, context.address())?;
    let stack = &mut state.thread().stack;
    stack.pop();
    stack.push(context.address());
    Ok(())
}

pub(crate) fn get_current(driver: &Driver, out: Ptr<*mut CUctx_st>) -> Answer {
    let current = driver.state().current_handle();
    out.write(current.map_or(std::ptr::null_mut(), handle::pointer))
}

pub(crate) fn get_device(driver: &Driver, out: Ptr<i32>) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.write(state.physical(device) as i32)
}

pub(crate) fn get_device_of(driver: &Driver, out: Ptr<i32>, context: Ptr<CUctx_st>) -> Answer {
    let mut state = driver.state();
    let handle = state.or_current(context.address())?;
    out.write(state.physical(state.contexts[&handle].device) as i32)
}

pub(crate) fn get_flags(driver: &Driver, out: Ptr<u32>) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    let always = if device < state.ordinals { MAP_HOST } else { 0 };
    out.write(state.devices[device].flags | always)
}

pub(crate) fn synchronize(driver: &Driver) -> Answer {
    let mut state = driver.state();
    let handle = state.current()?;
    state.synchronize_context(handle)
}

pub(crate) fn synchronize_this(driver: &Driver, context: Ptr<CUctx_st>) -> Answer {
    let mut state = driver.state();
    let handle = state.or_current(context.address())?;
    state.synchronize_context(handle)
}

pub(crate) fn get_stream_priority_range(
    driver: &Driver,
    least: Ptr<i32>,
    greatest: Ptr<i32>,
) -> Answer {
    let mut state = driver.state();
    state.current()?;
    least.write_if_given(state.profile.stream_priorities.0);
    greatest.write_if_given(state.profile.stream_priorities.1);
    Ok(())
}

pub(crate) fn get_id(driver: &Driver, context: Ptr<CUctx_st>, out: Ptr<u64>) -> Answer {
    let mut state = driver.state();
    let handle = state.or_current(context.address())?;
    out.write(state.contexts[&handle].id)
}

// Each of the following implements two functions, one for any context and one for green contexts, depending
// on the handle type.

pub(crate) fn record_event<T: Handle>(
    driver: &Driver,
    context: Ptr<T>,
    event: Ptr<CUevent_st>,
) -> Answer {
    let mut state = driver.state();
    T::find(&state, context.address())?;
    state.record_context(context.address(), event.address())
}

pub(crate) fn wait_event<T: Handle>(
    driver: &Driver,
    context: Ptr<T>,
    event: Ptr<CUevent_st>,
) -> Answer {
    let mut state = driver.state();
    T::find(&state, context.address())?;
    state.fence_context(context.address(), event.address())
}

pub(crate) fn get_dev_resource<T: Handle>(
    driver: &Driver,
    context: Ptr<T>,
    out: Ptr<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let mut state = driver.state();
    T::find(&state, context.address())?;
    state.write_context_resource(context.address(), out, kind)
}

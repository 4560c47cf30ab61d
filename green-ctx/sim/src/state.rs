//! The state of a simulated driver, and the lookup of handles in it.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU32, Ordering};

use green_ctx_sys::CUresult;

use crate::Profile;
use crate::callback::Callback;
use crate::capture::Capture;
use crate::clock::real::Running;
use crate::clock::{Polling, VectorClock, cost};
use crate::context::Context;
use crate::effects::Effects;
use crate::event::Event;
use crate::graph::exec::Exec;
use crate::graph::user_object::{Known, Unheld};
use crate::graph::{Graph, Node};
use crate::handle::{self, AddressHasher, Table};
use crate::library::{Function, Kernel, Library, Module};
use crate::memory::Allocation;
use crate::memory::pool::Pools;
use crate::occupancy::Sm;
use crate::pointer::Answer;
use crate::race::Races;
use crate::resource::{Descriptor, Resources};
use crate::spec::Spec;
use crate::stream::Stream;
use crate::trace::Launch;

pub(crate) struct State {
    pub(crate) profile: &'static Profile,
    /// The limits of an SM, read from the profile once.
    pub(crate) sm: Sm,
    pub(crate) version: u32,
    /// The current time of the host, in nanoseconds.
    pub(crate) now: u64,
    pub(crate) polling: Polling,
    /// The state of the host's clock; `None` with [`Clock::Virtual`](crate::Clock::Virtual).
    pub(crate) running: Option<Running>,
    /// The devices with an ordinal, followed by one entry per context from `cuCtxCreate`.
    pub(crate) devices: Vec<Device>,
    /// The number of devices with an ordinal.
    pub(crate) ordinals: usize,
    threads: HashMap<u32, Thread, BuildHasherDefault<AddressHasher>>,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) libraries: Table<Library>,
    pub(crate) kernels: Table<Kernel>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) descriptors: Table<Descriptor>,
    pub(crate) resources: Resources,
    pub(crate) captures: Table<Capture>,
    pub(crate) graphs: Table<Graph>,
    pub(crate) nodes: Table<Node>,
    pub(crate) executables: Table<Exec>,
    pub(crate) memory: BTreeMap<u64, Allocation>,
    /// Address ranges that destroyed graphs released, in the order of their release.
    pub(crate) spare: Vec<Allocation>,
    /// The number of allocations that were made so far.
    pub(crate) buffers: u64,
    pub(crate) pools: Pools,
    /// The pending effects of submitted operations.
    pub(crate) effects: Effects,
    /// Callbacks that are due, with the status to pass to each.
    pub(crate) due: Vec<(Callback, CUresult)>,
    /// The number of callbacks that have become due so far.
    pub(crate) came_due: u64,
    pub(crate) user_objects: Table<Known>,
    /// Destructors of user objects that have no references left.
    pub(crate) unheld: Unheld,
    pub(crate) races: Races,
    pub(crate) launches: VecDeque<Launch>,
    /// The maximum number of launches to keep.
    pub(crate) trace: usize,
    pub(crate) next_context_id: u64,
    pub(crate) next_stream_id: u64,
    pub(crate) graph_launches: u64,
}

/// A simulated GPU, or the additional entry for a context from `cuCtxCreate` on a simulated GPU.
pub(crate) struct Device {
    /// The index of the physical device to which this entry belongs. For the entry of a physical device,
    /// this is its own index.
    pub(crate) physical: usize,
    /// The handle of the primary context. The handle stays the same each time the context is activated.
    pub(crate) primary: usize,
    /// The number of `cuDevicePrimaryCtxRetain` calls without a matching release. For a context from
    /// `cuCtxCreate`, the number is 1 until the context is destroyed.
    pub(crate) retains: u32,
    /// The handles of the existing green contexts. Each green context keeps the primary context alive.
    pub(crate) greens: Vec<usize>,
    /// The flags of the device's contexts.
    pub(crate) flags: u32,
    /// The error that poisons every context of the device.
    pub(crate) fault: Option<CUresult>,
    /// The memory used by green contexts, in bytes. This memory is released only with the primary
    /// context.
    pub(crate) green_bytes: u64,
    /// The memory used by allocations, in bytes.
    pub(crate) allocated: u64,
    /// The number that identifies the device's own SM resource as the root of a split. Only resources
    /// with the same root can be combined.
    pub(crate) root: usize,
}

/// The state of one host thread.
#[derive(Default)]
pub(crate) struct Thread {
    /// The stack of contexts; the last one is current.
    pub(crate) stack: Vec<usize>,
    /// The operations that the thread knows to be finished.
    pub(crate) clock: VectorClock,
    /// The thread's capture mode, a value of `CUstreamCaptureMode`. The initial mode is the global mode.
    pub(crate) capture_mode: u32,
    /// Whether the thread's current call has waited for work.
    pub(crate) waited: bool,
}

/// Returns the number of the calling thread.
pub(crate) fn thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

impl State {
    /// Advances the host's time because the program polls work that ends at `end`, which is in the
    /// future.
    pub(crate) fn poll(&mut self, end: u64) {
        let cost = if self.running.is_some() { cost::POLL } else { self.polling.cost(end) };
        self.now = (self.now + cost).min(end);
    }

    pub(crate) fn new(spec: Spec, devices: usize, trace: usize) -> State {
        let mut state = State {
            profile: spec.profile(),
            sm: Sm::new(spec.profile()),
            version: spec.version(),
            now: 0,
            polling: Polling::default(),
            running: None,
            devices: Vec::new(),
            ordinals: devices,
            threads: HashMap::default(),
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            libraries: Table::default(),
            kernels: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            descriptors: Table::default(),
            resources: Resources::default(),
            captures: Table::default(),
            graphs: Table::default(),
            nodes: Table::default(),
            executables: Table::default(),
            memory: BTreeMap::new(),
            spare: Vec::new(),
            buffers: 0,
            pools: Pools::default(),
            effects: Effects::default(),
            due: Vec::new(),
            came_due: 0,
            user_objects: Table::default(),
            unheld: Unheld::default(),
            races: Races::default(),
            launches: VecDeque::new(),
            trace,
            next_context_id: 1,
            next_stream_id: 1,
            graph_launches: 0,
        };
        for device in 0..devices {
            state.add_device(device);
            state.pools.add_device();
        }
        state
    }

    /// Adds the entry of a device, or of a context from `cuCtxCreate`, and returns the index of the
    /// entry.
    pub(crate) fn add_device(&mut self, physical: usize) -> usize {
        let device = self.devices.len();
        let primary = handle::next();
        self.contexts.insert(primary, Context::primary(device, self.profile));
        self.devices.push(Device {
            physical,
            primary,
            retains: 0,
            greens: Vec::new(),
            flags: 0,
            fault: None,
            green_bytes: 0,
            allocated: 0,
            root: handle::next(),
        });
        device
    }

    /// Returns the state of the calling thread.
    pub(crate) fn thread(&mut self) -> &mut Thread {
        self.threads.entry(thread()).or_default()
    }

    /// Returns the index of the device with this ordinal; `CUDA_ERROR_INVALID_DEVICE` if there is none.
    pub(crate) fn device(&self, ordinal: i32) -> Answer<usize> {
        let index = usize::try_from(ordinal).ok().filter(|&index| index < self.ordinals);
        index.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Returns the context with this handle, whether it is alive or not. The context can be of any kind.
    pub(crate) fn known_context(&self, handle: usize) -> Answer<&Context> {
        self.contexts.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Fails with the error that poisons the device, if there is one.
    pub(crate) fn unpoisoned(&self, device: usize) -> Answer {
        self.devices[device].fault.map_or(Ok(()), Err)
    }

    /// Returns the context with this handle, if it is usable.
    pub(crate) fn context(&self, handle: usize) -> Answer<&Context> {
        let context = self.known_context(handle)?;
        self.unpoisoned(context.device)?;
        if context.alive { Ok(context) } else { Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED) }
    }

    /// Returns the green context with this handle, if it is usable.
    pub(crate) fn green(&self, handle: usize) -> Answer<&Context> {
        let context = self.context(handle)?;
        if context.green { Ok(context) } else { Err(CUresult::CUDA_ERROR_INVALID_CONTEXT) }
    }

    /// Returns the handle of the calling thread's current context, whether the context is alive or not.
    pub(crate) fn current_handle(&mut self) -> Option<usize> {
        self.thread().stack.last().copied()
    }

    /// Returns the handle of the current context, if it is usable.
    pub(crate) fn current(&mut self) -> Answer<usize> {
        let handle = self.current_handle().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        self.context(handle)?;
        Ok(handle)
    }

    /// Returns the device of the current context, if the context is usable.
    pub(crate) fn current_device(&mut self) -> Answer<usize> {
        let handle = self.current()?;
        Ok(self.contexts[&handle].device)
    }

    /// Returns `handle` itself, or the handle of the current context if `handle` is null.
    pub(crate) fn or_current(&mut self, handle: usize) -> Answer<usize> {
        if handle == 0 {
            return self.current();
        }
        self.context(handle)?;
        Ok(handle)
    }
}

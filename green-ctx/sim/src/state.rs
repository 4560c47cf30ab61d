//! Everything that a simulated driver remembers, and how handles are looked up in it.

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
    /// What of the profile every launch needs.
    pub(crate) sm: Sm,
    pub(crate) version: u32,
    /// Host time in nanoseconds.
    pub(crate) now: u64,
    pub(crate) polling: Polling,
    /// The clock that makes time go on by itself, if one does.
    pub(crate) running: Option<Running>,
    /// The devices that ordinals lead to, and after them an entry for each context that a program
    /// created.
    pub(crate) devices: Vec<Device>,
    /// How many devices ordinals lead to.
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
    /// Addresses that graphs which are gone have given up, the last one last.
    pub(crate) spare: Vec<Allocation>,
    /// How many allocations there have been.
    pub(crate) buffers: u64,
    pub(crate) pools: Pools,
    /// What operations that were submitted have yet to do.
    pub(crate) effects: Effects,
    /// Callbacks whose turn has come, with the status that they get.
    pub(crate) due: Vec<(Callback, CUresult)>,
    /// How many callbacks have had their turn.
    pub(crate) came_due: u64,
    pub(crate) user_objects: Table<Known>,
    /// Destructors of user objects that nothing holds any more.
    pub(crate) unheld: Unheld,
    pub(crate) races: Races,
    pub(crate) launches: VecDeque<Launch>,
    /// How many launches are kept.
    pub(crate) trace: usize,
    pub(crate) next_context_id: u64,
    pub(crate) next_stream_id: u64,
    pub(crate) graph_launches: u64,
}

/// One simulated GPU, or what a context that a program created has of one.
pub(crate) struct Device {
    /// The device that it is, or is based on.
    pub(crate) physical: usize,
    /// The handle of the primary context, the same each time that it is brought up.
    pub(crate) primary: usize,
    /// Calls of `cuDevicePrimaryCtxRetain` that were not released, or uses of the context that a
    /// program created.
    pub(crate) retains: u32,
    /// The handles of the green contexts that are not destroyed; each holds the primary context.
    pub(crate) greens: Vec<usize>,
    /// Flags of the contexts.
    pub(crate) flags: u32,
    /// The error that poisons every context of the device.
    pub(crate) fault: Option<CUresult>,
    /// Memory that green contexts took, given back with the primary context only.
    pub(crate) green_bytes: u64,
    /// Memory that allocations take.
    pub(crate) allocated: u64,
    /// What marks the device's resources: only resources of one root combine.
    pub(crate) root: usize,
}

/// What belongs to one host thread.
#[derive(Default)]
pub(crate) struct Thread {
    /// The contexts made current, the current one last.
    pub(crate) stack: Vec<usize>,
    /// What the thread knows to be finished.
    pub(crate) clock: VectorClock,
    /// What captures may forbid the thread: a value of `CUstreamCaptureMode`, global at first.
    pub(crate) capture_mode: u32,
    /// Whether the call that it makes has waited for work.
    pub(crate) waited: bool,
}

/// The number of the calling thread.
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
    /// Lets time pass for a poll of work that ends at a later time.
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

    /// Adds an entry that is a device, or is based on one, and returns its index.
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

    /// The calling thread's part of the state.
    pub(crate) fn thread(&mut self) -> &mut Thread {
        self.threads.entry(thread()).or_default()
    }

    /// The index of a device; `CUDA_ERROR_INVALID_DEVICE` where there is none.
    pub(crate) fn device(&self, ordinal: i32) -> Answer<usize> {
        let index = usize::try_from(ordinal).ok().filter(|&index| index < self.ordinals);
        index.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// The context with this handle, of whatever kind and alive or not.
    pub(crate) fn known_context(&self, handle: usize) -> Answer<&Context> {
        self.contexts.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Fails with the error that poisons the device, if one does.
    pub(crate) fn unpoisoned(&self, device: usize) -> Answer {
        self.devices[device].fault.map_or(Ok(()), Err)
    }

    /// The context with this handle, provided that it can be used.
    pub(crate) fn context(&self, handle: usize) -> Answer<&Context> {
        let context = self.known_context(handle)?;
        self.unpoisoned(context.device)?;
        if context.alive { Ok(context) } else { Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED) }
    }

    /// The green context with this handle, provided that it can be used.
    pub(crate) fn green(&self, handle: usize) -> Answer<&Context> {
        let context = self.context(handle)?;
        if context.green { Ok(context) } else { Err(CUresult::CUDA_ERROR_INVALID_CONTEXT) }
    }

    /// The handle of what is current on the calling thread, alive or not.
    pub(crate) fn current_handle(&mut self) -> Option<usize> {
        self.thread().stack.last().copied()
    }

    /// The handle of the current context, provided that it can be used.
    pub(crate) fn current(&mut self) -> Answer<usize> {
        let handle = self.current_handle().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        self.context(handle)?;
        Ok(handle)
    }

    /// The device of the current context, provided that it can be used.
    pub(crate) fn current_device(&mut self) -> Answer<usize> {
        let handle = self.current()?;
        Ok(self.contexts[&handle].device)
    }

    /// The handle itself, or the current context's for a null handle.
    pub(crate) fn or_current(&mut self, handle: usize) -> Answer<usize> {
        if handle == 0 {
            return self.current();
        }
        self.context(handle)?;
        Ok(handle)
    }
}

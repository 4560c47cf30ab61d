//! The objects of a run, and the operations on them.

mod contexts;
mod device;
mod endings;
mod graphs;
mod groups;
mod memory;
mod objects;
mod partitions;
mod plans;
mod second;
mod streams;
mod units;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use green_ctx::sim::Live;
use green_ctx::{
    DeviceBuffer, Stream, Version,
    context::Context,
    graph::GraphCache,
    resource::{Granularity, SmResource},
};

use parking_lot::Mutex;

use crate::account::{Partition, Table};
use crate::machine::Machine;
use crate::model::{Model, Way};
use crate::operation::{Kind, Operation};
use crate::raw::{Foreign, ForeignCapture, Kept};
use crate::violation::{Rule, Violation};
use memory::Copied;
use objects::{
    ContextEntry, ExecEntry, GraphEntry, GroupEntry, Name, PartitionEntry, SetEntry, StreamEntry,
};
use second::SecondEntry;
use units::Units;

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// It succeeded.
    Ok,
    /// The library refused it.
    Refused(String),
    /// It had no operands.
    Skipped,
}

impl Done {
    fn of<T, E: std::error::Error>(result: Result<T, E>) -> Done {
        match result {
            Ok(_) => Done::Ok,
            Err(error) => Done::refused(&error),
        }
    }

    fn refused(error: &dyn std::error::Error) -> Done {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Done::Refused(text)
    }
}

/// Objects that a finished world leaves behind for known reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Foreign streams that were destroyed with their context.
    pub streams: u64,
    /// Whether clean-ups may have failed because of a foreign capture.
    pub disturbed: bool,
    /// Whether streams were kept alive until the process ends.
    pub kept: bool,
}

/// A partition, with the Rust expression for its context.
type Place = (Context, Arc<Partition>, Name);
/// A stream, its partition (`None` for the primary context), and its Rust expression.
type Lane = (Stream, Option<Arc<Partition>>, Name);

/// The streams that were kept alive, with the numbers in their names.
pub type KeptStreams = Arc<Mutex<Vec<(u32, Kept)>>>;

/// The maximum number of names that one operation uses.
const NAMES: u32 = 256;
/// The maximum number of objects of a kind in a run.
const MOST: usize = 16;
/// The maximum number of streams that are kept alive.
const KEPT: usize = 8;

/// The state of a run.
pub struct World {
    machine: Machine,
    sms: SmResource,
    /// Whether no other thread uses the driver. Otherwise the state of the device as a whole is unknown.
    alone: bool,
    /// Whether calls may fail.
    faults: bool,
    granularity: Granularity,
    unit: u32,
    total: u32,
    version: Version,
    held: Arc<Table>,
    /// The SMs of the device's units.
    units: Units,
    model: Model,
    groups: Vec<GroupEntry>,
    partitions: Vec<PartitionEntry>,
    contexts: Vec<ContextEntry>,
    sets: Vec<SetEntry>,
    streams: Vec<StreamEntry>,
    foreign: Vec<(u32, Arc<Foreign>)>,
    captures: Vec<(u32, ForeignCapture)>,
    graphs: Vec<GraphEntry>,
    execs: Vec<ExecEntry>,
    cache: GraphCache,
    /// The contents of the cache: the graph's number, the partition, and the partitions that the graph keeps alive.
    cached: Vec<(u32, Arc<Partition>, Vec<Arc<Partition>>)>,
    /// Device memory, with the partition whose stream frees it.
    buffers: Vec<(DeviceBuffer<u32>, Option<Arc<Partition>>)>,
    copied: Vec<Copied>,
    /// The partitions of the second device, if there is one.
    second: Vec<SecondEntry>,
    held_second: Arc<Table>,
    /// Whether a partition's stream was kept alive until the process ends.
    kept: bool,
    kept_streams: KeptStreams,
    /// The next name. The names of an operation follow from its number alone.
    next: u32,
    /// The operands of the operation, if they are fixed.
    pins: Vec<u64>,
    /// The number of operands that the operation has chosen.
    picks: Cell<usize>,
    /// The operands that the operation has chosen, if they are recorded.
    chosen: Option<RefCell<Vec<u64>>>,
    /// How the operation submitted work, if it did.
    launched: Option<Way>,
    /// Whether a partition may have lost its last handle during a foreign capture.
    disturbed: bool,
    /// The number of foreign streams that were destroyed with their context.
    left_behind: u64,
    /// The run so far as a program, if requested.
    script: Option<Vec<String>>,
}

impl World {
    /// Creates an empty world on a machine. `variety` chooses the granularity.
    ///
    /// # Errors
    ///
    /// Returns an error of the library.
    pub fn new(machine: Machine, variety: u64) -> Result<World, Box<dyn std::error::Error>> {
        let sms = machine.device.resources().sm()?;
        let version = machine.device.driver().version();
        let fine = variety % 4 == 3 && version >= Version::new(12, 5);
        let granularity = if fine { Granularity::Fine } else { Granularity::Coarse };
        // A large unit, so that the groups of a seed have few sizes.
        let least = sms.unit_counts(granularity)?.first().copied().unwrap_or(1);
        let unit = if fine { least * 4 } else { least.max(8) };
        let total = sms.sm_count();
        let profile = machine.device.driver().info().profile.unwrap_or_default();
        let units = Units::of(&profile, version, granularity)?;
        Ok(World {
            machine,
            sms,
            alone: true,
            faults: false,
            granularity,
            unit,
            total,
            version,
            held: Arc::default(),
            units,
            model: Model::default(),
            groups: Vec::new(),
            partitions: Vec::new(),
            contexts: Vec::new(),
            sets: Vec::new(),
            streams: Vec::new(),
            foreign: Vec::new(),
            captures: Vec::new(),
            graphs: Vec::new(),
            execs: Vec::new(),
            cache: GraphCache::new(),
            cached: Vec::new(),
            buffers: Vec::new(),
            copied: Vec::new(),
            second: Vec::new(),
            held_second: Arc::default(),
            kept: false,
            kept_streams: KeptStreams::default(),
            next: 0,
            pins: Vec::new(),
            picks: Cell::new(0),
            chosen: None,
            launched: None,
            disturbed: false,
            left_behind: 0,
            script: None,
        })
    }

    /// Allows calls to fail.
    pub fn with_faults(&mut self) {
        self.faults = true;
    }

    /// Turns off checks that hold only if no other thread uses the driver. All threads wrap the kept streams of all.
    pub fn among_others(&mut self, kept: &KeptStreams) {
        self.alone = false;
        self.kept_streams = Arc::clone(kept);
    }

    /// Starts to write the operations as a program.
    pub fn write_program(&mut self) {
        self.script = Some(Vec::new());
    }

    /// Returns the lines of the program so far.
    pub fn take_program(&mut self) -> Vec<String> {
        self.script.take().unwrap_or_default()
    }

    /// Starts to record the operands of operations.
    pub fn note_choices(&mut self) {
        self.chosen = Some(RefCell::default());
    }

    /// Returns the operands of the last operation.
    pub fn take_choices(&mut self) -> Vec<u64> {
        self.chosen.as_mut().map(|chosen| std::mem::take(chosen.get_mut())).unwrap_or_default()
    }

    /// Carries out one operation and checks what can be checked immediately. `pins` fixes its operands.
    ///
    /// # Errors
    ///
    /// Returns a [`Violation`] if the promise was broken.
    pub fn apply(&mut self, operation: Operation, pins: &[u64]) -> Result<Done, Violation> {
        self.next = operation.number * NAMES;
        self.picks.set(0);
        self.pins.clear();
        self.pins.extend_from_slice(pins);
        let strict = self.alone && !self.faults && !self.disturbed;
        let before = if strict { Some(self.machine.sim.live()) } else { None };
        let done = self.perform(operation)?;
        if let Done::Refused(error) = &done {
            self.say(|| format!("// refused ({}): {error}", operation.kind));
        }
        if let (Done::Refused(error), Some(before), false) = (&done, before, self.disturbed) {
            self.check_refusal(operation.kind, error, &before)?;
        }
        if let Some(way) = self.launched.take()
            && self.alone
        {
            // A caller that retries after an error would run the graph twice.
            let ran = || self.machine.sim.launches().iter().any(|it| it.graph_launch.is_some());
            if let Done::Refused(error) = &done
                && way == Way::Graph
                && ran()
            {
                let seen = format!("a graph was launched, but the call returned an error: {error}");
                return Err(Violation::new(Rule::Refusal, seen));
            }
            self.check_launches(way)?;
        }
        self.check_kept()?;
        if self.alone {
            self.check_ledger()?;
        }
        Ok(done)
    }

    fn perform(&mut self, Operation { kind, numbers, .. }: Operation) -> Result<Done, Violation> {
        let n = numbers;
        Ok(match kind {
            Kind::Split => return self.split(n),
            Kind::SplitNested => return self.split_nested(n),
            Kind::SplitStructured => return self.split_structured(n),
            Kind::SplitNestedStructured => self.split_nested_structured(n),
            Kind::SplitOverlapping => return self.split_overlapping(n),
            Kind::SplitRefused => return self.split_refused(n),
            Kind::Join => return self.join(n),
            Kind::DropGroup => self.drop_group(n),
            Kind::MakePartition => return self.make_partition(n),
            Kind::ClonePartition => self.clone_partition(n),
            Kind::ClosePartition => return self.close_partition(n),
            Kind::DropPartition => return self.drop_partition(n),
            Kind::MakeContext => return self.make_context(n),
            Kind::CloneContext => self.clone_context(n),
            Kind::CloseContext => return self.close_context(n),
            Kind::DropContext => self.drop_context(n),
            Kind::NewSet => return self.new_set(n),
            Kind::Prepare => return self.prepare(n),
            Kind::SwitchFenced | Kind::SwitchUnfenced | Kind::SwitchDrain => {
                return self.switch(kind, n);
            }
            Kind::Retire => return self.retire(n),
            Kind::ChurnPlans => return self.churn_plans(n),
            Kind::SwitchWhile => return self.switch_while(n),
            Kind::CloseSet => return self.close_set(n),
            Kind::DropSet => self.drop_set(n),
            Kind::MakeStream => return self.make_stream(n),
            Kind::MakePrimaryStream => self.make_primary_stream(),
            Kind::CloneStream => self.clone_stream(n),
            Kind::DropStream => self.drop_stream(n),
            Kind::ChurnStreams => self.churn_streams(n),
            Kind::MakeForeign => self.make_foreign(n),
            Kind::DropForeign => self.drop_foreign(n),
            Kind::AdoptOwned => self.adopt_owned(n),
            Kind::AdoptBorrowed => self.adopt_borrowed(n),
            Kind::AdoptAgain => self.adopt_again(n),
            Kind::Launch => self.launch(n),
            Kind::LaunchDefault => self.launch_default(n),
            Kind::LaunchForeign => self.launch_foreign(n),
            Kind::LaunchSpecial => self.launch_special(n),
            Kind::LaunchHost => self.launch_host(n),
            Kind::KeepAlive => return self.keep_alive(n),
            Kind::WrapKept => return self.wrap_kept(n),
            Kind::Copy => self.copy(n),
            Kind::DropMemory => return self.drop_memory(n),
            Kind::Order => self.order(n),
            Kind::Capture => self.capture(n),
            Kind::CaptureFork => self.capture_fork(n),
            Kind::CaptureMemset => self.capture_memset(n),
            Kind::CaptureDrop => return self.capture_drop(n),
            Kind::Audit => return self.audit(n),
            Kind::Retarget => return self.retarget(n),
            Kind::Instantiate => self.instantiate(n),
            Kind::CacheGet => return self.cache_get(n),
            Kind::CacheForget => self.cache_forget(n),
            Kind::DropGraph => self.drop_graph(n),
            Kind::DropExec => self.drop_exec(n),
            Kind::LaunchGraph => self.launch_graph(n),
            Kind::IdleLimit => self.idle_limit(n),
            Kind::ReleaseIdle => self.release_idle(),
            Kind::SynchronizeStream => self.synchronize_stream(n),
            Kind::AdvanceTime => self.advance_time(n),
            Kind::Settle => return self.settle(),
            Kind::Watch => return self.watch(n),
            Kind::BeginForeignCapture => self.begin_foreign_capture(n),
            Kind::EndForeignCapture => self.end_foreign_capture(n),
            Kind::SecondMake => return self.second_make(n),
            Kind::SecondLaunch => self.second_launch(n),
            Kind::SecondOrder => self.second_order(n),
            Kind::SecondCapture => self.second_capture(n),
            Kind::SecondDrop => return self.second_drop(n),
            Kind::ReclaimPanics => return self.reclaim_panics(),
            Kind::Fault => self.fault(n),
        })
    }

    /// Checks that a refusal changed nothing, and that no live handle was refused as destroyed.
    fn check_refusal(&self, kind: Kind, error: &str, before: &Live) -> Result<(), Violation> {
        for status in ["CONTEXT_IS_DESTROYED", "INVALID_HANDLE", "INVALID_CONTEXT", "DETACHED"] {
            if error.contains(status) {
                return Err(Violation::new(
                    Rule::Refusal,
                    format!("{kind} with live handles was refused: {error}"),
                ));
            }
        }
        let after = self.machine.sim.live();
        // Fewer objects are possible: idle contexts may have been destroyed to make room, and done events are
        // dropped when they are queried.
        let grew = after.streams > before.streams
            || after.events > before.events
            || after.primary_retains > before.primary_retains
            || after.graphs > before.graphs
            || after.graph_executables > before.graph_executables;
        // These operations may record events that remain for the next attempt.
        if grew
            && !matches!(
                kind,
                Kind::Prepare
                    | Kind::NewSet
                    | Kind::SwitchDrain
                    | Kind::SwitchWhile
                    | Kind::CloseContext
                    | Kind::ClosePartition
                    | Kind::CloseSet
            )
        {
            return Err(Violation::new(
                Rule::Refusal,
                format!(
                    "{kind} was refused ({error}) and left objects: {before:?}, then {after:?}"
                ),
            ));
        }
        Ok(())
    }

    /// Passes the launches of the last operation to the model.
    fn check_launches(&mut self, way: Way) -> Result<(), Violation> {
        if let Err(error) = (0..4).try_fold((), |(), _| match self.machine.probe() {
            // A planned fault may hit the probe.
            Err(error) if !self.faults => Err(Some(error)),
            Err(_) => Ok(()),
            Ok(()) => Err(None),
        }) && let Some(error) = error
        {
            return Err(Violation::new(
                Rule::Answer,
                format!("a launch in the primary context failed: {error}"),
            ));
        }
        let launches = self.machine.sim.launches();
        self.machine.sim.take_launches();
        self.model.submitted(launches, way)
    }

    /// Checks that the ledger reports as free exactly the SMs that no object holds.
    fn check_ledger(&self) -> Result<(), Violation> {
        let (free, held) = (self.sms.free_sm_count(), self.held.count());
        let expected = self.total - held.min(self.total);
        let may_lack = self.faults || self.disturbed;
        if held > self.total || free > expected || (free < expected && !may_lack) {
            return Err(Violation::new(
                Rule::Ledger,
                format!(
                    "{free} of {} SMs are free, though groups, partitions and sets hold {held}",
                    self.total
                ),
            ));
        }
        Ok(())
    }

    /// Drops everything in an order that `order` chooses, and checks that nothing is held.
    ///
    /// # Errors
    ///
    /// Returns a [`Violation`] if the promise was broken.
    pub fn finish(mut self, order: u64) -> Result<Left, Violation> {
        self.machine.sim.clear_faults();
        let early = order.is_multiple_of(2);
        if early {
            self.end_captures();
        }
        for step in 0..10 {
            match (step + order) % 10 {
                0 => self.groups.clear(),
                1 => self.contexts.clear(),
                8 => self.partitions.clear(),
                9 => {
                    self.second.clear();
                    self.buffers.clear();
                    self.copied.clear();
                }
                2 => self.sets.clear(),
                3 => self.streams.clear(),
                4 => self.foreign.clear(),
                5 => self.graphs.clear(),
                6 => self.execs.clear(),
                _ => {
                    self.cache.clear();
                    self.cached.clear();
                }
            }
        }
        self.end_captures();
        // A capture that ends on another thread looks through all streams of the driver, and may briefly hold
        // the last reference to one.
        let deadline = Instant::now() + Duration::from_secs(1);
        while !self.alone && self.held.count() != 0 && Instant::now() < deadline {
            thread::yield_now();
        }
        let held = self.held.count();
        if held != 0 {
            return Err(Violation::new(
                Rule::Ledger,
                format!("the model still holds {held} SMs after all drops"),
            ));
        }
        if self.alone {
            self.check_ledger()?;
        }
        self.check_second_ledger()?;
        self.check_kept()?;
        Ok(Left { streams: self.left_behind, disturbed: self.disturbed, kept: self.kept })
    }

    fn end_captures(&mut self) {
        self.disturbed |= !self.captures.is_empty();
        for (_, capture) in self.captures.drain(..) {
            self.left_behind += u64::from(capture.end().is_err());
        }
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(script) = &mut self.script {
            script.push(line());
        }
    }

    fn name(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

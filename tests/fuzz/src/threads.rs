//! Threads that share one driver and one plan set, each with its own world.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;

use green_ctx::sim::{Fault, Launch, Sim};
use green_ctx::{
    Driver, Error, Partition, Plan, PlanRequest, PlanSet, SplitRequest, Stream, StreamOptions,
    Version, plan::SwitchOptions,
};

use crate::account;
use crate::machine::{self, Machine, Reports, SPECS, Variant, panic_quietly};
use crate::operation::{Choice, Operation, generate};
use crate::raw::Foreign;
use crate::run::{Failure, Outcome, leak};
use crate::table::Table;
use crate::violation::{Rule, Violation};
use crate::world::{KeptStreams, Left, World};

/// The number of threads of a run.
pub const THREADS: usize = 8;
/// The prefix of kernel names for work that the promise covers; the thread's number follows.
const KERNEL: &str = "work";

/// A plan set that all threads use.
struct Shared {
    set: PlanSet,
    plans: Vec<Arc<Plan>>,
}

impl Shared {
    /// Creates a set of 32 SMs, or returns `None` on drivers without plans.
    fn new(driver: &Driver) -> Result<Option<Shared>, Box<dyn std::error::Error>> {
        let device = driver.device(0)?;
        let sms = device.resources().sm()?;
        if driver.version() < Version::new(12, 5) {
            return Ok(None);
        }
        let group = sms.split([32])?.groups.into_iter().next().ok_or("one group")?;
        let plan = |name: &'static str, counts: &[u32]| {
            PlanRequest::new(name, SplitRequest::from(counts.to_vec()))
        };
        let set = PlanSet::new(group, plan("halves", &[16, 16]))?;
        let mut plans = vec![set.plan("halves")?];
        plans.push(set.prepare(plan("uneven", &[8, 24]))?);
        plans.push(set.prepare(plan("some", &[8, 16]))?);
        let shared = SplitRequest::new().group("p0", 8..).group("p1", ..=16);
        plans.push(set.prepare(PlanRequest::new("shared", shared))?);
        Ok(Some(Shared { set, plans }))
    }

    fn partition(&self, number: u32) -> &Partition {
        let plan = &self.plans[number as usize % self.plans.len()];
        &plan.partitions()[number as usize / 8 % plan.partitions().len()]
    }
}

/// Streams of the shared set that one thread holds.
#[derive(Default)]
struct Handles {
    streams: Vec<Stream>,
    foreign: Vec<Arc<Foreign>>,
}

impl Handles {
    /// Uses the shared set. A refusal counts as success, since another thread may interfere.
    fn act(&mut self, shared: &Shared, machine: &Machine, numbers: [u32; 4]) {
        let [what, which, time, _] = numbers;
        let partition = shared.partition(which);
        match what % 8 {
            0 | 1 => {
                let plan = &shared.plans[which as usize % shared.plans.len()];
                drop(shared.set.switch(plan, SwitchOptions::default()));
            }
            2 => self.streams.extend(partition.create_stream(StreamOptions::default())),
            3 if self.foreign.len() < 4 => {
                let token = Arc::new(account::Partition::idle(0, partition.context()));
                let made = Foreign::make(partition.context(), &token);
                self.foreign.extend(made.map(Arc::new));
            }
            3 => drop(self.foreign.swap_remove(which as usize % self.foreign.len())),
            4 | 5 => {
                let lend = |foreign: &Arc<Foreign>| foreign.lend(true).ok();
                self.streams.extend(self.foreign.iter().filter_map(lend));
            }
            6 => {
                let launch = |stream: &Stream| {
                    let duration = 1_000 * u64::from(time % 100);
                    drop(crate::raw::launch(stream, &machine.exempt, duration));
                };
                self.streams.iter().for_each(launch);
            }
            // The next stream destroyed by any thread fails and is reported to the hook.
            _ if which % 4 == 0 => drop(machine.sim.fail(Fault::on("cuStreamDestroy"))),
            _ => self.streams.clear(),
        }
        self.streams.truncate(8);
    }
}

/// Carries out operations on eight threads on one driver.
///
/// # Errors
///
/// Returns a [`Failure`] if the promise was broken.
pub fn run(
    seed: u64,
    count: usize,
    choice: &Choice,
    progress: &AtomicU64,
) -> Result<Outcome, Box<Failure>> {
    let spec = SPECS[(seed % SPECS.len() as u64) as usize];
    let failed =
        |violation| Box::new(Failure { operations: count, violation, ..Failure::default() });
    let begin = |error: Box<dyn std::error::Error>| {
        failed(Violation::new(Rule::Answer, format!("the run could not start: {error}")))
    };
    let (sim, driver, reports) = machine::start(spec, Variant::default()).map_err(begin)?;
    let shared = Shared::new(&driver).map_err(begin)?.map(Arc::new);
    if let Some(shared) = &shared {
        hook(&driver, &reports, shared);
    }
    let kept = KeptStreams::default();
    let (table, left) = thread::scope(|scope| {
        let start = |number: usize| {
            let operations = generate(seed * THREADS as u64 + number as u64, count, choice);
            let (machine, shared) = ((&sim, &driver, &reports), (shared.as_deref(), &kept));
            scope.spawn(move || act(number, seed, &operations, machine, shared, progress))
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        let (mut all, mut left) = (Table::default(), Left::default());
        for thread in threads {
            let joined = thread.join().unwrap_or_else(|_| {
                Err(Violation::new(Rule::Panic, "a thread panicked".to_owned()))
            });
            let (table, of_one) = joined?;
            all.add(&table);
            left.kept |= of_one.kept;
        }
        Ok((all, left))
    })
    .map_err(failed)?;
    drop((shared, kept));
    let device = driver.device(0).map_err(|error| begin(error.into()))?;
    let sms = device.resources().sm().map_err(|error| begin(error.into()))?;
    if sms.free_sm_count() != sms.sm_count() {
        let seen = format!(
            "only {} of {} SMs are free after all drops",
            sms.free_sm_count(),
            sms.sm_count()
        );
        return Err(failed(Violation::new(Rule::Ledger, seen)));
    }
    drop((sms, device, driver));
    check(sim.launches()).map_err(failed)?;
    match leak(&sim.live(), left, &reports, true) {
        Some(violation) => Err(failed(violation)),
        None => Ok(Outcome { table, hash: 0 }),
    }
}

/// Installs a clean-up hook that creates a stream in a shared partition, as a hook may, and panics in every
/// fourth call.
fn hook(driver: &Driver, reports: &Reports, shared: &Arc<Shared>) {
    let (reports, shared) = (Arc::clone(reports), Arc::downgrade(shared));
    driver
        .on_cleanup_failure(move |error| {
            // After a panic of a host function, the hook must not call the driver.
            let Error::Driver { call, .. } = error else { return };
            reports.lock().push((*call).to_owned());
            if let Some(shared) = shared.upgrade() {
                drop(shared.partition(0).create_stream(StreamOptions::default()));
            }
            if reports.lock().len().is_multiple_of(4) {
                panic_quietly("the clean-up hook");
            }
        })
        .keep();
}

/// Carries out the operations of one thread.
fn act(
    number: usize,
    seed: u64,
    operations: &[Operation],
    (sim, driver, reports): (&Sim, &Driver, &Reports),
    (shared, kept): (Option<&Shared>, &KeptStreams),
    progress: &AtomicU64,
) -> Result<(Table, Left), Violation> {
    let unmade = |error: Box<dyn std::error::Error>| {
        Violation::new(Rule::Answer, format!("the run could not start: {error}"))
    };
    let machine = || Machine::new(sim, driver, reports, &format!("{KERNEL}{number}"));
    let (own, other) = (machine().map_err(unmade)?, machine().map_err(unmade)?);
    let mut world = World::new(own, seed).map_err(unmade)?;
    world.among_others(kept);
    let (mut table, mut handles) = (Table::default(), Handles::default());
    for &operation in operations {
        if let Some(shared) = shared
            && operation.numbers[3] % 3 == 0
        {
            handles.act(shared, &other, operation.numbers);
        } else {
            table.count(operation.kind, &world.apply(operation, &[])?);
        }
        progress.fetch_add(1, Ordering::Relaxed);
    }
    drop((handles, other));
    let left = world.finish(seed)?;
    Ok((table, left))
}

/// Checks that work of different threads never ran on one SM at the same time, since each thread has its own
/// partitions.
fn check(mut launches: Vec<Launch>) -> Result<(), Violation> {
    launches.retain(|launch| launch.is_green && launch.kernel.starts_with(KERNEL));
    launches.sort_by_key(|launch| launch.start_ns);
    let mut running: Vec<&Launch> = Vec::new();
    for launch in &launches {
        running.retain(|other| other.end_ns > launch.start_ns);
        for other in &running {
            let common = || other.sms.iter().any(|sm| launch.sms.binary_search(sm).is_ok());
            if other.kernel != launch.kernel && other.overlaps(launch) && common() {
                let one = |launch: &Launch| {
                    let Launch { kernel, start_ns, end_ns, context, stream, sms, .. } = launch;
                    let (first, count) = (sms.first().copied().unwrap_or_default(), sms.len());
                    format!(
                        "{kernel} from {start_ns} to {end_ns} ns in stream {stream} of context \
                         {context}, on {count} SMs from {first}, graph {:?}",
                        launch.graph_launch
                    )
                };
                let seen = format!("{} and {} ran on common SMs", one(other), one(launch));
                return Err(Violation::new(Rule::Exclusive, seen));
            }
        }
        running.push(launch);
    }
    Ok(())
}

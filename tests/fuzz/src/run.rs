//! One seed, from its driver to the check that nothing is left.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::sim::Live;

use crate::machine::{self, Machine, Reports, SPECS, Variant};
use crate::operation::{Choice, Operation, generate};
use crate::table::Table;
use crate::violation::{Rule, Violation};
use crate::world::{Done, Left, World};

/// A list of operations and where to carry them out.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed that it came from.
    pub seed: u64,
    /// The simulated driver.
    pub spec: &'static str,
    /// Whether calls may fail.
    pub faults: bool,
    /// What to do.
    pub operations: Vec<Operation>,
    /// What each operation chooses, where that is fixed.
    pub pins: Vec<Vec<u64>>,
}

impl Plan {
    /// What a seed stands for.
    #[must_use]
    pub fn of(seed: u64, count: usize, choice: &Choice) -> Plan {
        let spec = SPECS[(seed % SPECS.len() as u64) as usize];
        Plan {
            seed,
            spec,
            faults: choice.faults,
            operations: generate(seed, count, choice),
            pins: Vec::new(),
        }
    }
}

/// What a clean run says of itself.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How often each kind was tried, and succeeded.
    pub table: Table,
    /// A hash of all that happened: the same for the same plan.
    pub hash: u64,
}

/// A plan that broke a promise.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    /// How many operations had been carried out by then, the one that broke it included.
    pub operations: usize,
    /// What was broken.
    pub violation: Violation,
    /// The run as a program, where it was asked for.
    pub program: Vec<String>,
    /// What each operation chose, where the program was asked for.
    pub chosen: Vec<Vec<u64>>,
}

/// Carries a plan out. `progress` counts the operations that are done, for a watchdog.
///
/// # Errors
///
/// The promise that was broken.
pub fn run(plan: &Plan, write: bool, progress: &AtomicU64) -> Result<Outcome, Box<Failure>> {
    let failed = |operations, violation, (program, chosen)| {
        Box::new(Failure { operations, violation, program, chosen })
    };
    let begin = |error: Box<dyn std::error::Error>| {
        let seen = format!("the run did not begin: {error}");
        failed(0, Violation::new(Rule::Answer, seen), Default::default())
    };
    let number = plan.seed / SPECS.len() as u64;
    let variant =
        Variant { two_devices: number % 3 == 1, hook_panics: plan.faults && number % 2 == 1 };
    let (sim, driver, reports) = machine::start(plan.spec, variant).map_err(begin)?;
    let machine = Machine::new(&sim, &driver, &reports, "work").map_err(begin)?;
    let mut world = World::new(machine, number).map_err(begin)?;
    if plan.faults {
        world.with_faults();
    }
    if write {
        world.write_program();
        world.note_choices();
    }
    let mut chosen = Vec::new();
    let mut outcome = Outcome::default();
    let mut hasher = DefaultHasher::new();
    for (index, &operation) in plan.operations.iter().enumerate() {
        let pins = plan.pins.get(index).map_or(&[][..], Vec::as_slice);
        let applied = world.apply(operation, pins);
        if write {
            chosen.push(world.take_choices());
        }
        match applied {
            Ok(done) => {
                outcome.table.count(operation.kind, &done);
                match &done {
                    Done::Ok => 1_u8.hash(&mut hasher),
                    Done::Refused(error) => error.hash(&mut hasher),
                    Done::Skipped => 0_u8.hash(&mut hasher),
                }
            }
            Err(violation) => {
                let program = world.take_program();
                // What is wrong may hang at the end.
                return Err(failed(index + 1, violation, (program, chosen)));
            }
        }
        progress.fetch_add(1, Ordering::Relaxed);
    }
    sim.live().events.hash(&mut hasher);
    let count = plan.operations.len();
    let written = (world.take_program(), chosen);
    let left = world.finish(plan.seed).map_err(|v| failed(count, v, written.clone()))?;
    drop(driver);
    match leak(&sim.live(), left, &reports, plan.faults) {
        None => {
            outcome.hash = hasher.finish();
            Ok(outcome)
        }
        Some(violation) => Err(failed(count, violation, written)),
    }
}

/// What is alive when everything is dropped, but for what failed to be cleaned up.
pub(crate) fn leak(live: &Live, left: Left, reports: &Reports, faults: bool) -> Option<Violation> {
    let reports = reports.lock();
    let failed = |call: &str| reports.iter().filter(|report| *report == call).count() as u64;
    if !faults && !left.disturbed {
        if let Some(call) = reports.first() {
            let seen = format!("a clean-up failed though no call was made to fail: {call}");
            return Some(Violation::new(Rule::Left, seen));
        }
        let mut more = *live;
        if left.kept {
            // Streams that are kept stay with their contexts.
            (more.streams, more.green_contexts) = (0, 0);
        }
        let seen = || format!("all is dropped, and there is {live:?}");
        return (more != Live::default()).then(|| Violation::new(Rule::Left, seen()));
    }
    let kept = |count: u64| if left.kept { count } else { 0 };
    let alive = [
        ("streams", live.streams, failed("cuStreamDestroy") + left.streams + kept(live.streams)),
        ("events", live.events, failed("cuEventDestroy")),
        ("references", live.primary_retains, failed("cuDevicePrimaryCtxRelease")),
        (
            "green contexts",
            live.green_contexts,
            failed("cuGreenCtxDestroy") + kept(live.green_contexts),
        ),
        ("graphs", live.graphs, failed("cuGraphDestroy")),
        ("executables", live.graph_executables, failed("cuGraphExecDestroy")),
    ];
    let more = alive.iter().find(|(_, alive, failed)| alive > failed);
    more.map(|(what, alive, failed)| {
        let seen = format!("all is dropped, and there are {alive} {what}; {failed} were reported");
        Violation::new(Rule::Left, seen)
    })
}

//! Runs one seed, from the creation of its driver to the check that no object is left.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::sim::Live;

use crate::machine::{self, Machine, Reports, SPECS, Variant};
use crate::operation::{Choice, Operation, generate};
use crate::table::Table;
use crate::violation::{Rule, Violation};
use crate::world::{Done, Left, World};

/// A list of operations, and where to carry them out.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed that it was generated from.
    pub seed: u64,
    /// The simulated driver.
    pub spec: &'static str,
    /// Whether driver calls may fail.
    pub faults: bool,
    /// The operations.
    pub operations: Vec<Operation>,
    /// The operands of each operation, if they are fixed.
    pub pins: Vec<Vec<u64>>,
}

impl Plan {
    /// Generates the plan of a seed.
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

/// The result of a clean run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Counts of operations per kind.
    pub table: Table,
    /// A hash of all results. The same plan always gives the same hash.
    pub hash: u64,
}

/// The result of a run that broke the promise.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    /// The number of operations carried out, including the one that failed.
    pub operations: usize,
    /// The violation.
    pub violation: Violation,
    /// The run as a program, if requested.
    pub program: Vec<String>,
    /// The operands that each operation chose, if the program was requested.
    pub chosen: Vec<Vec<u64>>,
}

/// Carries out a plan. `progress` counts the finished operations, for a watchdog.
///
/// # Errors
///
/// Returns a [`Failure`] if the promise was broken.
pub fn run(plan: &Plan, write: bool, progress: &AtomicU64) -> Result<Outcome, Box<Failure>> {
    let failed = |operations, violation, (program, chosen)| {
        Box::new(Failure { operations, violation, program, chosen })
    };
    let begin = |error: Box<dyn std::error::Error>| {
        let seen = format!("the run could not start: {error}");
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
                // The world is not dropped: in its state the drop might hang.
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

/// Checks that no object is alive after everything was dropped, apart from those whose clean-up failed.
pub(crate) fn leak(live: &Live, left: Left, reports: &Reports, faults: bool) -> Option<Violation> {
    let reports = reports.lock();
    let failed = |call: &str| reports.iter().filter(|report| *report == call).count() as u64;
    if !faults && !left.disturbed {
        if let Some(call) = reports.first() {
            let seen = format!("a clean-up failed, although no call was made to fail: {call}");
            return Some(Violation::new(Rule::Left, seen));
        }
        let mut more = *live;
        if left.kept {
            // Kept streams and their contexts remain.
            (more.streams, more.green_contexts) = (0, 0);
        }
        let seen = || format!("objects are left after all drops: {live:?}");
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
        let seen = format!("{alive} {what} are left after all drops; {failed} were reported");
        Violation::new(Rule::Left, seen)
    })
}

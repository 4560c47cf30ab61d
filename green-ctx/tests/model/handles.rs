//! Threads create, look up, close and drop handles on a small model of the driver that reuses freed addresses
//! immediately.
//!
//! In every order the following must hold: the handle of a live object leads to that object, a handle has at
//! most one object, no thread has an object whose handle was destroyed, and no entry is left at the end. Module
//! `object` makes these checks. Copies of the registry with deliberate mistakes show that the checks find them.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use shuttle::scheduler::{DfsScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};

use crate::broken::{Broken, Mistake};
use crate::lock::pause;
use crate::object::{First, Handle, SharedWorld, Table, World};
use crate::registry::Registry;

type Scenario = fn(&SharedWorld);

/// Runs `here` on the scenario's thread and `there` on another.
fn both<W: Send + Sync + 'static>(
    world: &Arc<W>,
    here: impl FnOnce(&Arc<W>),
    there: impl FnOnce(&Arc<W>) + Send + 'static,
) {
    let shared = Arc::clone(world);
    let other = thread::spawn(move || there(&shared));
    here(world);
    other.join().expect("no panic");
}

/// Submits work, and lets other threads run while this thread has a handle.
fn have_for_a_moment(handle: Handle) {
    pause();
    handle.submit();
    pause();
    drop(handle);
}

/// The last handle is dropped while another thread creates an object, which may get the same address.
fn reuse(world: &SharedWorld) {
    let old = world.create();
    old.as_raw();
    both(
        world,
        |_| drop(old),
        |world| {
            let new = world.create();
            new.as_raw();
            new.check_found();
        },
    );
}

/// The last handle is dropped while another thread looks it up.
fn find(world: &SharedWorld) {
    let handle = world.create();
    let address = handle.as_raw();
    both(
        world,
        |_| drop(handle),
        move |world| {
            if let Some(found) = world.find(address) {
                found.check_found();
            }
        },
    );
}

/// Two threads request the raw handle for the first time, which enters the object in the registry.
fn give_out(world: &SharedWorld) {
    let handle = world.create();
    let clone = handle.clone();
    both(world, |_| handle.check_found(), move |_| clone.check_found());
}

/// Two threads adopt the same foreign handle.
fn adopt(world: &SharedWorld) {
    let owner = world.foreign();
    let other = owner.clone();
    both(world, |world| have_for_a_moment(world.adopt(owner)), |world| drop(world.adopt(other)));
}

/// Two threads adopt the same foreign handle, and look it up afterwards.
fn adopt_and_find(world: &SharedWorld) {
    let owner = world.foreign();
    let other = owner.clone();
    both(world, |world| world.adopt(owner).check_found(), |world| world.adopt(other).check_found());
}

/// The last handle of an adopted stream is dropped while another thread adopts the stream again.
fn adopt_again(world: &SharedWorld) {
    let owner = world.foreign();
    let other = owner.clone();
    let old = world.adopt(owner);
    both(world, |_| drop(old), |world| world.adopt(other).check_found());
}

/// A context is closed while another thread has a clone.
fn close_shared(world: &SharedWorld) {
    let handle = world.create();
    handle.as_raw();
    let clone = handle.clone();
    both(world, |_| drop(handle.close(false)), move |_| clone.check_found());
}

/// Two threads close two clones of one context.
fn close_twice(world: &SharedWorld) {
    let handle = world.create();
    handle.as_raw();
    let clone = handle.clone();
    both(world, |_| drop(handle.close(false)), move |_| drop(clone.close(false)));
}

/// A context is closed while another thread looks it up and keeps it for a moment.
fn close_found(world: &SharedWorld) {
    let handle = world.create();
    let address = handle.as_raw();
    both(
        world,
        |_| drop(handle.close(false)),
        move |world| {
            if let Some(found) = world.find(address) {
                have_for_a_moment(found);
            }
        },
    );
}

/// The driver fails to close a context while another thread adopts its handle.
fn close_failing(world: &SharedWorld) {
    let owner = world.foreign();
    let other = owner.clone();
    let handle = world.adopt(owner);
    both(world, |_| drop(handle.close(true)), |world| world.adopt(other).check_found());
}

/// Three threads create, look up, close and drop at the same time.
fn crowd(world: &SharedWorld) {
    let handle = world.create();
    let address = handle.as_raw();
    let (clone, shared) = (handle.clone(), world.clone());
    let looking = thread::spawn(move || {
        if let Some(found) = shared.find(address) {
            found.check_found();
            drop(found.close(false));
        }
    });
    both(
        world,
        |world| {
            drop(handle);
            world.create().check_found();
        },
        |world| {
            if let Err(shared) = clone.close(false) {
                shared.check_found();
            }
            world.create().check_found();
        },
    );
    looking.join().expect("no panic");
}

/// Scenarios with few enough thread switches to run all orders: 10 to 11,401 per scenario.
const SMALL: [Scenario; 8] =
    [reuse, find, give_out, adopt, adopt_again, close_shared, close_twice, close_found];

/// Scenarios with hundreds of thousands of orders; a random sample is run.
const LARGE: [Scenario; 3] = [adopt_and_find, close_failing, crowd];

/// Runs a scenario in each order that the scheduler chooses.
fn run(
    scheduler: impl Scheduler + 'static,
    scenario: Scenario,
    first: First,
    table: impl Fn() -> Box<dyn Table> + Send + Sync + 'static,
) {
    Runner::new(scheduler, Config::default()).run(move || {
        let world = World::new(table(), first);
        scenario(&world);
        world.check_end();
    });
}

fn all_orders() -> DfsScheduler {
    DfsScheduler::new(None, false)
}

/// Returns a scheduler with a fixed seed: every test run uses the same orders.
fn random_orders(count: usize) -> RandomScheduler {
    RandomScheduler::new_from_seed(20_240_229, count)
}

fn shipped() -> Box<dyn Table> {
    Box::new(Registry::default())
}

#[test]
fn the_registry_holds_in_all_orders() {
    for scenario in SMALL {
        run(all_orders(), scenario, First::Forget, shipped);
    }
}

#[test]
fn the_registry_holds_in_random_orders() {
    for scenario in LARGE {
        run(random_orders(5_000), scenario, First::Forget, shipped);
    }
}

/// Objects unregister themselves before they destroy their handle, and remove only their own entry. The second
/// rule alone is enough for the registry: here the first one is broken.
#[test]
fn the_registry_holds_when_objects_forget_late() {
    for scenario in SMALL.into_iter().chain(LARGE) {
        run(random_orders(500), scenario, First::Destroy, shipped);
    }
}

/// Returns the failure that the checks find in the copy with this mistake, or `None`.
fn found_in(mistake: Option<Mistake>, first: First, scenario: Scenario) -> Option<String> {
    let table = move || -> Box<dyn Table> { Box::new(Broken::new(mistake)) };
    let run = AssertUnwindSafe(|| run(random_orders(2_000), scenario, first, table));
    failure(run)
}

/// Returns the panic message of a run, or `None` if it succeeds.
fn failure(run: impl FnOnce() + panic::UnwindSafe) -> Option<String> {
    let panic = panic::catch_unwind(run).err()?;
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
}

/// Without a mistake, the copy passes. So every failure below is caused by the mistake.
#[test]
fn the_copy_holds() {
    for scenario in SMALL.into_iter().chain(LARGE) {
        assert_eq!(found_in(None, First::Forget, scenario), None);
    }
}

#[test]
fn every_mistake_is_found() {
    const LOST: &str = "a live object is not found by its handle";
    const TWO: &str = "one handle has two objects";
    const DEADLOCK: &str = "deadlock!";
    const WORK: &str = "a closed object has work that the close did not wait for";
    let cases: [(Mistake, First, Scenario, &str); 11] = [
        // A foreign handle outlives its object, so a newer object can have the same address immediately.
        (Mistake::ErasesByAddress, First::Forget, adopt_again, LOST),
        (Mistake::ErasesByAddress, First::Forget, adopt_and_find, LOST),
        // The race: an object destroys its handle, the address is reused, and then the object unregisters
        // itself.
        (Mistake::ErasesByAddress, First::Destroy, reuse, LOST),
        (Mistake::TwoLocks, First::Forget, adopt, TWO),
        (Mistake::TwoLocks, First::Forget, adopt_and_find, TWO),
        // The look-up briefly held the last reference; its drop unregisters the object.
        (Mistake::DropsUnderTheLock, First::Forget, find, DEADLOCK),
        (Mistake::ForgetsBeforeItKnows, First::Forget, close_shared, LOST),
        (Mistake::ForgetsBeforeItKnows, First::Forget, crowd, LOST),
        (Mistake::ForgetsWhatWasFound, First::Forget, close_found, WORK),
        (Mistake::EntersOver, First::Forget, close_failing, TWO),
        (Mistake::TrustsTheCount, First::Forget, close_found, WORK),
    ];
    for (mistake, first, scenario, expected) in cases {
        let found = found_in(Some(mistake), first, scenario);
        let right = found.as_deref().is_some_and(|found| found.contains(expected));
        assert!(right, "{mistake:?}: expected {expected:?}, found {found:?}");
    }
}

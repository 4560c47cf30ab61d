//! Threads that make, look up, close and drop handles, above a small driver that gives freed addresses
//! out again at once.
//!
//! What must hold in each order: the handle of a living object leads to that object, no handle has
//! two objects, nobody has an object whose handle was destroyed, and nothing stays behind. `object`
//! has the checks. Copies of the registry with mistakes show that the checks find them.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use shuttle::scheduler::{DfsScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};

use crate::broken::{Broken, Mistake};
use crate::lock::pause;
use crate::object::{First, Handle, SharedWorld, Table, World};
use crate::registry::Registry;

type Scenario = fn(&SharedWorld);

/// Two threads, one of them the scenario's own.
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

/// Other threads' turns come while this one has a handle.
fn have_for_a_moment(handle: Handle) {
    pause();
    drop(handle);
}

/// The last handle goes while another thread makes an object, which may get the address.
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

/// The last handle goes while another thread looks it up.
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

/// Two threads give a handle out for the first time, and with it enter the object.
fn give_out(world: &SharedWorld) {
    let handle = world.create();
    let clone = handle.clone();
    both(world, |_| handle.check_found(), move |_| clone.check_found());
}

/// Two threads come with the same foreign handle.
fn adopt(world: &SharedWorld) {
    let owner = world.foreign();
    let other = owner.clone();
    both(world, |world| have_for_a_moment(world.adopt(owner)), |world| drop(world.adopt(other)));
}

/// Two threads come with the same foreign handle, and look it up afterwards.
fn adopt_and_find(world: &SharedWorld) {
    let owner = world.foreign();
    let other = owner.clone();
    both(world, |world| world.adopt(owner).check_found(), |world| world.adopt(other).check_found());
}

/// The last handle of a foreign stream goes while another thread comes with the stream.
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

/// Two threads close the clones of one context.
fn close_twice(world: &SharedWorld) {
    let handle = world.create();
    handle.as_raw();
    let clone = handle.clone();
    both(world, |_| drop(handle.close(false)), move |_| drop(clone.close(false)));
}

/// A context is closed while another thread looks it up and has it for a moment.
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

/// The driver fails to close a context while another thread comes with its handle.
fn close_failing(world: &SharedWorld) {
    let owner = world.foreign();
    let other = owner.clone();
    let handle = world.adopt(owner);
    both(world, |_| drop(handle.close(true)), |world| world.adopt(other).check_found());
}

/// Three threads that make, look up, close and drop at once.
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

/// Few enough changes of threads for all orders, 10 to 11,401 of them.
const SMALL: [Scenario; 8] =
    [reuse, find, give_out, adopt, adopt_again, close_shared, close_twice, close_found];

/// Those with hundreds of thousands of orders, of which random ones are run.
const LARGE: [Scenario; 3] = [adopt_and_find, close_failing, crowd];

/// Runs a scenario to its end in each order that the scheduler chooses.
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

/// The same ones in every run of the tests.
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

/// Objects forget before they destroy, and their entry alone. The second is enough for the registry.
#[test]
fn the_registry_holds_when_objects_forget_late() {
    for scenario in SMALL.into_iter().chain(LARGE) {
        run(random_orders(500), scenario, First::Destroy, shipped);
    }
}

/// What the checker finds in the copy with a mistake; `None` where it finds nothing.
fn found_in(mistake: Option<Mistake>, first: First, scenario: Scenario) -> Option<String> {
    let table = move || -> Box<dyn Table> { Box::new(Broken::new(mistake)) };
    let run = AssertUnwindSafe(|| run(random_orders(2_000), scenario, first, table));
    failure(run)
}

/// What a run fails with, if it does.
fn failure(run: impl FnOnce() + panic::UnwindSafe) -> Option<String> {
    let panic = panic::catch_unwind(run).err()?;
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
}

/// Without a mistake the copy holds: what is found in it is the mistake.
#[test]
fn the_copy_holds() {
    for scenario in SMALL.into_iter().chain(LARGE) {
        assert_eq!(found_in(None, First::Forget, scenario), None);
    }
}

#[test]
fn every_mistake_is_found() {
    const LOST: &str = "the handle of a living object leads to nothing";
    const TWO: &str = "two objects stand for one handle";
    const DEADLOCK: &str = "deadlock!";
    const FOUND: &str = "somebody has an object that is being closed";
    const STALE: &str = "entries of dead objects stay behind";
    let cases: [(Mistake, First, Scenario, &str); 12] = [
        // A foreign handle lives on when its object goes, and a newer object has it at once.
        (Mistake::ErasesByAddress, First::Forget, adopt_again, LOST),
        (Mistake::ErasesByAddress, First::Forget, adopt_and_find, LOST),
        // The race of an object that is destroyed, whose address is used again, and that forgets.
        (Mistake::ErasesByAddress, First::Destroy, reuse, LOST),
        (Mistake::TwoLocks, First::Forget, adopt, TWO),
        (Mistake::TwoLocks, First::Forget, adopt_and_find, TWO),
        // The object that the look-up had for a moment was the last one, and forgets.
        (Mistake::DropsUnderTheLock, First::Forget, find, DEADLOCK),
        (Mistake::ForgetsBeforeItKnows, First::Forget, close_shared, LOST),
        // The first enters the object again after the second has forgotten it.
        (Mistake::ForgetsBeforeItKnows, First::Forget, close_twice, STALE),
        (Mistake::ForgetsBeforeItKnows, First::Forget, crowd, LOST),
        (Mistake::TrustsTheCount, First::Forget, close_found, FOUND),
        (Mistake::EntersOver, First::Forget, close_failing, TWO),
        (Mistake::TrustsTheCount, First::Forget, crowd, LOST),
    ];
    for (mistake, first, scenario, expected) in cases {
        let found = found_in(Some(mistake), first, scenario);
        let right = found.as_deref().is_some_and(|found| found.contains(expected));
        assert!(right, "{mistake:?}: {expected:?} was to be found, not {found:?}");
    }
}

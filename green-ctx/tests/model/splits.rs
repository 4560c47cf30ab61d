//! Threads that split a device, give SMs back, quarantine them and use contexts again, with one ledger.
//!
//! What must hold in each order: no unit has two owners, no context has two users, whoever gets a unit
//! waits for all work that runs on it, the counts add up to the device, and nothing ends while the
//! ledger is locked. `Mistake` names ways to use a ledger wrongly, which the checks find.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};

use shuttle::scheduler::Scheduler;
use shuttle::{Config, Runner, thread};

use crate::handles::{all_orders, both, failure, random_orders};
use crate::ledger::account::{GroupNumber, Ledger};
use crate::ledger::assign::Chosen;
use crate::ledger::cut::{Cut, Granularity, Placement, UnitCounts};
use crate::ledger::recycle::Idle;
use crate::ledger::request::SplitRequest;
use crate::ledger::share::Share;
use crate::lock::{Mutex, pause};

/// A way to use the ledger wrongly.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// Units are chosen under one lock and taken under another.
    TwoLocks,
    /// What the ledger returns ends while it is locked.
    DropsUnderTheLock,
    /// SMs whose work could not be recorded go back as free.
    GivesBackUnrecorded,
    /// What is in quarantine is tried while it stays in the list.
    TriesTwice,
    /// A fence that was not done when it was asked is let go of.
    ForgetsFences,
    /// The SMs go back before their context, whose end another thread can see.
    LeavesTheContextInUse,
}

/// Work that runs. The ledger's lock must be free where the last fence of it ends.
struct Work {
    number: usize,
    world: Weak<World>,
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(world) = self.world.upgrade().filter(|_| !std::thread::panicking()) {
            drop(world.ledger.lock());
        }
    }
}

/// A fence is the work that it stands for.
#[derive(Clone)]
struct Fence(Arc<Work>);

impl PartialEq for Fence {
    fn eq(&self, other: &Fence) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

struct World {
    ledger: Mutex<Ledger<Fence, u32>>,
    /// What is in quarantine, to be tried again.
    stuck: Mutex<Vec<Group>>,
    cuts: [(Cut, UnitCounts); 2],
    mistake: Option<Mistake>,
    /// What is really so. Its lock is no place where threads change over.
    truth: std::sync::Mutex<Truth>,
}

#[derive(Default)]
struct Truth {
    /// The units of floors, by SM: a coarse unit is two SMs, a fine one is one.
    owned: BTreeSet<usize>,
    /// Those that somebody shares, as often as somebody does.
    shared: Vec<usize>,
    /// The work that runs, and on which SMs.
    running: Vec<(usize, Vec<usize>)>,
    /// The contexts that somebody uses.
    used: BTreeSet<u32>,
    works: usize,
    contexts: u32,
}

type SharedWorld = Arc<World>;

/// SMs that a thread has.
struct Group {
    number: GroupNumber,
    is_shared: bool,
    placement: Placement,
    sms: Vec<usize>,
    fences: Vec<Fence>,
}

impl World {
    /// A device of four SMs, in two units or in four.
    fn new(mistake: Option<Mistake>) -> SharedWorld {
        let cut = |granularity, counts: &[u32], size| {
            (Cut::smallest(granularity), UnitCounts::new(counts.into(), size))
        };
        Arc::new(World {
            ledger: Mutex::new(Ledger::default()),
            stuck: Mutex::new(Vec::new()),
            cuts: [cut(Granularity::Coarse, &[2, 2], 2), cut(Granularity::Fine, &[1, 1, 1, 1], 1)],
            mistake,
            truth: std::sync::Mutex::default(),
        })
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn truth(&self) -> std::sync::MutexGuard<'_, Truth> {
        self.truth.lock().expect("nobody panics under the lock")
    }

    /// As `SmResource::split`, for one group.
    fn split(&self, cut: usize, share: impl Into<Share>) -> Option<Group> {
        self.retry();
        let (cut, units) = &self.cuts[cut];
        let request = SplitRequest::from([share.into()]);
        let mut ledger = self.ledger.lock();
        let chosen = ledger.choose(units, cut, &request).ok()?.remove(0);
        if self.has(Mistake::TwoLocks) {
            drop(ledger);
            ledger = self.ledger.lock();
        }
        let taken = ledger.take(units, &chosen);
        check(&ledger);
        drop(ledger);
        Some(self.own(chosen, taken.group, taken.fences))
    }

    fn own(&self, chosen: Chosen, number: GroupNumber, fences: Vec<Fence>) -> Group {
        let Chosen { placement, pool, .. } = chosen;
        let each = if placement.cut == self.cuts[0].0 { 2 } else { 1 };
        let sms: Vec<usize> =
            placement.members.iter().flat_map(|unit| unit * each..(unit + 1) * each).collect();
        let mut truth = self.truth();
        if !pool.is_empty() {
            assert!(sms.iter().all(|sm| !truth.owned.contains(sm)), "a floor is shared");
            truth.shared.extend(&sms);
            drop(truth);
            // It waits for nobody.
            return Group { number, is_shared: true, placement, sms, fences };
        }
        assert!(sms.iter().all(|sm| !truth.shared.contains(sm)), "a floor is shared");
        assert!(sms.iter().all(|sm| truth.owned.insert(*sm)), "a unit has two owners");
        for (number, on) in &truth.running {
            let waits = fences.iter().any(|fence| fence.0.number == *number);
            assert!(waits || on.iter().all(|sm| !sms.contains(sm)), "work runs beside other work");
        }
        drop(truth);
        Group { number, is_shared: false, placement, sms, fences }
    }

    /// Submits work to a group, after what its fences stand for. Returns a fence for it.
    fn submit(self: &SharedWorld, group: &Group) -> Fence {
        let mut truth = self.truth();
        let before: Vec<usize> = group.fences.iter().map(|fence| fence.0.number).collect();
        truth.running.retain(|(number, _)| !before.contains(number));
        truth.works += 1;
        let number = truth.works;
        truth.running.push((number, group.sms.clone()));
        Fence(Arc::new(Work { number, world: Arc::downgrade(self) }))
    }

    /// The work is done.
    fn finish(&self, fence: &Fence) {
        self.truth().running.retain(|(number, _)| *number != fence.0.number);
    }

    fn disown(&self, group: &Group) {
        let mut truth = self.truth();
        for sm in &group.sms {
            if group.is_shared {
                let shared = truth.shared.iter().position(|shared| shared == sm);
                truth.shared.swap_remove(shared.expect("it is shared"));
            } else {
                assert!(truth.owned.remove(sm));
            }
        }
    }

    /// As a group's end, with what still runs.
    fn give_back(&self, group: Group, running: &[Fence]) {
        self.disown(&group);
        let mut ledger = self.ledger.lock();
        let ended = ledger.give_back(group.number, &group.placement.members, running);
        check(&ledger);
        if self.has(Mistake::DropsUnderTheLock) {
            drop(group);
            drop(ended);
            drop(ledger);
            return;
        }
        drop(ledger);
    }

    /// As a group's end where its work cannot be recorded.
    fn quarantine(&self, group: Group) {
        if self.has(Mistake::GivesBackUnrecorded) {
            return self.give_back(group, &[]);
        }
        self.disown(&group);
        let mut ledger = self.ledger.lock();
        let ended = ledger.quarantine(group.number, &group.placement.members);
        check(&ledger);
        drop(ledger);
        drop(ended);
        self.stuck.lock().push(group);
    }

    /// As `Quarantine::retry`: the work is recorded now, by the fence that the group has.
    fn retry(&self) {
        let again: Vec<Group> = if self.has(Mistake::TriesTwice) {
            let copy = |group: &Group| Group {
                number: group.number,
                is_shared: group.is_shared,
                placement: group.placement.clone(),
                sms: group.sms.clone(),
                fences: group.fences.clone(),
            };
            let again = self.stuck.lock().iter().map(copy).collect();
            pause();
            self.stuck.lock().clear();
            again
        } else {
            std::mem::take(&mut *self.stuck.lock())
        };
        for group in again {
            let mut ledger = self.ledger.lock();
            ledger.end_quarantine(&group.placement.members, &group.fences);
            check(&ledger);
            drop(ledger);
        }
    }

    /// As `Device::settle_fences`.
    fn settle(&self) {
        let mut fences = self.ledger.lock().fences();
        let is_running = |fence: &Fence| {
            self.truth().running.iter().any(|(number, _)| *number == fence.0.number)
        };
        pause();
        if !self.has(Mistake::ForgetsFences) {
            fences.retain(|fence| !is_running(fence));
        }
        let done = self.ledger.lock().take_fences(&fences);
        drop(done);
    }

    /// As making a context: one that waits, or a new one.
    fn obtain(&self, group: &Group) -> u32 {
        let idle = self.ledger.lock().recycler.take(&group.placement, None);
        let mut truth = self.truth();
        let context = idle.map_or_else(
            || {
                truth.contexts += 1;
                truth.contexts
            },
            |idle| idle.raw,
        );
        assert!(truth.used.insert(context), "a context has two users");
        context
    }

    /// As the end of a context's last handle.
    fn leave(&self, group: Group, context: u32, running: &[Fence]) {
        let (placement, sm_count) = (group.placement.clone(), 2);
        let idle = Idle { placement, workqueue: None, sm_count, raw: context, kept: false };
        let put = || drop(self.ledger.lock().recycler.put(idle));
        if self.has(Mistake::LeavesTheContextInUse) {
            put();
            pause();
            self.truth().used.remove(&context);
        } else {
            self.truth().used.remove(&context);
            put();
        }
        self.give_back(group, running);
    }

    /// When nobody has anything any more, everything is free, in whatever cut.
    fn check_end(&self) {
        self.retry();
        self.truth().running.clear();
        self.settle();
        let ledger = self.ledger.lock();
        assert!(ledger.sm_counts().is_none(), "units are nobody's and not free");
        assert!(ledger.fences().is_empty(), "fences stay behind");
        for (cut, units) in &self.cuts {
            assert!(ledger.choose(units, cut, &SplitRequest::from([4])).is_ok());
        }
    }
}

/// The counts add up to the device.
fn check(ledger: &Ledger<Fence, u32>) {
    if let Some(sms) = ledger.sm_counts() {
        let sum = sms.free + sms.held + sms.shared + sms.quarantined;
        assert_eq!(sum, 4, "SMs were lost");
    }
}

type Scenario = fn(&SharedWorld);

/// Splits, works, and gives the SMs back while the work goes on.
fn use_sms(world: &SharedWorld, cut: usize, share: impl Into<Share>) {
    let Some(group) = world.split(cut, share) else { return };
    let fence = world.submit(&group);
    world.give_back(group, &[fence]);
}

/// Two threads that want what one of them can have.
fn split_twice(world: &SharedWorld) {
    both(world, |world| use_sms(world, 0, 4), |world| use_sms(world, 0, 2));
}

/// The device is cut anew while another thread gives back the last group of the former cut.
fn cut_anew(world: &SharedWorld) {
    let group = world.split(0, 2).expect("all are free");
    let fence = world.submit(&group);
    both(world, |world| world.give_back(group, &[fence]), |world| use_sms(world, 1, 3));
}

/// Work of which the ledger knows ends while another thread takes its SMs.
fn settle(world: &SharedWorld) {
    let group = world.split(0, 2).expect("all are free");
    let (first, second) = (world.submit(&group), world.submit(&group));
    world.give_back(group, &[first.clone(), second]);
    both(
        world,
        |world| {
            world.finish(&first);
            drop(first);
            world.settle();
        },
        |world| use_sms(world, 0, 4),
    );
}

/// Work cannot be recorded, and then it can, while another thread wants the SMs.
fn quarantine(world: &SharedWorld) {
    let mut group = world.split(0, 2).expect("all are free");
    let fence = world.submit(&group);
    group.fences.push(fence);
    both(world, |world| world.quarantine(group), |world| use_sms(world, 0, 4));
}

/// Two threads find the same SMs in quarantine.
fn retry_twice(world: &SharedWorld) {
    let mut group = world.split(0, 2).expect("all are free");
    let fence = world.submit(&group);
    group.fences.push(fence);
    world.quarantine(group);
    both(world, |world| use_sms(world, 0, 2), |world| world.retry());
}

/// A context is left while another thread wants one of the same SMs.
fn recycle(world: &SharedWorld) {
    let use_context = |world: &SharedWorld| {
        let Some(group) = world.split(0, 4) else { return };
        let context = world.obtain(&group);
        let fence = world.submit(&group);
        world.leave(group, context, &[fence]);
    };
    both(world, use_context, use_context);
}

/// A context is left while another thread looks for one of the same SMs, as those who share SMs do.
fn recycle_shared(world: &SharedWorld) {
    let group = world.split(0, 4).expect("all are free");
    let context = world.obtain(&group);
    let same = Group {
        number: group.number,
        is_shared: true,
        placement: group.placement.clone(),
        sms: Vec::new(),
        fences: Vec::new(),
    };
    let look = move |world: &SharedWorld| {
        world.obtain(&same);
    };
    both(world, |world| world.leave(group, context, &[]), look);
}

/// Somebody shares SMs, and leaves work on them, while another thread wants them for a floor.
fn share(world: &SharedWorld) {
    both(world, |world| use_sms(world, 0, ..), |world| use_sms(world, 0, 2));
}

/// Two that share the same SMs, one of which cannot be recorded.
fn share_and_quarantine(world: &SharedWorld) {
    let mut group = world.split(0, ..=2).expect("all are free");
    let fence = world.submit(&group);
    group.fences.push(fence);
    both(world, |world| world.quarantine(group), |world| use_sms(world, 0, 2..));
}

/// Three threads that do all of it at once.
fn crowd(world: &SharedWorld) {
    let shared = world.clone();
    let stuck = thread::spawn(move || {
        let Some(mut group) = shared.split(0, 2) else { return };
        let fence = shared.submit(&group);
        group.fences.push(fence);
        shared.quarantine(group);
        shared.settle();
    });
    both(
        world,
        |world| {
            use_sms(world, 0, 2);
            use_sms(world, 1, 1);
        },
        |world| {
            use_sms(world, 0, 4);
            world.settle();
            use_sms(world, 0, ..=2);
        },
    );
    stuck.join().expect("no panic");
}

/// Few enough changes of threads for all orders.
const SMALL: [Scenario; 9] = [
    split_twice,
    cut_anew,
    settle,
    quarantine,
    retry_twice,
    recycle,
    recycle_shared,
    share,
    share_and_quarantine,
];

fn run(scheduler: impl Scheduler + 'static, scenario: Scenario, mistake: Option<Mistake>) {
    Runner::new(scheduler, Config::default()).run(move || {
        let world = World::new(mistake);
        scenario(&world);
        world.check_end();
    });
}

#[test]
fn the_ledger_holds_in_all_orders() {
    for scenario in SMALL {
        run(all_orders(), scenario, None);
    }
}

#[test]
fn the_ledger_holds_in_random_orders() {
    run(random_orders(4_000), crowd, None);
}

#[test]
fn every_mistake_is_found() {
    const BESIDE: &str = "work runs beside other work";
    let cases: [(Mistake, Scenario, &str); 6] = [
        // The ledger itself notices these two in a build with assertions, as the tests are.
        (Mistake::TwoLocks, split_twice, "is_free()"),
        (Mistake::TriesTwice, retry_twice, "subtract with overflow"),
        (Mistake::DropsUnderTheLock, crowd, "deadlock!"),
        (Mistake::GivesBackUnrecorded, quarantine, BESIDE),
        (Mistake::ForgetsFences, settle, BESIDE),
        (Mistake::LeavesTheContextInUse, recycle_shared, "a context has two users"),
    ];
    for (mistake, scenario, expected) in cases {
        let run = AssertUnwindSafe(|| run(random_orders(2_000), scenario, Some(mistake)));
        let found = failure(run);
        let right = found.as_deref().is_some_and(|found| found.contains(expected));
        assert!(right, "{mistake:?}: {expected:?} was to be found, not {found:?}");
    }
}

//! A set of plans for the same SMs: preparing, switching and retiring them.
//!
//! - `prepare` chooses the SMs, prefers SMs that have a context already, and makes the contexts that no plan
//!   has yet. It holds no lock while it calls the driver, so other threads can switch in the meantime.
//! - `switch` holds the lock on `Former`, so that switches come one after the other. It records contexts and
//!   waits for them (`switch.rs`), then replaces the active plan, which readers load without a lock.
//! - `drain` waits on the host for the active plan's work, with the lock released. If another thread switches
//!   in the meantime, it waits for the plan that is active after that.
//! - `retire` removes a plan that is not active. If a switch left the plan without fences, it records the
//!   plan's contexts.
//!
//! Plans and contexts end after the locks are released, since their end can run the clean-up hook, and the
//! hook may use the set.

use std::fmt;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use parking_lot::{Mutex, MutexGuard};

use super::contexts::Contexts;
use super::failure::PlanError;
use super::prepared::{Plan, PlanRequest};
use super::switch::{self, Ended, Former};
use crate::divide::partition::{Partition, Partitions, SharedContext};
use crate::handle::device::Device;
use crate::handle::error::{Refused, Result};
use crate::handle::group::{Parent, SmGroup};
use crate::handle::trace;
use crate::ledger::Holder;

/// Whether a switch that waits is to go on.
type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// The SMs of one group, divided by one plan at a time.
///
/// Plans are prepared ahead: their contexts and streams are there before they are needed, since
/// making a context takes about 1 ms and waits for all work of the device (recorded on an H200, driver
/// 580.159.04). [`switch`](PlanSet::switch) then moves SMs from one partition to another for the
/// price of a few events. On the device, new work of a partition waits for former plans' work on the
/// SMs of its floor, and for what had the partition's name on other SMs; for SMs that it shares it
/// waits for nobody. A partition that has the same SMs in both plans is the same.
///
/// Clones share the set. The [manual](crate::guide::plans) says what waits for what.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use green_ctx::{Driver, PlanSet, PlanRequest, SplitRequest, sim::Sim, plan::SwitchOptions};
///
/// let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
/// let device = driver.device(0)?;
///
/// let plan = |name, decode| PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("prefill"));
/// let set = PlanSet::new(device.rest("elastic")?, plan("day", 16))?;
/// let night = set.prepare(plan("night", 64))?;
///
/// let decode = |set: &PlanSet| set.active().partition("decode").map(|part| part.sm_count());
/// assert_eq!(decode(&set), Some(16));
/// set.switch(&night, SwitchOptions::default())?;
/// assert_eq!(decode(&set), Some(64));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PlanSet {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    /// Owns the SMs, for as long as a partition of any plan lives.
    pub(super) base: Arc<Parent>,
    pub(super) active: ArcSwap<Plan>,
    pub(super) plans: Mutex<Vec<Arc<Plan>>>,
    contexts: Contexts,
    /// What former plans may have left unfinished. Held over a switch, so that they come one after the
    /// other.
    pub(super) switching: Mutex<Former>,
}

/// How to switch. With fences, and without waiting on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "options do nothing until passed to a call"]
pub struct SwitchOptions {
    fence: bool,
    drain: Option<Duration>,
}

impl Default for SwitchOptions {
    fn default() -> SwitchOptions {
        SwitchOptions { fence: true, drain: None }
    }
}

impl SwitchOptions {
    /// Sets whether new work waits, on the device, for former plans' work on the SMs of its partition's
    /// floor and under its partition's name. Without, both may run at the same time, and nothing orders
    /// them.
    pub const fn fence(mut self, fence: bool) -> SwitchOptions {
        self.fence = fence;
        self
    }

    /// Waits on the host, before this switch changes anything, until the active plan's work is done; at
    /// most this long, after which the switch is refused. [`Duration::MAX`] is no bound.
    ///
    /// Other threads may switch meanwhile. Where they do, this switch waits for the plan that they make
    /// active, within the same time; without a bound, once the former plan's work is done.
    pub const fn drain(mut self, at_most: Duration) -> SwitchOptions {
        self.drain = Some(at_most);
        self
    }
}

/// The active plan at the moment when it was asked for; whoever keeps it keeps that plan.
pub struct Active(Guard<Arc<Plan>>);

impl Deref for Active {
    type Target = Arc<Plan>;

    #[inline]
    fn deref(&self) -> &Arc<Plan> {
        &self.0
    }
}

impl PlanSet {
    /// A set for the SMs of a group, with a first plan, which is the active one.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives the group back, with the reason as of
    /// [`prepare`](PlanSet::prepare).
    pub fn new(
        group: SmGroup,
        first: PlanRequest,
    ) -> Result<PlanSet, Refused<Option<Box<SmGroup>>, PlanError>> {
        let base = Parent::of(group);
        let contexts = Contexts::default();
        let first = match build(&base, &contexts, first) {
            Ok(first) => first,
            Err(reason) => {
                let group = Parent::into_group(base).map(Box::new);
                return Err(Refused { given: group, reason });
            }
        };
        let inner = Inner {
            base,
            active: ArcSwap::new(Arc::clone(&first)),
            plans: Mutex::new(vec![first]),
            contexts,
            switching: Mutex::default(),
        };
        Ok(PlanSet { inner: Arc::new(inner) })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inner.base.group().device()
    }

    /// The SMs that floors of the plans' partitions may have.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.inner.base.group().floor()
    }

    /// The SMs that the plans divide, those that can only be shared included.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.inner.base.group().sm_count()
    }

    /// The active plan. Takes no lock.
    #[must_use]
    #[inline]
    pub fn active(&self) -> Active {
        Active(self.inner.active.load())
    }

    /// The plans that are prepared, in the order in which they were; none in a forked process.
    #[must_use]
    pub fn plans(&self) -> Vec<Arc<Plan>> {
        if self.device().driver().is_forked() {
            return Vec::new();
        }
        self.inner.plans.lock().clone()
    }

    /// Prepares a plan: chooses its SMs, and makes the contexts and streams that no other plan has.
    /// Others may run meanwhile.
    ///
    /// # Errors
    ///
    /// [`PlanError::Exists`], [`PlanError::TwoOfOneName`], and in [`PlanError::Error`] what
    /// [`SmGroup::split`] says of the request: it must be one by count, in the group's granularity.
    /// Nothing has changed then.
    pub fn prepare(&self, plan: PlanRequest) -> Result<Arc<Plan>, PlanError> {
        self.device().driver().check_process()?;
        trace::span!("prepare", device = self.device().ordinal(), plan = plan.name());
        let name = Arc::clone(&plan.name);
        let exists = || PlanError::Exists { name: name.to_string() };
        let has = |plans: &[Arc<Plan>]| plans.iter().any(|plan| plan.name == name);
        if has(&self.inner.plans.lock()) {
            return Err(exists());
        }
        let prepared = build(&self.inner.base, &self.inner.contexts, plan)?;
        let mut plans = self.inner.plans.lock();
        if has(&plans) {
            // Another thread prepared one of this name meanwhile. Ours ends outside of the lock.
            drop(plans);
            return Err(exists());
        }
        plans.push(Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Prepares a plan on a thread of its own.
    #[must_use = "the plan, or why there is none, comes from joining the thread"]
    pub fn prepare_in_background(
        &self,
        plan: PlanRequest,
    ) -> JoinHandle<Result<Arc<Plan>, PlanError>> {
        let set = self.clone();
        thread::spawn(move || set.prepare(plan))
    }

    /// The prepared plan of this name.
    ///
    /// # Errors
    ///
    /// [`PlanError::Unknown`], with the names of all plans; [`Error::Forked`](crate::Error::Forked) in
    /// [`PlanError::Error`].
    pub fn plan(&self, name: &str) -> Result<Arc<Plan>, PlanError> {
        self.device().driver().check_process()?;
        let plans = self.inner.plans.lock();
        let found = plans.iter().find(|plan| plan.name() == name).map(Arc::clone);
        found.ok_or_else(|| unknown(name, &plans))
    }

    /// Makes a plan the active one. What is submitted to its partitions from now on waits, on the
    /// device, for the former plan's work on the SMs that they take over. Work submitted through a
    /// former plan runs concurrently with the new plan's.
    ///
    /// # Errors
    ///
    /// [`PlanError::NotOfThisSet`] for a plan that this set has not, or has retired;
    /// [`PlanError::NotDrained`]; [`PlanError::Capturing`] where a partition that gives up or takes
    /// over SMs, or with [`drain`](SwitchOptions::drain) any of the active plan, has a stream that is
    /// being captured; and the driver's. This call has changed nothing then.
    pub fn switch(&self, plan: &Arc<Plan>, options: SwitchOptions) -> Result<(), PlanError> {
        self.switch_asking(plan, options, None)
    }

    /// Switches as [`switch`](PlanSet::switch) does, and while [`drain`](SwitchOptions::drain) waits asks
    /// about every millisecond whether to go on. No lock is held then.
    ///
    /// # Errors
    ///
    /// As [`switch`](PlanSet::switch), and [`PlanError::GivenUp`].
    pub fn switch_while(
        &self,
        plan: &Arc<Plan>,
        options: SwitchOptions,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<(), PlanError> {
        self.switch_asking(plan, options, Some(&mut go_on))
    }

    fn switch_asking(
        &self,
        plan: &Arc<Plan>,
        options: SwitchOptions,
        mut go_on: Option<GoOn<'_>>,
    ) -> Result<(), PlanError> {
        // Before any lock: in a forked child its owner may be gone.
        self.device().driver().check_process()?;
        let (mut ended, mut drained) = (Ended::default(), Vec::new());
        let mut left = self.inner.switching.lock();
        self.check_known(plan)?;
        if let Some(at_most) = options.drain {
            left = self.drain(left, plan, at_most, &mut drained, &mut go_on)?;
            // It may have been retired meanwhile.
            self.check_known(plan)?;
        }
        {
            // Let go of before the new plan is stored, which is dearer while somebody reads.
            let former = self.inner.active.load();
            if Arc::ptr_eq(&former, plan) {
                return Ok(());
            }
            if options.fence {
                ended = left.fence(&former, plan)?;
            } else {
                left.note(&former, plan);
            }
        }
        self.inner.active.store(Arc::clone(plan));
        for partition in plan.partitions() {
            partition.shared().set_name(partition.arc_name());
        }
        // Outside of the lock: it may be the end of a context, and whoever listens may use the set.
        drop(left);
        drop(ended);
        trace::event!(DEBUG, plan = plan.name(), "another plan is active");
        Ok(())
    }

    /// Forgets a plan. Its contexts go when nobody has them any more, and are used again.
    ///
    /// # Errors
    ///
    /// [`PlanError::Unknown`], and [`PlanError::Active`] for the active one.
    pub fn retire(&self, name: &str) -> Result<(), PlanError> {
        self.device().driver().check_process()?;
        let mut left = self.inner.switching.lock();
        let mut plans = self.inner.plans.lock();
        let Some(index) = plans.iter().position(|plan| plan.name() == name) else {
            return Err(unknown(name, &plans));
        };
        if Arc::ptr_eq(&plans[index], &self.inner.active.load()) {
            return Err(PlanError::Active { name: name.to_owned() });
        }
        let retired = plans.remove(index);
        retired.retire();
        let unfenced = left.retire(&retired);
        let (done, failed) = left.settle(self.device());
        let contexts = self.inner.contexts.living();
        // Outside of the locks: the end of a plan is the end of contexts, and the hook may use the set.
        drop((plans, left));
        drop((retired, unfenced, done));
        self.device().driver().report(failed);
        // What the retired plan's contexts stood for is needed no longer where it is done.
        for context in contexts {
            self.device().driver().report(context.context().settle());
        }
        Ok(())
    }

    fn check_known(&self, plan: &Plan) -> Result<(), PlanError> {
        if plan.is_of(&self.inner.base) {
            return Ok(());
        }
        Err(PlanError::NotOfThisSet { name: plan.name().to_owned() })
    }

    /// Waits until the work of the active plan is done, unless that is the next one. Others may switch
    /// meanwhile; it waits for the plan that they leave active then. Plans that may end with it go to
    /// `drained`, to be dropped outside of the lock.
    fn drain<'a>(
        &'a self,
        mut left: MutexGuard<'a, Former>,
        next: &Plan,
        at_most: Duration,
        drained: &mut Vec<Arc<Plan>>,
        go_on: &mut Option<GoOn<'_>>,
    ) -> Result<MutexGuard<'a, Former>, PlanError> {
        // Further away than the clock goes is no end.
        let end = Instant::now().checked_add(at_most);
        loop {
            let plan = self.inner.active.load_full();
            drained.push(Arc::clone(&plan));
            if ptr::eq(&raw const *plan, next) {
                return Ok(left);
            }
            for partition in plan.partitions() {
                switch::refuse_captures_of(partition)?;
                partition.shared().record()?;
            }
            let wait = || self.wait_for(&plan, end, at_most, go_on);
            let done = MutexGuard::unlocked(&mut left, wait);
            if let Ok(false) = done {
                return Err(PlanError::GivenUp { name: next.name().to_owned() });
            }
            if self.is_active(&plan) {
                return done.map(|_| left);
            }
        }
    }

    fn is_active(&self, plan: &Arc<Plan>) -> bool {
        Arc::ptr_eq(plan, &self.inner.active.load())
    }

    /// Waits until what was recorded last in a plan is done, or the plan is not the active one any more;
    /// false where it was not to go on.
    fn wait_for(
        &self,
        plan: &Arc<Plan>,
        end: Option<Instant>,
        at_most: Duration,
        go_on: &mut Option<GoOn<'_>>,
    ) -> Result<bool, PlanError> {
        const LONGEST: Duration = Duration::from_millis(1);
        let mut pause = Duration::from_micros(10);
        for partition in plan.partitions() {
            let shared = partition.shared();
            if end.is_none() && go_on.is_none() {
                self.device().driver().while_relaxed(|| shared.synchronize())?;
                continue;
            }
            while self.is_active(plan) && !switch::is_done(self.device(), shared)? {
                let left = end.map_or(LONGEST, |end| end.saturating_duration_since(Instant::now()));
                if go_on.as_mut().is_some_and(|go_on| !go_on()) {
                    return Ok(false);
                }
                if left.is_zero() {
                    return Err(PlanError::NotDrained {
                        partition: partition.name().to_owned(),
                        milliseconds: at_most.as_millis(),
                    });
                }
                thread::sleep(left.min(pause));
                pause = (2 * pause).min(LONGEST);
            }
        }
        Ok(true)
    }
}

/// Chooses a plan's SMs, and finds or makes their contexts.
fn build(
    base: &Arc<Parent>,
    contexts: &Contexts,
    plan: PlanRequest,
) -> Result<Arc<Plan>, PlanError> {
    // Before any lock: in a forked process a thread that is gone may hold it.
    base.group().device().driver().check_process()?;
    let PlanRequest { name, request } = plan;
    // Plans that want as many SMs have the same ones, and a switch between them leaves those alone.
    let living = contexts.living();
    let shared: Vec<_> = living.iter().map(|context| context.placement().clone()).collect();
    if let Some(partition) = request.twice() {
        let (plan, partition) = (name.to_string(), partition.to_owned());
        return Err(PlanError::TwoOfOneName { plan, partition });
    }
    let split = base.divide(&request, &shared)?;
    let groups: Vec<SmGroup> = split.groups.into_iter().chain(split.remainder).collect();
    let beside: Vec<Vec<Holder>> = (0..groups.len()).map(|index| sharers(&groups, index)).collect();
    let mut partitions: Vec<Partition> = Vec::with_capacity(groups.len());
    for (group, beside) in groups.into_iter().zip(beside) {
        let record = group.record().clone();
        // Partitions of one plan may have the same SMs: `..` beside `..`.
        let is_used = |context: &Arc<SharedContext>| {
            partitions.iter().any(|other| Arc::ptr_eq(other.shared(), context))
        };
        let context = contexts.get_or_create(base, group, is_used)?;
        context.note_name(&record.sms.name);
        partitions.push(Partition::new(record, beside, context));
    }
    let partitions: Partitions = partitions.into_iter().collect();
    Ok(Arc::new(Plan::new(name, partitions, base)))
}

/// Who else has units of a group, with how many SMs each.
fn sharers(groups: &[SmGroup], index: usize) -> Vec<Holder> {
    let pool = groups[index].pool();
    let others = groups.iter().enumerate().filter(|(other, _)| *other != index);
    let common = |group: &SmGroup| -> u32 {
        let units = group.pool().iter().filter(|unit| pool.contains(unit));
        units.map(|unit| group.units().counts().counts()[*unit]).sum()
    };
    let holder = |(_, group): (usize, &SmGroup)| Holder {
        name: Arc::clone(&group.record().sms.name),
        sm_count: common(group),
    };
    others.map(holder).filter(|holder| holder.sm_count > 0).collect()
}

fn unknown(name: &str, plans: &[Arc<Plan>]) -> PlanError {
    let known = plans.iter().map(|plan| plan.name().to_owned()).collect();
    PlanError::Unknown { name: name.to_owned(), known }
}

impl fmt::Debug for PlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanSet")
            .field("sm_count", &self.sm_count())
            .field("active", &self.active().name())
            .finish_non_exhaustive()
    }
}

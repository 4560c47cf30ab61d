//! A set of plans for the same SMs: preparing, switching and retiring them.
//!
//! - `prepare` chooses the SMs, preferably SMs that already have a context, and creates the contexts that no
//!   plan has yet. Other threads can switch in the meantime, because `prepare` holds no lock while it calls
//!   the driver.
//! - `switch` holds the lock on `Former`, which serialises switches. A switch records contexts, makes other
//!   contexts wait for them (`switch.rs`), and then replaces the active plan. Readers load the active plan
//!   without a lock.
//! - `drain` waits on the host for the active plan's work, with the lock released. If another thread switches
//!   during the wait, `drain` then waits for the work of the new active plan.
//! - `retire` removes a plan that is not active. If a switch away from the plan set no fences, `retire`
//!   records the plan's contexts.
//!
//! Plans and contexts are dropped after the locks are released, because dropping them can run the clean-up
//! hook, which may use the set.

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

/// A function that returns whether a switch should continue to wait.
type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// A set of plans: several divisions of the SMs of one group, one of which is active.
///
/// Plans are prepared in advance, so their contexts and streams exist before they are needed. Creating a
/// context takes about 1 ms and waits for all work on the device (recorded on an H200, driver 580.159.04).
/// [`switch`](PlanSet::switch) then moves SMs between partitions at the cost of a few CUDA events.
///
/// After a switch, new work of a partition waits, on the device, for work of earlier plans on the SMs of the
/// partition's floor, and for work of an earlier partition with the same name on other SMs. New work does not wait for
/// work on SMs above the floor. A partition that has the same SMs and priority in the old plan and in the new one also
/// has the same context and stream, unless several partitions of a plan have exactly these SMs: these may swap.
///
/// Clones share the set. The [manual](crate::guide::plans) explains which work waits for which.
///
/// # Examples
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
    /// The device of `base`. It is stored here too, because each pointer that a switch follows can cost a cache
    /// miss.
    device: Device,
    /// The divided group, which holds the SMs while a partition of any plan exists.
    pub(super) base: Arc<Parent>,
    pub(super) active: ArcSwap<Plan>,
    pub(super) plans: Mutex<Vec<Arc<Plan>>>,
    contexts: Contexts,
    /// The work that earlier plans may have left. A switch holds this lock, so only one switch runs at a
    /// time.
    pub(super) switching: Mutex<Former>,
}

/// Options of a switch. By default, a switch sets fences and does not wait on the host.
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
    /// Sets whether new work of a partition waits, on the device, for work of earlier plans on the SMs of the
    /// partition's floor, and for work of earlier partitions with the same name. Without fences, the earlier
    /// and the new work may run at the same time and in any order.
    pub const fn fence(mut self, fence: bool) -> SwitchOptions {
        self.fence = fence;
        self
    }

    /// Waits on the host for the active plan's work before the switch changes anything; a switch to the active plan
    /// does not wait. If the work takes longer than `at_most`, the switch fails. [`Duration::MAX`] sets no limit.
    ///
    /// If another thread switches during the wait, this switch then waits for the work of the new active
    /// plan, within the same time limit. Without a limit, this switch first waits until the work of the
    /// previously active plan is done.
    pub const fn drain(mut self, at_most: Duration) -> SwitchOptions {
        self.drain = Some(at_most);
        self
    }
}

/// The plan that was active when [`PlanSet::active`] was called. This value keeps the plan alive.
pub struct Active(Guard<Arc<Plan>>);

impl Deref for Active {
    type Target = Arc<Plan>;

    #[inline]
    fn deref(&self) -> &Arc<Plan> {
        &self.0
    }
}

impl PlanSet {
    /// Creates a set from the SMs of a group, with a first plan, which is active.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused) for the reasons that [`prepare`](PlanSet::prepare) lists. The error
    /// returns the group, unless work on the group's SMs could not be recorded.
    pub fn new(
        group: SmGroup,
        first: PlanRequest,
    ) -> Result<PlanSet, Refused<Option<SmGroup>, PlanError>> {
        let base = Parent::new(group, None);
        let contexts = Contexts::default();
        let first = match build(&base, &contexts, first) {
            Ok(first) => first,
            Err(reason) => {
                return Err(Refused { given: Parent::into_group(base), reason });
            }
        };
        let inner = Inner {
            device: base.group().device().clone(),
            base,
            active: ArcSwap::new(Arc::clone(&first)),
            plans: Mutex::new(vec![first]),
            contexts,
            switching: Mutex::default(),
        };
        Ok(PlanSet { inner: Arc::new(inner) })
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns the number of SMs that are available for the floors of a plan's partitions.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.inner.base.group().floor()
    }

    /// Returns the number of SMs that the plans divide, including those that can only be shared.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.inner.base.group().sm_count()
    }

    /// Returns the active plan. Takes no lock.
    #[must_use]
    #[inline]
    pub fn active(&self) -> Active {
        Active(self.inner.active.load())
    }

    /// Returns the prepared plans, in the order in which they were prepared. The list is empty in a forked
    /// process.
    #[must_use]
    pub fn plans(&self) -> Vec<Arc<Plan>> {
        if self.device().driver().is_forked() {
            return Vec::new();
        }
        self.inner.plans.lock().clone()
    }

    /// Prepares a plan: chooses its SMs, and creates the contexts and streams that no other plan has. While a
    /// plan is being prepared, other plans can run, and other threads can switch plans.
    ///
    /// # Errors
    ///
    /// [`PlanError::Exists`], [`PlanError::TwoOfOneName`], or [`PlanError::Error`] with an error of
    /// [`SmGroup::split`]. The request must divide by count and have the group's granularity. A failure
    /// changes nothing.
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
            // Another thread prepared a plan of this name in the meantime. Ours is dropped without the lock.
            drop(plans);
            return Err(exists());
        }
        plans.push(Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Prepares a plan on a new thread.
    #[must_use = "join the thread to get the plan or the error"]
    pub fn prepare_in_background(
        &self,
        plan: PlanRequest,
    ) -> JoinHandle<Result<Arc<Plan>, PlanError>> {
        let set = self.clone();
        thread::spawn(move || set.prepare(plan))
    }

    /// Returns the prepared plan with this name.
    ///
    /// # Errors
    ///
    /// [`PlanError::Unknown`], with the names of all plans, if no plan has the name. [`PlanError::Error`]
    /// with [`Error::Forked`](crate::Error::Forked) in a forked process.
    pub fn plan(&self, name: &str) -> Result<Arc<Plan>, PlanError> {
        self.device().driver().check_process()?;
        let plans = self.inner.plans.lock();
        let found = plans.iter().find(|plan| plan.name() == name).map(Arc::clone);
        found.ok_or_else(|| unknown(name, &plans))
    }

    /// Makes a plan the active one. Unless fences are off, work that is submitted to the plan's partitions after the
    /// switch waits, on the device, for earlier plans' work on the SMs of its partition's floor, and for work of an
    /// earlier partition with the same name. Work that the caller still submits through the previous plan runs
    /// concurrently with work of the new plan.
    ///
    /// # Errors
    ///
    /// A failed call changes nothing.
    ///
    /// - [`PlanError::NotOfThisSet`]: the plan belongs to another set or was retired.
    /// - [`PlanError::NotDrained`]: the work of the active plan did not finish within the time limit that
    ///   [`drain`](SwitchOptions::drain) sets.
    /// - [`PlanError::Capturing`]: a stream is being captured in a partition that gives up or takes over SMs
    ///   or, with [`drain`](SwitchOptions::drain), in any partition of the active plan.
    /// - [`PlanError::Error`]: the driver failed.
    pub fn switch(&self, plan: &Arc<Plan>, options: SwitchOptions) -> Result<(), PlanError> {
        self.switch_asking(plan, options, None)
    }

    /// Switches as [`switch`](PlanSet::switch) does, but can be cancelled while
    /// [`drain`](SwitchOptions::drain) waits. During the wait, `go_on` is called about every millisecond,
    /// while no lock is held. If `go_on` returns false, the switch is cancelled.
    ///
    /// # Errors
    ///
    /// The errors of [`switch`](PlanSet::switch), and [`PlanError::GivenUp`].
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
        // Before any lock: in a forked child, the thread that holds the lock may not exist.
        self.device().driver().check_process()?;
        let (mut ended, mut drained) = (Ended::default(), Vec::new());
        let mut left = self.inner.switching.lock();
        self.check_known(plan)?;
        if let Some(at_most) = options.drain {
            left = self.drain(left, plan, at_most, &mut drained, &mut go_on)?;
            // The plan may have been retired in the meantime.
            self.check_known(plan)?;
        }
        {
            // Drop this guard before the store below, which is more expensive while a reader holds the plan.
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
        self.inner.contexts.set_names(plan);
        // Without the lock: this may drop the last handle of a context, and the clean-up hook may use the
        // set.
        drop(left);
        drop(ended);
        trace::event!(DEBUG, plan = plan.name(), "another plan is active");
        Ok(())
    }

    /// Removes a plan from the set. The plan's contexts become available for reuse once no plan and no handle
    /// uses them.
    ///
    /// # Errors
    ///
    /// [`PlanError::Unknown`] if no plan has the name, and [`PlanError::Active`] for the active plan.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, PlanRequest, PlanSet, SplitRequest, plan::SwitchOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let plan = |name, decode| PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("prefill"));
    /// let set = PlanSet::new(device.rest("elastic")?, plan("day", 16))?;
    /// let night = set.prepare(plan("night", 64))?;
    /// set.switch(&night, SwitchOptions::default())?;
    /// set.retire("day")?;
    /// assert_eq!(set.plans().len(), 1);
    /// # Ok(())
    /// # }
    /// ```
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
        let (done, failed) = left.settle();
        let contexts = self.inner.contexts.living();
        // Without the locks: dropping a plan may drop its contexts, and the clean-up hook may use the set.
        drop((plans, left));
        drop((retired, unfenced, done));
        self.device().driver().report(failed);
        // Other contexts need not wait for the retired plan's contexts if their work is done.
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

    /// Waits until the work of the active plan is done, unless `next` is already active. The lock is released
    /// during the wait. If another thread switches during the wait, this function then waits for the work of
    /// the new active plan. Each plan whose handle this function takes is added to `drained`, so that the
    /// caller drops the plan without the lock.
    fn drain<'a>(
        &'a self,
        mut left: MutexGuard<'a, Former>,
        next: &Plan,
        at_most: Duration,
        drained: &mut Vec<Arc<Plan>>,
        go_on: &mut Option<GoOn<'_>>,
    ) -> Result<MutexGuard<'a, Former>, PlanError> {
        // `None` if the limit exceeds the range of `Instant`, which means no limit.
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

    /// Waits until the last recorded work of a plan is done, or until the plan is no longer active. Returns
    /// false if `go_on` returned false.
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
            while self.is_active(plan) && !switch::is_done(shared)? {
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

/// Chooses the SMs of a plan's partitions, and finds or creates the partitions' contexts.
fn build(
    base: &Arc<Parent>,
    contexts: &Contexts,
    plan: PlanRequest,
) -> Result<Arc<Plan>, PlanError> {
    // Before any lock: in a forked child, the thread that holds the lock may not exist.
    base.group().device().driver().check_process()?;
    let PlanRequest { name, request } = plan;
    // Prefer SMs with a context: plans that need the same number of SMs then use the same SMs, and a switch
    // between them leaves these alone.
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
        // Partitions of one plan can have the same SMs, such as two with `..`. Each needs its own context.
        let is_used = |context: &Arc<SharedContext>| {
            partitions.iter().any(|other| Arc::ptr_eq(other.shared(), context))
        };
        let context = contexts.get_or_create(base, group, is_used)?;
        contexts.note_name(&context, &record.sms.name);
        partitions.push(Partition::new(record, beside, context));
    }
    let partitions: Partitions = partitions.into_iter().collect();
    Ok(Arc::new(Plan::new(name, partitions, base)))
}

/// Returns the groups that share SMs with one group, each with the number of common SMs.
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

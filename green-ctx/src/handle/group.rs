//! Groups of SMs, which a split returns.

use std::fmt;
use std::mem;
use std::slice;
use std::sync::Arc;

use parking_lot::{Mutex, ReentrantMutex};

use crate::handle::dev_resource::Units;
use crate::handle::device::Device;
use crate::handle::fence::{Fence, Fences};
use crate::handle::green::{self, Green};
use crate::handle::quarantine;
use crate::handle::report;
use crate::ledger::{Divided, GroupNumber, GroupUnits, Holder, Ledger, Placement, Share};

/// A group of SMs: a floor that belongs to this group alone, and shared SMs that other groups may use too. The ceiling
/// counts all SMs of the group. [`Device::create_context`] turns a group into a context. Dropping the group returns its
/// SMs to the device.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// let device = driver.device(0)?;
/// let group = device.resources().sm()?.split([32])?.groups.remove(0);
/// assert_eq!((group.name(), group.floor(), group.sm_count()), ("p0", 32, 32));
///
/// drop(group);
/// assert_eq!(device.resources().sm()?.free_sm_count(), 132);
/// # Ok(())
/// # }
/// ```
///
/// A group cannot be cloned, and creating a context consumes the group, so no two contexts get the same floor. Neither
/// of the following examples compiles:
///
/// ```compile_fail,E0382
/// # fn both(device: &green_ctx::Device, group: green_ctx::resource::SmGroup) -> green_ctx::Result<()> {
/// let first = device.create_context(group)?;
/// let second = device.create_context(group)?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0308
/// fn copy(group: &green_ctx::resource::SmGroup) -> green_ctx::resource::SmGroup {
///     group.clone()
/// }
/// ```
pub struct SmGroup {
    /// On the heap, because a group is moved several times before it is in a context.
    inner: Box<Inner>,
}

struct Inner {
    device: Device,
    units: Arc<Units>,
    record: GroupUnits,
    priority: i32,
    /// Fences for work that was still running on the floor when the group was taken.
    fences: Fences,
    hold: Hold,
}

/// The account in which a group's SMs are recorded: the ledger of the device, or that of a parent group.
#[derive(Clone)]
pub(crate) enum Hold {
    /// The device's ledger, and the group's number in that ledger.
    Ledger(GroupNumber),
    /// The parent group that this group was split from, and this group's number in the parent's account. The parent is
    /// kept alive until its last child is dropped. The groups of plans have no number, since plans take turns on the
    /// parent's SMs.
    Parent(Arc<Parent>, Option<GroupNumber>),
}

impl SmGroup {
    pub(crate) fn new(
        device: Device,
        units: Arc<Units>,
        record: GroupUnits,
        priority: i32,
        fences: Fences,
        hold: Hold,
    ) -> SmGroup {
        let inner = Box::new(Inner { device, units, record, priority, fences, hold });
        SmGroup { inner }
    }

    /// Returns the device that the SMs belong to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns the group's name: the name from the request, or `p0`, `p1`, … for a list of counts.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.record.sms.name
    }

    /// Returns the ledger's record of the group.
    pub(crate) fn record(&self) -> &GroupUnits {
        &self.inner.record
    }

    /// Returns the requested share, or [`Share::REST`] for a group of the remaining SMs.
    #[must_use]
    pub fn share(&self) -> Share {
        self.inner.record.sms.share
    }

    /// Returns the group's floor: the number of its SMs that no other partition may use.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.inner.record.sms.floor
    }

    /// Returns the group's ceiling: the number of SMs that the group may use, including shared SMs.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.inner.record.sms.sm_count
    }

    /// Returns the units of the group, as indices into
    /// [`SmResource::unit_counts`](crate::resource::SmResource::unit_counts). For a structured split, the indices refer
    /// to the groups of that split.
    #[must_use]
    pub fn unit_indices(&self) -> &[usize] {
        &self.inner.record.placement.members
    }

    /// Returns the units of the floor, as indices into the same list as [`unit_indices`](SmGroup::unit_indices).
    #[must_use]
    pub fn floor_unit_indices(&self) -> Vec<usize> {
        self.inner.record.floor_units().collect()
    }

    /// Returns the other groups that may use SMs of this group, each with the number of shared SMs. If another group
    /// was split again, the result lists that group instead of its parts, with all SMs that the group shares.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Share, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let shares = [Share::from(32..), Share::from(..)];
    /// let groups = device.resources().sm()?.split(shares)?.groups;
    /// assert_eq!(&*groups[0].shared_with()[0].name, groups[1].name());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shared_with(&self) -> Vec<Holder> {
        self.sharers_of(&self.inner.record.pool)
    }

    /// Returns the other groups that may use some of the given units of this group.
    pub(crate) fn sharers_of(&self, units: &[usize]) -> Vec<Holder> {
        match &self.inner.hold {
            Hold::Ledger(group) => {
                let Ok(ledger) = self.inner.device.ledger() else { return Vec::new() };
                ledger.sharers(Some((units, *group)))
            }
            Hold::Parent(parent, number) => {
                let mut sharers = number.map_or_else(Vec::new, |number| {
                    parent.account.lock().sharers(Some((units, number)))
                });
                let outside = &parent.group().inner.record.pool;
                let units: Vec<_> =
                    units.iter().copied().filter(|unit| outside.contains(unit)).collect();
                if !units.is_empty() {
                    sharers.extend(parent.group().sharers_of(&units));
                }
                sharers
            }
        }
    }

    /// Returns the priority that the request sets for the partition's first stream.
    pub(crate) fn priority(&self) -> i32 {
        self.inner.priority
    }

    pub(crate) fn pool(&self) -> &[usize] {
        &self.inner.record.pool
    }

    /// Returns the data that a further split of this group needs.
    pub(crate) fn divided<'a>(&'a self, quarantined: &'a [usize]) -> Divided<'a> {
        let number = self.entry().map(|(number, _)| number);
        Divided { group: &self.inner.record, number, quarantined }
    }

    pub(crate) fn units(&self) -> &Arc<Units> {
        &self.inner.units
    }

    /// Returns the group's number in the device's ledger, and its units. Returns `None` for a part of another group.
    pub(crate) fn entry(&self) -> Option<(GroupNumber, &[usize])> {
        match self.inner.hold {
            Hold::Ledger(number) => Some((number, &self.inner.record.placement.members)),
            Hold::Parent(..) => None,
        }
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.inner.record.placement
    }

    pub(crate) fn fences(&self) -> &Fences {
        &self.inner.fences
    }

    /// Adds fences for work that is still running on the group's SMs.
    pub(crate) fn add_fences(&mut self, more: impl IntoIterator<Item = Arc<Fence>>) {
        self.inner.fences.add(self.inner.device.driver(), more);
    }

    /// Moves the SMs and the fences into a new group, and leaves this group without SMs.
    fn take(&mut self) -> SmGroup {
        let members = mem::take(&mut self.inner.record.placement.members);
        let record = GroupUnits {
            sms: self.inner.record.sms.clone(),
            placement: Placement { cut: self.inner.record.placement.cut.clone(), members },
            pool: mem::take(&mut self.inner.record.pool),
        };
        let (device, units) = (self.inner.device.clone(), Arc::clone(&self.inner.units));
        let (fences, hold) = (mem::take(&mut self.inner.fences), self.inner.hold.clone());
        SmGroup::new(device, units, record, self.inner.priority, fences, hold)
    }

    /// Returns the SMs to the account and puts them into quarantine. No partition gets these SMs as its floor until the
    /// work of `contexts` has been recorded.
    pub(crate) fn quarantine(&mut self, contexts: Vec<Arc<Green>>) {
        let members = mem::take(&mut self.inner.record.placement.members);
        let fences = mem::take(&mut self.inner.fences);
        let state = self.inner.device.state();
        match &self.inner.hold {
            Hold::Ledger(group) => {
                let Ok(mut ledger) = self.inner.device.ledger() else { return };
                let (ended, members) = ledger.quarantine(*group, &members);
                drop(ledger);
                drop(ended);
                state.quarantine.add(contexts, members, fences);
            }
            Hold::Parent(parent, number) => {
                parent.take_back(*number, &members);
                parent.quarantine(contexts, &fences);
            }
        }
    }

    /// Returns whether both groups are recorded in the same account, which guarantees that no unit belongs to both
    /// floors.
    pub(crate) fn has_account_of(&self, other: &SmGroup) -> bool {
        match (&self.inner.hold, &other.inner.hold) {
            (Hold::Ledger(_), Hold::Ledger(_)) => true,
            (Hold::Parent(own, Some(_)), Hold::Parent(others, Some(_))) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }

    /// Moves the floor of `other` into this group. Both groups must be in the same account, and must have no shared
    /// SMs.
    pub(crate) fn absorb(&mut self, mut other: SmGroup) {
        let mut members = mem::take(&mut other.inner.record.placement.members);
        let ended = match (&self.inner.hold, &other.inner.hold) {
            (Hold::Ledger(into), Hold::Ledger(from)) => {
                let Ok(mut ledger) = self.inner.device.ledger() else { return };
                ledger.join(*into, *from, &members)
            }
            (Hold::Parent(parent, Some(into)), Hold::Parent(_, Some(from))) => {
                parent.account.lock().join(*into, *from, &members)
            }
            _ => unreachable!("they have one account"),
        };
        drop(ended);
        self.inner.record.placement.members.append(&mut members);
        self.inner.record.placement.members.sort_unstable();
        let sms = &mut self.inner.record.sms;
        sms.sm_count += other.sm_count();
        sms.floor += other.floor();
        sms.share = Share::from(sms.sm_count);
        self.add_fences(other.inner.fences.as_slice().iter().cloned());
    }

    /// Hands units of the floor over to the smaller groups in `chosen`. Returns the fences that every new group waits
    /// for, and the account of each new group. Cannot fail. Units that no new group gets return to the account.
    pub(crate) fn hand_over(mut self, chosen: &[GroupUnits]) -> (Fences, Vec<Hold>) {
        let is_chosen =
            |index: &usize| chosen.iter().any(|group| group.placement.members.contains(index));
        let holds = match &self.inner.hold {
            Hold::Ledger(own) => {
                let Ok(mut ledger) = self.inner.device.ledger() else {
                    unreachable!("the caller has chosen these units of this ledger")
                };
                let (groups, ended): (Vec<_>, Vec<_>) =
                    chosen.iter().map(|group| ledger.hand_over(*own, group)).unzip();
                drop(ledger);
                drop(ended);
                groups.into_iter().map(Hold::Ledger).collect()
            }
            Hold::Parent(parent, own) => {
                let number = |group| own.map(|own| parent.hand_over(own, group));
                let hold = |group| Hold::Parent(Arc::clone(parent), number(group));
                chosen.iter().map(hold).collect()
            }
        };
        // The remaining units return when `self` is dropped.
        self.inner.record.placement.members.retain(|index| !is_chosen(index));
        (self.inner.fences.clone(), holds)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.record.placement.members.is_empty() || self.device.driver().is_forked() {
            return;
        }
        self.fences.settle(self.device.driver());
        match &self.hold {
            Hold::Ledger(group) => {
                let (members, fences) = (&self.record.placement.members, self.fences.as_slice());
                let Ok(mut ledger) = self.device.ledger() else { return };
                let ended = ledger.give_back(*group, members, fences);
                drop(ledger);
                drop(ended);
                if !self.record.pool.is_empty() && !fences.is_empty() {
                    // It may take long until a floor takes these SMs and its fences.
                    self.device.settle_fences();
                }
            }
            Hold::Parent(parent, number) => {
                parent.take_back(*number, &self.record.placement.members);
                parent.leave(&self.fences);
            }
        }
    }
}

impl fmt::Debug for SmGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmGroup")
            .field("name", &self.name())
            .field("share", &format_args!("{}", self.share()))
            .field("floor", &self.floor())
            .field("sm_count", &self.sm_count())
            .finish_non_exhaustive()
    }
}

/// A group that other groups were split from.
pub(crate) struct Parent {
    group: SmGroup,
    /// The context that the driver split, if the split was made in a context.
    context: Option<Arc<Green>>,
    /// The account with the units of each child. The account stays empty if the children take turns on the units.
    account: Mutex<Ledger<Arc<Fence>, Arc<Green>>>,
    /// Fences for work that was still running when children were dropped.
    fences: Mutex<Vec<Arc<Fence>>>,
    /// Contexts of dropped children whose work could not be recorded.
    stuck: Mutex<Vec<Arc<Green>>>,
    /// Held by the thread that tries to record that work, as in `quarantine.rs`.
    trying: ReentrantMutex<()>,
}

impl Parent {
    /// Creates a parent for a split that the driver made in `context`, which was created for the split. Without a
    /// context, the group can be divided several times, and the parts may share SMs.
    pub(crate) fn new(group: SmGroup, context: Option<Arc<Green>>) -> Arc<Parent> {
        let (account, fences, stuck, trying) = Default::default();
        Arc::new(Parent { group, context, account, fences, stuck, trying })
    }

    /// Enters the units of a child in the account, and returns the child's number.
    pub(crate) fn enter(&self, units: &Units, child: &GroupUnits) -> GroupNumber {
        self.account.lock().take(units.counts(), child).group
    }

    fn hand_over(&self, from: GroupNumber, to: &GroupUnits) -> GroupNumber {
        let (group, ended) = self.account.lock().hand_over(from, to);
        drop(ended);
        group
    }

    /// Removes a child's units from the account.
    fn take_back(&self, child: Option<GroupNumber>, members: &[usize]) {
        if let Some(child) = child {
            let ended = self.account.lock().give_back(child, members, &[]);
            drop(ended);
        }
    }

    pub(crate) fn group(&self) -> &SmGroup {
        &self.group
    }

    /// Returns fences for all earlier work on the group's SMs: from before the group was taken, and from dropped
    /// children.
    pub(crate) fn fences(&self) -> Fences {
        let gone = self.fences.lock().clone();
        self.group.fences().with(gone)
    }

    /// Returns the original group if no other reference to the parent exists and all work on the group's SMs is
    /// recorded. Returns `None` otherwise.
    pub(crate) fn into_group(self: Arc<Parent>) -> Option<SmGroup> {
        let mut parent = Arc::into_inner(self)?;
        debug_assert!(parent.context.is_none());
        if !parent.retry_quarantine().is_empty() {
            return None;
        }
        parent.group.add_fences(mem::take(parent.fences.get_mut()));
        Some(parent.group.take())
    }

    /// Adds the fences of a dropped child, and drops those whose work is done.
    fn leave(&self, fences: &Fences) {
        self.add_fences(fences.as_slice());
        let known = self.fences.lock().clone();
        // The list is not locked during the queries, and it still has all fences. A group that takes SMs now waits for
        // all of them.
        let mut running = Fences::gather(&known);
        running.settle(self.group.device().driver());
        let is_done =
            |fence: &mut Arc<Fence>| known.contains(fence) && !running.as_slice().contains(fence);
        let done: Vec<_> = self.fences.lock().extract_if(.., is_done).collect();
        drop(done);
    }

    fn add_fences(&self, fences: &[Arc<Fence>]) {
        let mut all = self.fences.lock();
        for fence in fences {
            if !all.contains(fence) {
                all.push(Arc::clone(fence));
            }
        }
    }

    /// Adds contexts of a dropped child. The work of these contexts could not be recorded.
    fn quarantine(&self, contexts: Vec<Arc<Green>>, fences: &Fences) {
        self.stuck.lock().extend(contexts);
        self.leave(fences);
    }

    /// Tries again to record the work of the contexts whose work could not be recorded. Returns the units of all
    /// contexts whose work is still not recorded.
    pub(crate) fn retry_quarantine(&self) -> Vec<usize> {
        if self.stuck.lock().is_empty() {
            return Vec::new();
        }
        let device = self.group.device();
        let _trying = report::hold(self.trying.lock());
        quarantine::retry(device, &self.stuck, |fence| self.add_fences(slice::from_ref(&fence)));
        let stuck = self.stuck.lock();
        stuck.iter().flat_map(|green| &green.placement.members).copied().collect()
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let device = self.group.device().clone();
        if device.driver().is_forked() {
            return;
        }
        self.retry_quarantine();
        self.group.add_fences(mem::take(self.fences.get_mut()));
        // Give the context back before the SMs, so that the next owner of the SMs can reuse it.
        if let Some(context) = self.context.take() {
            green::leave(&device, context);
        }
        let stuck = mem::take(self.stuck.get_mut());
        if !stuck.is_empty() {
            self.group.quarantine(stuck);
        }
    }
}

//! Groups of SMs: what a split gives, to become a partition or to be split further.

use std::fmt;
use std::mem;
use std::slice;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::handle::dev_resource::Units;
use crate::handle::device::Device;
use crate::handle::fence::{Fence, Fences};
use crate::handle::green::{self, RawGreen};
use crate::handle::quarantine::{Case, Stuck, Unrecorded, record_again};
use crate::ledger::{Divided, GroupNumber, GroupUnits, Holder, Ledger, Placement, Share};

/// SMs of a device: a floor, which is this object's alone, and what it shares up to its ceiling. It
/// becomes a partition with [`Device::create_context`], and returns its SMs when dropped.
///
/// It cannot be cloned, and making a context moves it: no two contexts get the same floor. Neither of
/// these compiles:
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
    device: Device,
    units: Arc<Units>,
    record: GroupUnits,
    priority: i32,
    /// What still ran on its floor when it was taken.
    fences: Fences,
    hold: Hold,
}

/// Who accounts for a group's SMs.
#[derive(Clone)]
pub(crate) enum Hold {
    /// The device's ledger, by this number.
    Ledger(GroupNumber),
    /// The group that it was divided out of, which is held until its last child is gone, and by what
    /// that one's account knows this one. The parts of plans are in no account, since they have the
    /// group's SMs one plan after the other.
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
        SmGroup { device, units, record, priority, fences, hold }
    }

    /// The device that the SMs are of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The group's name: that of the request, or `p0`, `p1`, … for a list of counts.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.record.sms.name
    }

    /// The group's record in the ledger's terms.
    pub(crate) fn record(&self) -> &GroupUnits {
        &self.record
    }

    /// The share that was asked for; [`Share::REST`] for what remained.
    #[must_use]
    pub fn share(&self) -> Share {
        self.record.sms.share
    }

    /// The SMs that nobody else may use.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.record.sms.floor
    }

    /// The SMs that the group has, those that it shares included: its ceiling.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.record.sms.sm_count
    }

    /// The units that the group has, by their places in
    /// [`SmResource::unit_counts`](crate::resource::SmResource::unit_counts); of a structured split, by those of its
    /// groups.
    #[must_use]
    pub fn unit_indices(&self) -> &[usize] {
        &self.record.placement.members
    }

    /// The units of its floor, by their places as above.
    #[must_use]
    pub fn floor_unit_indices(&self) -> Vec<usize> {
        self.record.floor_units().collect()
    }

    /// Who may use SMs of this group beside it, with how many of them each. A group that was divided
    /// again stands for its parts, by its name and with all that it shares.
    #[must_use]
    pub fn shared_with(&self) -> Vec<Holder> {
        self.sharers_of(&self.record.pool)
    }

    /// Who may use some of these units of the group beside it.
    pub(crate) fn sharers_of(&self, units: &[usize]) -> Vec<Holder> {
        match &self.hold {
            Hold::Ledger(group) => {
                let Ok(ledger) = self.device.ledger() else { return Vec::new() };
                ledger.sharers(Some((units, *group)))
            }
            Hold::Parent(parent, number) => {
                let mut sharers = number.map_or_else(Vec::new, |number| {
                    parent.account.lock().sharers(Some((units, number)))
                });
                let outside = &parent.group().record.pool;
                let units: Vec<_> =
                    units.iter().copied().filter(|unit| outside.contains(unit)).collect();
                if !units.is_empty() {
                    sharers.extend(parent.group().sharers_of(&units));
                }
                sharers
            }
        }
    }

    /// The priority that the request sets for the partition's first stream.
    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    pub(crate) fn pool(&self) -> &[usize] {
        &self.record.pool
    }

    /// The group as one that is divided again.
    pub(crate) fn divided<'a>(&'a self, quarantined: &'a [usize]) -> Divided<'a> {
        let number = self.entry().map(|(number, _)| number);
        Divided { group: &self.record, number, quarantined }
    }

    pub(crate) fn units(&self) -> &Arc<Units> {
        &self.units
    }

    /// By what the device's ledger knows the group, and its units; `None` for a part of another group.
    pub(crate) fn entry(&self) -> Option<(GroupNumber, &[usize])> {
        match self.hold {
            Hold::Ledger(number) => Some((number, &self.record.placement.members)),
            Hold::Parent(..) => None,
        }
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.record.placement
    }

    pub(crate) fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Adds what still runs on the group's SMs.
    pub(crate) fn add_fences(&mut self, more: impl IntoIterator<Item = Arc<Fence>>) {
        self.fences.add(self.device.driver(), more);
    }

    /// Takes everything out, and leaves a group of no SMs.
    fn take(&mut self) -> SmGroup {
        let members = mem::take(&mut self.record.placement.members);
        SmGroup {
            device: self.device.clone(),
            units: Arc::clone(&self.units),
            record: GroupUnits {
                sms: self.record.sms.clone(),
                placement: Placement { cut: self.record.placement.cut.clone(), members },
                pool: mem::take(&mut self.record.pool),
            },
            priority: self.priority,
            fences: mem::take(&mut self.fences),
            hold: self.hold.clone(),
        }
    }

    /// Gives the SMs back to whoever accounts for them, but to no floor until the work of certain
    /// contexts could be recorded.
    pub(crate) fn quarantine(&mut self, contexts: Vec<Stuck>) {
        let members = mem::take(&mut self.record.placement.members);
        let fences = mem::take(&mut self.fences);
        let state = self.device.state();
        match &self.hold {
            Hold::Ledger(group) => {
                let Ok(mut ledger) = self.device.ledger() else { return };
                let (ended, members) = ledger.quarantine(*group, &members);
                drop(ledger);
                drop(ended);
                state.quarantine.add(Case { contexts, members, fences });
            }
            Hold::Parent(parent, number) => {
                parent.take_back(*number, &members);
                parent.quarantine(contexts, &fences);
            }
        }
    }

    /// Whether somebody accounts for both groups, so that they never have the same units.
    pub(crate) fn has_account_of(&self, other: &SmGroup) -> bool {
        match (&self.hold, &other.hold) {
            (Hold::Ledger(_), Hold::Ledger(_)) => true,
            (Hold::Parent(own, Some(_)), Hold::Parent(others, Some(_))) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }

    /// Adds the floor of another group of the same account, which ends. Neither shares anything.
    pub(crate) fn absorb(&mut self, mut other: SmGroup) {
        let mut members = mem::take(&mut other.record.placement.members);
        let ended = match (&self.hold, &other.hold) {
            (Hold::Ledger(into), Hold::Ledger(from)) => {
                let Ok(mut ledger) = self.device.ledger() else { return };
                ledger.join(*into, *from, &members)
            }
            (Hold::Parent(parent, Some(into)), Hold::Parent(_, Some(from))) => {
                parent.account.lock().join(*into, *from, &members)
            }
            _ => unreachable!("they have one account"),
        };
        drop(ended);
        self.record.placement.members.append(&mut members);
        self.record.placement.members.sort_unstable();
        let sms = &mut self.record.sms;
        sms.sm_count += other.sm_count();
        sms.floor += other.floor();
        sms.share = Share::from(sms.sm_count);
        self.add_fences(other.fences.as_slice().iter().cloned());
    }

    /// Hands units of the floor over to smaller groups. Returns what each of them waits for, and who
    /// accounts for each. Nothing can fail any more; what none of them gets goes back.
    pub(crate) fn hand_over(mut self, chosen: &[GroupUnits]) -> (Fences, Vec<Hold>) {
        let is_chosen =
            |index: &usize| chosen.iter().any(|group| group.placement.members.contains(index));
        let holds = match &self.hold {
            Hold::Ledger(own) => {
                let Ok(mut ledger) = self.device.ledger() else {
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
        // What is left goes back when `self` is dropped.
        self.record.placement.members.retain(|index| !is_chosen(index));
        (self.fences.clone(), holds)
    }
}

impl Drop for SmGroup {
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
                    // It may be long until a floor takes the SMs.
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

/// A group that others were split out of.
pub(crate) struct Parent {
    group: SmGroup,
    /// The context that the driver split, if it did.
    context: Option<RawGreen>,
    /// Which child has which of its units, where all have theirs at the same time.
    account: Mutex<Ledger<Arc<Fence>, RawGreen>>,
    /// What still ran on the SMs of the children that are gone.
    fences: Mutex<Vec<Arc<Fence>>>,
    /// The contexts of children that are gone whose work could not be recorded.
    stuck: Mutex<Vec<Tried>>,
}

/// A context whose work could not be recorded.
struct Tried {
    context: Stuck,
    /// Whether a thread tries it again at the moment.
    is_tried: bool,
}

impl Parent {
    /// A group that the driver split in a context that was made for it.
    pub(crate) fn split_in(group: SmGroup, context: RawGreen) -> Arc<Parent> {
        Parent::new(group, Some(context))
    }

    /// A group to be divided more than once, whose parts may share SMs with each other.
    pub(crate) fn of(group: SmGroup) -> Arc<Parent> {
        Parent::new(group, None)
    }

    fn new(group: SmGroup, context: Option<RawGreen>) -> Arc<Parent> {
        let (account, fences, stuck) = Default::default();
        Arc::new(Parent { group, context, account, fences, stuck })
    }

    /// Enters what was chosen for a child. Returns by what the account knows it.
    pub(crate) fn enter(&self, units: &Units, child: &GroupUnits) -> GroupNumber {
        self.account.lock().take(units.counts(), child).group
    }

    fn hand_over(&self, from: GroupNumber, to: &GroupUnits) -> GroupNumber {
        let (group, ended) = self.account.lock().hand_over(from, to);
        drop(ended);
        group
    }

    /// Takes a child's units out of the account.
    fn take_back(&self, child: Option<GroupNumber>, members: &[usize]) {
        if let Some(child) = child {
            let ended = self.account.lock().give_back(child, members, &[]);
            drop(ended);
        }
    }

    pub(crate) fn group(&self) -> &SmGroup {
        &self.group
    }

    /// What still runs on the group's SMs: from before the group was taken, and of children that are
    /// gone.
    pub(crate) fn fences(&self) -> Fences {
        let gone = self.fences.lock().clone();
        self.group.fences().with(gone)
    }

    /// The group as it was, if nobody else divides it and no work on its SMs is unknown.
    pub(crate) fn into_group(self: Arc<Parent>) -> Option<SmGroup> {
        let mut parent = Arc::into_inner(self)?;
        debug_assert!(parent.context.is_none());
        if !parent.retry_quarantine().is_empty() {
            return None;
        }
        parent.group.add_fences(mem::take(parent.fences.get_mut()));
        Some(parent.group.take())
    }

    /// Takes the fences of a child that goes, and lets go of those that are done.
    fn leave(&self, fences: &Fences) {
        self.add_fences(fences.as_slice());
        let known = self.fences.lock().clone();
        // Asked without the lock, and while all are still in the list: whoever takes SMs meanwhile
        // waits for them.
        let mut running = Fences::gather(&known);
        running.settle(self.group.device.driver());
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

    /// Takes the contexts of a child that goes, whose work could not be recorded.
    fn quarantine(&self, contexts: Vec<Stuck>, fences: &Fences) {
        let tried = contexts.into_iter().map(|context| Tried { context, is_tried: false });
        self.stuck.lock().extend(tried);
        self.leave(fences);
    }

    /// Tries again to record the work of contexts for which that has failed. Returns the units of
    /// those for which it still does.
    pub(crate) fn retry_quarantine(&self) -> Vec<usize> {
        let again: Vec<Stuck> = {
            let mut stuck = self.stuck.lock();
            let waiting = stuck.iter_mut().filter(|stuck| !stuck.is_tried);
            waiting
                .map(|stuck| {
                    stuck.is_tried = true;
                    stuck.context.clone()
                })
                .collect()
        };
        for context in again {
            let recorded = record_again(self.group.device(), &context);
            // The fence first: at each moment there is one of them for whoever takes SMs.
            if let Ok(Some(fence)) = &recorded {
                self.add_fences(slice::from_ref(fence));
            }
            let mut stuck = self.stuck.lock();
            let address = context.raw.green.address();
            let same = |stuck: &Tried| stuck.context.raw.green.address() == address;
            let Some(index) = stuck.iter().position(same) else { continue };
            let ended = match recorded {
                Ok(_) => Some(stuck.remove(index)),
                Err(Unrecorded) => {
                    stuck[index].is_tried = false;
                    None
                }
            };
            drop(stuck);
            drop(ended);
        }
        let stuck = self.stuck.lock();
        stuck.iter().flat_map(|stuck| &stuck.context.placement.members).copied().collect()
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let device = self.group.device().clone();
        if device.driver().is_forked() {
            return;
        }
        if !self.stuck.get_mut().is_empty() {
            self.retry_quarantine();
        }
        self.group.add_fences(mem::take(self.fences.get_mut()));
        // The context first: whoever gets the SMs next shall find it.
        if let Some(context) = self.context {
            green::leave(&device, context, self.group.placement(), None, self.group.sm_count());
        }
        let stuck = mem::take(self.stuck.get_mut());
        if !stuck.is_empty() {
            self.group.quarantine(stuck.into_iter().map(|stuck| stuck.context).collect());
        }
    }
}

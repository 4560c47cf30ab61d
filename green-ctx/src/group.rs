//! SMs owned: what a split gives, to become a partition or to be split further.

use std::fmt;
use std::mem;
use std::slice;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::Device;
use crate::fence::{Fence, Fences};
use crate::green::{self, RawGreen};
use crate::ledger::{Chosen, Origin, Placement};
use crate::quarantine::{Case, Stuck, record_again};
use crate::units::Units;

/// SMs of a device that are this object's alone. It becomes a partition with
/// [`Device::create_context`], and returns its SMs when dropped.
///
/// It cannot be cloned, and making a context moves it: no two contexts get the same SMs. Neither of
/// these compiles:
///
/// ```compile_fail,E0382
/// # fn both(device: &green_ctx::Device, group: green_ctx::SmGroup) -> green_ctx::Result<()> {
/// let first = device.create_context(group)?;
/// let second = device.create_context(group)?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0308
/// fn copy(group: &green_ctx::SmGroup) -> green_ctx::SmGroup {
///     group.clone()
/// }
/// ```
pub struct SmGroup {
    device: Device,
    units: Arc<Units>,
    placement: Placement,
    name: Arc<str>,
    origin: Origin,
    sm_count: u32,
    /// What still ran on these SMs when they were taken.
    fences: Fences,
    hold: Hold,
}

/// Who accounts for a group's SMs.
#[derive(Clone)]
pub(crate) enum Hold {
    /// The device's ledger, which gets the units back.
    Ledger,
    /// Nobody: an overlapping group just uses them.
    Shared,
    /// The group that it was split out of, which is held until its last child is gone.
    Parent(Arc<Parent>),
}

impl SmGroup {
    pub(crate) fn new(
        device: Device,
        units: Arc<Units>,
        chosen: Chosen,
        fences: Fences,
        hold: Hold,
    ) -> SmGroup {
        let Chosen { name, origin, sm_count, placement } = chosen;
        SmGroup { device, units, placement, name, origin, sm_count, fences, hold }
    }

    /// The device that the SMs are of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The group's name: that of the request, or `p0`, `p1`, … for a list of counts.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The SMs that were asked for; `None` for what remained, or for as many as there were.
    #[must_use]
    pub fn requested(&self) -> Option<u32> {
        match self.origin {
            Origin::Requested(requested) => requested,
            Origin::Remainder => None,
        }
    }

    /// Whether the group's SMs are its own; those of an overlapping one may be anybody's.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        match &self.hold {
            Hold::Ledger => true,
            Hold::Shared => false,
            Hold::Parent(parent) => parent.group().is_owned(),
        }
    }

    /// The SMs that the group has.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.sm_count
    }

    pub(crate) fn units(&self) -> &Arc<Units> {
        &self.units
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
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
        let members = mem::take(&mut self.placement.members);
        SmGroup {
            device: self.device.clone(),
            units: Arc::clone(&self.units),
            placement: Placement { cut: self.placement.cut.clone(), members },
            name: Arc::clone(&self.name),
            origin: self.origin,
            sm_count: self.sm_count,
            fences: mem::take(&mut self.fences),
            hold: self.hold.clone(),
        }
    }

    /// Gives the SMs back to whoever accounts for them, but not to be used until the work of certain
    /// contexts could be recorded.
    pub(crate) fn quarantine(&mut self, contexts: Vec<Stuck>) {
        let (cut, members) = (self.placement.cut.clone(), mem::take(&mut self.placement.members));
        let placement = Placement { cut, members };
        let fences = mem::take(&mut self.fences);
        let state = self.device.state();
        let held = match &self.hold {
            Hold::Ledger => {
                let names = state.ledger.lock().quarantine(&placement.members);
                drop(names);
                true
            }
            Hold::Shared => {
                // Whoever has the SMs waits for what is known now, and for the rest once it is.
                state.ledger.lock().leave_fences(&placement, fences.as_slice());
                false
            }
            Hold::Parent(parent) => return parent.quarantine(contexts, &fences),
        };
        state.quarantine.add(Case { contexts, placement, held, fences });
    }

    /// Hands units over to smaller groups. Returns what each of them waits for, and who accounts for
    /// it. Nothing can fail any more; what none of them gets goes back.
    pub(crate) fn hand_over(mut self, chosen: &[Chosen]) -> (Fences, Hold) {
        let is_chosen =
            |index: &usize| chosen.iter().any(|group| group.placement.members.contains(index));
        if let Hold::Ledger = self.hold {
            let mut ledger = self.device.state().ledger.lock();
            let former: Vec<_> = chosen.iter().map(|group| ledger.rename(group)).collect();
            drop(ledger);
            drop(former);
        }
        // What is left goes back when `self` is dropped.
        self.placement.members.retain(|index| !is_chosen(index));
        (self.fences.clone(), self.hold.clone())
    }
}

impl Drop for SmGroup {
    fn drop(&mut self) {
        if self.placement.members.is_empty() || self.device.driver().is_forked() {
            return;
        }
        self.fences.settle(self.device.driver());
        let (ledger, fences) = (&self.device.state().ledger, self.fences.as_slice());
        match &self.hold {
            Hold::Shared if fences.is_empty() => {}
            Hold::Shared => {
                ledger.lock().leave_fences(&self.placement, fences);
                // It may be long until somebody takes the SMs.
                self.device.settle_fences();
            }
            Hold::Ledger => {
                let names = ledger.lock().give_back(&self.placement.members, fences);
                drop(names);
            }
            Hold::Parent(parent) => parent.leave(&self.fences),
        }
    }
}

impl fmt::Debug for SmGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmGroup")
            .field("name", &self.name)
            .field("requested", &self.requested())
            .field("sm_count", &self.sm_count)
            .finish_non_exhaustive()
    }
}

/// A group that others were split out of.
pub(crate) struct Parent {
    group: SmGroup,
    /// The context that the driver split, if it did.
    context: Option<RawGreen>,
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
        let (fences, stuck) = Default::default();
        Arc::new(Parent { group, context, fences, stuck })
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
                Err(_) => {
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

//! SMs owned: what a split gives, to become a partition or to be split further.

use std::fmt;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::Device;
use crate::green::{self, RawGreen};
use crate::ledger::{Chosen, Location, Origin};
use crate::resource::fence::{Fence, Fences};
use crate::units::Units;

/// SMs of a device that are this object's alone. It becomes a partition with
/// [`Device::create_context`], and returns its SMs when dropped.
///
/// It cannot be cloned, and making a context moves it: no two contexts get the same SMs.
///
/// ```compile_fail,E0382
/// # fn both(device: &green_ctx::Device, group: green_ctx::SmGroup) -> green_ctx::Result<()> {
/// let first = device.create_context(group)?;
/// let second = device.create_context(group)?;
/// # Ok(())
/// # }
/// ```
pub struct SmGroup {
    device: Device,
    units: Arc<Units>,
    location: Location,
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
        let Chosen { name, origin, sm_count, location } = chosen;
        SmGroup { device, units, location, name, origin, sm_count, fences, hold }
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

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    pub(crate) fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Adds what still runs on the group's SMs.
    pub(crate) fn add_fences(&mut self, more: impl IntoIterator<Item = Arc<Fence>>) {
        self.fences.add(self.device.driver(), more);
    }

    /// Hands units over to smaller groups. Returns what each of them waits for, and who accounts for
    /// it. Nothing can fail any more; what none of them gets goes back.
    pub(crate) fn hand_over(mut self, chosen: &[Chosen]) -> (Fences, Hold) {
        let is_chosen =
            |index: &usize| chosen.iter().any(|group| group.location.members.contains(index));
        if let Hold::Ledger = self.hold {
            let mut ledger = self.device.state().ledger.lock();
            let former: Vec<_> = chosen.iter().map(|group| ledger.rename(group)).collect();
            drop(ledger);
            drop(former);
        }
        // What is left goes back when `self` is dropped.
        self.location.members.retain(|index| !is_chosen(index));
        (self.fences.clone(), self.hold.clone())
    }
}

impl Drop for SmGroup {
    fn drop(&mut self) {
        if self.location.members.is_empty() || self.device.driver().is_forked() {
            return;
        }
        match &self.hold {
            Hold::Shared => {}
            Hold::Ledger => {
                self.fences.settle(self.device.driver());
                let state = self.device.state();
                let names =
                    state.ledger.lock().give_back(&self.location.members, self.fences.as_slice());
                drop(names);
            }
            Hold::Parent(parent) => {
                self.fences.settle(self.device.driver());
                parent.leave(mem::take(&mut self.fences));
            }
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
}

impl Parent {
    /// A group that the driver split in a context that was made for it.
    pub(crate) fn split_in(group: SmGroup, context: RawGreen) -> Arc<Parent> {
        Arc::new(Parent { group, context: Some(context), fences: Mutex::default() })
    }

    /// A group to be divided more than once, whose parts may share SMs with each other.
    pub(crate) fn of(group: SmGroup) -> Arc<Parent> {
        Arc::new(Parent { group, context: None, fences: Mutex::default() })
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

    /// Takes the fences of a child that goes, and lets go of those that are done.
    fn leave(&self, fences: Fences) {
        let known = {
            let mut all = self.fences.lock();
            for fence in fences.as_slice() {
                if !all.contains(fence) {
                    all.push(Arc::clone(fence));
                }
            }
            all.clone()
        };
        // Asked without the lock, and while all are still in the list: whoever takes SMs meanwhile
        // waits for them.
        let mut running = Fences::gather(&known);
        running.settle(self.group.device.driver());
        let is_done =
            |fence: &mut Arc<Fence>| known.contains(fence) && !running.as_slice().contains(fence);
        let done: Vec<_> = self.fences.lock().extract_if(.., is_done).collect();
        drop(done);
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let device = self.group.device().clone();
        if device.driver().is_forked() {
            return;
        }
        self.group.add_fences(mem::take(self.fences.get_mut()));
        // The context first: whoever gets the SMs next shall find it.
        if let Some(context) = self.context {
            green::leave(&device, context, self.group.location(), None, self.group.sm_count());
        }
    }
}

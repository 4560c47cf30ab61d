//! User objects: resources that a program attaches to graphs. The destructor of a user object runs when the
//! last reference is dropped.
//!
//! A graph holds references to its user objects. A clone, a child graph or an executable graph made from
//! the graph holds references to them too. A destroyed executable graph holds its references until its
//! launches have ended (CUDA programming guide, "CUDA User Objects"; not recorded).

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Weak};

use green_ctx_sys::{CUgraph_st, CUhostFn};
use parking_lot::Mutex;

use crate::callback::Callback;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, valid};
use crate::state::State;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, a flag that every caller must pass.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

/// A user object, which lives as long as references to it exist.
pub(crate) struct UserObject {
    destructor: Callback,
    unheld: Unheld,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        self.unheld.lock().push(self.destructor.clone());
    }
}

/// The destructors of user objects that no longer have references.
pub(crate) type Unheld = Arc<Mutex<Vec<Callback>>>;

/// A user object, with the references that the program holds.
pub(crate) struct Known {
    object: Weak<UserObject>,
    /// The program's reference; `None` once `count` is 0.
    own: Option<Arc<UserObject>>,
    count: u32,
}

/// The references that a graph holds, by the handle of the user object.
#[derive(Clone, Default)]
pub(crate) struct Held(BTreeMap<usize, (Arc<UserObject>, u32)>);

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Refuses a number of references that is 0 or does not fit in an `int`.
fn check(count: u32) -> Answer {
    invalid_if(!i32::try_from(count).is_ok_and(|count| count > 0))
}

impl State {
    /// Returns a user object that still has references.
    fn user_object(&self, handle: usize) -> Answer<Arc<UserObject>> {
        let known = self.user_objects.get(&handle);
        valid(known.and_then(|known| known.object.upgrade()))
    }

    /// Releases `count` of the references that the program holds.
    fn take_own(&mut self, handle: usize, count: u32) -> Answer {
        let known = valid(self.user_objects.get_mut(&handle))?;
        known.count = valid(known.count.checked_sub(count))?;
        if known.count == 0 {
            known.own = None;
        }
        Ok(())
    }

    /// Returns the destructors that are due, and forgets the destroyed objects.
    pub(crate) fn take_unheld(&mut self) -> Vec<Callback> {
        let unheld = std::mem::take(&mut *self.unheld.lock());
        if !unheld.is_empty() {
            self.user_objects.retain(|_, known| known.object.strong_count() > 0);
        }
        unheld
    }
}

/// Creates a user object. The destructor runs at the end of the call that drops the last reference. If
/// launches of a destroyed executable graph still hold references, the destructor runs at the end of the
/// call in which simulated time reaches the end of these launches.
pub(crate) fn create(
    driver: &Driver,
    out: Ptr<*mut c_void>,
    data: Ptr<c_void>,
    destroy: CUhostFn,
    count: u32,
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    check(count)?;
    let destroy = valid(destroy)?;
    invalid_if(flags != NO_DESTRUCTOR_SYNC)?;
    driver.expect_callbacks();
    let destructor = Callback::destructor(destroy, data);
    let object = Arc::new(UserObject { destructor, unheld: Arc::clone(&state.unheld) });
    let handle = handle::next();
    let known = Known { object: Arc::downgrade(&object), own: Some(object), count };
    state.user_objects.insert(handle, known);
    out.write(handle::pointer(handle))
}

pub(crate) fn release(driver: &Driver, object: Ptr<c_void>, count: u32) -> Answer {
    let mut state = driver.state();
    check(count)?;
    state.take_own(object.address(), count)
}

pub(crate) fn retain_from_graph(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    object: Ptr<c_void>,
    count: u32,
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    check(count)?;
    invalid_if(flags & !MOVE != 0)?;
    state.graph(graph.address())?;
    let held = state.user_object(object.address())?;
    if flags == MOVE {
        state.take_own(object.address(), count)?;
    }
    let Some(graph) = state.graphs.get_mut(&graph.address()) else { return Ok(()) };
    let (_, references) = graph.objects.0.entry(object.address()).or_insert((held, 0));
    *references = references.saturating_add(count);
    Ok(())
}

/// Releases references that a graph holds. If the graph has no references to the object, the call does
/// nothing and succeeds (recorded on hardware).
pub(crate) fn release_from_graph(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    object: Ptr<c_void>,
    count: u32,
) -> Answer {
    let mut state = driver.state();
    check(count)?;
    state.user_object(object.address())?;
    let graph = valid(state.graphs.get_mut(&graph.address()))?;
    if let Some((_, references)) = graph.objects.0.get_mut(&object.address()) {
        let left = references.checked_sub(count);
        *references = valid(left)?;
    }
    graph.objects.0.retain(|_, (_, references)| *references > 0);
    Ok(())
}

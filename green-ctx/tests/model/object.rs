//! A driver, and objects that stand for its handles as this crate's contexts, streams and events do.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::{Arc, pause};
use crate::registry::Registry;

/// The registry, or a copy with a mistake in one method.
pub(crate) trait Table: Send + Sync {
    fn find(&self, address: usize) -> Option<Arc<Object>>;
    fn enter(&self, address: usize, object: &Arc<Object>);
    fn get_or_enter(
        &self,
        address: usize,
        object: Arc<Object>,
    ) -> (Arc<Object>, Option<Arc<Object>>);
    fn forget(&self, address: usize, object: *const Object);
    fn seclude(&self, address: usize, object: &Arc<Object>) -> bool;
    fn len(&self) -> usize;

    /// Enters an object again that was secluded and could not be closed, as `Context::close` does.
    fn put_back(&self, address: usize, object: Arc<Object>) -> Arc<Object> {
        // Another thread may have come with the handle meanwhile.
        let (object, late) = self.get_or_enter(address, object);
        drop(late);
        object
    }
}

impl Table for Registry<Object> {
    fn find(&self, address: usize) -> Option<Arc<Object>> {
        self.find(address)
    }

    fn enter(&self, address: usize, object: &Arc<Object>) {
        self.enter(address, object);
    }

    fn get_or_enter(
        &self,
        address: usize,
        object: Arc<Object>,
    ) -> (Arc<Object>, Option<Arc<Object>>) {
        self.get_or_enter(address, object)
    }

    fn forget(&self, address: usize, object: *const Object) {
        self.forget(address, object);
    }

    fn seclude(&self, address: usize, object: &Arc<Object>) -> bool {
        self.seclude(address, object, 1)
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// What an object's drop does first.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum First {
    Forget,
    Destroy,
}

/// All that the threads of one run share.
pub(crate) struct World {
    table: Box<dyn Table>,
    first: First,
    /// The driver's living handles. A lock of the system: threads never change over under it.
    living: std::sync::Mutex<BTreeSet<usize>>,
    /// The handles that somebody has an object for, with the object's place.
    held: std::sync::Mutex<Vec<(usize, usize)>>,
}

pub(crate) type SharedWorld = std::sync::Arc<World>;

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics under the lock")
}

impl World {
    pub(crate) fn new(table: Box<dyn Table>, first: First) -> SharedWorld {
        let (living, held) = Default::default();
        std::sync::Arc::new(World { table, first, living, held })
    }

    /// The driver's call that makes a handle. A freed address is given out again at once.
    fn create_raw(&self) -> usize {
        pause();
        let mut living = lock(&self.living);
        let address = (1..).find(|address| !living.contains(address)).expect("there are enough");
        living.insert(address);
        address
    }

    /// The driver's call that destroys a handle.
    fn destroy_raw(&self, address: usize) {
        pause();
        let lived = lock(&self.living).remove(&address);
        assert!(lived, "a handle was destroyed twice");
    }

    /// As `Context::create_stream`.
    pub(crate) fn create(self: &SharedWorld) -> Handle {
        let address = self.create_raw();
        Handle::new(Arc::new(Object::new(address, false, Ownership::Owned, self)))
    }

    /// As `Driver::find_stream`.
    pub(crate) fn find(&self, address: usize) -> Option<Handle> {
        self.table.find(address).map(Handle::new)
    }

    /// As `Stream::from_raw_borrowed`.
    pub(crate) fn adopt(self: &SharedWorld, owner: Owner) -> Handle {
        let address = owner.address;
        if let Some(found) = self.find(address) {
            return found;
        }
        let fresh = Object::new(address, true, Ownership::Borrowed { _owner: owner }, self);
        let (object, late) = self.table.get_or_enter(address, Arc::new(fresh));
        drop(late);
        Handle::new(object)
    }

    /// A handle that somebody else makes, and destroys when the owner's last copy goes.
    pub(crate) fn foreign(self: &SharedWorld) -> Owner {
        let address = self.create_raw();
        std::sync::Arc::new(Foreign { address, world: self.clone() })
    }

    /// What must hold when nobody has a handle any more.
    pub(crate) fn check_end(&self) {
        assert!(lock(&self.living).is_empty(), "a handle was never destroyed");
        assert_eq!(self.table.len(), 0, "entries of dead objects stay behind");
    }
}

pub(crate) struct Foreign {
    address: usize,
    world: SharedWorld,
}

pub(crate) type Owner = std::sync::Arc<Foreign>;

impl Drop for Foreign {
    fn drop(&mut self) {
        // After a failure nothing more is to be found out.
        if !std::thread::panicking() {
            self.world.destroy_raw(self.address);
        }
    }
}

/// As `stream::Inner` and `context::Inner`.
pub(crate) struct Object {
    address: usize,
    known: AtomicBool,
    ownership: std::sync::Mutex<Ownership>,
    world: SharedWorld,
}

/// Who destroys the handle.
enum Ownership {
    Owned,
    Borrowed { _owner: Owner },
}

impl Object {
    fn new(address: usize, known: bool, ownership: Ownership, world: &SharedWorld) -> Object {
        let (known, ownership) = (AtomicBool::new(known), std::sync::Mutex::new(ownership));
        Object { address, known, ownership, world: world.clone() }
    }

    fn forget(&mut self) {
        if *self.known.get_mut() {
            self.world.table.forget(self.address, self);
        }
    }

    fn destroy(&self) {
        if matches!(*lock(&self.ownership), Ownership::Owned) {
            self.world.destroy_raw(self.address);
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        match self.world.first {
            First::Forget => {
                self.forget();
                self.destroy();
            }
            First::Destroy => {
                self.destroy();
                self.forget();
            }
        }
    }
}

/// As `Stream` and `Context`: what users have.
pub(crate) struct Handle {
    /// Dropped first: who drops a handle has it no longer.
    held: Held,
    object: Arc<Object>,
}

struct Held {
    world: SharedWorld,
    address: usize,
    place: usize,
}

impl Held {
    /// Nobody has an object whose handle was destroyed.
    fn check_alive(&self) {
        let alive = lock(&self.world.living).contains(&self.address);
        assert!(alive, "somebody has an object of a destroyed handle");
    }

    fn check_one(&self) {
        let held = lock(&self.world.held);
        let one = held.iter().all(|(of, place)| *of != self.address || *place == self.place);
        drop(held);
        assert!(one, "two objects stand for one handle");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.check_alive();
        let mut held = lock(&self.world.held);
        if let Some(found) = held.iter().position(|held| *held == (self.address, self.place)) {
            held.swap_remove(found);
        }
    }
}

impl Handle {
    fn new(object: Arc<Object>) -> Handle {
        let (world, address) = (object.world.clone(), object.address);
        let place = Arc::as_ptr(&object).addr();
        lock(&world.held).push((address, place));
        let held = Held { world, address, place };
        held.check_alive();
        held.check_one();
        Handle { held, object }
    }

    /// As `Stream::as_raw`.
    pub(crate) fn as_raw(&self) -> usize {
        let object = &self.object;
        if !object.known.load(Ordering::Acquire) {
            object.world.table.enter(object.address, object);
            object.known.store(true, Ordering::Release);
        }
        object.address
    }

    /// What must hold while somebody has the object, and the handle was given out.
    pub(crate) fn check_found(&self) {
        let found = self.object.world.find(self.as_raw());
        let found = found.expect("the handle of a living object leads to nothing");
        assert!(Arc::ptr_eq(&found.object, &self.object), "the handle leads to another object");
    }

    /// As `Context::close`, where the driver can fail.
    pub(crate) fn close(self, fails: bool) -> Result<(), Handle> {
        let Handle { held, object } = self;
        drop(held);
        let (world, address) = (object.world.clone(), object.address);
        if !world.table.seclude(address, &object) {
            return Err(Handle::new(object));
        }
        if fails {
            return Err(Handle::new(world.table.put_back(address, object)));
        }
        // It goes here, and its handle with it.
        assert!(Arc::try_unwrap(object).is_ok(), "somebody has an object that is being closed");
        Ok(())
    }
}

impl Clone for Handle {
    fn clone(&self) -> Handle {
        Handle::new(self.object.clone())
    }
}

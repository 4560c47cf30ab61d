//! A model of the driver, and of the objects that wrap its handles as this crate's contexts, streams and events
//! do.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::{Arc, pause};
use crate::registry::{Registry, Step};

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
    fn alone(&self, step: Step, address: usize, object: &Arc<Object>) -> bool;
    fn len(&self) -> usize;

    /// Registers an object again after the driver has not released it, as the close of a primary context does.
    fn put_back(&self, address: usize, object: Arc<Object>) -> Arc<Object> {
        // Another thread may have adopted the handle in the meantime.
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

    fn alone(&self, step: Step, address: usize, object: &Arc<Object>) -> bool {
        self.alone(step, &[(address, object, 1)], || true)
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// The first step of an object's drop.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum First {
    Forget,
    Destroy,
}

/// State shared by the threads of one run.
pub(crate) struct World {
    table: Box<dyn Table>,
    first: First,
    /// The driver's live handles. A mutex of the standard library: the checker does not switch threads while it
    /// is locked.
    living: std::sync::Mutex<BTreeSet<usize>>,
    /// The address and the object of each handle that some thread has.
    held: std::sync::Mutex<Vec<(usize, usize)>>,
}

pub(crate) type SharedWorld = std::sync::Arc<World>;

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics under the lock")
}

impl World {
    pub(crate) fn new(table: Box<dyn Table>, first: First) -> SharedWorld {
        let (living, held) = Default::default();
        std::sync::Arc::new(World { table, first, living, held })
    }

    /// The driver call that creates a handle. It reuses a freed address immediately.
    fn create_raw(&self) -> usize {
        pause();
        let mut living = lock(&self.living);
        let address = (1..).find(|address| !living.contains(address)).expect("there are enough");
        living.insert(address);
        address
    }

    /// The driver call that destroys a handle.
    fn destroy_raw(&self, address: usize) {
        pause();
        let lived = lock(&self.living).remove(&address);
        assert!(lived, "a handle was destroyed twice");
    }

    /// Models `Context::create_stream`.
    pub(crate) fn create(self: &SharedWorld) -> Handle {
        let address = self.create_raw();
        Handle::new(Arc::new(Object::new(address, false, Ownership::Owned, self)))
    }

    /// Models `Driver::find_stream`.
    pub(crate) fn find(&self, address: usize) -> Option<Handle> {
        self.table.find(address).map(Handle::new)
    }

    /// Models `Stream::from_raw_borrowed`.
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

    /// Creates a foreign handle, which is destroyed when the last clone of its owner is dropped.
    pub(crate) fn foreign(self: &SharedWorld) -> Owner {
        let address = self.create_raw();
        std::sync::Arc::new(Foreign { address, world: self.clone() })
    }

    /// Checks the state after all handles are dropped.
    pub(crate) fn check_end(&self) {
        assert!(lock(&self.living).is_empty(), "a handle was never destroyed");
        assert_eq!(self.table.len(), 0, "entries of dropped objects remain");
    }
}

pub(crate) struct Foreign {
    address: usize,
    world: SharedWorld,
}

pub(crate) type Owner = std::sync::Arc<Foreign>;

impl Drop for Foreign {
    fn drop(&mut self) {
        // After a failure the remaining checks say nothing.
        if !std::thread::panicking() {
            self.world.destroy_raw(self.address);
        }
    }
}

/// Models `stream::Inner` and `context::Inner`.
pub(crate) struct Object {
    address: usize,
    known: AtomicBool,
    /// Set while work that was submitted with a handle may run.
    is_busy: AtomicBool,
    ownership: std::sync::Mutex<Ownership>,
    world: SharedWorld,
}

/// Who destroys the raw handle.
enum Ownership {
    Owned,
    Borrowed { _owner: Owner },
}

impl Object {
    fn new(address: usize, known: bool, ownership: Ownership, world: &SharedWorld) -> Object {
        let (known, ownership) = (AtomicBool::new(known), std::sync::Mutex::new(ownership));
        let is_busy = AtomicBool::new(false);
        Object { address, known, is_busy, ownership, world: world.clone() }
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

/// Models `Stream` and `Context`, the handles that users have.
pub(crate) struct Handle {
    /// The first field: the check must see the handle as gone before the object is dropped.
    held: Held,
    object: Arc<Object>,
}

struct Held {
    world: SharedWorld,
    address: usize,
    place: usize,
}

impl Held {
    /// Checks that the driver has not destroyed the handle.
    fn check_alive(&self) {
        let alive = lock(&self.world.living).contains(&self.address);
        assert!(alive, "a thread has an object whose handle was destroyed");
    }

    fn check_one(&self) {
        let held = lock(&self.world.held);
        let one = held.iter().all(|(of, place)| *of != self.address || *place == self.place);
        drop(held);
        assert!(one, "one handle has two objects");
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

    /// Models `Stream::as_raw`.
    pub(crate) fn as_raw(&self) -> usize {
        let object = &self.object;
        if !object.known.load(Ordering::Acquire) {
            object.world.table.enter(object.address, object);
            object.known.store(true, Ordering::Release);
        }
        object.address
    }

    /// Checks that the raw handle leads back to this object while the handle is alive.
    pub(crate) fn check_found(&self) {
        let found = self.object.world.find(self.as_raw());
        let found = found.expect("a live object is not found by its handle");
        assert!(Arc::ptr_eq(&found.object, &self.object), "the handle leads to another object");
    }

    /// Submits work, which runs until a close waits for it.
    pub(crate) fn submit(&self) {
        self.object.is_busy.store(true, Ordering::Release);
    }

    /// Models `Context::close`; `fails` makes the driver call fail.
    pub(crate) fn close(self, fails: bool) -> Result<(), Handle> {
        let Handle { held, object } = self;
        drop(held);
        let (world, address) = (object.world.clone(), object.address);
        if !world.table.alone(Step::Watch, address, &object) {
            return Err(Handle::new(object));
        }
        // The close waits for the work. In the meantime other threads may find the object.
        pause();
        object.is_busy.store(false, Ordering::Release);
        if !world.table.alone(Step::Remove, address, &object) {
            return Err(Handle::new(object));
        }
        let is_busy = object.is_busy.load(Ordering::Acquire);
        assert!(!is_busy, "a closed object has work that the close did not wait for");
        if fails {
            return Err(Handle::new(world.table.put_back(address, object)));
        }
        // `try_unwrap` drops the object here, which destroys its handle.
        assert!(Arc::try_unwrap(object).is_ok(), "a closing object has another owner");
        Ok(())
    }
}

impl Clone for Handle {
    fn clone(&self) -> Handle {
        Handle::new(self.object.clone())
    }
}

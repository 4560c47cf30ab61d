//! The registry: a map from raw handles to the objects that represent them.
//!
//! Contexts and graphs are entered when they are created. Streams and events are entered when their raw handle is first
//! given out, since no caller can look up a handle before that. Foreign handles are looked up and entered under one
//! lock (`get_or_enter`), so that each handle has one object.
//!
//! An object removes its own entry before its handle is destroyed, since the driver may reuse the address immediately.
//! A close removes the entry earlier, but only at the point at which it can no longer be refused: no other handle of
//! the object exists, and none was given out since the close began to wait for the object's work. `alone` checks this
//! under the lock. Without these checks, the raw handle of a context that stays open could be missing from the
//! registry, and a look-up would create a second object.
//!
//! The locks and reference counts come from the module `lock`, so that a model checker can run the same source.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

use rustc_hash::FxBuildHasher;

use super::lock::{Arc, Mutex, Weak};

/// A map from the addresses of raw handles to weak references to the objects that represent them. No driver call is
/// made, no `Arc` is dropped, and no foreign code runs while the lock is held.
pub(crate) struct Registry<T> {
    entries: Mutex<Entries<T>>,
}

struct Entries<T> {
    by_address: HashMap<usize, Entry<T>, FxBuildHasher>,
    /// The number of entries that were ever made.
    made: u64,
}

struct Entry<T> {
    object: Weak<T>,
    /// The number of entries that were made before this one.
    number: u64,
    /// Set when the object is found.
    is_found: bool,
}

/// A step of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// From now on, the registry notes whether the objects are found.
    Watch,
    /// If the objects were not found since the last `Watch`, their entries are removed.
    Remove,
}

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry { entries: Mutex::new(Entries { by_address: HashMap::default(), made: 0 }) }
    }
}

impl<T> Registry<T> {
    /// Returns the live object that represents a handle.
    pub(crate) fn find(&self, address: usize) -> Option<Arc<T>> {
        self.entries.lock().find(address)
    }

    /// Returns whether a handle has an entry. An entry counts even while the last reference to its object is being
    /// dropped.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.entries.lock().by_address.contains_key(&address)
    }

    /// Returns whether a handle has the entry of `object`.
    #[allow(dead_code, reason = "the model checker does not use it")]
    pub(crate) fn has(&self, address: usize, object: &Arc<T>) -> bool {
        self.entries.lock().own(address, Arc::as_ptr(object)).is_some()
    }

    /// Returns the handles in the order in which they were entered. The order of the map itself differs between runs.
    pub(crate) fn addresses(&self) -> Vec<usize> {
        let entries = self.entries.lock();
        let numbered = |(address, entry): (&usize, &Entry<T>)| (entry.number, *address);
        let mut addresses: Vec<_> = entries.by_address.iter().map(numbered).collect();
        drop(entries);
        addresses.sort_unstable();
        addresses.into_iter().map(|(_, address)| address).collect()
    }

    /// Adds an object under its handle. A previous entry can only belong to an object that is being dropped, since
    /// the driver reuses an address only after the handle is destroyed.
    pub(crate) fn enter(&self, address: usize, object: &Arc<T>) {
        let former = self.entries.lock().insert(address, object);
        drop(former);
    }

    /// Returns the live object that represents a handle. If there is none, enters and returns `object`. The look-up and
    /// the entry happen under one lock, so all callers with the same handle get the same object. If another object
    /// already represents the handle, `object` is returned as well, and the caller must drop `object`.
    pub(crate) fn get_or_enter(&self, address: usize, object: Arc<T>) -> (Arc<T>, Option<Arc<T>>) {
        let mut entries = self.entries.lock();
        if let Some(living) = entries.find(address) {
            drop(entries);
            return (living, Some(object));
        }
        let former = entries.insert(address, &object);
        drop(entries);
        drop(former);
        (object, None)
    }

    /// Takes a step of the close of several objects, each given with its address and the number of references that the
    /// caller holds. Returns false and changes nothing if another reference to one of them exists, if one was found
    /// since the last `Watch`, or if `and` returns false. `and` is called under the registry's lock, after these
    /// checks. It may lock another registry, but must take no lock under which this registry is locked.
    pub(crate) fn alone(
        &self,
        step: Step,
        objects: &[(usize, &Arc<T>, usize)],
        and: impl FnOnce() -> bool,
    ) -> bool {
        let mut entries = self.entries.lock();
        let removes = step == Step::Remove;
        // The lock is held, so no other thread can get a reference from the registry.
        let is_alone = |&(address, object, handles): &(usize, &Arc<T>, usize)| {
            let mut own = entries.own(address, Arc::as_ptr(object)).into_iter();
            Arc::strong_count(object) <= handles && !(removes && own.any(|entry| entry.is_found))
        };
        if !objects.iter().all(is_alone) {
            return false;
        }
        // Synchronises with the other threads' drops of their references, so their earlier writes are visible here.
        fence(Ordering::Acquire);
        if !and() {
            return false;
        }
        for &(address, object, _) in objects {
            if removes {
                entries.remove_own(address, Arc::as_ptr(object));
            } else if let Some(own) = entries.own(address, Arc::as_ptr(object)) {
                own.is_found = false;
            }
        }
        true
    }

    /// Returns the number of entries, including those of dead objects.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().by_address.len()
    }

    /// Removes the entry of `object`. If the entry belongs to another object, that entry stays: the driver may already
    /// have reused the address for a newer object.
    pub(crate) fn forget(&self, address: usize, object: *const T) {
        let removed = self.entries.lock().remove_own(address, object);
        drop(removed);
    }
}

impl<T> Entries<T> {
    fn find(&mut self, address: usize) -> Option<Arc<T>> {
        let entry = self.by_address.get_mut(&address)?;
        let object = entry.object.upgrade();
        entry.is_found |= object.is_some();
        object
    }

    /// Returns the entry of `object`, and not the entry of another object at this address.
    fn own(&mut self, address: usize, object: *const T) -> Option<&mut Entry<T>> {
        self.by_address.get_mut(&address).filter(|entry| Weak::as_ptr(&entry.object) == object)
    }

    /// Inserts an entry and returns the previous entry for the address. The caller must drop the previous entry after
    /// releasing the lock.
    fn insert(&mut self, address: usize, object: &Arc<T>) -> Option<Entry<T>> {
        let number = self.made;
        self.made += 1;
        let entry = Entry { object: Arc::downgrade(object), number, is_found: false };
        self.by_address.insert(address, entry)
    }

    fn remove_own(&mut self, address: usize, object: *const T) -> Option<Entry<T>> {
        self.own(address, object)?;
        self.by_address.remove(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock::{check, thread};
    use super::*;

    /// Takes both steps of a close.
    fn close(registry: &Registry<i32>, object: &Arc<i32>, handles: usize) -> bool {
        let alone = |step| registry.alone(step, &[(1, object, handles)], || true);
        alone(Step::Watch) && alone(Step::Remove)
    }

    #[test]
    fn an_object_is_found_while_it_lives() {
        check(|| {
            let registry = Registry::default();
            let object = Arc::new(7);
            registry.enter(1, &object);
            assert_eq!(registry.find(1).as_deref(), Some(&7));
            assert_eq!(registry.find(2), None);
            drop(object);
            assert_eq!(registry.find(1), None);
            assert!(registry.contains(1), "until it is forgotten");
        });
    }

    #[test]
    fn addresses_are_in_the_order_of_entering() {
        check(|| {
            let registry = Registry::default();
            let addresses = [900, 16, 5000, 32, 256, 48, 7];
            let objects: Vec<_> = addresses.into_iter().map(Arc::new).collect();
            objects.iter().for_each(|object| registry.enter(**object, object));
            assert_eq!(registry.addresses(), addresses);
            // A new object at a known address comes last.
            let again = Arc::new(16);
            registry.enter(16, &again);
            assert_eq!(registry.addresses(), [900, 5000, 32, 256, 48, 7, 16]);
            registry.forget(16, Arc::as_ptr(&again));
            assert!(!registry.contains(16));
        });
    }

    #[test]
    fn the_first_object_stays() {
        check(|| {
            let registry = Registry::default();
            let (first, late) = registry.get_or_enter(1, Arc::new(1));
            assert!(late.is_none());
            let (again, late) = registry.get_or_enter(1, Arc::new(2));
            assert!(Arc::ptr_eq(&first, &again));
            assert_eq!(late.as_deref(), Some(&2));
            // Dropping the late object keeps the first one's entry.
            registry.forget(1, late.as_ref().map_or(std::ptr::null(), Arc::as_ptr));
            assert!(registry.find(1).is_some());
            drop((first, again));
            let (next, late) = registry.get_or_enter(1, Arc::new(3));
            assert_eq!((*next, late), (3, None));
        });
    }

    /// A stream is entered when its handle is first given out, possibly by a clone on another thread.
    #[test]
    fn a_late_entry_is_gone_once_its_object_is_closed() {
        check(|| {
            let registry = Arc::new(Registry::default());
            let object = Arc::new(7);
            let (theirs, clone) = (Arc::clone(&registry), Arc::clone(&object));
            let other = thread::spawn(move || {
                theirs.enter(1, &clone);
                drop(clone);
            });
            if close(&registry, &object, 1) {
                assert_eq!(registry.find(1), None);
            }
            other.join().expect("it does not panic");
        });
    }

    /// A handle of a partition's stream can give out a handle of the stream's context.
    #[test]
    fn what_an_object_gives_out_is_counted_after_it() {
        check(|| {
            let registry = Arc::new(Registry::default());
            let context = Arc::new(2);
            let stream = Arc::new(Arc::clone(&context));
            registry.enter(1, &stream);
            let clone = Arc::clone(&stream);
            let other = thread::spawn(move || {
                let given = Arc::clone(&*clone);
                drop(clone);
                given
            });
            let is_alone = || Arc::strong_count(&context) == 2;
            let alone = registry.alone(Step::Remove, &[(1, &stream, 1)], is_alone);
            let given = other.join().expect("it does not panic");
            assert!(!alone, "the other thread has {}", *given);
            assert!(registry.find(1).is_some(), "nothing was removed");
        });
    }

    #[test]
    fn an_object_is_closed_by_the_thread_that_has_it_alone() {
        check(|| {
            let registry = Registry::default();
            let object = Arc::new(7);
            registry.enter(1, &object);
            let other = Arc::clone(&object);
            assert!(!close(&registry, &object, 1));
            assert!(registry.find(1).is_some());
            assert!(close(&registry, &object, 2));
            assert_eq!((registry.find(1), registry.len()), (None, 0));
            drop(other);
        });
    }

    /// A thread that found the object may have used it, even if it has dropped it again.
    #[test]
    fn an_object_that_is_found_during_a_close_stays() {
        check(|| {
            let registry = Registry::default();
            let (object, beside) = (Arc::new(7), Arc::new(8));
            registry.enter(1, &object);
            registry.enter(2, &beside);
            let alone = |step| registry.alone(step, &[(2, &beside, 1), (1, &object, 1)], || true);
            assert!(alone(Step::Watch));
            drop(registry.find(1));
            assert!(!alone(Step::Remove));
            assert!(registry.contains(1) && registry.contains(2), "nothing was removed");
            assert!(alone(Step::Watch) && alone(Step::Remove));
            assert_eq!(registry.len(), 0);
        });
    }
}

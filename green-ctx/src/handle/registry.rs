//! The registry: a map from raw handles to the objects that represent them.
//!
//! Contexts and graphs are entered when they are created. Streams and events are entered when their raw handle is first
//! given out, since no caller can look up a handle before that. Foreign handles are looked up and entered under one
//! lock (`get_or_enter`), so that each handle has one object.
//!
//! An object removes its own entry before its handle is destroyed, since the driver may reuse the address immediately.
//! A close removes the entry earlier, but only if no other handle of the object exists. `seclude` checks this under the
//! lock. Without that check, the raw handle of a context that stays open would be missing from the registry for a
//! moment, and a look-up in that moment would create a second object.
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

    /// Removes the entry of an object that is about to be closed, so that no thread can find the object. `handles` is
    /// the number of references that the caller holds. If other references exist, returns false and keeps the entry. If
    /// the object is not closed after all, [`get_or_enter`](Registry::get_or_enter) enters it again.
    pub(crate) fn seclude(&self, address: usize, object: &Arc<T>, handles: usize) -> bool {
        self.seclude_if(address, object, handles, || true)
    }

    /// Works like [`seclude`](Registry::seclude), but removes the entry only if `and` also returns true. `and` is
    /// called under the registry's lock, after the check that no other reference to the object exists. `and` may lock
    /// another registry, but must take no other lock.
    pub(crate) fn seclude_if(
        &self,
        address: usize,
        object: &Arc<T>,
        handles: usize,
        and: impl FnOnce() -> bool,
    ) -> bool {
        let mut entries = self.entries.lock();
        // The lock is held, so no other thread can get a reference from the registry.
        if Arc::strong_count(object) > handles {
            return false;
        }
        // Synchronises with the other threads' drops of their references, so their earlier writes are visible here.
        fence(Ordering::Acquire);
        if !and() {
            return false;
        }
        let removed = entries.remove_own(address, Arc::as_ptr(object));
        drop(entries);
        drop(removed);
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
    fn find(&self, address: usize) -> Option<Arc<T>> {
        self.by_address.get(&address).and_then(|entry| entry.object.upgrade())
    }

    /// Inserts an entry and returns the previous entry for the address. The caller must drop the previous entry after
    /// releasing the lock.
    fn insert(&mut self, address: usize, object: &Arc<T>) -> Option<Entry<T>> {
        let number = self.made;
        self.made += 1;
        self.by_address.insert(address, Entry { object: Arc::downgrade(object), number })
    }

    fn remove_own(&mut self, address: usize, object: *const T) -> Option<Entry<T>> {
        let own = |entry: &Entry<T>| Weak::as_ptr(&entry.object) == object;
        if self.by_address.get(&address).is_some_and(own) {
            self.by_address.remove(&address)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock::{check, thread};
    use super::*;

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

    /// Threads that enter the same handle at the same time all get the same object.
    #[test]
    fn threads_get_one_object() {
        check(|| {
            let registry = Registry::default();
            let come = |number| registry.get_or_enter(1, Arc::new(number)).0;
            let (here, there) = thread::scope(|scope| {
                let there = scope.spawn(|| come(1));
                (come(2), there.join().expect("no panic"))
            });
            assert!(Arc::ptr_eq(&here, &there));
        });
    }

    #[test]
    fn only_the_own_entry_is_forgotten() {
        check(|| {
            let registry = Registry::default();
            let (old, new) = (Arc::new(1), Arc::new(2));
            registry.enter(1, &old);
            // The driver reuses the address before the owner of the old object has removed its entry.
            registry.enter(1, &new);
            registry.forget(1, Arc::as_ptr(&old));
            assert_eq!(registry.find(1).as_deref(), Some(&2));
            registry.forget(1, Arc::as_ptr(&new));
            assert_eq!(registry.find(1), None);
            assert_eq!(registry.len(), 0);
        });
    }

    /// A stream is entered when its handle is first given out, possibly by a clone on another thread.
    #[test]
    fn a_late_entry_is_gone_once_its_object_is_secluded() {
        check(|| {
            let registry = Arc::new(Registry::default());
            let object = Arc::new(7);
            let (theirs, clone) = (Arc::clone(&registry), Arc::clone(&object));
            let other = thread::spawn(move || {
                theirs.enter(1, &clone);
                drop(clone);
            });
            if registry.seclude(1, &object, 1) {
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
            let alone = registry.seclude_if(1, &stream, 1, || Arc::strong_count(&context) == 2);
            let given = other.join().expect("it does not panic");
            assert!(!alone, "the other thread has {}", *given);
            assert!(registry.find(1).is_some(), "nothing was removed");
        });
    }

    #[test]
    fn an_object_is_secluded_by_whoever_has_it_alone() {
        check(|| {
            let registry = Registry::default();
            let object = Arc::new(7);
            registry.enter(1, &object);
            let other = Arc::clone(&object);
            assert!(!registry.seclude(1, &object, 1));
            assert!(registry.find(1).is_some());
            assert!(registry.seclude(1, &object, 2));
            assert_eq!((registry.find(1), registry.len()), (None, 0));
            drop(other);
            // The same object is entered again.
            let (again, late) = registry.get_or_enter(1, object);
            assert_eq!((registry.find(1), late), (Some(again), None));
        });
    }
}

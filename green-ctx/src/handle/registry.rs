//! The registry: a map from raw handles to the objects that represent them.
//!
//! Contexts and graphs are entered when they are made. Streams and events are entered when their raw handle
//! is first given out, since no caller can look up a handle before that. Foreign handles are looked up and
//! entered under one lock (`get_or_enter`), so that one handle has one object.
//!
//! An object removes its own entry before its handle is destroyed, since the driver may reuse the address at
//! once. A close removes the entry earlier, but only if no other handle exists (`seclude` checks that under
//! the lock). Otherwise the raw handle of a context that stays open would lead to nothing for a moment, and a
//! look-up in that moment would make a second object.
//!
//! The locks and reference counts come from the module `lock`, so that a model checker can run the same
//! source.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

use rustc_hash::FxBuildHasher;

use super::lock::{Arc, Mutex, Weak};

/// Weak entries by address. The lock is short: no driver call, no drop of an `Arc` and no foreign
/// code happens under it.
pub(crate) struct Registry<T> {
    entries: Mutex<Entries<T>>,
}

struct Entries<T> {
    by_address: HashMap<usize, Entry<T>, FxBuildHasher>,
    /// How many entries were ever made.
    made: u64,
}

struct Entry<T> {
    object: Weak<T>,
    /// How many entries were made before it.
    number: u64,
}

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry { entries: Mutex::new(Entries { by_address: HashMap::default(), made: 0 }) }
    }
}

impl<T> Registry<T> {
    /// The living object behind a handle.
    pub(crate) fn find(&self, address: usize) -> Option<Arc<T>> {
        self.entries.lock().find(address)
    }

    /// Returns whether an object is entered under this handle, one whose last reference is going included.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.entries.lock().by_address.contains_key(&address)
    }

    /// The handles, in the order in which the objects were entered. The map's order differs from run to run.
    pub(crate) fn addresses(&self) -> Vec<usize> {
        let entries = self.entries.lock();
        let numbered = |(address, entry): (&usize, &Entry<T>)| (entry.number, *address);
        let mut addresses: Vec<_> = entries.by_address.iter().map(numbered).collect();
        drop(entries);
        addresses.sort_unstable();
        addresses.into_iter().map(|(_, address)| address).collect()
    }

    /// Enters an object under its handle. An older entry can only be that of an object that is
    /// being dropped, since the driver gives an address out again only after its destruction.
    pub(crate) fn enter(&self, address: usize, object: &Arc<T>) {
        let former = self.entries.lock().insert(address, object);
        drop(former);
    }

    /// The living object of a handle, or else this one, entered. Looked up and entered under one
    /// lock, so that all who come with the same handle get the same object. Where this object was
    /// too late it is given back beside the other, to be dropped by the caller.
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

    /// Removes the entry of an object that is about to be closed, so that it is no longer found. Returns false and leaves
    /// the entry as it was if handles other than the caller's, of which there are `handles`, exist. An object that is not closed after all is entered again by [`get_or_enter`](Registry::get_or_enter).
    pub(crate) fn seclude(&self, address: usize, object: &Arc<T>, handles: usize) -> bool {
        self.seclude_if(address, object, handles, || true)
    }

    /// As [`seclude`](Registry::seclude), if something else holds too. It is asked once no other handle of the object
    /// exists or can be found, under the lock: it may take another registry's, and no more.
    pub(crate) fn seclude_if(
        &self,
        address: usize,
        object: &Arc<T>,
        handles: usize,
        and: impl FnOnce() -> bool,
    ) -> bool {
        let mut entries = self.entries.lock();
        // Under the lock, where no other thread gets a handle from here.
        if Arc::strong_count(object) > handles {
            return false;
        }
        // What other threads did before they dropped their handles is seen from here.
        fence(Ordering::Acquire);
        if !and() {
            return false;
        }
        let removed = entries.remove_own(address, Arc::as_ptr(object));
        drop(entries);
        drop(removed);
        true
    }

    /// How many entries there are, those of objects that are gone included.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().by_address.len()
    }

    /// Removes an object's own entry, and nobody else's: the address may already be that of a newer
    /// object, whose entry must stay.
    pub(crate) fn forget(&self, address: usize, object: *const T) {
        let removed = self.entries.lock().remove_own(address, object);
        drop(removed);
    }
}

impl<T> Entries<T> {
    fn find(&self, address: usize) -> Option<Arc<T>> {
        self.by_address.get(&address).and_then(|entry| entry.object.upgrade())
    }

    /// Gives back the entry that was there, to be dropped outside of the lock.
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
            // A new object under an address comes last.
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
            // The late object's end leaves the entry of the first.
            registry.forget(1, late.as_ref().map_or(std::ptr::null(), Arc::as_ptr));
            assert!(registry.find(1).is_some());
            drop((first, again));
            let (next, late) = registry.get_or_enter(1, Arc::new(3));
            assert_eq!((*next, late), (3, None));
        });
    }

    /// Threads that come with one handle at the same time get one object.
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
            // The driver reuses the address before the old object's owner has got round to
            // forgetting.
            registry.enter(1, &new);
            registry.forget(1, Arc::as_ptr(&old));
            assert_eq!(registry.find(1).as_deref(), Some(&2));
            registry.forget(1, Arc::as_ptr(&new));
            assert_eq!(registry.find(1), None);
            assert_eq!(registry.len(), 0);
        });
    }

    /// A stream is entered when its handle is first given out, perhaps by a clone on another thread.
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

    /// A partition's stream gives out its context.
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
            // It is the same object that comes back.
            let (again, late) = registry.get_or_enter(1, object);
            assert_eq!((registry.find(1), late), (Some(again), None));
        });
    }
}

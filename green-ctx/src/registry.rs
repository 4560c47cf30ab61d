//! From a raw handle to the object that owns it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

/// Weak entries by address. The lock is short: no driver call, no drop of an `Arc` and no foreign
/// code happens under it.
pub(crate) struct Registry<T> {
    entries: Mutex<HashMap<usize, Weak<T>, FxBuildHasher>>,
}

impl<T> Registry<T> {
    pub(crate) fn new() -> Registry<T> {
        Registry { entries: Mutex::new(HashMap::default()) }
    }

    /// The living object behind a handle.
    pub(crate) fn find(&self, address: usize) -> Option<Arc<T>> {
        self.entries.lock().get(&address).and_then(Weak::upgrade)
    }

    /// Enters an object under its handle. An older entry can only be that of an object that is
    /// being dropped, since the driver gives an address out again only after its destruction.
    pub(crate) fn enter(&self, address: usize, object: &Arc<T>) {
        let former = self.entries.lock().insert(address, Arc::downgrade(object));
        drop(former);
    }

    /// Removes an object's own entry, and nobody else's: the address may already be that of a newer
    /// object, whose entry must stay.
    pub(crate) fn forget(&self, address: usize, object: *const T) {
        let mut entries = self.entries.lock();
        let own = entries.get(&address).is_some_and(|entry| Weak::as_ptr(entry) == object);
        let removed = if own { entries.remove(&address) } else { None };
        drop(entries);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_while_it_lives() {
        let registry = Registry::new();
        let object = Arc::new(7);
        registry.enter(1, &object);
        assert_eq!(registry.find(1).as_deref(), Some(&7));
        assert_eq!(registry.find(2), None);
        drop(object);
        assert_eq!(registry.find(1), None);
    }

    #[test]
    fn only_the_own_entry_is_forgotten() {
        let registry = Registry::new();
        let (old, new) = (Arc::new(1), Arc::new(2));
        registry.enter(1, &old);
        // The driver reuses the address before the old object's owner has got round to forgetting.
        registry.enter(1, &new);
        registry.forget(1, Arc::as_ptr(&old));
        assert_eq!(registry.find(1).as_deref(), Some(&2));
        registry.forget(1, Arc::as_ptr(&new));
        assert_eq!(registry.find(1), None);
    }
}

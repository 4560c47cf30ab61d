//! A copy of the registry in which one mistake can be enabled. The real registry must have none of them.

use std::collections::HashMap;

use crate::lock::{Arc, Mutex, Weak};
use crate::object::{Object, Table};
use crate::registry::Step;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mistake {
    /// `forget` removes the entry of any object.
    ErasesByAddress,
    /// `get_or_enter` looks up under one lock and inserts under another.
    TwoLocks,
    /// `find` drops an object under the lock.
    DropsUnderTheLock,
    /// `alone` removes the entry before it checks for other handles, and inserts it again if there are any.
    ForgetsBeforeItKnows,
    /// `alone` counts the handles before it takes the lock.
    TrustsTheCount,
    /// `alone` removes an object that was found while the close waited for its work.
    ForgetsWhatWasFound,
    /// `put_back` overwrites an entry that another thread inserted.
    EntersOver,
}

pub(crate) struct Broken {
    entries: Mutex<HashMap<usize, Entry>>,
    mistake: Option<Mistake>,
}

struct Entry {
    object: Weak<Object>,
    is_found: bool,
}

impl Entry {
    fn of(object: &Arc<Object>) -> Entry {
        Entry { object: Arc::downgrade(object), is_found: false }
    }

    fn find(&mut self) -> Option<Arc<Object>> {
        let object = self.object.upgrade();
        self.is_found |= object.is_some();
        object
    }
}

impl Broken {
    pub(crate) fn new(mistake: Option<Mistake>) -> Broken {
        Broken { entries: Mutex::new(HashMap::new()), mistake }
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

impl Table for Broken {
    fn find(&self, address: usize) -> Option<Arc<Object>> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(&address)?;
        if self.has(Mistake::DropsUnderTheLock) && entry.object.upgrade().is_none() {
            return None;
        }
        entry.find()
    }

    fn enter(&self, address: usize, object: &Arc<Object>) {
        self.entries.lock().insert(address, Entry::of(object));
    }

    fn get_or_enter(
        &self,
        address: usize,
        object: Arc<Object>,
    ) -> (Arc<Object>, Option<Arc<Object>>) {
        let mut entries = self.entries.lock();
        if let Some(living) = entries.get_mut(&address).and_then(Entry::find) {
            return (living, Some(object));
        }
        if self.has(Mistake::TwoLocks) {
            drop(entries);
            entries = self.entries.lock();
        }
        entries.insert(address, Entry::of(&object));
        (object, None)
    }

    fn forget(&self, address: usize, object: *const Object) {
        let mut entries = self.entries.lock();
        let own = entries.get(&address).is_some_and(|entry| Weak::as_ptr(&entry.object) == object);
        if own || self.has(Mistake::ErasesByAddress) {
            entries.remove(&address);
        }
    }

    fn alone(&self, step: Step, address: usize, object: &Arc<Object>) -> bool {
        if self.has(Mistake::ForgetsBeforeItKnows) {
            self.forget(address, Arc::as_ptr(object));
            let alone = Arc::strong_count(object) == 1;
            if !alone || step == Step::Watch {
                self.enter(address, object);
            }
            return alone;
        }
        let early = self.has(Mistake::TrustsTheCount).then(|| Arc::strong_count(object));
        let mut entries = self.entries.lock();
        if early.unwrap_or_else(|| Arc::strong_count(object)) > 1 {
            return false;
        }
        let own = |entry: &&mut Entry| Weak::as_ptr(&entry.object) == Arc::as_ptr(object);
        let Some(entry) = entries.get_mut(&address).filter(own) else { return true };
        if step == Step::Watch {
            entry.is_found = false;
        } else if entry.is_found && !self.has(Mistake::ForgetsWhatWasFound) {
            return false;
        } else {
            entries.remove(&address);
        }
        true
    }

    fn len(&self) -> usize {
        self.entries.lock().len()
    }

    fn put_back(&self, address: usize, object: Arc<Object>) -> Arc<Object> {
        if self.has(Mistake::EntersOver) {
            self.enter(address, &object);
            return object;
        }
        let (object, late) = self.get_or_enter(address, object);
        drop(late);
        object
    }
}

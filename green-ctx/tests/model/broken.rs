//! A copy of the registry that can have the mistakes that the shipped one must not have.

use std::collections::HashMap;

use crate::lock::{Arc, Mutex, Weak};
use crate::object::{Object, Table};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mistake {
    /// `forget` removes whatever is there.
    ErasesByAddress,
    /// `get_or_enter` looks up under one lock and enters under another.
    TwoLocks,
    /// `find` drops an object under the lock.
    DropsUnderTheLock,
    /// `take` removes the entry before it knows whether the object is anybody else's, and enters it
    /// again when it is.
    ForgetsBeforeItKnows,
    /// `take` is for an object that is somebody's alone, and does not see to it that it stays so.
    TrustsTheCount,
    /// `put_back` enters over what another thread entered.
    EntersOver,
}

pub(crate) struct Broken {
    entries: Mutex<HashMap<usize, Weak<Object>>>,
    mistake: Option<Mistake>,
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
        let entries = self.entries.lock();
        let entry = entries.get(&address)?;
        if self.has(Mistake::DropsUnderTheLock) && entry.upgrade().is_none() {
            return None;
        }
        entry.upgrade()
    }

    fn enter(&self, address: usize, object: &Arc<Object>) {
        self.entries.lock().insert(address, Arc::downgrade(object));
    }

    fn get_or_enter(
        &self,
        address: usize,
        object: Arc<Object>,
    ) -> (Arc<Object>, Option<Arc<Object>>) {
        let mut entries = self.entries.lock();
        if let Some(living) = entries.get(&address).and_then(Weak::upgrade) {
            return (living, Some(object));
        }
        if self.has(Mistake::TwoLocks) {
            drop(entries);
            entries = self.entries.lock();
        }
        entries.insert(address, Arc::downgrade(&object));
        (object, None)
    }

    fn forget(&self, address: usize, object: *const Object) {
        let mut entries = self.entries.lock();
        let own = entries.get(&address).is_some_and(|entry| Weak::as_ptr(entry) == object);
        if own || self.has(Mistake::ErasesByAddress) {
            entries.remove(&address);
        }
    }

    fn take(&self, address: usize, object: Arc<Object>) -> Result<Object, Arc<Object>> {
        let entry = Arc::downgrade(&object);
        if self.has(Mistake::ForgetsBeforeItKnows) {
            self.forget(address, entry.as_ptr());
            return Arc::try_unwrap(object).inspect_err(|shared| self.enter(address, shared));
        }
        if self.has(Mistake::TrustsTheCount) {
            if Arc::strong_count(&object) > 1 {
                return Err(object);
            }
            self.forget(address, entry.as_ptr());
            return Ok(object.move_out());
        }
        let object = Arc::try_unwrap(object)?;
        self.forget(address, entry.as_ptr());
        Ok(object)
    }

    fn len(&self) -> usize {
        self.entries.lock().len()
    }

    fn put_back(&self, address: usize, object: Object) -> Arc<Object> {
        let object = Arc::new(object);
        if self.has(Mistake::EntersOver) {
            self.enter(address, &object);
            return object;
        }
        let (object, late) = self.get_or_enter(address, object);
        drop(late);
        object
    }
}

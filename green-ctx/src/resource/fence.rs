//! Fences: what has to be done before SMs that were given back are really free.

use std::sync::Arc;

use crate::capture::Relaxed;
use crate::driver::Driver;
use crate::error::Result;
use crate::event::Event;

/// Events of work that still ran on SMs when their group went back. Whoever takes the SMs gets them
/// at once, and what is submitted there waits for these events on the device.
#[derive(Clone, Default)]
pub(crate) struct Fences {
    events: Vec<Event>,
}

/// The fences of one unit, shared with the units that were given back with it.
pub(crate) type Shared = Option<Arc<Vec<Event>>>;

impl Fences {
    /// The fences of several units, each event once.
    pub(crate) fn gather(shared: &[Arc<Vec<Event>>]) -> Fences {
        let mut events: Vec<Event> = Vec::new();
        for event in shared.iter().flat_map(|events| events.iter()) {
            if !events.contains(event) {
                events.push(event.clone());
            }
        }
        Fences { events }
    }

    /// Adds an event, and lets go of those that are done.
    pub(crate) fn add(&mut self, event: Event) {
        self.settle();
        self.events.push(event);
    }

    /// Lets go of events that are done, or that can tell no more: after a fault of the device no
    /// work goes on.
    pub(crate) fn settle(&mut self) {
        let Some(driver) = self.driver() else { return };
        let relaxed = Relaxed::enter(&driver);
        match &relaxed {
            Ok(_) => self.events.retain(is_running),
            // All are kept, which is right whatever they are.
            Err(_) => driver.report(relaxed.map(drop)),
        }
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn are_done(&self) -> Result<bool> {
        let Some(driver) = self.driver() else { return Ok(true) };
        let _relaxed = Relaxed::enter(&driver)?;
        Ok(!self.events.iter().any(is_running))
    }

    fn driver(&self) -> Option<Driver> {
        self.events.first().map(|event| event.context().device().driver().clone())
    }

    /// Makes something wait for each event.
    pub(crate) fn wait(&self, wait: impl FnMut(&Event) -> Result<()>) -> Result<()> {
        self.events.iter().try_for_each(wait)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The form in which the ledger keeps them.
    pub(crate) fn share(self) -> Shared {
        if self.events.is_empty() { None } else { Some(Arc::new(self.events)) }
    }
}

fn is_running(event: &Event) -> bool {
    matches!(event.is_complete(), Ok(false))
}

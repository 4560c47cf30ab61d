//! Checking each launch that is made through this crate.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

use super::{Escape, EscapeKind, Watch};
use crate::graph::{self, Needs};
use crate::handle::context::Context;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::{Error, Result};
use crate::handle::location::Location;
use crate::handle::raw::Raw;
use crate::work::launch;
use crate::work::stream::{Stream, context_of};

/// While it lives, every launch that its thread makes through this crate, of a kernel or a graph, is
/// checked by its [`Watch`]. What escapes is collected, and launched all the same.
#[must_use = "launches are watched only while it lives"]
pub struct Watching {
    watch: Watch,
    /// It is one thread's section.
    _thread: PhantomData<*const ()>,
}

impl Watch {
    /// Watches every launch that this thread makes through this crate, while the guard lives. Guards
    /// of several watches collect each for its own partition.
    ///
    /// A launch into a stream that is being captured is not checked: its graph is checked when it is launched.
    pub fn launches(&self) -> Watching {
        let checks = self.driver().checks();
        checks.watches.lock().push((thread::current().id(), self.clone()));
        checks.arm();
        Watching { watch: self.clone(), _thread: PhantomData }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let checks = self.watch.driver().checks();
        checks.armed.fetch_sub(1, Ordering::Relaxed);
        let thread = thread::current().id();
        let is_ours = |(id, watch): &(ThreadId, Watch)| {
            *id == thread && Arc::ptr_eq(&watch.inner, &self.watch.inner)
        };
        let mut watches = checks.watches.lock();
        let index = watches.iter().rposition(is_ours);
        let ended = index.map(|index| watches.swap_remove(index));
        // Outside of the lock: it may be the last handle of the partition.
        drop(watches);
        drop(ended);
    }
}

/// What a driver's launches are checked for.
#[derive(Default)]
struct Checks {
    /// How many sections there are, and one more while [`Driver::check_launches`] is on.
    armed: AtomicUsize,
    strict: AtomicUsize,
    watches: Mutex<Vec<(ThreadId, Watch)>>,
}

impl InSlot for Checks {
    const SLOT: Slot = Slot::Checks;

    fn make(_driver: &Driver) -> Self {
        Checks::default()
    }
}

/// What is about to be launched.
enum Launched<'a> {
    Kernel(&'a str),
    /// A graph, with what its nodes need.
    Graph(&'a Needs),
}

impl Checks {
    /// Whether launches are checked. This is all that a launch pays for that are not.
    #[inline]
    fn are_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// Has launches checked once more, until `armed` is lowered.
    fn arm(&self) {
        launch::CHECK
            .get_or_init(|| |stream, kernel| check(stream, &Launched::Kernel(kernel.name())));
        graph::CHECK.get_or_init(|| |stream, needs| check(stream, &Launched::Graph(needs)));
        self.armed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Driver {
    /// What launches are checked for.
    #[inline]
    fn checks(&self) -> &Checks {
        self.slot()
    }

    /// Has every launch that is made through this crate checked, on any thread, or no longer: a
    /// switch for debugging. A launch then asks the driver where the stream's work runs, and is
    /// refused with [`Error::Escapes`] where that is no partition, where it is another context than
    /// the stream's object says, and where nodes of a graph run elsewhere than the stream's work, as
    /// far as the driver reports it: before CUDA 13.2 of kernels only.
    ///
    /// A launch into a stream that is being captured is not checked: a graph may be captured anywhere and then
    /// [moved](crate::Graph::retarget), and is checked when it is launched.
    pub fn check_launches(&self, on: bool) {
        let checks = self.checks();
        let was = checks.strict.swap(usize::from(on), Ordering::Relaxed) != 0;
        match (was, on) {
            (false, true) => checks.arm(),
            (true, false) => drop(checks.armed.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }
}

/// Checks a launch on a stream.
fn check(stream: &Stream, launched: &Launched<'_>) -> Result<()> {
    if !stream.driver().checks().are_armed() {
        return Ok(());
    }
    // A capture runs nothing. Its graph may be moved before it is launched, and is checked then. The question invalidates no capture (cuda.h, `cuStreamIsCapturing`).
    if stream.is_capturing()? {
        return Ok(());
    }
    let checks = stream.driver().checks();
    let thread = thread::current().id();
    let ours: Vec<Watch> = {
        let watches = checks.watches.lock();
        watches.iter().filter(|(id, _)| *id == thread).map(|(_, watch)| watch.clone()).collect()
    };
    for watch in ours {
        if let Some(escape) = escape(stream, launched, watch.partition())? {
            watch.collect(escape);
        }
    }
    if checks.strict.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let context = stream.context();
    let escape = if context.is_green() {
        escape(stream, launched, context)?
    } else {
        let (kind, location) = (EscapeKind::PrimaryStream, Some(Location::of(context)?));
        let escape = Escape::new(launched.name(), context, kind, location);
        Some(Escape { expected: "every partition".to_owned(), ..escape })
    };
    escape.map_or(Ok(()), |escape| Err(Error::Escapes(Box::new(escape))))
}

/// What of a launch is outside of a partition.
fn escape(stream: &Stream, launched: &Launched<'_>, expected: &Context) -> Result<Option<Escape>> {
    let driver = stream.driver();
    let found = |kind, location| Some(Escape::new(launched.name(), expected, kind, location));
    match *launched {
        Launched::Kernel(_) => {
            let raw = Raw::new(stream.raw()).ok_or_else(|| Error::null("cuStreamCreate"))?;
            // SAFETY: the handle keeps its stream.
            let (context, green) = unsafe { context_of(driver, raw) }?;
            if context.as_ptr() == expected.raw() {
                return Ok(None);
            }
            let kind = EscapeKind::of_stream(green.is_some());
            // SAFETY: the stream keeps its context.
            let location = unsafe { Location::of_raw(driver, context.as_ptr()) }?;
            Ok(found(kind, Some(location)))
        }
        Launched::Graph(needs) => {
            let Some(context) = needs.outside(expected) else { return Ok(None) };
            // SAFETY: the graph keeps the contexts of its nodes; of foreign ones whoever launches it
            // sees to that.
            let location = unsafe { Location::of_raw(driver, context.as_ptr()) }?;
            Ok(found(EscapeKind::GraphLaunch, Some(location)))
        }
    }
}

impl Launched<'_> {
    fn name(&self) -> &str {
        match self {
            Launched::Kernel(name) => name,
            Launched::Graph(..) => "a graph",
        }
    }
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("watch", &self.watch).finish_non_exhaustive()
    }
}

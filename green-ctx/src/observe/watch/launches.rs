//! Checks of launches that are made through this crate.
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

/// A guard of a [`Watch`]. While the guard exists, the watch checks every launch of a kernel or graph that the
/// guard's thread makes through this crate. Launches that escape from the partition are collected, and still run.
#[must_use = "launches are watched only while the guard exists"]
pub struct Watching {
    watch: Watch,
    /// Launches are watched on one thread, so the guard must stay on that thread.
    _thread: PhantomData<*const ()>,
}

impl Watch {
    /// Checks every launch that this thread makes through this crate while the guard exists. If several watches have
    /// guards, each watch checks every launch against its own partition.
    ///
    /// A launch into a stream that is being captured is not checked. The captured graph is checked when the graph is
    /// launched.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, sim::Sim, watch::Watch};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// let parts = device.partition([16])?;
    /// let outside = device.primary_context()?.create_stream(StreamOptions::default())?;
    /// let watch = Watch::new(parts[0].context());
    /// {
    ///     let _watching = watch.launches();
    ///     // SAFETY: the kernel takes no parameters.
    ///     unsafe { outside.launch(&step, LaunchConfig::new(64, 128), ()) }?;
    /// }
    /// assert_eq!(watch.escapes()[0].name, "step");
    /// # Ok(())
    /// # }
    /// ```
    pub fn launches(&self) -> Watching {
        let checks = self.driver().checks();
        checks.watches.lock().push((thread::current().id(), self.clone()));
        checks.arm();
        Watching { watch: self.clone(), _thread: PhantomData }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if self.watch.driver().is_forked() {
            // A thread that no longer exists may hold the list's lock forever.
            return;
        }
        let checks = self.watch.driver().checks();
        checks.armed.fetch_sub(1, Ordering::Relaxed);
        let thread = thread::current().id();
        let is_ours = |(id, watch): &(ThreadId, Watch)| {
            *id == thread && Arc::ptr_eq(&watch.inner, &self.watch.inner)
        };
        let mut watches = checks.watches.lock();
        let index = watches.iter().rposition(is_ours);
        let ended = index.map(|index| watches.swap_remove(index));
        // Dropped outside the lock: it may be the last handle of the partition.
        drop(watches);
        drop(ended);
    }
}

/// The checks of a driver's launches.
#[derive(Default)]
struct Checks {
    /// The number of [`Watching`] guards, plus one while [`Driver::check_launches`] is on.
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

/// The work that is about to be launched.
enum Launched<'a> {
    Kernel(&'a str),
    /// A graph, with the needs of its nodes.
    Graph(&'a Needs),
}

impl Checks {
    /// Returns whether launches are checked. If launches are not checked, a launch reads only this counter.
    #[inline]
    fn are_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// Raises `armed` by one, and sets the hooks that check launches.
    fn arm(&self) {
        launch::CHECK
            .get_or_init(|| |stream, kernel| check(stream, &Launched::Kernel(kernel.name())));
        graph::CHECK.get_or_init(|| |stream, needs| check(stream, &Launched::Graph(needs)));
        self.armed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Driver {
    /// Returns the checks of this driver's launches.
    #[inline]
    fn checks(&self) -> &Checks {
        self.slot()
    }

    /// Turns checking on or off for every launch that any thread makes through this crate. Use this check for
    /// debugging.
    ///
    /// While checking is on, each launch queries the driver for the context in which the work would run. The launch
    /// is refused with [`Error::Escapes`] in these cases:
    ///
    /// - The stream belongs to a context that is not green. Green contexts of other libraries are not refused.
    /// - The driver reports another context for the stream than the [`Stream`] has.
    /// - The graph has nodes in a context other than the stream's context. Before CUDA 13.2 the driver reports the
    ///   contexts of kernel nodes only.
    ///
    /// Under a [reserve](crate::guide::reserve), work in the primary context cannot use a floor, so these
    /// launches are not refused.
    ///
    /// A launch into a stream that is being captured is not checked. A graph may be captured anywhere and then
    /// [moved](crate::Graph::retarget), so the graph is checked when it is launched.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Error, LaunchConfig, Library, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// let outside = device.primary_context()?.create_stream(StreamOptions::default())?;
    /// driver.check_launches(true);
    /// // SAFETY: the kernel takes no parameters.
    /// let refused = unsafe { outside.launch(&step, LaunchConfig::new(64, 128), ()) };
    /// assert!(matches!(refused, Err(Error::Escapes(_))));
    /// # Ok(())
    /// # }
    /// ```
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

/// Checks a launch on a stream. An escape is an error only if [`Driver::check_launches`] is on.
fn check(stream: &Stream, launched: &Launched<'_>) -> Result<()> {
    if !stream.driver().checks().are_armed() {
        return Ok(());
    }
    // A captured launch does not run. Its graph may be moved, and is checked when it is launched. The query
    // invalidates no capture (cuda.h, `cuStreamIsCapturing`).
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
    let escape = if context.is_green() || context.rest()?.is_some() {
        escape(stream, launched, context)?
    } else {
        let (kind, location) = (EscapeKind::PrimaryStream, Some(Location::of(context)?));
        let escape = Escape::new(launched.name(), context, kind, location);
        Some(Escape { expected: "every partition".to_owned(), ..escape })
    };
    escape.map_or(Ok(()), |escape| Err(Error::Escapes(Box::new(escape))))
}

/// Returns an escape if the launch would leave `expected`.
fn escape(stream: &Stream, launched: &Launched<'_>, expected: &Context) -> Result<Option<Escape>> {
    let driver = stream.driver();
    let found = |kind, location| Some(Escape::new(launched.name(), expected, kind, location));
    match *launched {
        Launched::Kernel(_) => {
            let raw = Raw::new(stream.raw()).ok_or_else(|| Error::null("cuStreamCreate"))?;
            // SAFETY: `stream` keeps the raw stream alive.
            let (context, green) = unsafe { context_of(driver, raw) }?;
            if expected.without_escape()?.contains(&context.as_ptr()) {
                return Ok(None);
            }
            let kind = EscapeKind::of_stream(green.is_some());
            // SAFETY: the stream is alive, and so its context is alive.
            let location = unsafe { Location::of_raw(driver, context.as_ptr()) }?;
            Ok(found(kind, Some(location)))
        }
        Launched::Graph(needs) => {
            let Some(context) = needs.outside(expected)? else { return Ok(None) };
            // SAFETY: the executable keeps its nodes' contexts alive. For foreign contexts, the caller of
            // `launch_graph` guarantees that they are alive.
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

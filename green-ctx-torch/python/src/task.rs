//! Partitions in asyncio tasks. A partition that a task has entered is current while that task runs, and not while
//! another task runs.
//!
//! A context variable holds the `with` blocks that the running task is in. The function that runs asyncio's handles
//! is wrapped (`green_ctx_torch._tasks`), so that each handle first makes the partitions of its Python context
//! current. No Python code runs between the change of the current partition and the change of the variable, so no
//! signal can interrupt there.
//!
//! A switch between tasks does not order their work, because tasks in different partitions would then wait for each
//! other on the device. A block ends for all tasks at the same time, so a task that outlives the block does not hold
//! the SMs of the partition.

use std::cell::RefCell;
use std::thread::{self, ThreadId};

use arc_swap::ArcSwapOption;
use green_ctx::{Error, Stream};
use green_ctx_torch::scope::{self, Mode, Owner};
use green_ctx_torch::{Torch, TorchError};
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::argument::modules;
use crate::code::{self, Code, import};
use crate::fault::Fault;
use crate::gil::{Held, blocking};
use crate::kept::once;
use crate::sanitizer;
use crate::torch::Handle;

/// A `with` block that a task is in. Tasks that are created inside the block are in the same block. `open` is `None`
/// once the block has ended, and it ends for all these tasks at the same time. The context of a task can be copied to
/// another thread, where the block has no effect.
#[pyclass(frozen, module = "green_ctx_torch._native")]
struct Entry {
    open: ArcSwapOption<Held<(Stream, Mode)>>,
    key: usize,
    owner: Owner,
    thread: ThreadId,
}

impl Entry {
    fn is_here(&self) -> bool {
        self.thread == thread::current().id()
    }
}

/// Returns the list of the open blocks of all tasks on all threads.
fn open(py: Python<'_>) -> PyResult<&Bound<'_, PyList>> {
    static OPEN: PyOnceLock<Py<PyList>> = PyOnceLock::new();
    Ok(once(py, &OPEN, || Ok(PyList::empty(py).unbind()))?.bind(py))
}

thread_local! {
    /// The Python contexts of the handles that run on this thread. If a handle runs an inner event loop, the contexts
    /// of the inner loop's handles come last.
    static RUNNING: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
    /// The Python context of the handle that entered this thread's first block, before handles were wrapped.
    static UNWRAPPED: RefCell<Option<Py<PyAny>>> = const { RefCell::new(None) };
}

/// Returns the context variable. The value of the variable is a tuple of [`Entry`] objects, from the outermost block
/// to the innermost. While a task is suspended that made other streams or another device current inside, a tuple of
/// [`Inside`] comes last.
fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let variable = once(py, &VARIABLE, || {
        let class = import(py, "contextvars")?.getattr("ContextVar")?;
        Ok(class.run(("green_ctx_torch",))?.unbind())
    })?;
    Ok(variable.bind(py))
}

/// Returns the variable's value in the current context.
fn entries(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let held = variable(py)?.run_method(intern!(py, "get"), (PyTuple::empty(py),))?;
    Ok(held.cast_into()?)
}

/// Returns the variable's value in another context.
fn entries_of<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let py = context.py();
    let nothing = PyTuple::empty(py);
    Ok(context.run_method(intern!(py, "get"), (variable(py)?, nothing))?.cast_into()?)
}

/// Enters a partition on one of its streams. `key` identifies the stream or the context. If an asyncio loop runs on the
/// thread, the function also adds the block to the context variable.
pub(crate) fn enter(
    py: Python<'_>,
    stream: &Stream,
    mode: Mode,
    key: usize,
    enter: impl FnOnce() -> Result<(), Fault> + Send,
) -> PyResult<()> {
    let device = stream.context().device().ordinal();
    let owner = refuse_others(py)?;
    let former = sanitizer::current_stream(py, device)?;
    blocking(py, enter)?;
    let noted = match running_loop(py) {
        Ok(None) if owner == 0 => Ok(()),
        Ok(None) => {
            py.detach(|| scope::note_owner(owner));
            Ok(())
        }
        Ok(Some(running)) => note(&running, stream, mode, key, owner),
        Err(error) => Err(error),
    };
    let noted = noted.and_then(|()| sanitizer::waits_for(former, device));
    if noted.is_err() {
        let left = py.detach(|| scope::leave_when_innermost(|entered| entered == stream));
        // The first error is reported, not this one.
        drop(left);
    }
    noted
}

/// Returns the address of the calling frame if the frame belongs to a generator or a coroutine, or else 0. Returns true
/// if the frame is of the module contextlib.
fn caller(py: Python<'_>) -> PyResult<(Owner, bool)> {
    static CONTEXTLIB: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Some(frame) = code::frame(py) else { return Ok((0, false)) };
    let find = || Ok(import(py, "contextlib")?.getattr("__file__")?.unbind());
    let code = frame.getattr(intern!(py, "f_code"))?;
    let flags: u32 = code.getattr(intern!(py, "co_flags"))?.extract()?;
    if flags & GENERATOR_OR_COROUTINE != 0 {
        return Ok((frame.as_ptr().addr(), false));
    }
    Ok((0, code.getattr(intern!(py, "co_filename"))?.eq(once(py, &CONTEXTLIB, find)?)?))
}

/// Returns an error in a task that does not report when it waits, and otherwise what [`caller`] returns.
fn refuse_others(py: Python<'_>) -> PyResult<Owner> {
    // An ordinary function is decided here, because a call of Python code takes half as long as entering a partition.
    let (owner, is_contextlib) = caller(py)?;
    if owner != 0 || is_contextlib || modules(py)?.contains(intern!(py, "greenlet"))? {
        import(py, "green_ctx_torch._tasks")?.run_method(intern!(py, "refuse_others"), ())?;
    }
    Ok(owner)
}

/// The flags of a code object (code.h of CPython): a generator, a coroutine, a generator that `types.coroutine` marks
/// as a coroutine, or an asynchronous generator.
const GENERATOR_OR_COROUTINE: u32 = 0x20 | 0x80 | 0x100 | 0x200;

fn note(
    running: &Bound<'_, PyAny>,
    stream: &Stream,
    mode: Mode,
    key: usize,
    owner: Owner,
) -> PyResult<()> {
    let py = running.py();
    let tasks = import(py, "green_ctx_torch._tasks")?;
    // The context of the running handle. `Context.run`, or a task that is started eagerly, changes the context in the
    // middle of a handle.
    let outer = RUNNING.with_borrow(|running| running.last().map(|context| context.clone_ref(py)));
    let outer = match outer {
        Some(outer) => outer.into_bound(py),
        None => tasks.run_method(intern!(py, "unwrapped"), ())?,
    };
    tasks.run_method(intern!(py, "watch"), (running,))?;
    let held = ArcSwapOption::from_pointee(Held::new((stream.clone(), mode)));
    let entry = Py::new(py, Entry { open: held, key, owner, thread: thread::current().id() })?;
    let former = entries(py)?;
    let all = former.iter().chain([entry.bind(py).clone().into_any()]);
    let all = PyTuple::new(py, all.collect::<Vec<_>>())?;
    variable(py)?.run_method(intern!(py, "set"), (&all,))?;
    if !outer.is_none() && !entries_of(&outer)?.is(&all) {
        variable(py)?.run_method(intern!(py, "set"), (former,))?;
        return Err(Fault::state(
            "a partition is entered in a context other than that of the running callback, as in a task that \
             is started eagerly before its first await, so later callbacks would be in the partition too; \
             enter it after an await, or start the task with loop.create_task",
        )
        .into());
    }
    if RUNNING.with_borrow(Vec::is_empty) {
        let unwrapped = (!outer.is_none()).then(|| outer.unbind());
        drop(UNWRAPPED.replace(unwrapped));
    }
    py.detach(|| scope::task::own_innermost(owner)).map_err(Fault::from)?;
    open(py)?.append(entry)
}

/// Leaves a partition on this thread. If an asyncio task had entered the partition, the block ends for all tasks.
/// `leave` leaves a partition of the given owner or, without an owner, the innermost one.
///
/// In a forked child there is nothing to leave: the partitions that the parent entered are current in the parent
/// only.
pub(crate) fn leave(
    py: Python<'_>,
    device: u32,
    key: usize,
    leave: impl Fn(Option<Owner>) -> Result<(bool, Owner), Fault> + Sync,
) -> PyResult<()> {
    // An interrupt can raise its exception here. The thread leaves the partition nevertheless.
    let former = sanitizer::current_stream(py, device);
    let has_owners = !open(py)?.is_empty() || py.detach(scope::has_owners);
    let owner = if has_owners { caller(py)?.0 } else { 0 };
    let is_not = |left: &_| matches!(left, Err(Fault::Torch(TorchError::NotEntered)));
    let mut left = py.detach(|| leave(Some(owner)));
    // A generator or a coroutine that another task or another thread ends: its block is not entered here.
    if is_not(&left)
        && owner != 0
        && (end(py, key, owner, true)? || py.detach(|| scope::end_of_owner(owner)))
    {
        return former.map(drop);
    }
    if is_not(&left) {
        left = py.detach(|| leave(None));
    }
    // The block of a task that does not run.
    if is_not(&left) && end(py, key, 0, false)? {
        return former.map(drop);
    }
    match left {
        Err(Fault::Torch(TorchError::Driver(Error::Forked))) => return Ok(()),
        Ok((true, owner)) => drop(end(py, key, owner, false)?),
        left => drop(left?),
    }
    former.and_then(|former| sanitizer::waits_for(former, device))
}

/// Ends the last block with this key and this owner of any task. If there is none, and the caller does not insist on the
/// owner, the function ends the running task's last block with this key, or else the last one of any task on the thread.
/// Returns whether a block was found.
fn end(py: Python<'_>, key: usize, owner: Owner, insists: bool) -> PyResult<bool> {
    let (mine, open) = (entries(py)?, open(py)?);
    let known: Vec<_> = open.iter().chain(mine.iter()).collect();
    let find = |is_it: &dyn Fn(&Entry) -> bool| {
        let entries = known.iter().rev().filter_map(|entry| entry.cast::<Entry>().ok());
        let is_open = |entry: &Entry| entry.key == key && entry.open.load().is_some();
        entries.into_iter().find(|entry| is_open(entry.get()) && is_it(entry.get()))
    };
    // The running task's own blocks come last, and are found first.
    let found = match find(&|entry| owner != 0 && entry.owner == owner) {
        None if !insists => find(&Entry::is_here),
        found => found,
    };
    let Some(entry) = found else { return Ok(false) };
    let rest = mine.iter().filter(|other| !other.is(entry)).collect::<Vec<_>>();
    if rest.len() < mine.len() {
        variable(py)?.run_method(intern!(py, "set"), (PyTuple::new(py, rest)?,))?;
    }
    entry.get().open.store(None);
    let place = open.iter().position(|other| other.is(entry));
    place.map_or(Ok(()), |place| open.del_item(place))?;
    Ok(true)
}

/// Returns the event loop that runs on this thread, if there is one. This function does not import asyncio.
fn running_loop(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    static ASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let ask = match ASK.get(py) {
        Some(ask) => ask.bind(py).clone(),
        None => {
            let events = modules(py)?.get_item(intern!(py, "asyncio.events"))?;
            let Some(events) = events else { return Ok(None) };
            // The function is missing while the module is being imported.
            let Some(ask) = events.getattr_opt(intern!(py, "_get_running_loop"))? else {
                return Ok(None);
            };
            let _same = ASK.set(py, ask.clone().unbind());
            ask
        }
    };
    let running = ask.run(())?;
    Ok((!running.is_none()).then_some(running))
}

/// Runs an asyncio handle in the partitions that its task has entered. `original` is asyncio's function that runs a
/// handle.
#[pyfunction]
pub(crate) fn _run_handle(
    original: &Bound<'_, PyAny>,
    handle: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    let py = handle.py();
    let context = handle.getattr(intern!(py, "_context"))?;
    let innermost =
        || RUNNING.with_borrow(|running| Some(running.last()?.clone_ref(py).into_bound(py)));
    let outer = innermost().or_else(|| Some(UNWRAPPED.take()?.into_bound(py)));
    let begun = suspend(handle, outer.as_ref()).and(resume(handle, &context));
    RUNNING.with_borrow_mut(|running| running.push(context.clone().unbind()));
    let result = original.run((handle,));
    drop(RUNNING.with_borrow_mut(Vec::pop));
    let ended = suspend(handle, Some(&context));
    // A handle of an inner loop has ended. The handle that runs the inner loop gets its partitions back.
    let back = innermost().map_or(Ok(()), |outer| resume(handle, &outer));
    let result = result?;
    begun.and(ended).and(back)?;
    Ok(result.unbind())
}

/// What a task has made current inside one of its partitions: the partition's stream, and the result of
/// `_tasks.inside`.
type Inside = (usize, Py<PyAny>);

/// Suspends the running task, which has this context: leaves its partitions. Saves in the context which other streams
/// and which other device the task has made current inside.
fn suspend(handle: &Bound<'_, PyAny>, context: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let (py, mut all) = (handle.py(), Vec::<Inside>::new());
    let mut result = Ok(());
    while scope::task::is_innermost_of_task() {
        let changed = py.detach(scope::task::changed_inside);
        let save = |devices| import(py, "green_ctx_torch._tasks")?.run_method("inside", (devices,));
        let inside = changed.map(save).transpose();
        let stream = py.detach(|| scope::task::suspend().map(|stream| Handle::of(&stream).key()));
        match inside {
            Ok(inside) => all.extend(stream.zip(inside.map(Bound::unbind))),
            Err(error) => result = Err(error),
        }
    }
    if let Some(context) = context.filter(|_| !all.is_empty()) {
        let saved = || {
            all.reverse();
            let inside = all.into_pyobject(py)?.into_any();
            let entries = entries_of(context)?.iter().chain([inside]).collect::<Vec<_>>();
            set_in(context, &PyTuple::new(py, entries)?)
        };
        result = result.and(saved());
    }
    report(handle, result)
}

/// Resumes the task with this context: makes the partitions that it has entered current, and what `suspend` saved.
fn resume(handle: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>) -> PyResult<()> {
    let resumed = || {
        let (py, wanted) = (context.py(), entries_of(context)?);
        let mut entries = Vec::with_capacity(wanted.len());
        let mut inside = Vec::<Inside>::new();
        for element in wanted.iter() {
            match element.cast_into::<Entry>() {
                Ok(entry) => entries.push(entry),
                Err(other) => inside = other.into_inner().extract()?,
            }
        }
        if !inside.is_empty() {
            // Tasks that this task creates must not inherit it.
            set_in(context, &PyTuple::new(py, &entries)?)?;
        }
        for entry in entries.iter().filter(|entry| entry.get().is_here()) {
            let Some(held) = entry.get().open.load_full() else { continue };
            let owner = entry.get().owner;
            let key = blocking(py, move || {
                let (stream, mode) = &**held;
                scope::task::resume(&Torch::find()?, stream, *mode, owner)?;
                Ok(Handle::of(stream).key())
            })?;
            if let Some(place) = inside.iter().position(|(stream, _)| *stream == key) {
                let (_, inside) = inside.remove(place);
                import(py, "green_ctx_torch._tasks")?.run_method("put_back", (inside,))?;
            }
        }
        Ok(())
    };
    report(handle, resumed())
}

/// Sets the variable in another context, which does not run.
fn set_in(context: &Bound<'_, PyAny>, value: &Bound<'_, PyTuple>) -> PyResult<()> {
    let set = variable(context.py())?.getattr(intern!(context.py(), "set"))?;
    context.run_method(intern!(context.py(), "run"), (set, value)).map(drop)
}

/// Passes an error to the loop's exception handler, because the loop might never end if the handle did not run. Returns
/// the exception of an interrupt, which the caller raises after the handle has run.
fn report(handle: &Bound<'_, PyAny>, result: PyResult<()>) -> PyResult<()> {
    let (Err(error), py) = (result, handle.py()) else { return Ok(()) };
    if !error.is_instance_of::<PyException>(py) {
        return Err(error);
    }
    let running = handle.getattr(intern!(py, "_loop"))?;
    let report = PyDict::new(py);
    report.set_item("message", "a task continues outside the partition that it is in")?;
    report.set_item("exception", error)?;
    report.set_item("handle", handle)?;
    running.run_method(intern!(py, "call_exception_handler"), (report,)).map(drop)
}

//! Graphs in streams of the rest, which the primary context's own waits do not cover.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use std::{ptr, thread};

use green_ctx::graph::CaptureMode;
use green_ctx::resource::Amount;
use green_ctx::{Driver, StreamOptions};

use crate::foreign::{Foreign, Handle};
use crate::{Tested, alone};

const BUSY: c_int = 600;
const RELAXED: c_int = 2;

const PTX: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry none() { ret; }
";

type Two = unsafe extern "C" fn(Handle, Handle) -> c_int;

impl Foreign {
    pub(crate) fn begin_capture(&self, stream: Handle) -> c_int {
        type Begin = unsafe extern "C" fn(Handle, c_int) -> c_int;
        self.call("cuStreamBeginCapture_v2", |it: Begin| unsafe { it(stream, RELAXED) })
    }

    pub(crate) fn end_capture(&self, stream: Handle) -> (c_int, Handle) {
        type End = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
        let mut graph = ptr::null_mut();
        let status = self.call("cuStreamEndCapture", |it: End| unsafe { it(stream, &mut graph) });
        (status, graph)
    }

    /// Returns an executable graph with work of 30 ms, unless it could not be captured.
    fn graph(&self, stream: Handle) -> Option<Handle> {
        type Instantiate = unsafe extern "C" fn(*mut Handle, Handle, u64) -> c_int;
        if self.begin_capture(stream) != 0 {
            return None;
        }
        self.late(stream);
        let ((status, graph), mut exec) = (self.end_capture(stream), ptr::null_mut());
        let instantiate = |it: Instantiate| unsafe { it(&mut exec, graph, 0) };
        (status == 0 && self.call("cuGraphInstantiateWithFlags", instantiate) == 0).then_some(exec)
    }

    pub(crate) fn memory(&self) -> Handle {
        self.allocated("cuMemAlloc_v2")
    }

    fn allocated(&self, name: &str) -> Handle {
        type Allocate = unsafe extern "C" fn(*mut Handle, usize) -> c_int;
        let mut memory = ptr::null_mut();
        assert_eq!(self.call(name, |it: Allocate| unsafe { it(&mut memory, 64) }), 0);
        memory
    }

    fn module(&self) -> Handle {
        type Load = unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int;
        let mut module = ptr::null_mut();
        let load = |it: Load| unsafe { it(&mut module, PTX.as_ptr()) };
        assert_eq!(self.call("cuModuleLoadData", load), 0);
        module
    }

    fn library(&self) -> Handle {
        type Load = unsafe extern "C" fn(
            *mut Handle,
            *const c_char,
            Handle,
            Handle,
            c_uint,
            Handle,
            Handle,
            c_uint,
        ) -> c_int;
        let (mut library, none) = (ptr::null_mut(), ptr::null_mut());
        let load =
            |it: Load| unsafe { it(&mut library, PTX.as_ptr(), none, none, 0, none, none, 0) };
        assert_eq!(self.call("cuLibraryLoadData", load), 0);
        library
    }

    /// Returns whether memory is freed, and only after a graph.
    pub(crate) fn frees_wait(&self) -> bool {
        let (memory, (_, stream)) = (self.memory(), self.new_stream(1));
        let launch = |exec| self.call("cuGraphLaunch", |it: Two| unsafe { it(exec, stream) });
        let launched = self.graph(stream).map(launch) == Some(0);
        let is_done = self.on_context("cuMemFree_v2", memory) == 0
            && self.on_context("cuStreamQuery", stream) == 0;
        self.on_context("cuStreamDestroy_v2", stream);
        launched && is_done
    }
}

#[test]
fn waits_for_the_device_cover_graphs() -> Tested {
    alone("graphs::waits_for_the_device_cover_graphs", || {
        type Create = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
        let device = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let (foreign, context) = Foreign::begin("libcuda.so.1")?;
        let (part, (_, stream)) = (device.partition([16])?, foreign.new_stream(1));
        let exec = foreign.graph(stream).expect("a graph");
        let launch = |it: Two| unsafe { it(exec, stream) };
        let is_done_after = |name: &str, wait: &dyn Fn() -> c_int| {
            assert_eq!(foreign.call("cuGraphLaunch", launch), 0);
            assert_eq!((wait(), foreign.on_context("cuStreamQuery", stream)), (0, 0), "{name}");
        };
        assert_eq!(foreign.call("cuGraphLaunch", launch), 0);
        assert_eq!(foreign.on_context("cuStreamQuery", stream), BUSY);
        is_done_after("synchronise", &|| foreign.plain("cuCtxSynchronize"));
        is_done_after("that names its context", &|| {
            foreign.on_context("cuCtxSynchronize_v2", context)
        });
        is_done_after("of green-ctx", &|| {
            device.primary_context().and_then(|it| it.synchronize()).is_err().into()
        });
        let mut event = ptr::null_mut();
        foreign.call("cuEventCreate", |it: Create| unsafe { it(&mut event, 2) });
        is_done_after("an event", &|| {
            let record = |it: Two| unsafe { it(context, event) };
            assert_eq!(foreign.call("cuCtxRecordEvent", record), 0);
            assert_eq!(foreign.on_context("cuEventQuery", event), BUSY);
            foreign.on_context("cuEventSynchronize", event)
        });
        // Memory may be freed with any context current, and without one.
        let mut other_device = ptr::null_mut();
        assert_eq!(foreign.retain(1, &mut other_device), 0);
        let part = part[0].context().as_raw().cast();
        for current in [context, part, ptr::null_mut(), other_device] {
            for (free, make) in [
                ("cuMemFree_v2", Foreign::memory as fn(&Foreign) -> Handle),
                ("cuMemFreeHost", |foreign| foreign.allocated("cuMemAllocHost_v2")),
                ("cuModuleUnload", Foreign::module),
                ("cuLibraryUnload", Foreign::library),
            ] {
                assert_eq!(foreign.on_context("cuCtxSetCurrent", context), 0);
                let made = make(&foreign);
                is_done_after(free, &|| {
                    assert_eq!(foreign.on_context("cuCtxSetCurrent", current), 0);
                    foreign.on_context(free, made)
                });
            }
        }
        Ok(())
    })
}

#[test]
fn waits_and_captures_meet_as_without_a_reserve() -> Tested {
    alone("graphs::waits_and_captures_meet_as_without_a_reserve", || {
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, _) = Foreign::begin("libcuda.so.1")?;
        let (_, stream) = foreign.new_stream(1);
        let free = |memory| foreign.on_context("cuMemFree_v2", memory);
        let memory = [foreign.memory(), foreign.memory()];
        // A relaxed capture continues while memory is freed.
        assert_eq!((foreign.begin_capture(stream), free(memory[0])), (0, 0));
        assert_eq!(foreign.end_capture(stream).0, 0);
        // A synchronise ends it (recorded on an H200, driver 580.159.04).
        assert_eq!(foreign.begin_capture(stream), 0);
        assert_eq!((foreign.plain("cuCtxSynchronize"), foreign.end_capture(stream).0), (900, 901));
        // Frees wait again after captures that failed, did not begin, or ended with their stream or with a reset.
        type Begin = unsafe extern "C" fn(Handle, c_int) -> c_int;
        let begin = |it: Begin| unsafe { it(stream, 77) };
        assert_eq!(foreign.call("cuStreamBeginCapture_v2", begin), 1);
        assert!(foreign.frees_wait());
        let (_, other) = foreign.new_stream(1);
        assert_eq!(foreign.begin_capture(other), 0);
        assert_eq!(foreign.on_context("cuStreamDestroy_v2", other), 0);
        assert!(foreign.frees_wait());
        assert_eq!(foreign.begin_capture(stream), 0);
        let reset = |it: unsafe extern "C" fn(c_int) -> c_int| unsafe { it(0) };
        assert_eq!(foreign.call("cuDevicePrimaryCtxReset_v2", reset), 0);
        let mut context = ptr::null_mut();
        assert_eq!(foreign.retain(0, &mut context), 0);
        assert_eq!(foreign.on_context("cuCtxSetCurrent", context), 0);
        assert!(foreign.frees_wait());
        Ok(())
    })
}

/// Captures of green-ctx in the rest count too, and its waits for the rest cover partitions.
#[test]
fn green_ctx_waits_and_captures_alike() -> Tested {
    alone("graphs::green_ctx_waits_and_captures_alike", || {
        type Create = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
        let device = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let (foreign, context) = Foreign::begin("libcuda.so.1")?;
        let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
        let free = || assert_eq!(foreign.on_context("cuMemFree_v2", foreign.memory()), 0);
        stream.capture(CaptureMode::Relaxed, || {
            free();
            Ok::<_, green_ctx::Error>(())
        })?;
        assert!(foreign.frees_wait());
        let part = device.partition([16])?;
        let sleep = || part[0].stream().launch_host(|| thread::sleep(Duration::from_millis(30)));
        let mut event = ptr::null_mut();
        foreign.call("cuEventCreate", |it: Create| unsafe { it(&mut event, 2) });
        sleep()?;
        assert_eq!(foreign.call("cuCtxRecordEvent", |it: Two| unsafe { it(context, event) }), 0);
        assert_eq!(foreign.on_context("cuEventQuery", event), BUSY);
        part[0].stream().synchronize()?;
        sleep()?;
        assert_eq!(foreign.on_context("cuCtxSynchronize_v2", context), 0);
        let stream = part[0].stream().as_raw().cast();
        assert_eq!(foreign.on_context("cuStreamQuery", stream), 0);
        Ok(())
    })
}

/// Threads free memory while another one captures. The wait for graphs would end a capture.
#[test]
fn threads_free_memory_while_others_capture() -> Tested {
    alone("graphs::threads_free_memory_while_others_capture", || {
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, context) = Foreign::begin("libcuda.so.1")?;
        let (foreign, context, ended) =
            (&foreign, context.expose_provenance(), AtomicBool::new(false));
        let enter = || {
            let context = ptr::with_exposed_provenance_mut(context);
            assert_eq!(foreign.on_context("cuCtxSetCurrent", context), 0);
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    enter();
                    while !ended.load(Relaxed) {
                        assert_eq!(foreign.on_context("cuMemFree_v2", foreign.memory()), 0);
                    }
                });
            }
            let (_, stream) = foreign.new_stream(1);
            // Pauses of many lengths, so that captures begin at all stages of a free.
            let round = |pause| {
                (0..pause).for_each(|_| std::hint::spin_loop());
                (foreign.begin_capture(stream), foreign.end_capture(stream).0) == (0, 0)
            };
            let lost = (0..20_000).filter(|number| !round(number % 997 * 7)).count();
            ended.store(true, Relaxed);
            assert_eq!(lost, 0);
        });
        Ok(())
    })
}

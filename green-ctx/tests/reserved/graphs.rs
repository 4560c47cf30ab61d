//! Graphs in streams of the rest, which the primary context's own waits do not cover.

use std::ffi::{c_int, c_uint};
use std::ptr;

use green_ctx::Driver;
use green_ctx::resource::Amount;

use crate::foreign::{Foreign, Handle};
use crate::{Tested, alone};

const BUSY: c_int = 600;
const RELAXED: c_int = 2;

type Two = unsafe extern "C" fn(Handle, Handle) -> c_int;

impl Foreign {
    fn begin_capture(&self, stream: Handle) -> c_int {
        type Begin = unsafe extern "C" fn(Handle, c_int) -> c_int;
        self.call("cuStreamBeginCapture_v2", |it: Begin| unsafe { it(stream, RELAXED) })
    }

    fn end_capture(&self, stream: Handle) -> (c_int, Handle) {
        type End = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
        let mut graph = ptr::null_mut();
        let status = self.call("cuStreamEndCapture", |it: End| unsafe { it(stream, &mut graph) });
        (status, graph)
    }

    /// Returns an executable graph with work of 30 ms.
    fn graph(&self, stream: Handle) -> Handle {
        type Instantiate = unsafe extern "C" fn(*mut Handle, Handle, u64) -> c_int;
        assert_eq!(self.begin_capture(stream), 0);
        self.late(stream);
        let ((status, graph), mut exec) = (self.end_capture(stream), ptr::null_mut());
        let instantiate = |it: Instantiate| unsafe { it(&mut exec, graph, 0) };
        assert_eq!((status, self.call("cuGraphInstantiateWithFlags", instantiate)), (0, 0));
        exec
    }

    fn memory(&self) -> Handle {
        type Allocate = unsafe extern "C" fn(*mut Handle, usize) -> c_int;
        let mut memory = ptr::null_mut();
        let allocate = |it: Allocate| unsafe { it(&mut memory, 64) };
        assert_eq!(self.call("cuMemAlloc_v2", allocate), 0);
        memory
    }
}

#[test]
fn waits_for_the_device_cover_graphs() -> Tested {
    alone("graphs::waits_for_the_device_cover_graphs", || {
        type Create = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
        let device = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let (foreign, context) = Foreign::begin("libcuda.so.1")?;
        let (part, (_, stream)) = (device.partition([16])?, foreign.new_stream(1));
        let exec = foreign.graph(stream);
        let launch = |it: Two| unsafe { it(exec, stream) };
        let is_done_after = |name: &str, wait: &dyn Fn() -> c_int| {
            assert_eq!(foreign.call("cuGraphLaunch", launch), 0);
            assert_eq!((wait(), foreign.on_context("cuStreamQuery", stream)), (0, 0), "{name}");
        };
        let memory: Vec<_> = (0..4).map(|_| foreign.memory()).collect();
        let free = |at: usize| foreign.on_context("cuMemFree_v2", memory[at]);
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
        is_done_after("free", &|| free(0));
        // Memory may be freed with any context current, and without one.
        let mut other_device = ptr::null_mut();
        assert_eq!(foreign.retain(1, &mut other_device), 0);
        let part = part[0].context().as_raw().cast();
        for (at, other) in [(1, part), (2, ptr::null_mut()), (3, other_device)] {
            is_done_after("free elsewhere", &|| {
                assert_eq!(foreign.on_context("cuCtxSetCurrent", other), 0);
                free(at)
            });
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
        // A relaxed capture goes on while memory is freed.
        assert_eq!((foreign.begin_capture(stream), free(memory[0])), (0, 0));
        assert_eq!(foreign.end_capture(stream).0, 0);
        // A synchronise ends it (recorded on an H200, driver 580.159.04).
        assert_eq!(foreign.begin_capture(stream), 0);
        assert_eq!((foreign.plain("cuCtxSynchronize"), foreign.end_capture(stream).0), (900, 901));
        // Frees wait again after captures that failed, did not begin, or ended with their stream.
        let exec = foreign.graph(stream);
        type Begin = unsafe extern "C" fn(Handle, c_int) -> c_int;
        let begin = |it: Begin| unsafe { it(stream, 77) };
        assert_eq!(foreign.call("cuStreamBeginCapture_v2", begin), 1);
        let (_, other) = foreign.new_stream(1);
        assert_eq!(foreign.begin_capture(other), 0);
        assert_eq!(foreign.on_context("cuStreamDestroy_v2", other), 0);
        assert_eq!(foreign.call("cuGraphLaunch", |it: Two| unsafe { it(exec, stream) }), 0);
        assert_eq!((free(memory[1]), foreign.on_context("cuStreamQuery", stream)), (0, 0));
        Ok(())
    })
}

/// A thread frees memory while others begin captures. The wait for graphs would end these.
#[test]
fn threads_free_memory_while_others_capture() -> Tested {
    alone("graphs::threads_free_memory_while_others_capture", || {
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, context) = Foreign::begin("libcuda.so.1")?;
        let context = context.expose_provenance();
        std::thread::scope(|scope| {
            for number in 0..4 {
                let foreign = &foreign;
                scope.spawn(move || {
                    let context = ptr::with_exposed_provenance_mut(context);
                    assert_eq!(foreign.on_context("cuCtxSetCurrent", context), 0);
                    let (_, stream) = foreign.new_stream(1);
                    for _ in 0..4000 {
                        if number % 2 == 0 {
                            assert_eq!(foreign.on_context("cuMemFree_v2", foreign.memory()), 0);
                        } else {
                            assert_eq!(foreign.begin_capture(stream), 0);
                            assert_eq!(foreign.end_capture(stream).0, 0);
                        }
                    }
                });
            }
        });
        Ok(())
    })
}

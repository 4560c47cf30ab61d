//! The order between the default stream and the streams that wait for it, which a green context
//! does not have of itself.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;
use std::{ptr, thread};

use green_ctx::Driver;
use green_ctx::resource::Amount;

use crate::foreign::{Foreign, Handle, Lookup};
use crate::{Tested, alone};

const DEFAULT: Handle = ptr::null_mut();
const LEGACY: Handle = ptr::without_provenance_mut(1);

type Function = unsafe extern "C" fn(*mut c_void);
type Launch = unsafe extern "C" fn(Handle, Function, *mut c_void) -> c_int;
type OnStream = unsafe extern "C" fn(Handle) -> c_int;
type Record = unsafe extern "C" fn(Handle, Handle) -> c_int;

unsafe extern "C" fn sleep(_: *mut c_void) {
    thread::sleep(Duration::from_millis(30));
}

impl Foreign {
    /// Puts work of 30 ms on a stream.
    fn late(&self, stream: Handle) {
        let put = |it: Launch| unsafe { it(stream, sleep, ptr::null_mut()) };
        assert_eq!(self.call("cuLaunchHostFunc", put), 0);
    }

    /// Returns whether a stream's work is not done some ms later.
    fn waits(&self, stream: Handle) -> bool {
        type Create = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
        let mut event = ptr::null_mut();
        assert_eq!(self.call("cuEventCreate", |it: Create| unsafe { it(&mut event, 0) }), 0);
        assert_eq!(self.call("cuEventRecord", |it: Record| unsafe { it(event, stream) }), 0);
        thread::sleep(Duration::from_millis(5));
        let query = self.call("cuEventQuery", |it: OnStream| unsafe { it(event) });
        assert_eq!(self.plain("cuCtxSynchronize"), 0);
        query == 600
    }

    fn destroy(&self, stream: Handle) -> c_int {
        self.call("cuStreamDestroy_v2", |it: OnStream| unsafe { it(stream) })
    }
}

/// Returns the driver, and a blocking stream.
fn begin() -> Result<(Foreign, Handle), Box<dyn std::error::Error>> {
    Driver::reserve(Amount::Sms(32))?;
    let (foreign, _) = Foreign::begin("libcuda.so.1")?;
    let (status, stream) = foreign.new_stream(0);
    assert_eq!(status, 0);
    Ok((foreign, stream))
}

#[test]
fn blocking_streams_and_the_default_stream_wait_for_each_other() -> Tested {
    alone("order::blocking_streams_and_the_default_stream_wait_for_each_other", || {
        let (foreign, stream) = begin()?;
        let ((_, other), (_, apart)) = (foreign.new_stream(0), foreign.new_stream(1));
        let waits = |first, then| {
            foreign.late(first);
            foreign.waits(then)
        };
        for default in [DEFAULT, LEGACY] {
            assert!(waits(default, stream) && waits(stream, default));
            assert!(waits(default, other) && waits(other, default));
            // Two blocking streams have an order only through the default stream.
            assert!(!waits(stream, other) && !waits(stream, apart) && !waits(apart, stream));
            assert!(!waits(default, apart) && !waits(apart, default));
            foreign.late(stream);
            let query = |it: OnStream| unsafe { it(default) };
            assert_eq!(foreign.call("cuStreamQuery", query), 600);
            assert_eq!(foreign.plain("cuCtxSynchronize"), 0);
        }
        Ok(())
    })
}

/// A copy without a stream, an event, and functions that the program has looked up.
#[test]
fn all_kinds_of_work_have_the_order() -> Tested {
    alone("order::all_kinds_of_work_have_the_order", || {
        type Set = unsafe extern "C" fn(u64, u8, usize) -> c_int;
        type Copy = unsafe extern "C" fn(u64, u64, usize) -> c_int;
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        let (foreign, stream) = begin()?;
        let (mut memory, (_, apart)) = (0, foreign.new_stream(1));
        foreign.call("cuMemAlloc_v2", |it: Allocate| unsafe { it(&mut memory, 64) });
        // Each puts work on the default stream, for which another blocking stream then waits.
        for (name, put) in [
            (
                "a memset",
                &(|| foreign.call("cuMemsetD8_v2", |it: Set| unsafe { it(memory, 7, 64) }))
                    as &dyn Fn() -> c_int,
            ),
            ("a copy", &|| {
                foreign.call("cuMemcpyDtoD_v2", |it: Copy| unsafe { it(memory, memory + 32, 32) })
            }),
            ("a launch", &|| {
                let mut found = ptr::null_mut();
                let look = |it: Lookup| unsafe {
                    it(c"cuLaunchHostFunc".as_ptr(), &mut found, 12000, 0, ptr::null_mut())
                };
                assert_eq!(foreign.call("cuGetProcAddress_v2", look), 0);
                let launch = unsafe { std::mem::transmute::<Handle, Launch>(found) };
                unsafe { launch(DEFAULT, sleep, ptr::null_mut()) }
            }),
        ] {
            let (_, other) = foreign.new_stream(0);
            foreign.late(stream);
            assert_eq!(put(), 0, "{name}");
            assert!(foreign.waits(other), "{name}");
            assert_eq!(foreign.destroy(other), 0);
        }
        foreign.late(stream);
        let waited = foreign.call("cuStreamSynchronize", |it: OnStream| unsafe { it(DEFAULT) });
        assert_eq!(waited, 0);
        assert!(!foreign.waits(stream), "the wait covers the blocking stream");
        foreign.late(apart);
        assert!(!foreign.waits(stream));
        Ok(())
    })
}

#[test]
fn work_of_a_destroyed_stream_keeps_its_place() -> Tested {
    alone("order::work_of_a_destroyed_stream_keeps_its_place", || {
        let (foreign, stream) = begin()?;
        foreign.late(stream);
        assert_eq!((foreign.destroy(stream), foreign.destroy(stream)), (0, 400));
        assert!(foreign.waits(DEFAULT));
        let again: Vec<_> = (0..1030).map(|_| foreign.new_stream(0)).collect();
        let (made, refused): (Vec<_>, Vec<_>) = again.iter().partition(|(status, _)| *status == 0);
        assert_eq!((made.len(), refused.iter().all(|(status, _)| *status == 2)), (1024, true));
        assert!(made.iter().any(|(_, known)| *known == stream), "it is given out again");
        for (_, known) in &made {
            assert_eq!(foreign.destroy(*known), 0);
        }
        let (status, stream) = foreign.new_stream(0);
        foreign.late(DEFAULT);
        assert!(status == 0 && foreign.waits(stream));
        Ok(())
    })
}

#[test]
fn the_order_holds_from_any_thread_and_context() -> Tested {
    alone("order::the_order_holds_from_any_thread_and_context", || {
        let (foreign, stream) = begin()?;
        let device = Driver::load()?.device(0)?;
        let parts = device.partition([16])?;
        let rest = foreign.current();
        let raw = parts[0].context().as_raw().cast();
        foreign.late(DEFAULT);
        assert_eq!(foreign.on_context("cuCtxPushCurrent_v2", raw), 0);
        assert!(foreign.waits(stream));
        assert_eq!(foreign.current(), raw);
        // In a partition, the null stream is the partition's own.
        foreign.late(stream);
        assert!(!foreign.waits(DEFAULT));
        assert_eq!(foreign.on_context("cuCtxSetCurrent", rest), 0);
        // Many threads with streams of their own, beside the default stream.
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let (foreign, _) = Foreign::begin("libcuda.so.1").expect("the driver");
                    let query = |stream| {
                        foreign.call("cuStreamQuery", |it: OnStream| unsafe { it(stream) })
                    };
                    for _ in 0..200 {
                        let (status, stream) = foreign.new_stream(0);
                        assert_eq!(status, 0);
                        assert!([0, 600].contains(&query(stream)));
                        assert!([0, 600].contains(&query(DEFAULT)));
                        assert_eq!(foreign.destroy(stream), 0);
                    }
                });
            }
        });
        foreign.late(stream);
        assert!(foreign.waits(DEFAULT));
        Ok(())
    })
}

#[test]
fn captures_are_as_without_a_reserve() -> Tested {
    alone("order::captures_are_as_without_a_reserve", || {
        type Begin = unsafe extern "C" fn(Handle, c_int) -> c_int;
        type End = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
        let (foreign, stream) = begin()?;
        let begin =
            |stream| foreign.call("cuStreamBeginCapture_v2", |it: Begin| unsafe { it(stream, 2) });
        assert_eq!((begin(DEFAULT), begin(LEGACY)), (900, 900));
        // Work of other code on the default stream leaves a capture alone.
        assert_eq!(begin(stream), 0);
        foreign.late(stream);
        foreign.late(DEFAULT);
        let mut graph = ptr::null_mut();
        assert_eq!(
            foreign.call("cuStreamEndCapture", |it: End| unsafe { it(stream, &mut graph) }),
            0
        );
        assert!(!graph.is_null() && foreign.waits(stream), "for the default stream's work");
        assert!(!foreign.waits(DEFAULT), "the captured work did not run");
        Ok(())
    })
}

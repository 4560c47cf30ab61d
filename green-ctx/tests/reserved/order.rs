//! The order between the default stream and the streams that wait for it, which a green context
//! does not have of itself.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;
use std::{ptr, thread};

use green_ctx::event::EventOptions;
use green_ctx::resource::Amount;
use green_ctx::stream::DefaultStream;
use green_ctx::{Driver, Stream};

use crate::foreign::{Foreign, Handle, Lookup};
use crate::{Tested, alone};

pub(crate) const DEFAULT: Handle = ptr::null_mut();
const LEGACY: Handle = ptr::without_provenance_mut(1);

type Function = unsafe extern "C" fn(*mut c_void);
type Launch = unsafe extern "C" fn(Handle, Function, *mut c_void) -> c_int;
pub(crate) type OnStream = unsafe extern "C" fn(Handle) -> c_int;
type Record = unsafe extern "C" fn(Handle, Handle) -> c_int;

unsafe extern "C" fn sleep(_: *mut c_void) {
    thread::sleep(Duration::from_millis(30));
}

impl Foreign {
    /// Puts work of 30 ms on a stream.
    pub(crate) fn late(&self, stream: Handle) {
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
        // Work of a new stream need not wait for that of a destroyed one.
        let (_, busy) = foreign.new_stream(0);
        foreign.late(busy);
        assert_eq!(foreign.destroy(busy), 0);
        let (_, other) = foreign.new_stream(0);
        assert!(other != busy && foreign.destroy(other) == 0);
        let again: Vec<_> = (0..1030).map(|_| foreign.new_stream(0)).collect();
        let (made, refused): (Vec<_>, Vec<_>) = again.iter().partition(|(status, _)| *status == 0);
        assert_eq!((made.len(), refused.iter().all(|(status, _)| *status == 2)), (1024, true));
        assert!(
            made.iter().any(|(_, known)| *known == stream),
            "it is given out again when its work is done"
        );
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
        // Many threads use streams of their own and the default stream.
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
        let begin = |stream, mode| {
            foreign.call("cuStreamBeginCapture_v2", |it: Begin| unsafe { it(stream, mode) })
        };
        assert_eq!((begin(DEFAULT, 2), begin(LEGACY, 2)), (900, 900));
        // Work on the default stream would have to wait for the capture.
        assert_eq!(begin(stream, 2), 0);
        foreign.late(stream);
        let put = |it: Launch| unsafe { it(DEFAULT, sleep, ptr::null_mut()) };
        assert_eq!(foreign.call("cuLaunchHostFunc", put), 906);
        // The capture does not wait for that work, although it counted.
        foreign.late(stream);
        let mut graph = ptr::null_mut();
        let end = |it: End| unsafe { it(stream, &mut graph) };
        assert_eq!((foreign.call("cuStreamEndCapture", end), graph.is_null()), (0, false));
        assert!(!foreign.waits(DEFAULT), "the captured work did not run");
        foreign.late(DEFAULT);
        assert!(foreign.waits(stream));
        // A capture ends with its stream, so other calls are allowed again.
        assert_eq!((begin(stream, 0), foreign.destroy(stream)), (0, 0));
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        let mut memory = 0;
        let allocate = |it: Allocate| unsafe { it(&mut memory, 64) };
        assert_eq!(foreign.call("cuMemAlloc_v2", allocate), 0);
        Ok(())
    })
}

/// Fork and join: the helper may be destroyed before the capture ends.
#[test]
fn a_stream_that_joined_a_capture_leaves_it_alone() -> Tested {
    alone("order::a_stream_that_joined_a_capture_leaves_it_alone", || {
        type Begin = unsafe extern "C" fn(Handle, c_int) -> c_int;
        type End = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
        type Create = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
        type Wait = unsafe extern "C" fn(Handle, Handle, c_uint) -> c_int;
        let (foreign, stream) = begin()?;
        let (_, helper) = foreign.new_stream(0);
        let begin =
            |stream| foreign.call("cuStreamBeginCapture_v2", |it: Begin| unsafe { it(stream, 2) });
        let end = |stream| {
            let mut graph = ptr::null_mut();
            let end = |it: End| unsafe { it(stream, &mut graph) };
            (foreign.call("cuStreamEndCapture", end), graph.is_null())
        };
        let join = |from, to| {
            let mut event = ptr::null_mut();
            foreign.call("cuEventCreate", |it: Create| unsafe { it(&mut event, 2) });
            foreign.call("cuEventRecord", |it: Record| unsafe { it(event, from) });
            foreign.call("cuStreamWaitEvent", |it: Wait| unsafe { it(to, event, 0) })
        };
        // It has been captured itself before.
        assert_eq!((begin(helper), end(helper)), (0, (0, false)));
        assert_eq!(begin(stream), 0);
        assert_eq!(join(stream, helper), 0);
        foreign.late(helper);
        assert_eq!(join(helper, stream), 0);
        assert_eq!(foreign.destroy(helper), 0);
        let (status, other) = foreign.new_stream(0);
        assert!(status == 0 && other != helper, "the helper is still captured");
        foreign.late(stream);
        assert_eq!(end(stream), (0, false));
        Ok(())
    })
}

/// The null stream of these functions is not the default stream of the rest.
#[test]
fn the_per_thread_default_stream_has_no_order() -> Tested {
    alone("order::the_per_thread_default_stream_has_no_order", || {
        let (foreign, stream) = begin()?;
        let launch = |flags| {
            let mut found = ptr::null_mut();
            let look = |it: Lookup| unsafe {
                it(c"cuLaunchHostFunc".as_ptr(), &mut found, 12000, flags, ptr::null_mut())
            };
            assert_eq!(foreign.call("cuGetProcAddress_v2", look), 0);
            let launch = unsafe { std::mem::transmute::<Handle, Launch>(found) };
            unsafe { launch(DEFAULT, sleep, ptr::null_mut()) }
        };
        foreign.late(stream);
        assert_eq!((launch(2), launch(0)), (400, 0));
        Ok(())
    })
}

/// green-ctx uses the default stream, and a stream of another library.
#[test]
fn partitions_have_the_order_too() -> Tested {
    alone("order::partitions_have_the_order_too", || {
        let driver = Driver::reserve(Amount::Sms(32))?;
        let device = driver.device(0)?;
        let (foreign, _) = Foreign::begin("libcuda.so.1")?;
        let (_, stream) = foreign.new_stream(0);
        let parts = device.partition([16])?;
        let ours = parts[0].stream();
        let late = || ours.launch_host(|| thread::sleep(Duration::from_millis(30)));
        let event = || device.create_event(EventOptions::default());
        let raw = ours.as_raw().cast();

        // A partition that waits for the default stream waits for blocking streams.
        let (before, after) = (event()?, event()?);
        foreign.late(stream);
        DefaultStream::Legacy.record(&before)?;
        ours.wait(&before)?;
        assert!(foreign.waits(raw));
        // The default stream waits for a partition, and blocking streams for the default stream.
        late()?;
        ours.record(&after)?;
        DefaultStream::Legacy.wait(&after)?;
        assert!(foreign.waits(stream));
        // A blocking stream waits for a partition, and the default stream for it.
        // SAFETY: the stream lives as long as the process.
        let borrowed = unsafe { Stream::from_raw_borrowed(&driver, stream.cast(), ()) }?;
        late()?;
        borrowed.wait_for(ours)?;
        assert!(foreign.waits(DEFAULT));
        drop(borrowed);
        foreign.late(stream);
        // SAFETY: nothing else destroys the stream.
        drop(unsafe { Stream::from_raw_owned(&device.primary_context()?, stream.cast()) }?);
        assert!(foreign.waits(DEFAULT), "its work comes first, after its end too");
        Ok(())
    })
}

/// All functions that put work on a stream.
const ORDERED: &str = include_str!("../../reserve/front/ordered.rs");

/// Each function finds its stream among its arguments: while a blocking stream is captured, work on the default stream is
/// refused before the driver is called.
#[test]
fn all_functions_find_their_stream() -> Tested {
    alone("order::all_functions_find_their_stream", || {
        type Any = unsafe extern "C" fn(
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
        ) -> c_int;
        type Begin = unsafe extern "C" fn(Handle, c_int) -> c_int;
        let (foreign, stream) = begin()?;
        let begin = |it: Begin| unsafe { it(stream, 2) };
        assert_eq!(foreign.call("cuStreamBeginCapture_v2", begin), 0);
        let config = [1_usize << 32 | 1, 1 << 32 | 1, 1 << 32 | 1, 2, 1, 0, 0, 0];
        let mut seen = 0;
        for line in ORDERED.lines().filter(|line| line.starts_with("    cu")) {
            let (name, rest) = line.trim().split_once(": ").expect("a name");
            let list = rest.rsplit_once('(').expect("arguments").1;
            let places =
                list.split(", ").map(|argument| argument.split(':').next().expect("a name"));
            let values: Vec<usize> = places
                .map(|place| match place {
                    "hStream" | "stream" => LEGACY.addr(),
                    "config" => config.as_ptr().addr(),
                    _ => 0x1000,
                })
                .chain([0; 11])
                .collect();
            let v: [usize; 11] = values[..11].try_into()?;
            let call = |it: Any| unsafe {
                it(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10])
            };
            // The default stream cannot be captured, and the other work would wait for the capture.
            let refusal = if name.starts_with("cuStreamBegin") { 900 } else { 906 };
            assert_eq!(foreign.call(name, call), refusal, "{name}");
            seen += 1;
        }
        assert!(seen > 130, "{seen}");
        Ok(())
    })
}

#[test]
fn each_device_has_its_own_order() -> Tested {
    alone("order::each_device_has_its_own_order", || {
        let (foreign, stream) = begin()?;
        // The default stream of another device does not wait.
        let mut second = ptr::null_mut();
        assert_eq!(foreign.retain(1, &mut second), 0);
        foreign.late(stream);
        assert_eq!(foreign.on_context("cuCtxSetCurrent", second), 0);
        assert!(!foreign.waits(DEFAULT));
        let (status, other) = foreign.new_stream(0);
        assert!(status == 0 && other != stream);
        foreign.late(DEFAULT);
        assert!(foreign.waits(other));
        Ok(())
    })
}

#[test]
fn places_of_a_reset_device_are_used_again() -> Tested {
    alone("order::places_of_a_reset_device_are_used_again", || {
        let (foreign, _) = begin()?;
        let reset = |it: unsafe extern "C" fn(c_int) -> c_int| unsafe { it(0) };
        for _ in 0..5 {
            let made = (0..300).filter(|_| foreign.new_stream(0).0 == 0).count();
            assert_eq!(made, 300);
            assert_eq!(foreign.call("cuDevicePrimaryCtxReset_v2", reset), 0);
            let mut context = ptr::null_mut();
            assert_eq!(foreign.retain(0, &mut context), 0);
            assert_eq!(foreign.on_context("cuCtxSetCurrent", context), 0);
        }
        let (_, stream) = foreign.new_stream(0);
        foreign.late(DEFAULT);
        assert!(foreign.waits(stream));
        Ok(())
    })
}

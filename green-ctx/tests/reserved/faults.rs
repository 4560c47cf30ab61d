//! Faults of the driver at each call of the library in front of it.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};
use std::process::Command;
use std::{env, fs, ptr};

use green_ctx::Driver;
use green_ctx::resource::Amount;
use green_ctx::sys::{CUdevResource, CUdevResourceType};

use crate::foreign::{Foreign, Handle};
use crate::order::{DEFAULT, OnStream};
use crate::{CHILD, Tested};

type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;

const NAME: &str = "faults::a_fault_leaves_nothing_unconfined";
const FAULT: &str = "GREEN_CTX_SIM_FAULT";
/// Set if the primary context comes from the driver's private table.
const BY_TABLE: &str = "BY_TABLE";
/// The rest of the 132 SMs.
const REST: c_uint = 100;

impl Foreign {
    /// Makes the primary context current. Whatever fails, the current context is the rest's or none.
    fn enter(&self) -> bool {
        let mut context = ptr::null_mut();
        let retained = match env::var_os(BY_TABLE) {
            Some(_) => {
                context = self.primary(0);
                0
            }
            None => self.retain(0, &mut context),
        };
        let set = self.on_context("cuCtxSetCurrent", context);
        let entered = retained == 0 && set == 0 && !self.current().is_null();
        // In a green context, no stream is a blocking one.
        let flags = self.flags_of_new_stream();
        assert!(self.current().is_null() || flags != Ok(0), "{flags:?}");
        entered && flags.is_ok()
    }

    /// Pushes and pops the primary context.
    fn push(&self) -> bool {
        let mut context = ptr::null_mut();
        let current = self.current();
        if self.retain(0, &mut context) != 0 || self.on_context("cuCtxPushCurrent_v2", context) != 0
        {
            return false;
        }
        let flags = self.flags_of_new_stream();
        assert!(self.current().is_null() || flags != Ok(0), "{flags:?}");
        type Pop = unsafe extern "C" fn(*mut Handle) -> c_int;
        let popped = self.call("cuCtxPopCurrent_v2", |it: Pop| unsafe { it(&mut context) });
        flags.is_ok() && popped == 0 && self.current() == current
    }

    /// Writes the same memory on the default stream and on one that waits for it. The simulator reports writes that have
    /// no order.
    fn orders(&self) -> bool {
        type Set = unsafe extern "C" fn(u64, u8, usize, Handle) -> c_int;
        let ((status, stream), mut memory) = (self.new_stream(0), 0);
        let allocate = |it: Allocate| unsafe { it(&mut memory, 64) };
        if status != 0 || self.call("cuMemAlloc_v2", allocate) != 0 {
            return false;
        }
        let put = |stream| {
            self.call("cuMemsetD8Async", |it: Set| unsafe { it(memory, 1, 64, stream) }) == 0
        };
        let accepted = [DEFAULT, stream, DEFAULT].map(put);
        let destroy = |it: OnStream| unsafe { it(stream) };
        let destroyed = self.call("cuStreamDestroy_v2", destroy);
        let freed =
            self.on_context("cuMemFree_v2", ptr::with_exposed_provenance_mut(memory as usize));
        self.plain("cuCtxSynchronize") == 0 && accepted == [true; 3] && (destroyed, freed) == (0, 0)
    }

    /// Destroys streams that are being captured.
    fn captures(&self) -> bool {
        [0, 1].into_iter().all(|flags| {
            let (status, stream) = self.new_stream(flags);
            if status != 0 || self.begin_capture(stream) != 0 {
                return false;
            }
            let destroy = || self.on_context("cuStreamDestroy_v2", stream);
            destroy() == 0 || {
                // The capture continues, and must go, so that the device can be waited for.
                assert_eq!(self.on_context("cuMemFree_v2", self.memory()), 0);
                self.end_capture(stream).0 == 0 && destroy() == 0
            }
        })
    }

    /// Asks for SMs and contexts. Each answer is an error or the rest's.
    fn tells(&self) -> bool {
        type OfDevice = unsafe extern "C" fn(c_int, *mut CUdevResource, CUdevResourceType) -> c_int;
        type OfContext =
            unsafe extern "C" fn(Handle, *mut CUdevResource, CUdevResourceType) -> c_int;
        type OfStream = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
        type OfStreamToo = unsafe extern "C" fn(Handle, *mut Handle, *mut Handle) -> c_int;
        type OfPointer = unsafe extern "C" fn(*mut Handle, c_int, u64) -> c_int;
        type OfPointerToo =
            unsafe extern "C" fn(c_uint, *mut c_int, *mut *mut Handle, u64) -> c_int;
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        let rest = self.current();
        if rest.is_null() {
            return false;
        }
        let mut all = true;
        let mut is = |status: c_int, answer: bool| {
            assert!(status != 0 || answer);
            all &= status == 0;
        };
        let (status, sms) = self.sm_count();
        is(status, sms == 100);
        let mut told = unsafe { std::mem::zeroed::<CUdevResource>() };
        let ask = |it: OfDevice| unsafe { it(0, &mut told, kind) };
        let status = self.call("cuDeviceGetDevResource", ask);
        is(status, unsafe { told.__bindgen_anon_1.sm.smCount } == REST);
        told.__bindgen_anon_1.sm.smCount = 0;
        let ask = |it: OfContext| unsafe { it(rest, &mut told, kind) };
        let status = self.call("cuCtxGetDevResource", ask);
        is(status, unsafe { told.__bindgen_anon_1.sm.smCount } == REST);
        // A call that writes nothing must not pass.
        let none = ptr::null_mut();
        let (mut context, mut green) = (none, none);
        let ask = |it: OfStream| unsafe { it(DEFAULT, &mut context) };
        is(self.call("cuStreamGetCtx", ask), std::mem::replace(&mut context, none) == rest);
        let ask = |it: OfStreamToo| unsafe { it(DEFAULT, &mut context, &mut green) };
        is(self.call("cuStreamGetCtx_v2", ask), std::mem::replace(&mut context, none) == rest);
        let mut memory = 0;
        let allocate = |it: Allocate| unsafe { it(&mut memory, 64) };
        is(self.call("cuMemAlloc_v2", allocate), memory != 0);
        let ask = |it: OfPointer| unsafe { it(&mut context, 1, memory) };
        is(self.call("cuPointerGetAttribute", ask), std::mem::replace(&mut context, none) == rest);
        let (mut attribute, mut to) = (1, &raw mut context);
        let ask = |it: OfPointerToo| unsafe { it(1, &mut attribute, &mut to, memory) };
        is(self.call("cuPointerGetAttributes", ask), context == rest);
        all
    }

    /// Uses a stream without order, and an event of the whole context.
    fn fences(&self) -> bool {
        type Create = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
        type Record = unsafe extern "C" fn(Handle, Handle) -> c_int;
        let (mut event, context) = (ptr::null_mut(), self.current());
        let (status, stream) = self.new_stream(1);
        status == 0
            && self.call("cuStreamDestroy_v2", |it: OnStream| unsafe { it(stream) }) == 0
            && self.call("cuEventCreate", |it: Create| unsafe { it(&mut event, 2) }) == 0
            && ["cuCtxRecordEvent", "cuCtxWaitEvent"]
                .iter()
                .all(|name| self.call(name, |it: Record| unsafe { it(context, event) }) == 0)
    }

    /// Creates a green context, which has no more SMs than the rest.
    fn creates(&self) -> bool {
        type OfDevice = unsafe extern "C" fn(c_int, *mut CUdevResource, CUdevResourceType) -> c_int;
        type Split = unsafe extern "C" fn(
            *mut CUdevResource,
            *mut c_uint,
            *const CUdevResource,
            *mut CUdevResource,
            c_uint,
            c_uint,
        ) -> c_int;
        type Describe = unsafe extern "C" fn(*mut Handle, *mut CUdevResource, c_uint) -> c_int;
        type Create = unsafe extern "C" fn(*mut Handle, Handle, c_int, c_uint) -> c_int;
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        let mut whole = unsafe { std::mem::zeroed::<CUdevResource>() };
        let (mut group, mut count) = (whole, 1);
        let (mut desc, mut green) = (ptr::null_mut(), ptr::null_mut());
        let ask = |it: OfDevice| unsafe { it(0, &mut whole, kind) };
        if self.call("cuDeviceGetDevResource", ask) != 0 {
            return false;
        }
        let none = ptr::null_mut();
        let split = |it: Split| unsafe { it(&mut group, &mut count, &whole, none, 0, 16) };
        if self.call("cuDevSmResourceSplitByCount", split) != 0 {
            return false;
        }
        let describe = |it: Describe| unsafe { it(&mut desc, &mut group, 1) };
        if self.call("cuDevResourceGenerateDesc", describe) != 0 {
            return false;
        }
        let create = |it: Create| unsafe { it(&mut green, desc, 0, 1) };
        if self.call("cuGreenCtxCreate", create) != 0 {
            return false;
        }
        // It must go, so that the device can be reset.
        let destroy = || self.on_context("cuGreenCtxDestroy", green);
        destroy() == 0 || destroy() == 0
    }

    fn resets(&self) -> bool {
        let reset = |it: unsafe extern "C" fn(c_int) -> c_int| unsafe { it(0) };
        self.call("cuDevicePrimaryCtxReset_v2", reset) == 0
    }
}

/// Uses the driver as libraries do. After a fault, the second try works.
fn child() -> Tested {
    // The driver itself may fail to load.
    let device = Driver::reserve(Amount::Sms(32)).and_then(|driver| driver.device(0));
    let foreign = Foreign::open("libcuda.so.1")?;
    foreign.init();
    // Before the rest is made, its size is computed.
    let (status, sms) = foreign.sm_count();
    assert!(status != 0 || sms == 100);
    type Step = fn(&Foreign) -> bool;
    let steps: [(&str, Step); 8] = [
        ("enter", |_| true),
        ("push", Foreign::push),
        ("orders", Foreign::orders),
        ("captures", Foreign::captures),
        ("frees wait", Foreign::frees_wait),
        ("tells", Foreign::tells),
        ("fences", Foreign::fences),
        ("creates", Foreign::creates),
    ];
    for (name, step) in steps {
        let tries = || foreign.enter() && step(&foreign);
        assert!(tries() || tries(), "{name}");
    }
    if let Ok(device) = device {
        let free = || device.resources().sm().map(|sms| sms.free_sm_count());
        // The fault may strike only now.
        assert_eq!(free().or_else(|_| free())?, 32);
    }
    // The driver does not reset a device that has a green context, such as a rest that could not be destroyed. The reset
    // is tried all the same, because the device may have had an error.
    let is_left = env::var(FAULT).is_ok_and(|fault| fault == "cuGreenCtxDestroy:2");
    assert!(foreign.resets() || foreign.resets() || is_left);
    assert!(foreign.enter() || foreign.enter());
    Ok(())
}

/// Each call of each function that the library calls fails in turn.
#[test]
fn a_fault_leaves_nothing_unconfined() -> Tested {
    if env::var(CHILD).as_deref() == Ok(NAME) {
        return child();
    }
    let front = include_str!("../../reserve/front/front.rs");
    let list = front.split_once("\nreal! {").and_then(|(_, list)| list.split_once("\n}"));
    let list = list.expect("the functions").0;
    let functions: Vec<_> =
        list.split("= c\"").skip(1).filter_map(|each| each.split('"').next()).collect();
    assert!(functions.len() > 30, "{functions:?}");
    let path = env::temp_dir().join(format!("green-ctx-faults-{}", std::process::id()));
    let mut called = BTreeSet::new();
    for by_table in [false, true] {
        // Returns the simulator's report.
        let run = |fault: &str| -> Result<String, Box<dyn std::error::Error>> {
            let mut child = Command::new(env::current_exe()?);
            child.args([NAME, "--exact", "--nocapture"]).env(CHILD, NAME).env(FAULT, fault);
            child.envs(by_table.then_some((BY_TABLE, "1"))).env("GREEN_CTX_SIM_REPORT", &path);
            let done = child.output()?;
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{fault} {by_table}: {said}");
            let report = fs::read_to_string(&path)?;
            fs::remove_file(&path)?;
            assert!(!report.contains("race: "), "{fault} {by_table}: {report}");
            Ok(report)
        };
        let report = run("")?;
        for function in &functions {
            let calls = report.lines().find_map(|line| {
                line.trim().strip_prefix(&format!("\"{function}\": "))?.strip_suffix(',')
            });
            let calls: u64 = calls.unwrap_or("0").parse()?;
            if calls > 0 {
                called.insert(function);
            }
            for nth in 1..=calls {
                run(&format!("{function}:{nth}"))?;
            }
        }
    }
    assert_eq!(called, functions.iter().collect(), "each is called");
    Ok(())
}

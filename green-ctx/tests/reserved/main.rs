//! A reserve in front of the simulated `libcuda.so.1`. A process has one reserve, so each test runs
//! in its own process. `cargo xtask clients` runs them.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each call has its signature in cuda.h, and its arguments are valid"
)]

use std::env;
use std::ffi::{c_int, c_uint};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::ptr;

use green_ctx::context::Context;
use green_ctx::error::ErrorKind;
use green_ctx::event::EventOptions;
use green_ctx::graph::{CaptureMode, Graph};
use green_ctx::plan::SwitchOptions;
use green_ctx::resource::{Amount, Granularity};
use green_ctx::sim::Sim;
use green_ctx::verify::{self, DEFAULT_STAY as STAY};
use green_ctx::watch::Watch;
use green_ctx::{
    Driver, Error, LaunchConfig, Library, PlanRequest, PlanSet, SplitRequest, StreamOptions,
};
use green_ctx_reserve::Error as Reserve;
use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

mod faults;
mod foreign;
mod graphs;
mod order;

use foreign::{Entry, Foreign, Handle, Lookup};

type Tested = Result<(), Box<dyn std::error::Error>>;

/// Names the test that a child process runs.
const CHILD: &str = "GREEN_CTX_RESERVED_TEST";

/// Runs a test in a process of its own.
fn alone(name: &str, test: fn() -> Tested) -> Tested {
    if env::var(CHILD).as_deref() == Ok(name) {
        return test();
    }
    let mut child = Command::new(env::current_exe()?);
    child.args([name, "--exact", "--nocapture"]).env(CHILD, name);
    let done = child.env("GREEN_CTX_SIM_DEVICES", "2").output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}{said}", String::from_utf8_lossy(&done.stdout));
    // The child's own lines for users.
    eprint!("{said}");
    Ok(())
}

#[test]
fn work_outside_of_partitions_is_confined() -> Tested {
    alone("work_outside_of_partitions_is_confined", || {
        let driver = Driver::reserve(Amount::Sms(32))?;
        assert!(driver.is_simulated(), "these tests are for the simulated library");
        let device = driver.device(0)?;
        // cudarc asks for the first name.
        for name in ["libcuda.so", "libcuda.so.1"] {
            let (foreign, context) = Foreign::begin(name)?;
            assert_eq!(foreign.sm_count(), (0, 100), "{name}");
            assert_eq!(foreign.current(), context, "{name}");
            // The primary context of green-ctx is the same one.
            let primary = device.primary_context()?;
            assert_eq!((primary.as_raw().cast(), primary.sm_count()?), (context, 100));
        }
        // The driver's functions do not get in the way of other libraries' names.
        assert!(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"cuInit".as_ptr()) }.is_null());
        // green-ctx itself sees the whole device.
        assert_eq!(device.sm_count()?, 132);
        Ok(())
    })
}

#[test]
fn floors_come_from_the_reserve() -> Tested {
    alone("floors_come_from_the_reserve", || {
        let device = Driver::reserve(Amount::Sms(29))?.device(0)?;
        assert_eq!(device.resources().sm()?.free_sm_count(), 32, "rounded up");
        let request = SplitRequest::new().group("decode", 32..).group("load", ..=116);
        let parts = device.partition(request)?;
        assert_eq!((parts["decode"].sm_count(), parts["load"].sm_count()), (132, 100));
        drop(parts);
        let error = device.partition([40]).map(drop).expect_err("32 are free");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "no close makes it possible");
        let error = error.to_string();
        assert!(error.contains("work outside of partitions (100 SMs) may use them"), "{error}");
        let held = device.partition([8])?;
        let error = device.partition([32]).map(drop).expect_err("24 are free");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        drop(held);
        let fine = SplitRequest::new().group("fine", 6).granularity(Granularity::Fine);
        let error = device.partition(fine).map(drop).expect_err("the rest is coarse").to_string();
        assert!(error.contains("a reserve keeps it cut like this"), "{error}");
        let rest = device.partition(SplitRequest::new().rest("all"))?;
        assert_eq!(rest[0].sm_count(), 32);
        drop(rest);
        for _ in 0..50 {
            drop(device.partition([16, 16])?);
        }
        assert_eq!(device.resources().sm()?.free_sm_count(), 32);
        Ok(())
    })
}

#[test]
fn percentages_are_of_the_device() -> Tested {
    alone("percentages_are_of_the_device", || {
        let device = Driver::reserve(Amount::Percent(25))?.device(0)?;
        assert_eq!(
            device.resources().sm()?.free_sm_count(),
            36,
            "33 SMs, with the unit of 12 and three of 8"
        );
        assert_eq!(device.partition([12, 24])?.len(), 2);
        Ok(())
    })
}

/// On a GPU whose odd unit is larger than the others: 7 units of 8 SMs, and one of 28.
#[test]
fn the_fewest_sms_are_reserved() -> Tested {
    const NAME: &str = "the_fewest_sms_are_reserved";
    const AMOUNT: &str = "AMOUNT";
    if env::var(CHILD).as_deref() == Ok(NAME) {
        let device = Driver::reserve(Amount::Sms(env::var(AMOUNT)?.parse()?))?.device(0)?;
        print!("{};", device.resources().sm()?.free_sm_count());
        return Ok(());
    }
    for (amount, reserved) in [(20, 24), (28, 28), (30, 32), (56, 56), (58, 60), (62, 68), (70, 76)]
    {
        let mut child = Command::new(env::current_exe()?);
        child.args([NAME, "--exact", "--nocapture"]).env(CHILD, NAME);
        let done =
            child.env("GREEN_CTX_SIM", "rtx5080").env(AMOUNT, amount.to_string()).output()?;
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(said.contains(&format!("{reserved};")), "{amount}: {said}");
    }
    Ok(())
}

#[test]
fn contexts_on_all_sms_are_refused() -> Tested {
    alone("contexts_on_all_sms_are_refused", || {
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, _) = Foreign::begin("libcuda.so.1")?;
        for name in ["cuCtxCreate_v2", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate"] {
            assert_eq!(foreign.plain(name), 801, "{name}");
        }
        Ok(())
    })
}

#[test]
fn a_wait_for_the_device_covers_partitions() -> Tested {
    alone("a_wait_for_the_device_covers_partitions", || {
        let device = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let (foreign, _) = Foreign::begin("libcuda.so.1")?;
        let parts = device.partition([16])?;
        let busy = || -> green_ctx::Result<_> {
            let event = device.create_event(EventOptions::default())?;
            parts[0]
                .stream()
                .launch_host(|| std::thread::sleep(std::time::Duration::from_millis(20)))?;
            parts[0].stream().record(&event)?;
            Ok(event)
        };
        let event = busy()?;
        assert_eq!(foreign.plain("cuCtxSynchronize"), 0);
        assert!(event.is_complete()?, "foreign");
        let event = busy()?;
        device.primary_context()?.synchronize()?;
        assert!(event.is_complete()?, "green-ctx");
        Ok(())
    })
}

#[test]
fn a_reset_device_is_divided_again() -> Tested {
    alone("a_reset_device_is_divided_again", || {
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, _) = Foreign::begin("libcuda.so.1")?;
        let reset = |it: unsafe extern "C" fn(c_int) -> c_int| unsafe { it(0) };
        assert_eq!(foreign.call("cuDevicePrimaryCtxReset_v2", reset), 0);
        let (foreign, _) = Foreign::begin("libcuda.so.1")?;
        assert_eq!((foreign.create_stream(0), foreign.create_stream(1)), (0, 0));
        Ok(())
    })
}

/// cuDNN pushes and pops contexts with functions of before CUDA 4. Those that the simulated driver has only by name
/// answer 801, so the newer forms were not called in their place.
#[test]
fn old_forms_of_functions_are_not_mixed_with_new_ones() -> Tested {
    alone("old_forms_of_functions_are_not_mixed_with_new_ones", || {
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, rest) = Foreign::begin("libcuda.so.1")?;
        assert_eq!(foreign.on_context("cuCtxPushCurrent", rest), 801);
        assert_eq!(foreign.on_context("cuCtxPushCurrent_v2", rest), 0);
        let ((_, blocking), (_, other)) = (foreign.new_stream(0), foreign.new_stream(1));
        let destroy = |stream| foreign.on_context("cuStreamDestroy", stream);
        assert_eq!((destroy(blocking), destroy(blocking), destroy(other)), (0, 400, 801));
        Ok(())
    })
}

/// A program never gets a primary context, or a context on all SMs.
#[test]
fn other_code_cannot_obtain_the_primary_context() -> Tested {
    alone("other_code_cannot_obtain_the_primary_context", || {
        use green_ctx::sys::{CUdevResource, CUdevResourceType as Kind};
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, rest) = Foreign::begin("libcuda.so.1")?;
        let primary = foreign.primary(0);
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        type OfPointer = unsafe extern "C" fn(*mut Handle, c_int, u64) -> c_int;
        type OfPointers = unsafe extern "C" fn(c_uint, *mut c_int, *mut *mut Handle, u64) -> c_int;
        type OfStream = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
        type Resource = unsafe extern "C" fn(Handle, *mut CUdevResource, Kind) -> c_int;
        type Create = unsafe extern "C" fn(*mut Handle, Handle, c_int, c_uint) -> c_int;
        type Destroy = unsafe extern "C" fn(Handle) -> c_int;
        type Greens = unsafe extern "C" fn(Handle, *mut Handle, *mut Handle) -> c_int;

        let mut memory = 0;
        foreign.call("cuMemAlloc_v2", |it: Allocate| unsafe { it(&mut memory, 64) });
        let (mut found, mut green) = ([ptr::null_mut(); 4], ptr::null_mut());
        let [first, second, third, fourth] = &mut found;
        foreign.call("cuPointerGetAttribute", |it: OfPointer| unsafe { it(first, 1, memory) });
        let (mut kind, mut to): (_, *mut Handle) = (1, second);
        foreign.call("cuPointerGetAttributes", |it: OfPointers| unsafe {
            it(1, &mut kind, &mut to, memory)
        });
        foreign.call("cuStreamGetCtx", |it: OfStream| unsafe { it(ptr::null_mut(), third) });
        foreign.call("cuStreamGetCtx_v2", |it: Greens| unsafe {
            it(ptr::null_mut(), fourth, &mut green)
        });
        assert_eq!(found, [rest; 4]);

        let mut told = unsafe { std::mem::zeroed::<CUdevResource>() };
        let ask = |it: Resource| unsafe { it(primary, &mut told, Kind::CU_DEV_RESOURCE_TYPE_SM) };
        assert_eq!(foreign.call("cuCtxGetDevResource", ask), 0);
        assert_eq!(unsafe { told.__bindgen_anon_1.sm.smCount }, 100);
        let mut made = ptr::null_mut();
        let create = |it: Create| unsafe { it(&mut made, ptr::null_mut(), 0, 1) };
        assert_eq!(foreign.call("cuGreenCtxCreate", create), 801);
        assert_eq!(foreign.call("cuGreenCtxDestroy", |it: Destroy| unsafe { it(green) }), 800);
        Ok(())
    })
}

/// As without a reserve, a reset is refused while partitions exist, and changes nothing.
#[test]
fn a_refused_reset_keeps_the_rest() -> Tested {
    alone("a_refused_reset_keeps_the_rest", || {
        let device = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let (foreign, rest) = Foreign::begin("libcuda.so.1")?;
        let reset = || {
            let reset = |it: unsafe extern "C" fn(c_int) -> c_int| unsafe { it(0) };
            foreign.call("cuDevicePrimaryCtxReset_v2", reset)
        };
        let parts = device.partition([16])?;
        assert_eq!((reset(), foreign.current()), (800, rest));
        assert_eq!(foreign.create_stream(1), 0);
        drop(parts);
        device.release_idle();
        assert_eq!((reset(), foreign.current()), (0, ptr::null_mut()));
        // A primary context stays valid when it is reset, so programs may use it again.
        for _ in 0..2 {
            assert_eq!(foreign.on_context("cuCtxSetCurrent", rest), 0);
            assert_eq!((foreign.create_stream(0), foreign.create_stream(1)), (0, 0));
            assert_eq!(reset(), 0);
        }
        Ok(())
    })
}

#[test]
fn a_reserve_that_leaves_nothing_confines_nothing_in_silence() -> Tested {
    alone("a_reserve_that_leaves_nothing_confines_nothing_in_silence", || {
        let reserved = Driver::reserve(Amount::Sms(132)).map(drop);
        let error = reserved.expect_err("nothing is left");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.to_string().contains("leaves no SMs"), "{error}");
        let error = Driver::reserve(Amount::Sms(32)).map(drop).expect_err("it stays");
        assert!(error.to_string().contains("a reserve of 132 SMs was requested"), "{error}");
        let error = Driver::load().expect_err("nothing is left");
        assert!(error.to_string().contains("leaves no SMs"), "{error}");
        let foreign = Foreign::open("libcuda.so.1")?;
        let mut context = ptr::null_mut();
        assert_eq!((foreign.retain(0, &mut context), context.is_null()), (915, true));
        assert_ne!(foreign.sm_count().0, 0);
        Ok(())
    })
}

#[test]
fn a_reserve_cannot_be_changed() -> Tested {
    alone("a_reserve_cannot_be_changed", || {
        assert!(matches!(Driver::reserve(Amount::Sms(0)), Err(Error::InvalidRequest(_))));
        let driver = Driver::reserve(Amount::Sms(32))?;
        Driver::reserve(Amount::Sms(32))?;
        for other in [Amount::Sms(40), Amount::Percent(32)] {
            assert!(matches!(Driver::reserve(other), Err(Error::Reserve(Reserve::Other(_)))));
        }
        // The same driver, so one ledger.
        let parts = driver.device(0)?.partition([16])?;
        assert_eq!(Driver::load()?.device(0)?.resources().sm()?.free_sm_count(), 16);
        drop(parts);
        Ok(())
    })
}

#[test]
fn a_driver_in_use_cannot_be_confined() -> Tested {
    alone("a_driver_in_use_cannot_be_confined", || {
        let driver = Driver::load()?;
        let error = Driver::reserve(Amount::Sms(32)).map(drop).expect_err("too late");
        assert!(matches!(error, Error::Reserve(Reserve::Loaded)), "{error}");
        // Nothing has changed.
        let primary = driver.device(0)?.primary_context()?;
        primary.create_stream(StreamOptions::default())?;
        assert_eq!(primary.sm_count()?, 132);
        Ok(())
    })
}

#[test]
fn a_driver_that_was_opened_by_its_path_cannot_be_confined() -> Tested {
    alone("a_driver_that_was_opened_by_its_path_cannot_be_confined", || {
        let path = green_ctx::sys::find("libcuda.so.1".as_ref()).expect("the simulated library");
        let _opened = unsafe { Loaded::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }?;
        let error = Driver::reserve(Amount::Sms(32)).map(drop).expect_err("too late");
        assert!(matches!(error, Error::Reserve(Reserve::Loaded)), "{error}");
        Ok(())
    })
}

/// The process has no file left for the library in memory, or for the loader, which opens it by a path in /proc.
#[test]
fn a_library_that_cannot_be_loaded_reserves_nothing() -> Tested {
    alone("a_library_that_cannot_be_loaded_reserves_nothing", || {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
        let set = |files| {
            let limit = libc::rlimit { rlim_cur: files, ..limit };
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        };
        let next = File::open("/dev/null")?.as_raw_fd() as libc::rlim_t;
        for more in 1..=2 {
            set(next + more);
            let reserved = Driver::reserve(Amount::Sms(32)).map(drop);
            set(limit.rlim_cur);
            let error = reserved.expect_err("no file is left");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let is_expected = match error {
                Error::Reserve(Reserve::Memory(_)) => more == 1,
                Error::Reserve(Reserve::Load(_)) => more == 2,
                _ => false,
            };
            assert!(is_expected, "{more}");
        }
        assert_eq!(Driver::reserve(Amount::Sms(32))?.device(0)?.reserved_sm_count()?, 32);
        Ok(())
    })
}

#[test]
fn a_driver_without_green_contexts_of_several_units_cannot_be_confined() -> Tested {
    alone("a_driver_without_green_contexts_of_several_units_cannot_be_confined", || {
        // No other thread of this process reads the environment now.
        unsafe { env::set_var("GREEN_CTX_SIM", "h200@12.4") };
        let error = Driver::reserve(Amount::Sms(32)).map(drop).expect_err("it is too old");
        assert!(matches!(error, Error::Reserve(Reserve::Unsupported(_))), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        // The process is as before.
        assert_eq!(Foreign::begin("libcuda.so.1")?.0.sm_count(), (0, 132));
        Ok(())
    })
}

#[test]
fn threads_get_one_rest() -> Tested {
    alone("threads_get_one_rest", || {
        let device = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let contexts: Vec<usize> = std::thread::scope(|scope| {
            let begin = || Foreign::begin("libcuda.so.1").map(|(_, context)| context.addr());
            let threads: Vec<_> =
                (0..16).map(|_| scope.spawn(move || begin().unwrap_or_default())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        });
        let primary = device.primary_context()?.as_raw().addr();
        assert!(contexts.iter().all(|context| *context == primary), "{contexts:?}");
        Ok(())
    })
}

#[test]
fn a_reset_keeps_the_current_context_of_another_device() -> Tested {
    alone("a_reset_keeps_the_current_context_of_another_device", || {
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, first) = Foreign::begin("libcuda.so.1")?;
        let mut second = ptr::null_mut();
        assert_eq!(foreign.retain(1, &mut second), 0);
        let reset = |it: unsafe extern "C" fn(c_int) -> c_int| unsafe { it(1) };
        assert_eq!(foreign.call("cuDevicePrimaryCtxReset_v2", reset), 0);
        assert_eq!(foreign.current(), first);
        Ok(())
    })
}

#[test]
fn the_primary_context_of_a_private_table_is_replaced() -> Tested {
    alone("the_primary_context_of_a_private_table_is_replaced", || {
        Driver::reserve(Amount::Sms(32))?;
        let foreign = Foreign::open("libcuda.so.1")?;
        assert_eq!(foreign.init(), 0);
        for device in 0..2 {
            let primary = foreign.primary(device);
            assert_eq!(foreign.on_context("cuCtxPushCurrent_v2", primary), 0);
            assert_ne!(foreign.current(), primary);
            assert_eq!((foreign.create_stream(0), foreign.create_stream(1)), (0, 0));
        }
        Ok(())
    })
}

#[test]
fn green_contexts_of_other_libraries_are_cut_from_the_rest() -> Tested {
    alone("green_contexts_of_other_libraries_are_cut_from_the_rest", || {
        use green_ctx::sys::{CUdevResource, CUdevResourceType};
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, _) = Foreign::begin("libcuda.so.1")?;
        type Resource = unsafe extern "C" fn(c_int, *mut CUdevResource, CUdevResourceType) -> c_int;
        let mut told = unsafe { std::mem::zeroed::<CUdevResource>() };
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        let ask = |it: Resource| unsafe { it(0, &mut told, kind) };
        assert_eq!(foreign.call("cuDeviceGetDevResource", ask), 0);
        assert_eq!(unsafe { told.__bindgen_anon_1.sm.smCount }, 100);
        // The driver makes groups of 24 and of 28 SMs, without an error.
        type Split = unsafe extern "C" fn(
            *mut CUdevResource,
            *mut c_uint,
            *const CUdevResource,
            *mut CUdevResource,
            c_uint,
            c_uint,
        ) -> c_int;
        let mut groups = [told; 8];
        let mut split = |least| {
            let (to, mut count) = (groups.as_mut_ptr(), 3);
            foreign.call("cuDevSmResourceSplitByCount", |it: Split| unsafe {
                it(to, &mut count, &told, ptr::null_mut(), 0, least)
            })
        };
        assert_eq!((split(24), split(32)), (0, 915));
        Ok(())
    })
}

/// Plans, graphs, divided partitions and many partitions, all on the reserve and nowhere else.
#[test]
fn partitions_work_as_without_a_reserve() -> Tested {
    alone("partitions_work_as_without_a_reserve", || {
        let device = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let anywhere = device.primary_context()?.create_stream(StreamOptions::default())?;
        let probe = |parts: &[&Context]| verify::contexts(parts.iter().copied(), STAY);
        let plan = |name, decode: u32| {
            PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("other"))
        };
        let set = PlanSet::new(device.rest("all")?, plan("day", 8))?;
        let night = set.prepare(plan("night", 24))?;
        let text = ".version 7.0 .target sm_52 .address_size 64 .visible .entry nothing() { ret; }";
        let nothing = Library::from_ptx(&device, text)?.kernel("nothing")?;
        let launch = || unsafe { anywhere.launch(&nothing, LaunchConfig::new(1, 1), ()) };
        let graph = anywhere.capture(CaptureMode::default(), launch)?;
        for _ in 0..20 {
            for plan in [&night, &set.plan("day")?] {
                set.switch(plan, SwitchOptions::default())?;
                let active = set.active();
                let [decode, other] = ["decode", "other"].map(|name| active.partition(name));
                let (decode, other) = (decode.ok_or("no decode")?, other.ok_or("no other")?);
                let report = probe(&[decode.context(), other.context()])?;
                // The report has work outside of partitions, too.
                assert!(report.disjoint() && report.partitions.len() == 3);
                let exec = graph.retarget(decode.context())?.instantiate()?;
                unsafe { decode.stream().launch_graph(&exec) }?;
                decode.stream().synchronize()?;
            }
        }
        drop((night, set));

        let outer = device.resources().sm()?.split([24])?.groups.remove(0);
        let inner = outer.split([8, 16]).map_err(|refused| refused.reason)?;
        assert_eq!((inner.groups.len(), device.resources().sm()?.free_sm_count()), (2, 8));
        drop(inner);
        for _ in 0..1000 {
            let part = device.partition([16])?;
            part[0].stream().launch_host(|| ())?;
        }
        device.primary_context()?.synchronize()?;
        assert_eq!(device.resources().sm()?.free_sm_count(), 32);
        Ok(())
    })
}

#[test]
fn reports_name_work_outside_of_partitions() -> Tested {
    alone("reports_name_work_outside_of_partitions", || {
        let device = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let parts =
            device.partition(SplitRequest::new().group("decode", 16).group("load", ..=116))?;
        let sharers = parts["load"].shared_with();
        assert_eq!(sharers[0].to_string(), "work outside of partitions (100 SMs)");
        assert!(parts["decode"].shared_with().is_empty());
        let mut report = verify::partitions(&parts, verify::DEFAULT_STAY)?;
        assert!(report.ok() && !report.disjoint());
        let rest = report.rest().expect("the reserve confines work");
        assert_eq!((report.partitions.len(), rest.floor, rest.alone_sms.len()), (3, 0, 100));
        assert!(rest.alone_sms.is_disjoint(&report.partitions[0].floor_sms));
        // One block on a floor is a failure.
        report.partitions[2].blocks[0].sm = report.partitions[0].blocks[0].sm;
        assert!(!report.ok() && !report.floors_kept());
        // The rest itself is in the report once.
        let report = verify::contexts([&device.primary_context()?], verify::DEFAULT_STAY)?;
        assert!(report.partitions.len() == 1 && report.rest().is_some());
        Ok(())
    })
}

#[test]
fn a_simulated_driver_beside_it_has_no_reserve() -> Tested {
    alone("a_simulated_driver_beside_it_has_no_reserve", || {
        let reserving = Driver::reserve(Amount::Sms(32))?.device(0)?;
        let simulated = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
        assert_eq!((reserving.reserved_sm_count()?, simulated.reserved_sm_count()?), (32, 0));
        assert_eq!(simulated.primary_context()?.sm_count()?, 132);
        assert_eq!(simulated.partition([100])?.len(), 1);
        Ok(())
    })
}

#[test]
fn a_driver_that_is_loaded_by_its_path_has_the_reserve() -> Tested {
    alone("a_driver_that_is_loaded_by_its_path_has_the_reserve", || {
        let path = green_ctx::sys::find("libcuda.so.1".as_ref()).expect("the simulated library");
        green_ctx_reserve::reserve(green_ctx_reserve::Amount::parse("32")?)?;
        let by_path = unsafe { Driver::load_from(path) }?;
        let by_name = Driver::load()?;
        for driver in [&by_path, &by_name] {
            assert_eq!(driver.device(0)?.reserved_sm_count()?, 32);
        }
        // They are one driver, so they have one ledger.
        let _part = by_path.device(0)?.partition([16])?;
        assert_eq!(by_name.device(0)?.resources().sm()?.free_sm_count(), 16);
        Ok(())
    })
}

#[test]
fn a_driver_that_was_loaded_by_its_path_cannot_be_confined() -> Tested {
    alone("a_driver_that_was_loaded_by_its_path_cannot_be_confined", || {
        let path = green_ctx::sys::find("libcuda.so.1".as_ref()).expect("the simulated library");
        let driver = unsafe { Driver::load_from(path) }?;
        let error = Driver::reserve(Amount::Sms(32)).map(drop).expect_err("too late");
        assert!(matches!(error, Error::Reserve(Reserve::Loaded)), "{error}");
        assert_eq!(driver.device(0)?.primary_context()?.sm_count()?, 132);
        Ok(())
    })
}

/// The library is a file that the loader finds before the driver, as for programs without green-ctx.
#[test]
fn a_library_that_is_a_file_reserves_from_the_start() -> Tested {
    const NAME: &str = "a_library_that_is_a_file_reserves_from_the_start";
    if env::var(CHILD).as_deref() == Ok(NAME) {
        if env::var_os("LIMIT").is_some() {
            let _opened = Foreign::open("libcuda.so.1")?;
            // The 64 SMs are a limit, not a reserve.
            let error = Driver::reserve(Amount::Sms(16)).map(drop).expect_err("too late");
            assert!(matches!(error, Error::Reserve(Reserve::Loaded)), "{error}");
            return Ok(());
        }
        if env::var_os("LOAD_FIRST").is_some() {
            assert_eq!(Driver::load()?.device(0)?.reserved_sm_count()?, 16);
        }
        let other = Driver::reserve(Amount::Sms(24)).map(drop);
        assert!(matches!(other, Err(Error::Reserve(Reserve::Other(_)))), "{other:?}");
        let device = Driver::reserve(Amount::Sms(16))?.device(0)?;
        assert_eq!((device.sm_count()?, device.reserved_sm_count()?), (132, 16));
        assert_eq!(Foreign::begin("libcuda.so")?.0.sm_count(), (0, 116));
        return Ok(());
    }
    let real = green_ctx::sys::find("libcuda.so.1".as_ref()).expect("the simulated library");
    let folder = env::temp_dir().join(format!("green-ctx-reserved-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let reserve = green_ctx_reserve::Amount::parse("16")?;
    let limit = green_ctx_reserve::Amount { number: 64, of_rest: true, ..reserve };
    for (amount, variable) in [(reserve, "NONE"), (reserve, "LOAD_FIRST"), (limit, "LIMIT")] {
        for (name, bytes) in green_ctx_reserve::files(&real, amount)? {
            std::fs::write(folder.join(name), bytes)?;
        }
        let mut child = Command::new(env::current_exe()?);
        child.args([NAME, "--exact", "--nocapture"]).env(CHILD, NAME).env(variable, "1");
        let done = child.env("LD_LIBRARY_PATH", &folder).output()?;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// A thread opens the driver while another reserves. Either both have the reserve, or it fails.
#[test]
fn threads_that_open_the_driver_are_confined_or_it_is_too_late() -> Tested {
    const NAME: &str = "threads_that_open_the_driver_are_confined_or_it_is_too_late";
    if env::var(CHILD).as_deref() == Ok(NAME) {
        let (reserved, opened) = std::thread::scope(|scope| {
            let wait: u64 = env::var("WAIT").map_or(0, |wait| wait.parse().unwrap_or(0));
            let open = scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_micros(wait));
                Foreign::open("libcuda.so.1").expect("the simulated library")
            });
            (Driver::reserve(Amount::Sms(32)), open.join().expect("no panic"))
        });
        let is_front = unsafe { opened.0.get::<Entry>(b"greenCtxReserveEntry") }.is_ok();
        assert_eq!(reserved.is_ok(), is_front);
        return Ok(());
    }
    for wait in 0..40 {
        let mut child = Command::new(env::current_exe()?);
        child.args([NAME, "--exact", "--nocapture"]).env(CHILD, NAME);
        let done = child.env("WAIT", (wait * 20).to_string()).output()?;
        assert!(done.status.success(), "{wait}: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(())
}

/// A child is forked while other threads are in the library. No lock may stay taken in the child.
#[test]
fn a_forked_child_does_not_wait_for_a_thread() -> Tested {
    alone("a_forked_child_does_not_wait_for_a_thread", || {
        Driver::reserve(Amount::Sms(32))?;
        let (foreign, _) = Foreign::begin("libcuda.so.1")?;
        let entry = *unsafe { foreign.0.get::<Entry>(b"greenCtxReserveEntry") }?;
        let own = *unsafe { foreign.0.get::<Lookup>(b"cuGetProcAddress_v2") }?;
        let ends = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| -> Tested {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                        unsafe { entry(own) };
                    }
                });
            }
            let mut statuses = Vec::new();
            for _ in 0..100 {
                // The child calls only this function and functions of the system.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    unsafe {
                        libc::alarm(5);
                        entry(own);
                        libc::_exit(0);
                    }
                }
                let mut status = 0;
                unsafe { libc::waitpid(child, &mut status, 0) };
                statuses.push(status);
            }
            ends.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(statuses, [0; 100]);
            Ok(())
        })
    })
}

#[test]
fn confined_work_is_no_escape() -> Tested {
    alone("confined_work_is_no_escape", || {
        let driver = Driver::reserve(Amount::Sms(32))?;
        let device = driver.device(0)?;
        let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
        let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
        let parts = device.partition(SplitRequest::new().group("decode", 16).group("other", 16))?;
        let outside = device.primary_context()?.create_stream(StreamOptions::default())?;
        let launch = |stream: &green_ctx::Stream| unsafe {
            stream.launch(&step, LaunchConfig::new(64, 128), ())
        };
        let captured = |stream: &green_ctx::Stream| -> green_ctx::Result<_> {
            stream.capture(CaptureMode::default(), || launch(stream))
        };
        let (confined, other) = (captured(&outside)?, captured(parts["other"].stream())?);
        let run = |graph: &Graph| unsafe { outside.launch_graph(&graph.instantiate()?) };
        let watch = Watch::new(parts["decode"].context());
        assert!(watch.stream("a stream", &outside)?);
        assert!(watch.context("a context", &device.primary_context()?)?);
        assert!(watch.graph("a graph", &confined)?);
        {
            let _watching = watch.launches();
            launch(&outside)?;
            run(&confined)?;
        }
        assert_eq!(watch.escapes(), []);
        driver.check_launches(true);
        launch(&outside)?;
        run(&confined)?;
        // Other partitions have floors.
        let refused = run(&other);
        assert!(matches!(refused, Err(Error::Escapes(_))), "{refused:?}");
        assert!(!watch.stream("another partition", parts["other"].stream())?);
        assert!(!watch.graph("another partition", &other)?);
        Ok(())
    })
}

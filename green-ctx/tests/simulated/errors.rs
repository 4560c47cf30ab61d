//! Error messages and classes: the failed constraint, the remedy, and the state after a fault.

use green_ctx::sim::{Fault, Sim};
use green_ctx::{
    CUresult, Device, DeviceBuffer, Error, Kernel, LaunchConfig, Library, PlanSet, Share, Stream,
    StreamOptions, error::ErrorKind, event::EventOptions,
};

use crate::common::plans::plan;
use crate::common::{Outcome, partition, simulated};
use crate::{COMPOSITION, Machine, STRUCTURED, each_driver, each_failing_driver, kernels};

/// An operation that makes the driver call which is set to fail.
type Work = fn(&Device, &Stream) -> green_ctx::Result<()>;

/// A status, the call that returns it, an operation that makes the call, the constraint and the remedy in the
/// message, and whether it counts as misuse.
const ANSWERS: [(CUresult, &str, Work, &str, &str, bool); 7] = [
    (
        CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE,
        "cuGreenCtxGetDevResource",
        |_, stream| stream.context().resources().sm().map(drop),
        "has the wrong type for the call",
        "query and split SMs as SMs",
        true,
    ),
    (
        CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
        "cuDevResourceGenerateDesc",
        |device, _| partition(device, 8).map(drop),
        "must come from one split",
        "`SmResource::dry_run` returns what fits",
        true,
    ),
    (
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        "cuStreamQuery",
        |_, stream| stream.is_idle().map(drop),
        "being captured accepts no call that waits",
        "end the capture first",
        true,
    ),
    (
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        "cuStreamGetPriority",
        |_, stream| stream.priority().map(drop),
        "the context was destroyed",
        "create a new context",
        true,
    ),
    (
        CUresult::CUDA_ERROR_STREAM_DETACHED,
        "cuStreamSynchronize",
        |_, stream| stream.synchronize(),
        "green context was destroyed before the stream",
        "create a new stream in a live context",
        true,
    ),
    (
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
        "cuEventCreate",
        |device, _| device.create_event(EventOptions::default()).map(drop),
        "the device or the system does not support this",
        "check the device's attributes first",
        false,
    ),
    (
        CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
        "cuGreenCtxCreate",
        |device, _| partition(device, 8).map(drop),
        "the installed driver is older than the call",
        "update the driver",
        false,
    ),
];

#[test]
fn answers_say_what_was_wrong_and_what_would_work() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let stream = partition(device, 8)?.create_stream(StreamOptions::default())?;
        for (status, call, work, constraint, remedy, misuse) in ANSWERS {
            sim.fail(Fault::on(call).with(status))?;
            let before = (sim.live(), device.context_counts());
            let error = work(device, &stream).expect_err("it was set to fail");
            assert_eq!((sim.live(), device.context_counts()), before, "{error}");
            assert_eq!(machine.free()?, 124, "{error}");
            let text = error.to_string();
            assert!(text.starts_with(&format!("{call} failed: {status} ({})", status.0)), "{text}");
            assert!(text.contains(constraint) && text.contains(remedy), "{text}");
            assert_eq!((error.status(), error.kind()), (Some(status), ErrorKind::Driver), "{text}");
            assert_eq!((error.is_misuse(), error.is_sticky()), (misuse, false), "{text}");
            // The next attempt succeeds: only the one call was set to fail.
            work(device, &stream)?;
            device.release_idle();
        }
        Ok(())
    })
}

#[test]
fn a_missing_function_is_reported_with_its_version() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let api = machine.driver().api();
        let found = machine.driver().version();
        for (present, call, needs) in [
            (api.cuCtxRecordEvent().map(drop), "cuCtxRecordEvent", COMPOSITION),
            (api.cuGreenCtxStreamCreate().map(drop), "cuGreenCtxStreamCreate", COMPOSITION),
            (api.cuDevSmResourceSplit().map(drop), "cuDevSmResourceSplit", STRUCTURED),
            (api.cuStreamGetDevResource().map(drop), "cuStreamGetDevResource", STRUCTURED),
        ] {
            if machine.has(needs) {
                present?;
                continue;
            }
            let error = Error::from(present.expect_err("the driver is too old"));
            assert!(error.is_unsupported() && !error.is_misuse() && !error.is_sticky(), "{error}");
            assert_eq!((error.kind(), error.status()), (ErrorKind::Unsupported, None));
            assert_eq!(
                error.to_string(),
                format!("{call} needs CUDA {needs}, but the driver supports only {found}")
            );
        }
        // The safe interface returns the same error.
        let event = device.create_event(EventOptions::default())?;
        let primary = device.primary_context()?;
        if !machine.has(COMPOSITION) {
            let recording = || machine.without_calls(|| primary.record(&event));
            machine.unsupported("cuCtxRecordEvent", COMPOSITION, recording)?;
        }
        Ok(())
    })
}

/// The driver would create two of the three groups without an error. This crate returns an error that names
/// what fits.
#[test]
fn too_many_groups_name_what_would_fit() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        let error = machine.refused(|| sms.split([64, 64, 64]))?;
        let Error::NotEnoughSms(shortage) = &error else { return Err(error.into()) };
        assert_eq!((shortage.fit, shortage.free, shortage.total), (2, 132, 132));
        assert!(error.is_misuse() && !error.is_unsupported(), "{error}");
        assert!(error.to_string().contains("3 groups of 64 SMs do not fit, 2 fit"), "{error}");
        assert_eq!(shortage.nearest, [Share::from(40); 3], "{error}");
        assert!(error.to_string().contains("3 groups of 40 would fit"), "{error}");
        // The suggested request does fit.
        assert_eq!(sms.split(shortage.nearest.clone())?.groups.len(), 3);
        Ok(())
    })
}

/// Stores to an address that is not allocated.
fn fault(stream: &Stream, kernel: &Kernel) -> green_ctx::Result<()> {
    // SAFETY: the store faults and ends the device's contexts, which is the purpose of this function.
    unsafe { stream.launch(kernel, LaunchConfig::new(1, 1), (8_u64,)) }
}

#[test]
fn a_fault_is_returned_by_every_handle_and_dropped_quietly() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { sim, device } = machine;
        let reported = machine.hook();
        let contexts = [partition(device, 24)?, partition(device, 24)?];
        let streams = contexts
            .iter()
            .map(|context| context.create_stream(StreamOptions::default()))
            .collect::<green_ctx::Result<Vec<_>>>()?;
        let primary = device.primary_context()?;
        let (event, buffer) = (
            device.create_event(EventOptions::default())?,
            DeviceBuffer::from_slice(device, &[1_u32])?,
        );
        drop(partition(device, 24)?);
        assert_eq!(device.context_counts().idle, 1);

        let kernel =
            Library::from_ptx(device, kernels::WITH_PARAMETERS)?.kernel("green_ctx_fault")?;
        fault(&streams[0], &kernel)?;
        let error = streams[0].synchronize().expect_err("an illegal address");
        assert_eq!(error.status(), Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
        let all: [(&str, green_ctx::Result<()>); 9] = [
            ("another stream", streams[1].synchronize()),
            ("a question", streams[1].is_idle().map(drop)),
            ("a wait", streams[1].wait_for(&streams[0])),
            ("a context", contexts[1].synchronize()),
            ("the primary context", primary.synchronize()),
            ("an event", event.synchronize()),
            ("a buffer", buffer.read(&streams[1]).map(drop)),
            ("a new stream", contexts[1].create_stream(StreamOptions::default()).map(drop)),
            ("a new context", partition(device, 24).map(drop)),
        ];
        for (what, result) in all {
            let error = result.expect_err(what);
            assert!(error.is_sticky() && !error.is_misuse(), "{what}: {error}");
            assert!(error.to_string().ends_with("start a new process"), "{what}: {error}");
        }
        assert_eq!(device.context_counts().idle, 0);

        drop((streams, event, buffer, kernel, primary));
        let [closed, dropped] = contexts;
        drop((closed.close().expect_err("its work failed"), dropped));
        assert_eq!((device.context_counts().idle, sim.live().green_contexts), (0, 0));
        assert_eq!(machine.free()?, 132);
        let reported = reported.lock().expect("no panic");
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{reported:?}");
        Ok(())
    })
}

#[test]
fn errors_have_one_line_and_a_class() {
    let error = |status| Error::Driver { call: "cuSomething", status };
    let text = error(CUresult::CUDA_ERROR_OUT_OF_MEMORY).to_string();
    assert_eq!(text, "cuSomething failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
    for (status, ..) in ANSWERS {
        let text = error(status).to_string();
        assert!(!text.contains("  ") && !text.contains('\n'), "{text}");
    }
    for status in [CUresult::CUDA_ERROR_LAUNCH_FAILED, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS] {
        assert!(
            error(status).is_sticky() && error(status).to_string().ends_with("start a new process")
        );
    }
    assert!(!error(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES).is_sticky());
    assert!(!error(CUresult::CUDA_ERROR_UNKNOWN).is_misuse());
    assert!(Error::GuardOrder.is_misuse() && !Error::GuardOrder.is_sticky());
}

/// `main` prints an error with `Debug` if it returns one through `?`.
#[test]
fn errors_print_as_text_where_a_program_debugs() -> Outcome {
    let (_sim, device) = simulated("h200@13.0")?;
    let parts = device.partition([64])?;
    let shortage = device.partition([100]).expect_err("68 are free");
    let refused = parts[0].clone().close().expect_err("two handles exist");
    let unknown = Sim::new("h2000").expect_err("no such profile");
    let share = "half".parse::<Share>().expect_err("not a share");
    for (debug, words) in [
        (format!("{shortage:?}"), "a group of 100 SMs does not fit: 68 of"),
        (format!("{refused:?}"), "is still in use"),
        (format!("{unknown:?}"), "the profiles are a100"),
        (format!("{share:?}"), "\"half\" is not a share"),
        (format!("{:?}", Error::Capturing), "captured"),
    ] {
        assert!(debug.contains(words) && !debug.contains('{'), "{debug}");
    }
    Ok(())
}

/// A program may continue without partitions if there is no driver, but not if the driver is not ready.
#[test]
fn a_driver_that_does_not_work_is_not_a_missing_one() {
    let init = |status| Error::Driver { call: "cuInit", status };
    for (error, kind) in [
        (init(CUresult::CUDA_ERROR_NO_DEVICE), ErrorKind::NoDriver),
        (init(CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH), ErrorKind::Driver),
        (init(CUresult::CUDA_ERROR_SYSTEM_NOT_READY), ErrorKind::Driver),
        (Error::Forked, ErrorKind::Driver),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn text_that_is_no_share_is_an_invalid_request() {
    let read = |text: &str| -> green_ctx::Result<Share> { Ok(text.parse()?) };
    let error = read("half").expect_err("not a share");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(error.to_string().contains("\"half\" is not a share"), "{error}");
}

#[test]
fn a_request_that_no_close_makes_possible_is_a_misuse() -> Outcome {
    let (_sim, device) = simulated("h200@13.0")?;
    let held = device.partition([16])?;
    for request in [vec![200], vec![16, 200], vec![64, 72]] {
        let error = device.partition(&request).expect_err("the device has 132 SMs");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert!(!error.to_string().contains("held by"), "{error}");
    }
    let error = device.partition([64, 64]).expect_err("16 SMs are held");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(held);
    Ok(())
}

#[test]
fn a_spec_that_is_wrong_is_an_invalid_request() {
    let error = Error::from(Sim::new("h300").expect_err("there is no such profile"));
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(error.to_string().contains("the profiles are a100, b200"), "{error}");
}

/// As with `?` in a function that returns this crate's `Result`.
#[test]
fn each_reason_becomes_an_error_of_its_kind() -> Outcome {
    type Tried = green_ctx::Result<()>;
    let (sim, device) = simulated("h200@13.0")?;
    let part = partition(&device, 16)?;
    let stream = part.create_stream(StreamOptions::default())?;
    let close = || -> Tried {
        part.close()?;
        Ok(())
    };
    let set = || Ok::<_, Error>(PlanSet::new(device.rest("all")?, plan("day", 16))?);
    let active = || -> Tried {
        set()?.retire("day")?;
        Ok(())
    };
    let close_set = || -> Tried {
        let set = set()?;
        let other = set.clone();
        set.close()?;
        drop(other);
        Ok(())
    };
    let driver = || -> Tried {
        sim.fail(Fault::on("cuGreenCtxCreate"))?;
        set()?;
        Ok(())
    };
    for (tried, kind, text) in [
        // First, before there are contexts to use again.
        (driver(), ErrorKind::Driver, "cuGreenCtxCreate failed"),
        (close(), ErrorKind::Unavailable, "one of its streams is alive"),
        (active(), ErrorKind::InvalidRequest, "plan day is the active one"),
        (close_set(), ErrorKind::Unavailable, "another handle of the set is alive"),
    ] {
        let error = tried.expect_err(text);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    drop(stream);
    Ok(())
}

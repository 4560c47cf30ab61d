//! SMs whose last work could not be recorded stay in quarantine: no request gets them as a floor until it can
//! be recorded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use green_ctx::sim::{Fault, Live};
use green_ctx::sys::CUstream;
use green_ctx::{
    CUresult, Device, Error, Graph, PlanRequest, PlanSet, SplitRequest, StreamOptions,
    context::Context, error::ErrorKind, resource::Granularity,
};

use crate::LONG;
use crate::common::{Outcome, partition, raw, simulated, stream};
use crate::work::{self, launch};

const DRIVERS: [&str; 4] = ["h200@12.5", "h200@12.8", "h200@13.0", "h200@13.4"];

/// The part of the error messages that reports such SMs.
const WAITS: &str = "16 SMs wait for work that could not be recorded";

/// Counts the failures that are reported to the clean-up hook.
fn reports(device: &Device) -> impl Fn() -> usize + use<> {
    let reported = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reported);
    device
        .driver()
        .on_cleanup_failure(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        })
        .keep();
    move || reported.load(Ordering::Relaxed)
}

/// Ends a capture that was invalidated.
fn end_capture(device: &Device, stream: CUstream) -> green_ctx::Result<()> {
    let error = raw::end_capture(device, stream).expect_err("it was invalidated");
    assert_eq!(error.status(), Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    Ok(())
}

/// Drops a context's last handle while a foreign stream of the context is being captured. Returns that stream.
fn stick(device: &Device, context: Context) -> Result<CUstream, Box<dyn std::error::Error>> {
    let stream = raw::stream_of(device, context.as_raw_green().ok_or("not a partition")?)?;
    raw::begin_capture(device, stream)?;
    drop(context);
    Ok(stream)
}

#[test]
fn sms_whose_work_cannot_be_recorded_are_nobodys() -> Outcome {
    for spec in DRIVERS {
        let (sim, device) = simulated(spec)?;
        let (reported, sms) = (reports(&device), device.resources().sm()?);
        let kernel = work::kernel(&sim, &device, "work", LONG)?;
        let context = partition(&device, 16)?;
        launch(&stream(&context)?, &kernel)?;
        let stream = stick(&device, context)?;
        assert_eq!(
            (reported(), sms.free_sm_count(), device.context_counts().idle),
            (1, 116, 0),
            "{spec}"
        );

        // No request can get these SMs as its own.
        let error = sms.split([132]).expect_err("16 SMs are in quarantine");
        assert!(error.to_string().ends_with(WAITS), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let Error::NotEnoughSms(shortage) = &error else { return Err(error.into()) };
        assert_eq!((shortage.free, shortage.quarantined), (116, 16));
        assert!(shortage.holders.is_empty());
        let dry = sms.dry_run(SplitRequest::new().rest("rest"))?;
        assert_eq!((dry.remainder, dry.quarantined), (116, 16));
        let fine = SplitRequest::from([2]).granularity(Granularity::Fine);
        let error = sms.split(fine.clone()).expect_err("the cut is in use");
        assert!(matches!(&error, Error::CutInUse { held, .. } if held.contains(WAITS)), "{error}");
        // Sharing them is possible.
        assert_eq!(sms.split(SplitRequest::from([132]).overlapping(true))?.groups.len(), 1);
        // Each request tried to record the work again. The failure was reported once.
        assert_eq!((reported(), device.release_idle()), (1, 0), "{spec}");

        // Once the work can be recorded, the SMs and their context are given out immediately, and the next work
        // waits on the device.
        end_capture(&device, stream)?;
        let next = partition(&device, 16)?;
        assert_eq!(device.context_counts().reused, 1, "{spec}");
        launch(&crate::common::stream(&next)?, &kernel)?;
        next.synchronize()?;
        let launches = sim.launches();
        assert!(launches[0].happens_before(&launches[1]), "{spec}");
        drop(next);
        assert_eq!(sms.split([132])?.groups.len(), 1);
        assert_eq!(sms.split(fine)?.groups.len(), 1);

        raw::destroy_stream(&device, stream)?;
        device.release_idle();
        drop((sms, kernel, device));
        assert_eq!(sim.live(), Live::default(), "{spec}");
    }
    Ok(())
}

/// A thread records the work of SMs in quarantine. Another thread that splits in the meantime waits for the result.
#[test]
fn a_split_beside_another_threads_record_gets_the_sms() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let _reported = reports(&device);
    let captured = stick(&device, partition(&device, 16)?)?;
    end_capture(&device, captured)?;
    let (there, (send, split)) = (device.clone(), mpsc::channel());
    sim.run_before("cuGreenCtxRecordEvent", 1, move || {
        let other = send.clone();
        thread::spawn(move || {
            let split = there.resources().sm().and_then(|sms| sms.split([120]));
            other.send(Some(split.map(drop))).expect("the test waits");
        });
        // Time for the other thread to be refused, if it does not wait.
        thread::sleep(Duration::from_millis(100));
        send.send(None).expect("the test waits");
    })?;
    let sms = device.resources().sm()?;
    drop(sms.split([8])?);
    assert!(split.recv()?.is_none(), "the other thread did not wait");
    split.recv()?.ok_or("it splits")??;
    raw::destroy_stream(&device, captured)?;
    Ok(())
}

/// SMs in quarantine do not keep the driver alive, and end with it.
#[test]
fn a_driver_ends_with_sms_in_quarantine() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let reported = reports(&device);
    let outer = device.create_context(
        partition(&device, 32)?.close()?.ok_or("no group")?.split([16])?.groups.remove(0),
    )?;
    let streams = [stick(&device, outer)?, stick(&device, partition(&device, 16)?)?];
    for stream in streams {
        raw::destroy_stream(&device, stream)?;
    }
    drop(device);
    assert_eq!(reported(), 2);
    let left = sim.live();
    assert_eq!((left.green_contexts, left.events), (0, 0));
    Ok(())
}

/// Recording and waiting can fail without any capture.
#[test]
fn a_failure_that_passes_costs_nothing() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (reported, sms) = (reports(&device), device.resources().sm()?);
    let kernel = work::kernel(&sim, &device, "work", LONG)?;
    let fail = || -> Outcome {
        sim.fail(Fault::on("cuGreenCtxRecordEvent"))?;
        sim.fail(Fault::on("cuCtxSynchronize"))?;
        Ok(())
    };
    for idle in [1, 2] {
        let context = partition(&device, 16)?;
        launch(&stream(&context)?, &kernel)?;
        fail()?;
        drop(context);
        assert_eq!((reported(), sms.free_sm_count()), (idle, 116));
        // `release_idle` retries, as a split does; `free_sm_count` only reads the ledger.
        device.release_idle();
        assert_eq!(sms.free_sm_count(), 132);
    }
    // If only the record fails, the drop waits for the work, and the SMs are free immediately.
    let context = partition(&device, 16)?;
    sim.fail(Fault::on("cuGreenCtxRecordEvent"))?;
    drop(context);
    assert_eq!((reported(), sms.free_sm_count(), device.context_counts().idle), (3, 132, 0));
    drop((sms, kernel, device));
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

/// After a fault of the device no work runs, so quarantined SMs need not wait.
#[test]
fn a_device_that_fails_frees_what_is_in_quarantine() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (reported, sms) = (reports(&device), device.resources().sm()?);
    let context = partition(&device, 16)?;
    sim.fail(Fault::on("cuGreenCtxRecordEvent"))?;
    sim.fail(Fault::on("cuCtxSynchronize"))?;
    drop(context);
    assert_eq!((reported(), sms.free_sm_count()), (1, 116));
    let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    sim.fail(Fault::on("cuGreenCtxRecordEvent").with(illegal))?;
    // A dry run only reads, and reports the quarantined SMs. A split retries.
    assert_eq!(sms.dry_run([16])?.quarantined, 16);
    assert!(sms.dry_run([132]).is_err());
    assert_eq!(sms.split([132])?.groups[0].sm_count(), 132);
    assert_eq!((sms.free_sm_count(), sim.live().green_contexts), (132, 0));
    Ok(())
}

/// SMs of a dropped plan's partition are in quarantine inside the set: later plans cannot use them.
#[test]
fn plans_leave_out_what_is_in_quarantine() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (_reported, sms) = (reports(&device), device.resources().sm()?);
    let kernel = work::kernel(&sim, &device, "work", LONG)?;
    let set = PlanSet::new(device.rest("all")?, PlanRequest::new("a", [116]))?;
    let night = set.prepare(PlanRequest::new("night", SplitRequest::new().rest("x")))?;
    let context = night.partition("x").ok_or("there is no such partition")?.context().clone();
    drop(night);
    set.retire("night")?;
    launch(&stream(&context)?, &kernel)?;
    let stream = stick(&device, context)?;

    let error = set.prepare(PlanRequest::new("next", [8])).expect_err("all SMs are in quarantine");
    let expected = "132 SMs wait for work that could not be recorded";
    assert!(error.to_string().ends_with(expected), "{error}");
    end_capture(&device, stream)?;
    // Reuses the context; creating one would wait for all work.
    let next = set.prepare(PlanRequest::new("next", SplitRequest::new().rest("y")))?;
    assert_eq!(device.context_counts().reused, 1);
    launch(next.partitions()[0].stream(), &kernel)?;
    next.partitions()[0].context().synchronize()?;
    let launches = sim.launches();
    assert!(launches[0].happens_before(&launches[1]));

    // The set's SMs are not free before the work of its last context is recorded, including nested contexts.
    let context = next.partitions()[0].context().clone();
    drop(next);
    set.retire("next")?;
    let other = stick(&device, context)?;
    drop(set);
    assert_eq!(sms.free_sm_count(), 0);
    assert!(sms.dry_run([8]).is_err());
    end_capture(&device, other)?;
    assert_eq!(sms.split([132])?.groups.len(), 1);
    assert_eq!(sms.free_sm_count(), 132);

    for stream in [stream, other] {
        raw::destroy_stream(&device, stream)?;
    }
    device.release_idle();
    drop((sms, kernel, device));
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

/// A group that the driver split is held until the work of all its children is recorded.
#[test]
fn a_stuck_child_keeps_its_parent() -> Outcome {
    let (sim, device) = simulated("h200@13.1")?;
    let (_reported, sms) = (reports(&device), device.resources().sm()?);
    let group = sms.split([64])?.groups.remove(0);
    let mut children = group.split(SplitRequest::from([16, 32]).coscheduled(8))?.groups;
    let second = device.create_context(children.pop().ok_or("there are two")?)?;
    let first = device.create_context(children.pop().ok_or("there are two")?)?;
    let stream = stick(&device, first)?;
    drop(second);
    assert_eq!(sms.free_sm_count(), 68);
    let error = sms.split([132]).expect_err("64 SMs are in quarantine");
    assert!(error.to_string().contains("64 SMs wait for work"), "{error}");
    end_capture(&device, stream)?;
    assert_eq!(sms.split([132])?.groups.len(), 1);
    raw::destroy_stream(&device, stream)?;
    device.release_idle();
    drop((sms, device));
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

/// Foreign code may capture a kept stream after its partition is dropped.
#[test]
fn a_kept_streams_capture_outlives_its_partition() -> Outcome {
    for spec in DRIVERS {
        let (sim, device) = simulated(spec)?;
        let (reported, sms) = (reports(&device), device.resources().sm()?);
        let context = partition(&device, 16)?;
        let stream = context.create_stream(StreamOptions::default())?;
        stream.keep_alive()?;
        let raw = stream.as_raw();
        raw::begin_capture(&device, raw)?;
        drop((stream, context));
        for _ in 0..2 {
            let error = sms.split([132]).expect_err("16 SMs are in quarantine");
            assert!(error.to_string().ends_with(WAITS), "{spec}: {error}");
        }
        let graph = raw::end_capture(&device, raw)?;
        assert_eq!((sms.split([132])?.groups.len(), reported()), (1, 0), "{spec}");
        // SAFETY: the graph was captured above, and has no other owner.
        drop(unsafe { Graph::from_raw_owned(&device, graph) }?);
        drop((sms, device));
        assert_eq!(sim.live().graphs, 0, "{spec}");
    }
    Ok(())
}

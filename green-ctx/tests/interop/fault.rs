//! After a fault of the device.

use std::sync::{Arc, Mutex};

use green_ctx::{
    CUresult, Device, DeviceBuffer, Error, LaunchConfig, Library, Stream, StreamOptions,
    event::EventOptions,
};

use crate::common::{Outcome, partition, simulated};

/// A kernel that stores to an address.
const PTX: &str = "
.version 5.0
.target sm_52
.address_size 64
.visible .entry green_ctx_fault(.param .u64 address)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [address];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 1;
    st.global.u32 [%rd2], %r1;
    ret;
}
";

fn fault(device: &Device, stream: &Stream) -> green_ctx::Result<()> {
    let kernel = Library::from_ptx(device, PTX)?.kernel("green_ctx_fault")?;
    // SAFETY: this ends the device's contexts, which is what it is for.
    unsafe { stream.launch(&kernel, LaunchConfig::new(1, 1), (8_u64,)) }?;
    stream.synchronize()
}

#[test]
fn a_fault_is_returned_by_every_handle_and_dropped_quietly() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let reported = Arc::new(Mutex::new(Vec::new()));
    let hook = Arc::clone(&reported);
    let _hook = device.driver().on_cleanup_failure(move |error| {
        hook.lock().expect("no panic").push(error.to_string());
    });
    let contexts = [partition(&device, 8)?, partition(&device, 16)?, partition(&device, 24)?];
    let streams = contexts
        .iter()
        .map(|context| context.create_stream(StreamOptions::default()))
        .collect::<green_ctx::Result<Vec<_>>>()?;
    let event = device.create_event(EventOptions::default())?;
    let buffer = DeviceBuffer::from_slice(&device, &[1_u32])?;
    // One context waits to be used again when the fault comes.
    drop(partition(&device, 32)?);
    assert_eq!(device.context_counts().idle, 1);

    let error = fault(&device, &streams[0]).expect_err("an illegal address");
    assert_eq!(error.status(), Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    assert!(error.is_sticky() && !error.is_misuse());
    assert!(error.to_string().ends_with("start a new one"), "{error}");
    let sticky = |result: green_ctx::Result<()>| {
        assert!(result.as_ref().is_err_and(Error::is_sticky), "{result:?}");
    };
    streams.iter().for_each(|stream| sticky(stream.synchronize()));
    sticky(streams[1].is_idle().map(drop));
    sticky(contexts[1].synchronize());
    sticky(event.synchronize());
    sticky(buffer.read(&streams[2]).map(drop));
    sticky(streams[2].wait_for(&streams[1]));
    // The idle context is not handed out: the driver is asked for a new one, and says why not.
    sticky(partition(&device, 32).map(drop));
    assert_eq!(device.context_counts().idle, 0);

    drop((streams, event, buffer));
    let [closed, dropped, last] = contexts;
    let error = closed.close().expect_err("its work failed");
    drop((error, dropped, last));
    assert_eq!(device.context_counts().idle, 0);
    assert_eq!(sim.live().green_contexts, 0);
    assert_eq!(device.resources().sm()?.free(), 132);
    let reported = reported.lock().expect("no panic");
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{reported:?}");
    Ok(())
}

#[test]
fn errors_say_which_constraint_failed() {
    let text = |status| Error::Driver { call: "cuSomething", status }.to_string();
    for (status, part) in [
        (CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE, "not of the type"),
        (CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "`SmResource::dry_run`"),
        (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "end the capture first"),
        (CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED, "make a new context"),
        (CUresult::CUDA_ERROR_STREAM_DETACHED, "make a new stream"),
        (CUresult::CUDA_ERROR_NOT_SUPPORTED, "the device or the system lacks this"),
        (CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "update the driver"),
        (CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, "start a new one"),
    ] {
        let text = text(status);
        assert!(text.starts_with("cuSomething failed: CUDA_ERROR_"), "{text}");
        assert!(text.contains(part) && text.contains(&format!("({})", status.0)), "{text}");
        // One line, in spite of how the text is written down.
        assert!(!text.contains("  ") && !text.contains('\n'), "{text}");
    }
    assert_eq!(
        text(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        "cuSomething failed: CUDA_ERROR_OUT_OF_MEMORY (2)"
    );
    let error = |status| Error::Driver { call: "cuSomething", status };
    assert!(error(CUresult::CUDA_ERROR_LAUNCH_FAILED).is_sticky());
    assert!(!error(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES).is_sticky());
    assert!(error(CUresult::CUDA_ERROR_STREAM_DETACHED).is_misuse());
    assert!(!error(CUresult::CUDA_ERROR_UNKNOWN).is_misuse());
    assert!(Error::GuardOrder.is_misuse() && !Error::GuardOrder.is_sticky());
}

//! Tests of the built-in jobs on simulated drivers.
#![allow(unsafe_code, reason = "launches graphs")]

use std::path::Path;

use green_ctx::sim::{Fault, Live, Sim};
use green_ctx::{CUresult, Device, Driver, SplitRequest, StreamOptions};

use super::cublas::CublasError;
use super::{Builder, Built, JobError, Kind, Spec};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A small job of each kind.
const SMALL: [&str; 5] = ["gemm:256", "gemv:256", "copy:1", "small:3", "attention:256"];

fn simulated(spec: &str) -> Outcome<(Sim, Device)> {
    let sim = Sim::new(spec)?;
    super::register(&sim);
    let device = Driver::simulated(&sim)?.device(0)?;
    Ok((sim, device))
}

#[test]
fn every_job_runs_and_leaves_nothing() -> Outcome {
    for profile in ["h100", "h200", "b200"] {
        let (sim, device) = simulated(profile)?;
        let builder = Builder::new(&device, None)?;
        let jobs: Vec<Built> =
            SMALL.iter().map(|job| Ok(builder.build(&job.parse()?)?)).collect::<Outcome<_>>()?;
        drop(builder);
        let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
        sim.take_launches();
        for (Built { graph, keep: _keep, about }, job) in jobs.iter().zip(SMALL) {
            assert!(graph.node_count()? >= 1, "{job}");
            assert!(!about.is_empty(), "{job}");
            let before = sim.launches().len();
            // SAFETY: everything that the graph uses lives until the end of this function.
            unsafe { stream.launch_graph(&graph.instantiate()?) }?;
            stream.synchronize()?;
            assert_eq!(sim.launches().len() - before, graph.node_count()?, "{job}");
        }
        assert_eq!(sim.races(), [], "{profile}");
        drop((jobs, stream, device));
        assert_eq!(sim.live(), Live::default(), "{profile}");
    }
    Ok(())
}

#[test]
fn jobs_of_default_size_are_built() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let builder = Builder::new(&device, None)?;
    let build = |kind: Kind| builder.build(&Spec::from(kind)).map(|built| built.about);
    let about = Kind::ALL.map(build).into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(
        about,
        [
            "product of 2048³ in f32 by a built-in kernel: no cuBLAS found",
            "product of a 8192 × 8192 matrix with a vector in f32",
            "copy of 256 MiB",
            "64 additions of 256 × 256 numbers, one after the other",
            "attention over 2048 tokens with 32 heads of 32 numbers in f32",
        ]
    );
    drop((builder, device));
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

#[test]
fn a_job_takes_longer_on_fewer_sms() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let builder = Builder::new(&device, None)?;
    let job = builder.build(&"gemm:2048".parse()?)?;
    let split = device.resources().sm()?.split(SplitRequest::from([16, 64]))?;
    let mut spans = Vec::new();
    for group in split.groups {
        let context = device.create_context(group)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let graph = job.graph.retarget(&context)?.instantiate()?;
        // SAFETY: everything that the graph uses lives until the end of this function.
        unsafe { stream.launch_graph(&graph) }?;
        stream.synchronize()?;
        let launches = sim.launches();
        let last = launches.last().ok_or("it ran")?;
        spans.push(last.end_ns - last.start_ns);
    }
    assert!(spans[0] > 2 * spans[1], "{spans:?}");
    Ok(())
}

#[test]
fn a_job_that_fails_leaves_nothing() -> Outcome {
    const STATUS: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let functions = [
        "cuMemAlloc",
        "cuMemsetD8Async",
        "cuLaunchKernel",
        "cuStreamSynchronize",
        "cuStreamEndCapture",
    ];
    let (sim, device) = simulated("h200")?;
    for (job, function) in SMALL.into_iter().flat_map(|job| functions.map(|name| (job, name))) {
        let spec = job.parse()?;
        let builder = Builder::new(&device, None)?;
        let before = sim.live();
        let mut failed = 0;
        loop {
            sim.fail(Fault::on(function).nth(failed + 1).with(STATUS))?;
            let result = builder.build(&spec);
            sim.clear_faults();
            match result {
                Err(JobError::Library(error)) => {
                    assert_eq!(error.status(), Some(STATUS), "{job}, {function}");
                    failed += 1;
                }
                Err(error) => return Err(error.into()),
                // The function is called no further time.
                Ok(_) => break,
            }
            assert_eq!(sim.live(), before, "{job}, {function}, call {failed}");
        }
        assert!(failed > 0, "{job} calls {function}");
        assert_eq!(sim.live(), before, "{job}, {function}");
    }
    drop(device);
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

#[test]
fn cublas_is_never_loaded_beside_a_simulated_driver() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let builder = Builder::new(&device, Some(Path::new("/no/such")))?;
    // Only the matrix product needs cuBLAS.
    builder.build(&"small:1".parse()?)?;
    let error = builder.build(&Kind::Gemm.into()).err().ok_or("there is none")?;
    assert!(matches!(error, JobError::Cublas(CublasError::Simulated)), "{error}");
    Ok(())
}

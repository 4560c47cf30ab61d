//! The number of blocks that fit on a context's SMs, and the check of launches against it before they are submitted.

use std::ptr;

use green_ctx::sys::CUfunction_attribute;
use green_ctx::{
    DeviceBuffer, Error, Kernel, LaunchConfig, Library, Stream, StreamOptions, call,
    context::Context,
    error::ErrorKind,
    fit::{ClusterFit, DoesNotFit, Fit, RawKernel},
};

use crate::common::kernels::{self, probe};
use crate::common::{Outcome, partition, raw, simulated, stream};
use crate::{Machine, each_driver};

/// Launches the probe, whose blocks stay for a microsecond.
fn launch(stream: &Stream, kernel: &Kernel, config: LaunchConfig) -> green_ctx::Result<()> {
    let results = DeviceBuffer::<u64>::zeroed(stream.context().device(), 3 * 512)?;
    // SAFETY: the arguments match the kernel's two parameters, and `results` has room for more blocks than the
    // tests launch.
    unsafe { stream.launch(kernel, config, (results.as_argument(), 1000_u64)) }?;
    stream.synchronize()
}

fn does_not_fit(error: Error) -> Result<DoesNotFit, Box<dyn std::error::Error>> {
    match error {
        Error::DoesNotFit(reported) => Ok(*reported),
        other => Err(other.into()),
    }
}

fn clusters(fit: &Fit) -> Vec<(u32, u32)> {
    fit.clusters.iter().map(|ClusterFit { size, count, .. }| (*size, *count)).collect()
}

/// An SM holds two blocks of 1024 threads, as recorded on an H200 (`launch/occupancy`, `launch/cooperative-*`, and for
/// the whole device `launch/clusters-primary-*`). How many clusters a partition holds depends on its SMs.
#[test]
fn the_numbers_are_the_drivers() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = probe(device)?;
        let split = device.resources().sm()?.split(crate::of([64]).rest("rest"))?;
        let mut contexts = crate::contexts(device, split)?;
        contexts.push(device.primary_context()?);
        let config = LaunchConfig::new(100, 1024);
        for (context, sms) in contexts.iter().zip([64, 68, 132]) {
            let fit = kernel.fit(context, config)?;
            assert_eq!((fit.kernel.as_str(), fit.blocks), ("green_ctx_probe", 100));
            assert_eq!((fit.threads, fit.shared_bytes, fit.cluster), (1024, 0, None));
            assert_eq!((fit.sm_count, fit.blocks_per_sm, fit.resident_blocks), (sms, 2, 2 * sms));
            if sms == 132 {
                assert_eq!(clusters(&fit), [(1, 264), (2, 132), (4, 62), (8, 30)]);
            }
            assert_eq!((fit.clusters.len(), fit.largest_cluster), (4, 8));
            for (size, count) in clusters(&fit) {
                let config = LaunchConfig::new(64 * size, 1024).cluster((size, 1, 1));
                let fit = kernel.fit(context, config)?;
                assert_eq!(fit.resident_blocks, size * count);
                assert_eq!(fit.persistent_grid(), (size * count, 1, 1));
                assert_eq!(fit.collective_blocks(3), count / 3 * size);
            }
        }
        let shaped = LaunchConfig::with_shape((8, 4, 1), (1024, 1, 1)).cluster((2, 2, 1));
        let fit = kernel.fit(&contexts[2], shaped)?;
        assert_eq!((fit.resident_blocks, fit.persistent_grid()), (248, (124, 2, 1)));
        assert_eq!((fit.collective_blocks(0), fit.collective_blocks(5)), (248, 48));
        // Dynamic shared memory limits the blocks per SM.
        let fit = kernel.fit(&contexts[0], LaunchConfig::new(1, 32).shared_bytes(16_384))?;
        assert_eq!((fit.blocks_per_sm, fit.resident_blocks), (13, 13 * 64));
        Ok(())
    })
}

#[test]
fn larger_clusters_have_to_be_allowed() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let (kernel, primary) = (probe(device)?, device.primary_context()?);
        let green = partition(device, 64)?;
        let config = LaunchConfig::new(64, 1024).cluster((16, 1, 1));
        let refused = launch(&stream(&primary)?, &kernel, config).expect_err("not allowed yet");
        assert_eq!(does_not_fit(refused)?.fit.largest_cluster, 8);

        let allow = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        let api = machine.driver().api();
        // SAFETY: `kernel` keeps the raw kernel loaded.
        unsafe { call!(api, cuKernelSetAttribute(allow, 1, kernel.as_raw(), device.as_raw())) }?;
        // As recorded: 14 clusters of 16 blocks on the whole device, and none within 64 SMs.
        let fit = kernel.fit(&primary, config)?;
        assert_eq!((fit.resident_blocks, fit.largest_cluster), (14 * 16, 16));
        assert_eq!(clusters(&fit).last(), Some(&(16, 14)));
        launch(&stream(&primary)?, &kernel, config)?;
        let refused = launch(&stream(&green)?, &kernel, config).expect_err("none fits");
        assert_eq!(
            refused.to_string(),
            "kernel green_ctx_probe does not fit in clusters of 16 blocks on 64 SMs: not even \
             one cluster fits; clusters of 1, 2, 4, 8 blocks would fit"
        );
        Ok(())
    })
}

#[test]
fn what_does_not_fit_is_not_submitted() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let (kernel, context) = (probe(device)?, partition(device, 64)?);
        let stream = stream(&context)?;
        let cooperative = |blocks| LaunchConfig::new(blocks, 1024).cooperative(true);
        launch(&stream, &kernel, cooperative(128))?;
        assert_eq!(sim.launches().len(), 1);

        let (result, calls) = machine.calls(|| launch(&stream, &kernel, cooperative(129)));
        let error = result.expect_err("one block too many");
        assert!(!calls.contains_key("cuLaunchKernelEx"), "{calls:?}");
        assert!(!calls.contains_key("cuLaunchKernel"), "{calls:?}");
        assert_eq!((error.kind(), error.status()), (ErrorKind::InvalidRequest, None));
        assert!(error.is_misuse() && !error.is_sticky() && !error.is_unsupported());
        assert_eq!(
            error.to_string(),
            "a cooperative grid of 129 blocks of kernel green_ctx_probe does not fit on 64 SMs: \
             at most 128 blocks can be resident, 2 of 1024 threads per SM"
        );
        let reported = does_not_fit(error)?;
        assert!(reported.cooperative);
        assert_eq!(reported.fit, kernel.fit(&context, cooperative(129))?);

        let whole = self::stream(&device.primary_context()?)?;
        let clustered = cooperative(248).cluster((8, 1, 1));
        let error = launch(&whole, &kernel, clustered).expect_err("one cluster too many");
        assert_eq!(
            error.to_string(),
            "a cooperative grid of 248 blocks of kernel green_ctx_probe does not fit in clusters of \
             8 blocks on 132 SMs: at most 30 clusters (240 blocks) can be resident"
        );
        let error = launch(&stream, &kernel, LaunchConfig::new(1, 1025).cooperative(true))
            .expect_err("no SM runs it");
        assert!(
            error.to_string().ends_with(
                "on 64 SMs: no SM holds a block of 1025 threads with 0 bytes of dynamic shared memory"
            ),
            "{error}"
        );
        assert_eq!(sim.launches().len(), 1, "a refused launch was submitted");
        launch(&whole, &kernel, cooperative(264))?;
        Ok(())
    })
}

/// The hot path makes a single driver call, whatever other options a launch could have.
#[test]
fn a_plain_launch_is_one_call() -> Outcome {
    each_driver(|machine| {
        let kernel = machine.kernel(std::time::Duration::ZERO)?;
        let stream = stream(&partition(&machine.device, 8)?)?;
        for config in [LaunchConfig::new(1, 32), LaunchConfig::new(1, 32).cooperative(false)] {
            // SAFETY: the kernel has no parameters and touches no memory.
            let (result, calls) = machine.calls(|| unsafe { stream.launch(&kernel, config, ()) });
            result?;
            assert_eq!(calls.into_iter().collect::<Vec<_>>(), [("cuLaunchKernel", 1)]);
        }
        let config = LaunchConfig::new(4, 32).cooperative(true).cluster((2, 1, 1));
        // SAFETY: as above.
        let (result, calls) = machine.calls(|| unsafe { stream.launch(&kernel, config, ()) });
        result?;
        assert_eq!((calls.get("cuLaunchKernelEx"), calls.get("cuLaunchKernel")), (Some(&1), None));
        assert!(size_of::<LaunchConfig>() <= 48);
        Ok(())
    })
}

/// Launches a kernel and returns the number of driver calls.
fn calls(
    machine: &Machine,
    stream: &Stream,
    kernel: &Kernel,
    config: LaunchConfig,
) -> Result<u64, Box<dyn std::error::Error>> {
    // SAFETY: the kernel has no parameters and touches no memory.
    let (result, calls) = machine.calls(|| unsafe { stream.launch(kernel, config, ()) });
    result?;
    assert_eq!(calls.get("cuLaunchKernelEx"), Some(&1));
    Ok(calls.values().sum())
}

#[test]
fn a_repeated_launch_asks_nothing() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = machine.kernel(std::time::Duration::ZERO)?;
        let context = partition(device, 16)?;
        let stream = stream(&context)?;
        let calls =
            |stream: &Stream, kernel: &Kernel, config| calls(machine, stream, kernel, config);

        let base = LaunchConfig::new(8, 32);
        let shapes = [
            base.cooperative(true),
            base.cluster((2, 1, 1)),
            base.cluster((2, 1, 1)).cooperative(true),
            base.cluster((4, 1, 1)),
            base.cooperative(true).shared_bytes(1024),
            LaunchConfig::new(16, 32).cooperative(true),
            LaunchConfig::new(8, 64).cooperative(true),
        ];
        // Each shape queries the driver once, whatever other shapes are cached.
        for config in shapes {
            assert!(calls(&stream, &kernel, config)? > 1, "{config:?}");
        }
        for config in shapes {
            assert_eq!(calls(&stream, &kernel, config)?, 1, "{config:?}");
            // The cached answer serves every stream of the context and every handle of the kernel.
            let other = context.create_stream(StreamOptions::default())?;
            assert_eq!(calls(&other, &kernel.clone(), config)?, 1, "{config:?}");
        }
        // A new handle from the library starts with an empty cache.
        let again = kernel.library().kernel(kernel.name())?;
        assert!(calls(&stream, &again, shapes[0])? > 1);
        Ok(())
    })
}

/// A new context must not use the cached answers of an old one, even if it has the same driver context or the
/// same address.
#[test]
fn another_context_asks_again() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(std::time::Duration::ZERO)?;
        let config = LaunchConfig::new(8, 32).cooperative(true);
        let other = partition(device, 16)?;
        for _ in 0..100 {
            let context = partition(device, 16)?;
            let raw = stream(&context)?;
            assert!(calls(machine, &raw, &kernel, config)? > 1);
            assert_eq!(calls(machine, &raw, &kernel, config)?, 1);
            assert!(calls(machine, &stream(&other)?, &kernel, config)? >= 1);
        }
        // Cached answers must not keep the contexts alive.
        drop(other);
        device.release_idle();
        assert_eq!(sim.live().green_contexts, 0);
        Ok(())
    })
}

#[test]
fn few_shapes_are_remembered() -> Outcome {
    each_driver(|machine| {
        let kernel = machine.kernel(std::time::Duration::ZERO)?;
        let stream = stream(&partition(&machine.device, 16)?)?;
        let config = |blocks| LaunchConfig::new(blocks, 32).cooperative(true);
        for blocks in 1..=17 {
            assert!(calls(machine, &stream, &kernel, config(blocks))? > 1);
        }
        // The last 16 shapes are cached; the first is not.
        for blocks in 2..=17 {
            assert_eq!(calls(machine, &stream, &kernel, config(blocks))?, 1);
        }
        assert!(calls(machine, &stream, &kernel, config(1))? > 1);
        Ok(())
    })
}

/// `CUkernel` and `CUfunction` handles give the same answers, including those about required clusters.
#[test]
fn foreign_kernels_have_the_same_answers() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let (green, primary) = (partition(device, 64)?, device.primary_context()?);
        let library = Library::from_ptx(device, kernels::CLUSTERED)?;
        let module = raw::Module::load(device, kernels::CLUSTERED)?;
        let _current = primary.make_current()?;
        for name in ["pairs", "no_clusters"] {
            let (function, kernel) = (module.function(name)?, library.kernel(name)?);
            let raw = RawKernel::Kernel(kernel.as_raw());
            let config = LaunchConfig::new(100, 1024).shared_bytes(1024);
            for context in [&green, &primary] {
                let expected = kernel.fit(context, config)?;
                assert_eq!(expected.cluster.is_some(), name == "pairs");
                for foreign in [raw, RawKernel::Function(function)] {
                    // SAFETY: `kernel` and `module` keep both handles valid, and the variants match the handles.
                    assert_eq!(unsafe { foreign.fit(context, config) }?, expected);
                }
            }
            for foreign in [raw, RawKernel::Function(function)] {
                // SAFETY: as above.
                let error = machine
                    .refused(|| unsafe { foreign.fit(&green, config.cluster((3, 1, 1))) })?;
                assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
            }
        }
        for null in [RawKernel::Kernel(ptr::null_mut()), RawKernel::Function(ptr::null_mut())] {
            // SAFETY: a null handle is refused.
            let error =
                machine.refused(|| unsafe { null.fit(&green, LaunchConfig::new(1, 32)) })?;
            assert_eq!(error.to_string(), "the kernel's handle is null");
        }
        Ok(())
    })
}

#[test]
fn what_is_current_makes_no_difference() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = probe(device)?;
        let (small, large) = (partition(device, 8)?, device.primary_context()?);
        let config = LaunchConfig::new(1, 1024).cluster((1, 1, 1));
        let alone = kernel.fit(&small, config)?;
        assert_eq!((Context::current(machine.driver())?, alone.resident_blocks), (None, 16));
        let _current = large.make_current()?;
        assert_eq!(kernel.fit(&small, config)?, alone);
        let stream = stream(&small)?;
        let error = launch(&stream, &kernel, LaunchConfig::new(17, 1024).cooperative(true))
            .expect_err("17 blocks on 8 SMs");
        assert_eq!(does_not_fit(error)?.fit.sm_count, 8);
        assert_eq!(Context::current(machine.driver())?, Some(large.clone()));
        Ok(())
    })
}

#[test]
fn a_kernel_of_another_driver_is_refused() -> Outcome {
    each_driver(|machine| {
        let kernel = probe(&machine.device)?;
        let (_other, device) = simulated("h200@13.0")?;
        let context = partition(&device, 8)?;
        let error = kernel.fit(&context, LaunchConfig::new(1, 32)).expect_err("another driver's");
        assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
        Ok(())
    })
}

#[test]
fn parts_without_clusters_have_none() -> Outcome {
    let (sim, device) = simulated("a100@13.0")?;
    let (kernel, context) = (probe(&device)?, partition(&device, 16)?);
    let fit = kernel.fit(&context, LaunchConfig::new(40, 1024))?;
    assert_eq!((fit.sm_count, fit.resident_blocks), (16, 32));
    assert_eq!((fit.clusters.len(), fit.largest_cluster), (0, 0));
    let stream = stream(&context)?;
    launch(&stream, &kernel, LaunchConfig::new(32, 1024).cooperative(true))?;
    let clusters = LaunchConfig::new(32, 1024).cluster((2, 1, 1));
    let error = launch(&stream, &kernel, clusters).expect_err("the device has no clusters");
    assert!(error.to_string().ends_with("clusters of other sizes do not fit either"), "{error}");
    assert_eq!(sim.launches().len(), 1);
    Ok(())
}

#[test]
fn a_fit_prints_as_lines() -> Outcome {
    let (_sim, device) = simulated("h200@13.0")?;
    let (kernel, context) = (probe(&device)?, partition(&device, 16)?);
    let config = LaunchConfig::new(264, 1024).shared_bytes(1024).cluster((4, 1, 1));
    let text = kernel.fit(&context, config)?.to_string();
    assert_eq!(
        text,
        "kernel green_ctx_probe, blocks of 1024 threads and 1024 bytes of dynamic shared memory, \
         clusters of 4 blocks, on 16 SMs\n  \
         resident blocks: 32, 2 per SM; requested: 264\n  \
         largest cooperative grid: 32 blocks\n  \
         grid for a persistent kernel: 32\n  \
         blocks of a collective: 32\n  \
         resident clusters: 32 of 1, 16 of 2, 8 of 4, 4 of 8"
    );
    let text = kernel.fit(&context, LaunchConfig::new(1, 2000))?.to_string();
    assert!(text.ends_with("resident clusters: none"), "{text}");
    Ok(())
}

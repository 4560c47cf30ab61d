//! Launches: kernel arguments, launch shapes and attributes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use green_ctx::{
    Error, Kernel, LaunchConfig, Library, StreamOptions, error::ErrorKind, launch::Argument,
};

use crate::common::{Outcome, partition};
use crate::{Machine, each_driver, kernels};

/// A structure with padding after its first field.
#[derive(Clone, Copy)]
#[repr(C)]
struct Extent {
    rows: u8,
    columns: u32,
}

// SAFETY: the kernel's parameter has the same 8 bytes.
unsafe impl Argument for Extent {}

/// A structure with the size and alignment of a tensor map (`CUtensorMap`).
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Map([u64; 16]);

// SAFETY: the kernel's parameter has the same size, 128 bytes.
unsafe impl Argument for Map {}

fn config() -> LaunchConfig {
    LaunchConfig::new(1, 32)
}

/// The bytes of each parameter of the last launch.
type Noted = Arc<Mutex<Vec<Vec<u8>>>>;

/// Loads a kernel that records its parameters.
fn noting(machine: &Machine, ptx: &str) -> green_ctx::Result<(Kernel, Noted)> {
    let kernel = Library::from_ptx(&machine.device, ptx)?.kernel("take")?;
    let noted = Noted::default();
    let notes = Arc::clone(&noted);
    machine.sim.register_kernel("take", move |call| {
        let params = (0..).map_while(|index| call.param_bytes(index).map(<[u8]>::to_vec));
        *notes.lock().expect("no panic") = params.collect();
    });
    Ok((kernel, noted))
}

#[test]
fn a_kernel_gets_the_bytes_of_the_program_s_own_types() -> Outcome {
    each_driver(|machine| {
        let (kernel, noted) = noting(machine, kernels::WITH_PARAMETERS)?;
        let stream = partition(&machine.device, 16)?.create_stream(StreamOptions::default())?;
        let map = Map(std::array::from_fn(|index| index as u64));
        let extent = Extent { rows: 3, columns: 5 };
        // SAFETY: the arguments match the kernel's parameters, and the kernel touches no memory.
        unsafe { stream.launch(&kernel, config(), (7_u32, map, extent)) }?;
        stream.synchronize()?;
        let noted = noted.lock().expect("no panic");
        assert_eq!(noted[0], 7_u32.to_ne_bytes());
        assert_eq!(noted[1], map.0.map(u64::to_ne_bytes).concat());
        assert_eq!((noted[2][0], &noted[2][4..]), (3, &5_u32.to_ne_bytes()[..]));
        Ok(())
    })
}

#[test]
fn a_value_of_another_size_does_not_reach_the_driver() -> Outcome {
    each_driver(|machine| {
        let (kernel, _) = noting(machine, kernels::WITH_PARAMETERS)?;
        let stream = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        let (map, extent) = (Map([0; 16]), Extent { rows: 0, columns: 0 });
        let error = machine.without_calls(|| {
            // SAFETY: the launch is refused.
            unsafe { stream.launch(&kernel, config(), (7_u32, extent, map)) }
        });
        let error = error.expect_err("the sizes are swapped");
        assert!(matches!(error, Error::Arguments { .. }), "{error}");
        let expected = "kernel take takes parameters of [4, 128, 8] bytes, not [4, 8, 128]";
        assert_eq!(error.to_string(), expected);
        // SAFETY: the launch is refused.
        let error = unsafe { stream.launch(&kernel, config(), (7_u32,)) }.expect_err("two too few");
        assert_eq!(error.to_string(), "kernel take takes 3 parameters, not 1");
        Ok(())
    })
}

#[test]
fn a_kernel_takes_32_arguments() -> Outcome {
    let parameters: Vec<String> = (0..32).map(|index| format!(".param .u32 p{index}")).collect();
    let ptx = kernels::taking("take", &parameters.join(", "));
    each_driver(|machine| {
        let (kernel, noted) = noting(machine, &ptx)?;
        let stream = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        let arguments = (
            0_u32, 1_u32, 2_u32, 3_u32, 4_u32, 5_u32, 6_u32, 7_u32, 8_u32, 9_u32, 10_u32, 11_u32,
            12_u32, 13_u32, 14_u32, 15_u32, 16_u32, 17_u32, 18_u32, 19_u32, 20_u32, 21_u32, 22_u32,
            23_u32, 24_u32, 25_u32, 26_u32, 27_u32, 28_u32, 29_u32, 30_u32, 31_u32,
        );
        // SAFETY: the kernel has 32 parameters of 4 bytes and touches no memory.
        unsafe { stream.launch(&kernel, config(), arguments) }?;
        stream.synchronize()?;
        let expected: Vec<Vec<u8>> = (0..32_u32).map(|n| n.to_ne_bytes().to_vec()).collect();
        assert_eq!(*noted.lock().expect("no panic"), expected);
        Ok(())
    })
}

#[test]
fn a_shape_that_no_device_runs_is_explained() -> Outcome {
    each_driver(|machine| {
        let kernel = machine.kernel(Duration::ZERO)?;
        let stream = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        for (config, words) in [
            (LaunchConfig::new(0, 32), "in a grid of 0 × 1 × 1; each dimension must be at least 1"),
            (LaunchConfig::new(1, 0), "in a block of 0 × 1 × 1; each dimension must be at least 1"),
            (
                LaunchConfig::new(1, 2048),
                "in blocks of 2048 threads; the device allows at most 1024",
            ),
            (
                LaunchConfig::with_shape((1, 1, 1), (32, 0, 1)),
                "in a block of 32 × 0 × 1; each dimension must be at least 1",
            ),
            (
                LaunchConfig::new(4, 32).cluster((2, 1, 0)),
                "in a cluster of 2 × 1 × 0; each dimension must be at least 1",
            ),
            (
                LaunchConfig::new(5, 32).cluster((2, 1, 1)),
                "in clusters of 2 blocks, which do not divide a grid of 5",
            ),
            (
                LaunchConfig::with_shape((4, 3, 1), (32, 1, 1)).cluster((2, 2, 1)),
                "in clusters of 2 × 2 × 1 blocks, which do not divide a grid of 4 × 3 × 1",
            ),
        ] {
            // SAFETY: the kernel has no parameters and touches no memory.
            let error = unsafe { stream.launch(&kernel, config, ()) }.expect_err(words);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.to_string().ends_with(words), "{error}");
        }
        Ok(())
    })
}

/// The simulator starts no launch early, which cuda.h allows. So this test checks the calls: the attribute is
/// passed to `cuLaunchKernelEx`, and no other call is made.
#[test]
fn a_dependent_launch_is_one_call() -> Outcome {
    each_driver(|machine| {
        let (kernel, noted) = noting(machine, kernels::WITH_PARAMETERS)?;
        let stream = partition(&machine.device, 16)?.create_stream(StreamOptions::default())?;
        let arguments = || (1_u32, Map([0; 16]), Extent { rows: 0, columns: 0 });
        for (allowed, call) in [(true, "cuLaunchKernelEx"), (false, "cuLaunchKernel")] {
            let config = config().programmatic_dependent_launch(allowed);
            let (launched, calls) = machine.calls(|| {
                // SAFETY: the arguments match the kernel's parameters, and the kernel touches no memory.
                unsafe { stream.launch(&kernel, config, arguments()) }
            });
            launched?;
            assert_eq!(calls.into_iter().collect::<Vec<_>>(), [(call, 1)]);
        }
        stream.synchronize()?;
        assert_eq!(noted.lock().expect("no panic").len(), 3);
        // A cooperative launch with the attribute is still checked against the fit.
        let config = LaunchConfig::new(1 << 20, 32).cooperative(true);
        // SAFETY: the launch is refused.
        let refused = unsafe {
            stream.launch(&kernel, config.programmatic_dependent_launch(true), arguments())
        };
        assert!(matches!(refused, Err(Error::DoesNotFit(_))), "{refused:?}");
        Ok(())
    })
}

//! Repeated launches whose blocks must be resident at the same time.

use std::hint::black_box;
use std::ptr;

use green_ctx::LaunchConfig;
use green_ctx::sys::{
    CUdevice_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterSides, CUlaunchConfig,
};

use crate::runner::Runner;
use crate::{Bench, ok, timed};

/// The number of blocks in a launch. `CLUSTER` is the number in a cluster.
const BLOCKS: u32 = 8;
const CLUSTER: u32 = 2;

pub(crate) fn launches(runner: &mut Runner<'_>, bench: &Bench) {
    let mut cooperative = attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
    cooperative.value.cooperative = 1;
    let config = LaunchConfig::new(BLOCKS, 32);
    compare(runner, bench, "cooperative launch", config.cooperative(true), cooperative);

    let device = bench.driver.device(0).expect("a device");
    let has_clusters = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
    if device.attribute(has_clusters).is_ok_and(|value| value != 0) {
        let mut cluster = attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        cluster.value.clusterDim = ClusterSides { x: CLUSTER, y: 1, z: 1 };
        compare(runner, bench, "cluster launch", config.cluster((CLUSTER, 1, 1)), cluster);
    }
}

fn attribute(id: CUlaunchAttributeID) -> CUlaunchAttribute {
    CUlaunchAttribute { id, pad: [0; 4], value: CUlaunchAttributeValue { pad: [0; 64] } }
}

fn compare(
    runner: &mut Runner<'_>,
    bench: &Bench,
    name: &str,
    config: LaunchConfig,
    mut attribute: CUlaunchAttribute,
) {
    let function = bench.driver.api().cuLaunchKernelEx().expect("every driver");
    let kernel = bench.kernel.as_raw().cast();
    let address = bench.buffer.as_raw();
    let raw_config = CUlaunchConfig {
        gridDimX: BLOCKS,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: bench.stream.as_raw(),
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    let raw = || {
        let (mut pointer, mut count) = (black_box(address), black_box(1u32));
        let mut arguments = [(&raw mut pointer).cast(), (&raw mut count).cast()];
        let (arguments, none) = (arguments.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the configuration has one live attribute. The arguments are the kernel's two parameters, and the
        // kernel accesses no memory.
        ok(unsafe { function(&raw const raw_config, kernel, arguments, none) });
    };
    let safe = || {
        let arguments = (black_box(bench.buffer.as_argument()), black_box(1u32));
        // SAFETY: these are the kernel's two parameters, and the kernel accesses no memory.
        unsafe { bench.stream.launch(&bench.kernel, config, arguments) }.expect("launched");
    };
    // The queue is emptied after the time is taken.
    let side = |calls, launch: &dyn Fn()| {
        let time = timed(calls, launch);
        bench.stream.synchronize().expect("the launches succeeded");
        time
    };
    runner.compare(name, |calls| side(calls, &raw), |calls| side(calls, &safe));

    // Only the simulated driver counts its calls.
    let Some(sim) = bench.sim.as_ref().filter(|_| runner.picks(name)) else { return };
    sim.clear_calls();
    safe();
    let calls: u64 = sim.calls().values().sum();
    runner.line(format_args!("{name:<28} driver calls of a repeated launch: {calls}"));
    runner.found(serde_json::json!({ "call": name, "driver_calls": calls }));
}

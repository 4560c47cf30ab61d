//! Switches between plans while work runs: the SMs that each launch used, and whether the next plan reads what
//! the previous plan wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use green_ctx::sim::{KernelCall, Sim};
use green_ctx::{
    Device, DeviceBuffer, LaunchConfig, Library, Plan, PlanSet, StreamOptions, context::Context,
    plan::SwitchOptions, verify,
};

use crate::common::plans::plan;
use crate::common::{Outcome, device, is_real, kernels, simulated};

const SWITCHES: usize = 10_000;

/// The plans `day` and `night`.
type Plans = [Arc<Plan>; 2];

/// Creates a set of all SMs with its two plans.
fn set(device: &Device) -> Result<(PlanSet, Plans), Box<dyn std::error::Error>> {
    let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
    let plans = [set.plan("day")?, set.prepare(plan("night", 64))?];
    Ok((set, plans))
}

/// Returns the SMs of each partition of a plan, as verification observes them.
fn sms_of(plan: &Plan) -> green_ctx::Result<Vec<BTreeSet<u32>>> {
    let contexts: Vec<Context> =
        plan.partitions().iter().map(|part| part.context().clone()).collect();
    let report = verify::contexts(&contexts, Duration::from_millis(1))?;
    assert!(report.ok());
    Ok(report.partitions.iter().map(verify::PartitionReport::observed_sms).collect())
}

/// After every switch, each partition of the active plan runs two blocks of the probe, on top of a load that
/// keeps all SMs busy. Every launch must be seen, on its own plan's SMs, and memory must not grow.
#[test]
fn every_launch_of_ten_thousand_switches_runs_on_its_plan_s_sms() -> Outcome {
    const BLOCKS: usize = 2;
    let device = device()?;
    let (set, plans) = set(&device)?;
    let expected = [sms_of(&plans[0])?, sms_of(&plans[1])?];
    let probe = kernels::probe(&device)?;
    let places = SWITCHES * 2 * BLOCKS;
    // Not a valid SM, so a launch that wrote nothing is found.
    let results = DeviceBuffer::from_slice(&device, &vec![u64::MAX; places * 3])?;
    let load = DeviceBuffer::<u64>::zeroed(&device, 264 * 3)?;
    let launch = |plan: &Plan, switch: usize| -> green_ctx::Result<()> {
        for (index, part) in plan.partitions().iter().enumerate() {
            let to = results.as_raw() + ((switch * 2 + index) * BLOCKS * 24) as u64;
            let blocks = u32::try_from(BLOCKS).expect("a few");
            // SAFETY: the arguments match the kernel's two parameters. Each block writes three words to its own
            // place in `results`, which is kept until the end.
            unsafe { part.stream().launch(&probe, LaunchConfig::new(blocks, 32), (to, 0_u64)) }?;
            if switch % 16 == index {
                // SAFETY: as above; `load` has room for all blocks, and no code reads it.
                unsafe {
                    let to = load.as_argument();
                    part.stream().launch(&probe, LaunchConfig::new(264, 1024), (to, 20_000_u64))
                }?;
            }
        }
        Ok(())
    };
    let switch = |count: usize| -> Outcome {
        for index in 0..count {
            let next = &plans[(index + 1) % 2];
            set.switch(next, SwitchOptions::default())?;
            launch(&set.active(), index)?;
            if index % 64 == 63 {
                // Without this, the host runs far ahead of the device and waits for the driver's queues
                // instead.
                set.active().partitions()[0].stream().synchronize()?;
            }
        }
        Ok(device.primary_context()?.synchronize()?)
    };
    // A first run, so that the driver's allocations at first use are not counted.
    switch(512)?;
    let before = device.free_memory()?;
    switch(SWITCHES)?;
    assert_eq!(before.saturating_sub(device.free_memory()?), 0, "memory grew");

    let words = results.read(set.active().partitions()[0].stream())?;
    let mut used = BTreeMap::<(usize, usize), BTreeSet<u32>>::new();
    for (place, block) in words.chunks_exact(3).enumerate() {
        let (switch, index) = (place / (2 * BLOCKS), place / BLOCKS % 2);
        let plan = (switch + 1) % 2;
        let sm = block[0] as u32;
        assert_ne!(block[0], u64::MAX, "launch {index} of switch {switch} was not seen");
        assert!(expected[plan][index].contains(&sm), "switch {switch}: {index} ran on SM {sm}");
        used.entry((plan, index)).or_default().insert(sm);
    }
    assert_eq!(used.len(), 4, "{used:?}");
    Ok(())
}

/// The kernel's work for the simulator, which does not run PTX.
fn count(call: &mut KernelCall<'_>) {
    let numbers = call.param_u64(0).unwrap_or(0);
    let mut bytes = [0; NUMBERS * 4];
    // A foreign address makes the launch fail.
    if call.read(numbers, &mut bytes).is_err() {
        return;
    }
    for number in bytes.chunks_exact_mut(4) {
        let next = u32::from_ne_bytes([number[0], number[1], number[2], number[3]]) + 1;
        number.copy_from_slice(&next.to_ne_bytes());
    }
    let _ = call.write(numbers, &bytes);
}

const NUMBERS: usize = 128 * 64;

/// Creates a simulated device that runs the counting kernel.
fn counting() -> Result<(Option<Sim>, Device), Box<dyn std::error::Error>> {
    let (sim, device) = simulated("h200@13.0")?;
    sim.register_kernel("count", count);
    Ok((Some(sim), device))
}

/// The partition on the same SMs continues the count of the previous plan's partition. Only the switch's fences
/// order the two.
#[test]
fn what_one_plan_writes_is_what_the_next_reads() -> Outcome {
    const ROUNDS: u32 = 1000;
    let (sim, device) = if is_real() { (None, device()?) } else { counting()? };
    let (set, plans) = set(&device)?;
    let count = Library::from_ptx(&device, kernels::COUNT)?.kernel("count")?;
    let numbers = DeviceBuffer::<u32>::zeroed(&device, NUMBERS)?;
    for round in 1..=ROUNDS {
        let next = &plans[(round % 2) as usize];
        set.switch(next, SwitchOptions::default())?;
        let active = set.active();
        let part = active.partition("prefill").ok_or("prefill")?;
        let arguments = (numbers.as_argument(), 5_000_u64);
        // SAFETY: the arguments match the kernel's two parameters. Each thread has its own number in `numbers`,
        // which is kept until the end. That launches do not overlap is the property under test.
        unsafe { part.stream().launch(&count, LaunchConfig::new(64, 128), arguments) }?;
    }
    let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    device.primary_context()?.synchronize()?;
    let numbers = numbers.read(&stream)?;
    let wrong = numbers.iter().filter(|number| **number != ROUNDS).count();
    assert_eq!(wrong, 0, "wrong numbers among {NUMBERS}; the first number is {}", numbers[0]);
    if let Some(sim) = sim {
        assert!(sim.races().is_empty(), "{:?}", sim.races().first());
    }
    Ok(())
}

//! Plans that are switched while work runs: where each launch ran, and whether what one plan wrote is
//! what the next one reads.

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

/// The plans of day and night.
type Plans = [Arc<Plan>; 2];

/// A set of all SMs, and its two plans.
fn set(device: &Device) -> Result<(PlanSet, Plans), Box<dyn std::error::Error>> {
    let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
    let plans = [set.plan("day")?, set.prepare(plan("night", 64))?];
    Ok((set, plans))
}

/// The SMs of each partition of a plan, as verification sees them.
fn sms_of(plan: &Plan) -> green_ctx::Result<Vec<BTreeSet<u32>>> {
    let contexts: Vec<Context> =
        plan.partitions().iter().map(|part| part.context().clone()).collect();
    let report = verify::contexts(&contexts, Duration::from_millis(1))?;
    assert!(report.ok());
    Ok(report.partitions.iter().map(verify::PartitionReport::observed_sms).collect())
}

/// Two blocks of the probe in each partition of the active plan after every switch, on top of a load
/// that keeps all SMs busy: each is seen, and on its own plan's SMs. Memory does not grow.
#[test]
fn every_launch_of_ten_thousand_switches_runs_on_its_plan_s_sms() -> Outcome {
    const BLOCKS: usize = 2;
    let device = device()?;
    let (set, plans) = set(&device)?;
    let expected = [sms_of(&plans[0])?, sms_of(&plans[1])?];
    let probe = kernels::probe(&device)?;
    let places = SWITCHES * 2 * BLOCKS;
    // No SM has this number, so that a launch that was not seen is reported.
    let results = DeviceBuffer::from_slice(&device, &vec![u64::MAX; places * 3])?;
    let load = DeviceBuffer::<u64>::zeroed(&device, 264 * 3)?;
    let launch = |plan: &Plan, switch: usize| -> green_ctx::Result<()> {
        for (index, part) in plan.partitions().iter().enumerate() {
            let to = results.as_raw() + ((switch * 2 + index) * BLOCKS * 24) as u64;
            let blocks = u32::try_from(BLOCKS).expect("a few");
            // SAFETY: the kernel's two parameters; its blocks write three words each, to places of
            // their own in a buffer that is kept until the end.
            unsafe { part.stream().launch(&probe, LaunchConfig::new(blocks, 32), (to, 0_u64)) }?;
            if switch % 16 == index {
                // SAFETY: as above; nobody reads this buffer.
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
                // A host that is far ahead of the device waits for the driver's queues instead.
                set.active().partitions()[0].stream().synchronize()?;
            }
        }
        Ok(device.primary_context()?.synchronize()?)
    };
    // Once before, so that what the driver makes at first use is there.
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

/// What the kernel does, for the simulator, which does not run text.
fn count(call: &mut KernelCall<'_>) {
    let numbers = call.param_u64(0).unwrap_or(0);
    let mut bytes = [0; NUMBERS * 4];
    // An address that is not the program's fails the launch.
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

/// A simulated device that counts.
fn counting() -> Result<(Option<Sim>, Device), Box<dyn std::error::Error>> {
    let (sim, device) = simulated("h200@13.0")?;
    sim.register_kernel("count", count);
    Ok((Some(sim), device))
}

/// The partition that has certain SMs in one plan hands its numbers on to whoever has them in the
/// next, with nothing but the switch's fences between them.
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
        // SAFETY: the kernel's two parameters; each thread has its number in the buffer, which is
        // kept until the end. That launches do not overlap is what is tested.
        unsafe { part.stream().launch(&count, LaunchConfig::new(64, 128), arguments) }?;
    }
    let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    device.primary_context()?.synchronize()?;
    let numbers = numbers.read(&stream)?;
    let wrong = numbers.iter().filter(|number| **number != ROUNDS).count();
    assert_eq!(wrong, 0, "of {NUMBERS} numbers, such as {}", numbers[0]);
    if let Some(sim) = sim {
        assert!(sim.races().is_empty(), "{:?}", sim.races().first());
    }
    Ok(())
}

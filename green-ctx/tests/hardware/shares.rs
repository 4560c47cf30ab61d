//! Floors and ceilings, checked by the SMs that kernels run on.

use std::time::Duration;

use green_ctx::{
    LaunchConfig, PlanRequest, PlanSet, Share, SplitRequest, plan::SwitchOptions,
    resource::Granularity, verify,
};

use crate::common::{Outcome, device};
use crate::fit::Bench;

const STAY: Duration = Duration::from_millis(2);

#[test]
fn nobody_runs_on_a_floor_and_nobody_leaves_its_ceiling() -> Outcome {
    let device = device()?;
    let requests = [
        SplitRequest::from([Share::from(32..), Share::from(..=100)]),
        SplitRequest::from([Share::from(16..), Share::from(16..=48), Share::from(16)]),
        SplitRequest::from([Share::from(..=64); 3]),
        SplitRequest::from([Share::from(..), Share::from(..)]),
        SplitRequest::from([Share::from(17..=20), Share::from(..=40)]).rest("rest"),
        SplitRequest::from([Share::from(6..=10), Share::from(..=30)])
            .granularity(Granularity::Fine),
    ];
    for request in requests {
        let parts = device.partition(request)?;
        // The second run reuses the contexts of the first.
        for _ in 0..2 {
            let report = verify::partitions(&parts, STAY)?;
            assert!(report.ok(), "{report:?}");
            assert!(report.floors_kept());
            for (part, report) in parts.iter().zip(&report.partitions) {
                assert_eq!(report.floor_sms.len(), part.floor() as usize);
                assert_eq!(report.alone_sms.len(), part.sm_count() as usize);
            }
        }
    }
    Ok(())
}

/// The blocks of a cooperative grid must all run at the same time. If two such grids on shared SMs do not fit
/// together, they run one after the other, each as a whole, in either order of submission.
#[test]
fn cooperative_grids_of_sharers_are_there_at_once_each() -> Outcome {
    let device = device()?;
    let parts = device.partition(SplitRequest::new().group("a", 32..).group("b", ..=100))?;
    let benches = [
        Bench::on(&device, parts["a"].context().clone())?,
        Bench::on(&device, parts["b"].context().clone())?,
    ];
    for threads in [1024, 256] {
        let config = |blocks| LaunchConfig::new(blocks, threads).cooperative(true);
        let most: Vec<u32> = benches
            .iter()
            .map(|bench| Ok(bench.fit(LaunchConfig::new(1, threads))?.cooperative_blocks()))
            .collect::<green_ctx::Result<_>>()?;
        for round in 0..10 {
            let (first, second) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
            // Ordinary work of the second partition also occupies SMs that the first one's grid needs.
            benches[second].launch(LaunchConfig::new(most[second] / 2, threads))?;
            benches[first].launch(config(most[first]))?;
            benches[second].launch(config(most[second]))?;
            benches[first].was_at_once(most[first])?;
            benches[second].was_at_once(most[second])?;
        }
    }
    Ok(())
}

/// A floor that grows waits for the previous user of its SMs. A partition with the same name waits for its own
/// previous work.
#[test]
fn a_switch_fences_floors_and_names() -> Outcome {
    let device = device()?;
    let plan = |name, floor, ceiling| {
        let request = SplitRequest::new().group("decode", Share::from(floor..));
        PlanRequest::new(name, request.group("prefill", Share::from(..=ceiling)))
    };
    let set = PlanSet::new(device.rest("all")?, plan("day", 32, 100))?;
    let night = set.prepare(plan("night", 64, 68))?;
    let day = set.plan("day")?;
    let bench = |part: &green_ctx::Partition| Bench::on(&device, part.context().clone());
    let former = bench(&day.partitions()["prefill"])?;
    let decode = bench(&night.partitions()["decode"])?;
    let prefill = bench(&night.partitions()["prefill"])?;
    assert_eq!(day.partitions()["decode"].context(), night.partitions()["decode"].context());
    let whole = |bench: &Bench| bench.launch(LaunchConfig::new(8, 1024));
    for _ in 0..5 {
        set.switch(&day, SwitchOptions::default())?;
        whole(&former)?;
        set.switch(&night, SwitchOptions::default())?;
        whole(&decode)?;
        whole(&prefill)?;
        let (_, end) = former.ran()?;
        for later in [&decode, &prefill] {
            let (start, _) = later.ran()?;
            assert!(start >= end, "it began {} ns before the previous work ended", end - start);
        }
    }
    Ok(())
}

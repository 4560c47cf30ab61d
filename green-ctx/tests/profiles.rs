//! Every simulated part with every driver that knows it: units of other sizes, other remainders, counts
//! that only some parts have.

mod common;

use std::time::Duration;

use common::{Outcome, simulated};
use green_ctx::sim_0_1::{Live, Spec};
use green_ctx::{
    Device, SplitRequest, StreamOptions, Version, context::Context, resource::Granularity, verify,
};

/// The first driver that makes contexts of several units.
const COMPOSITION: Version = Version::new(12, 5);
/// The first driver with structured splits.
const STRUCTURED: Version = Version::new(13, 1);
const STAY: Duration = Duration::from_millis(1);

/// Makes the groups of a request into contexts with a stream each, and proves where they run. The counts
/// that were given, and of the rest if there is one.
fn verified(
    device: &Device,
    request: SplitRequest,
) -> Result<Vec<u32>, Box<dyn std::error::Error>> {
    let split = device.resources().sm()?.split(request)?;
    let groups = split.groups.into_iter().chain(split.remainder);
    let contexts: Vec<Context> =
        groups.map(|group| device.create_context(group)).collect::<Result<_, _>>()?;
    for context in &contexts {
        let stream = context.create_stream(StreamOptions::default())?;
        assert_eq!(stream.context(), context);
        stream.synchronize()?;
    }
    let report = verify::contexts(&contexts, STAY)?;
    assert!(report.ok() && report.disjoint(), "{report:?}");
    let given: Vec<u32> = report.partitions.iter().map(|partition| partition.sm_count).collect();
    let held: u32 = given.iter().sum();
    assert_eq!(device.resources().sm()?.free(), device.sm_count()? - held);
    Ok(given)
}

/// Runs a check on each part and driver; a failure names them, and nothing is left behind either
/// way.
fn each(check: impl Fn(&Device) -> Outcome) -> Outcome {
    for spec in Spec::all() {
        let (sim, device) = simulated(&spec.to_string())?;
        check(&device).map_err(|error| format!("{spec}: {error}"))?;
        assert_eq!(device.resources().sm()?.free(), device.sm_count()?, "{spec}");
        drop(device);
        assert_eq!(sim.live(), Live::default(), "{spec}");
    }
    Ok(())
}

/// Two uneven groups and the rest, in units as they come and as small as they come.
#[test]
fn uneven_groups_and_the_rest() -> Outcome {
    each(|device| {
        if device.driver().version() < COMPOSITION {
            return Ok(());
        }
        for granularity in [Granularity::Coarse, Granularity::Fine] {
            let units = device.resources().sm()?.unit_counts(granularity)?;
            assert_eq!(units.iter().sum::<u32>(), device.sm_count()?);
            let (one, two) = (units[0], units[..3].iter().sum());
            let request = SplitRequest::from([one, two]).granularity(granularity).rest("rest");
            let rest = device.sm_count()? - one - two;
            assert_eq!(verified(device, request)?, [one, two, rest], "{granularity}");
        }
        // A third and a quarter of whatever there is, rounded up and never down.
        let (third, quarter) = (device.sm_count()? / 3, device.sm_count()? / 4);
        let request = SplitRequest::from([third, quarter]).rest("rest");
        let report = verify::split(device, request.clone(), STAY)?;
        assert!(report.ok(), "{report:?}");
        let given = verified(device, request)?;
        assert!(given[0] >= third && given[1] >= quarter, "{given:?}");
        assert_eq!(given.iter().sum::<u32>(), device.sm_count()?);
        Ok(())
    })
}

/// On 12.4 groups are of one size.
#[test]
fn equal_groups_and_the_rest() -> Outcome {
    each(|device| {
        let sms = device.resources().sm()?;
        let least = sms.min_partition();
        for size in [least, least + sms.alignment()] {
            let given = verified(device, SplitRequest::from([size, size]).rest("rest"))?;
            let exact = given[..2].iter().all(|count| *count == size);
            assert!(exact || device.driver().version() >= COMPOSITION, "{given:?}");
            assert_eq!(given.iter().sum::<u32>(), device.sm_count()?);
        }
        Ok(())
    })
}

#[test]
fn everything_and_every_unit() -> Outcome {
    each(|device| {
        let all = device.sm_count()?;
        assert_eq!(verified(device, SplitRequest::from([all]))?, [all]);
        let units = device.resources().sm()?.unit_counts(Granularity::Coarse)?;
        let odd = units.last().copied().filter(|last| *last != units[0]);
        let equal = units.iter().filter(|unit| **unit == units[0]).count();
        let request = SplitRequest::from(vec![units[0]; equal]).rest("rest");
        let mut expected = vec![units[0]; equal];
        expected.extend(odd);
        assert_eq!(verified(device, request)?, expected);
        let error = device.resources().sm()?.split([all + 1]).expect_err("more than there are");
        assert!(error.to_string().contains(&format!("{all} of the device's {all} SMs are free")));
        Ok(())
    })
}

/// Groups within a group, to the same counts that the device was cut into.
#[test]
fn groups_are_split_again() -> Outcome {
    each(|device| {
        if device.driver().version() < COMPOSITION {
            return Ok(());
        }
        let units = device.resources().sm()?.unit_counts(Granularity::Coarse)?;
        let four = units[..4].iter().sum::<u32>();
        let parent = device.resources().sm()?.split([four])?.groups.remove(0);
        let split =
            parent.split(SplitRequest::from([units[0], units[1] + units[2]]).rest("rest"))?;
        let groups = split.groups.into_iter().chain(split.remainder);
        let contexts: Vec<Context> =
            groups.map(|group| device.create_context(group)).collect::<Result<_, _>>()?;
        let report = verify::contexts(&contexts, STAY)?;
        assert!(report.ok(), "{report:?}");
        assert_eq!(report.partitions.iter().map(|part| part.sm_count).sum::<u32>(), four);
        Ok(())
    })
}

/// The driver's structured split, with and without a constraint that it may drop.
#[test]
fn structured_groups() -> Outcome {
    each(|device| {
        if device.driver().version() < STRUCTURED {
            return Ok(());
        }
        let step = device.resources().sm()?.alignment();
        let request = SplitRequest::from([step, 2 * step]).coscheduled(step).rest("rest");
        let given = verified(device, request)?;
        assert_eq!(given[..2], [step, 2 * step]);
        // Half of it may not be there in one piece, but is with backfill.
        let half = device.sm_count()? / 2 / step * step;
        let given = verified(device, SplitRequest::from([half, half]).backfill(true).rest("rest"))?;
        assert_eq!(given[..2], [half, half]);
        Ok(())
    })
}

/// Two groups of half of an RTX 5080 are too much for its GPCs, as users report: the structured split
/// refuses them, and choosing units gives the next counts that there are.
#[test]
fn counts_that_a_part_does_not_have() -> Outcome {
    let (_sim, device) = simulated("rtx5080@13.1")?;
    let sms = device.resources().sm()?;
    let error = sms.split(SplitRequest::from([40, 40]).coscheduled(8)).expect_err("GPCs of 12");
    assert!(error.to_string().starts_with("2 groups of 40 SMs do not fit, 1 fit"), "{error}");
    for half in [8, 16, 24] {
        assert_eq!(verified(&device, SplitRequest::from([half, half]).coscheduled(8))?, [half; 2]);
    }
    assert_eq!(verified(&device, SplitRequest::from([40, 40]))?, [40, 44]);
    Ok(())
}

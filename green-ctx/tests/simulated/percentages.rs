//! Shares in percent, on every simulated GPU and driver version.

use green_ctx::sim::Spec;
use green_ctx::{
    Driver, Error, Partitions, PlanRequest, PlanSet, Share, SplitRequest, Version,
    error::ErrorKind,
    resource::{Granularity, LocalityDomain, Percent},
    sim::Sim,
};

use crate::common::{Outcome, simulated};

/// Four quarters, three thirds, one quarter and three quarters, and the smallest percentage with the largest.
const REQUESTS: [&[u32]; 4] = [&[25; 4], &[33; 3], &[25, 75], &[1, 99]];

fn shares(percents: &[u32]) -> Vec<Share> {
    percents.iter().map(|percent| Share::percent(*percent)).collect()
}

/// Checks that each count differs from its percentage of `total` SMs by less than a unit.
fn check(what: &str, percents: &[u32], counts: &[u32], total: u32, unit: u32) {
    assert_eq!(percents.len(), counts.len(), "{what}");
    assert!(counts.iter().sum::<u32>() <= total, "{what}: {counts:?}");
    for (percent, count) in percents.iter().zip(counts) {
        let ideal = f64::from(percent * total) / 100.0;
        let is_near = (f64::from(*count) - ideal).abs() < f64::from(unit);
        assert!(*count > 0 && is_near, "{what}: {percent}% of {total} came to {count}");
    }
}

fn floors(parts: &Partitions) -> Vec<u32> {
    parts.iter().map(|part| part.floor()).collect()
}

#[test]
fn they_fit_on_every_gpu_and_driver() -> Outcome {
    for spec in Spec::all() {
        let device = Driver::simulated(&Sim::new(spec)?)?.device(0)?;
        let (sms, version) = (device.resources().sm()?, device.driver().version());
        for (percents, granularity) in
            REQUESTS.iter().flat_map(|all| [(*all, Granularity::Coarse), (*all, Granularity::Fine)])
        {
            let unit = sms.unit_counts(granularity)?.into_iter().max().unwrap_or(0);
            let request = SplitRequest::from(shares(percents)).granularity(granularity);
            let what = format!("{spec} {granularity} {percents:?}");
            let dry = sms.dry_run(request.clone());
            match device.partition(request) {
                Ok(parts) => {
                    check(&what, percents, &floors(&parts), sms.sm_count(), unit);
                    let dry = dry?.groups;
                    assert!(dry.iter().zip(&parts).all(|(dry, part)| dry.floor == part.floor()));
                    assert!(parts.iter().all(|part| part.floor() == part.sm_count()));
                    assert_eq!(parts[0].share().to_string(), format!("{}%", percents[0]));
                }
                // Before CUDA 12.5 a context has a single resource, so all groups have the same size.
                Err(error @ Error::Unsupported { .. }) => {
                    assert!(version < Version::new(12, 5), "{what}: {error}");
                    assert!(
                        percents.iter().any(|percent| *percent != percents[0]),
                        "{what}: {error}"
                    );
                    assert!(error.to_string().contains("12.5"), "{error}");
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    Ok(())
}

#[test]
fn floors_and_ceilings() -> Outcome {
    for spec in Spec::all() {
        let device = Driver::simulated(&Sim::new(spec)?)?.device(0)?;
        if device.driver().version() < Version::new(12, 5) {
            let error = device.partition([Share::from(Percent(25)..)]).expect_err("one piece");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{spec}: {error}");
            continue;
        }
        let total = device.resources().sm()?.sm_count();
        let unit = device.resources().sm()?.unit_counts(Granularity::Coarse)?;
        let unit = unit.into_iter().max().unwrap_or(0);
        let (least, most) = (Share::from(Percent(25)..), Share::from(..=Percent(75)));
        let parts = device.partition([least, most])?;
        check(&format!("{spec}"), &[25], &floors(&parts)[..1], total, unit);
        assert_eq!((parts[0].sm_count(), parts[1].floor()), (total, 0), "{spec}");
        assert!(parts[1].sm_count() * 100 <= 75 * total, "{spec}");
        drop(parts);
        for text in ["1%..99%", "..1%", "99%..", "1%", "..99%", "1%..1%"] {
            let parts = device.partition([text.parse::<Share>()?])?;
            assert!(parts[0].sm_count() > 0 && parts[0].sm_count() <= total, "{spec} {text}");
        }
    }
    Ok(())
}

#[test]
fn of_a_group_that_is_split_again() -> Outcome {
    let (_sim, device) = simulated("h200@13.0")?;
    let group = device.resources().sm()?.split([64])?.groups.remove(0);
    let split = group.split(shares(&[25, 75]))?;
    assert_eq!(split.groups.iter().map(|group| group.sm_count()).collect::<Vec<_>>(), [16, 48]);
    drop(split);

    // Percentages refer to the group's floor, since the floors of its parts come from it.
    let parts = device.partition([Share::from(32..=64)])?;
    let group = parts.into_iter().next().expect("one partition").close()?;
    let split = group.split(shares(&[50, 50]))?;
    assert_eq!(split.groups.iter().map(|group| group.sm_count()).collect::<Vec<_>>(), [16, 16]);
    drop(split);

    let request = |percents: &[u32]| SplitRequest::from(shares(percents));
    let first = PlanRequest::new("day", request(&[25, 75]));
    let plans = PlanSet::new(device.rest("all")?, first)?;
    let night = plans.prepare(PlanRequest::new("night", request(&[50, 50])))?;
    assert_eq!(floors(plans.active().partitions()), [32, 100]);
    assert_eq!(floors(night.partitions()), [68, 64]);
    Ok(())
}

/// A percentage counts with the SMs that it is rounded to: on 132 SMs, 30% come to 40, and 26% to 32.
#[test]
fn more_than_the_device_has_is_a_misuse() -> Outcome {
    let (_sim, device) = simulated("h200@13.0")?;
    let held = device.partition([16])?;
    let request = |percent| [Share::from(100), Share::percent(percent)];
    for (percent, kind) in [
        (30, ErrorKind::InvalidRequest),
        (100, ErrorKind::InvalidRequest),
        (26, ErrorKind::Unavailable),
    ] {
        let error = device.partition(request(percent)).expect_err("16 SMs are held");
        assert_eq!(error.kind(), kind, "{error}");
        let names_holder = error.to_string().contains("held by");
        assert_eq!(names_holder, kind == ErrorKind::Unavailable, "{error}");
    }
    drop(held);
    device.partition(request(26))?;
    Ok(())
}

#[test]
fn the_rest_keeps_a_unit() -> Outcome {
    let (_sim, device) = simulated("h200@13.0")?;
    let parts = device.partition(SplitRequest::from(shares(&[97])).rest("rest"))?;
    assert_eq!(floors(&parts), [124, 8]);
    Ok(())
}

#[test]
fn of_a_structured_split() -> Outcome {
    for spec in ["h200@13.1", "b200@13.4"] {
        let (_sim, device) = simulated(spec)?;
        let sms = device.resources().sm()?;
        for percents in REQUESTS {
            let request = SplitRequest::from(shares(percents)).coscheduled(2);
            let counts = sms.structured_counts(request.clone())?;
            check(spec, percents, &counts[..percents.len()], sms.sm_count(), 2);
            let split = sms.split(request)?;
            let given: Vec<u32> = split.groups.iter().map(|group| group.sm_count()).collect();
            assert_eq!(given, counts[..percents.len()], "{spec} {percents:?}");
        }
        let group = sms.split(SplitRequest::from([64]).coscheduled(2))?.groups.remove(0);
        // An invalid request must not create a context.
        let request = SplitRequest::from(shares(&[25, 75]));
        let refused = group.split(request.clone().coscheduled([2, 4])).expect_err("two sets");
        assert_eq!(device.context_counts().created, 0, "{spec}");
        let split = refused.given.split(request.coscheduled(2))?;
        assert_eq!(device.context_counts().created, 1, "{spec}");
        let given: Vec<u32> = split.groups.iter().map(|group| group.sm_count()).collect();
        assert_eq!(given, [16, 48], "{spec}");
    }
    Ok(())
}

/// With larger co-scheduled sets some SMs belong to no set. Percentages must fit into the SMs of the sets.
#[test]
fn of_larger_sets() -> Outcome {
    let all = shares(&[100]);
    for (spec, set, available, counts) in [
        ("h200@13.1", 4, 120, [&[32, 32, 28, 28][..], &[40, 40, 40], &[32, 88], &[4, 116]]),
        ("h200@13.1", 8, 120, [&[32, 32, 32, 24], &[40, 40, 40], &[32, 88], &[8, 112]]),
        ("h200@13.1", 16, 112, [&[32, 32, 32, 16], &[48, 32, 32], &[32, 80], &[16, 96]]),
        ("b200@13.4", 4, 136, [&[36, 36, 32, 32], &[48, 44, 44], &[36, 100], &[4, 132]]),
        ("b200@13.4", 8, 128, [&[32, 32, 32, 32], &[48, 40, 40], &[32, 96], &[8, 120]]),
        ("b200@13.4", 16, 128, [&[32, 32, 32, 32], &[48, 48, 32], &[32, 96], &[16, 112]]),
    ] {
        let (_sim, device) = simulated(spec)?;
        let sms = device.resources().sm()?;
        let structured = |shares: Vec<Share>| SplitRequest::from(shares).coscheduled(set);
        assert_eq!(sms.structured_counts(structured(all.clone()))?[0], available, "{spec} {set}");
        for (percents, counts) in REQUESTS.into_iter().zip(counts) {
            let split = sms.split(structured(shares(percents)))?;
            let given: Vec<u32> = split.groups.iter().map(|group| group.sm_count()).collect();
            assert_eq!(given, counts, "{spec} {set} {percents:?}");
        }
    }
    Ok(())
}

#[test]
fn what_is_refused_says_what_to_write() -> Outcome {
    let (_sim, device) = simulated("h200@13.0")?;
    let refused = |shares: &[Share]| {
        let error = device.partition(shares).expect_err("it cannot be met");
        assert_eq!(device.resources().sm().map(|sms| sms.free_sm_count()).ok(), Some(132));
        error.to_string()
    };
    for (shares, words) in [
        (vec![Share::percent(0)], "ask for 1% or more"),
        (vec![Share::percent(101)], "ask for at most 100%"),
        (vec![Share::percent(60), Share::from(Percent(50)..)], "the floors add up to 110%"),
        (vec![Share::from(Percent(75)..=Percent(25))], "ask for 25%..=75%"),
        (vec![Share::from(..=Percent(0))], "ask for 1 or more"),
        (vec!["25%..=16".parse()?], "25% of 132 SMs are 33; ask for a ceiling of at least that"),
        (vec!["100..=50%".parse()?], "50% of 132 SMs are 66; ask for a floor of at most that"),
        (vec![Share::percent(1); 17], "17 groups of 1% of the SMs do not fit, 16 fit"),
    ] {
        let error = refused(&shares);
        assert!(error.contains(words), "{error}");
    }
    let error = refused(&[Share::from(100), Share::percent(30)]);
    assert!(
        error.starts_with("groups of 100, 30% of the SMs do not fit, the first one fits"),
        "{error}"
    );
    let structured = |request: SplitRequest| {
        let (_sim, device) = simulated("b200@13.4").expect("a simulated device");
        device.partition(request).expect_err("it cannot be met").to_string()
    };
    let error = structured(SplitRequest::from(shares(&[25, 75])).coscheduled([2, 8]));
    assert!(error.contains("2 and 8 co-scheduled SMs; give all groups the same"), "{error}");
    let error =
        structured(SplitRequest::from(shares(&[25, 75])).locality_domain(LocalityDomain::Id(0)));
    assert!(error.contains("a locality domain has only some; ask for counts"), "{error}");
    let held = device.partition([100])?;
    let error = device.partition([Share::percent(50)]).expect_err("32 are free").to_string();
    assert!(error.starts_with("a group of 50% of the SMs does not fit"), "{error}");
    assert!(error.contains("a group of 32 would fit"), "{error}");
    drop(held);
    Ok(())
}

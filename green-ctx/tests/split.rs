//! Splitting: named, nested, overlapping, open-ended, and on a driver that cannot compose.

mod common;

use std::time::Duration;

use common::{Outcome, group, simulated};
use green_ctx::sim_0_1::{Live, Sim};
use green_ctx::{
    Device, Error, Share, SplitRequest,
    context::Context,
    error::ErrorKind,
    resource::{Granularity, SmGroup, Split},
    verify,
};

/// The counts of a split's groups, and of its remainder.
fn counts(split: &Split) -> (Vec<u32>, Option<u32>) {
    let groups = split.groups.iter().map(SmGroup::sm_count).collect();
    (groups, split.remainder.as_ref().map(SmGroup::sm_count))
}

fn contexts(device: &Device, split: Split) -> green_ctx::Result<Vec<Context>> {
    let groups = split.groups.into_iter().chain(split.remainder);
    groups.map(|group| Ok(device.create_context(group)?)).collect()
}

/// The SMs that each context runs on, as the probe sees it.
fn observed(contexts: &[Context]) -> green_ctx::Result<Vec<Vec<u32>>> {
    let report = verify::contexts(contexts, Duration::from_millis(1))?;
    let partitions = report.partitions.iter();
    Ok(partitions.map(|partition| partition.observed_sms().into_iter().collect()).collect())
}

#[test]
fn groups_have_the_names_they_were_given() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let request = SplitRequest::new().group("decode", 16).group("draft", 8).rest("prefill");
    let split = device.resources().sm()?.split(request)?;
    let names: Vec<&str> = split.groups.iter().map(SmGroup::name).collect();
    assert_eq!(names, ["decode", "draft"]);
    assert_eq!(split.remainder.as_ref().map(SmGroup::name), Some("prefill"));
    assert_eq!(counts(&split), (vec![16, 8], Some(108)));
    let error = device.resources().sm()?.split([8]).expect_err("nothing is left");
    assert!(
        error.to_string().ends_with("held by decode (16 SMs), draft (8 SMs), prefill (108 SMs)"),
        "{error}"
    );
    Ok(())
}

#[test]
fn nothing_may_remain() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let sms = device.resources().sm()?;
    let split = sms.split(SplitRequest::from([132]).rest("rest"))?;
    assert_eq!(counts(&split), (vec![132], None));
    drop(split);
    let split = sms.split(SplitRequest::new().rest("all"))?;
    assert_eq!(counts(&split), (vec![], Some(132)));
    Ok(())
}

#[test]
fn a_group_may_take_as_many_as_there_are() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let sms = device.resources().sm()?;
    let request = SplitRequest::new().group("decode", 16).group("prefill", None).rest("odd");
    let plan = sms.dry_run(request.clone())?;
    assert_eq!(
        (plan.groups[1].share, plan.groups[1].sm_count, plan.remainder),
        (Share::from(None), 104, 12)
    );
    let split = sms.split(request)?;
    // The 12 that are left are not scheduled together, and stay out of it.
    assert_eq!(counts(&split), (vec![16, 104], Some(12)));
    assert_eq!(split.groups[1].share(), Share::from(None));
    let error = sms.split(SplitRequest::new().group("more", None)).expect_err("nothing is left");
    assert!(error.to_string().starts_with("a group of any number of SMs does not fit"), "{error}");
    Ok(())
}

#[test]
fn a_group_is_split_into_groups_among_its_own_sms() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let parent = group(&device, 64)?;
    let parent_sms = {
        let context = device.create_context(parent)?;
        let sms = observed(std::slice::from_ref(&context))?.remove(0);
        (context.close()?.ok_or("a group")?, sms)
    };
    let (parent, sms) = parent_sms;
    let split = parent.split(SplitRequest::from([16, 24]).rest("spare"))?;
    assert_eq!(counts(&split), (vec![16, 24], Some(24)));
    let mut split = split;
    // To any depth.
    let deeper = split.groups.remove(1).split(SplitRequest::new().group("deeper", 8))?;
    assert_eq!(counts(&deeper), (vec![8], None));
    let error = device.resources().sm()?.split([132]).expect_err("some are held");
    assert!(
        error.to_string().ends_with("held by p0 (16 SMs), deeper (8 SMs), spare (24 SMs)"),
        "{error}"
    );
    // What the deeper split left is free again, for anybody.
    assert_eq!(device.resources().sm()?.free(), 132 - 64 + 16);

    let mut all = contexts(&device, split)?;
    all.extend(contexts(&device, deeper)?);
    let mut seen = observed(&all)?.concat();
    seen.sort_unstable();
    assert_eq!(seen.len(), 16 + 24 + 8);
    seen.dedup();
    assert_eq!(seen.len(), 48, "children share SMs");
    assert!(seen.iter().all(|sm| sms.contains(sm)), "children left their parent");
    drop(all);
    assert_eq!(device.resources().sm()?.free(), 132);
    drop(device);
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

#[test]
fn a_group_that_cannot_be_split_comes_back() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let parent = device.resources().sm()?.split(SplitRequest::new().group("decode", 16))?;
    let parent = parent.groups.into_iter().next().ok_or("one group")?;
    let error = parent.split([16, 8]).expect_err("24 SMs of 16");
    assert_eq!(
        error.error.to_string(),
        "groups of 16, 8 SMs do not fit, the first one fits: decode has 16 SMs, in units of 8; \
         2 groups of 8 would fit"
    );
    let error = error.group.split([0]).expect_err("no SMs");
    assert_eq!(error.error.kind(), ErrorKind::InvalidRequest);
    let fine = SplitRequest::from([2]).granularity(Granularity::Fine);
    let error = error.group.split(fine).expect_err("a coarse group");
    assert!(matches!(error.error, Error::CutInUse { .. }), "{}", error.error);
    let error = error.group.split(SplitRequest::from([8]).overlapping(true)).expect_err("refused");
    assert_eq!(error.error.kind(), ErrorKind::InvalidRequest);
    assert_eq!((error.group.name(), error.group.sm_count()), ("decode", 16));
    assert_eq!(device.resources().sm()?.free(), 116);
    drop(error);
    assert_eq!(device.resources().sm()?.free(), 132);
    Ok(())
}

#[test]
fn overlapping_groups_share() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let sms = device.resources().sm()?;
    let request = || SplitRequest::from([64, 60]).overlapping(true);
    assert_eq!(sms.dry_run(request())?.remainder, 8);
    let split = sms.split(request())?;
    assert!(split.groups.iter().all(|group| group.floor() == 0));
    let mut all = contexts(&device, split)?;
    all.extend(contexts(&device, sms.split(request())?)?);
    let seen = observed(&all)?;
    assert_eq!(seen[..2], seen[2..]);
    assert!(seen[0].iter().all(|sm| !seen[1].contains(sm)), "one request is disjoint in itself");
    assert_eq!(sms.free(), 8);
    drop(all);
    assert_eq!(sms.free(), 132);
    let error = sms.split(SplitRequest::from([200]).overlapping(true)).expect_err("132 SMs");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    Ok(())
}

#[test]
fn a_12_4_driver_makes_equal_groups_and_the_rest() -> Outcome {
    let (_sim, device) = simulated("h200@12.4")?;
    let sms = device.resources().sm()?;
    for (request, expected) in [
        (SplitRequest::from([8]), (vec![8], None)),
        (SplitRequest::from([8; 15]), (vec![8; 15], None)),
        (SplitRequest::from([16, 16]).rest("rest"), (vec![16, 16], Some(100))),
        (SplitRequest::from([17]).rest("rest"), (vec![24], Some(108))),
        (SplitRequest::from([40, 40, 40]), (vec![40, 40, 40], None)),
        (SplitRequest::from([132]).rest("rest"), (vec![132], None)),
        // One piece of all units but the odd one, as many SMs as newer drivers give.
        (SplitRequest::new().group("all", None), (vec![120], None)),
        (SplitRequest::new().group("all", None).rest("rest"), (vec![120], Some(12))),
        (SplitRequest::new().group("all", None).granularity(Granularity::Fine), (vec![132], None)),
        (SplitRequest::new().rest("rest"), (vec![], Some(132))),
    ] {
        let split = sms.split(request.clone())?;
        assert_eq!(counts(&split), expected, "{request:?}");
        let contexts = contexts(&device, split)?;
        assert!(verify::contexts(&contexts, Duration::from_millis(1))?.ok(), "{request:?}");
    }
    assert_eq!(sms.free(), 132);
    Ok(())
}

#[test]
fn a_12_4_driver_refuses_what_it_cannot_express() -> Outcome {
    let (_sim, device) = simulated("h200@12.4")?;
    let sms = device.resources().sm()?;
    let error = sms.split([16, 24]).expect_err("two sizes");
    assert!(error.is_unsupported());
    assert_eq!(
        error.to_string(),
        "cuDevResourceGenerateDesc with several resources needs CUDA 12.5, the driver supports 12.4"
    );
    assert!(sms.dry_run([16, 24]).expect_err("two sizes").is_unsupported());
    let open = SplitRequest::new().group("all", None).group("one", 16);
    assert!(sms.split(open).expect_err("fourteen units").is_unsupported());
    assert!(matches!(sms.split([64, 64, 64]), Err(Error::NotEnoughSms(_))));
    assert!(matches!(sms.split([200]), Err(Error::NotEnoughSms(_))));
    assert_eq!(sms.free(), 132);

    // What is said to fit does: no uneven counts, and of equal ones those that a cut gives.
    let Err(Error::NotEnoughSms(uneven)) = sms.split([67, 11, 36, 77]) else {
        return Err("191 SMs of 132".into());
    };
    assert_eq!((uneven.fit, uneven.nearest.as_slice()), (1, &[][..]), "{uneven}");
    let Err(Error::NotEnoughSms(equal)) = sms.split([107, 107, 107]) else {
        return Err("321 SMs of 132".into());
    };
    assert_eq!(counts(&sms.split(equal.nearest)?).0, [40, 40, 40]);

    // One size at a time, since how two cuts of the device overlap is not known.
    let held = sms.split([16])?;
    assert_eq!(counts(&sms.split([16])?).0, [16]);
    let error = sms.split([32]).expect_err("cut into 16s");
    assert_eq!(
        error.to_string(),
        "the device is cut into coarse groups of 16 SMs, of which some are held by p0 (16 SMs); \
         drop them to cut it otherwise"
    );
    let group = held.groups.into_iter().next().ok_or("one group")?;
    assert!(group.split([8]).expect_err("12.5 can").error.is_unsupported());
    Ok(())
}

/// What others left of the cut that is in use, where it is one piece.
#[test]
fn a_12_4_driver_gives_the_piece_that_is_left() -> Outcome {
    let (_sim, device) = simulated("h200@12.4")?;
    let sms = device.resources().sm()?;
    let (rest, all) = (SplitRequest::new().rest("rest"), SplitRequest::new().group("all", None));
    let mut held = sms.split(SplitRequest::from([64]).rest("rest"))?;
    held.remainder = None;
    assert_eq!(sms.dry_run(rest.clone())?.remainder, 68);
    held.remainder = sms.split(rest.clone())?.remainder;
    held.groups.clear();
    let again = sms.split(all.clone())?;
    assert_eq!((counts(&again), sms.free()), ((vec![64], None), 0));
    let groups = again.groups.into_iter().chain(held.remainder);
    let contexts = groups.map(|group| device.create_context(group));
    let contexts = contexts.collect::<Result<Vec<_>, _>>()?;
    assert!(verify::contexts(&contexts, Duration::from_millis(1))?.ok());
    drop(contexts);
    // Seven pieces are no context.
    let _held = sms.split([16])?;
    for request in [rest, all] {
        assert!(sms.split(request).expect_err("several pieces").is_unsupported());
    }
    assert_eq!(sms.free(), 132 - 16);
    Ok(())
}

#[test]
fn the_ledger_is_whole_whatever_the_threads_do() -> Outcome {
    let sim = Sim::new("h200")?;
    let device = green_ctx::Driver::simulated(&sim)?.device(0)?;
    let sms = device.resources().sm()?;
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let (device, sms) = (&device, &sms);
            scope.spawn(move || {
                for round in 0..200u32 {
                    let wanted = 8 * (1 + (thread + round) % 4);
                    let Ok(split) = sms.split([wanted]) else { continue };
                    for group in split.groups {
                        match round % 3 {
                            0 => drop(group),
                            1 => drop(group.split([8]).map(|split| split.groups)),
                            _ => drop(device.create_context(group).expect("a context")),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(sms.free(), 132);
    let counts = device.context_counts();
    assert_eq!(sim.live().green_contexts, counts.idle as u64);
    assert!(counts.reused > counts.created);
    Ok(())
}

#[test]
fn a_dry_run_without_some_groups_counts_their_sms_as_free() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let sms = device.resources().sm()?;
    let request = SplitRequest::new().group("a", 100).group("b", 16).group("c", ..);
    let split = sms.split(request)?;
    let [a, b, c] = &split.groups[..] else { return Err("three groups".into()) };

    assert!(sms.dry_run_without([116], &[a]).is_err(), "c shares 16 SMs");
    let given = sms.dry_run_without(SplitRequest::new().group("d", 100).rest("e"), &[a, c])?;
    assert_eq!((given.groups[0].sm_count, given.remainder), (100, 16));
    // A group that is named twice counts once.
    assert!(sms.dry_run_without([132], &[a, a, c]).is_err(), "b has 16 SMs");
    assert!(sms.dry_run_without([132], &[a, b, c]).is_ok());
    // Without any group the device can be cut otherwise.
    let fine = SplitRequest::from([2]).granularity(Granularity::Fine);
    assert!(sms.dry_run_without(fine.clone(), &[a, c]).is_err());
    assert_eq!(sms.dry_run_without(fine, &[a, b, c])?.groups[0].sm_count, 2);

    // Nothing was given back.
    assert!(sms.dry_run([8]).is_err());
    assert_eq!([a.floor(), b.floor(), c.floor()], [100, 16, 0]);
    Ok(())
}

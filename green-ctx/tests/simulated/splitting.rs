//! Splits by count: the groups, the remainder, dry runs, and groups within groups.

use green_ctx::sim::Spec;
use green_ctx::{
    Error, Share, SplitRequest,
    error::ErrorKind,
    resource::{Granularity, SmGroup},
};

use crate::common::{Outcome, group, simulated};
use crate::{COMPOSITION, Machine, STRUCTURED, contexts, counts, disjoint, each_driver, of};

/// The error's subject if the driver creates contexts of a single resource only.
const COMPOSED: &str = "a group of several units, as for groups of different sizes,";

/// A request, the counts that it gets, the remainder, and whether drivers before CUDA 12.5 can do it.
type Case = (SplitRequest, Vec<u32>, Option<u32>, bool);

fn cases() -> Vec<Case> {
    let fine = |counts: &[u32]| of(counts.to_vec()).granularity(Granularity::Fine);
    let large = |counts: &[u32]| of(counts.to_vec()).granularity(Granularity::LargestClusters);
    vec![
        // One group, several, and one per unit.
        (of([8]), vec![8], None, true),
        (of([132]), vec![132], None, true),
        (of([8; 15]), vec![8; 15], None, true),
        (of([40; 3]), vec![40; 3], None, true),
        // Counts are rounded up, and the result reports it.
        (of([17]), vec![24], None, true),
        (of([1; 4]), vec![8; 4], None, true),
        // With a rest, which may be empty.
        (of([16; 2]).rest("rest"), vec![16; 2], Some(100), true),
        (of([17]).rest("rest"), vec![24], Some(108), true),
        (of([132]).rest("rest"), vec![132], None, true),
        // Groups of several sizes, or of several resources.
        (of([8, 24, 100]), vec![8, 24, 100], None, false),
        (of([16, 24]).rest("rest"), vec![16, 24], Some(92), false),
        (of([20]).rest("rest"), vec![20], Some(112), false),
        (of([108, 24]), vec![108, 24], None, false),
        // All SMs that can be scheduled together.
        (SplitRequest::new().group("all", None).rest("odd"), vec![120], Some(12), true),
        (of([16]).group("all", None), vec![16, 104], None, false),
        (SplitRequest::new().group("all", None), vec![120], None, true),
        (SplitRequest::new().rest("all"), vec![], Some(132), true),
        // Other granularities.
        (fine(&[]).group("all", None), vec![132], None, true),
        (fine(&[2; 66]), vec![2; 66], None, true),
        (fine(&[6; 2]).rest("rest"), vec![6; 2], Some(120), true),
        (fine(&[6, 10]).rest("rest"), vec![6, 10], Some(116), false),
        (fine(&[3]), vec![4], None, true),
        (large(&[32; 2]).rest("rest"), vec![32; 2], Some(68), true),
        (large(&[8, 24]), vec![8, 24], None, false),
    ]
}

/// Each request gives what its dry run reports, on disjoint SMs. The dry run takes nothing.
#[test]
fn requests_give_what_they_plan() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        for (request, groups, rest, before_composition) in cases() {
            if !before_composition && !machine.has(COMPOSITION) {
                // These drivers give 24 SMs for 20, since a group is a single resource.
                if groups != [20] {
                    machine.unsupported(COMPOSED, COMPOSITION, || sms.dry_run(request.clone()))?;
                    machine.unsupported(COMPOSED, COMPOSITION, || sms.split(request))?;
                }
                continue;
            }
            let before = machine.state()?;
            let plan = sms.dry_run(request.clone())?;
            assert_eq!(machine.state()?, before, "{request:?}");
            let split = sms.split(request.clone())?;
            assert_eq!(counts(&split), (groups.clone(), rest), "{request:?}");
            let planned: Vec<_> = plan
                .groups
                .iter()
                .map(|group| (&*group.name, group.share, group.sm_count))
                .collect();
            let given: Vec<_> = split
                .groups
                .iter()
                .map(|group| (group.name(), group.share(), group.sm_count()))
                .collect();
            assert_eq!(planned, given, "{request:?}");
            // The remainder is free, unless a group takes the rest.
            let left = 132 - groups.iter().sum::<u32>();
            assert_eq!(
                (plan.remainder, sms.free_sm_count()),
                (left, left - rest.unwrap_or(0)),
                "{request:?}"
            );
            disjoint(&contexts(&machine.device, split)?)?;
            assert_eq!(sms.free_sm_count(), 132, "{request:?}");
        }
        Ok(())
    })
}

/// Counts are rounded up, by less than a unit (16).
#[test]
fn every_count_gives_what_it_plans() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        let before = machine.state()?;
        for wanted in 1..=132 {
            let plan = sms.dry_run([wanted])?;
            let given = plan.groups[0].sm_count;
            assert!(given >= wanted && given - wanted < 8, "{wanted} gives {given}");
            let split = sms.split([wanted])?;
            assert_eq!((counts(&split), sms.free_sm_count()), ((vec![given], None), 132 - given));
            assert_eq!(plan.remainder, 132 - given);
            drop(split);
            if !wanted.is_multiple_of(2) {
                continue;
            }
            let fine = of([wanted]).granularity(Granularity::Fine);
            assert_eq!(sms.dry_run(fine.clone())?.groups[0].sm_count, wanted);
            assert_eq!(counts(&sms.split(fine)?).0, [wanted]);
        }
        assert_eq!(machine.state()?, before);
        Ok(())
    })
}

#[test]
fn groups_have_the_names_they_were_given() -> Outcome {
    each_driver(|machine| {
        let request = SplitRequest::new().group("decode", 16).group("draft", 16).rest("prefill");
        let split = machine.sms()?.split(request)?;
        let names: Vec<&str> = split.groups.iter().map(SmGroup::name).collect();
        assert_eq!(names, ["decode", "draft"]);
        let rest = split.remainder.as_ref().ok_or("100 SMs remain")?;
        assert_eq!((rest.name(), rest.share()), ("prefill", Share::REST));
        assert_eq!(split.groups[1].share(), Share::from(16));
        let unnamed = of([16; 3]);
        drop(split);
        let split = machine.sms()?.split(unnamed)?;
        assert_eq!(split.groups.iter().map(SmGroup::name).collect::<Vec<_>>(), ["p0", "p1", "p2"]);
        Ok(())
    })
}

/// Splits three levels deep: every child is inside its parent and disjoint from its siblings. SMs that no child
/// takes are free.
#[test]
fn groups_are_split_to_any_depth() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let first = group(device, 64)?;
        if !machine.has(COMPOSITION) {
            machine.unsupported("splitting a group", COMPOSITION, || first.dry_run([8]))?;
            let before = machine.state()?;
            let error = first.split([8]).expect_err("the driver is too old");
            assert!(error.reason.is_unsupported(), "{}", error.reason);
            assert_eq!((error.given.sm_count(), machine.state()?), (64, before));
            return Ok(());
        }
        let context = device.create_context(first)?;
        let whole = disjoint(std::slice::from_ref(&context))?.remove(0);
        let first = context.close()?.ok_or("it has a group")?;

        let request = SplitRequest::new().group("left", 32).group("right", 24);
        let plan = first.dry_run(request.clone())?;
        let mut second = first.split(request)?.groups;
        assert_eq!(plan.groups.iter().map(|group| group.sm_count).sum::<u32>(), 56);
        // 8 of the parent's 64 SMs are free again.
        assert_eq!((plan.remainder, machine.free()?), (8, 132 - 56));
        let third = second.remove(0).split(of([16]).rest("spare"))?;
        assert_eq!(counts(&third), (vec![16], Some(16)));
        let mut third = third;
        let fourth = third.groups.remove(0).split([8, 8])?;
        assert_eq!(fourth.groups.iter().map(SmGroup::name).collect::<Vec<_>>(), ["p0", "p1"]);
        assert_eq!(machine.free()?, 132 - 56);

        let mut all = contexts(device, third)?;
        all.extend(contexts(device, fourth)?);
        all.push(device.create_context(second.remove(0))?);
        let seen = disjoint(&all)?;
        assert_eq!(seen.iter().map(|sms| sms.len()).collect::<Vec<_>>(), [16, 8, 8, 24]);
        assert!(seen.iter().all(|sms| sms.is_subset(&whole)), "a child ran outside its parent");
        Ok(())
    })
}

#[test]
fn a_group_that_is_not_split_comes_back_as_it_was() -> Outcome {
    each_driver(|machine| {
        let mut kept =
            machine.sms()?.split(SplitRequest::new().group("decode", 16))?.groups.remove(0);
        let requests = [
            SplitRequest::new(),
            of([0]),
            of([16, 8]),
            of([2]).granularity(Granularity::Fine),
            of([8]).overlapping(true),
        ];
        let before = machine.state()?;
        for request in requests {
            let error = kept.dry_run(request.clone()).expect_err("refused");
            let refused = kept.split(request.clone()).expect_err("refused");
            assert_eq!(refused.reason.to_string(), error.to_string(), "{request:?}");
            kept = refused.given;
            assert_eq!(
                (kept.name(), kept.sm_count(), kept.share()),
                ("decode", 16, Share::from(16))
            );
            assert_eq!(machine.state()?, before, "{request:?}");
        }
        if machine.has(COMPOSITION) {
            let error = kept.split([16, 8]).expect_err("24 SMs of 16").reason;
            let expected = "groups of 16, 8 SMs do not fit, the first one fits: decode has 16 SMs, in \
                            units of 8; 2 groups of 8 would fit";
            assert_eq!(error.to_string(), expected);
        }
        Ok(())
    })
}

#[test]
fn requests_for_nothing_are_refused() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        for request in [SplitRequest::new(), of([0]), of([8, 0])] {
            let refuse = || machine.without_calls(|| sms.split(request.clone()));
            assert!(machine.refused(refuse)?.is_misuse(), "{request:?}");
            assert!(machine.refused(|| sms.dry_run(request.clone()))?.is_misuse(), "{request:?}");
        }
        Ok(())
    })
}

/// The units of different divisions overlap in unknown ways, so the groups of a device must all come from one.
#[test]
fn groups_of_two_cuts_do_not_meet() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        let fine = || of([2]).granularity(Granularity::Fine);
        let large = || of([8]).granularity(Granularity::LargestClusters);
        for (first, others, held) in [
            (of([8]), [fine(), large()], "coarse units"),
            (fine(), [of([8]), large()], "fine units"),
            (large(), [of([8]), fine()], "largest-cluster units"),
        ] {
            let group = sms.split(first)?;
            for other in others {
                for error in [
                    machine.refused(|| sms.split(other.clone()))?,
                    machine.refused(|| sms.dry_run(other.clone()))?,
                ] {
                    assert!(
                        matches!(&error, Error::CutInUse { held: by, .. } if by == held),
                        "{error}"
                    );
                    assert_eq!((error.kind(), error.is_misuse()), (ErrorKind::Unavailable, false));
                }
            }
            drop(group);
        }
        // On these drivers each size of group is a division of its own.
        let _group = sms.split([16])?;
        if machine.has(COMPOSITION) {
            assert_eq!(counts(&sms.split([32])?).0, [32]);
        } else {
            let error = machine.refused(|| sms.split([32]))?;
            assert!(
                matches!(&error, Error::CutInUse { held, .. } if held == "coarse groups of 16 SMs"),
                "{error}"
            );
            assert_eq!(counts(&sms.split([16])?).0, [16]);
        }
        Ok(())
    })
}

#[test]
fn a_group_at_the_end_has_the_last_units() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let sms = device.resources().sm()?;
        let request = |a: u32, b: u32| SplitRequest::new().group("a", a).group("b", b).at_end("b");
        let error = sms.split(request(16, 16).at_end("c")).expect_err("no group is named c");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.to_string().contains("the request has no group of that name"), "{error}");
        if device.driver().version() < COMPOSITION {
            return Ok(());
        }
        // Each count corresponds to fixed units, whatever the other group has.
        for other in [16, 24, 40] {
            let units = |split: &green_ctx::resource::Split| {
                split.groups.iter().map(|group| group.unit_indices().to_vec()).collect::<Vec<_>>()
            };
            assert_eq!(units(&sms.split(request(other, 24))?)[1], [12, 13, 14]);
            assert_eq!(units(&sms.split(request(32, other))?)[0], [0, 1, 2, 3]);
        }
        // The odd unit is used if it makes a count exact.
        let split = sms.split(request(100, 32))?;
        assert_eq!(split.groups[0].unit_indices().last(), Some(&15));
        assert_eq!(split.groups[1].unit_indices(), [11, 12, 13, 14]);
        Ok(())
    })
}

/// Every function that takes a request refuses two groups with the same name.
#[test]
fn two_groups_have_two_names() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        let twice = || SplitRequest::new().group("a", 16).group("b", 16).group("a", 16);
        let rest = || SplitRequest::new().group("a", 16).rest("a");
        for request in [twice, rest] {
            let errors = [
                machine.refused(|| sms.dry_run(request()))?,
                machine.refused(|| sms.split(request()))?,
                machine.refused(|| machine.device.partition(request()))?,
            ];
            for error in errors {
                assert_eq!(error.to_string(), "two groups are named a");
            }
        }
        let group = crate::common::group(&machine.device, 64)?;
        assert!(group.dry_run(twice()).is_err());
        let error = group.split(twice()).expect_err("two are named a");
        assert_eq!(error.reason.to_string(), "two groups are named a");
        Ok(())
    })
}

#[test]
fn a_group_needs_a_name() -> Outcome {
    let (_sim, device) = simulated("h200@13.1")?;
    let sms = device.resources().sm()?;
    let requests = [
        SplitRequest::new().group("", 8),
        SplitRequest::new().group("a", 8).rest(""),
        SplitRequest::new().group("", 8..),
        SplitRequest::new().group("", 8).coscheduled(8),
        SplitRequest::new().group("a\nb", 8),
        SplitRequest::new().group("a", 8).rest("\u{1b}[31m"),
    ];
    for request in requests {
        assert!(matches!(sms.dry_run(request.clone()), Err(Error::InvalidRequest(_))));
        assert!(matches!(sms.split(request), Err(Error::InvalidRequest(_))));
    }
    Ok(())
}

/// A CUDA 12.4 driver creates contexts of a single resource: all groups have one size, and a shortage suggests
/// no uneven counts.
#[test]
fn a_12_4_driver_names_what_it_can_give() -> Outcome {
    let (_sim, device) = simulated("h200@12.4")?;
    let sms = device.resources().sm()?;
    let open = SplitRequest::new().group("all", None).group("one", 16);
    assert!(sms.split(open).expect_err("fourteen units").is_unsupported());
    let Err(Error::NotEnoughSms(uneven)) = sms.split([67, 11, 36, 77]) else {
        return Err("191 SMs of 132".into());
    };
    assert_eq!((uneven.fit, uneven.nearest.as_slice()), (1, &[][..]), "{uneven}");
    let Err(Error::NotEnoughSms(equal)) = sms.split([107, 107, 107]) else {
        return Err("321 SMs of 132".into());
    };
    assert_eq!(counts(&sms.split(equal.nearest)?).0, [40, 40, 40]);
    let _held = sms.split([16])?;
    let error = sms.split([32]).expect_err("cut into 16s");
    assert_eq!(
        error.to_string(),
        "the device is cut into coarse groups of 16 SMs, and some of them are in use by p0 (16 SMs); \
         drop those to cut it differently"
    );
    Ok(())
}

/// A single piece that remains can become a group.
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
    assert_eq!((counts(&again), sms.free_sm_count()), ((vec![64], None), 0));
    held.groups = again.groups;
    disjoint(&contexts(&device, held)?)?;
    // Several pieces cannot become one context.
    let _held = sms.split([16])?;
    for request in [rest, all] {
        assert!(sms.split(request).expect_err("several pieces").is_unsupported());
    }
    assert_eq!(sms.free_sm_count(), 132 - 16);
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
    // A group that is listed twice counts once.
    assert!(sms.dry_run_without([132], &[a, a, c]).is_err(), "b has 16 SMs");
    assert!(sms.dry_run_without([132], &[a, b, c]).is_ok());
    // With all groups left out, the device can be divided differently.
    let fine = SplitRequest::from([2]).granularity(Granularity::Fine);
    assert!(sms.dry_run_without(fine.clone(), &[a, c]).is_err());
    assert_eq!(sms.dry_run_without(fine, &[a, b, c])?.groups[0].sm_count, 2);

    // The dry runs returned nothing to the device.
    assert!(sms.dry_run([8]).is_err());
    assert_eq!([a.floor(), b.floor(), c.floor()], [100, 16, 0]);
    Ok(())
}

/// Parts with units of other sizes, and other remainders.
#[test]
fn every_part_gives_uneven_groups_and_the_rest() -> Outcome {
    for spec in Spec::all() {
        let machine = Machine::new(&spec.to_string())?;
        let (device, sms) = (&machine.device, machine.sms()?);
        let all = device.sm_count()?;
        if machine.has(COMPOSITION) {
            for granularity in [Granularity::Coarse, Granularity::Fine] {
                let units = sms.unit_counts(granularity)?;
                assert_eq!(units.iter().sum::<u32>(), all, "{spec}");
                let (one, three) = (units[0], units[..3].iter().sum());
                let request = of([one, three]).granularity(granularity).rest("rest");
                let split = sms.split(request)?;
                assert_eq!(counts(&split), (vec![one, three], Some(all - one - three)), "{spec}");
                disjoint(&contexts(device, split)?)?;
            }
            // Counts are rounded up, never down.
            let split = sms.split([all / 3, all / 4])?;
            assert!(split.groups[0].sm_count() >= all / 3, "{spec}: {split:?}");
            assert!(split.groups[1].sm_count() >= all / 4, "{spec}: {split:?}");
        }
        if machine.has(STRUCTURED) {
            let step = sms.alignment();
            let split = sms.split(of([step, 2 * step]).coscheduled(step).rest("rest"))?;
            assert_eq!(counts(&split).0, [step, 2 * step], "{spec}");
            disjoint(&contexts(device, split)?)?;
        }
        assert_eq!(machine.free()?, all, "{spec}");
    }
    Ok(())
}

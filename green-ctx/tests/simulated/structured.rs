//! Structured splits, which drivers from CUDA 13.1 on make themselves and older ones refuse.

use green_ctx::{
    Error, SplitRequest, Version,
    error::ErrorKind,
    resource::{Granularity, LocalityDomain},
};

use crate::common::{Outcome, group, partition};
use crate::{
    LOCALITY, STRUCTURED, SUPPLEMENTAL, contexts, counts, disjoint, each_driver, each_newer_driver,
    of,
};

const CALL: &str = "cuDevSmResourceSplit";
const LOCALITY_CALL: &str = "cuDevSmResourceSplit with a locality domain";

/// Returns a request for each option that makes it structured, with the needed version and the missing call.
pub(crate) fn structured_requests() -> [(SplitRequest, Version, &'static str); 7] {
    let request = || of([16, 16]);
    [
        (request().coscheduled(8), STRUCTURED, CALL),
        (request().coscheduled([8, 16]), STRUCTURED, CALL),
        (request().preferred_coscheduled(16), STRUCTURED, CALL),
        (request().backfill(true), STRUCTURED, CALL),
        (request().coscheduled(8).overlapping(true), STRUCTURED, CALL),
        (request().locality_domain(LocalityDomain::Any), LOCALITY, LOCALITY_CALL),
        (
            request().locality_domain(LocalityDomain::Any).supplemental(true),
            SUPPLEMENTAL,
            "cuDevSmResourceSplit with supplemental SMs",
        ),
    ]
}

#[test]
fn structure_needs_its_version() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        for (request, needs, call) in structured_requests() {
            if machine.has(needs) {
                continue;
            }
            let plan = || machine.without_calls(|| sms.dry_run(request.clone()));
            machine.unsupported(call, needs, plan)?;
            let split = || machine.without_calls(|| sms.split(request.clone()));
            machine.unsupported(call, needs, split)?;
        }
        Ok(())
    })
}

/// Requests with options for all groups or per group, with backfill, open-ended, and with or without the rest.
#[test]
fn requests_are_met() -> Outcome {
    each_newer_driver(|machine| {
        let sms = machine.sms()?;
        let open = || SplitRequest::new().group("all", None);
        let cases = [
            (of([24, 16]).coscheduled(8), vec![24, 16], None),
            (of([24, 10, 16]).coscheduled([8, 2, 16]).rest("rest"), vec![24, 10, 16], Some(82)),
            (of([16]).coscheduled(0).rest("rest"), vec![16], Some(116)),
            (of([16]).coscheduled(8).preferred_coscheduled(16), vec![16], None),
            (of([16, 8]).preferred_coscheduled([16, 8]).rest("rest"), vec![16, 8], Some(108)),
            (of([20]).coscheduled(8).backfill(true), vec![20], None),
            (of([16, 18]).backfill([false, true]).rest("rest"), vec![16, 18], Some(98)),
            (of([132]).coscheduled(2).rest("rest"), vec![132], None),
            (open().coscheduled(2), vec![132], None),
            (open().coscheduled(8).rest("rest"), vec![120], Some(12)),
            (open().coscheduled(16).rest("rest"), vec![112], Some(20)),
            (open().coscheduled(16).group("more", None), vec![112], None),
            // Without an option the device's alignment applies, even on drivers that accept 0 as "no constraint".
            (open().backfill(false), vec![120], None),
            (
                of([8]).group("all", None).coscheduled([4, 2]).backfill([false, true]),
                vec![8, 124],
                None,
            ),
        ];
        for (request, groups, rest) in cases {
            if request == open().coscheduled(16).group("more", None) {
                // 20 SMs are left, but no co-scheduled set of 16.
                let error = machine.refused(|| sms.split(request.clone()))?;
                assert!(error.to_string().contains("do not fit, 1 fit"), "{error}");
                continue;
            }
            let before = machine.state()?;
            let plan = sms.dry_run(request.clone())?;
            assert_eq!(machine.state()?, before, "{request:?}");
            let split = sms.split(request.clone())?;
            assert_eq!(counts(&split), (groups.clone(), rest), "{request:?}");
            let left = 132 - groups.iter().sum::<u32>();
            assert_eq!(
                (plan.remainder, sms.free_sm_count()),
                (left, left - rest.unwrap_or(0)),
                "{request:?}"
            );
            let planned: Vec<_> = plan.groups.iter().map(|group| group.sm_count).collect();
            assert_eq!(planned, groups, "{request:?}");
            disjoint(&contexts(&machine.device, split)?)?;
        }
        Ok(())
    })
}

/// Requests that cuda.h rules out are refused before the driver is called, with a valid alternative.
#[test]
fn impossible_requests_are_refused() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        let lists = [
            of([16; 3]).coscheduled([8, 8]),
            of([16; 3]).preferred_coscheduled(vec![8; 4]),
            of([16; 3]).backfill([true]),
            of([16; 3]).locality_domain(Vec::new()),
            SplitRequest::new().rest("all").coscheduled(8),
            of([16]).coscheduled(8).granularity(Granularity::Fine),
            of([0]).coscheduled(8),
        ];
        // These are invalid for every driver.
        for request in lists {
            let refuse = || machine.without_calls(|| sms.split(request.clone()));
            assert!(matches!(machine.refused(refuse)?, Error::InvalidRequest(_)), "{request:?}");
        }
        for (request, says) in [
            (of([17]).backfill(true), "16 or 18"),
            (of([20]).coscheduled(8), "ask for 16 or 24"),
            (of([20]).backfill(false), "ask for 16 or 24"),
            (of([16]).coscheduled(7), "an even count up to 32"),
            (of([64]).coscheduled(64), "an even count up to 32"),
            (of([64]).preferred_coscheduled(34), "34 preferred co-scheduled SMs"),
        ] {
            if !machine.has(STRUCTURED) {
                machine.unsupported(CALL, STRUCTURED, || sms.split(request))?;
                continue;
            }
            let (error, calls) = machine.calls(|| machine.refused(|| sms.split(request)));
            let error = error?;
            assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
            assert!(error.to_string().contains(says) && !calls.contains_key(CALL), "{error}");
        }
        Ok(())
    })
}

#[test]
fn more_than_there_is_says_what_fits() -> Outcome {
    each_newer_driver(|machine| {
        let sms = machine.sms()?;
        for (request, fit) in [
            (of([64, 64, 64]).coscheduled(8), 1),
            (of([134]).coscheduled(2), 0),
            (of([64]).coscheduled(32), 0),
        ] {
            let error = machine.refused(|| sms.split(request.clone()))?;
            let Error::NotEnoughSms(shortage) = &error else { return Err(error.into()) };
            // Only 120 of the 132 SMs belong to co-scheduled sets of eight.
            assert_eq!(
                (shortage.fit, shortage.free, shortage.total),
                (fit, 132, 132),
                "{request:?}"
            );
        }
        // The simulated part has no locality domains.
        let near = of([16]).locality_domain(LocalityDomain::Id(0));
        if machine.has(LOCALITY) {
            assert!(matches!(machine.refused(|| sms.split(near))?, Error::NotEnoughSms(_)));
        } else {
            machine.unsupported(LOCALITY_CALL, LOCALITY, || sms.split(near))?;
        }
        Ok(())
    })
}

/// The driver's structured split does not know which SMs are held. So it is made only while no other request
/// holds SMs of the device.
#[test]
fn structured_and_other_groups_do_not_meet() -> Outcome {
    each_newer_driver(|machine| {
        let sms = machine.sms()?;
        let structured = || of([16, 24]).coscheduled(8);
        let plain = group(&machine.device, 8)?;
        let error = machine.refused(|| sms.split(structured()))?;
        assert!(
            matches!(&error, Error::CutInUse { held, .. } if held == "coarse units"),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        drop(plain);
        let mut held = sms.split(structured())?;
        for request in [of([8]), of([16]).coscheduled(16)] {
            let error = machine.refused(|| sms.split(request))?;
            assert!(
                matches!(&error, Error::CutInUse { held, .. } if held.contains("16, 24")),
                "{error}"
            );
        }
        // The same request means the same division, in which each group is either held or free.
        let error = machine.refused(|| sms.split(structured()))?;
        assert!(matches!(error, Error::NotEnoughSms(_)), "{error}");
        drop(held.groups.remove(0));
        assert!(machine.refused(|| sms.split([8]))?.to_string().contains("structured"));
        drop(held);
        assert_eq!(counts(&sms.split([8])?).0, [8]);
        Ok(())
    })
}

/// The groups of a request can be taken one at a time, in any order, and again.
#[test]
fn one_group_can_be_taken_alone() -> Outcome {
    each_newer_driver(|machine| {
        let sms = machine.sms()?;
        let request = || of([16, 24]).coscheduled(8).rest("rest");
        assert_eq!(sms.structured_counts(request())?, [16, 24, 92]);
        assert_eq!(sms.free_sm_count(), 132);
        let take = |name: &str| sms.split(request().only(name));
        let (second, rest) = (take("p1")?, take("rest")?);
        assert_eq!((counts(&second), counts(&rest)), ((vec![24], None), (vec![], Some(92))));
        for name in ["p1", "rest"] {
            let error = machine.refused(|| take(name))?;
            assert!(matches!(error, Error::NotEnoughSms(_)), "{error}");
        }
        let first = take("p0")?;
        assert_eq!(sms.free_sm_count(), 0);
        let made = [first, second, rest].into_iter().map(|split| contexts(&machine.device, split));
        let mut made =
            made.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect::<Vec<_>>();
        disjoint(&made)?;
        drop(made.remove(1));
        assert_eq!((sms.free_sm_count(), counts(&take("p1")?).0), (24, vec![24]));
        drop(made);

        let none = machine.refused(|| take("p2"))?;
        assert!(none.to_string().contains("no group of that name"), "{none}");
        let plain = machine.refused(|| sms.split(of([16]).only("p0")))?;
        assert!(plain.to_string().contains("only a structured request"), "{plain}");
        let plain = machine.refused(|| sms.structured_counts(of([16])))?;
        assert!(plain.to_string().contains("only a structured request"), "{plain}");
        let whole = group(&machine.device, 64)?;
        let within = whole.split(of([8]).coscheduled(8).only("p0"));
        let error = within.err().map(|refused| refused.reason);
        assert!(error.is_some_and(|error| error.to_string().contains("applies to a device")));
        Ok(())
    })
}

#[test]
fn the_same_request_gets_the_same_contexts() -> Outcome {
    each_newer_driver(|machine| {
        let request = || of([16, 20]).coscheduled([16, 4]).rest("rest");
        let made = contexts(&machine.device, machine.sms()?.split(request())?)?;
        let (raw, seen): (Vec<_>, _) =
            (made.iter().map(|context| context.as_raw_green()).collect(), disjoint(&made)?);
        drop(made);
        let again = contexts(&machine.device, machine.sms()?.split(request())?)?;
        let counts = machine.device.context_counts();
        assert_eq!((counts.created, counts.reused, counts.idle), (3, 3, 0));
        assert_eq!(again.iter().map(|context| context.as_raw_green()).collect::<Vec<_>>(), raw);
        assert_eq!(disjoint(&again)?, seen);
        drop(again);
        // A split by count divides the device differently, so these contexts cannot be reused for it.
        let other = partition(&machine.device, 16)?;
        assert_eq!(machine.device.context_counts().created, 4);
        drop(other);
        Ok(())
    })
}

#[test]
fn overlapping_structured_groups_share() -> Outcome {
    each_newer_driver(|machine| {
        let request = || of([16, 24]).coscheduled(8).overlapping(true);
        let first = machine.sms()?.split(request())?;
        assert!(first.groups.iter().all(|group| group.floor() == 0));
        let second = contexts(&machine.device, machine.sms()?.split(request())?)?;
        // Groups of one request are disjoint, and have the same SMs as the groups of the other.
        assert_eq!(disjoint(&contexts(&machine.device, first)?)?, disjoint(&second)?);
        machine.refused(|| machine.sms()?.split(of([16, 24]).coscheduled(8)))?;
        drop(second);
        assert_eq!(machine.free()?, 132);
        Ok(())
    })
}

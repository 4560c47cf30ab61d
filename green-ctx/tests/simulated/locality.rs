//! Locality domains, on a simulated part that has them and drivers that support them. The model follows cuda.h,
//! not a record.

use green_ctx::{Error, SplitRequest, resource::LocalityDomain};

use crate::common::Outcome;
use crate::{LOCALITY, Machine, contexts, counts, disjoint, each_driver, of};

const FIRST: LocalityDomain = LocalityDomain::Id(0);
const SECOND: LocalityDomain = LocalityDomain::Id(1);

#[test]
fn domains_are_asked_for_from_their_version_on() -> Outcome {
    each_driver(|machine| {
        let ask = || machine.without_calls(|| machine.device.locality_domains().map(drop));
        if !machine.has(LOCALITY) {
            return machine.unsupported("cuDeviceGetAttribute of locality domains", LOCALITY, ask);
        }
        let domains = machine.device.locality_domains()?;
        assert_eq!((domains.count, domains.sm_count), (1, 132), "an H200 is not divided");
        Ok(())
    })
}

#[test]
fn groups_and_their_contexts_are_of_their_domain() -> Outcome {
    for spec in ["b200@13.4", "b200@13.5"] {
        let machine = Machine::new(spec)?;
        let domains = machine.device.locality_domains()?;
        assert_eq!((domains.count, domains.sm_count), (2, 72));
        let sms = machine.device.resources().sm()?;
        let request = of([72, 72]).coscheduled(2).locality_domain([FIRST, SECOND]);
        let split = sms.split(request.rest("rest"))?;
        assert_eq!(counts(&split), (vec![72, 72], Some(4)));
        let made = contexts(&machine.device, split)?;
        disjoint(&made)?;
        let domains = made.iter().map(|context| Ok(context.resources().sm()?.locality_domain()));
        let domains = domains.collect::<green_ctx::Result<Vec<_>>>()?;
        assert_eq!(domains, [Some(FIRST), Some(SECOND), None]);
        drop(made);

        // A domain that does not exist, and more SMs than a domain has.
        for wrong in [
            of([8]).coscheduled(2).locality_domain(LocalityDomain::Id(2)),
            of([74]).coscheduled(2).locality_domain(FIRST),
        ] {
            let error = machine.refused(|| sms.split(wrong.clone()))?;
            assert!(matches!(error, Error::NotEnoughSms(_)), "{error}");
        }
        // Backfill takes SMs outside every domain first, before it takes SMs of the other domain.
        let filled = of([74, 74]).coscheduled(2).backfill(true).locality_domain([FIRST, SECOND]);
        assert_eq!(sms.dry_run(filled)?.remainder, 0);
    }
    Ok(())
}

#[test]
fn a_larger_domain_has_supplemental_sms() -> Outcome {
    let machine = Machine::new("b200@13.5")?;
    let sms = machine.device.resources().sm()?;
    let most = |domain, supplemental| {
        let request = SplitRequest::new().group("all", None).coscheduled(2);
        sms.dry_run(request.locality_domain(domain).supplemental(supplemental))
    };
    assert_eq!(most(FIRST, true)?.groups[0].sm_count, 76);
    assert_eq!(most(FIRST, false)?.groups[0].sm_count, 72);
    assert_eq!(most(SECOND, true)?.groups[0].sm_count, 72);
    assert_eq!(most(LocalityDomain::Any, true)?.groups[0].sm_count, 148);
    Ok(())
}

//! How devices are split, and where partitions run.

use green_ctx::{Error, Share, SplitRequest, error::ErrorKind, resource::Granularity, verify};

use crate::common::{Outcome, device, group, partition};

#[test]
fn partitions_run_on_their_own_sms_and_only_there() -> Outcome {
    let device = device()?;
    let request = SplitRequest::from([16, 24]).rest("remainder");
    let report = verify::split(&device, request, verify::DEFAULT_STAY)?;
    let counts: Vec<u32> = report.partitions.iter().map(|partition| partition.sm_count).collect();
    assert_eq!(counts, [16, 24, device.sm_count()? - 40]);
    assert!(report.disjoint() && report.concurrent() && report.ok());
    for partition in &report.partitions {
        assert_eq!(partition.observed_sms().len(), partition.sm_count as usize);
    }
    assert_eq!(device.resources().sm()?.free(), device.sm_count()?);
    Ok(())
}

#[test]
fn an_uneven_split_needs_no_newer_driver() -> Outcome {
    let device = device()?;
    let report = verify::split(&device, [8, 24, 100], verify::DEFAULT_STAY)?;
    let counts: Vec<u32> = report.partitions.iter().map(|partition| partition.sm_count).collect();
    assert_eq!(counts, [8, 24, 100]);
    assert!(report.ok());
    Ok(())
}

#[test]
fn fine_partitions_are_verified_too() -> Outcome {
    let device = device()?;
    let request = SplitRequest::from([6, 10]).granularity(Granularity::Fine).rest("rest");
    let report = verify::split(&device, request, verify::DEFAULT_STAY)?;
    let counts: Vec<u32> = report.partitions.iter().map(|partition| partition.sm_count).collect();
    assert_eq!(counts, [6, 10, device.sm_count()? - 16]);
    assert!(report.ok());
    Ok(())
}

#[test]
fn groups_that_were_joined_run_on_the_sms_of_both() -> Outcome {
    let device = device()?;
    let (first, second, third) = (group(&device, 16)?, group(&device, 24)?, group(&device, 32)?);
    let joined = device.create_context(third.join(first)?)?;
    assert_eq!(joined.sm_count()?, 48);
    let report = verify::contexts(&[joined, device.create_context(second)?], verify::DEFAULT_STAY)?;
    let ran: Vec<usize> = report.partitions.iter().map(|one| one.observed_sms().len()).collect();
    assert!(report.ok() && ran == [48, 24], "{ran:?}");
    Ok(())
}

#[test]
fn two_splits_anywhere_are_disjoint() -> Outcome {
    let device = device()?;
    let first = partition(&device, 16)?;
    let second = partition(&device, 16)?;
    let report = verify::contexts(&[first, second], verify::DEFAULT_STAY)?;
    assert!(report.disjoint() && report.ok());
    Ok(())
}

#[test]
fn what_is_asked_and_what_is_given_are_both_reported() -> Outcome {
    let device = device()?;
    let group = group(&device, 17)?;
    assert_eq!((group.share(), group.sm_count(), group.name()), (Share::from(17), 24, "p0"));
    let plan = device.resources().sm()?.dry_run([9])?;
    let planned = &plan.groups[0];
    assert_eq!((plan.unit, planned.share, planned.sm_count), (8, Share::from(9), 16));
    assert_eq!(plan.remainder, device.sm_count()? - 24 - 16);
    Ok(())
}

#[test]
fn asking_for_too_much_says_what_fits_and_who_has_the_rest() -> Outcome {
    let device = device()?;
    let sms = device.resources().sm()?;
    let error = sms.split([64, 64, 64]).expect_err("192 SMs of 132");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(
        error.to_string(),
        "3 groups of 64 SMs do not fit, 2 fit: 132 of the device's 132 SMs are free, in units of 8; \
         3 groups of 40 would fit"
    );
    assert_eq!(sms.free(), 132);

    let decode = sms.split(SplitRequest::new().group("decode", 100))?;
    let error = sms.split([16, 24]).expect_err("32 SMs are left");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(
        error.to_string(),
        "groups of 16, 24 SMs do not fit, the first one fits: 32 of the device's 132 SMs are free, in \
         units of 8; 2 groups of 16 would fit; the rest is held by decode (100 SMs)"
    );
    drop(decode);
    assert_eq!(sms.free(), 132);
    Ok(())
}

#[test]
fn requests_that_make_no_sense_are_refused() -> Outcome {
    let device = device()?;
    let sms = device.resources().sm()?;
    for request in [SplitRequest::from([0]), SplitRequest::from([16, 0]), SplitRequest::new()] {
        let error = sms.split(request).expect_err("nothing to give");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
    assert!(matches!(sms.split([8; 40]), Err(Error::NotEnoughSms(_))));
    assert!(matches!(sms.split([133]), Err(Error::NotEnoughSms(_))));
    assert!(matches!(sms.split([u32::MAX]), Err(Error::NotEnoughSms(_))));
    let error = device.driver().device(9).expect_err("there are fewer devices");
    assert!(matches!(error, Error::NoSuchDevice { ordinal: 9, .. }), "{error}");
    assert_eq!(sms.free(), sms.sm_count());
    Ok(())
}

#[test]
fn fine_and_coarse_groups_do_not_meet() -> Outcome {
    let device = device()?;
    let sms = device.resources().sm()?;
    let fine = |count| SplitRequest::from([count]).granularity(Granularity::Fine);
    let coarse = sms.split([16])?;
    let error = sms.split(fine(2)).expect_err("coarse groups are out");
    assert_eq!(
        error.to_string(),
        "the device is cut into coarse units, of which some are held by p0 (16 SMs); drop them to cut it otherwise"
    );
    drop(coarse);
    let fine = sms.split(fine(2))?;
    assert_eq!(fine.groups[0].sm_count(), 2);
    let error = sms.split([16]).expect_err("fine groups are out");
    assert!(matches!(&error, Error::CutInUse { held, .. } if held == "fine units"), "{error}");
    Ok(())
}

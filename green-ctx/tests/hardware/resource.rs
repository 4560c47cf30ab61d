//! Resources of devices, contexts and streams.

use green_ctx::{
    StreamOptions,
    resource::{Granularity, LimitSource},
};

use crate::common::{Outcome, device, partition};

#[test]
fn every_level_reports_its_sms() -> Outcome {
    let device = device()?;
    let all = device.sm_count()?;
    let context = partition(&device, 24)?;
    let stream = context.create_stream(StreamOptions::default())?;
    let primary = device.primary_context()?;
    let counts = [
        device.resources().sm()?.sm_count(),
        primary.resources().sm()?.sm_count(),
        context.resources().sm()?.sm_count(),
        stream.resources().sm()?.sm_count(),
    ];
    assert_eq!(counts, [all, all, 24, 24]);
    assert_eq!(device.resources().sm()?.free(), all - 24);
    assert_eq!(context.resources().sm()?.free(), 0);
    Ok(())
}

/// Driver 580.159.04 says so itself; a partition's resource has the same limits as the device's.
#[test]
fn limits_are_the_driver_s() -> Outcome {
    let device = device()?;
    let context = partition(&device, 16)?;
    for sms in [device.resources().sm()?, context.resources().sm()?] {
        assert_eq!((sms.min_partition(), sms.alignment()), (8, 8));
        assert_eq!(sms.limits_from(), LimitSource::Driver);
        assert_eq!((sms.flags().0, sms.locality_domain()), (0, None));
    }
    Ok(())
}

#[test]
fn units_for_the_largest_clusters_are_the_coarse_ones() -> Outcome {
    let sms = device()?.resources().sm()?;
    let coarse = sms.unit_counts(Granularity::Coarse)?;
    assert_eq!(sms.unit_counts(Granularity::LargestClusters)?, coarse);
    assert_eq!(coarse.iter().sum::<u32>(), sms.sm_count());
    Ok(())
}

#[test]
fn workqueues_need_a_newer_driver() -> Outcome {
    let device = device()?;
    let error = device.resources().workqueue().expect_err("13.1 has them first");
    assert!(error.is_unsupported(), "{error}");
    Ok(())
}

//! The SM and workqueue resources of devices, contexts and streams.

use green_ctx::sys::CUdevSmResourceGroup_flags;
use green_ctx::{
    Error, SplitRequest, StreamOptions,
    resource::{Granularity, LimitSource, Resources},
};

use crate::common::{Outcome, group, partition};
use crate::{COMPOSITION, LIMITS, Machine, STRUCTURED, each_driver};

#[test]
fn every_level_reports_its_sms() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let (primary, green) = (device.primary_context()?, partition(device, 24)?);
        let ours = green.create_stream(StreamOptions::default())?;
        let plain = primary.create_stream(StreamOptions::default())?;
        // From CUDA 13.1 on a stream reports its own resources. Before that, its context's are used.
        let stream_call =
            |context| if machine.has(STRUCTURED) { "cuStreamGetDevResource" } else { context };
        let levels = [
            // The device's resource is queried once, when the partition is created.
            (device.resources(), 132, None),
            (primary.resources(), 132, Some("cuCtxGetDevResource")),
            (green.resources(), 24, Some("cuGreenCtxGetDevResource")),
            (ours.resources(), 24, Some(stream_call("cuGreenCtxGetDevResource"))),
            (plain.resources(), 132, Some(stream_call("cuCtxGetDevResource"))),
        ];
        for (resources, count, call) in levels {
            let (sms, calls) = machine.calls(|| resources.sm());
            assert_eq!(sms?.sm_count(), count, "{call:?}");
            let resource_calls: Vec<_> =
                calls.into_iter().filter(|(name, _)| name.ends_with("DevResource")).collect();
            assert_eq!(resource_calls, call.map(|call| (call, 1)).into_iter().collect::<Vec<_>>());
        }
        assert_eq!((green.sm_count()?, device.sm_count()?), (24, 132));
        Ok(())
    })
}

/// `resources()` makes no driver call; only querying a resource does.
#[test]
fn asking_is_lazy() -> Outcome {
    each_driver(|machine| {
        let green = partition(&machine.device, 8)?;
        let stream = green.create_stream(StreamOptions::default())?;
        machine.without_calls(|| {
            let _all = [machine.device.resources(), green.resources(), stream.resources()];
            let _clones = [Resources::from(&green), Resources::from(&stream).clone()];
        });
        Ok(())
    })
}

#[test]
fn limits_are_the_driver_s_from_13_0_on() -> Outcome {
    each_driver(|machine| {
        let green = partition(&machine.device, 16)?;
        let stream = green.create_stream(StreamOptions::default())?;
        let (source, text) = match machine.has(LIMITS) {
            true => (LimitSource::Driver, "driver"),
            false => (LimitSource::Architecture, "architecture"),
        };
        for resources in [machine.device.resources(), green.resources(), stream.resources()] {
            let sms = resources.sm()?;
            assert_eq!((sms.min_partition(), sms.alignment()), (8, 8));
            assert_eq!((sms.limits_from(), sms.limits_from().to_string().as_str()), (source, text));
            assert_eq!((sms.flags().0, sms.locality_domain()), (0, None));
        }
        Ok(())
    })
}

#[test]
fn a_structured_partition_says_how_it_was_split() -> Outcome {
    each_driver(|machine| {
        if !machine.has(STRUCTURED) {
            return Ok(());
        }
        let request = SplitRequest::from([32, 12]).coscheduled([16, 4]).backfill([false, true]);
        let groups = machine.sms()?.split(request)?.groups;
        let expected =
            [(32, 16, 0), (12, 4, CUdevSmResourceGroup_flags::CU_DEV_SM_RESOURCE_GROUP_BACKFILL.0)];
        for (group, (count, alignment, flags)) in groups.into_iter().zip(expected) {
            let context = machine.device.create_context(group)?;
            let stream = context.create_stream(StreamOptions::default())?;
            for sms in [context.resources().sm()?, stream.resources().sm()?] {
                assert_eq!(
                    (sms.sm_count(), sms.alignment(), sms.flags().0),
                    (count, alignment, flags)
                );
                assert_eq!(sms.locality_domain(), None);
            }
        }
        Ok(())
    })
}

#[test]
fn units_are_the_pieces_of_a_granularity() -> Outcome {
    each_driver(|machine| {
        let before = machine.state()?;
        let sms = machine.sms()?;
        let coarse = [vec![8; 15], vec![12]].concat();
        assert_eq!(sms.unit_counts(Granularity::Coarse)?, coarse);
        assert_eq!(sms.unit_counts(Granularity::LargestClusters)?, coarse);
        assert_eq!(sms.unit_counts(Granularity::Fine)?, vec![2; 66]);
        assert_eq!(machine.state()?, before);
        Ok(())
    })
}

#[test]
fn free_sms_are_those_of_the_device() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let sms = machine.sms()?;
        let primary = device.primary_context()?;
        let held = group(device, 8)?;
        let context = partition(device, 8)?;
        let stream = context.create_stream(StreamOptions::default())?;
        // An existing resource reports the current number of free SMs.
        assert_eq!((sms.free_sm_count(), machine.free()?), (116, 116));
        assert_eq!(primary.resources().sm()?.free_sm_count(), 116);
        for own in [context.resources().sm()?, stream.resources().sm()?] {
            assert_eq!((own.sm_count(), own.free_sm_count()), (8, 0));
        }
        drop(held);
        assert_eq!(sms.free_sm_count(), 124);
        drop((stream, context));
        assert_eq!(sms.free_sm_count(), 132);
        Ok(())
    })
}

#[test]
fn a_partition_is_split_as_its_group() -> Outcome {
    each_driver(|machine| {
        let context = partition(&machine.device, 16)?;
        let stream = context.create_stream(StreamOptions::default())?;
        for own in [context.resources().sm()?, stream.resources().sm()?] {
            for request in [SplitRequest::from([8]), SplitRequest::new().rest("all")] {
                let error = machine.refused(|| own.split(request.clone()))?;
                assert!(
                    error.is_misuse() && error.to_string().contains("`Context::close`"),
                    "{error}"
                );
                let error = machine.refused(|| own.dry_run(request))?;
                assert!(
                    error.is_misuse() && error.to_string().contains("`Context::close`"),
                    "{error}"
                );
            }
            machine.without_calls(|| own.split([8]).expect_err("the split is refused"));
        }
        Ok(())
    })
}

#[test]
fn the_rest_is_taken_if_another_thread_gives_sms_back_at_this_moment() -> Outcome {
    each_driver(|machine| {
        if machine.has(LIMITS) || !machine.has(COMPOSITION) {
            // These drivers make no call between the split and the look-up of holders.
            return Ok(());
        }
        let all = machine.device.rest("all")?;
        machine.sim.run_before("cuDeviceGetAttribute", 2, move || drop(all))?;
        assert_eq!(machine.device.rest("more")?.sm_count(), 132);
        let _all = machine.device.rest("all")?;
        let error = machine.device.rest("more").expect_err("all SMs are taken");
        assert!(matches!(error, Error::NotEnoughSms(_)), "{error}");
        Ok(())
    })
}

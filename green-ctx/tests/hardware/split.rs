//! Splits of a device, and the SMs that their partitions run on.

use green_ctx::{SplitRequest, resource::Granularity, verify};

use crate::common::{Outcome, device, group};

#[test]
fn partitions_run_on_their_own_sms_and_only_there() -> Outcome {
    let device = device()?;
    let all = device.sm_count()?;
    let fine = SplitRequest::from([6, 10]).granularity(Granularity::Fine);
    for (request, counts) in [
        (SplitRequest::from([16, 24]).rest("rest"), vec![16, 24, all - 40]),
        (SplitRequest::from([8, 24, 100]), vec![8, 24, 100]),
        (fine.rest("rest"), vec![6, 10, all - 16]),
    ] {
        let report = verify::split(&device, request, verify::DEFAULT_STAY)?;
        assert!(report.disjoint() && report.concurrent() && report.ok());
        let given: Vec<u32> = report.partitions.iter().map(|part| part.sm_count).collect();
        assert_eq!(given, counts);
        for partition in &report.partitions {
            assert_eq!(partition.observed_sms().len(), partition.sm_count as usize);
        }
        assert_eq!(device.resources().sm()?.free_sm_count(), all);
    }
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

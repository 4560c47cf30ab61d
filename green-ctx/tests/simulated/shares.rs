//! Floors and ceilings, on the driver versions that treat them differently.

use std::collections::BTreeSet;
use std::time::Duration;

use green_ctx::{
    Device, Error, LaunchConfig, Partition, Partitions, Share, SplitRequest,
    error::ErrorKind,
    resource::{Granularity, Holder},
    verify,
};

use crate::common::{Outcome, kernels, simulated};
use crate::{LONG, launch, work};

const STAY: Duration = Duration::from_millis(1);

/// SM ids.
type Sms = BTreeSet<u32>;

/// Returns the floor and the ceiling that each partition got.
fn given(parts: &Partitions) -> Vec<(u32, u32)> {
    parts.iter().map(|part| (part.floor(), part.sm_count())).collect()
}

/// Returns the SMs of each partition's floor and ceiling, as the probe observed them.
fn sms(parts: &Partitions) -> Result<Vec<(Sms, Sms)>, Error> {
    let report = verify::partitions(parts, STAY)?;
    assert!(report.ok(), "{report:?}");
    assert!(report.floors_kept());
    Ok(report.partitions.into_iter().map(|part| (part.floor_sms, part.alone_sms)).collect())
}

fn refused(device: &Device, request: impl Into<SplitRequest>) -> String {
    let counts = || device.resources().sm().map(|sms| sms.free_sm_count());
    let (free, contexts) = (counts().expect("it answers"), device.context_counts());
    let error = device.partition(request).expect_err("it cannot be met");
    assert_eq!((counts().expect("it answers"), device.context_counts()), (free, contexts));
    error.to_string()
}

#[test]
fn the_worked_examples() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let parts = device.partition([Share::from(32..), Share::from(..=100)])?;
    assert_eq!(given(&parts), [(32, 132), (0, 100)]);
    let seen = sms(&parts)?;
    assert!(seen[0].0.is_disjoint(&seen[1].1), "the other partition runs on the floor");
    drop(parts);

    let parts = device.partition([Share::from(16..), Share::from(16..=48), Share::from(16)])?;
    assert_eq!(given(&parts), [(16, 100), (16, 48), (16, 16)]);
    sms(&parts)?;
    drop(parts);

    let parts = device.partition([Share::from(..=64); 3])?;
    assert_eq!(given(&parts), [(0, 64); 3]);
    let seen = sms(&parts)?;
    assert!(seen[0].1.intersection(&seen[1].1).count() == 8);
    assert!(seen[1].1.intersection(&seen[2].1).count() == 8);
    drop(parts);

    let parts = device.partition([Share::from(17..=20)])?;
    assert_eq!(given(&parts), [(20, 20)]);
    assert!(refused(&device, [Share::from(17..=20)]).contains("a group of 17..=20"));
    drop(parts);
    assert_eq!(given(&device.partition([115, 13])?), [(116, 116), (16, 16)]);
    Ok(())
}

#[test]
fn bad_shares_say_what_would_work() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let ask = |share| SplitRequest::new().group("a", share);
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let inverted = Share::from(48..=16);
    let cases: [(SplitRequest, &str); 9] = [
        (ask(inverted), "ask for 16..=48"),
        (ask(Share::from(..=0)), "ask for 1 or more"),
        (ask(Share::from(17..=18)), "16 or 20 would do"),
        (ask(Share::from(..=7)), "8 would do"),
        (ask(Share::from(200..)), "a group of 132.. would fit"),
        (ask(Share::from(100..)).group("b", 40..), "groups of 100.., 32.. would fit"),
        (ask(Share::from(32..)).rest("others"), "ask for `..` instead of the rest"),
        (ask(Share::from(32..)).coscheduled(8), "a structured request takes only counts"),
        (ask(Share::from(..=32)).overlapping(true), "an overlapping request takes only counts"),
    ];
    let live = sim.live();
    for (request, needle) in cases {
        let error = refused(&device, request);
        assert!(error.contains(needle), "{error}");
    }
    assert_eq!(sim.live(), live);
    Ok(())
}

#[test]
fn a_dry_run_leaves_what_the_split_leaves() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let sms = device.resources().sm()?;
    // The odd unit is shared already, so it is not lost to floors a second time.
    let _first = device.partition(SplitRequest::new().group("first", ..=12))?;
    let request = SplitRequest::new().group("second", ..=20);
    let dry = sms.dry_run(request.clone())?;
    let _second = device.partition(request)?;
    assert_eq!((dry.free_for_floors, dry.remainder), (sms.free_sm_count(), 112));
    Ok(())
}

#[test]
fn one_share_blocks_later_floors_and_says_so() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let dry = device.resources().sm()?.dry_run([Share::from(32..)])?;
    assert_eq!((dry.groups[0].floor, dry.groups[0].sm_count), (32, 132));
    assert_eq!((dry.remainder, dry.free_for_floors), (0, 0));
    let decode = device.partition(SplitRequest::new().group("decode", 32..))?;
    let error = refused(&device, [16]);
    assert!(error.contains("0 of the device's 132 SMs are free"), "{error}");
    assert!(error.contains("held by decode (32 SMs)"), "{error}");
    assert!(
        error.contains("100 SMs can only be shared, because decode (100 SMs) may use them"),
        "{error}"
    );
    // A partition without a floor can join.
    let prefill = device.partition(SplitRequest::new().group("prefill", ..=64))?;
    let with = |name, sm_count| vec![(name, sm_count)];
    let sharers = |parts: &Partitions| -> Vec<(String, u32)> {
        let holders = parts[0].shared_with();
        holders.iter().map(|Holder { name, sm_count, .. }| (name.to_string(), *sm_count)).collect()
    };
    assert_eq!(sharers(&decode), with("prefill".to_owned(), 64));
    assert_eq!(sharers(&prefill), with("decode".to_owned(), 64));
    drop(decode);
    assert_eq!(sharers(&prefill), []);
    assert_eq!(device.resources().sm()?.free_sm_count(), 68);
    Ok(())
}

#[test]
fn the_same_shares_get_the_same_contexts() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let request = || [Share::from(32..), Share::from(..=100), Share::from(..)];
    let seen = sms(&device.partition(request())?)?;
    let made = device.context_counts();
    for _ in 0..5 {
        assert_eq!(sms(&device.partition(request())?)?, seen);
    }
    assert_eq!(device.context_counts().created, made.created);
    // A context is reused for the same units, whatever the shares are.
    let exclusive = device.partition([Share::from(100)])?;
    assert_eq!(device.context_counts().created, made.created);
    drop(exclusive);
    assert_eq!(device.resources().sm()?.free_sm_count(), 132);
    Ok(())
}

#[test]
fn levels_divide_floors_and_share_the_rest() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let mut parts = device.partition([Share::from(32..=64), Share::from(..)])?.into_iter();
    let (outer, beside) = (parts.next().ok_or("two")?, parts.next().ok_or("two")?);
    let group = outer.close()?;
    let error = group.split([64]).expect_err("the floor has 32").reason;
    // This discards the group in the error; a new one is made below.
    assert!(error.to_string().contains("p0 has 32 SMs"), "{error}");
    assert!(error.to_string().contains("32 SMs can only be shared"), "{error}");
    drop(beside);

    let group = device.resources().sm()?.split([Share::from(32..=64)])?.groups.remove(0);
    let inner = SplitRequest::new().group("a", 16..).group("b", ..=40).group("c", 8);
    let split = group.split(inner)?;
    let given: Vec<_> =
        split.groups.iter().map(|group| (group.floor(), group.sm_count())).collect();
    assert_eq!(given, [(16, 56), (0, 40), (8, 8)]);
    let names = |index: usize| -> Vec<String> {
        split.groups[index].shared_with().iter().map(ToString::to_string).collect()
    };
    assert_eq!(names(0), ["b (40 SMs)"]);
    assert_eq!(names(2), [""; 0]);
    // A partition outside shares the SMs that the inner groups share, but none of their floors.
    let outside = device.partition(SplitRequest::new().group("outside", ..))?;
    assert_eq!(outside[0].sm_count(), 100);
    assert_eq!(names(1).len(), 2);
    drop(outside);
    // The SMs are held until the last child is dropped.
    drop(split.groups);
    assert_eq!(device.resources().sm()?.free_sm_count(), 132);
    Ok(())
}

#[test]
fn shares_of_fine_units() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let fine = SplitRequest::from([Share::from(6..=10), Share::from(..=121)]);
    let parts = device.partition(fine.granularity(Granularity::Fine))?;
    assert_eq!(given(&parts), [(6, 10), (0, 120)]);
    sms(&parts)?;
    Ok(())
}

#[test]
fn a_12_4_driver_shares_the_whole_device_or_nothing() -> Outcome {
    let (_sim, device) = simulated("h200@12.4")?;
    let parts = device.partition([Share::from(..), Share::from(..)])?;
    assert_eq!(given(&parts), [(0, 132); 2]);
    sms(&parts)?;
    let error = refused(&device, [16]);
    assert!(error.contains("cut into") || error.contains("groups"), "{error}");
    drop(parts);
    for share in [Share::from(32..), Share::from(..=100), Share::from(16..=48)] {
        let error = device.partition([share]).expect_err("it is too old");
        assert!(error.is_unsupported(), "{error}");
        assert!(error.to_string().contains("12.5"), "{error}");
    }
    let _held = device.partition([16])?;
    assert!(device.partition([Share::from(..)]).is_err(), "a floor exists");
    assert_eq!(device.resources().sm()?.free_sm_count(), 132 - 16);
    Ok(())
}

#[test]
fn partitions_by_name_and_position() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let request = SplitRequest::new().rest("prefill").group("decode", 16).priority("decode", -3);
    let parts = device.partition(request)?;
    assert_eq!(parts.len(), 2);
    assert_eq!((parts[0].name(), parts[1].name()), ("decode", "prefill"));
    assert_eq!(parts["prefill"].share(), Share::REST);
    assert!(parts.get("other").is_none());
    assert_eq!(parts["decode"].stream().priority()?, -3);
    assert_eq!(parts["prefill"].stream().priority()?, 0);
    assert_eq!(parts["decode"].resources().sm()?.sm_count(), 16);
    let twice = SplitRequest::new().group("a", 8).group("a", 8);
    assert_eq!(refused(&device, twice), "two groups are named a");
    let nobody = SplitRequest::new().group("a", 8).priority("b", 1);
    assert!(refused(&device, nobody).contains("the request has no group of that name"));
    Ok(())
}

#[test]
fn a_shortage_names_the_nearest_and_who_is_in_the_way() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    for (request, nearest) in [
        (SplitRequest::from([133]), "a group of 132 would fit"),
        (SplitRequest::from([132, 8]), "groups of 124, 8 would fit"),
        (
            SplitRequest::from([Share::from(132), Share::from(..=8)]),
            "groups of 124, ..=8 would fit",
        ),
        (SplitRequest::from([100, 100]), "2 groups of 64 would fit"),
    ] {
        let error = refused(&device, request);
        assert!(error.contains(nearest), "{error}");
    }
    let _sharer = device.partition([Share::from(..)])?;
    let error = device.partition([8]).expect_err("all are shared");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    Ok(())
}

#[test]
fn overlapping_groups_share_as_little_as_they_can() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let request = || SplitRequest::from([48]).overlapping(true);
    let (first, second) = (device.partition(request())?, device.partition(request())?);
    assert_eq!(first[0].shared_with(), []);
    assert_eq!(second[0].shared_with(), []);
    let third = device.partition(request())?;
    assert_eq!(third[0].floor(), 0);
    assert!(!third[0].shared_with().is_empty());
    Ok(())
}

#[test]
fn overlapping_groups_of_another_cut_share_all_that_there_is() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let fine = |counts: &[u32]| {
        SplitRequest::from(counts).granularity(Granularity::Fine).overlapping(true)
    };
    let coarse = || SplitRequest::from([64]).overlapping(true);
    // While a floor exists, a different division of the device is refused: which of its SMs the floor has would
    // be unknown.
    let floor = device.partition([8])?;
    let error = device.partition(fine(&[64, 64])).expect_err("a floor is cut otherwise");
    assert!(matches!(error, Error::CutInUse { .. }), "{error}");
    drop(floor);

    let first = device.partition(coarse())?;
    let parts = device.partition(fine(&[64, 64]).rest("rest"))?;
    let counts: Vec<u32> = parts.iter().map(Partition::sm_count).collect();
    assert_eq!((counts, parts[0].floor()), (vec![64, 64, 4], 0));
    let all = parts[0].shared_with();
    assert!(all.iter().any(|holder| holder.sm_count == 64), "{all:?}");
    assert_eq!(first[0].shared_with().iter().map(|holder| holder.sm_count).max(), Some(64));
    assert_eq!(device.resources().sm()?.free_sm_count(), 0);
    let error = refused(&device, SplitRequest::from([8]));
    assert!(error.contains("0 of the device's 132 SMs are free"), "{error}");
    // The fine division is kept while any of its groups is alive, in any order of drops.
    drop(first);
    assert!(device.partition([8]).is_err());
    let again = device.partition(fine(&[32, 32, 32, 32]).rest("rest"))?;
    assert_eq!(again[4].sm_count(), 4);
    let busy = again[0].stream().clone();
    // Kept until the end of the test, since unloading the kernel would wait for it.
    let kernel = work::kernel(&sim, &device, "work", LONG)?;
    launch(&busy, &kernel)?;
    drop((parts, again, busy));
    // A new floor waits for the work left on its SMs, whatever units they were divided into.
    let last = device.partition([8])?;
    assert!(!last[0].stream().is_idle()?);
    last[0].stream().synchronize()?;
    Ok(())
}

#[test]
fn what_fits_names_the_shared_sms() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let kernel = kernels::plain(&device, "work")?;
    let parts = device.partition([Share::from(32..=64), Share::from(16)])?;
    let fit = |index: usize| kernel.fit(parts[index].context(), LaunchConfig::new(1, 1024));
    assert_eq!((fit(0)?.sm_count, fit(0)?.shared_sms, fit(1)?.shared_sms), (64, 32, 0));
    assert!(fit(0)?.to_string().contains("32 of them are shared"));
    assert!(!fit(1)?.to_string().contains("shared: a grid"));
    Ok(())
}

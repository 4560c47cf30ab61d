//! Joining groups into one.

use std::collections::BTreeSet;

use green_ctx::{Error, SplitRequest, StreamOptions, error::Refused, resource::SmGroup};

use crate::common::{Outcome, group, simulated};
use crate::{
    COMPOSITION, LONG, disjoint, each_composing_driver, each_driver, each_newer_driver, launch, of,
};

/// Checks that a join is refused and returns both groups unchanged. Returns them with the error.
#[track_caller]
fn refused(one: SmGroup, other: SmGroup) -> ([SmGroup; 2], Error) {
    let what = |group: &SmGroup| (group.name().to_owned(), group.unit_indices().to_vec());
    let before = [what(&one), what(&other)];
    let Refused { given: groups, reason: error } = one.join(other).expect_err("they do not join");
    assert_eq!([what(&groups[0]), what(&groups[1])], before);
    (groups, error)
}

#[test]
fn two_groups_become_one_context() -> Outcome {
    each_driver(|machine| {
        let device = &machine.device;
        if !machine.has(COMPOSITION) {
            let [one, other] = split(machine.sms()?.split([16, 16])?.groups);
            let (groups, error) = machine.without_calls(|| refused(one, other));
            assert!(error.is_unsupported(), "{error}");
            drop(groups);
            return Ok(());
        }
        let [first, second, third] = split(machine.sms()?.split([16, 24, 32])?.groups);
        let units: BTreeSet<_> =
            first.unit_indices().iter().chain(third.unit_indices()).copied().collect();
        let joined = first.join(third)?;
        assert_eq!((joined.name(), joined.sm_count(), joined.floor()), ("p0", 48, 48));
        assert_eq!(joined.share().to_string(), "48");
        assert_eq!(joined.unit_indices().iter().copied().collect::<BTreeSet<_>>(), units);
        assert_eq!(machine.free()?, 132 - 72);
        // A shortage lists the joined group with all its SMs.
        let Err(Error::NotEnoughSms(shortage)) = machine.sms()?.split([100]) else {
            return Err("60 SMs are free".into());
        };
        let holders: Vec<String> = shortage.holders.iter().map(ToString::to_string).collect();
        assert_eq!(holders, ["p0 (48 SMs)", "p1 (24 SMs)"]);

        let contexts = [device.create_context(joined)?, device.create_context(second)?];
        assert_eq!(contexts[0].sm_count()?, 48);
        let ran = disjoint(&contexts)?;
        assert_eq!((ran[0].len(), ran[1].len()), (48, 24));
        // Closing returns the whole group. The same join later reuses the driver context.
        let [joined, second] = contexts.map(|context| context.close());
        let joined = joined?.ok_or("a group")?;
        assert_eq!(joined.sm_count(), 48);
        drop((joined, second?));
        assert_eq!(machine.free()?, 132);
        let [first, _second, third] = split(machine.sms()?.split([16, 24, 32])?.groups);
        let before = device.context_counts().created;
        drop(device.create_context(third.join(first)?)?);
        assert_eq!(device.context_counts().created, before);
        Ok(())
    })
}

fn split<const N: usize>(groups: Vec<SmGroup>) -> [SmGroup; N] {
    groups.try_into().expect("one group per share")
}

/// Groups of requests by count consist of the same units, whichever request they come from.
#[test]
fn groups_of_two_requests_and_the_rest_join() -> Outcome {
    each_composing_driver(|machine| {
        let one = group(&machine.device, 16)?;
        let split = machine.sms()?.split(of([24]).rest("rest"))?;
        let [two] = self::split(split.groups);
        let all = one.join(two)?.join(split.remainder.ok_or("92 SMs")?)?;
        assert_eq!((all.sm_count(), machine.free()?), (132, 0));
        // A joined group can be split again.
        let parts = all.split(SplitRequest::from([64]).rest("rest"))?;
        let [part] = self::split(parts.groups);
        let whole = parts.remainder.ok_or("68 SMs")?.join(part)?;
        assert_eq!((whole.name(), whole.sm_count()), ("rest", 132));
        Ok(())
    })
}

/// A context of the joined group waits for the work that still runs on the SMs of either group.
#[test]
fn the_work_of_both_former_owners_comes_first() -> Outcome {
    each_composing_driver(|machine| {
        let kernel = machine.kernel(LONG)?;
        // Create the joined context before the work starts, since creating one waits for the device.
        let [one, other] = split(machine.sms()?.split([16, 16])?.groups);
        drop(machine.device.create_context(one.join(other)?)?);
        for group in machine.sms()?.split([16, 16])?.groups {
            let stream =
                machine.device.create_context(group)?.create_stream(StreamOptions::default())?;
            launch(&stream, &kernel)?;
        }
        let [one, other] = split(machine.sms()?.split([16, 16])?.groups);
        let context = machine.device.create_context(one.join(other)?)?;
        let stream = context.create_stream(StreamOptions::default())?;
        launch(&stream, &kernel)?;
        stream.synchronize()?;
        let launches = machine.sim.launches();
        let [first, second, last] = &launches[..] else { panic!("{launches:?}") };
        assert!(last.start_ns >= first.end_ns.max(second.end_ns));
        assert_eq!(machine.sim.races(), []);
        Ok(())
    })
}

#[test]
fn groups_of_other_devices_and_shares_do_not_join() -> Outcome {
    each_composing_driver(|machine| {
        let (_sim, stranger) = simulated(&machine.sim.spec().to_string())?;
        let (groups, error) = refused(group(&machine.device, 16)?, group(&stranger, 16)?);
        assert!(matches!(error, Error::DeviceMismatch { what: "the groups" }), "{error}");
        drop(groups);
        let request = SplitRequest::new().group("decode", 32).group("prefill", ..=48);
        let [decode, prefill] = split(machine.sms()?.split(request)?.groups);
        let (groups, error) = machine.without_calls(|| refused(decode, prefill));
        let expected = "groups decode and prefill cannot be joined: some of their SMs are shared; \
                        ask for one share instead";
        assert_eq!(error.to_string(), expected);
        assert!(error.is_misuse());
        // The groups of a request with shares inside a group have their own account, separate from the device's.
        drop(groups);
        let [one, other] = split(machine.sms()?.split([64, 16])?.groups);
        let request = SplitRequest::new().group("a", 16).group("b", 16).group("c", ..=32);
        let [a, b, _c] = split(one.split(request)?.groups);
        let (groups, error) = machine.without_calls(|| refused(a, other));
        assert!(error.to_string().ends_with("they do not come from the same split"), "{error}");
        let [a, other] = groups;
        assert_eq!(a.join(b)?.sm_count(), 32);
        drop(other);
        Ok(())
    })
}

#[test]
fn structured_groups_join_where_their_constraints_are_the_same() -> Outcome {
    each_newer_driver(|machine| {
        let request = SplitRequest::from([16, 32, 32]).coscheduled([16, 16, 8]);
        let [one, same, finer] = split(machine.sms()?.split(request.clone())?.groups);
        let (groups, error) = machine.without_calls(|| refused(one, finer));
        let expected = "groups p0 and p2 cannot be joined: they differ in co-scheduled SMs or in \
                        locality domain";
        assert_eq!(error.to_string(), expected);
        let [one, _finer] = groups;
        let context = machine.device.create_context(one.join(same)?)?;
        assert_eq!(context.sm_count()?, 48);
        disjoint(std::slice::from_ref(&context))?;
        // Parts that the driver split out of the joined group can be joined again.
        let [one, other] = split(group_of(context)?.split([16, 16])?.groups);
        assert_eq!(one.join(other)?.sm_count(), 32);
        Ok(())
    })
}

fn group_of(context: green_ctx::context::Context) -> Result<SmGroup, Box<dyn std::error::Error>> {
    Ok(context.close()?.ok_or("it has a group")?)
}

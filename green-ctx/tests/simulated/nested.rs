//! Groups that the driver splits out of a group, from CUDA 13.1 on.

use std::sync::Arc;

use green_ctx::{SplitRequest, StreamOptions};

use crate::common::{Outcome, group, partition};
use crate::structured::structured_requests;
use crate::{
    LONG, Machine, contexts, counts, disjoint, each_driver, each_newer_driver, launch, of,
};

#[test]
fn structure_within_a_group_needs_its_version() -> Outcome {
    each_driver(|machine| {
        let mut parent = group(&machine.device, 64)?;
        for (request, needs, call) in structured_requests() {
            if machine.has(needs) {
                continue;
            }
            let request = request.overlapping(false);
            let plan = || machine.without_calls(|| parent.dry_run(request.clone()));
            machine.unsupported(call, needs, plan)?;
            let before = machine.state()?;
            let refused = machine.without_calls(|| parent.split(request)).expect_err("too old");
            assert!(refused.reason.to_string().starts_with(call), "{}", refused.reason);
            assert_eq!(machine.state()?, before);
            parent = refused.given;
        }
        assert_eq!(parent.sm_count(), 64);
        Ok(())
    })
}

/// Children are disjoint and inside their parent, however the parent was split. The parent's SMs are held until
/// the last child is dropped.
#[test]
fn children_are_within_their_parent() -> Outcome {
    each_newer_driver(|machine| {
        let Machine { device, .. } = machine;
        // The parent does not have the device's first SMs, which a split of the device would give.
        let plain = SplitRequest::new().group("other", 16).group("parent", 64);
        let children = of([16, 20]).coscheduled([8, 4]);
        for (parent, request, given) in [
            (plain.clone(), children.clone(), vec![16, 20]),
            (plain.clone().coscheduled(8), children, vec![16, 20]),
            // A split by count out of a structured group: counts are rounded up as usual.
            (plain.clone().coscheduled(8), of([17, 8]), vec![24, 8]),
        ] {
            let mut groups = machine.sms()?.split(parent)?.groups;
            let parent = groups.remove(1);
            let context = device.create_context(parent)?;
            let whole = disjoint(std::slice::from_ref(&context))?.remove(0);
            let parent = context.close()?.ok_or("it has a group")?;
            let plan = parent.dry_run(request.clone())?;
            assert_eq!(plan.groups.iter().map(|group| group.sm_count).collect::<Vec<_>>(), given);
            let split = parent.split(request)?;
            assert_eq!(counts(&split), (given.clone(), None));
            assert!(split.groups.iter().all(|group| group.floor() == group.sm_count()));
            let mut made = contexts(device, split)?;
            let seen = disjoint(&made)?;
            assert!(seen.iter().all(|sms| sms.is_subset(&whole)), "a child ran outside its parent");
            // All SMs of the parent are held while one child lives, even if only a stream refers to it.
            let stream = made.remove(0).create_stream(StreamOptions::default())?;
            drop(made);
            assert_eq!(machine.free()?, 132 - 80);
            let child = stream.context().clone();
            drop(stream);
            let child = child.close()?.ok_or("it has a group")?;
            assert_eq!((machine.free()?, child.sm_count()), (132 - 80, given[0]));
            drop(child);
            assert_eq!(machine.free()?, 132 - 16);
            drop(groups);
            device.release_idle();
        }
        Ok(())
    })
}

/// A child can be split like its parent, and keeps its parent's SMs.
#[test]
fn structured_groups_nest() -> Outcome {
    each_newer_driver(|machine| {
        let request = |count: u32, name: &str| {
            SplitRequest::new().group(Arc::from(name), count).coscheduled(8)
        };
        let mut outer = machine.sms()?.split(request(64, "a"))?.groups.remove(0);
        for (count, name) in [(48, "b"), (32, "c"), (16, "d")] {
            outer = outer.split(request(count, name))?.groups.remove(0);
            assert_eq!((outer.name(), outer.sm_count(), machine.free()?), (name, count, 132 - 64));
        }
        let refused = outer.split([24]).expect_err("24 SMs of 16");
        assert!(refused.reason.to_string().contains("d has 16 SMs"), "{}", refused.reason);
        let context = machine.device.create_context(refused.given)?;
        assert_eq!(disjoint(&[context])?[0].len(), 16);
        Ok(())
    })
}

/// The remainder of a structured split has no structure, but can be split too.
#[test]
fn what_is_left_is_split_too() -> Outcome {
    each_newer_driver(|machine| {
        let request = of([96]).coscheduled(8).rest("rest");
        let split = machine.sms()?.split(request)?;
        let rest = split.remainder.ok_or("36 SMs remain")?;
        let children = rest.split(of([9]).rest("spare"))?;
        assert_eq!(counts(&children), (vec![10], Some(26)));
        disjoint(&contexts(&machine.device, children)?)?;
        Ok(())
    })
}

/// The next owner of the parent's SMs waits for the work of a dropped child.
#[test]
fn the_work_of_children_is_waited_for() -> Outcome {
    each_newer_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(LONG)?;
        let children = group(device, 64)?.split(of([16, 16]).coscheduled(8))?;
        let children = contexts(device, children)?;
        launch(&children[0].create_stream(StreamOptions::default())?, &kernel)?;
        drop(children);
        assert_eq!(machine.free()?, 132);
        let next = partition(device, 64)?.create_stream(StreamOptions::default())?;
        launch(&next, &kernel)?;
        let launches = sim.launches();
        assert!(launches[0].happens_before(&launches[1]) && !launches[0].overlaps(&launches[1]));
        next.synchronize()?;
        Ok(())
    })
}

/// The same children get the same contexts while those are idle, and new ones otherwise.
#[test]
fn the_same_children_get_the_same_contexts() -> Outcome {
    each_newer_driver(|machine| {
        let Machine { device, .. } = machine;
        let make = || -> Result<_, Box<dyn std::error::Error>> {
            let children = group(device, 64)?.split(of([16, 16]).coscheduled(8))?;
            let children = contexts(device, children)?;
            let raw: Vec<_> = children.iter().map(|child| child.as_raw_green()).collect();
            Ok((raw, disjoint(&children)?))
        };
        let first = make()?;
        // One of the contexts is the parent's.
        assert_eq!(device.context_counts().created, 3);
        assert_eq!(make()?, first);
        assert_eq!((device.context_counts().created, device.context_counts().idle), (3, 3));
        device.release_idle();
        let (raw, seen) = make()?;
        assert_eq!((seen, device.context_counts().created), (first.1, 6));
        assert!(raw.iter().all(|raw| !first.0.contains(raw)));
        Ok(())
    })
}

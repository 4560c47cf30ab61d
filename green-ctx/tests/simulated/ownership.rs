//! Ownership of SMs: partitions are disjoint wherever they were split, the ledger accounts for them, and their
//! SMs are returned.

use std::thread;

use green_ctx::sim::Fault;
use green_ctx::{Driver, Error, SplitRequest, StreamOptions, error::ErrorKind};

use crate::common::{Outcome, group, partition};
use crate::{COMPOSITION, Machine, contexts, disjoint, each_driver, of};

/// Two handles of a device, two handles of its driver, and another thread all use the same ledger.
#[test]
fn splits_anywhere_are_disjoint() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let again = Driver::simulated(sim)?;
        assert_eq!(&again, machine.driver());
        let other = again.device(0)?;
        assert_eq!(&other, device);
        let elsewhere = || partition(device, 16);
        let there = thread::scope(|scope| scope.spawn(elsewhere).join().expect("no panic"))?;
        let all = [partition(device, 16)?, partition(&other, 16)?, there];
        let seen = disjoint(&all)?;
        assert_eq!(seen.iter().map(|sms| sms.len()).collect::<Vec<_>>(), [16; 3]);
        assert_eq!((machine.free()?, other.resources().sm()?.free_sm_count()), (84, 84));
        Ok(())
    })
}

#[test]
fn asking_for_more_names_who_has_the_rest() -> Outcome {
    each_driver(|machine| {
        let sms = machine.sms()?;
        let request = SplitRequest::new().group("decode", 16).group("draft", 16);
        let mut groups = sms.split(request)?.groups;
        // A group holds its SMs with or without a context.
        let draft = machine.device.create_context(groups.remove(1))?;
        let error = machine.refused(|| sms.split([16; 8]))?;
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.starts_with("8 groups of 16 SMs do not fit, 6 fit: 100 of"), "{text}");
        assert!(text.ends_with("held by decode (16 SMs), draft (16 SMs)"), "{text}");
        drop(groups);
        // A request for more SMs than the device has cannot succeed, whatever is closed.
        let error = machine.refused(|| sms.split([16; 9]))?;
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        assert!(!error.to_string().contains("held by"), "{error}");
        let error = machine.refused(|| sms.split([16; 8]))?;
        let Error::NotEnoughSms(shortage) = &error else { return Err(error.into()) };
        assert_eq!((shortage.fit, shortage.free, shortage.total), (7, 116, 132));
        let holders: Vec<_> =
            shortage.holders.iter().map(|holder| (&*holder.name, holder.sm_count)).collect();
        assert_eq!(holders, [("draft", 16)]);
        drop(draft);
        // If no SMs are held, the request itself is invalid.
        for count in [133, u32::MAX] {
            let error = machine.refused(|| sms.split([count]))?;
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        }
        Ok(())
    })
}

#[test]
fn sharing_has_to_be_asked_for() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let sms = machine.sms()?;
        let owned = group(device, 132)?;
        let shared = || of([16, 16]).overlapping(true).rest("rest");
        // Floors cannot be shared.
        machine.refused(|| sms.split(shared()))?;
        drop(owned);
        let (plan, split) = (sms.dry_run(shared())?, sms.split(shared())?);
        assert_eq!((plan.remainder, sms.free_sm_count()), (100, 0));
        assert!(split.groups.iter().chain(&split.remainder).all(|group| group.floor() == 0));
        // Groups of one request are disjoint. Groups of several requests share SMs.
        let more = contexts(device, sms.split(shared())?)?;
        let sharing = contexts(device, split)?;
        assert_eq!(disjoint(&sharing)?, disjoint(&more)?);
        // Shared SMs are available for floors only after the last sharer is dropped.
        machine.refused(|| sms.split([16]))?;
        drop(sharing);
        machine.refused(|| sms.split([16]))?;
        drop(more);
        assert_eq!(sms.free_sm_count(), 132);
        assert_eq!(group(device, 132)?.floor(), 132);
        Ok(())
    })
}

/// SMs are returned by a close, or by the drop of the last clone, stream or guard, on any thread.
#[test]
fn sms_come_back_with_the_last_handle() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let free = || machine.free();
        drop(group(device, 24)?);
        assert_eq!(free()?, 132);
        // A closed context returns its group, which still owns its SMs and can get another context.
        let closed = partition(device, 24)?.close()?.ok_or("no group")?;
        assert_eq!((closed.sm_count(), closed.name(), free()?), (24, "p0", 108));
        let context = device.create_context(closed)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let (clone, other) = (context.clone(), stream.clone());
        drop((context, stream));
        assert_eq!(free()?, 108);
        drop(clone);
        assert_eq!(free()?, 108);
        assert_eq!(other.context().sm_count()?, 24);
        thread::scope(|scope| scope.spawn(move || drop(other)).join().expect("no panic"));
        assert_eq!(free()?, 132);
        // A guard keeps the context alive too.
        let context = partition(device, 24)?;
        let current = context.make_current()?;
        drop(context);
        assert_eq!(free()?, 108);
        drop(current);
        assert_eq!(free()?, 132);
        Ok(())
    })
}

#[test]
fn what_fails_on_the_way_takes_nothing() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        // Driver calls that every driver version makes to split and to create a context.
        drop(device.create_context(group(device, 16)?)?);
        device.release_idle();
        let functions = [
            "cuDevicePrimaryCtxRetain",
            "cuDevResourceGenerateDesc",
            "cuGreenCtxCreate",
            "cuCtxFromGreenCtx",
            "cuGreenCtxGetDevResource",
        ];
        for function in functions {
            let live = sim.live();
            sim.fail(Fault::on(function))?;
            let error = partition(device, 16).expect_err("it fails");
            assert!(error.to_string().starts_with(function), "{error}");
            assert_eq!((sim.live(), machine.free()?), (live, 132), "{function}");
        }
        // The first split at a granularity makes two driver calls. Either may fail.
        for nth in [1, 2] {
            let before = machine.state()?;
            sim.fail(Fault::on("cuDevSmResourceSplitByCount").nth(nth))?;
            let fine = of([2]).granularity(green_ctx::resource::Granularity::Fine);
            machine.sms()?.split(fine).expect_err("it fails");
            assert_eq!(machine.state()?, before);
        }
        if machine.has(COMPOSITION) {
            assert_eq!(disjoint(&contexts(device, machine.sms()?.split([8, 24])?)?)?.len(), 2);
        }
        Ok(())
    })
}

/// The ledger does not depend on the rest of the crate, so it can be read, tested and changed separately.
#[test]
fn the_ledger_imports_nothing_of_the_crate() -> Outcome {
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ledger"))? {
        let path = file?.path();
        let source = std::fs::read_to_string(&path)?;
        let mut code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        // The `tests` module of a file is one level deeper.
        let outside = code.find(|line| {
            let names = ["crate::", "super::super::super"];
            names.iter().any(|name| line.contains(name)) || line.starts_with("use super::super")
        });
        assert_eq!(outside, None, "{}", path.display());
    }
    Ok(())
}

//! Workqueues from CUDA 13.1 on: querying, configuring and dividing them, and contexts that use them.

use green_ctx::sim::Sim;
use green_ctx::sys::{CUdevResource, CUdevResourceType};
use green_ctx::{
    Device, Driver, Error, StreamOptions, call,
    context::Context,
    resource::{Workqueue, WorkqueueOptions, WorkqueueResource, WorkqueueScope},
};

use crate::common::{Outcome, group, partition, simulated};
use crate::{Machine, STRUCTURED, disjoint, each_driver};

/// Runs a test on the drivers that have workqueues, with the device's workqueue resource.
fn each_newer_driver(test: impl Fn(&Machine, WorkqueueResource) -> Outcome) -> Outcome {
    each_driver(|machine| {
        if machine.has(STRUCTURED) {
            return test(machine, machine.device.resources().workqueue()?);
        }
        let asking = || machine.without_calls(|| machine.device.resources().workqueue());
        machine.unsupported("the workqueue resource", STRUCTURED, asking)
    })
}

fn numbers(queue: &Workqueue) -> (u32, WorkqueueScope) {
    (queue.concurrency_limit(), queue.scope())
}

fn options() -> WorkqueueOptions {
    WorkqueueOptions::default()
}

#[test]
fn a_device_has_a_budget_that_all_share() -> Outcome {
    each_newer_driver(|machine, queues| {
        assert_eq!((queues.concurrency_limit(), queues.scope()), (8, WorkqueueScope::Device));
        assert_eq!(
            (queues.device(), queues.scope().to_string().as_str()),
            (&machine.device, "device")
        );
        // A context without its own configuration has the device's.
        let green = partition(&machine.device, 8)?;
        let stream = green.create_stream(StreamOptions::default())?;
        let primary = machine.device.primary_context()?;
        let plain = primary.create_stream(StreamOptions::default())?;
        let all =
            [&green.resources(), &stream.resources(), &primary.resources(), &plain.resources()];
        for of in all {
            assert_eq!(
                (of.workqueue()?.concurrency_limit(), of.workqueue()?.scope()),
                (8, WorkqueueScope::Device)
            );
        }
        Ok(())
    })
}

#[test]
fn a_configuration_is_within_the_budget() -> Outcome {
    each_newer_driver(|machine, queues| {
        machine.without_calls(|| -> Outcome {
            // Options that are not set keep the resource's values.
            assert_eq!(numbers(&queues.configure(options())?), (8, WorkqueueScope::Device));
            let balanced = WorkqueueScope::GreenContextBalanced;
            assert_eq!(numbers(&queues.configure(options().scope(balanced))?), (8, balanced));
            for limit in 1..=8 {
                let queue = queues.configure(options().concurrency_limit(limit))?;
                assert_eq!(numbers(&queue), (limit, WorkqueueScope::Device));
            }
            for limit in [0, 9, u32::MAX] {
                let error = queues.configure(options().concurrency_limit(limit)).expect_err("bad");
                assert!(error.is_misuse() && error.to_string().contains("use 1 to 8"), "{error}");
            }
            Ok(())
        })
    })
}

#[test]
fn queues_are_divided_evenly() -> Outcome {
    each_newer_driver(|machine, queues| {
        machine.without_calls(|| -> Outcome {
            for (contexts, limit) in [(1, 8), (2, 4), (3, 2), (5, 1), (8, 1)] {
                let part = queues.divide(contexts)?;
                assert_eq!(numbers(&part), (limit, WorkqueueScope::GreenContextBalanced));
            }
            for contexts in [0, 9, u32::MAX] {
                let error = queues.divide(contexts).expect_err("out of range");
                assert!(error.is_misuse() && error.to_string().contains("among 1 to 8"), "{error}");
            }
            Ok(())
        })
    })
}

/// A context created from SMs and a workqueue reports both, as do its streams.
#[test]
fn contexts_have_the_queues_they_were_given() -> Outcome {
    each_newer_driver(|machine, queues| {
        let Machine { device, .. } = machine;
        let mut made = Vec::new();
        for queue in [
            queues.divide(2)?,
            queues.configure(options().concurrency_limit(1))?,
            queues.configure(options().scope(WorkqueueScope::GreenContextBalanced))?,
        ] {
            let context =
                device.create_context(group(device, 24)?.with_workqueue(queue.clone()))?;
            let stream = context.create_stream(StreamOptions::default())?;
            for of in [context.resources(), stream.resources()] {
                let found = of.workqueue()?;
                assert_eq!((found.concurrency_limit(), found.scope()), numbers(&queue));
                assert_eq!(of.sm()?.sm_count(), 24);
            }
            // A context's own queues are the budget for further configurations.
            let own = context.resources().workqueue()?;
            assert!(own.divide(queue.concurrency_limit() + 1).is_err());
            made.push(context);
        }
        disjoint(&made)?;
        // The device's resource is unchanged, and a closed context returns its group without a workqueue.
        assert_eq!(device.resources().workqueue()?.concurrency_limit(), 8);
        let group = made.remove(0).close()?.ok_or("no group")?;
        let plain = device.create_context(group)?;
        assert_eq!(plain.resources().workqueue()?.scope(), WorkqueueScope::Device);
        Ok(())
    })
}

#[test]
fn contexts_of_other_queues_are_not_used_again() -> Outcome {
    each_newer_driver(|machine, queues| {
        let Machine { device, .. } = machine;
        let make = |queue: Option<&Workqueue>| -> green_ctx::Result<Context> {
            let group = group(device, 16)?;
            Ok(match queue {
                Some(queue) => device.create_context(group.with_workqueue(queue.clone()))?,
                None => device.create_context(group)?,
            })
        };
        let half = queues.divide(2)?;
        let half_shared = queues.configure(options().concurrency_limit(4))?;
        let whole = queues.configure(options())?;
        let kinds = [None, Some(&half), Some(&half_shared), Some(&whole)];
        let mut raw = Vec::new();
        for kind in kinds {
            let context = make(kind)?;
            raw.push(context.as_raw_green());
            drop(context);
        }
        let counts = device.context_counts();
        assert_eq!((counts.created, counts.reused, counts.idle), (4, 0, 4));
        // The same SMs with an equal configuration reuse the context.
        let again = queues.divide(2)?;
        for (kind, raw) in
            [None, Some(&again), Some(&half_shared), Some(&whole)].into_iter().zip(raw)
        {
            assert_eq!(make(kind)?.as_raw_green(), raw);
        }
        let counts = device.context_counts();
        assert_eq!((counts.created, counts.reused, counts.idle), (4, 4, 4));
        Ok(())
    })
}

#[test]
fn another_device_s_queues_are_refused() -> Outcome {
    each_newer_driver(|machine, queues| {
        let sim = Sim::builder(machine.sim.spec()).devices(2).build()?;
        let devices: Vec<Device> = Driver::simulated(&sim)?.devices().collect();
        let theirs = devices[1].resources().workqueue()?.divide(2)?;
        let (_other, stranger) = simulated(&machine.sim.spec().to_string())?;
        for (device, queue) in [(&devices[0], theirs), (&stranger, queues.divide(2)?)] {
            let held = group(device, 16)?;
            let before = sim.calls();
            let error = device.create_context(held.with_workqueue(queue)).expect_err("not its own");
            let reason = error.reason;
            assert!(matches!(reason, Error::DeviceMismatch { .. }), "{reason}");
            assert!(reason.is_misuse() && reason.to_string().contains("workqueue"), "{reason}");
            assert!(error.given.workqueue.is_some());
            drop(error.given);
            assert_eq!((sim.calls(), device.resources().sm()?.free_sm_count()), (before, 132));
        }
        Ok(())
    })
}

/// The driver accepts a limit above the number of queues, and gives no guarantee for it.
#[test]
fn a_limit_above_the_budget_is_asked_for() -> Outcome {
    each_newer_driver(|machine, queues| {
        let beyond = options().beyond_budget(true);
        let queue = machine.without_calls(|| queues.configure(beyond.concurrency_limit(12)))?;
        let context =
            machine.device.create_context(group(&machine.device, 16)?.with_workqueue(queue))?;
        assert_eq!(context.resources().workqueue()?.concurrency_limit(), 12);
        let error = queues.configure(beyond.concurrency_limit(0)).expect_err("no queue");
        assert!(error.is_misuse(), "{error}");
        assert_eq!(numbers(&queues.configure(beyond)?), (8, WorkqueueScope::Device));
        Ok(())
    })
}

#[test]
fn a_context_uses_the_queues_of_another() -> Outcome {
    each_driver(|machine| {
        let device = &machine.device;
        let owner = partition(device, 16)?;
        if !machine.has(STRUCTURED) {
            let asking = || machine.without_calls(|| owner.shared_workqueue());
            return machine.unsupported("the workqueue resource", STRUCTURED, asking);
        }
        drop(owner);
        let half = device.resources().workqueue()?.divide(2)?;
        let owner = device.create_context(group(device, 16)?.with_workqueue(half.clone()))?;
        let sharing = |owner: &Context| -> green_ctx::Result<Context> {
            let queue = owner.shared_workqueue()?;
            Ok(device.create_context(group(device, 24)?.with_workqueue(queue))?)
        };
        let (second, third) = (sharing(&owner)?, sharing(&owner)?);
        let found = second.resources().workqueue()?;
        assert_eq!((found.concurrency_limit(), found.scope()), numbers(&half));
        assert_eq!(existing(&second)?, existing(&owner)?);
        assert_eq!(existing(&third)?, existing(&owner)?);
        let own = device.create_context(group(device, 16)?.with_workqueue(half))?;
        assert_ne!(existing(&own)?, existing(&owner)?);
        // A context that shares the sharer's queues shares the owner's.
        let fourth = sharing(&second)?;
        assert_eq!(existing(&fourth)?, existing(&owner)?);
        disjoint(&[owner, second, third, fourth, own])?;
        Ok(())
    })
}

/// Returns the driver's bytes that identify a context's queues.
fn existing(context: &Context) -> green_ctx::Result<Vec<u8>> {
    let (kind, green) = (
        CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE,
        context.as_raw_green().expect("a green context"),
    );
    // SAFETY: an all-zero `CUdevResource` is a valid value (an invalid resource).
    let mut resource = unsafe { std::mem::zeroed::<CUdevResource>() };
    let api = context.device().driver().api();
    // SAFETY: the context is alive, and `resource` outlives the call.
    unsafe { call!(api, cuGreenCtxGetDevResource(green, &raw mut resource, kind)) }?;
    // SAFETY: every member of the union consists of integers and bytes.
    Ok(unsafe { resource.__bindgen_anon_1.wq.reserved }.to_vec())
}

#[test]
fn a_context_keeps_whose_queues_it_uses() -> Outcome {
    each_newer_driver(|machine, _| {
        let device = &machine.device;
        let owner = partition(device, 16)?;
        let queue = owner.shared_workqueue()?;
        let second = device.create_context(group(device, 24)?.with_workqueue(queue))?;
        drop(owner);
        assert_eq!(machine.free()?, 132 - 40);
        // Sharing the sharer's queues holds a reference to the owner only.
        let queue = second.shared_workqueue()?;
        let third = device.create_context(group(device, 8)?.with_workqueue(queue))?;
        drop(second);
        assert_eq!(machine.free()?, 132 - 24);
        drop(third);
        assert_eq!(machine.free()?, 132);
        Ok(())
    })
}

#[test]
fn a_context_with_another_s_queues_is_used_again_for_those() -> Outcome {
    each_newer_driver(|machine, _| {
        let device = &machine.device;
        let (one, other) = (partition(device, 16)?, partition(device, 16)?);
        let sharing = |owner: Option<&Context>| -> green_ctx::Result<_> {
            let held = group(device, 24)?;
            let context = match owner {
                Some(owner) => {
                    device.create_context(held.with_workqueue(owner.shared_workqueue()?))?
                }
                None => device.create_context(held)?,
            };
            Ok(context.as_raw_green())
        };
        let owners = [Some(&one), Some(&other), None];
        let first = owners.map(|owner| sharing(owner).expect("a context"));
        assert_eq!(device.context_counts().created, 5);
        assert_eq!(owners.map(|owner| sharing(owner).expect("a context")), first);
        assert_eq!(device.context_counts().created, 5);
        Ok(())
    })
}

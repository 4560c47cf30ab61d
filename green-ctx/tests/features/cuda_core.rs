//! What cuda.core's tests of green contexts ask of its resources, contexts, streams and launches, asked of this
//! crate: on every driver of an H200, and on parts with other rules.
//!
//! Where cuda.core refuses at run time what does not compile here, there is no test: resources that the program
//! makes up, contexts of nothing or of a dry run, counts below 0, scopes that there are not, blocking
//! streams of a green context. Where the answers differ, the test says so.

use green_ctx::{
    DeviceBuffer, Error, Kernel, LaunchConfig, Library, SplitRequest, Stream, StreamOptions,
    context::{CloseReason, Context},
    event::EventOptions,
    memory::PinnedBuffer,
    resource::{LimitSource, SmGroup, SmResource, WorkqueueOptions, WorkqueueScope},
};

use crate::common::{Outcome, group, partition};
use crate::{COMPOSITION, DRIVERS, LIMITS, Machine, STRUCTURED, disjoint};

/// Parts of other architectures, each on a driver with structured splits and on an older one.
const PARTS: [&str; 8] = [
    "a100@12.8",
    "a100@13.1",
    "l40s@13.0",
    "l40s@13.4",
    "b200@13.0",
    "b200@13.4",
    "rtx5090@12.8",
    "rtx5090@13.1",
];

/// Runs a test on every driver and part. All SMs are free afterwards.
fn everywhere(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    for spec in DRIVERS.into_iter().chain(PARTS) {
        let machine = Machine::new(spec)?;
        test(&machine).map_err(|error| format!("{spec}: {error}"))?;
        assert_eq!(machine.free()?, machine.device.sm_count()?, "{spec}: SMs are still held");
    }
    Ok(())
}

/// As many SMs as can be scheduled together, cuda.core's count of `None`.
fn discovered(machine: &Machine) -> Result<SmGroup, Box<dyn std::error::Error>> {
    let split = machine.sms()?.split(SplitRequest::new().group("all", None))?;
    Ok(split.groups.into_iter().next().ok_or("one group")?)
}

fn green(machine: &Machine) -> Result<Context, Box<dyn std::error::Error>> {
    Ok(machine.device.create_context(discovered(machine)?)?)
}

#[test]
fn a_device_s_sms_have_limits_of_its_architecture() -> Outcome {
    everywhere(|machine| {
        let sms = machine.sms()?;
        assert_eq!(sms.sm_count(), machine.device.sm_count()?);
        let (least, alignment) = (sms.min_partition(), sms.alignment());
        assert!(least >= 2 && alignment >= 2 && least <= sms.sm_count());
        if machine.device.compute_capability()?.major >= 9 {
            assert_eq!((least % 2, alignment % 2), (0, 0));
        }
        let says = machine.has(LIMITS);
        assert_eq!(sms.limits_from() == LimitSource::Driver, says);
        assert_eq!((sms.flags().0, sms.locality_domain()), (0, None));
        Ok(())
    })
}

/// A device whose queues can be asked for, or the error that names the version.
fn with_queues(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    everywhere(|machine| {
        let queues = machine.device.resources().workqueue();
        assert_eq!(queues.is_ok(), machine.has(STRUCTURED));
        match queues {
            Ok(_) => test(machine),
            Err(error) => {
                assert!(error.is_unsupported(), "{error}");
                Ok(())
            }
        }
    })
}

/// A configuration is a value here: the device's own queues stay as they are.
#[test]
fn workqueues_are_configured_by_scope_and_limit() -> Outcome {
    with_queues(|machine| {
        let queues = machine.device.resources().workqueue()?;
        assert_eq!(queues.device(), &machine.device);
        let most = queues.concurrency_limit();
        assert!(most >= 4);
        let options = WorkqueueOptions::default();
        assert_eq!(queues.configure(options)?.concurrency_limit(), most);
        for scope in [WorkqueueScope::Device, WorkqueueScope::GreenContextBalanced] {
            let queue = queues.configure(options.scope(scope).concurrency_limit(4))?;
            assert_eq!((queue.scope(), queue.concurrency_limit()), (scope, 4));
        }
        assert!(queues.configure(options.concurrency_limit(0)).is_err_and(|e| e.is_misuse()));
        assert_eq!((queues.concurrency_limit(), queues.scope()), (most, WorkqueueScope::Device));
        Ok(())
    })
}

#[test]
fn lists_of_constraints_are_as_long_as_the_request() -> Outcome {
    everywhere(|machine| {
        let sms = machine.sms()?;
        let count = sms.min_partition();
        for request in [
            SplitRequest::from([count]).coscheduled([count, count]),
            SplitRequest::from([count, count]).coscheduled([count; 3]),
            SplitRequest::from([0]),
            SplitRequest::new(),
        ] {
            let error = machine.without_calls(|| sms.split(request)).expect_err("no such request");
            assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
        }
        Ok(())
    })
}

#[test]
fn a_group_has_as_many_sms_as_were_asked_for() -> Outcome {
    everywhere(|machine| {
        let sms = machine.sms()?;
        for count in (sms.min_partition()..=sms.sm_count() / 2).step_by(8) {
            for groups in [vec![count], vec![count; 2]] {
                let planned = sms.dry_run(&groups)?;
                let split = sms.split(&groups)?;
                assert_eq!(split.groups.len(), groups.len());
                for (group, planned) in split.groups.iter().zip(&planned.groups) {
                    assert!(group.sm_count() >= count);
                    assert_eq!(group.sm_count(), planned.sm_count);
                }
                let given: u32 = split.groups.iter().map(SmGroup::sm_count).sum();
                assert_eq!(given + planned.remainder, sms.sm_count());
            }
        }
        Ok(())
    })
}

#[test]
fn discovery_gives_sms_that_are_scheduled_together() -> Outcome {
    everywhere(|machine| {
        let sms = machine.sms()?;
        let planned = sms.dry_run(SplitRequest::new().group("all", None))?;
        let group = discovered(machine)?;
        assert_eq!(planned.groups[0].sm_count, group.sm_count());
        assert!(group.sm_count() >= sms.min_partition());
        assert_eq!(group.sm_count() % sms.alignment(), 0);
        Ok(())
    })
}

/// Some counts can be had with backfill only.
#[test]
fn backfill_makes_groups_that_co_scheduling_alone_does_not() -> Outcome {
    everywhere(|machine| {
        let sms = machine.sms()?;
        let pair = |count| SplitRequest::from([count, count]);
        let half = sms.sm_count() / 2 / 2 * 2;
        if !machine.has(STRUCTURED) {
            let error = sms.split(pair(half).backfill(true)).expect_err("too old");
            assert!(error.is_unsupported(), "{error}");
            return Ok(());
        }
        let is_met = |request: SplitRequest| sms.split(request).is_ok();
        let counts = || (sms.min_partition()..=half).rev().step_by(2);
        let needs = counts().find(|count| {
            !is_met(pair(*count).backfill(false)) && is_met(pair(*count).backfill(true))
        });
        if let Some(count) = needs {
            let split = sms.split(pair(count).backfill(true))?;
            assert!(split.groups.iter().all(|group| group.sm_count() == count));
        }
        assert!(needs.is_some() || sms.alignment() == 2, "{sms:?}");
        Ok(())
    })
}

/// A primary context makes streams too, where cuda.core refuses.
#[test]
fn streams_know_their_context() -> Outcome {
    everywhere(|machine| {
        let context = green(machine)?;
        assert!(context.is_green() && context.as_raw_green().is_some());
        let stream = context.create_stream(StreamOptions::default())?;
        assert_eq!(stream.context(), &context);
        let primary = machine.device.primary_context()?;
        assert_eq!(primary.create_stream(StreamOptions::default())?.context(), &primary);
        // An event belongs to the primary context, where cuda.core's is the stream's.
        let event = machine.device.create_event(EventOptions::default())?;
        stream.record(&event)?;
        stream.synchronize()?;
        event.synchronize()?;
        assert_eq!(event.context(), &primary);
        Ok(())
    })
}

#[test]
fn a_current_context_is_not_closed() -> Outcome {
    everywhere(|machine| {
        let context = green(machine)?;
        let guard = context.make_current()?;
        // The guard keeps the context, so that closing it says so.
        let error = context.close().expect_err("it is current");
        assert!(matches!(error.reason, CloseReason::Shared { .. }), "{}", error.reason);
        let context = error.context;
        assert_eq!(Context::current(machine.driver())?.as_ref(), Some(&context));
        drop(guard);
        assert!(context.close()?.is_some());
        Ok(())
    })
}

#[test]
fn what_was_current_is_so_again() -> Outcome {
    everywhere(|machine| {
        let (primary, context) = (machine.device.primary_context()?, green(machine)?);
        let _outer = primary.make_current()?;
        for _ in 0..2 {
            let _inner = context.make_current()?;
            let current = Context::current(machine.driver())?;
            assert!(current.as_ref() == Some(&context) && current.is_some_and(|c| c.is_green()));
        }
        assert_eq!(Context::current(machine.driver())?, Some(primary));
        Ok(())
    })
}

/// Two contexts of one size, on SMs of their own.
fn two(machine: &Machine) -> Result<[Context; 2], Box<dyn std::error::Error>> {
    let count = machine.sms()?.min_partition();
    Ok([partition(&machine.device, count)?, partition(&machine.device, count)?])
}

#[test]
fn contexts_and_their_streams_have_what_they_were_given() -> Outcome {
    everywhere(|machine| {
        let all = machine.sms()?.sm_count();
        let contexts = two(machine)?;
        let of_contexts = contexts.each_ref().map(|context| context.sm_count());
        let [one, other] = of_contexts.map(|count| count.expect("a count"));
        assert!(one > 0 && other > 0 && one + other <= all);
        disjoint(&contexts)?;
        for context in &contexts {
            let stream = context.create_stream(StreamOptions::default())?;
            let sms: SmResource = stream.resources().sm()?;
            assert_eq!(sms.sm_count(), context.sm_count()?);
            let queues = [stream.resources().workqueue(), context.resources().workqueue()];
            assert!(queues.iter().all(|queues| queues.is_ok() == machine.has(STRUCTURED)));
        }
        Ok(())
    })
}

const PTX: &str = "
.version 5.0
.target sm_52
.address_size 64
.visible .entry fill(.param .u64 out, .param .s32 value, .param .s32 count) { ret; }
";

fn filling(machine: &Machine) -> green_ctx::Result<Kernel> {
    machine.sim.register_kernel("fill", |call| {
        let address = call.param_u64(0).expect("an address");
        let (value, count) =
            (call.param_u32(1).expect("a value"), call.param_u32(2).expect("a count"));
        let bytes = value.to_ne_bytes().repeat(count as usize);
        call.write(address, &bytes).expect("the buffer");
    });
    Library::from_ptx(&machine.device, PTX)?.kernel("fill")
}

/// Fills memory of the stream's own, and looks at it on the host.
fn fill(stream: &Stream, kernel: &Kernel, count: usize, value: i32) -> Outcome {
    let buffer: DeviceBuffer<i32> = stream.allocate(count)?;
    let length = i32::try_from(count)?;
    let config = LaunchConfig::new(u32::try_from(count)?.div_ceil(32), 32);
    // SAFETY: the buffer has as many values and is freed in the stream's order.
    unsafe { stream.launch(kernel, config, (buffer.as_argument(), value, length)) }?;
    let mut found = PinnedBuffer::zeroed(stream.context().device(), count)?;
    buffer.copy_to(&mut found, stream)?;
    drop(buffer);
    assert_eq!(found.as_slice()?, vec![value; count]);
    Ok(())
}

/// No context is current meanwhile.
#[test]
fn kernels_run_where_their_stream_is() -> Outcome {
    everywhere(|machine| {
        let kernel = filling(machine)?;
        let context = green(machine)?;
        fill(&context.create_stream(StreamOptions::default())?, &kernel, 64, 42)?;
        drop(context);
        let contexts = two(machine)?;
        for (context, value) in contexts.iter().zip([10, 20]) {
            fill(&context.create_stream(StreamOptions::default())?, &kernel, 64, value)?;
        }
        let launches = machine.sim.launches();
        let [first, second] = &launches[launches.len() - 2..] else { return Err("two".into()) };
        assert!(first.sms.iter().all(|sm| !second.sms.contains(sm)));
        assert_eq!(machine.sim.races(), []);
        Ok(())
    })
}

#[test]
fn kernels_run_through_queues_of_their_own() -> Outcome {
    with_queues(|machine| {
        let kernel = filling(machine)?;
        let options = WorkqueueOptions::default().scope(WorkqueueScope::GreenContextBalanced);
        let queue =
            machine.device.resources().workqueue()?.configure(options.concurrency_limit(4))?;
        let context = machine.device.create_context(discovered(machine)?.with_workqueue(queue))?;
        fill(&context.create_stream(StreamOptions::default())?, &kernel, 32, 99)
    })
}

/// cuda.core makes one context of a list of groups.
#[test]
fn several_groups_become_one_context() -> Outcome {
    everywhere(|machine| {
        if !machine.has(COMPOSITION) {
            return Ok(());
        }
        let least = machine.sms()?.min_partition();
        let [one, other] = [group(&machine.device, least)?, group(&machine.device, least)?];
        let context = machine.device.create_context(one.join(other)?)?;
        assert_eq!(context.sm_count()?, 2 * least);
        let ran = disjoint(std::slice::from_ref(&context))?;
        assert_eq!(ran[0].len(), 2 * least as usize);
        Ok(())
    })
}

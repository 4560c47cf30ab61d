//! When partitions can be left, and the state afterwards.
#![allow(unsafe_code, reason = "sets PyTorch's streams")]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;

use green_ctx::{
    Stream,
    context::{CloseReason, Context},
};
use green_ctx_torch::scope::{self, Mode};
use green_ctx_torch::{Torch, TorchError, raw_stream};

use crate::common::{Machine, Outcome};
use crate::fake::{self, TorchStream};
use crate::raw::{self, Green};

/// Enters in [`Mode::Context`], which involves the thread's context stack.
fn enter(machine: &Machine, stream: &Stream) -> green_ctx_torch::Result<()> {
    scope::enter_as(&machine.torch, stream, Mode::Context)
}

/// Returns PyTorch's stream, the driver's context and the entered partitions.
fn state(machine: &Machine) -> (TorchStream, usize, usize, Option<Context>) {
    (fake::current(0), machine.current().addr(), scope::depth(), scope::innermost())
}

/// PyTorch creates its stream pool in the context that is current at the first request.
#[test]
fn the_pool_is_made_outside_of_partitions() -> Outcome {
    let machine = Machine::new()?;
    let (first, second) = (machine.stream(0)?, machine.stream(1)?);
    let places = Rc::new(RefCell::new(Vec::new()));
    let (seen, driver) = (Rc::clone(&places), machine.device.driver().clone());
    fake::on_pool_use(move || seen.borrow_mut().push(Context::current(&driver).ok().flatten()));
    // A context that other code made current must not matter.
    let current = machine.partitions[1].make_current()?;
    enter(&machine, &first)?;
    enter(&machine, &second)?;
    scope::leave(&machine.partitions[1])?;
    scope::leave(&machine.partitions[0])?;
    drop(current);
    // One request per priority, when the first partition was entered.
    assert_eq!(*places.borrow(), [Some(machine.primary.clone()), Some(machine.primary.clone())]);
    Ok(())
}

#[test]
fn partitions_nest() -> Outcome {
    let machine = Machine::new()?;
    let _primary = machine.primary.make_current()?;
    let (first, second) = (machine.stream(0)?, machine.stream(1)?);
    let again = machine.stream(0)?;
    let mut states = vec![state(&machine)];
    for stream in [&first, &second, &again, &again] {
        enter(&machine, stream)?;
        assert_eq!(fake::current(0).raw, raw_stream(stream).addr());
        assert_eq!(machine.current(), stream.context().as_raw());
        states.push(state(&machine));
    }
    assert_eq!(scope::depth(), 4);
    for stream in [&again, &again, &second, &first] {
        assert_eq!(Some(state(&machine)), states.pop());
        scope::leave(stream.context())?;
    }
    assert_eq!([state(&machine)], states[..]);
    assert_eq!(fake::guards(), 0);
    Ok(())
}

#[test]
fn only_the_innermost_can_be_left() -> Outcome {
    let machine = Machine::new()?;
    let (first, second) = (machine.stream(0)?, machine.stream(1)?);
    assert!(matches!(scope::leave(first.context()), Err(TorchError::NotEntered)));
    enter(&machine, &first)?;
    assert!(matches!(scope::leave(second.context()), Err(TorchError::NotEntered)));
    enter(&machine, &second)?;
    let before = state(&machine);
    assert!(matches!(scope::leave(first.context()), Err(TorchError::NotInnermost)));
    assert_eq!(state(&machine), before);
    scope::leave(second.context())?;
    scope::leave(first.context())?;
    assert!(matches!(scope::leave(first.context()), Err(TorchError::NotEntered)));
    Ok(())
}

#[test]
fn threads_do_not_see_each_other() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream(0)?;
    enter(&machine, &stream)?;
    std::thread::scope(|threads| {
        let other = threads.spawn(|| {
            assert_eq!((scope::depth(), scope::innermost()), (0, None));
            assert!(matches!(scope::leave(stream.context()), Err(TorchError::NotEntered)));
            assert_eq!(fake::current(0), fake::DEFAULT);
        });
        other.join().expect("no panic");
    });
    assert_eq!(scope::depth(), 1);
    scope::leave(stream.context())?;
    Ok(())
}

/// Entering changes no context, whatever contexts are current before and inside.
#[test]
fn entering_changes_no_context() -> Outcome {
    let machine = Machine::new()?;
    let second = machine.device.driver().device(1)?.primary_context()?;
    let (first, inner) = (machine.stream(0)?, machine.stream(1)?);
    for outside in [None, Some(&machine.primary), Some(&second), Some(first.context())] {
        let _outside = outside.map(Context::make_current).transpose()?;
        let (before, current) = (state(&machine), machine.current());
        machine.sim.clear_calls();
        scope::enter(&machine.torch, &first)?;
        assert_eq!(machine.current(), current, "{outside:?}");
        scope::enter(&machine.torch, &inner)?;
        let _guard = second.make_current()?;
        assert_eq!(scope::innermost().as_ref(), Some(inner.context()));
        scope::leave(inner.context())?;
        assert_eq!(machine.current(), second.as_raw());
        drop(_guard);
        scope::leave(first.context())?;
        assert_eq!(state(&machine), before, "{outside:?}");
    }
    Ok(())
}

/// The default stream of a foreign context is used only while that context is current.
#[test]
fn a_foreign_contexts_default_stream() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream(0)?;
    let foreign = Green::create(&machine.device)?;
    raw::push(&machine.device, foreign.context)?;
    scope::enter(&machine.torch, &stream)?;
    let current = machine.primary.make_current()?;
    let before = state(&machine);
    assert!(matches!(scope::leave(stream.context()), Err(TorchError::ContextOrder)));
    assert_eq!(state(&machine), before);
    drop(current);
    scope::leave(stream.context())?;
    assert_eq!((machine.current(), scope::depth()), (foreign.context, 0));
    raw::pop(&machine.device)?;
    Ok(())
}

#[test]
fn a_partition_that_is_entered_cannot_be_closed() -> Outcome {
    let Machine { torch, partitions: [partition, _], .. } = Machine::new()?;
    let stream = partition.create_stream(green_ctx::StreamOptions::default())?;
    scope::enter(&torch, &stream)?;
    drop(stream);
    let closed = partition.close();
    let Err(error) = closed else { panic!("the thread has it") };
    assert!(matches!(error.reason, CloseReason::Shared { .. }));
    scope::leave(&error.given)?;
    error.given.close()?;
    Ok(())
}

#[test]
fn what_was_made_current_inside_comes_first() -> Outcome {
    let machine = Machine::new()?;
    let (first, second) = (machine.stream(0)?, machine.stream(1)?);
    enter(&machine, &first)?;
    let guard = machine.torch.guard(&second)?;
    let before = state(&machine);
    assert!(matches!(scope::leave(first.context()), Err(TorchError::StreamOrder)));
    assert_eq!(state(&machine), before);
    drop(guard);
    for context in [&machine.primary, second.context()] {
        let current = context.make_current()?;
        let before = state(&machine);
        assert!(matches!(scope::leave(first.context()), Err(TorchError::ContextOrder)));
        assert_eq!(state(&machine), before);
        drop(current);
    }
    scope::leave(first.context())?;
    assert_eq!((fake::current(0), machine.current()), (fake::DEFAULT, ptr::null_mut()));
    Ok(())
}

/// PyTorch changes its device inside: the runtime replaces the partition's context by that device's primary context.
#[test]
fn another_context_in_the_partitions_place() -> Outcome {
    let machine = Machine::new()?;
    let second = machine.device.driver().device(1)?.primary_context()?;
    let stream = machine.stream(0)?;
    for below in
        [None, Some(&machine.primary), Some(&machine.partitions[1]), Some(stream.context())]
    {
        for inside in [&machine.primary, &second] {
            let _below = below.map(Context::make_current).transpose()?;
            let before = state(&machine);
            enter(&machine, &stream)?;
            machine.replace_current(inside)?;
            scope::leave(stream.context())?;
            assert_eq!(state(&machine), before, "{below:?}, {inside:?}");
        }
    }
    Ok(())
}

/// Other code removes the partition's context from the thread's stack.
#[test]
fn nothing_in_the_partitions_place() -> Outcome {
    let machine = Machine::new()?;
    let second = machine.device.driver().device(1)?.primary_context()?;
    let stream = machine.stream(0)?;
    for below in [&[][..], &[&machine.primary], &[&second, &machine.primary]] {
        let mut guards: Vec<_> =
            below.iter().map(|context| context.make_current()).collect::<Result<_, _>>()?;
        let before = state(&machine);
        enter(&machine, &stream)?;
        raw::pop(&machine.device)?;
        scope::leave(stream.context())?;
        assert_eq!(state(&machine), before, "{below:?}");
        while guards.pop().is_some() {}
        assert_eq!(machine.current(), ptr::null_mut());
    }
    Ok(())
}

/// PyTorch's guards change the device, which replaces the partition's context by a primary context.
#[test]
fn guards_that_change_the_device() -> Outcome {
    let machine = Machine::new()?;
    let second = machine.device.driver().device(1)?.primary_context()?;
    let _second = second.make_current()?;
    let (api, primary) = (machine.device.driver().clone(), machine.primary.clone());
    fake::on_device_change(move || {
        let set = api.api().cuCtxSetCurrent().expect("every driver has it");
        // SAFETY: `machine` keeps the context alive.
        let _status = unsafe { set(primary.as_raw()) };
    });
    let (before, stream) = (state(&machine), machine.stream(0)?);
    enter(&machine, &stream)?;
    assert_eq!(machine.current(), stream.context().as_raw());
    scope::leave(stream.context())?;
    assert_eq!(state(&machine), before);
    fake::on_device_change(|| {});
    Ok(())
}

#[test]
fn a_panic_leaves_the_partition() -> Outcome {
    let machine = Machine::new()?;
    let (before, stream) = (state(&machine), machine.stream(0)?);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _entered = scope::entered(&machine.torch, &stream);
        assert_eq!(scope::innermost().as_ref(), Some(stream.context()));
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(result.is_err());
    assert_eq!(state(&machine), before);
    Ok(())
}

/// If PyTorch's current stream is one of green-ctx, the program may drop it inside.
#[test]
fn the_stream_that_comes_back_is_kept() -> Outcome {
    let machine = Machine::new()?;
    let (previous, stream) = (machine.stream(1)?, machine.stream(0)?);
    fake::set_own(raw_stream(&previous), 0);
    enter(&machine, &stream)?;
    let live = machine.sim.live().streams;
    drop(previous);
    assert_eq!(machine.sim.live().streams, live);
    scope::leave(stream.context())?;
    assert_eq!(machine.sim.live().streams, live - 1);
    fake::set_own(ptr::null_mut(), 0);
    Ok(())
}

/// A thread that ends leaves its partitions, and the SMs become free.
#[test]
fn a_thread_that_ends() -> Outcome {
    let Machine { sim, device, torch, partitions, primary, .. } = Machine::new()?;
    let [first, second] = &partitions;
    let run = |torch: &Torch| -> green_ctx_torch::Result<()> {
        for context in [first, first, second] {
            let stream = context.create_stream(green_ctx::StreamOptions::default())?;
            scope::enter(torch, &stream)?;
        }
        Ok(())
    };
    std::thread::scope(|threads| threads.spawn(|| run(&torch)).join().expect("no panic"))?;
    drop(partitions);
    assert_eq!(device.resources().sm()?.free_sm_count(), device.sm_count()?);
    let live = sim.live();
    // The three streams wait for reuse, because PyTorch has seen them.
    assert_eq!((live.streams, live.events), (3, 0));
    drop(primary);
    Ok(())
}

/// Entering again creates nothing, and the kept event can be released.
#[test]
fn one_event_is_used_again() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream(0)?;
    let events = machine.sim.live().events;
    enter(&machine, &stream)?;
    scope::leave(stream.context())?;
    machine.sim.clear_calls();
    for _ in 0..10 {
        enter(&machine, &stream)?;
        scope::leave(stream.context())?;
    }
    assert_eq!(machine.sim.calls().get("cuEventCreate"), None);
    assert_eq!(machine.sim.live().events, events + 1);
    scope::release_idle();
    assert_eq!(machine.sim.live().events, events);
    Ok(())
}

//! Events keep the primary context alive, whichever thread creates them.

use std::thread;

use green_ctx::{Event, StreamOptions, error::ErrorKind, event::EventOptions};

use crate::common::{Outcome, partition};
use crate::{Machine, each_driver};

/// More threads than the counters that events share.
const THREADS: usize = 20;

/// A partition has the counters that events share. One event is created without a partition, one with it.
#[test]
fn an_event_keeps_the_primary_context() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let create = || device.create_event(EventOptions::default());
        let alone = create()?;
        let partition = partition(device, 16)?;
        let beside = create()?;
        assert_eq!(beside.context(), &device.primary_context()?);
        assert_eq!(alone.context(), beside.context());
        assert_eq!(sim.live().primary_retains, 1);

        drop((alone, partition));
        device.release_idle();
        assert_eq!(sim.live().primary_retains, 1);
        let stream = beside.context().create_stream(StreamOptions::default())?;
        stream.record(&beside)?;
        beside.synchronize()?;
        assert_eq!(beside.context(), &device.primary_context()?);
        drop((stream, beside));
        let live = sim.live();
        assert_eq!((live.primary_retains, live.events), (0, 0));
        Ok(())
    })
}

#[test]
fn events_of_many_threads_keep_it_until_the_last_is_gone() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        for _round in 0..3 {
            let partition = partition(device, 16)?;
            let create = || device.create_event(EventOptions::default());
            let mut events = thread::scope(|scope| -> green_ctx::Result<Vec<Event>> {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(create)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            })?;
            drop(partition);
            device.release_idle();
            let last = events.pop();
            drop(events);
            assert_eq!(sim.live().primary_retains, 1);
            drop(last);
            let live = sim.live();
            assert_eq!((live.primary_retains, live.events), (0, 0));
        }
        Ok(())
    })
}

/// A partition is dropped while other threads create and drop events.
#[test]
fn partitions_come_and_go_beside_events() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let events =
            || (0..100).try_for_each(|_| device.create_event(EventOptions::default()).map(drop));
        let partitions = || (0..20).try_for_each(|_| partition(device, 16).map(drop));
        thread::scope(|scope| {
            let all = [scope.spawn(events), scope.spawn(partitions), scope.spawn(events)];
            all.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        device.release_idle();
        let live = sim.live();
        assert_eq!((live.primary_retains, live.events), (0, 0));
        Ok(())
    })
}

#[test]
fn an_event_without_a_time_is_named() -> Outcome {
    each_driver(|Machine { device, .. }| {
        let (timed, plain) = (EventOptions::default().timing(true), EventOptions::default());
        let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
        for (first, second, is_recorded) in [(plain, timed, true), (timed, timed, false)] {
            let (start, end) = (device.create_event(first)?, device.create_event(second)?);
            stream.record(&start)?;
            if is_recorded {
                stream.record(&end)?;
            }
            stream.synchronize()?;
            let error = end.elapsed_since(&start).expect_err("one has no time");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
        }
        Ok(())
    })
}

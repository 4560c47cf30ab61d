//! Handles as keys of sets: clones are equal, and separately created objects are not.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

use green_ctx::{Error, Library, StreamOptions, event::EventOptions, graph::CaptureMode};

use crate::common::{Outcome, simulated};
use crate::{each_driver, kernels};

/// Checks that `same` and `again` are equal, and that `other` is not.
#[track_caller]
fn is_a_key<T: Hash + Eq + Debug>(same: T, again: T, other: T) {
    assert_eq!(same, again);
    assert_ne!(same, other);
    let mut set = HashSet::from([same]);
    assert!(!set.insert(again) && set.insert(other));
}

#[test]
fn every_handle_is_a_key() -> Outcome {
    each_driver(|machine| {
        let device = &machine.device;
        let (_sim, stranger) = simulated("h200")?;
        is_a_key(device.clone(), machine.driver().device(0)?, stranger.clone());
        is_a_key(machine.driver().clone(), device.driver().clone(), stranger.driver().clone());
        let parts = device.partition([16])?;
        let part = &parts[0];
        let primary = device.primary_context()?;
        is_a_key(part.context().clone(), part.stream().context().clone(), primary.clone());
        let streams = [(); 2].map(|()| primary.create_stream(StreamOptions::default()));
        let [stream, other] = streams.map(|stream| stream.expect("a stream"));
        is_a_key(stream.clone(), stream.clone(), other);
        let events = [(); 2].map(|()| device.create_event(EventOptions::default()));
        let [event, other] = events.map(|event| event.expect("an event"));
        is_a_key(event.clone(), event, other);
        let graphs =
            [(); 2].map(|()| stream.capture(CaptureMode::default(), || Ok::<(), Error>(())));
        let [graph, other] = graphs.map(|graph| graph.expect("a graph"));
        let exec = graph.instantiate()?;
        is_a_key(exec.clone(), exec, graph.instantiate()?);
        is_a_key(graph.clone(), graph, other);
        let libraries = [(); 2].map(|()| Library::from_ptx(device, &kernels::text("work")));
        let [library, other] = libraries.map(|library| library.expect("a library"));
        is_a_key(library.kernel("work")?, library.kernel("work")?, other.kernel("work")?);
        is_a_key(library.clone(), library, other);
        let other = device.partition([16])?;
        is_a_key(part.clone(), parts[0].clone(), other[0].clone());
        Ok(())
    })
}

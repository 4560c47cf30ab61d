//! Spans and events that the crate emits through `tracing`.
//!
//! `tracing` caches per process which events any subscriber wants. Therefore these tests have their own
//! process, and run one at a time.
#![cfg(feature = "tracing")]

mod common;

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use green_ctx::sim::Fault;
use green_ctx::{CUresult, PlanSet, plan::SwitchOptions};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use common::{Outcome, partition, plans::plan, simulated};

/// Waits until no other test of this file is running.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subscriber that writes down spans and events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn write(&self, what: &str, metadata: &Metadata<'_>, record: impl FnOnce(&mut dyn Visit)) {
        assert_eq!(metadata.target(), "green_ctx");
        let name = if metadata.is_span() { metadata.name() } else { "" };
        let mut line = Line(format!("{what} {} {name}", metadata.level()));
        record(&mut line);
        self.0.lock().expect("no panic").push(line.0);
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").expect("a string");
    }
}

impl Subscriber for Log {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.write("span", span.metadata(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.write("event", event.metadata(), |line| event.record(line));
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

#[test]
fn partitions_are_traced() -> Outcome {
    let _alone = alone();
    let (sim, device) = simulated("h200")?;
    let _hook = device.driver().on_cleanup_failure(|_| {});
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || -> Outcome {
        drop(partition(&device, 8)?.close()?);
        let again = partition(&device, 8)?;
        let stream = again.create_stream(green_ctx::StreamOptions::default())?;
        sim.fail(Fault::on("cuStreamDestroy").with(CUresult::CUDA_ERROR_UNKNOWN))?;
        drop(stream);
        Ok(())
    })?;
    let lines = log.0.lock().expect("no panic");
    let expected = [
        "span DEBUG split device=0",
        "span DEBUG create_context device=0 group=\"p0\" sms=8",
        "span DEBUG close_context device=0 green=true",
        "span DEBUG split device=0",
        "span DEBUG create_context device=0 group=\"p0\" sms=8",
        "event DEBUG  message=a context is reused sms=8",
        "event WARN  message=a clean-up failed error=cuStreamDestroy failed: CUDA_ERROR_UNKNOWN (999)",
    ];
    assert_eq!(*lines, expected);
    Ok(())
}

/// A subscriber that uses the plan set in each event, and sends the name of its active plan.
struct User {
    set: PlanSet,
    active: mpsc::Sender<String>,
}

impl Subscriber for User {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, _event: &Event<'_>) {
        drop(self.set.retire("none"));
        let _ = self.active.send(self.set.active().name().to_owned());
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

/// A subscriber can use the set from within the event of a switch, and finds the new plan active.
#[test]
fn a_subscriber_may_use_the_set() -> Outcome {
    let _alone = alone();
    let (active, names) = mpsc::channel();
    thread::spawn(move || {
        let switch = || -> Outcome {
            let (_sim, device) = simulated("h200")?;
            let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
            let night = set.prepare(plan("night", 64))?;
            let user = User { set: set.clone(), active };
            tracing::subscriber::with_default(user, || {
                set.switch(&night, SwitchOptions::default())
            })?;
            Ok(())
        };
        switch().map_err(|error| error.to_string())
    });
    let name = names.recv_timeout(Duration::from_secs(20)).map_err(|_| "a deadlock")?;
    assert_eq!(name, "night");
    Ok(())
}

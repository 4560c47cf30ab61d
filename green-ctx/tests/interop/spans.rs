//! What the crate `tracing` is told.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use green_ctx::CUresult;
use green_ctx::sim::Fault;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::common::{Outcome, partition, simulated};

/// Writes down spans and events.
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
    let (sim, device) = simulated("h200")?;
    device.driver().on_cleanup_failure(|_| {});
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
        "event DEBUG  message=a context is used again sms=8",
        "event WARN  message=a clean-up failed error=cuStreamDestroy failed: CUDA_ERROR_UNKNOWN (999)",
    ];
    assert_eq!(*lines, expected);
    Ok(())
}

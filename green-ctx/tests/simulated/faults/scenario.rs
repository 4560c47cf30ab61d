//! Runs an operation repeatedly, each time with another of its driver calls failing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::sim::{Fault, Live};
use green_ctx::{CUresult, Device, Error, error::ErrorKind};

use crate::common::{Outcome, simulated};

/// The statuses of a failing call: a failure that may pass, and one that ends all contexts of the device. The
/// library does not distinguish further.
const STATUSES: [CUresult; 2] =
    [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS];

/// Operations of the interface on one driver, with their set-up and tear-down.
pub(crate) struct Scenario<S> {
    pub(crate) name: &'static str,
    pub(crate) spec: &'static str,
    /// The minimum number of driver calls. Fewer mean that the operation does not do what its name says.
    pub(crate) at_least: usize,
    /// Creates the objects that exist before the operation. It never fails on purpose.
    pub(crate) set_up: fn(&Device) -> green_ctx::Result<S>,
    pub(crate) run: fn(&Device, &mut S) -> green_ctx::Result<()>,
    pub(crate) tear_down: fn(&Device, S) -> Outcome,
}

impl<S> Scenario<S> {
    /// Fails each driver call in turn. A first run without a failure records the calls, so new calls are
    /// covered automatically.
    pub(crate) fn exhaust(&self) -> Outcome {
        let (sim, device) = simulated(self.spec)?;
        let mut state = (self.set_up)(&device)?;
        sim.record_calls(true);
        (self.run)(&device, &mut state).map_err(|error| format!("{}: {error}", self.label()))?;
        let calls = sim.call_log();
        (self.tear_down)(&device, state)?;
        device.release_idle();
        assert_eq!(sim.live(), Live::default(), "{}: left behind", self.label());
        assert!(calls.len() >= self.at_least, "{}: only {} calls", self.label(), calls.len());
        for (index, call) in calls.iter().enumerate() {
            let nth = calls[..=index].iter().filter(|c| c.function == call.function).count();
            for status in STATUSES {
                self.fail(call.function, nth as u64, status)?;
            }
        }
        Ok(())
    }

    fn label(&self) -> String {
        format!("{} on {}", self.name, self.spec)
    }

    /// Fails one call. The failure must be reported, by an error or through the clean-up hook. The only objects
    /// left are those that could not be destroyed and those they depend on.
    fn fail(&self, function: &str, nth: u64, status: CUresult) -> Outcome {
        let what = format!("{}: {function}, call {nth}, {status}", self.label());
        let (sim, device) = simulated(self.spec)?;
        let reported = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&reported);
        let _hook = device.driver().on_cleanup_failure(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let mut state = (self.set_up)(&device)?;
        sim.fail(Fault::on(function).nth(nth).with(status))?;
        let result = (self.run)(&device, &mut state);
        sim.clear_faults();
        let reported = reported.load(Ordering::Relaxed);
        match &result {
            Ok(()) => assert!(reported > 0, "{what}: nothing was reported"),
            Err(error) => assert!(reports(error, status), "{what}: {error}"),
        }
        (self.tear_down)(&device, state).map_err(|error| format!("{what}: {error}"))?;
        device.release_idle();
        let left = sim.live();
        if reported == 0 {
            assert_eq!(left, Live::default(), "{what}");
        } else {
            assert!(count(left) <= 2, "{what}: {left:?}");
        }
        assert_eq!(device.resources().sm()?.free_sm_count(), device.sm_count()?, "{what}");

        let mut state = (self.set_up)(&device)?;
        (self.run)(&device, &mut state).map_err(|error| format!("{what}, afterwards: {error}"))?;
        (self.tear_down)(&device, state)?;
        device.release_idle();
        assert_eq!(sim.live(), left, "{what}, afterwards");
        Ok(())
    }
}

/// Returns whether an error reports the failed call.
fn reports(error: &Error, status: CUresult) -> bool {
    error.status() == Some(status) && error.kind() == ErrorKind::Driver
}

/// Returns the total number of live objects in the simulated driver.
fn count(live: Live) -> u64 {
    live.primary_retains
        + live.green_contexts
        + live.streams
        + live.events
        + live.libraries
        + live.modules
        + live.graphs
        + live.graph_executables
        + live.allocations
}

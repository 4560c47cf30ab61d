//! Work that is done again and again, each time with another of its driver calls failing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::sim::{Fault, Live};
use green_ctx::{CUresult, Device, Error, error::ErrorKind};

use crate::common::{Outcome, simulated};

/// The answers of a failing call: a failure that may pass, and one that ends all contexts of the device. The
/// library tells no others apart.
const STATUSES: [CUresult; 2] =
    [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS];

/// Some operations of the interface on one driver, and what they need around them.
pub(crate) struct Scenario<S> {
    pub(crate) name: &'static str,
    pub(crate) spec: &'static str,
    /// The least number of driver calls, below which the work is not what it says.
    pub(crate) at_least: usize,
    /// Not failed: what others have made.
    pub(crate) set_up: fn(&Device) -> green_ctx::Result<S>,
    pub(crate) run: fn(&Device, &mut S) -> green_ctx::Result<()>,
    pub(crate) tear_down: fn(&Device, S) -> Outcome,
}

impl<S> Scenario<S> {
    /// Fails each driver call in turn. Which there are is taken from a run in which none fails, so
    /// that a new call is among them without anybody's doing.
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

    /// Fails one call. The failure is reported, by an error or through the clean-up hook; nothing
    /// is leaked but what could not be destroyed, and what that depends on.
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

/// Whether an error is that of the call which was made to fail.
fn reports(error: &Error, status: CUresult) -> bool {
    error.status() == Some(status) && error.kind() == ErrorKind::Driver
}

/// What lives in the simulated driver, as one number.
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

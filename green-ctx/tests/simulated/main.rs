//! The library on simulated drivers, one module per topic.
//!
//! Most tests run on every driver in [`DRIVERS`] and expect the driver's differences. `faults` fails every
//! driver call in turn. `fences` and `plans` check the order of work.

#[path = "../common/mod.rs"]
mod common;
mod work;

mod captures;
mod closing;
mod contexts;
mod devices;
mod driver;
mod ending_captures;
mod errors;
mod events;
mod examples;
mod faults;
mod fences;
mod fit;
mod graph_contexts;
mod graphs;
mod handles;
mod hooks;
mod host_functions;
mod joining;
mod keeping;
mod launches;
mod libraries;
mod locality;
mod memory;
mod nested;
mod one_object;
mod ownership;
mod percentages;
mod plans;
mod quarantine;
mod race;
mod reclaiming;
mod recycling;
mod registry;
mod reports;
mod resources;
mod shares;
mod splitting;
mod streams;
mod structured;
mod watching;
mod workqueues;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Outcome, kernels, raw};
use green_ctx::sim::{Live, Sim};
use green_ctx::{
    Device, Driver, Error, Kernel, LaunchConfig, SplitRequest, Stream, Version,
    context::Context,
    resource::{ContextCounts, SmGroup, SmResource, Split},
    verify,
};

/// The drivers that most tests run on.
const DRIVERS: [&str; 7] =
    ["h200@12.4", "h200@12.5", "h200@12.8", "h200@13.0", "h200@13.1", "h200@13.4", "h200@13.5"];

/// The first driver that creates a context from several resources.
const COMPOSITION: Version = Version::new(12, 5);
/// The first driver that reports its minimum and alignment of SM counts.
const LIMITS: Version = Version::new(13, 0);
/// The first driver with structured splits, workqueues and resources of a stream.
const STRUCTURED: Version = Version::new(13, 1);
/// The first driver with locality domains.
const LOCALITY: Version = Version::new(13, 4);
/// The first driver that reports the contexts of copies and memsets in graphs.
const NODES: Version = Version::new(13, 2);
/// The first driver with supplemental SMs, beyond those counted for each domain.
const SUPPLEMENTAL: Version = Version::new(13, 5);

/// A simulated driver and its device.
struct Machine {
    sim: Sim,
    device: Device,
}

/// Prints the driver's name if a test panics.
struct Name(&'static str);

impl Drop for Name {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the driver was {}", self.0);
        }
    }
}

/// Runs a test on every driver. No object may be left afterwards.
fn each_driver(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    each_failing_driver(|machine| {
        test(machine)?;
        assert_eq!(machine.free()?, 132, "some SMs are still held");
        machine.device.release_idle();
        assert_eq!(machine.sim.live(), Live::default(), "an object is left");
        Ok(())
    })
}

/// Runs a test on the drivers with structured splits.
fn each_newer_driver(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    each_driver(|machine| if machine.has(STRUCTURED) { test(machine) } else { Ok(()) })
}

/// Runs a test on the drivers that create a context from several resources.
fn each_composing_driver(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    each_driver(|machine| if machine.has(COMPOSITION) { test(machine) } else { Ok(()) })
}

/// Runs a test on every driver, without the check that no object is left.
fn each_failing_driver(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    for spec in DRIVERS {
        let _name = Name(spec);
        test(&Machine::new(spec)?).map_err(|error| format!("{spec}: {error:?}"))?;
    }
    Ok(())
}

impl Machine {
    fn new(spec: &str) -> Result<Machine, Box<dyn std::error::Error>> {
        let sim = Sim::new(spec)?;
        let device = Driver::simulated(&sim)?.device(0)?;
        Ok(Machine { sim, device })
    }

    fn has(&self, version: Version) -> bool {
        self.driver().version() >= version
    }

    fn driver(&self) -> &Driver {
        self.device.driver()
    }

    fn sms(&self) -> green_ctx::Result<SmResource> {
        self.device.resources().sm()
    }

    fn free(&self) -> green_ctx::Result<u32> {
        Ok(self.sms()?.free_sm_count())
    }

    /// Returns the state of the driver and the ledger, for comparison.
    fn state(&self) -> Result<(Live, u32, ContextCounts), Error> {
        Ok((self.sim.live(), self.free()?, self.device.context_counts()))
    }

    /// Runs `work`, which must not call the driver.
    fn without_calls<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.sim.calls();
        let result = work();
        assert_eq!(self.sim.calls(), before, "the driver was called");
        result
    }

    /// Runs `work`, and returns its result with the driver calls that it made.
    fn calls<T>(&self, work: impl FnOnce() -> T) -> (T, BTreeMap<&'static str, u64>) {
        self.sim.clear_calls();
        let result = work();
        (result, self.sim.calls())
    }

    /// Checks that the driver is too old for `work`, and that nothing changed.
    #[track_caller]
    fn unsupported<T: Debug>(
        &self,
        call: &str,
        needs: Version,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Outcome {
        let before = self.state()?;
        let error = work().expect_err("the driver is too old");
        let found = self.driver().version();
        assert!(error.is_unsupported(), "{error}");
        assert_eq!(
            error.to_string(),
            format!("{call} needs CUDA {needs}, but the driver supports only {found}")
        );
        assert_eq!(self.state()?, before);
        Ok(())
    }

    /// Checks that `work` is refused without changing anything. Returns the error.
    #[track_caller]
    fn refused<T: Debug>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Error, Box<dyn std::error::Error>> {
        let before = self.state()?;
        let error = work().expect_err("the work is refused");
        assert_eq!(self.state()?, before, "{error}");
        Ok(error)
    }

    /// Loads a kernel that runs for `duration` and does nothing.
    fn kernel(&self, duration: Duration) -> green_ctx::Result<Kernel> {
        work::kernel(&self.sim, &self.device, "work", duration)
    }

    /// Collects the messages of clean-up failures.
    fn hook(&self) -> Arc<Mutex<Vec<String>>> {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let hook = Arc::clone(&reported);
        self.driver()
            .on_cleanup_failure(move |error| {
                hook.lock().expect("no panic").push(error.to_string());
            })
            .keep();
        reported
    }
}

fn launch(stream: &Stream, kernel: &Kernel) -> green_ctx::Result<()> {
    // SAFETY: the kernel has no parameters and touches no memory.
    unsafe { stream.launch(kernel, LaunchConfig::new(1, 32), ()) }
}

/// A long time on the simulated device.
const LONG: Duration = Duration::from_secs(1);

/// Returns the SM counts of a split's groups and of its remainder.
fn counts(split: &Split) -> (Vec<u32>, Option<u32>) {
    let groups = split.groups.iter().map(SmGroup::sm_count).collect();
    (groups, split.remainder.as_ref().map(SmGroup::sm_count))
}

/// Returns a request for groups of these counts.
fn of(counts: impl Into<SplitRequest>) -> SplitRequest {
    counts.into()
}

/// Creates a context of each group, the remainder last.
fn contexts(device: &Device, split: Split) -> green_ctx::Result<Vec<Context>> {
    let groups = split.groups.into_iter().chain(split.remainder);
    groups.map(|group| Ok(device.create_context(group)?)).collect()
}

/// Checks that each context runs on as many SMs as it has, and that no two share an SM. Returns the SMs.
#[track_caller]
fn disjoint(contexts: &[Context]) -> green_ctx::Result<Vec<BTreeSet<u32>>> {
    let report = verify::contexts(contexts, Duration::from_millis(1))?;
    assert!(report.ok(), "{:?}", report.partitions.iter().map(|one| &one.name).collect::<Vec<_>>());
    Ok(report.partitions.iter().map(verify::PartitionReport::observed_sms).collect())
}

//! The library on simulated drivers, a module for each of its nouns.
//!
//! Most tests run on every driver in [`DRIVERS`]; what differs from one to the next is an expectation of
//! the test. `faults` fails every driver call in turn, and `fences` and `plans` look at the order of work.

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

/// The drivers that every test runs on.
const DRIVERS: [&str; 7] =
    ["h200@12.4", "h200@12.5", "h200@12.8", "h200@13.0", "h200@13.1", "h200@13.4", "h200@13.5"];

/// The first driver whose contexts can be made of several pieces.
const COMPOSITION: Version = Version::new(12, 5);
/// The first driver that says its own limits.
const LIMITS: Version = Version::new(13, 0);
/// The first driver with structured splits, workqueues and a stream's own resources.
const STRUCTURED: Version = Version::new(13, 1);
/// The first driver with locality domains.
const LOCALITY: Version = Version::new(13, 4);
/// The first driver that reports the contexts of copies and memsets in graphs.
const NODES: Version = Version::new(13, 2);
/// The first driver with SMs beyond those that it counts for each domain.
const SUPPLEMENTAL: Version = Version::new(13, 5);

/// A simulated driver and its device.
struct Machine {
    sim: Sim,
    device: Device,
}

/// Says which driver a test failed on.
struct Name(&'static str);

impl Drop for Name {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the driver was {}", self.0);
        }
    }
}

/// Runs a test on every driver. Nothing may be left behind.
fn each_driver(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    each_failing_driver(|machine| {
        test(machine)?;
        assert_eq!(machine.free()?, 132, "SMs are still held");
        machine.device.release_idle();
        assert_eq!(machine.sim.live(), Live::default(), "something is left");
        Ok(())
    })
}

/// Runs a test on the drivers that have structured splits.
fn each_newer_driver(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    each_driver(|machine| if machine.has(STRUCTURED) { test(machine) } else { Ok(()) })
}

/// Runs a test on the drivers that have contexts of several pieces.
fn each_composing_driver(test: impl Fn(&Machine) -> Outcome) -> Outcome {
    each_driver(|machine| if machine.has(COMPOSITION) { test(machine) } else { Ok(()) })
}

/// Runs a test on every driver, of which something may be left.
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

    /// What there is, to be compared.
    fn state(&self) -> Result<(Live, u32, ContextCounts), Error> {
        Ok((self.sim.live(), self.free()?, self.device.context_counts()))
    }

    /// Runs what must make no call.
    fn without_calls<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.sim.calls();
        let result = work();
        assert_eq!(self.sim.calls(), before, "the driver was called");
        result
    }

    /// The calls that something makes.
    fn calls<T>(&self, work: impl FnOnce() -> T) -> (T, BTreeMap<&'static str, u64>) {
        self.sim.clear_calls();
        let result = work();
        (result, self.sim.calls())
    }

    /// Checks that something is refused by this driver for its age, and changes nothing.
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
            format!("{call} needs CUDA {needs}, the driver supports {found}")
        );
        assert_eq!(self.state()?, before);
        Ok(())
    }

    /// Checks that something is refused, and changes nothing. Returns what was said.
    #[track_caller]
    fn refused<T: Debug>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Error, Box<dyn std::error::Error>> {
        let before = self.state()?;
        let error = work().expect_err("it cannot be");
        assert_eq!(self.state()?, before, "{error}");
        Ok(error)
    }

    /// A kernel of one block that does nothing, for as long as is said.
    fn kernel(&self, duration: Duration) -> green_ctx::Result<Kernel> {
        work::kernel(&self.sim, &self.device, "work", duration)
    }

    /// Collects what the clean-up hook gets.
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
    // SAFETY: the kernel has no parameters and reaches no memory.
    unsafe { stream.launch(kernel, LaunchConfig::new(1, 32), ()) }
}

/// A long time of the simulated device.
const LONG: Duration = Duration::from_secs(1);

/// The counts of a split's groups, and of its remainder.
fn counts(split: &Split) -> (Vec<u32>, Option<u32>) {
    let groups = split.groups.iter().map(SmGroup::sm_count).collect();
    (groups, split.remainder.as_ref().map(SmGroup::sm_count))
}

/// A request for groups of these counts.
fn of(counts: impl Into<SplitRequest>) -> SplitRequest {
    counts.into()
}

/// A context of each group, the remainder last.
fn contexts(device: &Device, split: Split) -> green_ctx::Result<Vec<Context>> {
    let groups = split.groups.into_iter().chain(split.remainder);
    groups.map(|group| Ok(device.create_context(group)?)).collect()
}

/// The SMs that contexts run on, as the probe sees it: as many as each has, and of no other.
#[track_caller]
fn disjoint(contexts: &[Context]) -> green_ctx::Result<Vec<BTreeSet<u32>>> {
    let report = verify::contexts(contexts, Duration::from_millis(1))?;
    assert!(report.ok(), "{:?}", report.partitions.iter().map(|one| &one.name).collect::<Vec<_>>());
    Ok(report.partitions.iter().map(verify::PartitionReport::observed_sms).collect())
}

//! The machine, date and commit of a measurement.

use std::process::Command;

use green_ctx::Device;
use serde::{Deserialize, Serialize};

/// The machine, date and commit of a measurement: the head of every report file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Whether the driver was simulated. If so, the times say nothing about a GPU.
    pub(crate) simulated: bool,
    pub(crate) device: String,
    pub(crate) sm_count: u32,
    pub(crate) compute_capability: String,
    /// The newest CUDA version that the driver supports.
    pub(crate) cuda: String,
    /// The version of the kernel driver, if the system reports it.
    pub(crate) driver: Option<String>,
    /// The host's processor, if the system reports it.
    pub(crate) processor: Option<String>,
    pub(crate) commit: String,
    pub(crate) date: String,
}

impl Machine {
    pub(crate) fn of(device: &Device, simulated: bool, commit: &str) -> green_ctx::Result<Machine> {
        Ok(Machine {
            simulated,
            device: device.name()?,
            sm_count: device.sm_count()?,
            compute_capability: device.compute_capability()?.to_string(),
            cuda: device.driver().version().to_string(),
            driver: if simulated { None } else { green_ctx::sys::kernel_driver() },
            processor: processor(),
            commit: commit.to_owned(),
            date: today().unwrap_or_else(|| "unknown date".to_owned()),
        })
    }
}

/// Returns the host's processor, if the system reports it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// Returns the date in UTC, such as `2026-01-31`, or `None` if the system has no `date` program.
fn today() -> Option<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

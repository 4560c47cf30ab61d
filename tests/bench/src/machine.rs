//! On what, when and of which commit something was measured.

use std::process::Command;

use green_ctx::Device;
use serde::{Deserialize, Serialize};

/// On what, when and of which commit something was measured: the head of every file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Whether the driver was a simulated one: its times say nothing about a GPU's.
    pub(crate) simulated: bool,
    pub(crate) device: String,
    pub(crate) sm_count: u32,
    pub(crate) compute_capability: String,
    /// The newest CUDA version that the driver supports.
    pub(crate) cuda: String,
    /// The version of the driver's part in the kernel, where the system reports it.
    pub(crate) driver: Option<String>,
    /// The host's processor, where the system reports it.
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

/// The host's processor, where the system reports it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// The date in UTC, as `2026-01-31`; `None` if the system has no program `date`.
fn today() -> Option<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

//! The report of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// The format that this program writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 1;

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    #[serde(flatten)]
    pub(crate) machine: Machine,
    /// Whether few samples were taken.
    pub(crate) quick: bool,
    /// The duration of the whole run, in seconds.
    pub(crate) seconds: f64,
    /// The time that reading the clock takes, which is included in every time that was measured call by call.
    pub(crate) timer: Sample,
    pub(crate) arms: Vec<ArmReport>,
}

/// The results of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ArmReport {
    pub(crate) name: String,
    /// The arm's description.
    pub(crate) about: String,
    pub(crate) seconds: f64,
    pub(crate) samples: Vec<Sample>,
    pub(crate) figures: Vec<Figure>,
    /// Why the arm failed. Its results up to that point are lost.
    pub(crate) error: Option<String>,
}

/// The distribution of one quantity that was measured many times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) count: usize,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) value: f64,
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "ns")]
    Nanoseconds,
    #[serde(rename = "bytes")]
    Bytes,
    #[serde(rename = "1/s")]
    PerSecond,
    #[serde(rename = "%")]
    Percent,
    #[serde(rename = "times")]
    Times,
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    /// Formats a value with this unit.
    pub(crate) fn show(self, value: f64) -> Shown {
        Shown { unit: self, value }
    }
}

/// A value with its unit, for display.
pub(crate) struct Shown {
    unit: Unit,
    value: f64,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        let scaled = |f: &mut fmt::Formatter<'_>, value: f64, unit: &str| {
            // Three significant digits.
            match value.abs() {
                size if size < 9.995 => write!(f, "{value:.2} {unit}"),
                size if size < 99.95 => write!(f, "{value:.1} {unit}"),
                _ => write!(f, "{value:.0} {unit}"),
            }
        };
        match self.unit {
            Unit::Nanoseconds if value.abs() < 999.5 => scaled(f, value, "ns"),
            Unit::Nanoseconds if value.abs() < 999.5e3 => scaled(f, value / 1e3, "µs"),
            Unit::Nanoseconds if value.abs() < 999.5e6 => scaled(f, value / 1e6, "ms"),
            Unit::Nanoseconds => scaled(f, value / 1e9, "s"),
            Unit::Bytes if value.abs() < 1024.0 => write!(f, "{value:.0} bytes"),
            Unit::Bytes if value.abs() < 1024.0 * 1024.0 => scaled(f, value / 1024.0, "KiB"),
            Unit::Bytes => scaled(f, value / (1024.0 * 1024.0), "MiB"),
            Unit::PerSecond => scaled(f, value, "/s"),
            Unit::Percent => write!(f, "{value:.1} %"),
            Unit::Times => scaled(f, value, "×"),
            Unit::Count => write!(f, "{value:.0}"),
        }
    }
}

impl Report {
    /// Returns a sample by the names of its arm and itself.
    pub(crate) fn sample(&self, arm: &str, name: &str) -> Option<&Sample> {
        self.arm(arm)?.samples.iter().find(|sample| sample.name == name)
    }

    /// Returns the value of a figure by the names of its arm and itself.
    pub(crate) fn figure(&self, arm: &str, name: &str) -> Option<f64> {
        let figures = &self.arm(arm)?.figures;
        figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    /// Returns an arm by its name.
    pub(crate) fn arm(&self, name: &str) -> Option<&ArmReport> {
        self.arms.iter().find(|arm| arm.name == name)
    }

    /// Describes the machine in one line.
    pub(crate) fn machine(&self) -> String {
        let Machine { device, sm_count, cuda, commit, date, .. } = &self.machine;
        let driver = match &self.machine.driver {
            _ if self.machine.simulated => format!("simulated driver (CUDA {cuda})"),
            Some(driver) => format!("driver {driver} (CUDA {cuda})"),
            None => format!("CUDA {cuda}"),
        };
        let host = self
            .machine
            .processor
            .as_deref()
            .map_or(String::new(), |name| format!(", host {name}"));
        format!("{device}, {sm_count} SMs, {driver}{host}, {date}, commit {commit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_with_three_digits() {
        let shown = |unit: Unit, value: f64| unit.show(value).to_string();
        assert_eq!(shown(Unit::Nanoseconds, 8.123), "8.12 ns");
        assert_eq!(shown(Unit::Nanoseconds, 999.7), "1.00 µs");
        assert_eq!(shown(Unit::Nanoseconds, 1_520_000.0), "1.52 ms");
        assert_eq!(shown(Unit::Nanoseconds, 33_200.0), "33.2 µs");
        assert_eq!(shown(Unit::Bytes, 0.0), "0 bytes");
        assert_eq!(shown(Unit::Bytes, -4.0 * 1024.0 * 1024.0), "-4.00 MiB");
        assert_eq!(shown(Unit::PerSecond, 616.2), "616 /s");
        assert_eq!(shown(Unit::Percent, 17.66), "17.7 %");
    }
}

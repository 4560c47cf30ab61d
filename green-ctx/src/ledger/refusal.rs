//! The reasons for which the ledger refuses a request.

use std::fmt;
use std::sync::Arc;

use super::share::Share;

/// The reason why a request was refused. A refusal changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No device could meet the request.
    InvalidRequest(String),
    /// The groups do not fit into the free units.
    NotEnoughSms(Box<NotEnoughSms>),
    /// The device is cut into other units, and some of them are in use.
    CutInUse {
        /// The current cut.
        held: String,
        /// The groups that hold or share units of the current cut.
        holders: Vec<Holder>,
    },
}

impl Refusal {
    pub(super) fn invalid(reason: impl Into<String>) -> Refusal {
        Refusal::InvalidRequest(reason.into())
    }
}

/// The error for a request whose groups do not all fit, with shares that would fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NotEnoughSms {
    /// The name of the group to be split; `None` for the device.
    pub within: Option<String>,
    /// The requested shares.
    pub requested: Vec<Share>,
    /// The number of groups that fit, counted from the first.
    pub fit: usize,
    /// The SMs that are free for floors.
    pub free: u32,
    /// The SMs that are in no floor, and can therefore be shared.
    pub shareable: u32,
    /// The number of the device's SMs.
    pub total: u32,
    /// The size of the units that the request uses, in SMs. One of them may have another size. For a structured
    /// request, the number of SMs that are scheduled together.
    pub unit: u32,
    /// The nearest shares that the same number of groups could have now. The list is empty if this number of
    /// groups cannot fit with any shares.
    pub nearest: Vec<Share>,
    /// The groups whose floors hold the other SMs.
    pub holders: Vec<Holder>,
    /// The groups that share SMs. Shared SMs cannot become part of a floor.
    pub sharers: Vec<Holder>,
    /// The SMs in quarantine: work of a previous owner could not be recorded, so it is unknown when that work
    /// ends. No floor gets these SMs. Later splits try again to record the work.
    #[cfg_attr(feature = "serde", serde(default))]
    pub quarantined: u32,
    /// Whether the first group that did not fit was limited to a [locality
    /// domain](crate::resource::LocalityDomain), which has fewer SMs.
    #[cfg_attr(feature = "serde", serde(default))]
    pub local: bool,
    /// The sum of the requested floors in SMs, with percentages rounded; 0 if the driver itself refused the split.
    #[cfg_attr(feature = "serde", serde(default))]
    pub floors: u64,
}

impl NotEnoughSms {
    /// Returns whether the requested floors add up to more SMs than the device has. Closing partitions cannot
    /// make such a request fit.
    pub(crate) fn exceeds_device(&self) -> bool {
        self.floors > u64::from(self.total)
    }

    /// Returns whether the requested floors add up to more SMs than the reserve has, or without a reserve the device.
    pub(crate) fn exceeds_reserve(&self) -> bool {
        let unbound = self.sharers.iter().find(|sharer| &*sharer.name == UNBOUND);
        self.floors > u64::from(self.total - unbound.map_or(0, |rest| rest.sm_count))
    }
}

impl fmt::Display for NotEnoughSms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotEnoughSms { within, requested, fit, free, total, unit, nearest, .. } = self;
        match requested.as_slice() {
            [] => write!(f, "the request does not fit")?,
            [Share::REST] => write!(f, "no SMs are left to take")?,
            [one] => write!(f, "a group of {} does not fit", Words(*one))?,
            [first, rest @ ..] if rest.iter().all(|share| share == first) => {
                let (count, first) = (requested.len(), Words(*first));
                write!(f, "{count} groups of {first} do not fit, {fit} fit")?;
            }
            shares => {
                let of =
                    if shares.iter().any(|share| share.has_percent()) { " of the" } else { "" };
                write!(f, "groups of {}{of} SMs do not fit, ", list(shares))?;
                match fit {
                    0 => write!(f, "not even the first fits")?,
                    1 => write!(f, "the first one fits")?,
                    fit => write!(f, "the first {fit} fit")?,
                }
            }
        }
        match within {
            Some(name) => write!(f, ": {name} has {free} SMs, in units of {unit}")?,
            None => write!(f, ": {free} of the device's {total} SMs are free, in units of {unit}")?,
        }
        if self.local {
            write!(f, ", but a locality domain has fewer")?;
        }
        match nearest.as_slice() {
            [] => {}
            [one] => write!(f, "; a group of {one} would fit")?,
            [first, rest @ ..] if rest.iter().all(|share| share == first) => {
                write!(f, "; {} groups of {first} would fit", nearest.len())?;
            }
            shares => write!(f, "; groups of {} would fit", list(shares))?,
        }
        if self.exceeds_device() {
            // Who holds SMs is of no interest.
            return Ok(());
        }
        if !self.holders.is_empty() {
            write!(f, "; the rest is held by {}", list(&self.holders))?;
        }
        if self.shareable > *free {
            write!(f, "; {} SMs can only be shared", self.shareable - free)?;
        }
        if !self.sharers.is_empty() {
            write!(f, ", because {} may use them: ", list(&self.sharers))?;
            f.write_str(match self.sharers.iter().all(|sharer| &*sharer.name == UNBOUND) {
                true => "floors need a larger reserve, and a ceiling may reach there",
                false => {
                    "ask for everything in one request, set a ceiling, close a sharer, or use plans"
                }
            })?;
        }
        if self.quarantined > 0 {
            write!(f, "; {} SMs wait for work that could not be recorded", self.quarantined)?;
        }
        Ok(())
    }
}

/// A share that is displayed as a number of SMs.
struct Words(Share);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 == Share::from(None) {
            true => f.write_str("any number of SMs"),
            false if self.0.has_percent() => write!(f, "{} of the SMs", self.0),
            false => write!(f, "{} SMs", self.0),
        }
    }
}

fn list(items: &[impl fmt::Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The name of work outside of partitions in the ledger and in reports.
pub(crate) const UNBOUND: &str = "work outside of partitions";

/// A group that holds or shares SMs of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The group's name.
    pub name: Arc<str>,
    /// The number of SMs.
    pub sm_count: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} SMs)", self.name, self.sm_count)
    }
}

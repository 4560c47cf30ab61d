//! Why the ledger refuses a request.

use std::fmt;
use std::sync::Arc;

use super::share::Share;

/// Why a request was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No device could meet it.
    InvalidRequest(String),
    /// The groups do not fit into the units that are free.
    NotEnoughSms(Box<NotEnoughSms>),
    /// The device is cut into other units, of which some are not free.
    CutInUse {
        /// What it is cut into.
        held: String,
        /// Who holds some of it, or shares some.
        holders: Vec<Holder>,
    },
}

impl Refusal {
    pub(super) fn invalid(reason: impl Into<String>) -> Refusal {
        Refusal::InvalidRequest(reason.into())
    }
}

/// Which groups did not fit, and what would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NotEnoughSms {
    /// The group that was to be split; `None` for the device.
    pub within: Option<String>,
    /// The shares that were asked for.
    pub requested: Vec<Share>,
    /// How many of them fit, in the order given.
    pub fit: usize,
    /// The SMs that are free for floors.
    pub free: u32,
    /// The SMs that are in nobody's floor, so that shares may use them.
    pub shareable: u32,
    /// The device's SMs.
    pub total: u32,
    /// The smallest piece that the device was cut into, in SMs; for a structured request the least
    /// that is scheduled together.
    pub unit: u32,
    /// The nearest shares that as many groups could have now; empty where so many groups fit at none.
    pub nearest: Vec<Share>,
    /// Whose floors the other SMs are.
    pub holders: Vec<Holder>,
    /// Who shares SMs, so that they can be nobody's floor.
    pub sharers: Vec<Holder>,
    /// The SMs that nobody holds and no floor gets: the work of a former user could not be recorded, so
    /// that it is not known when it is done. Splits try again to record it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub quarantined: u32,
    /// Whether they had to be of a [locality domain](crate::resource::LocalityDomain), which has fewer.
    #[cfg_attr(feature = "serde", serde(default))]
    pub local: bool,
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
            write!(f, ", and locality domains have fewer")?;
        }
        match nearest.as_slice() {
            [] => {}
            [one] => write!(f, "; a group of {one} would fit")?,
            [first, rest @ ..] if rest.iter().all(|share| share == first) => {
                write!(f, "; {} groups of {first} would fit", nearest.len())?;
            }
            shares => write!(f, "; groups of {} would fit", list(shares))?,
        }
        if !self.holders.is_empty() {
            write!(f, "; the rest is held by {}", list(&self.holders))?;
        }
        if self.shareable > *free {
            write!(f, "; {} SMs can only be shared", self.shareable - free)?;
        }
        if !self.sharers.is_empty() {
            write!(
                f,
                ", which {} may use: ask for everything in one request, bound the ceiling, close \
                 a sharer, or use plans",
                list(&self.sharers)
            )?;
        }
        if self.quarantined > 0 {
            write!(f, "; {} SMs wait for work that could not be recorded", self.quarantined)?;
        }
        Ok(())
    }
}

/// A share's SMs in a sentence.
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

/// Who holds how many SMs of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The group's name.
    pub name: Arc<str>,
    /// Its SMs.
    pub sm_count: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} SMs)", self.name, self.sm_count)
    }
}

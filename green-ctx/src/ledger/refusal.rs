//! Why the ledger refuses a request.

use std::fmt;
use std::sync::Arc;

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
    /// The counts that were asked for, in SMs; `None` for as many as there are.
    pub requested: Vec<Option<u32>>,
    /// How many of them fit, in the order given.
    pub fit: usize,
    /// The SMs that are free.
    pub free: u32,
    /// The device's SMs.
    pub total: u32,
    /// The smallest piece that the device was cut into, in SMs; for a structured request the least
    /// that is scheduled together.
    pub unit: u32,
    /// The nearest counts that as many groups could have now, in SMs; empty where so many groups fit
    /// at no count.
    pub nearest: Vec<u32>,
    /// Who holds the SMs that are not free.
    pub holders: Vec<Holder>,
    /// The SMs that nobody holds and nobody gets: the work of their last owner could not be recorded,
    /// so that it is not known when it is done. Splits try again to record it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub quarantined: u32,
}

impl fmt::Display for NotEnoughSms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotEnoughSms { within, requested, fit, free, total, unit, nearest, .. } = self;
        let requested: Vec<String> = requested
            .iter()
            .map(|count| {
                count.map_or_else(|| "any number of".to_owned(), |count| count.to_string())
            })
            .collect();
        match requested.as_slice() {
            [one] => write!(f, "a group of {one} SMs does not fit")?,
            [first, rest @ ..] if rest.iter().all(|count| count == first) => {
                write!(f, "{} groups of {first} SMs do not fit, {fit} fit", requested.len())?;
            }
            counts => {
                write!(f, "groups of {} SMs do not fit, ", counts.join(", "))?;
                match fit {
                    0 => write!(f, "not even the first fits")?,
                    fit => write!(f, "the first {fit} fit")?,
                }
            }
        }
        match within {
            Some(name) => write!(f, ": {name} has {free} SMs, in units of {unit}")?,
            None => write!(f, ": {free} of the device's {total} SMs are free, in units of {unit}")?,
        }
        match nearest.as_slice() {
            [] => {}
            [one] => write!(f, "; a group of {one} would fit")?,
            [first, rest @ ..] if rest.iter().all(|count| count == first) => {
                write!(f, "; {} groups of {first} would fit", nearest.len())?;
            }
            counts => {
                let counts: Vec<String> = counts.iter().map(ToString::to_string).collect();
                write!(f, "; groups of {} would fit", counts.join(", "))?;
            }
        }
        if let Some((first, rest)) = self.holders.split_first() {
            write!(f, "; the rest is held by {first}")?;
            for holder in rest {
                write!(f, ", {holder}")?;
            }
        }
        if self.quarantined > 0 {
            write!(f, "; {} SMs wait for work that could not be recorded", self.quarantined)?;
        }
        Ok(())
    }
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

//! The ledger: the record of the free, held, shared and quarantined SMs of a device.
//!
//! A device is cut into units, and a group of SMs is a choice of units. `units` describes the cut and rounds
//! counts. `request` holds requests, and `structure` holds the options that need the driver's structured
//! split. `share` is a floor and a ceiling, and `percent` turns percentages into counts. `choose` does the
//! arithmetic, `assign` gives each group its units, and `refusal` is the answer if they do not suffice.
//! `account` records which group has which unit, and which fences the next owner of a free unit waits for.
//! `recycle` holds idle contexts.
//!
//! Nothing here calls the driver, takes a lock or imports another module of the crate. The owner of a ledger
//! keeps it under a lock. Values whose drop could run foreign code must not be dropped under it, so a call
//! returns the values that it displaces.
#![forbid(unsafe_code)]

mod account;
mod assign;
mod choose;
mod dry_run;
mod percent;
mod recycle;
mod refusal;
mod request;
#[cfg(feature = "serde")]
mod serialize;
mod share;
mod structure;
mod units;

pub(crate) use account::{Divided, GroupNumber, Ledger};
pub(crate) use assign::{GroupUnits, each_its_own};
pub use dry_run::{DryRun, GroupSms};
pub(crate) use percent::Rounding;
pub use recycle::{ContextCounts, WorkqueueScope};
pub(crate) use recycle::{Idle, WorkqueueConfig};
pub(crate) use refusal::Refusal;
pub use refusal::{Holder, NotEnoughSms};
pub(crate) use request::RequestedGroup;
pub use request::SplitRequest;
pub use share::{Amount, Percent, Share, ShareError, ShareKind};
pub(crate) use structure::{Coscheduling, GroupParams, Structure};
pub use structure::{LocalityDomain, PerGroup};
pub(crate) use units::{Cut, Placement, UnitCounts, UnitSet};
pub use units::{Granularity, UnitSizes};

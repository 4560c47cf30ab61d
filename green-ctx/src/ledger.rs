//! The ledger: the record of the free, held, shared and quarantined SMs of a device.
//!
//! A device is cut into units, and each group of SMs consists of whole units. The module `units` describes
//! the cut and rounds SM counts. The module `request` defines requests, and `structure` defines the options
//! that need the driver's structured split. The module `share` defines floors and ceilings, and `percent`
//! turns percentages into counts. The module `choose` does the arithmetic, `assign` gives each group its
//! units, and `refusal` reports that the units do not suffice. The module `account` records which group has
//! which unit, and which fences the next owner of a free unit waits for. The module `recycle` holds idle
//! contexts.
//!
//! No code in these modules calls the driver, takes a lock or imports another module of the crate. The owner
//! of a ledger protects the ledger with a lock. Values whose drop could run foreign code must not be dropped
//! under that lock, so each method returns the values that it removes.
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
pub use refusal::{Holder, NotEnoughSms};
pub(crate) use refusal::{Refusal, UNBOUND};
pub(crate) use request::RequestedGroup;
pub use request::SplitRequest;
pub use share::{Amount, Percent, Share, ShareError, ShareKind};
pub(crate) use structure::{Coscheduling, GroupParams, Structure};
pub use structure::{LocalityDomain, PerGroup};
pub(crate) use units::{Cut, Placement, UnitCounts, UnitSet};
pub use units::{Granularity, UnitSizes};

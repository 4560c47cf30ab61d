//! Resources: SMs and workqueues, described, split into groups, owned.

mod choose;
mod group;
mod ledger;
mod level;
mod nested;
mod raw;
mod sm;
mod split;
mod structure;
mod unit;
mod workqueue;

pub use group::{SmGroup, SplitError};
pub use ledger::Holder;
pub(crate) use ledger::Ledger;
pub use level::Resources;
pub(crate) use level::{describe, provisioned};
pub(crate) use nested::Parent;
pub(crate) use raw::sm_count_of;
pub use sm::{LimitSource, SmResource};
pub use split::{PlannedGroup, Split, SplitPlan, SplitRequest};
pub use structure::{LocalityDomain, PerGroup};
pub use unit::Granularity;
pub(crate) use unit::{Cut, Units};
pub(crate) use workqueue::Config as WorkqueueConfig;
pub use workqueue::{Provision, Workqueue, WorkqueueOptions, WorkqueueResource, WorkqueueScope};

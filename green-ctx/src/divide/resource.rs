//! Resources: the SMs and workqueues of a device, a context or a stream, groups of SMs, and contexts created
//! from groups.

pub(crate) mod create;
mod cut;
mod divide;
mod floor;
mod join;
mod level;
mod locality;
mod nested;
mod sm;
mod split;
mod workqueue;

pub use create::ContextResources;
pub(crate) use floor::context_of_units;
pub use level::Resources;
pub use locality::LocalityDomains;
pub use sm::{LimitSource, SmResource};
pub use split::Split;
pub use workqueue::{Workqueue, WorkqueueOptions, WorkqueueResource};

pub use crate::handle::group::SmGroup;
pub use crate::ledger::{
    Amount, ContextCounts, DryRun, Granularity, GroupSms, Holder, LocalityDomain, NotEnoughSms,
    PerGroup, Percent, ShareError, ShareKind, UnitSizes, WorkqueueScope,
};

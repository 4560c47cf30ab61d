//! SMs as a resource: described, split into groups, owned.

mod choose;
mod fence;
mod ledger;
mod sm;
mod split;
mod unit;

pub(crate) use fence::{Fence, Fences};
pub use ledger::Holder;
pub(crate) use ledger::Ledger;
pub use sm::{SmGroup, SmResource, SplitError};
pub(crate) use sm::{describe, empty_resource, sm_part};
pub use split::{Plan, PlannedGroup, Split, SplitRequest};
pub use unit::Granularity;
pub(crate) use unit::{Cut, Units};

//! The objects that represent the driver's handles, and the code that these objects need. No file in this module
//! depends on the objects for streams, kernels, partitions or graphs.

pub(crate) mod capture;
pub mod context;
pub(crate) mod current;
pub(crate) mod dev_resource;
pub mod device;
pub mod driver;
pub mod error;
pub(crate) mod escape;
pub mod event;
pub(crate) mod fence;
pub(crate) mod fitting;
pub(crate) mod fork;
pub(crate) mod green;
pub(crate) mod group;
pub(crate) mod listing;
pub(crate) mod location;
pub(crate) mod lock;
pub(crate) mod owner;
pub(crate) mod primary;
pub(crate) mod quarantine;
pub(crate) mod raw;
pub(crate) mod raw_stream;
pub(crate) mod reclaim;
pub(crate) mod registry;
pub(crate) mod report;
#[cfg(feature = "serde")]
mod serialize;
pub(crate) mod token;
pub(crate) mod trace;

//! The driver objects for which programs hold handles, with the queries and settings of these
//! objects.

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod created;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod green;
#[expect(unsafe_code, reason = "the module reads the union of launch attributes")]
pub(crate) mod launch;
#[expect(unsafe_code, reason = "the module calls a function of the program")]
pub(crate) mod occupancy;
pub(crate) mod profiler;
pub(crate) mod resource;
pub(crate) mod stream;

//! The driver's objects that programs have handles of, and their queries and settings.

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod created;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod green;
#[expect(unsafe_code, reason = "it reads the union of launch attributes")]
pub(crate) mod launch;
#[expect(unsafe_code, reason = "it calls the program back")]
pub(crate) mod occupancy;
pub(crate) mod profiler;
pub(crate) mod resource;
pub(crate) mod stream;

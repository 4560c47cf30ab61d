//! Features for tests: kernel closures, faults, launches, calls, races and live objects.

pub(crate) mod calls;
pub(crate) mod fault;
pub(crate) mod kernel;
pub(crate) mod live;
pub(crate) mod race;
pub(crate) mod trace;

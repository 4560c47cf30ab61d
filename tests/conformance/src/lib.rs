//! What a CUDA driver answers about green contexts, asked case by case.
//!
//! Each case puts a few calls to the driver's C interface and notes what came back: status names,
//! counts, SM ids, whether two handles are the same. The same cases run on a real GPU and on a
//! simulated driver, so that the second can be held against the first. The record of a real run is
//! committed in `records/`, and a test compares the simulator with it case by case.
//!
//! Cases that crash a process or poison its device, as some misuse does, run in a process of their
//! own; the others share one for each topic. A simulated driver needs no process to begin anew, so of
//! its cases only those that end the process do without the others. See [`run`].

mod answer;
mod calls;
mod cases;
mod driver;
mod gpu;
mod record;
mod runner;

pub use cases::{Case, Isolation, all};
pub use driver::{Choice, OpenError};
pub use record::{Difference, Header, Line, ParseError, Record};
pub use runner::{ChildError, Options, RunError, Summary, child, run};

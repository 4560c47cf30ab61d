//! Records what a CUDA driver answers about green contexts, case by case.
//!
//! Each case makes a few calls to the driver's C interface and notes the results: status names, counts, SM ids,
//! whether two handles are equal. The same cases run on a real GPU and on a simulated driver, so that the two
//! can be compared. The records of real runs are committed in `records/`, and a test compares the simulator
//! with them case by case.
//!
//! Cases that crash a process or poison its device, as some misuse does, run in a separate process. The others
//! share one process per topic. A simulated driver starts anew without a new process, so only its cases that
//! end the process need a separate one. See [`run`].

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

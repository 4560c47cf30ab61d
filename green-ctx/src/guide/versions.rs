//! Versions: one binary for every driver from CUDA 12.4 on.
//!
//! Which CUDA is installed is found out at run time: functions are looked up by name and version when
//! the driver is [loaded](crate::Driver::load), and nothing is linked. What the driver lacks is
//! [`Error::Unsupported`](crate::Error::Unsupported), with the call, the version that has it and the
//! version found; nothing was created or changed then. [`Error::is_unsupported`] is the way to go on
//! without. Methods work from 12.4 on where their documentation names no other version.
//!
//! | from | what it adds |
//! |---|---|
//! | 12.4 | green contexts; groups of one size, and the rest, since a context is made of one piece; one size at a time |
//! | 12.5 | uneven, named and nested splits: contexts of several units; events on a whole primary context; streams without a push |
//! | 13.0 | the driver says the smallest partition and the alignment; before, [the rule for the architecture](crate::resource::SmResource::limits_from) does |
//! | 13.1 | *structured splits, workqueues, a stream's own resource* |
//! | 13.2 | *where a graph's copies and memsets run, in [`audit`](crate::Graph::audit)* |
//! | 13.4 | *locality domains* |
//!
//! What is in italics is built from the header and documentation, runs on the simulated driver, and
//! has **not yet run on hardware**. The rest is recorded on an H100 and an H200 with driver 580.159.04
//! (CUDA 13.0); what 12.4 to 12.8 do differently follows from their headers.
//!
//! One thing to watch for on 13.1 and newer, where nothing is recorded: contexts of several units put
//! pieces of one split together, among them the odd one that was left over. Headers from 13.1 on say
//! that such pieces must state the same alignment. Should a driver refuse, the error is
//! `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION` when the context is created.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, Error, SplitRequest, Version, sim_0_1::Sim};
//!
//! let driver = Driver::simulated(&Sim::new("h200@12.4")?)?;
//! let sms = driver.device(0)?.resources().sm()?;
//! // Equal groups and the rest are what this driver can do.
//! drop(sms.split(SplitRequest::from([16, 16]).rest("rest"))?);
//! // Uneven ones are not.
//! match sms.split([16, 24]).expect_err("it is too old") {
//!     Error::Unsupported { needs, found, .. } => {
//!         assert_eq!((needs, found), (Version::new(12, 5), Version::new(12, 4)));
//!     }
//!     other => panic!("{other}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Error::is_unsupported`]: crate::Error::is_unsupported

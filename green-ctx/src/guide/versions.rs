//! Versions: one binary for every driver from CUDA 12.4 on.
//!
//! Functions are looked up by name and version when the driver is [loaded](crate::Driver::load), and nothing
//! is linked. Where the driver lacks a function, the error is
//! [`Error::Unsupported`](crate::Error::Unsupported), with the call, the version that has it and the
//! version found, and nothing was created or changed. Use [`Error::is_unsupported`] to fall back to
//! something else. Methods work from 12.4 on unless their documentation names another version.
//!
//! | from | what it adds |
//! |---|---|
//! | 12.4 | green contexts; exclusive groups of one size, and the rest, since a context is made of one piece; one size at a time; instead of those, `..` of the whole device |
//! | 12.5 | contexts of several units, and so uneven and nested splits and all [shares](super::shares); events on a whole primary context; streams without a push |
//! | 13.0 | the driver reports the smallest partition and the alignment; before, they follow from [the architecture](crate::SmResource::limits_from) |
//! | 13.1 | *structured splits, workqueues, a stream's own resource* |
//! | 13.2 | *where a graph's copies and memsets run, in [`audit`](crate::Graph::audit)* |
//! | 13.4 | *locality domains* |
//!
//! The rows in italics are built from the header and documentation, run on the simulated driver, and
//! have **not yet run on hardware**. The rest is recorded on an H100 and an H200 with driver 580.159.04
//! (CUDA 13.0); what 12.4 to 12.8 do differently follows from their headers.
//!
//! One risk on 13.1 and newer, where nothing is recorded: contexts of several units combine
//! pieces of one split, among them the odd one that was left over. Headers from 13.1 on say
//! that such pieces must have the same alignment. If a driver refuses them, creating the context fails with
//! `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, Error, SplitRequest, Version, sim::Sim};
//!
//! let driver = Driver::simulated(&Sim::new("h200@12.4")?)?;
//! let device = driver.device(0)?;
//! // This driver can make equal groups and the rest.
//! drop(device.partition(SplitRequest::from([16, 16]).rest("rest"))?);
//! // It cannot make uneven ones.
//! match device.partition([16, 24]).expect_err("it is too old") {
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

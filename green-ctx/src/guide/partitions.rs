//! Partitions: some of a GPU's SMs for one job, the rest for another, in one process.
//!
//! A GPU runs the blocks of a kernel on its streaming multiprocessors (SMs), whichever are free. A
//! *green context* is a context whose kernels run on certain SMs only. This crate makes one of a
//! [group](crate::resource::SmGroup) of SMs and calls it a partition: work of its streams stays on those SMs,
//! whatever else the process does.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, StreamOptions, sim_0_1::Sim};
//!
//! // With a GPU: `let driver = Driver::load()?;`
//! let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! let device = driver.device(0)?;
//!
//! let request = SplitRequest::new().group("decode", 16).rest("prefill");
//! let split = device.resources().sm()?.split(request)?;
//! let mut partitions = Vec::new();
//! for group in split.groups.into_iter().chain(split.remainder) {
//!     partitions.push(device.create_context(group)?);
//! }
//! let decode = partitions[0].create_stream(StreamOptions::default().priority(-1))?;
//! assert_eq!(decode.resources().sm()?.sm_count(), 16);
//! # Ok(())
//! # }
//! ```
//!
//! # How a device is cut
//!
//! The driver cuts a device into equal groups, rounds their size up, and makes fewer of them than
//! asked without an error (recorded on an H200: 3 groups of 64 SMs give 2). So this crate cuts the
//! device once into its smallest *units* and gives each request a choice of them:
//!
//! | device | coarse units | fine units |
//! |---|---|---|
//! | H200, 132 SMs | 15 of 8 SMs, 1 of 12 | 66 of 2 |
//!
//! A group has the count that was asked for where units add up to it, and the next count otherwise; it
//! tells [both](crate::resource::SmGroup::requested). [`SmResource::dry_run`](crate::resource::SmResource::dry_run) is the same
//! choice without the taking.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, sim_0_1::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let sms = driver.device(0)?.resources().sm()?;
//! let dry = sms.dry_run([8, 17, 100])?;
//! let counts: Vec<u32> = dry.groups.iter().map(|group| group.sm_count).collect();
//! assert_eq!(counts, [8, 24, 100]);
//! assert_eq!(dry.remainder, 0);
//! # Ok(())
//! # }
//! ```
//!
//! **Coarse or fine.** SMs of a coarse unit are scheduled together, so that thread block clusters fit
//! on them; fine units are as small as the device has them, and clusters of more than two blocks may
//! not fit. [`Granularity`](crate::resource::Granularity) chooses. A device's groups are all of one
//! granularity, since the driver does not tell how fine and coarse units overlap.
//!
//! **Structured splits.** From CUDA 13.1 on a request can say how many SMs of a group are scheduled
//! together, and whether a group may be filled up with others
//! ([`SplitRequest::coscheduled`](crate::SplitRequest::coscheduled) and its neighbours). The driver
//! meets such a request itself. This is built from the header and has not run on hardware yet.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, SplitRequest, sim_0_1::Sim};
//! let driver = Driver::simulated(&Sim::new("h200@13.1")?)?;
//! let sms = driver.device(0)?.resources().sm()?;
//! // One value for all groups, or one for each.
//! let request = SplitRequest::from([32, 20]).coscheduled([16, 8]).backfill([false, true]);
//! let split = sms.split(request)?;
//! assert_eq!(split.groups[1].sm_count(), 20);
//! # Ok(())
//! # }
//! ```
//!
//! # What a partition does not promise
//!
//! - **Not isolation of memory, caches or faults.** An illegal address in one partition ends the work
//!   of all (recorded on an H200).
//! - **Not concurrency.** Disjoint SMs may still wait for each other, through a queue that both use for
//!   example (cuda.h). From CUDA 13.1 on a partition can have
//!   [workqueues](crate::resource::WorkqueueResource) of its own.
//! - **Not a limit that other code sees.** `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` is the whole
//!   device's, so that libraries which size their grids by it do not know of the partition; occupancy
//!   calls do (recorded on an H200).
//! - **More SMs in two cases**: `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` and, on compute capability 9.x,
//!   modules with dynamic parallelism can widen it (cuda.h).
//!
//! And partitioning pays where jobs disturb each other, not where each needs every SM: measure it.
//! [`verify`](crate::verify) shows on which SMs and when each partition really ran.

//! Partitions: some of a GPU's SMs for one job, the rest for another, in one process.
//!
//! A GPU runs the blocks of a kernel on whichever of its streaming multiprocessors (SMs) are free. A
//! CUDA *green context* is a context whose kernels run on certain SMs only. A [`Partition`] is such a
//! context with a name and a stream: work that is submitted to its streams stays on its SMs, whatever
//! else the process does.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, StreamOptions, sim::Sim};
//!
//! // With a GPU: `let driver = Driver::load()?;`
//! let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! let device = driver.device(0)?;
//!
//! // 16 SMs for decode, the others for prefill.
//! let parts = device.partition(SplitRequest::new().group("decode", 16).rest("prefill"))?;
//! assert_eq!((parts["decode"].sm_count(), parts["prefill"].sm_count()), (16, 116));
//!
//! // Each comes with a stream, and makes more.
//! let stream = parts["decode"].stream();
//! let urgent = parts["decode"].create_stream(StreamOptions::default().priority(-1))?;
//! assert_eq!(urgent.context(), stream.context());
//! # Ok(())
//! # }
//! ```
//!
//! [`Device::partition`](crate::Device::partition) divides a device in one call. The partitions are found by
//! name or by position, or with a loop. A list of counts works too: `device.partition([16, 24])` gives `p0` and
//! `p1`. The SMs are free again when the last handle of a partition is gone: the [`Partition`], its clones, and
//! its streams. [`Partition::close`](crate::Partition::close) waits for the work and gives the SMs back at a moment
//! of the program's choice.
//!
//! A count makes a partition that is exclusive. `32..` and `..=100` make partitions that share some of their
//! SMs, with a floor that nobody else uses: [shares](super::shares). Groups and contexts, out of which a
//! partition is made, are the layer [below](super::ownership).
//!
//! # How a device is cut
//!
//! The driver cuts a device into equal groups, rounds their size up, and makes fewer of them than
//! asked without an error (recorded on an H200: 3 groups of 64 SMs give 2). So this crate cuts the
//! device once into its smallest *units*, and gives each partition some of them:
//!
//! | device | coarse units | fine units |
//! |---|---|---|
//! | H200, 132 SMs | 15 of 8 SMs, 1 of 12 | 66 of 2 |
//!
//! A partition has exactly the count that was asked for where units add up to it, and the next larger count
//! otherwise: [`share`](crate::Partition::share) is what was requested and
//! [`sm_count`](crate::Partition::sm_count) what was given. [`SmResource::dry_run`](crate::SmResource::dry_run)
//! returns what a request would get and takes nothing.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, sim::Sim};
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
//! **Coarse or fine.** The SMs of a coarse unit are scheduled together, so that thread block clusters fit
//! on them. Fine units are as small as the device allows, and clusters of more than two blocks may
//! not fit. [`Granularity`](crate::Granularity) chooses. At any time all groups of a device have one
//! granularity, because the driver does not report how fine and coarse units overlap.
//!
//! **Structured splits.** From CUDA 13.1 on a request can say how many SMs of a group are scheduled
//! together, and whether a group may be filled up with others
//! ([`SplitRequest::coscheduled`](crate::SplitRequest::coscheduled) and its neighbours). The driver
//! meets such a request itself. This is built from the header and has not run on hardware yet.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, SplitRequest, sim::Sim};
//! let driver = Driver::simulated(&Sim::new("h200@13.1")?)?;
//! // One value for all groups, or one for each.
//! let request = SplitRequest::from([32, 20]).coscheduled([16, 8]).backfill([false, true]);
//! let parts = driver.device(0)?.partition(request)?;
//! assert_eq!(parts[1].sm_count(), 20);
//! # Ok(())
//! # }
//! ```
//!
//! # What a partition does not promise
//!
//! - **No isolation of memory, caches or faults.** An illegal address in one partition ends the work
//!   of all (recorded on an H200).
//! - **No concurrency.** Work on disjoint SMs may still wait for each other, for example because it is in the
//!   same hardware queue (cuda.h). From CUDA 13.1 on a partition can have
//!   [workqueues](crate::WorkqueueResource) of its own.
//! - **No limit that other code sees.** `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` is still the whole
//!   device's. Libraries that size their grids by it do not know about the partition. The occupancy
//!   calls do (recorded on an H200).
//! - **Two cases in which it gets more SMs**: `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` and, on compute capability
//!   9.x, modules with dynamic parallelism can widen a partition (cuda.h).
//!
//! Partitioning pays where jobs disturb each other. Where each job needs every SM, running them one after the
//! other is faster. Measure it; [`verify`](crate::verify) shows on which SMs and when each partition ran.
//!
//! [`Partition`]: crate::Partition

//! Will it fit: what a partition holds at once, asked before anything is launched.
//!
//! Blocks that wait for each other must be on the SMs at the same time. One that finds no room waits
//! for the others to end, which wait for it: the launch hangs. On a whole device that happens to few;
//! a partition is smaller than what most code reckons with, and
//! `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` says 132 on a partition of 8 (recorded on an H200).
//!
//! [`Kernel::fit`](crate::Kernel::fit) says what there is room for, by the driver's account of that
//! very context:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, Error, LaunchConfig, Library, StreamOptions, sim_0_1::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! # let ptx = ".version 5.0 .target sm_52 .address_size 64 .visible .entry work() { ret; }";
//! # let kernel = Library::from_ptx(&device, ptx)?.kernel("work")?;
//! let group = device.resources().sm()?.split([16])?.groups.remove(0);
//! let partition = device.create_context(group)?;
//! let fit = kernel.fit(&partition, LaunchConfig::new(64, 1024))?;
//! println!("{fit}");
//! assert_eq!((fit.sm_count, fit.blocks_per_sm, fit.resident_blocks), (16, 2, 32));
//!
//! // A cooperative launch is held against it, and refused with the numbers.
//! let stream = partition.create_stream(StreamOptions::default())?;
//! let config = LaunchConfig::new(64, 1024).cooperative(true);
//! // SAFETY: the kernel has no parameters and reaches no memory.
//! match unsafe { stream.launch(&kernel, config, ()) } {
//!     Err(Error::DoesNotFit(told)) => assert_eq!(told.fit, fit),
//!     other => panic!("{other:?}"),
//! }
//! let config = LaunchConfig::new(fit.cooperative_blocks(), 1024).cooperative(true);
//! // SAFETY: as above.
//! unsafe { stream.launch(&kernel, config, ()) }?;
//! # Ok(())
//! # }
//! ```
//!
//! | for | ask | else |
//! |---|---|---|
//! | a cooperative launch | [`cooperative_blocks`](crate::fit::Fit::cooperative_blocks) | the driver refuses it, but takes it as a node of a graph, which then never ends (recorded on an H200) |
//! | clusters | [`clusters`](crate::fit::Fit::clusters), [`largest_cluster`](crate::fit::Fit::largest_cluster) | it depends on which SMs a partition has: the 12 that units of 8 leave over take no cluster of 4 (recorded on an H200) |
//! | a persistent kernel | [`persistent_grid`](crate::fit::Fit::persistent_grid) | what is sized for the device begins only when the first blocks leave |
//! | a collective | [`collective_blocks`](crate::fit::Fit::collective_blocks) | blocks spin on peers that have no room |
//!
//! [`Stream::launch`](crate::Stream::launch) holds cooperative launches and those in clusters against
//! their stream's context before anything is submitted, those that a capture takes too, and
//! [`Graph::retarget`](crate::Graph::retarget) holds the kernels of a graph against the partition that
//! they are to go to. A plain launch may have any number of blocks and is not looked at: whether its
//! blocks wait for each other, as those of a collective do, only the program knows.
//!
//! That a launch fits is asked once for a kernel, a context and a configuration, so that repeating a
//! launch is one driver call. Attributes of the kernel are therefore set before its first launch:
//! [`Stream::launch`](crate::Stream::launch) says what becomes of later changes.
//!
//! The numbers are those of SMs with nothing else on them. Work that ends makes room; work that stays,
//! such as another persistent kernel of the same partition, does not.

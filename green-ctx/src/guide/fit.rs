//! Will it fit: what a partition can hold at once, asked before anything is launched.
//!
//! Blocks that wait for each other must be on the SMs at the same time. A block that finds no room waits
//! for the others to end, and they wait for it: the launch hangs. On a whole device this is rare. But a
//! partition is smaller than most code expects, and `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` says 132
//! on a partition of 8 (recorded on an H200).
//!
//! [`Kernel::fit`](crate::Kernel::fit) asks the driver how much of a kernel there is room for in a context:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, Error, LaunchConfig, Library, sim::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! # let ptx = ".version 5.0 .target sm_52 .address_size 64 .visible .entry work() { ret; }";
//! # let kernel = Library::from_ptx(&device, ptx)?.kernel("work")?;
//! let parts = device.partition([16])?;
//! let fit = kernel.fit(parts[0].context(), LaunchConfig::new(64, 1024))?;
//! println!("{fit}");
//! assert_eq!((fit.sm_count, fit.blocks_per_sm, fit.resident_blocks), (16, 2, 32));
//!
//! // A cooperative launch that is too large is refused, with the numbers.
//! let stream = parts[0].stream();
//! let config = LaunchConfig::new(64, 1024).cooperative(true);
//! // SAFETY: the kernel has no parameters and reaches no memory.
//! match unsafe { stream.launch(&kernel, config, ()) } {
//!     Err(Error::DoesNotFit(refused)) => assert_eq!(refused.fit, fit),
//!     other => panic!("{other:?}"),
//! }
//! let config = LaunchConfig::new(fit.cooperative_blocks(), 1024).cooperative(true);
//! // SAFETY: as above.
//! unsafe { stream.launch(&kernel, config, ()) }?;
//! # Ok(())
//! # }
//! ```
//!
//! | for | use | or else |
//! |---|---|---|
//! | a cooperative launch | [`cooperative_blocks`](crate::Fit::cooperative_blocks) | the driver refuses the launch, but accepts it as a node of a graph, which then never ends (recorded on an H200) |
//! | clusters | [`clusters`](crate::Fit::clusters), [`largest_cluster`](crate::Fit::largest_cluster) | it depends on which SMs a partition has: the 12 that units of 8 leave over take no cluster of 4 (recorded on an H200) |
//! | a persistent kernel | [`persistent_grid`](crate::Fit::persistent_grid) | blocks of a grid that is sized for the device begin only when the first blocks leave |
//! | a collective | [`collective_blocks`](crate::Fit::collective_blocks) | blocks spin on peers that have no room |
//!
//! [`Stream::launch`](crate::Stream::launch) checks cooperative launches and launches in clusters against
//! their stream's context before anything is submitted, in captures too.
//! [`Graph::retarget`](crate::Graph::retarget) checks the kernels of a graph against the partition that
//! they move to. A plain launch may have any number of blocks and is not checked: whether its
//! blocks wait for each other, as those of a collective do, only the program knows.
//!
//! The driver is asked once for a kernel, a context and a configuration, so that repeating a
//! launch is one driver call. Set the kernel's attributes before its first launch;
//! [`Stream::launch`](crate::Stream::launch) says what becomes of later changes.
//!
//! # What else is on the SMs
//!
//! The numbers are for SMs with nothing else on them. Work that ends makes room. Work that stays,
//! such as another persistent kernel of the same partition, does not.
//!
//! The same holds for [shared](super::shares) SMs: they count in full, and a neighbour may be on them.
//! [`shared_sms`](crate::Fit::shared_sms) says how many there are. A cooperative grid waits until all of its
//! blocks have room and then begins as a whole (recorded on an H200 and an H100, driver 580.159.04). Blocks of a
//! plain launch that wait for each other take the SMs that are free and hold them; if a neighbour does the same,
//! neither ends. Give such kernels an exclusive count
//! ([when a burst hurts](super::shares#when-a-burst-hurts)).

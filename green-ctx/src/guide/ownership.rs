//! Ownership: the layer below partitions. Who owns SMs, and when they are free.
//!
//! The driver does not protect against overlap: it puts the same SMs into two contexts without an error
//! (recorded on an H200), and two libraries that each create "a context of 16 SMs" get the same 16.
//! Here a floor has one owner, as memory does.
//!
//! # Groups and contexts
//!
//! [`Device::partition`](crate::Device::partition) does three things, which a program can do itself:
//!
//! | step | call | gives |
//! |---|---|---|
//! | take SMs | [`SmResource::split`](crate::SmResource::split) | [`SmGroup`](crate::SmGroup)s |
//! | make a context of each group | [`Device::create_context`](crate::Device::create_context) | [`Context`](crate::Context)s |
//! | make a stream | [`Context::create_stream`](crate::Context::create_stream) | [`Stream`](crate::Stream)s |
//!
//! A group cannot be cloned. It moves into [`create_context`](crate::Device::create_context), comes back from
//! [`Context::close`](crate::Context::close), and returns its SMs when it is dropped.
//! [`create_partition`](crate::Device::create_partition) makes a [`Partition`](crate::Partition) of a group.
//! Use this layer to [add a workqueue](crate::SmGroup::with_workqueue), to divide a group
//! [again](crate::SmGroup::split), to start a [set of plans](super::plans), or where a failed
//! [`create_context`](crate::Device::create_context) should leave its group with the caller.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, SplitRequest, StreamOptions, sim::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! let split = device.resources().sm()?.split(SplitRequest::new().group("decode", 16).rest("prefill"))?;
//! for group in split.groups.into_iter().chain(split.remainder) {
//!     let context = device.create_context(group)?;
//!     let stream = context.create_stream(StreamOptions::default())?;
//!     println!("{stream:?} runs on {} SMs", context.sm_count()?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The ledger
//!
//! Each device has one ledger in a process, whichever [`Driver`](crate::Driver) or
//! [`Device`](crate::Device) handle is used. It knows of every unit whether it is free, in somebody's floor, or
//! shared, and by whom. A request that does not fit is an error that names them, and changes nothing:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, SplitRequest, sim::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! let held = device.partition(SplitRequest::new().group("decode", 100))?;
//! let error = device.partition([64]).expect_err("32 SMs are left");
//! assert_eq!(
//!     error.to_string(),
//!     "a group of 64 SMs does not fit: 32 of the device's 132 SMs are free, in units of 8; \
//!      a group of 32 would fit; the rest is held by decode (100 SMs)"
//! );
//! drop(held);
//! assert_eq!(device.resources().sm()?.free(), 132);
//! # Ok(())
//! # }
//! ```
//!
//! Groups share SMs only above their [floors](super::shares), or where a request is
//! [`overlapping`](crate::SplitRequest::overlapping): then each group has exactly its count and no floor.
//!
//! The ledger knows this process's groups and no others. Partitions that other libraries make
//! through the driver are not in it.
//!
//! # Handles
//!
//! Handles are cheap to clone, and each keeps alive what it depends on: a stream its context, a context its
//! group and the device's primary context, and all of them the driver. So a partition lasts until its last
//! stream is gone, and nothing that safe code can reach is destroyed.
//! [`Partition::close`](crate::Partition::close) and [`Context::close`](crate::Context::close) refuse while another
//! handle exists, wait for the work, and return the group.
//!
//! One raw handle is one object: [`Driver::find_stream`](crate::Driver::find_stream) and its
//! neighbours lead from a raw handle back to the object that owns it, and
//! [`Stream::from_raw_borrowed`](crate::Stream::from_raw_borrowed) takes the handles of other
//! libraries, with whatever keeps them alive.
//!
//! # When SMs are free
//!
//! Destroying a stream, or a green context, does not stop its work (recorded on an H200). So SMs whose work
//! is still running go back with a *fence*. Whoever gets them next for a floor gets them at once, and
//! what is submitted to the new partition's streams waits, on the device, for the work that was there before.
//! The host waits nowhere, except in [`close`](crate::Context::close). SMs that are only shared wait for nothing.
//!
//! The fence covers streams that are gone, the default stream, and [graphs](super::graphs) with nodes here
//! that streams of other partitions launched through this crate.
//!
//! If the driver refuses to record that work, the SMs are *quarantined*: they may be shared, but no floor gets
//! them until a later split has recorded the work, and the clean-up hook receives the error. One reason is a
//! foreign stream of the partition that is still being captured when the last handle goes; end the
//! capture first. [`NotEnoughSms::quarantined`](crate::NotEnoughSms::quarantined) counts them.
//!
//! Where the same SMs go back and forth between divisions, use [`plans`](super::plans): they give nothing back.
//!
//! # Contexts are used again
//!
//! Creating a green context takes about 800 µs and 4 to 5 MiB of device memory, which destroying it
//! does not give back, and waits for all work that runs on the device (measured and recorded on an
//! H200, driver 580.159.04). So the last handle of a partition leaves the driver's context to the
//! next partition of the same SMs, which gets it in less than 2 µs. Splits prefer SMs for which
//! such a context is kept.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, sim::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! for _ in 0..100 {
//!     device.partition([24])?;
//! }
//! let counts = device.context_counts();
//! assert_eq!((counts.created, counts.reused, counts.idle), (1, 99, 1));
//! assert_eq!(device.release_idle(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! [`set_idle_limit`](crate::Device::set_idle_limit) bounds how many are kept. A context of a device
//! that failed is never used again.

//! Ownership: SMs belong to somebody, and come back.
//!
//! The driver does not protect against overlap: the same SMs go into two contexts without an error
//! (recorded on an H200), and two libraries that each create "a context of 16 SMs" get the same 16.
//! Here SMs are owned as memory is.
//!
//! # The ledger
//!
//! Each device has one ledger a process, whichever [`Driver`](crate::Driver) or
//! [`Device`](crate::Device) handle is used. [`SmResource`](crate::resource::SmResource) describes;
//! [`split`](crate::resource::SmResource::split) takes units out of the ledger and gives
//! [`SmGroup`](crate::resource::SmGroup)s, which cannot be cloned. A group moves into
//! [`create_context`](crate::Device::create_context), comes back from
//! [`Context::close`](crate::context::Context::close), and returns its SMs when it is dropped.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, SplitRequest, sim_0_1::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! let sms = device.resources().sm()?;
//! let held = sms.split(SplitRequest::new().group("decode", 100))?;
//! let error = sms.split([64]).expect_err("32 SMs are left");
//! assert_eq!(
//!     error.to_string(),
//!     "a group of 64 SMs does not fit: 32 of the device's 132 SMs are free, in units of 8; \
//!      a group of 32 would fit; the rest is held by decode (100 SMs)"
//! );
//! drop(held);
//! assert_eq!(sms.free(), 132);
//! # Ok(())
//! # }
//! ```
//!
//! A group can be [split](crate::resource::SmGroup::split) into smaller ones, to any depth. Who wants groups
//! that share SMs says so with [`overlapping`](crate::SplitRequest::overlapping): they are met from the
//! whole device, and the ledger does not count them. They wait for nobody; whoever owns the SMs next waits for
//! what they left.
//!
//! The ledger knows this process's groups and nobody else's: partitions that other libraries make
//! through the driver are not in it.
//!
//! # Handles
//!
//! Handles are cheap to clone and keep what they stand on: a stream keeps its context, a context its
//! group and the device's primary context, everything its driver. So a partition lasts until its last
//! stream is gone, and nothing that safe code can reach is destroyed.
//! [`Context::close`](crate::context::Context::close) is the way to know: it refuses while another handle
//! lives, waits for the work, and returns the group.
//!
//! One raw handle is one object: [`Driver::find_stream`](crate::Driver::find_stream) and its
//! neighbours lead from a raw handle back to the object that owns it, and
//! [`Stream::from_raw_borrowed`](crate::Stream::from_raw_borrowed) takes in the handles of other
//! libraries, with whatever keeps them alive.
//!
//! # When SMs are free
//!
//! Destroying a stream, or a green context, does not stop its work (recorded on an H200). A group that
//! is dropped while its SMs are busy goes back with a *fence*: whoever takes those SMs next gets them
//! at once, and what is submitted to the new partition's streams waits, on the device, for the work
//! that was there before. Nobody waits on the host; [`close`](crate::context::Context::close) does.
//!
//! The fence stands for streams that are gone, for the default stream, and for [graphs](super::graphs) that
//! other partitions' streams launched through this crate and that have nodes here.
//!
//! Where the driver refuses to record that work, nobody gets the SMs: they are neither free nor held
//! until a later split has tried again with success, and the clean-up hook hears of it. A foreign stream
//! of the partition that is still being captured when the last handle goes is such a reason; end the
//! capture first. [`NotEnoughSms::quarantined`](crate::resource::NotEnoughSms::quarantined) counts them.
//!
//! Where the same SMs go back and forth between divisions, [`plans`](super::plans) do it without giving
//! anything back.
//!
//! # Contexts are used again
//!
//! Creating a green context takes about 800 µs and 4 to 5 MiB of device memory, which destroying it
//! does not give back, and waits for all work that runs on the device (measured and recorded on an
//! H200, driver 580.159.04). So the last handle of a partition leaves the driver's context to the
//! next partition of the same SMs, which gets it in less than 2 µs, and splits prefer SMs for which
//! one waits.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, sim_0_1::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! for _ in 0..100 {
//!     let group = device.resources().sm()?.split([24])?.groups.remove(0);
//!     device.create_context(group)?;
//! }
//! let counts = device.context_counts();
//! assert_eq!((counts.created, counts.reused, counts.idle), (1, 99, 1));
//! assert_eq!(device.release_idle(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! [`set_idle_limit`](crate::Device::set_idle_limit) bounds how many are kept. A context of a device
//! that failed is never handed out again.

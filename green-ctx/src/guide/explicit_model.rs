//! The explicit model: nothing depends on what is current on the thread.
//!
//! In CUDA a thread has a stack of contexts, and many calls mean the one on top: a stream is made in
//! it, an event, an allocation. Code that forgets to push, or to pop on an error, works on another
//! partition's SMs without anybody noticing.
//!
//! Here every operation is a method of what it is about. [`Context::create_stream`] makes a stream of
//! that context; [`Device::create_event`] an event that works on all of the device's streams;
//! [`Stream::launch`](crate::Stream::launch) runs a kernel on that stream. Where the driver's own call
//! wants a current context, as before CUDA 12.5 for a green context's stream, it is pushed for the call
//! and popped on every path, errors included.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, StreamOptions, sim_0_1::Sim, context::Context, event::EventOptions};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! # let mut groups = device.resources().sm()?.split([16, 32])?.groups;
//! # let (prefill, decode) = (device.create_context(groups.remove(1))?, device.create_context(groups.remove(0))?);
//! let producer = prefill.create_stream(StreamOptions::default())?;
//! let consumer = decode.create_stream(StreamOptions::default())?;
//!
//! // What is submitted to `consumer` from now on waits for the producer's work so far.
//! let ready = device.create_event(EventOptions::default())?;
//! producer.record(&ready)?;
//! consumer.wait(&ready)?;
//! // The same in one call, and for all streams that a context has.
//! consumer.wait_for(&producer)?;
//! decode.wait(&ready)?;
//!
//! // Nothing of this made anything current.
//! assert_eq!(Context::current(&driver)?, None);
//! # Ok(())
//! # }
//! ```
//!
//! # Meeting code that needs a current context
//!
//! [`Context::make_current`] returns a guard. While it lives the context is current on this thread, and
//! what another library does with the runtime's default stream runs in the partition. The guard cannot
//! leave its thread, keeps its context, and restores what was current before; one that ends out of
//! order is [told](crate::Error::GuardOrder) and changes nothing.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, sim_0_1::Sim, context::Context, stream::DefaultStream};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! # let context = device.create_context(device.resources().sm()?.split([16])?.groups.remove(0))?;
//! {
//!     let _current = context.make_current()?;
//!     // Some other library works here.
//!     assert_eq!(DefaultStream::Legacy.context(&driver)?, Some(context.clone()));
//! }
//! assert_eq!(Context::current(&driver)?, None);
//! # Ok(())
//! # }
//! ```
//!
//! The default streams (the handles 0, 1 and 2) are no streams but tokens for one of whatever context
//! is current when they are used. [`DefaultStream`] resolves them at each call; no
//! [`Stream`](crate::Stream) ever stands for one.
//!
//! # Threads
//!
//! All handles can be used on any thread. The header allows one thread at a time on a `CUgreenCtx` (up
//! to CUDA 13.4); calls on it are serialised here.
//!
//! A forked child cannot use a driver that its parent initialised: everything that makes handles is
//! [`Error::Forked`](crate::Error::Forked) there, and dropping does nothing.
//!
//! [`Context::create_stream`]: crate::context::Context::create_stream
//! [`Context::make_current`]: crate::context::Context::make_current
//! [`DefaultStream`]: crate::stream::DefaultStream
//! [`Device::create_event`]: crate::Device::create_event

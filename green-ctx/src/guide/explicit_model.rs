//! The explicit model: nothing depends on what is current on the thread.
//!
//! In CUDA a thread has a stack of contexts, and many calls use the one on top: they create a stream in
//! it, an event, an allocation. Code that forgets to push, or to pop after an error, silently works on
//! another partition's SMs.
//!
//! Here every operation is a method of the object that it works on. [`Context::create_stream`] makes a stream of
//! that context; [`Device::create_event`] an event that works on all of the device's streams;
//! [`Stream::launch`](crate::Stream::launch) runs a kernel on that stream. Where the driver's own call
//! needs a current context, as before CUDA 12.5 for a green context's stream, it is pushed for the call
//! and popped on every path, errors included.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Context, Driver, EventOptions, SplitRequest, sim::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! let parts = device.partition(SplitRequest::new().group("decode", 32..).group("prefill", ..=100))?;
//! let (producer, consumer) = (parts["prefill"].stream(), parts["decode"].stream());
//!
//! // Work submitted to `consumer` from now on waits for the producer's work so far.
//! let ready = device.create_event(EventOptions::default())?;
//! producer.record(&ready)?;
//! consumer.wait(&ready)?;
//! // The same in one call, and for all streams that a partition has now.
//! consumer.wait_for(producer)?;
//! parts["decode"].context().wait(&ready)?;
//!
//! // None of these calls made a context current.
//! assert_eq!(Context::current(&driver)?, None);
//! # Ok(())
//! # }
//! ```
//!
//! # Working with code that needs a current context
//!
//! [`Context::make_current`] returns a guard. While it exists, the context is current on this thread, and
//! work that another library submits to the runtime's default stream runs in the partition. The guard cannot
//! leave its thread, keeps its context alive, and restores what was current before. A guard that ends out of
//! order changes nothing and reports [an error](crate::Error::GuardOrder).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Context, DefaultStream, Driver, sim::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! # let parts = device.partition([16])?;
//! # let context = parts[0].context();
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
//! The default streams (the handles 0, 1 and 2) are not streams but tokens: they stand for a stream of the context
//! that is current when they are used. [`DefaultStream`] resolves them at each call; no
//! [`Stream`](crate::Stream) ever wraps one.
//!
//! # Threads
//!
//! All handles can be used on any thread. The header allows one thread at a time on a `CUgreenCtx` (up
//! to CUDA 13.4); this crate serialises the calls.
//!
//! A forked child cannot use a driver that its parent initialised: everything that makes handles is
//! [`Error::Forked`](crate::Error::Forked) there, and dropping does nothing.
//!
//! [`Context::create_stream`]: crate::Context::create_stream
//! [`Context::make_current`]: crate::Context::make_current
//! [`DefaultStream`]: crate::DefaultStream
//! [`Device::create_event`]: crate::Device::create_event

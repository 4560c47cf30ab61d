//! Escapes: finding work that runs outside of its partition.
//!
//! A library that submits to the default stream or to a stream of its own pool, or launches a graph that was
//! captured elsewhere, gets no error. Its work runs on all SMs, on [floors](super::shares) too.
//! There are three ways to find such work:
//!
//! | | looks at | work outside of its partition |
//! |---|---|---|
//! | [`Watch`](crate::Watch) | streams, contexts and graphs that the program passes to it, and the launches of a thread | is collected, with its name and location |
//! | [`Driver::check_launches`](crate::Driver::check_launches) | every launch through this crate, on any thread | is refused, and not launched |
//! | [`verify`](crate::verify) | the partitions themselves, with a kernel that writes down its SMs | makes the report fail |
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, LaunchConfig, Library, SplitRequest, StreamOptions, Watch, sim::Sim};
//! # let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! # let device = driver.device(0)?;
//! # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
//! # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
//! let parts = device.partition(SplitRequest::new().group("decode", 16))?;
//! let pooled = device.primary_context()?.create_stream(StreamOptions::default())?;
//!
//! let watch = Watch::new(parts["decode"].context());
//! assert!(!watch.stream("sampling", &pooled)?);
//! {
//!     let _watching = watch.launches();
//!     // SAFETY: the kernel takes no parameters.
//!     unsafe { pooled.launch(&step, LaunchConfig::new(64, 128), ()) }?;
//! }
//! for escape in watch.escapes() {
//!     println!("{escape}");
//! }
//! assert_eq!(
//!     watch.escapes()[1].to_string(),
//!     "step escapes decode: a stream of the primary context, 132 SMs of primary (device 0)"
//! );
//!
//! driver.check_launches(true);
//! // SAFETY: as above.
//! let refused = unsafe { pooled.launch(&step, LaunchConfig::new(64, 128), ()) };
//! assert_eq!(
//!     refused.expect_err("it is in no partition").to_string(),
//!     "step escapes every partition: a stream of the primary context, 132 SMs of primary (device 0)"
//! );
//! # Ok(())
//! # }
//! ```
//!
//! # What each one finds
//!
//! **A watch** is for one partition and one section of a program. It finds default-stream tokens, which
//! stand for a stream of whatever context is current ([`raw_stream`](crate::Watch::raw_stream)), streams of
//! the primary context, streams of other partitions, and [graphs](super::graphs), with each node that is
//! elsewhere. Pass it the streams that other libraries use: it cannot find them by itself. It keeps the first
//! [1000](crate::Watch::MAX_ESCAPES) escapes and [counts](crate::Watch::omitted_escapes) the rest; empty
//! a long-lived watch with [`take_escapes`](crate::Watch::take_escapes).
//!
//! **Checked launches** are for debugging. A launch is refused if its stream is in no partition, if the stream
//! is elsewhere than its object says, or if a graph's nodes are elsewhere than the stream. That
//! costs a few driver calls each time. While nothing is checked, it costs a launch one branch.
//!
//! Neither looks at launches into a stream that is being captured, because a graph can be captured anywhere and
//! then moved. It is judged when it is launched, by the contexts of its nodes;
//! [`Watch::graph`](crate::Watch::graph) does the same at any time.
//!
//! **Verification** proves that the driver's partitions keep to their shares: each runs on as many SMs as it was
//! given, and nobody else on its floor. It runs a kernel of its own, and says nothing about the program's kernels.
//!
//! # What none of them finds
//!
//! - **Launches that do not go through this crate**, unless their stream or graph is passed to a watch.
//! - **Copies and memsets in graphs**, before CUDA 13.2: the driver reports the contexts of kernels only, and
//!   [`audit`](crate::Graph::audit) says so. With 13.2 this has not run on hardware yet. In a graph
//!   that was [moved](crate::Graph::retarget) they have moved with the kernels.
//! - **The bodies of conditional nodes**: the driver does not report them.
//! - **Changes through a graph's raw handle.** A launch is judged by where the graph's nodes were
//!   when the object was made; [`Watch::graph`](crate::Watch::graph) asks the driver again.
//! - **Copies and memsets that are submitted to a stream**, which are not launches. They run where their
//!   stream is.

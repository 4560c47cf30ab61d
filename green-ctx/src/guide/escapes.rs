//! Escapes: finding work that does not run in the partition that it should be in.
//!
//! Nothing fails where a library submits to the default stream, to one of its own pool, or launches a
//! graph that was captured elsewhere: the work runs on all SMs, beside what the partition was to protect.
//! There are three ways to find out:
//!
//! | | looks at | what is outside |
//! |---|---|---|
//! | [`Watch`](crate::watch::Watch) | streams, contexts and graphs that it is handed, and the launches of a thread | is collected, with its name and place |
//! | [`Driver::check_launches`](crate::Driver::check_launches) | every launch through this crate, on any thread | is refused, and not launched |
//! | [`verify`](crate::verify) | the partitions themselves, with a kernel that writes down its SMs | fails the report |
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, LaunchConfig, Library, SplitRequest, StreamOptions, sim_0_1::Sim, watch::Watch};
//! # let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! # let device = driver.device(0)?;
//! # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
//! # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
//! let request = SplitRequest::new().group("decode", 16);
//! let decode = device.create_context(device.resources().sm()?.split(request)?.groups.remove(0))?;
//! let pooled = device.primary_context()?.create_stream(StreamOptions::default())?;
//!
//! let watch = Watch::new(&decode);
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
//! stand for a stream of whatever context is current ([`raw_stream`](crate::watch::Watch::raw_stream)), streams of
//! the primary context, streams of other partitions, and [graphs](super::graphs), with each node that is
//! elsewhere. Hand it the streams that other libraries use: it cannot find them by itself. It keeps the first
//! [1000](crate::watch::Watch::MAX_ESCAPES) escapes and [counts](crate::watch::Watch::omitted_escapes) the rest; a watch
//! that lives long is emptied with [`take_escapes`](crate::watch::Watch::take_escapes).
//!
//! **Checked launches** are for debugging. A launch is refused on a stream that is in no partition, on one
//! that is elsewhere than its object says, and of a graph whose nodes are elsewhere than the stream. That
//! costs a few questions to the driver each time; while nothing is checked, a launch pays for one branch.
//!
//! Neither looks at launches into a stream that is being captured. A graph can be captured anywhere and
//! then moved, and it is judged when it is launched: by the contexts of its nodes, in the same way by
//! [`Watch::graph`](crate::watch::Watch::graph) and at each launch.
//!
//! **Verification** proves that the driver's partitions are what they say: disjoint, and as large as they
//! should be. It runs a kernel of its own, and says nothing about the program's.
//!
//! # What none of them finds
//!
//! - **Launches that do not go through this crate**, unless their stream or graph is handed to a watch.
//! - **Copies and memsets in graphs**, before CUDA 13.2: the driver reports the contexts of kernels only, and
//!   [`audit`](crate::Graph::audit) says so. With 13.2 it has not run on hardware yet. Those in a graph
//!   that was [moved](crate::Graph::retarget) have been moved with the kernels.
//! - **What conditional nodes decide about**: the driver does not report it.
//! - **What was changed behind a graph's object.** A launch is judged by where the graph's nodes were
//!   when the object was made; [`Watch::graph`](crate::watch::Watch::graph) asks anew.
//! - **Copies and memsets that are submitted to a stream**, which are no launches. They are where their
//!   stream is.

//! Plans: the same SMs, divided in one way now and in another a moment later.
//!
//! What a job needs changes faster than a context can be made, which takes 800 µs and waits for all work
//! of the device (recorded on an H200, driver 580.159.04). A [`PlanSet`] owns the SMs of one group.
//! It has the contexts and streams of several *plans* ready, one of which is active, and switches between
//! them:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, PlanSet, PlanRequest, SplitRequest, sim_0_1::Sim, plan::SwitchOptions};
//!
//! let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! let all = device.resources().sm()?.split(SplitRequest::new().rest("elastic"))?.remainder;
//! let plan = |name, decode| {
//!     PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("prefill"))
//! };
//! let set = PlanSet::new(all.ok_or("no SMs are free")?, plan("day", 16))?;
//! let night = set.prepare(plan("night", 64))?;
//!
//! set.switch(&night, SwitchOptions::default())?;
//! // Who submits something asks for the partition each time. This takes no lock.
//! let active = set.active();
//! let decode = active.partition("decode").ok_or("every plan has one")?;
//! assert_eq!((active.name(), decode.sm_count()), ("night", 64));
//! let stream = decode.stream();
//! # let _ = stream;
//! # Ok(())
//! # }
//! ```
//!
//! [`prepare`](crate::PlanSet::prepare) makes the contexts that no other plan has, at that price:
//! prepare plans before there is work to disturb. In the
//! [background](crate::PlanSet::prepare_in_background) it does not hold the caller up, but waits for
//! the device's work all the same.
//!
//! # What a switch does
//!
//! 1. Each partition that gives up SMs records its work in one event.
//! 2. Each partition that takes some of them over waits for those events, on the device.
//! 3. The new plan is the active one.
//!
//! Nothing is made, and the host waits for nothing. On an H200 a switch between plans of two partitions
//! takes 1.3 µs with one stream a partition, 2 µs with 8 and 10 µs with 128 (driver 580.159.04). A partition of the same SMs in both plans is the
//! same one, with the same streams: it waits for nothing, and nobody waits for it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, LaunchConfig, Library, PlanSet, PlanRequest, SplitRequest, sim_0_1::Sim, plan::SwitchOptions};
//! # let sim = Sim::new("h200@13.0")?;
//! # let device = Driver::simulated(&sim)?.device(0)?;
//! # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
//! # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
//! # let all = device.resources().sm()?.split(SplitRequest::new().rest("all"))?.remainder;
//! # let plan = |name, decode| {
//! #     PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("prefill"))
//! # };
//! # let set = PlanSet::new(all.ok_or("no SMs are free")?, plan("day", 16))?;
//! # let night = set.prepare(plan("night", 64))?;
//! let launch_on = |name: &str| -> Result<(), Box<dyn std::error::Error>> {
//!     let active = set.active();
//!     let stream = active.partition(name).ok_or("no such partition")?.stream();
//!     // SAFETY: the kernel takes no parameters.
//!     Ok(unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }?)
//! };
//! launch_on("prefill")?;
//! set.switch(&night, SwitchOptions::default())?;
//! // It has SMs that were prefill's, and comes after the work on them.
//! launch_on("decode")?;
//! let launches = sim.launches();
//! assert!(launches[0].happens_before(&launches[1]));
//! # Ok(())
//! # }
//! ```
//!
//! A plan may leave SMs unused. Their old work is not forgotten: whichever later plan takes them waits.
//!
//! # What takes part
//!
//! Every stream of a partition that an object of this crate stands for: its first one, those made later,
//! those taken in [from raw handles](crate::Stream::from_raw_borrowed), its default stream, and the work of
//! streams that are gone. Graphs too that are launched elsewhere and have nodes in the partition. Not so:
//!
//! - **Streams that only other libraries know.** Their work is waited for when the partition gives up its
//!   SMs, but what they are given does not wait when it comes to them. Take them in.
//! - **Work for a plan that is no longer active.** Who keeps a partition or a stream and goes on with it
//!   after the switch works beside the new plan, on the same SMs, and nothing orders the two.
//!
//! # Captures
//!
//! Recording a partition and making it wait invalidate captures of its streams. So a switch asks the streams
//! of each partition that gives up SMs, or has to wait for some, before it does either, and refuses. A
//! partition that keeps its SMs may be captured meanwhile.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, PlanSet, PlanRequest, SplitRequest, sim_0_1::Sim, graph::CaptureMode, plan::{PlanError, SwitchOptions}};
//! # let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! # let all = device.resources().sm()?.split(SplitRequest::new().rest("all"))?.remainder;
//! # let plan = |name, decode| {
//! #     PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("prefill"))
//! # };
//! # let set = PlanSet::new(all.ok_or("no SMs are free")?, plan("day", 16))?;
//! # let night = set.prepare(plan("night", 64))?;
//! # let stream = set.active().partitions()[0].stream().clone();
//! let captured = stream.capture(CaptureMode::default(), || {
//!     set.switch(&night, SwitchOptions::default())
//! });
//! assert!(matches!(captured, Err(PlanError::Capturing { .. })));
//! assert_eq!(set.active().name(), "day");
//! # Ok(())
//! # }
//! ```
//!
//! A capture that another thread begins in the middle of a switch may be overlooked: let a lock of the
//! program's keep the two apart, or capture on streams of the primary context and
//! [move](super::graphs) the graph.
//!
//! # Draining, and switching without fences
//!
//! With [`SwitchOptions::drain`] the host waits first, before the switch changes anything, until the active
//! plan's work is done, for at most the time that it is given. After that the error is [`PlanError::NotDrained`], and
//! the switch has changed nothing. It is refused while any stream of that plan is being captured. Other threads
//! may switch while one waits, which then waits for the plan that they made active.
//!
//! Without [fences](crate::plan::SwitchOptions::fence) the new plan's work begins beside the old one's, on the
//! same SMs, and memory that both use is the program's affair. The next switch with fences makes up for it.
//!
//! # Retiring
//!
//! [`retire`](crate::PlanSet::retire) forgets a plan that is not the active one. Its contexts go when
//! nobody has a partition or a stream of them any more, and are
//! [used again](super::ownership#contexts-are-used-again). The SMs stay the set's until it is gone, and
//! every partition and stream that somebody has kept.
//!
//! [`PlanSet`]: crate::PlanSet
//! [`PlanError::NotDrained`]: crate::plan::PlanError::NotDrained
//! [`SwitchOptions::drain`]: crate::plan::SwitchOptions::drain

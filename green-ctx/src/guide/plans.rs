//! Plans: the same SMs, divided in one way now and in another a moment later.
//!
//! What a job needs changes faster than a context can be made, which takes 800 µs and waits for all work
//! of the device (recorded on an H200, driver 580.159.04). A [`PlanSet`] owns the SMs of one group.
//! It has the partitions of several *plans* ready, one of which is active, and switches between them:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, PlanRequest, PlanSet, SplitRequest, SwitchOptions, sim::Sim};
//!
//! // With a GPU: `let driver = Driver::load()?;`
//! let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! let device = driver.device(0)?;
//! let all = device.resources().sm()?.split(SplitRequest::new().rest("elastic"))?.remainder;
//! let plan = |name, decode| {
//!     PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("prefill"))
//! };
//! let set = PlanSet::new(all.ok_or("no SMs are free")?, plan("day", 16))?;
//! let night = set.prepare(plan("night", 64))?;
//!
//! set.switch(&night, SwitchOptions::default())?;
//! // Ask for the partition before each submission. This takes no lock.
//! let active = set.active();
//! let decode = active.partition("decode").ok_or("every plan has one")?;
//! assert_eq!((active.name(), decode.sm_count()), ("night", 64));
//! let stream = decode.stream();
//! # let _ = stream;
//! # Ok(())
//! # }
//! ```
//!
//! A plan's partitions are of the same type as a device's ([`Partition`](crate::Partition)), and take the same
//! [shares](super::shares#shares-in-plans).
//!
//! [`prepare`](crate::PlanSet::prepare) makes the contexts that no other plan has, which costs what making
//! contexts costs: prepare plans before there is work to disturb.
//! [`prepare_in_background`](crate::PlanSet::prepare_in_background) does not block the caller, but the driver
//! still waits for the device's work.
//!
//! # What a switch does
//!
//! 1. Each partition that gives up SMs records its work in one event.
//! 2. Each partition whose floor takes some of them over waits for those events, on the device. So does a
//!    partition whose name had other SMs before.
//! 3. The new plan becomes the active one.
//!
//! A switch creates nothing, and the host does not wait. On an H200 a switch between plans of two partitions
//! takes 1.3 µs with one stream a partition, 2 µs with 8 and 10 µs with 128 (driver 580.159.04). A
//! partition of the same SMs in both plans is the same object with the same streams. If it also has the same
//! name and its floor does not grow, it waits for nothing, and nobody waits for it. Partitions that
//! [share](super::shares#shares-in-plans) SMs do not wait for each other.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, LaunchConfig, Library, PlanSet, PlanRequest, SplitRequest, SwitchOptions, sim::Sim};
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
//! // It has SMs that were prefill's, and runs after the work on them.
//! launch_on("decode")?;
//! let launches = sim.launches();
//! assert!(launches[0].happens_before(&launches[1]));
//! # Ok(())
//! # }
//! ```
//!
//! A plan may leave SMs unused. Their old work is not forgotten: whichever later plan has them in a floor waits.
//!
//! # What takes part
//!
//! A switch orders every stream of a partition that an object of this crate stands for: the first one, those
//! made later, those taken [from raw handles](crate::Stream::from_raw_borrowed), the default stream, and the
//! work of streams that are gone. It also orders graphs that were launched elsewhere and have nodes in the
//! partition. Two things do not take part:
//!
//! - **Streams that only other libraries know.** The switch waits for the work that they already have, but work
//!   that they submit later does not wait when the partition takes SMs over. Wrap them with
//!   [`from_raw_borrowed`](crate::Stream::from_raw_borrowed).
//! - **Work for a plan that is no longer active.** If a program keeps a partition or a stream of a former plan and
//!   submits to it, that work runs concurrently with the new plan's on the same SMs.
//!
//! # Captures
//!
//! Recording a partition and making it wait would invalidate captures of its streams. So before a switch changes
//! anything, it looks for captures in the streams of each partition that it would record or make wait, and
//! refuses if there is one. A partition that it leaves alone may be captured meanwhile.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{CaptureMode, Driver, PlanSet, PlanRequest, PlanError, SplitRequest, SwitchOptions, sim::Sim};
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
//! A capture that another thread begins in the middle of a switch may be overlooked. Keep the two apart with a
//! lock, or capture on streams of the primary context and [move](super::graphs) the graph.
//!
//! # Draining, and switching without fences
//!
//! With [`SwitchOptions::drain`] the host first waits until the active plan's work is done, for at most the given
//! time. After that the error is [`PlanError::NotDrained`], and the switch has changed nothing. It is refused while
//! any stream of that plan is being captured. Other threads may switch while one drains; the drain then waits
//! for the plan that they made active.
//!
//! Without [fences](crate::SwitchOptions::fence) the new plan's work begins beside the old plan's, on the
//! same SMs, and the program has to order accesses to memory that both use. The next switch with fences makes up
//! for it.
//!
//! # Retiring
//!
//! [`retire`](crate::PlanSet::retire) forgets a plan that is not the active one. Its contexts go when
//! nobody has a partition or a stream of them any more, and are
//! [used again](super::ownership#contexts-are-used-again). The SMs stay with the set until the set is gone, and
//! with it every partition and stream that the program kept. A plan's partition cannot be
//! [closed](crate::Partition::close), since the set's other plans use its SMs.
//!
//! [`PlanSet`]: crate::PlanSet
//! [`PlanError::NotDrained`]: crate::PlanError::NotDrained
//! [`SwitchOptions::drain`]: crate::SwitchOptions::drain

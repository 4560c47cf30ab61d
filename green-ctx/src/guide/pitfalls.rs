//! Pitfalls: what surprises people, why it is so, and when not to partition at all.
//!
//! | you see | read |
//! |---|---|
//! | `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION` (915) | [error 915](#error-915) |
//! | another count than you asked for | [rounding](#rounding) |
//! | no SMs are free, although nobody owns them | [one share blocks later floors](#one-n-blocks-every-later-floor) |
//! | work on all SMs | [default streams](#default-streams-are-outside), [graphs](#a-graph-stays-where-it-was-captured), [libraries](#libraries-read-132-sms) |
//! | a kernel that never ends | [persistent grids](#a-persistent-grid-on-shared-sms) |
//! | a neighbour that still slows you down | [what is not divided](#memory-and-caches-are-not-divided) |
//! | memory that does not come back | [the leak](#each-context-costs-4-to-5-mib-for-good) |
//! | a capture that fails for no reason of its own | [captures](#captures-of-other-threads) |
//!
//! # Error 915
//!
//! The driver answers `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION` for a minimum above the device's count,
//! for groups that are split again, for pieces of two different levels in one descriptor, and for counts
//! that somebody changed by hand (all recorded on an H200). A structured split (13.1) does not round, and
//! answers so for a count that does not fit the alignment (cuda.h).
//!
//! Requests of this crate are checked before the driver is asked: too many SMs are
//! [`Error::NotEnoughSms`](crate::Error::NotEnoughSms), with the counts that fit and the names of those who
//! hold the rest. A group can be [split again](crate::resource::SmGroup::split): the crate makes the context that the
//! driver wants for it. Where 915 comes all the same, most often for a structured request, the message says
//! what the driver requires; [`dry_run`](crate::resource::SmResource::dry_run) shows what fits.
//!
//! # Rounding
//!
//! The smallest piece of a device of compute capability 9.0 and newer is 8 SMs. An H200 has 132, which makes
//! 15 units of 8 and an odd one of 12 (recorded). So most counts are multiples of 8, and one partition can
//! have 4 more. Floors round up, ceilings down, and a partition reports what it asked for and what it has:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, Share, sim_0_1::Sim};
//! # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
//! let sms = device.resources().sm()?;
//! let given = |share: Share| -> green_ctx::Result<(u32, u32)> {
//!     let dry = sms.dry_run([share])?;
//!     Ok((dry.groups[0].floor, dry.groups[0].sm_count))
//! };
//! assert_eq!(given(Share::from(13))?, (16, 16)); // up: a floor
//! assert_eq!(given(Share::from(20))?, (20, 20)); // 8 and the odd 12
//! assert_eq!(given(Share::from(..=63))?, (0, 60)); // down: a ceiling
//! // No whole number of units lies in between. The message names the neighbours.
//! let error = given(Share::from(17..=18)).expect_err("there is no such count");
//! assert!(error.to_string().contains("16 or 20 would do"));
//! # Ok(())
//! # }
//! ```
//!
//! [`Granularity::Fine`](crate::resource::Granularity::Fine) cuts an H200 into 66 units of 2 instead; clusters of more
//! than two blocks may not fit then. No cluster of 4 fits on the odd unit alone (recorded on an H200). Other
//! devices have other units: read counts back, and never write 8 into a program.
//!
//! Neighbouring counts can differ by more than their SMs. A context of 120 SMs loses 12 % on a matrix product
//! against 132, since its tiles need one more wave (measured on an H200). Measure the counts around the one
//! that you have in mind.
//!
//! # One `n..` blocks every later floor
//!
//! An unbounded share (`32..`, `..`) may use every SM that is in nobody's floor. While it lives, none of those
//! can become a floor, since work may be running there at any time:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, sim_0_1::Sim};
//! # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
//! let decode = device.partition(SplitRequest::new().group("decode", 32..))?;
//! assert!(device.partition(SplitRequest::new().group("late", 16)).is_err());
//! drop(decode);
//!
//! // Ask for everything in one request,
//! let parts = device.partition(SplitRequest::new().group("decode", 32..).group("late", 16))?;
//! assert_eq!((parts["decode"].sm_count(), parts["late"].floor()), (116, 16));
//! drop(parts);
//!
//! // or bound the ceiling.
//! let decode = device.partition(SplitRequest::new().group("decode", 32..=64))?;
//! let late = device.partition(SplitRequest::new().group("late", 16))?;
//! assert!(late["late"].shared_with().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! [`DryRun::free_for_floors`](crate::resource::DryRun::free_for_floors) says beforehand what would be left. Where needs
//! change over time, use [plans](super::plans).
//!
//! # Default streams are outside
//!
//! The stream handles 0, 1 and 2 stand for a stream of whatever context is current. Unless a partition is
//! [made current](crate::context::Context::make_current), that is the primary context, which has all SMs. Streams from
//! another library's pool are mostly the primary context's too. And nothing orders a partition's stream with
//! the default stream: it is non-blocking, since `cuGreenCtxStreamCreate` makes no others (recorded on an
//! H200). What depends on work there waits for it by an [event](crate::Stream::wait).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, sim_0_1::Sim, stream::DefaultStream, watch::Watch};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! let parts = device.partition(SplitRequest::new().group("decode", 16))?;
//! let watch = Watch::new(parts["decode"].context());
//! // SAFETY: the token needs no stream that is alive.
//! assert!(!unsafe { watch.raw_stream("a library", DefaultStream::Legacy.as_raw()) }?);
//!
//! let _current = parts["decode"].context().make_current()?;
//! // SAFETY: as above.
//! assert!(unsafe { watch.raw_stream("a library", DefaultStream::Legacy.as_raw()) }?);
//! # Ok(())
//! # }
//! ```
//!
//! [`escapes`](super::escapes) has the ways to find such work.
//!
//! # A graph stays where it was captured
//!
//! Its nodes have the contexts of the streams that were captured, and run there from whatever stream the graph
//! is launched (recorded on an H200). PyTorch captures on a stream of its own unless it is given one: inside
//! of a pushed green context or a stream guard, `torch.cuda.graph(g)` and
//! `torch.compile(mode="reduce-overhead")` still captured on all 132 SMs (recorded with torch 2.11).
//! [`Graph::audit`](crate::Graph::audit) says where nodes run, [`Graph::retarget`](crate::Graph::retarget)
//! [moves](super::graphs) them.
//!
//! # Libraries read 132 SMs
//!
//! `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` is the whole device's, with a partition current too (recorded on
//! an H200). A library that sizes its grids by it launches too many blocks: correct, but in more waves than its
//! heuristics count on. Occupancy calls and cooperative launches do respect the partition (recorded). Give the
//! library [`Partition::sm_count`](crate::Partition::sm_count) where it takes a count: cuBLAS does
//! (`cublasSetSmCountTarget`). For your own kernels ask [`Kernel::fit`](crate::Kernel::fit).
//!
//! # A persistent grid on shared SMs
//!
//! Blocks that wait for each other must all be on SMs at once. On the SMs of a floor nobody else is; on shared
//! SMs somebody may hold the room that the last block needs. A cooperative grid then begins as a whole, later
//! (recorded on an H200 and an H100). Blocks of a plain launch that spin on each other hold their SMs
//! meanwhile, and wait for ever where the others stay too. And a grid that fills every SM and stays leaves the
//! sharers no room. Such a job wants a count, `n`, and no `n..`:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, LaunchConfig, Library, SplitRequest, sim_0_1::Sim};
//! # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
//! # let ptx = ".version 5.0 .target sm_52 .address_size 64 .visible .entry work() { ret; }";
//! # let kernel = Library::from_ptx(&device, ptx)?.kernel("work")?;
//! let parts = device.partition(SplitRequest::new().group("decode", 32..).group("prefill", 64))?;
//! let shared_sms = |name: &str| -> green_ctx::Result<u32> {
//!     Ok(kernel.fit(parts[name].context(), LaunchConfig::new(64, 1024))?.shared_sms)
//! };
//! assert_eq!(shared_sms("prefill")?, 0);
//! // 36 SMs above the floor, which sharers may take.
//! assert_eq!(shared_sms("decode")?, 36);
//! # Ok(())
//! # }
//! ```
//!
//! # Memory and caches are not divided
//!
//! Partitions divide SMs. They share the L2 cache, the memory's bandwidth and its capacity, and they share
//! faults: an illegal address in one ends the work of all (recorded on an H200). A memory-bound job slows its
//! neighbours down on whichever SMs it runs. Fewer SMs limit how much of the bandwidth it takes, roughly: on an
//! H200 a copy on 8 SMs is over 5 times slower than on all of them, on 32 over 1.5 times (recorded). And
//! disjoint SMs promise neither concurrency nor forward progress (cuda.h): two streams may still wait for each
//! other in a queue that both use.
//!
//! # One green context, many threads
//!
//! A `CUgreenCtx` may be used by one thread at a time, and the driver does not synchronise (cuda.h; up to 13.4
//! it adds that a green context is current on one thread at most). Every handle of this crate can be used on
//! any thread: calls on a green context are serialised. That ends where you pass raw handles on: do not call
//! the driver with [`as_raw_green`](crate::context::Context::as_raw_green) while another thread uses the same partition.
//!
//! # Each context costs 4 to 5 MiB for good
//!
//! Creating a green context takes that much device memory, and destroying it does not give it back: 2000 cycles
//! lost 8000 MiB (recorded on an H200; PyTorch's and cuda.core's contexts lose as much). So this crate destroys
//! none that it may need again:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, sim_0_1::Sim};
//! # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
//! for _ in 0..100 {
//!     device.partition([16, 32])?;
//! }
//! assert_eq!(device.context_counts().created, 2);
//! # Ok(())
//! # }
//! ```
//!
//! So the number of different sets of SMs bounds the memory. A program that keeps asking for new counts keeps
//! making new sets: settle on a few counts, or prepare [plans](super::plans).
//! [`Device::release_idle`](crate::Device::release_idle) destroys the contexts that wait to be used again; the
//! driver keeps their memory.
//!
//! # Captures of other threads
//!
//! While a thread captures in the mode [`Global`](crate::graph::CaptureMode::Global), the default, calls that cannot be
//! captured fail on every thread, and invalidate its capture. Recording a whole context, or making it wait,
//! invalidates the captures of its streams, foreign ones included (recorded on an H200).
//! [`Context::record`](crate::context::Context::record) and [`wait`](crate::context::Context::wait) do that. A
//! [switch of plans](super::plans#captures) asks first and is refused
//! ([`PlanError::Capturing`](crate::plan::PlanError::Capturing)), but it may overlook a capture that begins meanwhile.
//! Capture while nothing switches, or on streams of the primary context, and move the graph.
//!
//! # When not to partition
//!
//! Partitioning pays where jobs disturb each other, not where each needs every SM. An addition of 256 × 256
//! numbers beside 8192³ products takes 1.55 ms at most, 99 times of 100, on a plain stream and at high priority
//! alike, and 26 µs in a partition of 16 SMs; the products lose 12 %. A product beside an elementwise kernel over
//! 8192² numbers takes 1.54 ms one after the other, and 1.79 ms in the best split of disjoint partitions (both
//! measured on an H200).
//!
//! | | divides | among | isolates | changes while work runs |
//! |---|---|---|---|---|
//! | one stream after another | nothing | one process | | |
//! | stream priorities | who goes first | one process | | at stream creation |
//! | **partitions** | SMs | one process | SMs of floors | [plans](super::plans), in microseconds |
//! | MPS | SMs, by a share of threads | processes | address spaces, not faults | per process |
//! | MIG | SMs, cache, memory | processes, each on a device of its own | faults too | by making other instances |
//!
//! **One stream.** Use it where each job fills the device: two jobs that both need every SM take no less time
//! beside each other. It is what every partitioning has to beat, so measure it first.
//!
//! **Priorities.** Use them where the long job consists of many short blocks: beside a kernel of 16 waves,
//! an addition at high priority takes 59 µs at most, 99 times of 100, against 1.46 ms without, and the load
//! loses nothing (measured on an H200). They preempt no running block (NVIDIA's documentation): beside blocks
//! that stay for 1.5 ms, and beside the product above, they gained nothing.
//!
//! **Partitions.** Use them in one process, for short jobs with tight bounds beside long ones, and for jobs of
//! which one is bound by memory and the other by arithmetic. Prefer a floor and a cap (`32..` beside `..=100`)
//! to walls: a rigid wall wastes what the neighbour leaves idle. An 8B decoder with prompts arriving at 6/s gave
//! 2472 tokens/s in disjoint partitions, 3168 with a floor and a cap, and 3080 with chunked prefill and no
//! partitions at all (measured on an H200).
//!
//! **MPS.** Use it where the jobs are processes, each too small to fill the device; partitions end at the
//! process. Its clients have address spaces of their own, but a fatal fault of one ends all on that GPU
//! (NVIDIA's documentation). `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` can widen a green context (cuda.h): leave it
//! unset, or at 100, where a client makes partitions.
//!
//! **MIG.** Use it for tenants who must not see or disturb each other: each instance has its own SMs, cache and
//! memory, and a fault stays within (NVIDIA's documentation). It comes in a few fixed sizes, and each instance
//! acts as a device of its own.

//! Graphs: captured once, launched in any partition.
//!
//! A captured graph stays where it was captured. Each node that uses SMs has the context of its stream,
//! and runs on that context's SMs whatever stream launches the graph (recorded on an H200, driver
//! 580.159.04). A graph that was captured before there were partitions, or by a library that does not know
//! about them, runs on all SMs without any error. [`audit`](crate::Graph::audit) lists where its nodes run, and
//! [`retarget`](crate::Graph::retarget) returns a copy that runs elsewhere:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{CaptureMode, Driver, LaunchConfig, Library, SplitRequest, StreamOptions, sim::Sim};
//! # let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
//! # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
//! let anywhere = device.primary_context()?.create_stream(StreamOptions::default())?;
//! let graph = anywhere.capture(CaptureMode::default(), || {
//!     // SAFETY: the kernel takes no parameters.
//!     unsafe { anywhere.launch(&step, LaunchConfig::new(64, 128), ()) }
//! })?;
//! assert_eq!(graph.audit()?.to_string(), "0  kernel step  132 SMs of primary (device 0)\n");
//!
//! let parts = device.partition(SplitRequest::new().group("decode", 16))?;
//! let moved = graph.retarget(parts["decode"].context())?;
//! assert_eq!(moved.audit()?.to_string(), "0  kernel step  16 SMs of decode (device 0)\n");
//!
//! let moved = moved.instantiate()?;
//! // SAFETY: the graph's kernel reaches no memory.
//! unsafe { parts["decode"].stream().launch_graph(&moved) }?;
//! # Ok(())
//! # }
//! ```
//!
//! # What can be moved
//!
//! | nodes | |
//! |---|---|
//! | kernels of libraries, functions of modules | move; cluster, cooperative launch and priority stay as they are |
//! | copies and memsets | move: they run on SMs too, from and to device memory (recorded on an H200) |
//! | child graphs | move, by the same rules |
//! | host functions, events, semaphores, batches of memory operations | use no SMs and are copied |
//! | allocations and frees | are refused: the memory's address belongs to the original graph |
//! | conditional nodes | are refused: no driver so far copies a graph that has one (recorded on an H200) |
//! | cooperative kernels and clusters that the partition has no [room](super::fit) for | are refused: such a graph never ends (recorded on an H200) |
//!
//! [`RetargetError`](crate::RetargetError) names the node; the original is unchanged, and there is no
//! copy. Capture what cannot be moved again, on a stream of the partition. The context of each moved kernel
//! is read back from the driver, because the driver also accepts contexts that it then does not use.
//!
//! # What a graph keeps
//!
//! A graph, and an executable made from it, keeps the partitions that its nodes run in
//! ([`contexts`](crate::Graph::contexts)): closing one of them is refused while the graph lives. A graph
//! that [`Stream::capture`](crate::Stream::capture) makes keeps the contexts of all streams that took part.
//! For a foreign graph the driver reports the contexts of kernels, and from CUDA 13.2 on those of copies and
//! memsets; the caller has to keep the others alive.
//!
//! # Where to launch
//!
//! Launch a graph on a stream of the partition that it runs in. It runs there from any stream, but the driver
//! counts it as work of the stream that launched it (recorded on an H200, driver 580.159.04). So a launch
//! from elsewhere through [`launch_graph`](crate::Stream::launch_graph) needs a few more calls: it waits for
//! everything that the partition's own streams wait for, and the [fence](super::ownership#when-sms-are-free) of SMs that
//! change hands, a [switch](super::plans) and [`close`](crate::Context::close) wait for it. Launches that other
//! libraries make through the raw handle are not seen.
//!
//! # One executable for each partition
//!
//! An executable cannot be moved. [`GraphCache`](crate::GraphCache) keeps one for each graph and partition,
//! so that a copy and an instantiation (1.3 ms for 500 kernels on an H200) are paid for once, and a graph
//! follows a [plan](super::plans) for the price of a look-up:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{CaptureMode, Driver, GraphCache, LaunchConfig, Library, PlanSet, PlanRequest, SplitRequest, StreamOptions, SwitchOptions, sim::Sim};
//! # let device = Driver::simulated(&Sim::new("h200@13.0")?)?.device(0)?;
//! # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
//! # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
//! # let anywhere = device.primary_context()?.create_stream(StreamOptions::default())?;
//! # let graph = anywhere.capture(CaptureMode::default(), || {
//! #     // SAFETY: the kernel takes no parameters.
//! #     unsafe { anywhere.launch(&step, LaunchConfig::new(64, 128), ()) }
//! # })?;
//! # let all = device.resources().sm()?.split(SplitRequest::new().rest("all"))?.remainder;
//! # let plan = |name, decode| {
//! #     PlanRequest::new(name, SplitRequest::new().group("decode", decode).rest("prefill"))
//! # };
//! # let set = PlanSet::new(all.ok_or("no SMs are free")?, plan("day", 16))?;
//! # let plans = [set.prepare(plan("night", 64))?, set.plan("day")?];
//! let cache = GraphCache::new();
//! for plan in plans.iter().cycle().take(6) {
//!     set.switch(plan, SwitchOptions::default())?;
//!     let active = set.active();
//!     let decode = active.partition("decode").ok_or("every plan has one")?;
//!     let exec = cache.get(&graph, decode.context())?;
//!     // SAFETY: the graph's kernel reaches no memory.
//!     unsafe { decode.stream().launch_graph(&exec) }?;
//! }
//! assert_eq!(cache.len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! An executable keeps its partition alive, and the cache its executables: [`forget`](crate::GraphCache::forget)
//! a partition before closing it. An executable has the graph's nodes as they were; after a change through
//! the graph's raw handle call [`forget_graph`](crate::GraphCache::forget_graph).
//!
//! # PyTorch's graphs, and others
//!
//! [`Graph::from_raw_borrowed`](crate::Graph::from_raw_borrowed) wraps a graph that another library
//! made. PyTorch gives out its graphs if it keeps them:
//!
//! ```python
//! graph = torch.cuda.CUDAGraph(keep_graph=True)
//! with torch.cuda.graph(graph):
//!     output = model(input)
//! address = graph.raw_cuda_graph()
//! ```
//!
//! ```
//! use green_ctx::sys::CUgraph;
//! use green_ctx::{Context, Graph, GraphExec, RetargetError};
//!
//! /// A graph of PyTorch's, in a partition. `owner` keeps the `CUDAGraph` meanwhile.
//! fn moved(
//!     address: usize,
//!     owner: impl Send + Sync + 'static,
//!     partition: &Context,
//! ) -> Result<GraphExec, RetargetError> {
//!     // SAFETY: the graph is alive while its owner is, and nobody else uses it meanwhile.
//!     let graph = unsafe { Graph::from_raw_borrowed(partition.device(), address as CUgraph, owner) }?;
//!     Ok(graph.retarget(partition)?.instantiate()?)
//! }
//! ```
//!
//! The copy works on the memory of the `CUDAGraph`, and keeps the owner alive for that. All copies of a
//! graph use the same memory, so their launches must wait for each other.

//! Coming from another library: what each call becomes, and what is different.
//!
//! - [The driver API](#the-driver-api): `cuGreenCtxCreate` and its neighbours.
//! - [cuda.core](#cudacore), in Python.
//! - [torch.cuda.green_contexts](#torch), in Python.
//! - [FlashInfer's `green_ctx`](#flashinfer), and SGLang's helper, in Python.
//! - [cudarc](#cudarc), in Rust.
//!
//! Some things are different whatever you come from:
//!
//! | | elsewhere | here |
//! |---|---|---|
//! | ownership | two contexts can be made of the same SMs, without an error (recorded on an H200) | a partition owns the SMs of its [floor](crate::Share). A request for SMs that are held is an error that says who holds them. SMs are shared where a share asks for it |
//! | counts | the driver rounds them up, and makes fewer groups than asked without an error (recorded on an H200) | floors round up, ceilings down; both counts are reported, and fewer groups is an error |
//! | uneven groups | `cuDevSmResourceSplit`, from CUDA 13.1 on | any counts in one request, from CUDA 12.5 on |
//! | lifetime | handles are destroyed by hand, in the right order | a stream keeps its context, a context its SMs; the last handle gives them back |
//! | making and destroying | about 800 µs, and 4 to 5 MiB that destroying does not give back (measured on an H200) | the context stays for the next partition of the same SMs |
//! | current context | decides what many calls mean | decides nothing, unless you [make a context current](crate::context::Context::make_current) for other libraries |
//! | order | streams run concurrently until an event orders them | the same. Only SMs that change hands are fenced: whoever gets them for a floor waits, on the device, for the work that ran there |
//!
//! # The driver API
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, StreamOptions, sim_0_1::Sim, event::EventOptions};
//!
//! // cuInit, cuDeviceGet. With a GPU: `Driver::load()?`.
//! let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
//! let device = driver.device(0)?;
//!
//! // cuDeviceGetDevResource, cuDevSmResourceSplitByCount, cuDevResourceGenerateDesc,
//! // cuGreenCtxCreate, cuGreenCtxStreamCreate: for each partition.
//! let parts = device.partition(SplitRequest::new().group("decode", 16).rest("prefill"))?;
//!
//! // The same in steps, for those who want to see each.
//! # drop(parts);
//! let sms = device.resources().sm()?;
//! let split = sms.split(SplitRequest::from([16, 24]).rest("rest"))?;
//! let mut contexts = Vec::new();
//! for group in split.groups {
//!     contexts.push(device.create_context(group)?);
//! }
//! let stream = contexts[0].create_stream(StreamOptions::default())?;
//!
//! // cuEventCreate, cuGreenCtxRecordEvent, cuStreamWaitEvent.
//! let done = device.create_event(EventOptions::default())?;
//! contexts[1].record(&done)?;
//! stream.wait(&done)?;
//!
//! // For calls that this crate does not wrap.
//! let (raw, green) = (contexts[0].as_raw(), contexts[0].as_raw_green());
//! assert!(!raw.is_null() && green.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! | driver | here | different |
//! |---|---|---|
//! | `cuDeviceGetDevResource` | [`Device::resources`](crate::Device::resources), then [`sm`](crate::resource::Resources::sm) | |
//! | `cuDevSmResourceSplitByCount` | [`SmResource::split`](crate::resource::SmResource::split), [`Device::partition`](crate::Device::partition) | counts may differ from group to group; a group can be [split again](crate::resource::SmGroup::split), where the driver answers 915 |
//! | the same with a null result | [`SmResource::dry_run`](crate::resource::SmResource::dry_run) | says the counts of each group |
//! | `cuDevSmResourceSplit` (13.1) | [`SplitRequest::coscheduled`](crate::SplitRequest::coscheduled) and its neighbours | not yet run on hardware |
//! | `cuDevResourceGenerateDesc`, `cuGreenCtxCreate` | [`Device::create_context`](crate::Device::create_context), [`create_partition`](crate::Device::create_partition) | takes the group, so that no other context gets its floor |
//! | `cuGreenCtxStreamCreate` | [`Context::create_stream`](crate::context::Context::create_stream), [`Partition::stream`](crate::Partition::stream) | always non-blocking, as the driver demands |
//! | `cuCtxFromGreenCtx` | [`Context::as_raw`](crate::context::Context::as_raw), [`as_raw_green`](crate::context::Context::as_raw_green) | borrowed handles; never destroy them |
//! | `cuCtxPushCurrent`, `cuCtxPopCurrent` | [`Context::make_current`](crate::context::Context::make_current) | a guard restores what was current |
//! | `cuGreenCtxGetDevResource`, `cuStreamGetDevResource` | [`Context::resources`](crate::context::Context::resources), [`Stream::resources`](crate::Stream::resources) | |
//! | `cuStreamGetGreenCtx` | [`Stream::context`](crate::Stream::context); [`Watch::raw_stream`](crate::watch::Watch::raw_stream) for a foreign stream | |
//! | `cuGreenCtxRecordEvent`, `cuGreenCtxWaitEvent` | [`Context::record`](crate::context::Context::record), [`Context::wait`](crate::context::Context::wait) | |
//! | `cuGreenCtxGetId` | [`Context::id`](crate::context::Context::id) | |
//! | `cuGreenCtxDestroy` | drop the last handle; [`Partition::close`](crate::Partition::close) waits and returns the SMs; [`Device::release_idle`](crate::Device::release_idle) destroys what waits to be used again | closing is refused while another handle lives. The driver destroys a context although it is current or has streams, and both dangle (recorded on an H200) |
//! | a workqueue in the descriptor (13.1) | [`SmGroup::with_workqueue`](crate::resource::SmGroup::with_workqueue) | not yet run on hardware |
//!
//! Green contexts that somebody else made come in with
//! [`Context::from_raw_borrowed`](crate::context::Context::from_raw_borrowed). Their SMs are in no ledger: nothing
//! keeps partitions of this crate off them.
//!
//! # cuda.core
//!
//! ```python
//! # cuda.core                                              # green_ctx_torch
//! dev = Device(); dev.set_current()
//! groups, rest = dev.resources.sm.split(                   parts = green_ctx_torch.partition(
//!     SMResourceOptions(count=16))                             {"decode": 16, "prefill": "rest"})
//! decode = dev.create_context(
//!     ContextOptions(resources=[groups[0]]))
//! stream = decode.create_stream()                          stream = dev.create_stream(parts["decode"])
//! ```
//!
//! | cuda.core | Python | Rust | different |
//! |---|---|---|---|
//! | `dev.resources.sm` | `green_ctx_torch.info()` | [`Device::resources`](crate::Device::resources) | |
//! | `sm.split(SMResourceOptions(count=16))` | `partition({"decode": 16})` | [`Device::partition`](crate::Device::partition) | `split` reserves nothing: a second one of `dev.resources.sm` gives the same SMs |
//! | `count=[16, 24]` | `{"a": 16, "b": 24}` | `device.partition([16, 24])` | cuda.core needs CUDA 13.1 for counts that differ, and rounds nothing there; here they work from 12.5 on, and are rounded up |
//! | `count=None` | | `group("all", None)` | discovery; here all regular units that are free |
//! | the remainder | `"rest"` | [`SplitRequest::rest`](crate::SplitRequest::rest) | is owned as the others are |
//! | `dry_run=True` | | [`SmResource::dry_run`](crate::resource::SmResource::dry_run) | |
//! | `coscheduled_sm_count=` and the like | | [`SplitRequest::coscheduled`](crate::SplitRequest::coscheduled) | CUDA 13.1 in both |
//! | `dev.create_context(ContextOptions(resources=[group]))` | in `partition` | [`Device::create_context`](crate::Device::create_context) | uses a context of the same SMs again |
//! | `context.create_stream()` | `parts["a"].create_stream()` | [`Context::create_stream`](crate::context::Context::create_stream) | each partition comes with a stream |
//! | `dev.set_current(context)` | `with parts["a"]:`, for torch | [`Context::make_current`](crate::context::Context::make_current) | not needed to submit work |
//! | `stream.wait(other)`, `stream.record()` | cuda.core's own, on `dev.create_stream(parts["a"])` | [`Stream::wait_for`](crate::Stream::wait_for), [`record`](crate::Stream::record) | |
//! | `context.resources.sm.sm_count` | `parts["a"].sm_count` | [`Partition::sm_count`](crate::Partition::sm_count) | |
//! | `context.close()` | `parts["a"].close()` | [`Partition::close`](crate::Partition::close) | the driver keeps 4 MiB of each context that is destroyed (measured with cuda.core on an H200) |
//!
//! A partition and its streams have `__cuda_stream__`, cuda.core's protocol for foreign streams. The module
//! imports without torch. A partition in Python is a count or `"rest"`; floors and ceilings such as `32..` are
//! for Rust so far.
//!
//! # torch
//!
//! `green_ctx_torch.GreenContext` has the same signatures, so that the import is all that changes:
//!
//! ```python
//! from green_ctx_torch.green_contexts import GreenContext   # was torch.cuda.green_contexts
//!
//! context = GreenContext.create(num_sms=16, device_id=0)
//! context.set_context()
//! y = a @ b
//! context.pop_context()
//! ```
//!
//! | torch | here | different |
//! |---|---|---|
//! | `GreenContext.create(num_sms=16)` | the same | contexts with `num_sms` never share SMs; torch's share them without an error from the second call on |
//! | `GreenContext(...)` without `num_sms` | the same | shares what nobody has by then; while one lives nobody gets SMs of their own, so create those with `num_sms` first |
//! | `num_sms=17` | the same | rounded up; `sm_count` and `requested` say both counts |
//! | `set_context()`, `pop_context()` | the same, or `with context:` | a pop without its set is a `RuntimeError`; contexts nest; each thread has a stack of its own |
//! | `context.Stream()` | the same | in both, nothing orders the stream with torch's current one: `stream.wait_stream(torch.cuda.current_stream())` |
//! | `SMPartition`, `split` (2.15) | `green_ctx_torch.partition` | torch needs CUDA 13.1, and its partitions describe SMs and do not reserve them (PyTorch's documentation) |
//! | `torch.cuda.graph(g)` inside of `set_context` | the same | torch captures on a stream of its own, which has all SMs (recorded with torch 2.11). Pass `stream=`, or move the graph with `green_ctx_torch.retarget(g, parts["decode"])` |
//! | a context that goes | the same | torch's leaks 4 MiB each (measured on an H200); here the next one of the same SMs uses it again |
//!
//! New code is shorter with `green_ctx_torch.partition({"decode": 16, "prefill": "rest"})` and
//! `with parts["decode"]:`, which also orders the block with torch's current stream before and after it.
//!
//! # FlashInfer
//!
//! `green_ctx_torch.flashinfer` has the functions of `flashinfer.green_ctx`, `green_ctx_torch.sglang` those
//! of `sgl_kernel.spatial`:
//!
//! | original | here | different |
//! |---|---|---|
//! | `split_device_green_ctx(dev, 2, 16)` | the same | the streams' SMs, the remainder's too, are owned until streams and resources are gone. FlashInfer never destroys its contexts, and those of the next call overlap them |
//! | `split_device_green_ctx_by_sm_count(dev, [8, 16, 24])` | the same | counts that the pieces of 8 and one of 12 do not add up to, such as 64, 64 and a remainder of 4, are an error |
//! | `split_resource(resource, n, count)` | the same | too few SMs are an error here already, where FlashInfer gives empty resources |
//! | `create_green_ctx_streams(dev, resources)` | the same | a second call for a resource gives one more stream of its partition, and no second context |
//! | `get_sm_count_constraint` and the others | the same | `CUdevResource` is this module's own |
//! | SGLang's `create_greenctx_stream_by_value(a, b)` | the same | both counts are rounded up, each for itself; SGLang may give the second stream fewer SMs than asked |
//!
//! # cudarc
//!
//! The package `green-ctx-cudarc` gives cudarc streams that are in a partition; kernels, memory and cuBLAS
//! handles stay cudarc's. What is asked of cudarc's *context* is answered for the whole device:
//!
//! ```text
//! let cuda = CudaContext::new(0)?;
//! let device = device_of(&Driver::load()?, &cuda)?;
//! let parts = device.partition(SplitRequest::new().group("products", 96).rest("others"))?;
//! let stream = CudarcStream::new(parts["products"].stream(), &cuda)?; // used as an Arc<CudaStream>
//! ```
//!
//! | cudarc | with green-ctx-cudarc | different |
//! |---|---|---|
//! | `CudaContext::new(0)` | the same, then `device_of(&Driver::load()?, &cuda)` | cudarc makes the primary context current, and it stays that; the stream decides where work runs |
//! | `context.new_stream()` | `CudarcStream::new(partition.stream(), &cuda)` | cudarc's own streams have all SMs; so have those of `CudaStream::fork` |
//! | `stream.launch_builder(&f)`, `clone_htod`, `alloc_zeros` | the same, on the `CudarcStream` | |
//! | `CudaBlas::new(stream)` | `CudaBlas::new(stream.cudarc())` | set `cublasSetSmCountTarget` to [`Partition::sm_count`](crate::Partition::sm_count): cuBLAS reads the device's count |
//! | `stream.join(&other)`, `record_event`, `wait` | the same; or [`Stream::wait_for`](crate::Stream::wait_for) of `stream.stream()` and of `stream_of(&driver, &other)` | |
//! | `context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)` | [`Partition::sm_count`](crate::Partition::sm_count) | the attribute is the device's count |
//! | drop of the last `Arc` | the same | a partition lasts until whatever cudarc made with its stream is gone; [`Partition::close`](crate::Partition::close) says so |
//! | `sys::cuGreenCtxCreate` and so on | [as above](#the-driver-api) | |
//!
//! # None of these, or no GPU
//!
//! Start with [`partitions`](super::partitions) and the programs in the repository's folder
//! `green-ctx/examples`, which run without a GPU: `cargo run -p green-ctx --example 01-split`.
//!
//! Programs of cuda.core, cudarc and the driver API run without one too, on the simulated driver as a
//! `libcuda.so.1`: `cargo xtask sim-lib` in the repository builds it and prints how to use it. Kernels do nothing
//! there. PyTorch does not start on it, since NVIDIA's runtime library needs more than the driver API.

//! Graphs: capturing, auditing, moving to another partition, and caching.

use std::ptr;
use std::sync::Arc;

use green_ctx::error::ErrorKind;
use green_ctx::sys::{CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph, CUmemAllocationType, CUmemLocationType};
use green_ctx::{
    Error, Graph, Kernel, LaunchConfig, Stream, call,
    context::Context,
    graph::{CaptureMode, GraphCache, NodeKind, RetargetError},
};

use crate::common::{Outcome, kernels, partition, raw, stream};
use crate::{LONG, Machine, NODES, each_composing_driver, each_driver, launch};

/// Captures one launch of a kernel in a context.
fn captured(context: &Context, kernel: &Kernel) -> green_ctx::Result<Graph> {
    let stream = stream(context)?;
    stream.capture(CaptureMode::default(), || launch(&stream, kernel))
}

/// Runs a graph on a stream of `on`, and returns the number of SMs that each of its kernels ran on.
pub(super) fn run(machine: &Machine, graph: &Graph, on: &Context) -> green_ctx::Result<Vec<usize>> {
    let (exec, stream) = (graph.instantiate()?, stream(on)?);
    machine.sim.take_launches();
    // SAFETY: the kernels of these tests touch no memory.
    unsafe { stream.launch_graph(&exec) }?;
    stream.synchronize()?;
    Ok(machine.sim.launches().iter().map(|launch| launch.sms.len()).collect())
}

/// Launches a block for each SM of the device.
pub(super) fn wide(stream: &Stream, kernel: &Kernel) -> green_ctx::Result<()> {
    // SAFETY: the kernel has no parameters and touches no memory.
    unsafe { stream.launch(kernel, LaunchConfig::new(132, 1024), ()) }
}

#[test]
fn a_graph_runs_where_it_was_captured() -> Outcome {
    each_composing_driver(|machine| {
        let kernel = machine.kernel(LONG)?;
        let (small, large) = (partition(&machine.device, 16)?, partition(&machine.device, 64)?);
        let (first, second) = (stream(&small)?, stream(&large)?);
        let graph = first.capture(CaptureMode::default(), || {
            wide(&first, &kernel)?;
            // Fork to the other partition and join again.
            second.wait_for(&first)?;
            wide(&second, &kernel)?;
            first.wait_for(&second)
        })?;
        assert_eq!(graph.node_count()?, 2);
        let audit = graph.audit()?;
        let name = |context: &Context| context.group().map(|group| group.name().to_owned());
        for (node, context) in audit.nodes.iter().zip([&small, &large]) {
            let location = node.location.as_ref().ok_or("a kernel has a location")?;
            assert_eq!(node.kernel.as_deref(), Some("work"));
            assert_eq!(Some(location.context.clone()), name(context));
            assert_eq!(
                (location.context_id, location.sm_count),
                (context.id()?, context.sm_count()?)
            );
        }
        for context in [&small, &large, &machine.device.primary_context()?] {
            assert_eq!(run(machine, &graph, context)?, [16, 64]);
        }
        // The graph keeps both partitions alive.
        drop((first, second));
        let large = large.close().expect_err("the graph has it").given;
        drop(graph);
        for context in [small, large] {
            context.close()?;
        }
        Ok(())
    })
}

#[test]
fn a_graph_is_moved_and_stays_what_it_was() -> Outcome {
    each_composing_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = machine.kernel(LONG)?;
        let (small, large) = (partition(device, 16)?, partition(device, 64)?);
        let first = stream(&small)?;
        let inner = first.capture(CaptureMode::default(), || wide(&first, &kernel))?;
        let graph = first.capture(CaptureMode::default(), || wide(&first, &kernel))?;
        add_child(&graph, &inner)?;
        let moved = graph.retarget(&large)?;
        let everywhere = graph.retarget(&device.primary_context()?)?;
        for (graph, sms) in [(&moved, 64), (&graph, 16), (&everywhere, 132)] {
            assert_eq!(run(machine, graph, &small)?, [sms, sms]);
            let names: Vec<_> = graph.audit()?.nodes.iter().map(|n| n.node.clone()).collect();
            assert_eq!(names, ["0", "1", "1.0"]);
        }
        // The copy depends neither on the original graph nor on its partition.
        drop((graph, inner, everywhere, first));
        small.close()?;
        assert_eq!(run(machine, &moved, &large)?, [64, 64]);
        Ok(())
    })
}

/// Adds a graph as a child node of another, without dependencies.
pub(super) fn add_child(graph: &Graph, child: &Graph) -> green_ctx::Result<()> {
    let api = graph.device().driver().api();
    let mut node = ptr::null_mut();
    let (whole, child) = (graph.as_raw(), child.as_raw());
    // SAFETY: both graphs are alive, and `node` outlives the call.
    unsafe { call!(api, cuGraphAddChildGraphNode(&raw mut node, whole, ptr::null(), 0, child)) }
}

#[test]
fn copies_and_memsets_move_too() -> Outcome {
    each_composing_driver(|machine| {
        let Machine { device, .. } = machine;
        let (small, large) = (partition(device, 16)?, partition(device, 64)?);
        let stream = stream(&small)?;
        let memory = green_ctx::DeviceBuffer::<u32>::zeroed(device, 64)?;
        let at = memory.as_raw();
        let graph = stream.capture(CaptureMode::default(), || {
            raw::fill(&stream, at, 7, 32)?;
            raw::copy(&stream, at + 128, at, 128)
        })?;
        let moved = graph.retarget(&large)?;
        let audit = moved.audit()?;
        let kinds: Vec<_> = audit.nodes.iter().map(|node| node.kind).collect();
        assert_eq!(kinds, [NodeKind::Memset, NodeKind::Memcpy]);
        for node in &audit.nodes {
            let sms = node.location.as_ref().map(|location| location.sm_count);
            assert_eq!(sms, machine.has(NODES).then_some(64), "{node}");
        }
        assert_eq!(run(machine, &moved, &large)?, [0; 0]);
        assert_eq!(memory.read(&stream)?, [7; 64]);
        Ok(())
    })
}

/// Functions of a module loaded with `cuModuleLoadData` have no kernel handle that a moved node could use instead.
#[test]
fn functions_of_modules_move_too() -> Outcome {
    each_composing_driver(|machine| {
        let Machine { device, .. } = machine;
        let (small, large) = (partition(device, 16)?, partition(device, 64)?);
        let module = raw::Module::load(device, &kernels::text("work"))?;
        let (stream, function) = (stream(&small)?, module.function("work")?);
        let graph = stream.capture(CaptureMode::default(), || {
            raw::launch(device, stream.as_raw(), function, [132, 1024])
        })?;
        assert_eq!(run(machine, &graph.retarget(&large)?, &large)?, [64]);
        assert_eq!(run(machine, &graph, &large)?, [16]);
        Ok(())
    })
}

#[test]
fn a_kernel_whose_blocks_do_not_fit_is_not_moved() -> Outcome {
    each_composing_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = machine.kernel(LONG)?;
        let (small, large) = (partition(device, 16)?, partition(device, 64)?);
        let stream = stream(&large)?;
        for blocks in [32, 33] {
            let graph = stream.capture(CaptureMode::default(), || {
                launch(&stream, &kernel)?;
                cooperative(&stream, &kernel, blocks)
            })?;
            match graph.retarget(&small) {
                Ok(moved) if blocks == 32 => assert_eq!(run(machine, &moved, &small)?[1], 16),
                Err(error) if blocks == 33 => assert_eq!(
                    error.to_string(),
                    "node 1 (work) needs 33 blocks at the same time, and the partition's 16 SMs hold \
                     32; use a larger partition"
                ),
                other => return Err(format!("{blocks} blocks: {other:?}").into()),
            }
        }
        Ok(())
    })
}

/// Launches a cooperative grid of `blocks` blocks of 1024 threads. An SM holds two of them.
fn cooperative(stream: &Stream, kernel: &Kernel, blocks: u32) -> green_ctx::Result<()> {
    let api = stream.context().device().driver().api();
    let (function, to, none) = (kernel.as_raw().cast(), stream.as_raw(), ptr::null_mut());
    // SAFETY: the kernel and the stream are alive, and the kernel has no parameters.
    unsafe {
        call!(api, cuLaunchCooperativeKernel(function, blocks, 1, 1, 1024, 1, 1, 0, to, none))
    }
}

#[test]
fn what_fails_in_a_capture_ends_it() -> Outcome {
    each_driver(|machine| {
        let kernel = machine.kernel(LONG)?;
        let partition = partition(&machine.device, 16)?;
        let stream = stream(&partition)?;
        let failed = stream.capture(CaptureMode::Relaxed, || {
            launch(&stream, &kernel)?;
            Err::<(), Box<dyn std::error::Error>>("no more".into())
        });
        assert_eq!(failed.expect_err("the work failed").to_string(), "no more");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            stream.capture(CaptureMode::Global, || -> green_ctx::Result<()> { panic!("no more") })
        }));
        assert!(panicked.is_err());
        // The query invalidates a global capture, so no graph results.
        let invalidated = stream.capture(CaptureMode::Global, || {
            let _ = stream.is_idle();
            Ok::<(), Error>(())
        });
        assert!(invalidated.expect_err("it was invalidated").is_misuse());
        let twice = stream.capture(CaptureMode::Global, || {
            let again = stream.capture(CaptureMode::Global, || Ok::<(), Error>(()));
            assert!(again.expect_err("it is being captured").status().is_some());
            Ok::<(), Error>(())
        });
        // Whatever the driver returned for the second capture, the stream can be used again.
        drop(twice);
        assert!(!stream.is_capturing()?);
        assert_eq!(captured(&partition, &kernel)?.node_count()?, 1);
        Ok(())
    })
}

#[test]
fn one_handle_one_graph() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = machine.kernel(LONG)?;
        let partition = partition(device, 16)?;
        let graph = captured(&partition, &kernel)?;
        // SAFETY: `graph` keeps the raw graph alive.
        let same = unsafe { Graph::from_raw_borrowed(device, graph.as_raw(), ()) }?;
        assert_eq!(same, graph);
        // SAFETY: the raw graph is alive, and the call refuses to own it twice.
        let twice = unsafe { Graph::from_raw_owned(device, graph.as_raw()) };
        assert!(matches!(twice, Err(Error::AlreadyOwned { what: "graph" })), "{twice:?}");
        // SAFETY: a null handle is refused.
        let null = unsafe { Graph::from_raw_borrowed(device, ptr::null_mut(), ()) };
        assert_eq!(null.expect_err("null").to_string(), "the graph's handle is null");

        // A foreign clone. Its kernels keep the partition alive too.
        let raw = clone_raw(&graph)?;
        // SAFETY: the graph was created above, and is destroyed below.
        let borrowed = unsafe { Graph::from_raw_borrowed(device, raw, ()) }?;
        drop((graph, same));
        let partition = partition.close().expect_err("the borrowed graph has it").given;
        drop(borrowed);
        // SAFETY: no other code uses the graph.
        let owned = unsafe { Graph::from_raw_owned(device, raw) }?;
        assert_eq!(owned.node_count()?, 1);
        drop(owned);
        partition.close()?;
        Ok(())
    })
}

/// The owner of a borrowed graph is kept alive by everything made from the graph.
#[test]
fn an_owner_outlives_what_comes_of_a_borrowed_graph() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = machine.kernel(LONG)?;
        let partition = partition(device, 16)?;
        let original = captured(&partition, &kernel)?;
        let (owner, raw) = (Arc::new(()), clone_raw(&original)?);
        // SAFETY: the graph was created above, and is destroyed below.
        let borrowed = unsafe { Graph::from_raw_borrowed(device, raw, Arc::clone(&owner)) }?;
        let moved = borrowed.retarget(&partition)?;
        let exec = moved.instantiate()?;
        drop((borrowed, moved));
        assert_eq!(Arc::strong_count(&owner), 2, "the executable does not keep the owner alive");
        drop(exec);
        assert_eq!(Arc::strong_count(&owner), 1);
        // SAFETY: no other code uses the graph.
        drop(unsafe { Graph::from_raw_owned(device, raw) }?);
        Ok(())
    })
}

fn clone_raw(graph: &Graph) -> green_ctx::Result<CUgraph> {
    let (api, mut raw) = (graph.device().driver().api(), ptr::null_mut());
    // SAFETY: the graph is alive, and `raw` outlives the call.
    unsafe { call!(api, cuGraphClone(&raw mut raw, graph.as_raw())) }?;
    Ok(raw)
}

#[test]
fn a_cache_makes_one_executable_for_each_partition() -> Outcome {
    each_composing_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = machine.kernel(LONG)?;
        let (small, large) = (partition(device, 16)?, partition(device, 64)?);
        let graphs = [captured(&small, &kernel)?, captured(&large, &kernel)?];
        let cache = GraphCache::new();
        for graph in &graphs {
            for context in [&small, &large] {
                cache.get(graph, context)?;
            }
        }
        assert_eq!(cache.len(), 4);
        let again = machine.without_calls(|| cache.get(&graphs[0], &large))?;
        assert_ne!(again, cache.get(&graphs[1], &large)?);

        cache.forget_graph(&graphs[1]);
        assert_eq!(cache.len(), 2);
        drop((graphs, again));
        let large = large.close().expect_err("the cache keeps it").given;
        cache.forget(&large);
        large.close()?;
        cache.clear();
        assert!(cache.is_empty());
        small.close()?;
        Ok(())
    })
}

#[test]
fn graphs_of_two_devices_do_not_meet() -> Outcome {
    each_driver(|machine| {
        let kernel = machine.kernel(LONG)?;
        let partition = partition(&machine.device, 16)?;
        let graph = captured(&partition, &kernel)?;
        let other = Machine::new("h200@13.0")?;
        let elsewhere = other.device.primary_context()?;
        let error = graph.retarget(&elsewhere).expect_err("another device");
        assert!(matches!(error, RetargetError::Error(Error::DeviceMismatch { .. })), "{error}");
        let (exec, stream) = (graph.instantiate()?, stream(&elsewhere)?);
        // SAFETY: the launch is refused.
        let error = unsafe { stream.launch_graph(&exec) }.expect_err("another device");
        assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
        assert!(matches!(exec.upload(&stream), Err(Error::DeviceMismatch { .. })));
        Ok(())
    })
}

#[test]
fn what_no_copy_can_have_is_named() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let partition = partition(device, 16)?;
        let api = device.driver().api();
        let (mut raw, mut node) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `raw` outlives the call.
        unsafe { call!(api, cuGraphCreate(&raw mut raw, 0)) }?;
        // SAFETY: the structure consists of integers and pointers, which may be zero.
        let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
        params.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        params.poolProps.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        params.bytesize = 1024;
        {
            let _current = device.primary_context()?.make_current()?;
            let none = ptr::null();
            // SAFETY: the graph is alive, and all pointers outlive the call.
            unsafe {
                call!(api, cuGraphAddMemAllocNode(&raw mut node, raw, none, 0, &raw mut params))
            }?;
        }
        // SAFETY: the graph was created above, and no other code uses it.
        let graph = unsafe { Graph::from_raw_owned(device, raw) }?;
        let live = machine.sim.live();
        let error = graph.retarget(&partition).expect_err("an allocation");
        assert!(matches!(&error, RetargetError::Immovable { kind: NodeKind::MemAlloc, .. }));
        assert!(
            error.to_string().starts_with("node 0 (memory allocation) cannot be moved"),
            "{error}"
        );
        let (kind, text) = (error.kind(), error.to_string());
        let error = green_ctx::Error::from(error);
        assert_eq!((kind, error.kind()), (ErrorKind::InvalidRequest, ErrorKind::InvalidRequest));
        assert_eq!(error.to_string(), text);
        assert_eq!(machine.sim.live(), live, "an object was created");
        assert_eq!(graph.audit()?.to_string(), "0  memory allocation  no SMs\n");

        Ok(())
    })
}

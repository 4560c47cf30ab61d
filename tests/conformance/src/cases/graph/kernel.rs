//! Kernel nodes: their parameters and attributes.

use core::ptr::null_mut;

use green_ctx_sys::*;
use serde_json::{Value, json};

use super::{BLOCKS, Case, ProbeNode, name, unwritten};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::calls::Params;
use crate::cases::Needs;
use crate::gpu::{Gpu, SHORT, THREADS, probe_params, ptx};

/// The handles that a node can have.
struct Handles {
    kernel: CUkernel,
    function: CUfunction,
    primary: CUcontext,
    green: CUcontext,
    green_stream: CUstream,
}

impl Handles {
    fn new(gpu: &Gpu) -> Result<Handles, Failure> {
        let kernel = gpu.probe_kernel()?;
        let green = gpu.green_with(32)?;
        Ok(Handles {
            kernel,
            function: gpu.cuKernelGetFunction(kernel)?.must()?,
            primary: gpu.primary()?,
            green: gpu.context_of(green)?,
            green_stream: gpu.stream_of(green)?,
        })
    }

    /// Returns which kernel and context a node has.
    fn of(&self, gpu: &Gpu, node: CUgraphNode) -> Result<Value, Failure> {
        let params = gpu.kernel_params(node)?;
        Ok(json!({
            "func": name(
                params.func,
                &[("function", self.function), ("kernel", self.kernel.cast())],
            ),
            "kern": name(params.kern, &[("kernel", self.kernel)]),
            "ctx": name(params.ctx, &[("primary", self.primary), ("green", self.green)]),
        }))
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        captured("a-kernel", |_, handles| Ok(handles.kernel.cast())),
        captured("a-function", |_, handles| Ok(handles.function)),
        captured("a-module-s-function", |gpu, _| {
            let module = gpu.cuModuleLoadData(ptx())?.must()?;
            gpu.cuModuleGetFunction(module, c"green_ctx_probe")?.must()
        }),
        added("func", |handles, params| params.func = handles.function),
        added("func-and-ctx", |handles, params| {
            (params.func, params.ctx) = (handles.function, handles.green);
        }),
        added("func-and-kern-and-ctx", |handles, params| {
            params.func = handles.function;
            (params.kern, params.ctx) = (handles.kernel, handles.green);
        }),
        added("cast-kernel", |handles, params| params.func = handles.kernel.cast()),
        added("kern", |handles, params| params.kern = handles.kernel),
        added("kern-and-ctx", |handles, params| {
            (params.kern, params.ctx) = (handles.kernel, handles.green);
        }),
        added("neither", |_, _| {}),
        added("no-blocks", |handles, params| {
            (params.kern, params.gridDimX) = (handles.kernel, 0);
        }),
        added("too-many-threads", |handles, params| {
            (params.kern, params.blockDimX) = (handles.kernel, 2048);
        }),
        Case::new("graph/kernel-add-with-none-current", |gpu, answer| {
            let kernel = gpu.probe_kernel()?;
            let mut values = Params::new(&[0, 0]);
            let params = CUDA_KERNEL_NODE_PARAMS_v2 {
                gridDimX: 1,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: THREADS,
                blockDimY: 1,
                blockDimZ: 1,
                kernelParams: values.as_mut_ptr(),
                kern: kernel,
                ..unwritten()
            };
            let graph = gpu.graph()?;
            answer.add("kern", gpu.cuGraphAddKernelNode(graph, &[], &params)?);
            Ok(())
        })
        .needs(Needs::Init)
        .alone(),
        Case::new("graph/kernel-set", set),
        Case::new("graph/kernel-values", values),
        Case::new("graph/kernel-values-in-a-buffer", values_in_a_buffer),
        Case::new("graph/attributes-unset", |gpu, answer| {
            let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 1, SHORT)?);
            let params = probe.on(gpu, gpu.primary()?)?;
            let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
            for number in 0..=18 {
                let id = CUlaunchAttributeID(number);
                let reply = gpu.cuGraphKernelNodeGetAttribute(node, id)?;
                let value = if reply.is_ok() { json!(numbers(&reply.out)) } else { Value::Null };
                answer.add(number.to_string(), json!({ "status": reply.value(), "value": value }));
            }
            Ok(())
        }),
        Case::new("graph/attributes-set", attributes),
        Case::new("graph/attributes-of-a-captured-launch", |gpu, answer| {
            let least = gpu.cuStreamCreateWithPriority(1, -3)?.must()?;
            let memory = gpu.probe_memory(1)?;
            let graph = gpu.captured(least, || {
                let mut params = probe_params(memory, SHORT);
                gpu.cuLaunchCooperativeKernel(gpu.probe()?, 1, THREADS, least, &mut params)?.must()
            })?;
            let node = gpu.nodes(graph)?[0];
            for (which, id) in [
                ("cooperative", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE),
                ("priority", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY),
            ] {
                let reply = gpu.cuGraphKernelNodeGetAttribute(node, id)?;
                answer.add(which, reply);
                answer.add(format!("{which}_value"), numbers(&reply.out)[0]);
            }
            Ok(())
        }),
    ];
    cases.extend([128, 129].map(cooperative));
    cases
}

/// Returns the first three numbers of an attribute's value.
pub(super) fn numbers(value: &CUlaunchAttributeValue) -> [i32; 3] {
    // SAFETY: the value consists of plain bytes, all of them initialised here or by the driver.
    let bytes = unsafe { value.pad };
    [0, 4, 8].map(|at| {
        let byte = |index: usize| bytes[at + index].to_ne_bytes()[0];
        i32::from_ne_bytes([byte(0), byte(1), byte(2), byte(3)])
    })
}

/// Creates an attribute value from numbers.
pub(super) fn value(numbers: &[i32]) -> CUlaunchAttributeValue {
    let mut pad = [0; 64];
    for (index, byte) in numbers.iter().flat_map(|number| number.to_ne_bytes()).enumerate() {
        pad[index] = core::ffi::c_char::from_ne_bytes([byte]);
    }
    CUlaunchAttributeValue { pad }
}

/// A case with the node of a captured launch, in the primary context and in a green one.
fn captured(
    what: &str,
    function: impl Fn(&Gpu, &Handles) -> Result<CUfunction, Failure> + 'static,
) -> Case {
    Case::new(format!("graph/kernel-captured-{what}"), move |gpu, answer| {
        let handles = Handles::new(gpu)?;
        let function = function(gpu, &handles)?;
        let memory = gpu.probe_memory(1)?;
        let streams = [("primary", gpu.stream()?), ("green", handles.green_stream)];
        for (which, stream) in streams {
            let graph = gpu.captured(stream, || {
                let mut params = probe_params(memory, SHORT);
                gpu.cuLaunchKernel(function, 1, THREADS, stream, &mut params)?.must()
            })?;
            let node = gpu.nodes(graph)?[0];
            answer.add(which, handles.of(gpu, node)?);
            let params = gpu.kernel_params(node)?;
            answer.add(
                format!("{which}_shape"),
                json!([params.gridDimX, params.blockDimX, params.sharedMemBytes]),
            );
            answer.add(format!("{which}_has_params"), !params.kernelParams.is_null());
            answer.add(format!("{which}_has_extra"), !params.extra.is_null());
        }
        Ok(())
    })
}

/// A case with a node that is added explicitly, with the primary context current and with a green one.
fn added(what: &str, fill: impl Fn(&Handles, &mut CUDA_KERNEL_NODE_PARAMS_v2) + 'static) -> Case {
    Case::new(format!("graph/kernel-add-{what}"), move |gpu, answer| {
        let handles = Handles::new(gpu)?;
        let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 1, SHORT)?);
        let mut params = probe.params();
        fill(&handles, &mut params);
        for (which, context) in [("primary", handles.primary), ("green", handles.green)] {
            gpu.push(context)?;
            let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?;
            gpu.pop()?;
            answer.add(format!("{which}_current"), node);
            if node.is_ok() {
                answer.add(format!("{which}_node"), handles.of(gpu, node.out)?);
            }
        }
        Ok(())
    })
    .alone()
}

/// Sets the parameters that were read, with one field changed.
fn set(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let handles = Handles::new(gpu)?;
    let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 1, SHORT)?);
    let params = probe.on(gpu, handles.primary)?;
    let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
    answer.add("before", handles.of(gpu, node)?);
    let mut change = |what: &str, change: &dyn Fn(&mut CUDA_KERNEL_NODE_PARAMS_v2)| {
        let mut params = gpu.kernel_params(node)?;
        change(&mut params);
        answer.add(what, gpu.cuGraphKernelNodeSetParams(node, &params)?);
        answer.add(format!("{what}_node"), handles.of(gpu, node)?);
        answer.add(format!("{what}_grid"), gpu.kernel_params(node)?.gridDimX);
        Ok::<(), Failure>(())
    };
    change("nothing", &|_| {})?;
    change("ctx", &|params| params.ctx = handles.green)?;
    change("ctx_without_func", &|params| {
        (params.func, params.ctx) = (null_mut(), handles.green);
    })?;
    change("func_on_green", &|_| {})?;
    change("null_ctx_without_func", &|params| {
        (params.func, params.ctx) = (null_mut(), null_mut());
    })?;
    change("no_kernel", &|params| {
        (params.func, params.kern) = (null_mut(), null_mut());
    })?;
    change("grid", &|params| params.gridDimX = 7)?;
    change("no_blocks", &|params| params.gridDimX = 0)?;
    Ok(())
}

/// Returns the `index`-th value of a node's parameters.
fn value_at(params: &CUDA_KERNEL_NODE_PARAMS_v2, index: usize) -> u64 {
    // SAFETY: the driver returns one address per kernel parameter, here two.
    let place = unsafe { params.kernelParams.add(index) };
    // SAFETY: as above.
    let address = unsafe { place.read() };
    // SAFETY: each address points to a parameter of eight bytes, whose memory the node keeps allocated.
    unsafe { address.cast::<u64>().read_unaligned() }
}

fn values(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let graph = gpu.graph()?;
    let mut first = Params::new(&[1 << 40, 7]);
    let mut params = CUDA_KERNEL_NODE_PARAMS_v2 {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: first.as_mut_ptr(),
        kern: gpu.probe_kernel()?,
        ctx: gpu.primary()?,
        ..unwritten()
    };
    let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
    let read = gpu.kernel_params(node)?;
    answer.add("values", json!([value_at(&read, 0), value_at(&read, 1)]));
    answer.add("memory_is_the_node_s", read.kernelParams != params.kernelParams);
    let mut second = Params::new(&[5, 6]);
    params.kernelParams = second.as_mut_ptr();
    answer.add("set", gpu.cuGraphKernelNodeSetParams(node, &params)?);
    let read = gpu.kernel_params(node)?;
    answer.add("values_after", json!([value_at(&read, 0), value_at(&read, 1)]));
    Ok(())
}

fn values_in_a_buffer(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let graph = gpu.graph()?;
    let mut buffer = [5_u64, 6];
    let mut size = size_of_val(&buffer);
    let mut extra = [
        core::ptr::without_provenance_mut(1),
        buffer.as_mut_ptr().cast(),
        core::ptr::without_provenance_mut(2),
        (&raw mut size).cast(),
        null_mut(),
    ];
    let mut array = Params::new(&[7, 8]);
    let params = CUDA_KERNEL_NODE_PARAMS_v2 {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        extra: extra.as_mut_ptr(),
        kern: gpu.probe_kernel()?,
        ctx: gpu.primary()?,
        ..unwritten()
    };
    let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?;
    answer.add("add", node);
    let read = gpu.kernel_params(node.must()?)?;
    answer.add("has_params", !read.kernelParams.is_null());
    answer.add("has_extra", !read.extra.is_null());
    let both = CUDA_KERNEL_NODE_PARAMS_v2 { kernelParams: array.as_mut_ptr(), ..params };
    answer.add("both", gpu.cuGraphAddKernelNode(graph, &[], &both)?);
    answer.add("set_read", gpu.cuGraphKernelNodeSetParams(node.out, &read)?);
    Ok(())
}

fn attributes(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 8, SHORT)?);
    let params = probe.on(gpu, gpu.primary()?)?;
    let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
    for (which, id, numbers_in) in [
        ("cooperative", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &[1][..]),
        ("cooperative_again", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &[0]),
        ("priority", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY, &[-2]),
        ("priority_too_high", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY, &[-99]),
        ("cluster", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &[4, 1, 1]),
        ("cluster_odd", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &[3, 1, 1]),
        ("cluster_large", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &[16, 1, 1]),
        (
            "carveout",
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
            &[50],
        ),
        ("synchronization", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &[1]),
        (
            "serialization",
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            &[1],
        ),
    ] {
        let status = gpu.cuGraphKernelNodeSetAttribute(node, id, &value(numbers_in))?;
        answer.add(which, status);
        let read = gpu.cuGraphKernelNodeGetAttribute(node, id)?;
        if read.is_ok() {
            answer.add(format!("{which}_value"), json!(numbers(&read.out)));
        }
    }
    Ok(())
}

/// A case with a cooperative node of `blocks` blocks on 64 SMs, which hold 128. A larger grid never ends, so
/// the case does not wait for it, and the process ends while it runs.
fn cooperative(blocks: u32) -> Case {
    Case::new(format!("graph/cooperative-on-64-sms-blocks={blocks}"), move |gpu, answer| {
        let context = gpu.context_of(gpu.green_with(64)?)?;
        let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, BLOCKS, SHORT)?);
        let params = CUDA_KERNEL_NODE_PARAMS_v2 { gridDimX: blocks, ..probe.on(gpu, context)? };
        let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?;
        answer.add("add", node);
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        answer.add("set", gpu.cuGraphKernelNodeSetAttribute(node.must()?, id, &value(&[1]))?);
        let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
        answer.add("instantiate", exec);
        if exec.is_ok() {
            let stream = gpu.stream()?;
            answer.add("launch", gpu.cuGraphLaunch(exec.out, stream)?);
            if blocks <= 128 {
                answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            } else {
                answer.add("query", gpu.cuStreamQuery(stream)?);
            }
        }
        Ok(())
    })
    .alone()
}

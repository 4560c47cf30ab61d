//! Memsets and copies in graphs, and the SMs that they run on, which their duration reveals.

use core::ptr::null_mut;

use green_ctx_sys::*;

use super::{Case, fill, no_copy};
use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::{Gpu, compared};

#[derive(Clone, Copy)]
enum Kind {
    Fill,
    Copy,
}

/// A memset, or a copy on the device, and the contexts that it may run in.
struct Bench<'a> {
    gpu: &'a Gpu,
    kind: Kind,
    from: CUdeviceptr,
    to: CUdeviceptr,
    primary: CUcontext,
    stream: CUstream,
    /// A partition of 8 SMs.
    small: CUcontext,
    small_stream: CUstream,
}

impl<'a> Bench<'a> {
    fn new(gpu: &'a Gpu, kind: Kind) -> Result<Bench<'a>, Failure> {
        let green = gpu.green_with(8)?;
        let from = match kind {
            Kind::Fill => 0,
            Kind::Copy => gpu.cuMemAlloc(gpu.timed_bytes())?.must()?,
        };
        Ok(Bench {
            gpu,
            kind,
            from,
            to: gpu.cuMemAlloc(gpu.timed_bytes())?.must()?,
            primary: gpu.primary()?,
            stream: gpu.stream()?,
            small: gpu.context_of(green)?,
            small_stream: gpu.stream_of(green)?,
        })
    }

    /// Frees the memory, which is too large to keep in a process of many cases.
    fn end(self) -> Outcome {
        if self.from != 0 {
            self.gpu.cuMemFree(self.from)?.must()?;
        }
        self.gpu.cuMemFree(self.to)?.must()
    }

    fn fill(&self) -> CUDA_MEMSET_NODE_PARAMS_v1 {
        fill(self.to, 7, self.gpu.timed_bytes())
    }

    fn copy(&self) -> CUDA_MEMCPY3D_v2 {
        CUDA_MEMCPY3D_v2 {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcDevice: self.from,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstDevice: self.to,
            WidthInBytes: self.gpu.timed_bytes(),
            Height: 1,
            Depth: 1,
            ..no_copy()
        }
    }

    /// Creates a graph of one node in a context.
    fn graph(&self, context: CUcontext) -> Result<(CUgraph, CUgraphNode), Failure> {
        let graph = self.gpu.graph()?;
        let node = match self.kind {
            Kind::Fill => self.gpu.cuGraphAddMemsetNode(graph, &[], &self.fill(), context)?,
            Kind::Copy => self.gpu.cuGraphAddMemcpyNode(graph, &[], &self.copy(), context)?,
        };
        Ok((graph, node.must()?))
    }

    /// Sets the same parameters again, with the function that takes no context.
    fn set(&self, node: CUgraphNode) -> Result<CUresult, Failure> {
        Ok(match self.kind {
            Kind::Fill => self.gpu.cuGraphMemsetNodeSetParams(node, &self.fill())?.status,
            Kind::Copy => self.gpu.cuGraphMemcpyNodeSetParams(node, &self.copy())?.status,
        })
    }

    fn time_of(&self, exec: CUgraphExec, stream: CUstream) -> Result<f32, Failure> {
        self.gpu.fastest(stream, || self.gpu.cuGraphLaunch(exec, stream)?.must())
    }

    /// Returns the time of a graph that is launched in a stream of the primary context.
    fn time(&self, graph: CUgraph) -> Result<f32, Failure> {
        self.time_of(self.gpu.executable(graph)?, self.stream)
    }

    /// Returns the time with all SMs available.
    fn base(&self) -> Result<f32, Failure> {
        self.time(self.graph(self.primary)?.0)
    }

    /// Calls a function with the small partition current.
    fn on_small<T>(&self, act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        self.gpu.push(self.small)?;
        let done = act();
        self.gpu.pop()?;
        done
    }
}

pub(super) fn cases() -> Vec<Case> {
    let kinds = [("fill", Kind::Fill), ("copy", Kind::Copy)];
    let mut cases = Vec::new();
    for (name, kind) in kinds {
        let case = |what: &str, body: fn(&Bench<'_>, &mut Answer<'_>) -> Outcome| {
            Case::new(format!("graph/{name}-{what}"), move |gpu, answer| {
                let bench = Bench::new(gpu, kind)?;
                body(&bench, answer)?;
                bench.end()
            })
        };
        cases.extend([
            case("on-sms", on_sms),
            case("captured-on-8-sms", captured),
            case("added-with-null-context-and-8-sms-current", |bench, answer| {
                let (graph, _) = bench.on_small(|| bench.graph(null_mut()))?;
                answer.add("time", compared(bench.time(graph)?, bench.base()?));
                Ok(())
            }),
            case("set-with-8-sms-current", |bench, answer| {
                let (graph, node) = bench.graph(bench.primary)?;
                let base = bench.base()?;
                answer.add("set", bench.on_small(|| bench.set(node))?);
                answer.add("time", compared(bench.time(graph)?, base));
                answer.add("set_with_primary_current", bench.set(node)?);
                answer.add("time_after_that", compared(bench.time(graph)?, base));
                Ok(())
            }),
            case("set-with-none-current", |bench, answer| {
                let (graph, node) = bench.graph(bench.small)?;
                let primary = bench.gpu.pop()?;
                let set = bench.set(node);
                bench.gpu.push(primary)?;
                answer.add("set", set?);
                answer.add("time", compared(bench.time(graph)?, bench.base()?));
                Ok(())
            })
            .alone(),
            case("of-a-clone-on-8-sms", |bench, answer| {
                let (graph, _) = bench.graph(bench.small)?;
                let clone = bench.gpu.cuGraphClone(graph)?.must()?;
                answer.add("time", compared(bench.time(clone)?, bench.base()?));
                Ok(())
            }),
        ]);
    }
    cases.push(Case::new("graph/copy-from-the-host-on-8-sms", |gpu, answer| {
        let bench = Bench::new(gpu, Kind::Fill)?;
        let host = gpu.cuMemAllocHost(gpu.timed_bytes())?.must()?;
        let mut times = Vec::new();
        for context in [bench.primary, bench.small] {
            let params = CUDA_MEMCPY3D_v2 {
                srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
                srcHost: host,
                ..bench.copy()
            };
            let graph = gpu.graph()?;
            gpu.cuGraphAddMemcpyNode(graph, &[], &params, context)?.must()?;
            times.push(bench.time(graph)?);
        }
        answer.add("time", compared(times[1], times[0]));
        gpu.cuMemFreeHost(host)?.must()?;
        bench.end()
    }));
    cases
}

/// Times nodes in contexts of several sizes, launched in streams of others.
fn on_sms(bench: &Bench<'_>, answer: &mut Answer<'_>) -> Outcome {
    let gpu = bench.gpu;
    let middle = gpu.context_of(gpu.green_with(32)?)?;
    let base = bench.base()?;
    for (which, context) in [("8_sms", bench.small), ("32_sms", middle)] {
        answer.add(which, compared(bench.time(bench.graph(context)?.0)?, base));
    }
    for (which, context) in [("8_sms", bench.small), ("primary", bench.primary)] {
        let exec = gpu.executable(bench.graph(context)?.0)?;
        let time = bench.time_of(exec, bench.small_stream)?;
        answer.add(format!("{which}_launched_on_8_sms"), compared(time, base));
    }
    Ok(())
}

/// Times a node that was captured in a stream of the small partition and is launched in the primary context.
fn captured(bench: &Bench<'_>, answer: &mut Answer<'_>) -> Outcome {
    let (gpu, stream) = (bench.gpu, bench.small_stream);
    let graph = gpu.captured(stream, || match bench.kind {
        Kind::Fill => gpu.cuMemsetD8Async(bench.to, 7, gpu.timed_bytes(), stream)?.must(),
        Kind::Copy => {
            gpu.cuMemcpyDtoDAsync(bench.to, bench.from, gpu.timed_bytes(), stream)?.must()
        }
    })?;
    answer.add("time", compared(bench.time(graph)?, bench.base()?));
    Ok(())
}

//! A captured graph that is moved to a partition, compared with the same graph captured there.
#![allow(unsafe_code, reason = "calls the driver and launches graphs")]

use std::collections::BTreeSet;
use std::time::Duration;

use green_ctx::sys::{CUdeviceptr, CUresult};
use green_ctx::{
    Graph, Stream, StreamOptions,
    context::Context,
    event::EventOptions,
    graph::{CaptureMode, GraphExec},
    verify,
};
use green_ctx_cli::jobs::cublas::{Cublas, Handle, Product};

use super::Found;
use crate::kernels::Marks;
use crate::load::square_product;
use crate::measure::{Times, figure, median};
use crate::report::Unit;
use crate::setup::{Bench, Failure, Result};

pub(super) const ABOUT: &str = "A graph of a memset, cuBLAS's product of 4096³ in bf16 added to \
    the cleared memory, an elementwise kernel on the result, and a kernel with one block per SM \
    of the device, which marks where it ran, after a memset of the marks. It is captured on a \
    plain stream and moved to a partition of 32 SMs, and captured in that partition. Device time \
    of each in turn, between two events. Without cuBLAS only the marks remain.";

const SMS: u32 = 32;
/// Rows and columns of the product's matrices.
const SIDE: usize = 4096;

/// The memory and the product that the graphs use.
struct Work<'a> {
    bench: &'a Bench,
    product: Option<(&'a Cublas, Product)>,
    marks: Marks,
}

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let split = bench.device.resources().sm()?.split([SMS])?;
    let groups = split.groups.into_iter().map(|group| bench.device.create_context(group));
    let contexts: Vec<Context> = groups.collect::<std::result::Result<_, _>>()?;
    let own = verify::contexts(&contexts, Duration::from_millis(1))?.partitions[0].observed_sms();
    let (plain, stream) =
        (bench.plain_stream()?, contexts[0].create_stream(StreamOptions::default())?);

    let product = |cublas| Ok::<_, Failure>((cublas, square_product(&bench.device, SIDE)?));
    let product = bench.loads.cublas().map(product);
    let marks = Marks::new(&bench.device, 1, bench.device.sm_count()?)?;
    let work = Work { bench, product: product.transpose()?, marks };
    // The graphs use the workspaces of these handles.
    let (captured, _handle) = work.capture(&plain)?;
    let moved = captured.retarget(&contexts[0])?.instantiate()?;
    let (there, _handle_there) = work.capture(&stream)?;
    let there = there.instantiate()?;
    let captured = captured.instantiate()?;

    let expected = work.results(&captured, &plain)?;
    let (numbers, sms) = work.results(&moved, &stream)?;
    let differ = numbers.iter().zip(&expected.0).filter(|(a, b)| a != b).count();
    let (times, ratio) = work.times([&captured, &moved, &there], &[&plain, &stream, &stream])?;

    let mut found = Found::default();
    let count = |name, value: usize| figure(name, Unit::Count, value as f64);
    found.figures = vec![
        count("products in the graph", usize::from(work.product.is_some())),
        count("numbers compared", numbers.len()),
        count("numbers that differ", differ),
        count("SMs where it was captured", expected.1.len()),
        count("SMs not its own", sms.difference(&own).count()),
        count("own SMs not used", own.difference(&sms).count()),
        figure("moved to captured there", Unit::Times, ratio),
    ];
    let names = ["on all SMs", "moved", "captured there"];
    found.samples = names.into_iter().zip(times).map(|(name, times)| times.sample(name)).collect();
    Ok(found)
}

impl Work<'_> {
    fn capture(&self, stream: &Stream) -> Result<(Graph, Option<Handle>)> {
        let Work { bench, product, marks } = self;
        let handle = product.as_ref().map(|(cublas, _)| Handle::new(cublas, stream)).transpose()?;
        let graph = stream.capture(CaptureMode::Relaxed, || {
            fill(stream, marks.memory())?;
            if let (Some((_, product)), Some(handle)) = (product, &handle) {
                let numbers = product.product();
                fill(stream, (numbers.as_raw(), 2 * numbers.len()))?;
                handle.launch(product, 1.0)?;
                bench.kernels.halve(stream, numbers)?;
            }
            Ok::<_, Failure>(bench.kernels.mark(stream, marks, 0, bench.device.sm_count()?)?)
        })?;
        Ok((graph, handle))
    }

    /// Launches a graph. Returns the numbers that it leaves, and the SMs that it ran on.
    fn results(&self, graph: &GraphExec, stream: &Stream) -> Result<(Vec<u16>, BTreeSet<u32>)> {
        self.launch(graph, stream)?;
        let marks = self.marks.read(stream)?;
        let sms = marks.into_iter().flatten().flatten().collect();
        let numbers = self.product.as_ref().map(|(_, product)| product.product().read(stream));
        Ok((numbers.transpose()?.unwrap_or_default(), sms))
    }

    fn launch(&self, graph: &GraphExec, stream: &Stream) -> Result<()> {
        // SAFETY: `self` and the bench keep the graph's kernels and memory alive, and freeing memory waits for
        // the device's work. The launches run one after the other.
        Ok(unsafe { stream.launch_graph(graph) }?)
    }

    /// Returns the times of graphs on their streams, in turn, and the median ratio of the last two.
    fn times(&self, graphs: [&GraphExec; 3], streams: &[&Stream; 3]) -> Result<([Times; 3], f64)> {
        let count = self.bench.count(200, 3);
        let mut times = [(); 3].map(|()| Times::with_capacity(count));
        let timed = || self.bench.device.create_event(EventOptions::default().timing(true));
        let (start, end) = (timed()?, timed()?);
        for round in 0..count + 1 {
            for ((graph, stream), times) in graphs.into_iter().zip(streams).zip(&mut times) {
                stream.record(&start)?;
                self.launch(graph, stream)?;
                stream.record(&end)?;
                end.synchronize()?;
                if round > 0 {
                    times.push(end.elapsed_since(&start)?);
                }
            }
        }
        let ratio = median(times[1].ratios(&times[2]));
        Ok((times, ratio))
    }
}

/// Clears memory.
fn fill(stream: &Stream, (address, bytes): (CUdeviceptr, usize)) -> Result<()> {
    let fill = stream.context().device().driver().api().cuMemsetD8Async()?;
    // SAFETY: `address` is a buffer of `bytes` bytes, and freeing it waits for the device's work.
    let status = unsafe { fill(address, 0, bytes, stream.as_raw()) };
    if status == CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(format!("cuMemsetD8Async failed: {status}").into())
    }
}

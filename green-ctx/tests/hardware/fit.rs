//! The number of blocks that run at the same time on a partition, and the refusal of launches that need more.

use std::collections::BTreeSet;

use green_ctx::{
    Device, DeviceBuffer, Error, Kernel, LaunchConfig, Library, SplitRequest, Stream,
    StreamOptions, context::Context, fit::Fit, graph::CaptureMode, resource::Granularity,
};

use crate::common::{Outcome, device, kernels, partition};

/// Words that each block of the probe writes: its SM, its start and its end.
const WORDS: usize = 3;
/// How long a block stays, in nanoseconds: longer than the start of all blocks of a launch takes.
const STAY: u64 = 2_000_000;

/// A partition with a stream, the probe, and memory for the probe's results.
pub(crate) struct Bench {
    context: Context,
    stream: Stream,
    kernel: Kernel,
    results: DeviceBuffer<u64>,
}

impl Bench {
    fn new(device: &Device, sm_count: u32) -> green_ctx::Result<Bench> {
        Bench::on(device, partition(device, sm_count)?)
    }

    pub(crate) fn on(device: &Device, context: Context) -> green_ctx::Result<Bench> {
        let stream = context.create_stream(StreamOptions::default())?;
        let (kernel, results) =
            (kernels::probe(device)?, DeviceBuffer::zeroed(device, 2048 * WORDS)?);
        Ok(Bench { context, stream, kernel, results })
    }

    pub(crate) fn fit(&self, config: LaunchConfig) -> green_ctx::Result<Fit> {
        self.kernel.fit(&self.context, config)
    }

    pub(crate) fn launch(&self, config: LaunchConfig) -> green_ctx::Result<()> {
        // SAFETY: the arguments match the kernel's two parameters, and `results` has room for more blocks than
        // the tests launch. Freeing `results` waits for the work.
        unsafe { self.stream.launch(&self.kernel, config, (self.results.as_argument(), STAY)) }
    }

    /// Launches a grid and checks that all its blocks ran at the same time.
    #[track_caller]
    fn runs_at_once(&self, config: LaunchConfig, blocks: u32) -> Outcome {
        self.launch(config)?;
        self.was_at_once(blocks)
    }

    /// Returns when the first block of the last launch began and when the last block ended, in nanoseconds of
    /// the device's clock.
    pub(crate) fn ran(&self) -> green_ctx::Result<(u64, u64)> {
        let words = self.results.read(&self.stream)?;
        let ran: Vec<&[u64]> = words.chunks_exact(WORDS).filter(|block| block[2] > 0).collect();
        let start = ran.iter().map(|block| block[1]).min().unwrap_or(0);
        Ok((start, ran.iter().map(|block| block[2]).max().unwrap_or(0)))
    }

    /// Checks that `blocks` blocks ran, that they all overlapped, and that they used no more SMs than the
    /// partition has.
    #[track_caller]
    pub(crate) fn was_at_once(&self, blocks: u32) -> Outcome {
        let words = self.results.read(&self.stream)?;
        let written = words.chunks_exact(WORDS).filter(|block| block[2] > 0);
        let ran: Vec<&[u64]> = written.collect();
        assert_eq!(ran.len(), blocks as usize);
        let last_start = ran.iter().map(|block| block[1]).max();
        let first_end = ran.iter().map(|block| block[2]).min();
        assert!(last_start < first_end, "a block began after another one's end");
        let sms: BTreeSet<u64> = ran.iter().map(|block| block[0] & 0xFFFF_FFFF).collect();
        assert!(sms.len() <= self.context.sm_count()? as usize, "{sms:?}");
        Ok(())
    }

    /// Checks that a launch is refused, and returns the fit that the error reports.
    #[track_caller]
    fn refused(&self, config: LaunchConfig) -> Result<Fit, Box<dyn std::error::Error>> {
        let error = self.launch(config).expect_err("it does not fit");
        assert!(error.is_misuse(), "{error}");
        let Error::DoesNotFit(reported) = error else { return Err(error.into()) };
        assert_eq!(reported.fit, self.fit(config)?);
        // A refused launch submits nothing.
        assert!(self.stream.is_idle()?);
        Ok(reported.fit)
    }
}

#[test]
fn what_fits_is_the_partitions() -> Outcome {
    let device = device()?;
    let primary = Bench::on(&device, device.primary_context()?)?;
    for sm_count in [8, 64] {
        let bench = Bench::new(&device, sm_count)?;
        for threads in [32, 1024] {
            let config = LaunchConfig::new(1, threads);
            let (fit, all) = (bench.fit(config)?, primary.fit(config)?);
            assert_eq!((fit.sm_count, all.sm_count), (sm_count, device.sm_count()?));
            // An SM holds the same number of blocks in every partition.
            assert!(fit.blocks_per_sm > 0 && fit.blocks_per_sm == all.blocks_per_sm, "{fit}");
            for fit in [&fit, &all] {
                assert_eq!(fit.resident_blocks, fit.blocks_per_sm * fit.sm_count, "{fit}");
                assert_eq!(fit.cooperative_blocks(), fit.resident_blocks);
                assert_eq!(fit.persistent_grid(), (fit.resident_blocks, 1, 1));
                assert_eq!(fit.collective_blocks(1), fit.resident_blocks);
                assert!(fit.collective_blocks(3) * 3 <= fit.resident_blocks, "{fit}");
                assert!(fit.fits_at_once());
                let in_clusters: Vec<u32> =
                    fit.clusters.iter().map(|cluster| cluster.size * cluster.count).collect();
                assert!(in_clusters.iter().all(|blocks| *blocks <= fit.resident_blocks), "{fit}");
                if threads == 1024 {
                    // The larger the clusters, the fewer blocks fit.
                    assert_eq!(in_clusters[0], fit.resident_blocks, "{fit}");
                    assert!(in_clusters.is_sorted_by(|fewer, more| fewer >= more), "{fit}");
                }
                let largest = fit.clusters.last().map(|cluster| cluster.size);
                assert_eq!(largest, Some(fit.largest_cluster), "{fit}");
            }
        }
        let beyond =
            LaunchConfig::new(bench.fit(LaunchConfig::new(1, 32))?.resident_blocks + 1, 32);
        assert!(!bench.fit(beyond)?.fits_at_once());
    }
    Ok(())
}

#[test]
fn a_cooperative_grid_that_just_fits_runs() -> Outcome {
    let device = device()?;
    for threads in [32, 1024] {
        let bench = Bench::new(&device, 8)?;
        let most = bench.fit(LaunchConfig::new(1, threads))?.cooperative_blocks();
        let config = |blocks| LaunchConfig::new(blocks, threads).cooperative(true);
        bench.runs_at_once(config(most), most)?;
        let fit = bench.refused(config(most + 1))?;
        assert_eq!((fit.blocks, fit.resident_blocks), (u64::from(most) + 1, most));
        // The same number of blocks in another shape is refused too.
        bench.refused(LaunchConfig::with_shape((1, most, 2), (threads, 1, 1)).cooperative(true))?;
        // A launch that is not cooperative runs with any number of blocks.
        bench.launch(LaunchConfig::new(most + 1, threads).cooperative(false))?;
        bench.stream.synchronize()?;
    }
    Ok(())
}

#[test]
fn a_persistent_grid_is_there_at_once() -> Outcome {
    let device = device()?;
    let bench = Bench::new(&device, 16)?;
    let grid = bench.fit(LaunchConfig::new(1, 1024))?.persistent_grid();
    bench.runs_at_once(LaunchConfig::with_shape(grid, (1024, 1, 1)), grid.0)
}

#[test]
fn clusters_that_just_fit_run() -> Outcome {
    let device = device()?;
    let bench = Bench::new(&device, 16)?;
    let sizes = bench.fit(LaunchConfig::new(1, 1024))?.clusters;
    assert!(sizes.iter().any(|cluster| cluster.size > 1), "{sizes:?}");
    for cluster in sizes {
        let bench = Bench::on(&device, bench.context.clone())?;
        let config = |clusters: u32| {
            LaunchConfig::new(clusters * cluster.size, 1024).cluster((cluster.size, 1, 1))
        };
        let fit = bench.fit(config(1))?;
        assert_eq!(fit.resident_blocks, cluster.size * cluster.count);
        assert_eq!(fit.persistent_grid(), (fit.resident_blocks, 1, 1));
        let most = fit.resident_blocks;
        bench.runs_at_once(config(cluster.count).cooperative(true), most)?;
        bench.refused(config(cluster.count + 1).cooperative(true))?;
        // Clusters that do not wait for each other may outnumber the places.
        bench.launch(config(cluster.count + 1))?;
        bench.stream.synchronize()?;
    }
    // More blocks per cluster than any device has SMs.
    let fit = bench.refused(LaunchConfig::new(1024, 1024).cluster((1024, 1, 1)))?;
    assert_eq!(fit.resident_blocks, 0);
    assert_eq!(fit.persistent_grid().0, 0);
    Ok(())
}

#[test]
fn clusters_that_a_small_partition_has_no_room_for_are_refused() -> Outcome {
    let device = device()?;
    let request = SplitRequest::from([2]).granularity(Granularity::Fine);
    let group = device.resources().sm()?.split(request)?.groups.remove(0);
    let bench = Bench::on(&device, device.create_context(group)?)?;
    // A cluster of 8192 threads, on two SMs of 2048 threads each.
    let fit = bench.refused(LaunchConfig::new(8, 1024).cluster((8, 1, 1)))?;
    assert_eq!((fit.sm_count, fit.resident_blocks), (2, 0), "{fit}");
    assert!(fit.clusters.iter().all(|cluster| cluster.size < 8), "{fit}");
    bench.runs_at_once(LaunchConfig::new(4, 1024).cooperative(true), 4)
}

#[test]
fn a_kernels_own_clusters_count() -> Outcome {
    let device = device()?;
    let context = partition(&device, 8)?;
    let stream = context.create_stream(StreamOptions::default())?;
    let library = Library::from_ptx(&device, kernels::CLUSTERED)?;
    let (pairs, any_size) = (library.kernel("pairs")?, library.kernel("any_size")?);
    // SAFETY: the kernels have no parameters and touch no memory.
    let launch = |kernel: &Kernel, config| unsafe { stream.launch(kernel, config, ()) };

    let config = |blocks| LaunchConfig::new(blocks, 32).cooperative(true);
    let fit = pairs.fit(&context, config(2))?;
    assert_eq!(fit.cluster, Some((2, 1, 1)));
    assert_eq!(fit.clusters.len(), 1, "{fit}");
    assert_eq!(fit.resident_blocks, 2 * fit.clusters[0].count);
    launch(&pairs, config(fit.resident_blocks))?;
    let error = launch(&pairs, config(fit.resident_blocks + 2)).expect_err("one pair more");
    assert!(matches!(error, Error::DoesNotFit(_)), "{error:?}");
    for (config, problem) in [
        (config(3), "cannot run in clusters of 2 blocks, which do not divide a grid of 3"),
        (config(4).cluster((4, 1, 1)), "requires clusters of 2 blocks and cannot"),
    ] {
        let error = launch(&pairs, config).expect_err(problem);
        assert!(matches!(error, Error::InvalidRequest(_)), "{error:?}");
        assert!(error.to_string().contains(problem), "{error}");
    }

    let error = launch(&any_size, config(2)).expect_err("no cluster size was given");
    assert!(error.to_string().contains("can only be launched in clusters"), "{error}");
    let config = config(8).cluster((4, 1, 1));
    let fit = any_size.fit(&context, config)?;
    assert!(fit.fits_at_once() && fit.largest_cluster >= 4, "{fit}");
    launch(&any_size, config)?;
    stream.synchronize()?;
    Ok(())
}

/// The driver accepts a cooperative launch that does not fit as a node of a graph, and the graph never ends
/// (recorded on an H200). This crate must refuse it.
#[test]
fn captures_take_only_what_fits() -> Outcome {
    let device = device()?;
    let bench = Bench::new(&device, 8)?;
    let other = partition(&device, 8)?;
    let config = |blocks| LaunchConfig::new(blocks, 1024).cooperative(true);
    let mut most = 0;
    let graph = bench.stream.capture(CaptureMode::Global, || -> Outcome {
        // The kernel has not been used before: this call loads it.
        most = bench.fit(config(1))?.cooperative_blocks();
        assert_eq!(bench.kernel.fit(&other, config(1))?.cooperative_blocks(), most);
        let error = bench.launch(config(most + 1)).expect_err("it does not fit");
        assert!(matches!(error, Error::DoesNotFit(_)), "{error:?}");
        bench.launch(config(most))?;
        Ok(())
    })?;
    assert_eq!(graph.node_count()?, 1);
    let exec = graph.instantiate()?;
    // SAFETY: `bench` keeps the kernel and its memory alive, and no other work uses the memory.
    unsafe { bench.stream.launch_graph(&exec) }?;
    bench.was_at_once(most)
}

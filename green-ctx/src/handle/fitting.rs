//! Types that describe how many blocks and clusters of a kernel fit on a context's SMs. Errors contain some of these
//! types.

use std::fmt;

use green_ctx_sys::{CUfunction, CUkernel};

/// The number of blocks and clusters of a kernel that can be resident at the same time on a context's SMs, as the
/// driver calculates it.
///
/// The figures assume that the SMs are idle. Earlier work, and work on other streams of the context, can occupy part of
/// the SMs until that work is done.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, LaunchConfig, Library, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let ptx = ".version 5.0 .target sm_52 .address_size 64 .visible .entry work() { ret; }";
/// # let kernel = Library::from_ptx(&device, ptx)?.kernel("work")?;
/// let group = device.resources().sm()?.split([64])?.groups.remove(0);
/// let partition = device.create_context(group)?;
/// let fit = kernel.fit(&partition, LaunchConfig::new(264, 1024))?;
/// // Two blocks per SM, on the partition's 64 SMs and not on the device's 132.
/// assert_eq!((fit.sm_count, fit.blocks_per_sm, fit.resident_blocks), (64, 2, 128));
/// assert!(!fit.fits_at_once());
/// assert_eq!(fit.persistent_grid(), (128, 1, 1));
/// println!("{fit}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fit {
    /// The kernel's name.
    pub kernel: String,
    /// The number of blocks in the requested grid.
    pub blocks: u64,
    /// The number of threads per block.
    pub threads: u32,
    /// The dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// The number of blocks of a cluster in each dimension, as set in the launch configuration or required by the
    /// kernel. `None` if the kernel is launched without clusters.
    pub cluster: Option<(u32, u32, u32)>,
    /// The number of SMs in the context. `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` reports the SMs of the whole
    /// device, even in a partition (recorded on an H200, driver 580.159.04).
    pub sm_count: u32,
    /// The number of the context's SMs that other partitions may also use. Blocks start on these SMs only if the other
    /// partitions leave capacity there, so a grid whose blocks must all be resident may have to wait.
    ///
    /// A cooperative grid starts only once all its blocks fit at the same time (recorded on an H200 and an H100, driver
    /// 580.159.04). If blocks of an ordinary launch wait for each other, the resident blocks hold their SMs while they
    /// wait. Such blocks wait forever if the other partitions' work does not end.
    #[cfg_attr(feature = "serde", serde(default))]
    pub shared_sms: u32,
    /// The number of blocks that fit on one SM (`cuOccupancyMaxActiveBlocksPerMultiprocessor`). The number is 0 if no
    /// SM can run such a block.
    pub blocks_per_sm: u32,
    /// The number of blocks that can be resident at the same time. Without clusters, this is `blocks_per_sm` times the
    /// number of SMs. With clusters, this is the number of blocks in `cuOccupancyMaxActiveClusters` clusters. The
    /// number is 0 if not even one block or cluster fits.
    pub resident_blocks: u32,
    /// The cluster sizes that fit, out of 1, 2, 4, 8 and 16 blocks, each with the number of clusters that can be
    /// resident at the same time. If the kernel requires a cluster size, the list contains no other size. The list is
    /// empty on devices without clusters (before compute capability 9.0).
    ///
    /// Clusters of more than 8 blocks are possible only for a kernel on which
    /// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED` is set (`cuKernelSetAttribute`).
    pub clusters: Vec<ClusterFit>,
    /// The number of blocks in the largest cluster that fits, independent of the requested size
    /// (`cuOccupancyMaxPotentialClusterSize`). The number is 0 if no cluster fits.
    pub largest_cluster: u32,
}

/// The number of clusters of one size that can be resident at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClusterFit {
    /// The number of blocks per cluster.
    pub size: u32,
    /// The number of clusters.
    pub count: u32,
}

impl Fit {
    /// Returns whether all blocks of the requested grid can be resident at the same time, so that they can wait for
    /// each other.
    #[must_use]
    pub fn fits_at_once(&self) -> bool {
        self.blocks <= u64::from(self.resident_blocks)
    }

    /// Returns the maximum number of blocks of a cooperative launch, whose blocks must all be resident at the same
    /// time.
    ///
    /// Without clusters, an H200 accepts cooperative launches of exactly this many blocks, on the whole device and in
    /// partitions (recorded, driver 580.159.04). This has not been recorded for cooperative launches with clusters.
    #[must_use]
    pub fn cooperative_blocks(&self) -> u32 {
        self.resident_blocks
    }

    /// Returns the grid for a persistent kernel, whose blocks stay resident and fetch their work in a loop. The grid
    /// has as many blocks as can be resident, so every SM is full and no block waits for another one to end.
    ///
    /// The grid consists of whole clusters. The grid's first dimension is 0 if not even one block or cluster fits. On
    /// [shared SMs](Fit::shared_sms), a persistent kernel occupies the SMs for its whole run time. For such a job,
    /// request a number of SMs, not an open share such as `n..`.
    #[must_use]
    pub fn persistent_grid(&self) -> (u32, u32, u32) {
        let (x, y, z) = self.cluster.unwrap_or((1, 1, 1));
        let clusters = self.resident_blocks / blocks((x, y, z)).max(1);
        (clusters.saturating_mul(x), y, z)
    }

    /// Returns the maximum number of blocks (CTAs) that each of `concurrent` collectives may use. The collectives run
    /// on these SMs at the same time, on streams that do not wait for each other.
    ///
    /// Blocks of a collective hold their SMs while they wait for their peers, so all blocks of the collective must be
    /// resident. Otherwise, a resident block could wait for a block that in turn waits for the resident block's SM. If
    /// several collectives run at the same time, each could become only partly resident, so the blocks of all
    /// collectives must fit together. For a collective on several devices, use the minimum over the devices.
    #[must_use]
    pub fn collective_blocks(&self, concurrent: u32) -> u32 {
        let cluster = self.cluster.map_or(1, blocks).max(1);
        self.resident_blocks / cluster / concurrent.max(1) * cluster
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fit { kernel, threads, shared_bytes, sm_count, .. } = self;
        write!(f, "kernel {kernel}, blocks of {threads} threads")?;
        if *shared_bytes > 0 {
            write!(f, " and {shared_bytes} bytes of dynamic shared memory")?;
        }
        if let Some(cluster) = self.cluster {
            write!(f, ", clusters of {} blocks", Sides(cluster))?;
        }
        let (asked, resident) = (self.blocks, self.resident_blocks);
        writeln!(f, ", on {sm_count} SMs")?;
        if self.shared_sms > 0 {
            writeln!(
                f,
                "  {} of them are shared: a grid whose blocks must all be resident may have to wait",
                self.shared_sms
            )?;
        }
        writeln!(
            f,
            "  resident blocks: {resident}, {} per SM; requested: {asked}",
            self.blocks_per_sm
        )?;
        writeln!(f, "  largest cooperative grid: {} blocks", self.cooperative_blocks())?;
        writeln!(f, "  grid for a persistent kernel: {}", Sides(self.persistent_grid()))?;
        writeln!(f, "  blocks of a collective: {}", self.collective_blocks(1))?;
        write!(f, "  resident clusters: ")?;
        for (index, ClusterFit { size, count }) in self.clusters.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{count} of {size}")?;
        }
        if self.clusters.is_empty() {
            write!(f, "none")?;
        }
        Ok(())
    }
}

/// A launch that was refused because its blocks do not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DoesNotFit {
    /// True if the whole grid had to be resident at the same time.
    pub cooperative: bool,
    /// The requested launch, and the number of blocks that fit.
    pub fit: Fit,
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DoesNotFit { cooperative, fit } = self;
        let Fit { kernel, blocks, threads, shared_bytes, sm_count, blocks_per_sm, .. } = fit;
        if *cooperative {
            write!(f, "a cooperative grid of {blocks} blocks of kernel {kernel} does not fit")?;
        } else {
            write!(f, "kernel {kernel} does not fit")?;
        }
        if let Some(cluster) = fit.cluster {
            write!(f, " in clusters of {} blocks", Sides(cluster))?;
        }
        write!(f, " on {sm_count} SMs: ")?;
        if *blocks_per_sm == 0 {
            return write!(
                f,
                "no SM holds a block of {threads} threads with {shared_bytes} bytes of dynamic \
                 shared memory"
            );
        }
        let resident = fit.resident_blocks;
        match fit.cluster {
            Some(cluster) if resident > 0 => {
                let clusters = resident / self::blocks(cluster).max(1);
                write!(f, "at most {clusters} clusters ({resident} blocks) can be resident")
            }
            Some(_) => {
                write!(f, "not even one cluster fits; ")?;
                let sizes: Vec<String> =
                    fit.clusters.iter().map(|cluster| cluster.size.to_string()).collect();
                match sizes.as_slice() {
                    [] => write!(f, "clusters of other sizes do not fit either"),
                    sizes => write!(f, "clusters of {} blocks would fit", sizes.join(", ")),
                }
            }
            None => write!(
                f,
                "at most {resident} blocks can be resident, {blocks_per_sm} of {threads} threads per \
                 SM"
            ),
        }
    }
}

/// A handle of a kernel that another library loaded. The driver's launches and occupancy queries accept both kinds of
/// handle. Queries about a kernel's clusters use different driver calls for the two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawKernel {
    /// A kernel of a library, as returned by `cuLibraryGetKernel`.
    Kernel(CUkernel),
    /// A function of a module, as returned by `cuModuleGetFunction` and `cuKernelGetFunction`.
    Function(CUfunction),
}

/// The dimensions of a grid, block or cluster, in the form in which messages show them.
pub(crate) struct Sides(pub(crate) (u32, u32, u32));

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            (x, 1, 1) => write!(f, "{x}"),
            (x, y, z) => write!(f, "{x} × {y} × {z}"),
        }
    }
}

/// Returns the number of blocks in a grid or cluster with these dimensions, or of threads in a block.
pub(crate) fn blocks((x, y, z): (u32, u32, u32)) -> u32 {
    x.saturating_mul(y).saturating_mul(z)
}

//! What fits at once of a kernel, as data: errors carry it.

use std::fmt;

use green_ctx_sys::{CUfunction, CUkernel};

/// What fits at once of a kernel in one shape on a context's SMs, by the driver's account.
///
/// It is about the SMs when nothing else is on them: work that was submitted before, or to other
/// streams of the context, holds its share until it is done.
///
/// # Example
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
/// // Two blocks an SM, on the 64 SMs of the partition and not on the device's 132.
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
    /// The blocks that the configuration asks for.
    pub blocks: u64,
    /// The threads of a block.
    pub threads: u32,
    /// The dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The blocks of a cluster in each dimension: those of the configuration, or those that the
    /// kernel requires. `None` for a kernel that is launched without clusters.
    pub cluster: Option<(u32, u32, u32)>,
    /// The context's SMs. `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` would be the whole device's, in
    /// a partition too (recorded on an H200, driver 580.159.04).
    pub sm_count: u32,
    /// How many of them other partitions may use too. Blocks there come as the others leave room: a grid
    /// that has to be there at once may wait for them. A cooperative one begins as a whole then (recorded
    /// on an H200 and an H100, driver 580.159.04); blocks of a plain launch that wait for each other hold
    /// their SMs meanwhile, and wait for ever where the others stay.
    #[cfg_attr(feature = "serde", serde(default))]
    pub shared_sms: u32,
    /// How many of the blocks one SM holds
    /// (`cuOccupancyMaxActiveBlocksPerMultiprocessor`); 0 for a block that no SM can run.
    pub blocks_per_sm: u32,
    /// How many of the blocks are on the SMs at once: as many as each holds, or in clusters the
    /// blocks of as many clusters as there can be (`cuOccupancyMaxActiveClusters`). 0 where not even
    /// one fits.
    pub resident_blocks: u32,
    /// The sizes of clusters that fit, of 1, 2, 4, 8 and 16 blocks, and how many of each there can be
    /// at once. Empty on devices without clusters, those before compute capability 9.0. A kernel
    /// that requires a size has that one alone.
    ///
    /// More than 8 blocks are possible only for a kernel on which
    /// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED` is set (`cuKernelSetAttribute`).
    pub clusters: Vec<ClusterFit>,
    /// The blocks of the largest cluster that fits, whatever size was asked for
    /// (`cuOccupancyMaxPotentialClusterSize`); 0 where none does.
    pub largest_cluster: u32,
}

/// How many clusters of one size there can be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClusterFit {
    /// The blocks of a cluster.
    pub size: u32,
    /// The clusters that there can be at once.
    pub count: u32,
}

impl Fit {
    /// Whether all blocks of the configuration are on the SMs at once, so that they can wait for each
    /// other.
    #[must_use]
    pub fn fits_at_once(&self) -> bool {
        self.blocks <= u64::from(self.resident_blocks)
    }

    /// The most blocks of a cooperative launch, all of which have to be there at once. Without clusters
    /// an H200 takes exactly as many, on all of its SMs and on partitions (recorded, driver
    /// 580.159.04); with clusters nothing is recorded.
    #[must_use]
    pub fn cooperative_blocks(&self) -> u32 {
        self.resident_blocks
    }

    /// The grid that a persistent kernel should have, one whose blocks stay and fetch their work in a
    /// loop: as many blocks as are there at once, so that every SM is full and none of them has to
    /// wait for another's end before it begins. On [shared SMs](Fit::shared_sms) it takes them for as long
    /// as it runs: such a job wants a count, and no `n..`. It is made of whole clusters; its first side is 0
    /// where not even one block or cluster fits.
    #[must_use]
    pub fn persistent_grid(&self) -> (u32, u32, u32) {
        let (x, y, z) = self.cluster.unwrap_or((1, 1, 1));
        let clusters = self.resident_blocks / blocks((x, y, z)).max(1);
        (clusters.saturating_mul(x), y, z)
    }

    /// How many blocks (CTAs) each of `concurrent` collectives may use that run on these SMs at the
    /// same time, on streams that do not wait for each other.
    ///
    /// The blocks of a collective wait for their peers while they hold their SM, so that all of them
    /// must be there at once: a block that finds no room waits for one that waits for it. Of several
    /// collectives each may get a part of what it needs, unless there is room for all. Between
    /// devices the least of all is what each may use.
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
                "  {} of them are shared: a grid that must be there at once may wait for the sharers",
                self.shared_sms
            )?;
        }
        writeln!(
            f,
            "  blocks at once: {resident}, {} an SM; asked for: {asked}",
            self.blocks_per_sm
        )?;
        writeln!(f, "  largest cooperative grid: {} blocks", self.cooperative_blocks())?;
        writeln!(f, "  grid for a persistent kernel: {}", Sides(self.persistent_grid()))?;
        writeln!(f, "  blocks of a collective: {}", self.collective_blocks(1))?;
        write!(f, "  clusters at once: ")?;
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

/// Why a launch was refused: what was asked, and what there is room for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DoesNotFit {
    /// Whether the whole grid had to be there at once.
    pub cooperative: bool,
    /// What was asked for, and what fits.
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
                write!(f, "{clusters} clusters, {resident} blocks, are there at once")
            }
            Some(_) => {
                write!(f, "not one cluster is there at once; ")?;
                let sizes: Vec<String> =
                    fit.clusters.iter().map(|cluster| cluster.size.to_string()).collect();
                match sizes.as_slice() {
                    [] => write!(f, "nor is one of any other size"),
                    sizes => write!(f, "clusters of {} blocks would fit", sizes.join(", ")),
                }
            }
            None => write!(
                f,
                "{resident} blocks are there at once, {blocks_per_sm} of {threads} threads an SM"
            ),
        }
    }
}

/// The handle of a kernel that another library has loaded. The driver's launches and occupancy take
/// either form; the questions about a kernel's clusters differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawKernel {
    /// A kernel of a library, as `cuLibraryGetKernel` returns it.
    Kernel(CUkernel),
    /// A function of a module, as `cuModuleGetFunction` and `cuKernelGetFunction` return it.
    Function(CUfunction),
}

/// The sides of a grid, a block or a cluster.
pub(crate) struct Sides(pub(crate) (u32, u32, u32));

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            (x, 1, 1) => write!(f, "{x}"),
            (x, y, z) => write!(f, "{x} × {y} × {z}"),
        }
    }
}

/// The number of blocks of a shape, or of its threads.
pub(crate) fn blocks((x, y, z): (u32, u32, u32)) -> u32 {
    x.saturating_mul(y).saturating_mul(z)
}

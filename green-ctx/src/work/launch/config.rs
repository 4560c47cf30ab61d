//! The configuration of a launch.

use std::ptr;

use green_ctx_sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterSides, CUlaunchConfig, CUstream,
};

use crate::handle::error::{Error, Result};

/// The dimensions (x, y, z) of a grid, a block or a cluster.
pub(crate) type Shape = (u32, u32, u32);

/// The configuration of a launch: the grid, the block, the dynamic shared memory, and optional launch attributes.
///
/// # Examples
///
/// ```
/// use green_ctx::LaunchConfig;
///
/// // 64 blocks of 256 threads with 4 KiB of dynamic shared memory, in clusters of 2 blocks.
/// let config = LaunchConfig::new(64, 256).shared_bytes(4096).cluster((2, 1, 1));
/// # let _ = config;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a configuration does nothing until passed to a launch"]
pub struct LaunchConfig {
    pub(crate) grid: Shape,
    pub(crate) block: Shape,
    pub(crate) shared_bytes: u32,
    pub(crate) cluster: Option<Shape>,
    pub(crate) cooperative: bool,
    pub(crate) programmatic: bool,
}

impl LaunchConfig {
    /// Creates a configuration with a one-dimensional grid and one-dimensional blocks.
    pub const fn new(blocks: u32, threads_per_block: u32) -> LaunchConfig {
        LaunchConfig::with_shape((blocks, 1, 1), (threads_per_block, 1, 1))
    }

    /// Creates a configuration with a three-dimensional grid and three-dimensional blocks.
    pub const fn with_shape(grid: (u32, u32, u32), block: (u32, u32, u32)) -> LaunchConfig {
        LaunchConfig {
            grid,
            block,
            shared_bytes: 0,
            cluster: None,
            cooperative: false,
            programmatic: false,
        }
    }

    /// Sets the dynamic shared memory of each block, in bytes.
    pub const fn shared_bytes(mut self, bytes: u32) -> LaunchConfig {
        self.shared_bytes = bytes;
        self
    }

    /// Launches in clusters of the given shape. Blocks of one cluster run at the same time, on SMs of the same GPC.
    /// Each dimension of the cluster must divide the same dimension of the grid. Clusters need compute
    /// capability 9.0.
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")]
    pub const fn cluster(mut self, blocks: (u32, u32, u32)) -> LaunchConfig {
        self.cluster = Some(blocks);
        self
    }

    /// Sets whether the launch is cooperative. All blocks of a cooperative launch run at the same time, and may
    /// wait for each other.
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
    /// let parts = device.partition([16])?;
    /// let fit = kernel.fit(parts[0].context(), LaunchConfig::new(1, 1024))?;
    /// let config = LaunchConfig::new(fit.cooperative_blocks(), 1024).cooperative(true);
    /// // SAFETY: the kernel has no parameters and accesses no memory.
    /// unsafe { parts[0].stream().launch(&kernel, config, ()) }?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_COOPERATIVE")]
    pub const fn cooperative(mut self, cooperative: bool) -> LaunchConfig {
        self.cooperative = cooperative;
        self
    }

    /// Sets whether the kernel may begin before the previous kernel in the stream has ended (programmatic dependent
    /// launch).
    ///
    /// The device may begin the kernel early (cuda.h: "opportunistically") once every block of the previous kernel
    /// has ended or has allowed this by calling `cudaTriggerProgrammaticLaunchCompletion` (in PTX,
    /// `griddepcontrol.launch_dependents`). The SMs must also have room for the kernel's blocks. Before the kernel
    /// waits for the previous kernel (`cudaGridDependencySynchronize`, in PTX `griddepcontrol.wait`), it must not use
    /// that kernel's results, and must not write memory that the previous kernel still reads.
    ///
    /// The header allows the kernel to overlap the previous kernel in the stream. This crate also assumes that the
    /// kernel overlaps no other work for which the stream waits, such as work of an earlier partition on the same
    /// SMs. The header does not state this assumption explicitly. Programmatic dependent launch needs compute
    /// capability 9.0. This option has not been run on hardware yet.
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION")]
    pub const fn programmatic_dependent_launch(mut self, allowed: bool) -> LaunchConfig {
        self.programmatic = allowed;
        self
    }

    /// Returns whether blocks of the launch must be resident at the same time.
    pub(super) const fn is_together(&self) -> bool {
        self.cooperative || self.cluster.is_some()
    }

    /// Returns an error if a dimension of the grid, block or cluster is 0.
    pub(crate) fn check_sides(&self, kernel: &str) -> Result<()> {
        let LaunchConfig { grid, block, cluster, .. } = *self;
        let shapes = [("a grid", Some(grid)), ("a block", Some(block)), ("a cluster", cluster)];
        for (what, shape) in shapes {
            if let Some((x, y, z)) = shape.filter(|&(x, y, z)| x == 0 || y == 0 || z == 0) {
                return Err(Error::InvalidRequest(format!(
                    "kernel {kernel} cannot run in {what} of {x} × {y} × {z}; each dimension must be at \
                     least 1"
                )));
            }
        }
        Ok(())
    }

    /// Returns the launch attributes and their number.
    pub(super) fn attributes(&self) -> ([CUlaunchAttribute; 3], usize) {
        let mut attributes = [attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE); 3];
        let all = [
            self.cluster.map(cluster_attribute),
            self.cooperative.then(cooperative_attribute),
            self.programmatic.then(programmatic_attribute),
        ];
        let mut count = 0;
        for attribute in all.into_iter().flatten() {
            attributes[count] = attribute;
            count += 1;
        }
        (attributes, count)
    }

    /// Returns the driver's configuration for a launch with `grid`, without launch attributes.
    pub(crate) fn driver_config(&self, grid: Shape, stream: CUstream) -> CUlaunchConfig {
        CUlaunchConfig {
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: grid.2,
            blockDimX: self.block.0,
            blockDimY: self.block.1,
            blockDimZ: self.block.2,
            sharedMemBytes: self.shared_bytes,
            hStream: stream,
            attrs: ptr::null_mut(),
            numAttrs: 0,
        }
    }
}

fn attribute(id: CUlaunchAttributeID) -> CUlaunchAttribute {
    CUlaunchAttribute { id, pad: [0; 4], value: CUlaunchAttributeValue { pad: [0; 64] } }
}

pub(crate) fn cluster_attribute((x, y, z): Shape) -> CUlaunchAttribute {
    let mut attribute = attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    attribute.value.clusterDim = ClusterSides { x, y, z };
    attribute
}

fn cooperative_attribute() -> CUlaunchAttribute {
    let mut attribute = attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
    attribute.value.cooperative = 1;
    attribute
}

fn programmatic_attribute() -> CUlaunchAttribute {
    let serialization = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    let mut attribute = attribute(serialization);
    attribute.value.programmaticStreamSerializationAllowed = 1;
    attribute
}

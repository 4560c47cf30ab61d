//! What a launch is configured with.

use std::ptr;

use green_ctx_sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterSides, CUlaunchConfig, CUstream,
};

use crate::handle::error::{Error, Result};

/// The sides of a grid, of a block or of a cluster.
pub(crate) type Shape = (u32, u32, u32);

/// How many blocks of how many threads run, with how much shared memory, which of them have to be there at
/// once, and whether they wait for the kernel before.
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
    /// A grid of blocks, in one dimension.
    pub const fn new(blocks: u32, threads_per_block: u32) -> LaunchConfig {
        LaunchConfig::with_shape((blocks, 1, 1), (threads_per_block, 1, 1))
    }

    /// A grid in three dimensions.
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

    /// Launches in clusters of so many blocks in each dimension: those of a cluster run at the same
    /// time, on SMs that lie together. The grid must be made of whole clusters. Needs compute
    /// capability 9.0.
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")]
    pub const fn cluster(mut self, blocks: (u32, u32, u32)) -> LaunchConfig {
        self.cluster = Some(blocks);
        self
    }

    /// Whether the launch is cooperative: all blocks of the grid run at the same time, and may wait
    /// for each other.
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_COOPERATIVE")]
    pub const fn cooperative(mut self, cooperative: bool) -> LaunchConfig {
        self.cooperative = cooperative;
        self
    }

    /// Whether the kernel may begin before the one before it in the stream has ended, a programmatic
    /// dependent launch. The device lets it begin once every block of that kernel has asked for it
    /// (`cudaTriggerProgrammaticLaunchCompletion`, in PTX `griddepcontrol.launch_dependents`) or has ended,
    /// where there is room (cuda.h: "opportunistically"). What it does before it waits for that kernel
    /// (`cudaGridDependencySynchronize`, in PTX `griddepcontrol.wait`) must not depend on that kernel's
    /// results, nor write what that kernel still reads.
    ///
    /// The header allows it to overlap the kernel before it in the stream. This crate relies on it overlapping
    /// nothing else that the stream waits for, such as the work of a former partition on its SMs, which the
    /// header does not say in so many words. Needs compute capability 9.0. Not yet run on hardware.
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION")]
    pub const fn programmatic_dependent_launch(mut self, allowed: bool) -> LaunchConfig {
        self.programmatic = allowed;
        self
    }

    /// Whether blocks have to be there at once.
    pub(super) const fn is_together(&self) -> bool {
        self.cooperative || self.cluster.is_some()
    }

    /// Refuses a grid, a block or a cluster with a side of 0.
    pub(crate) fn check_sides(&self, kernel: &str) -> Result<()> {
        let LaunchConfig { grid, block, cluster, .. } = *self;
        let shapes = [("a grid", Some(grid)), ("a block", Some(block)), ("a cluster", cluster)];
        for (what, shape) in shapes {
            if let Some((x, y, z)) = shape.filter(|&(x, y, z)| x == 0 || y == 0 || z == 0) {
                return Err(Error::InvalidRequest(format!(
                    "kernel {kernel} cannot run in {what} of {x} × {y} × {z}; each side is 1 or more"
                )));
            }
        }
        Ok(())
    }

    /// The launch attributes, and how many of them there are.
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

    /// The configuration in the driver's form, with another grid and without attributes.
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

//! The driver's occupancy calculations for one function in one launch configuration.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::{Api, CUfunction, CUlaunchConfig, CUresult, CUstream};

use crate::handle::error::call;
use crate::handle::error::{Result, check};
use crate::handle::fitting::blocks;
use crate::work::launch::{LaunchConfig, Shape, cluster_attribute};

/// A live function and a launch configuration. The function may also be a kernel that is cast to a function, as in
/// launches (recorded on an H200, driver 580.159.04). The context whose SMs are counted must be current.
pub(crate) struct Occupancy<'a> {
    pub(crate) api: &'a Api,
    pub(crate) function: CUfunction,
    /// The stream of the launch. Null means any stream of the current context.
    pub(crate) stream: CUstream,
    pub(crate) config: LaunchConfig,
}

impl Occupancy<'_> {
    /// Returns the number of blocks that one SM holds, and the number that `sm_count` SMs hold at the same time.
    pub(crate) fn room(&self, cluster: Option<Shape>, sm_count: u32) -> Result<(u32, u32)> {
        let per_sm = self.blocks_per_sm()?;
        let resident = match cluster {
            // The driver's answer about clusters of such blocks is not recorded.
            _ if per_sm == 0 => 0,
            Some(cluster) => {
                let clusters = self.active_clusters(self.config.grid, cluster)?;
                clusters.saturating_mul(blocks(cluster))
            }
            None => per_sm.saturating_mul(sm_count),
        };
        Ok((per_sm, resident))
    }

    fn blocks_per_sm(&self) -> Result<u32> {
        let LaunchConfig { block, shared_bytes, .. } = self.config;
        let threads = i32::try_from(blocks(block)).unwrap_or(i32::MAX);
        let mut count = 0;
        // SAFETY: the function is alive, and `count` is a live local.
        unsafe {
            call!(
                self.api,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &raw mut count,
                    self.function,
                    threads,
                    shared_bytes as usize,
                )
            )
        }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns the number of clusters that fit at the same time. Returns 0 for a size that the kernel or the device
    /// does not allow.
    pub(super) fn active_clusters(&self, grid: Shape, cluster: Shape) -> Result<u32> {
        let ask = self.api.cuOccupancyMaxActiveClusters()?;
        let mut attribute = cluster_attribute(cluster);
        let config = CUlaunchConfig {
            attrs: &raw mut attribute,
            numAttrs: 1,
            ..self.config.driver_config(grid, self.stream)
        };
        let mut count = 0;
        // SAFETY: the function and the stream are alive. `count` and `config` are live locals,
        // and so is the one attribute of `config`.
        let status = unsafe { ask(&raw mut count, self.function, &raw const config) };
        if status == CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE {
            return Ok(0);
        }
        check("cuOccupancyMaxActiveClusters", status)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns the number of blocks in the largest cluster that fits. `give_one` adds a cluster attribute to the
    /// query. A kernel that can only be launched in clusters needs this attribute. The queries that were recorded on
    /// hardware do not have a cluster attribute.
    pub(super) fn largest_cluster(&self, give_one: bool) -> Result<u32> {
        let mut attribute = cluster_attribute((1, 1, 1));
        let config = CUlaunchConfig {
            attrs: &raw mut attribute,
            numAttrs: u32::from(give_one),
            ..self.config.driver_config(self.config.grid, self.stream)
        };
        let mut size = 0;
        // SAFETY: the function and the stream are alive. `size` and `config` are live locals,
        // and so is the attribute of `config`, if it has one.
        unsafe {
            call!(
                self.api,
                cuOccupancyMaxPotentialClusterSize(&raw mut size, self.function, &raw const config)
            )
        }?;
        Ok(u32::try_from(size).unwrap_or(0))
    }
}

//! The driver's arithmetic about one function in one shape.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::{Api, CUfunction, CUlaunchConfig, CUresult, CUstream};

use crate::handle::error::call;
use crate::handle::error::{Result, check};
use crate::handle::fitting::blocks;
use crate::work::launch::{LaunchConfig, Shape, cluster_attribute};

/// A living function, or a kernel taken for one as launches take it (recorded on an H200, driver
/// 580.159.04), in one shape. The context that it is asked about is current.
pub(crate) struct Occupancy<'a> {
    pub(crate) api: &'a Api,
    pub(crate) function: CUfunction,
    /// The stream that it is to run in; null for any of the current context's.
    pub(crate) stream: CUstream,
    pub(crate) config: LaunchConfig,
}

impl Occupancy<'_> {
    /// How many blocks an SM holds, and how many there are at once on so many.
    pub(crate) fn room(&self, cluster: Option<Shape>, sm_count: u32) -> Result<(u32, u32)> {
        let per_sm = self.blocks_per_sm()?;
        let resident = match cluster {
            // What the driver answers about clusters of such blocks is not recorded.
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
        // SAFETY: the function is alive, the pointer is to a live integer.
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

    /// How many clusters there can be at once; 0 for a size that the kernel or the device does not
    /// allow.
    pub(super) fn active_clusters(&self, grid: Shape, cluster: Shape) -> Result<u32> {
        let ask = self.api.cuOccupancyMaxActiveClusters()?;
        let mut attribute = cluster_attribute(cluster);
        let config = CUlaunchConfig {
            attrs: &raw mut attribute,
            numAttrs: 1,
            ..self.config.driver_config(grid, self.stream)
        };
        let mut count = 0;
        // SAFETY: function and stream are alive; the pointers are to a live integer and a live
        // configuration with one live attribute.
        let status = unsafe { ask(&raw mut count, self.function, &raw const config) };
        if status == CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE {
            return Ok(0);
        }
        check("cuOccupancyMaxActiveClusters", status)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The blocks of the largest cluster that fits. Asked as recorded, without a cluster, but for a
    /// kernel that has to be given one.
    pub(super) fn largest_cluster(&self, give_one: bool) -> Result<u32> {
        let mut attribute = cluster_attribute((1, 1, 1));
        let config = CUlaunchConfig {
            attrs: &raw mut attribute,
            numAttrs: u32::from(give_one),
            ..self.config.driver_config(self.config.grid, self.stream)
        };
        let mut size = 0;
        // SAFETY: function and stream are alive; the pointers are to a live integer and a live
        // configuration with one live attribute at most.
        unsafe {
            call!(
                self.api,
                cuOccupancyMaxPotentialClusterSize(&raw mut size, self.function, &raw const config)
            )
        }?;
        Ok(u32::try_from(size).unwrap_or(0))
    }
}

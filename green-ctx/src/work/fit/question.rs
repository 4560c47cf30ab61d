//! The driver's answers about a kernel in one launch configuration on a context's SMs.
#![allow(unsafe_code, reason = "calls the driver")]

use std::fmt;

use green_ctx_sys::{Api, CUdevice_attribute, CUfunction_attribute, CUstream};

use super::occupancy::Occupancy;
use super::{ClusterFit, Fit, RawKernel};
use crate::handle::capture::RelaxedCapture;
use crate::handle::context::Context;
use crate::handle::current::Scope;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::fitting::{Sides, blocks};
use crate::work::launch::{LaunchConfig, Shape};

/// The cluster sizes for which the driver is queried, in blocks.
const SIZES: [u32; 5] = [1, 2, 4, 8, 16];

/// A kernel, its launch configuration, and the context in which it would run.
pub(super) struct Question<'a> {
    /// The kernel, which is alive and belongs to the context's driver.
    pub(super) kernel: RawKernel,
    pub(super) name: &'a str,
    pub(super) context: &'a Context,
    /// The stream of the launch. Null means any stream of the context.
    pub(super) stream: CUstream,
    pub(super) config: LaunchConfig,
}

impl Question<'_> {
    /// Calls `ask` while the context is current, as the query for blocks requires (recorded on an H200, driver
    /// 580.159.04). The first query about a kernel may load the kernel. It is not recorded whether loading
    /// invalidates another thread's capture, so this thread's capture mode is relaxed during the call.
    pub(super) fn ask<R>(&self, ask: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        self.config.check_sides(self.name)?;
        let driver = self.context.device().driver();
        driver.check_process()?;
        let _relaxed = RelaxedCapture::enter(driver)?;
        let _scope = Scope::enter(driver, self.context.raw())?;
        ask(self)
    }

    fn api(&self) -> Result<&Api> {
        self.context.device().functions()
    }

    fn invalid(&self, problem: fmt::Arguments<'_>) -> Error {
        Error::InvalidRequest(format!("kernel {} {problem}", self.name))
    }

    /// Returns the cluster of the launch: the one in the configuration, or the one that the kernel requires.
    pub(super) fn cluster(&self) -> Result<Option<Shape>> {
        let (given, required) = (self.config.cluster, self.required_cluster()?);
        if let (Some(given), Some(required)) = (given, required)
            && given != required
        {
            let (given, required) = (Sides(given), Sides(required));
            return Err(self.invalid(format_args!(
                "requires clusters of {required} blocks and cannot run in clusters of {given}"
            )));
        }
        let Some(cluster) = given.or(required) else {
            if self.must_cluster()? {
                let problem = "can only be launched in clusters; set a cluster size";
                return Err(self.invalid(format_args!("{problem}")));
            }
            return Ok(None);
        };
        let grid = self.config.grid;
        let sides = [(grid.0, cluster.0), (grid.1, cluster.1), (grid.2, cluster.2)];
        if sides.iter().any(|(grid, cluster)| !grid.is_multiple_of(*cluster)) {
            let (grid, cluster) = (Sides(grid), Sides(cluster));
            return Err(self.invalid(format_args!(
                "cannot run in clusters of {cluster} blocks, which do not divide a grid of {grid}"
            )));
        }
        Ok(Some(cluster))
    }

    /// Returns the cluster size that was fixed when the kernel was compiled, or that was set as an attribute of the
    /// kernel.
    fn required_cluster(&self) -> Result<Option<Shape>> {
        use CUfunction_attribute as Attribute;
        let x = self.attribute(Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)?;
        if x == 0 {
            return Ok(None);
        }
        let y = self.attribute(Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT)?;
        let z = self.attribute(Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH)?;
        Ok(Some((x, y, z)).filter(|_| y != 0 && z != 0))
    }

    /// Returns whether the kernel can only be launched in clusters.
    fn must_cluster(&self) -> Result<bool> {
        let must = CUfunction_attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET;
        Ok(self.attribute(must)? != 0)
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32> {
        let device = self.context.device().as_raw();
        let mut value = 0;
        match self.kernel {
            // SAFETY: the kernel is alive (`Question::kernel`), and `value` is a live local.
            RawKernel::Kernel(kernel) => unsafe {
                call!(self.api()?, cuKernelGetAttribute(&raw mut value, attribute, kernel, device))
            },
            // SAFETY: the function is alive (`Question::kernel`), and `value` is a live local.
            RawKernel::Function(function) => unsafe {
                call!(self.api()?, cuFuncGetAttribute(&raw mut value, attribute, function))
            },
        }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Returns the number of blocks in the grid.
    pub(super) fn blocks(&self) -> u64 {
        let (x, y, z) = self.config.grid;
        u64::from(x).saturating_mul(u64::from(y)).saturating_mul(u64::from(z))
    }

    /// Returns the number of blocks that one SM holds, and the number that all SMs of the context hold at the same
    /// time.
    pub(super) fn room(&self, cluster: Option<Shape>) -> Result<(u32, u32)> {
        self.occupancy()?.room(cluster, self.context.sm_count()?)
    }

    fn occupancy(&self) -> Result<Occupancy<'_>> {
        let (api, function) = (self.api()?, self.kernel.as_function());
        Ok(Occupancy { api, function, stream: self.stream, config: self.config })
    }

    /// Returns the complete result. `cluster` is the cluster of the launch, if it has one.
    pub(super) fn fit(&self, cluster: Option<Shape>) -> Result<Fit> {
        let LaunchConfig { block, shared_bytes, .. } = self.config;
        let (blocks_per_sm, resident_blocks) = self.room(cluster)?;
        let mut fit = Fit {
            kernel: self.name.to_owned(),
            blocks: self.blocks(),
            threads: blocks(block),
            shared_bytes,
            cluster,
            sm_count: self.context.sm_count()?,
            shared_sms: self.context.group().map_or(0, |group| group.sm_count() - group.floor()),
            blocks_per_sm,
            resident_blocks,
            clusters: Vec::new(),
            largest_cluster: 0,
        };
        let clusters = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
        if blocks_per_sm == 0 || self.context.device().attribute(clusters)? == 0 {
            return Ok(fit);
        }
        let required = self.required_cluster()?;
        let shapes = match required {
            Some(required) => vec![required],
            None => SIZES.map(|size| (size, 1, 1)).to_vec(),
        };
        for shape in shapes {
            // A grid of 64 clusters, as in the recorded queries. The answer does not depend on the number.
            let grid = (shape.0.saturating_mul(64), shape.1, shape.2);
            let count = self.occupancy()?.active_clusters(grid, shape)?;
            if count > 0 {
                fit.clusters.push(ClusterFit { size: blocks(shape), count });
            }
        }
        let give_one = required.is_none() && self.must_cluster()?;
        fit.largest_cluster = self.occupancy()?.largest_cluster(give_one)?;
        Ok(fit)
    }
}

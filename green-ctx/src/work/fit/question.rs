//! The driver's answers about a kernel in one shape on a context's SMs.
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

/// The sizes of clusters that are asked about.
const SIZES: [u32; 5] = [1, 2, 4, 8, 16];

/// A kernel in one shape, and where it is to run.
pub(super) struct Question<'a> {
    /// Alive, and of the context's driver.
    pub(super) kernel: RawKernel,
    pub(super) name: &'a str,
    pub(super) context: &'a Context,
    /// The stream that it is to run in; null for any of the context's.
    pub(super) stream: CUstream,
    pub(super) config: LaunchConfig,
}

impl Question<'_> {
    /// Asks while the context is current, which the question about blocks needs (recorded on an H200,
    /// driver 580.159.04). The first question about a kernel may load it: whether that would
    /// invalidate another thread's capture is not recorded, so captures forbid this thread nothing
    /// meanwhile.
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

    /// The cluster that is launched: what the configuration says, or what the kernel requires.
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
                return Err(
                    self.invalid(format_args!("runs in clusters only, of a size to be set"))
                );
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

    /// The cluster that the kernel was compiled for, or that was set on it.
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

    /// Whether the kernel is launched in clusters or not at all.
    fn must_cluster(&self) -> Result<bool> {
        let must = CUfunction_attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET;
        Ok(self.attribute(must)? != 0)
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32> {
        let device = self.context.device().as_raw();
        let mut value = 0;
        match self.kernel {
            // SAFETY: the kernel is alive, the pointer is to a live integer.
            RawKernel::Kernel(kernel) => unsafe {
                call!(self.api()?, cuKernelGetAttribute(&raw mut value, attribute, kernel, device))
            },
            // SAFETY: the function is alive, the pointer is to a live integer.
            RawKernel::Function(function) => unsafe {
                call!(self.api()?, cuFuncGetAttribute(&raw mut value, attribute, function))
            },
        }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// The blocks of the grid.
    pub(super) fn blocks(&self) -> u64 {
        let (x, y, z) = self.config.grid;
        u64::from(x).saturating_mul(u64::from(y)).saturating_mul(u64::from(z))
    }

    /// How many blocks an SM holds, and how many there are at once on all.
    pub(super) fn room(&self, cluster: Option<Shape>) -> Result<(u32, u32)> {
        self.occupancy()?.room(cluster, self.context.sm_count()?)
    }

    fn occupancy(&self) -> Result<Occupancy<'_>> {
        let (api, function) = (self.api()?, self.kernel.as_function());
        Ok(Occupancy { api, function, stream: self.stream, config: self.config })
    }

    /// Everything there is to say, for the cluster that is launched.
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
            // Of as many clusters as in the recorded questions; the answer does not depend on it.
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

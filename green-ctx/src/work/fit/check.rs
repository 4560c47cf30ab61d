//! Fit queries for kernels of this crate, and the check before a launch.

use std::ptr;

use green_ctx_sys::CUstream;

use super::question::Question;
use super::{DoesNotFit, Fit, RawKernel};
use crate::handle::context::Context;
use crate::handle::error::{Error, Result};
use crate::work::launch::LaunchConfig;
use crate::work::library::Kernel;
use crate::work::stream::Stream;

impl Kernel {
    /// Returns the number of blocks and clusters of this kernel that fit at the same time on a context's SMs. Nothing
    /// is launched. The result does not depend on whether the configuration is cooperative.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidRequest`] if a dimension of the grid, block or cluster is 0, if the cluster does not divide
    ///   the grid, or if the kernel requires another cluster size.
    /// - [`Error::DeviceMismatch`] if the kernel belongs to another driver.
    /// - [`Error::Driver`] if a driver call fails.
    ///
    /// A configuration that does not fit is not an error. The numbers in the result show whether the configuration
    /// fits.
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
    /// let parts = device.partition([64])?;
    /// let fit = kernel.fit(parts[0].context(), LaunchConfig::new(264, 1024))?;
    /// // Each of the partition's 64 SMs holds 2 blocks.
    /// assert_eq!((fit.sm_count, fit.blocks_per_sm, fit.resident_blocks), (64, 2, 128));
    /// assert!(!fit.fits_at_once());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuOccupancyMaxActiveClusters",
        "cuOccupancyMaxPotentialClusterSize"
    ))]
    pub fn fit(&self, context: &Context, config: LaunchConfig) -> Result<Fit> {
        if self.library().driver() != context.device().driver() {
            return Err(Error::DeviceMismatch { what: "the kernel and the context" });
        }
        // For the driver, the null stream is one of the current context (recorded on hardware).
        question(self, context, ptr::null_mut(), config).ask(|question| {
            let cluster = question.cluster()?;
            question.fit(cluster)
        })
    }
}

/// Returns an error if a cooperative or clustered launch does not fit on the SMs of the stream's context. During a
/// capture, the driver does not check the fit: a graph with a cooperative node that does not fit never ends (recorded
/// on an H200, driver 580.159.04).
///
/// If the same launch fitted in this context before, the driver is not queried again.
pub(crate) fn check_launch(stream: &Stream, kernel: &Kernel, config: LaunchConfig) -> Result<()> {
    let context = stream.context();
    stream.driver().check_process()?;
    if kernel.known_fits().contains(context, config) {
        return Ok(());
    }
    question(kernel, context, stream.raw(), config).ask(|question| {
        let cluster = question.cluster()?;
        let (_, resident) = question.room(cluster)?;
        let fits = match config.cooperative {
            true => question.blocks() <= u64::from(resident),
            false => resident > 0,
        };
        if fits {
            kernel.known_fits().insert(context, config);
            return Ok(());
        }
        let fit = question.fit(cluster)?;
        Err(Error::DoesNotFit(Box::new(DoesNotFit { cooperative: config.cooperative, fit })))
    })
}

fn question<'a>(
    kernel: &'a Kernel,
    context: &'a Context,
    stream: CUstream,
    config: LaunchConfig,
) -> Question<'a> {
    let (raw, name) = (RawKernel::Kernel(kernel.as_raw()), kernel.name());
    Question { kernel: raw, name, context, stream, config }
}

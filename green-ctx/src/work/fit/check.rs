//! Kernels and launches held against what fits.

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
    /// What of this kernel fits at once on a context's SMs, in a configuration that is not launched.
    /// Whether the configuration asks for a cooperative launch makes no difference.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for a grid, a block or a cluster with a side of 0, for clusters that
    /// do not divide the grid, and for others than the kernel requires; [`Error::DeviceMismatch`] for
    /// a kernel of another driver; [`Error::Driver`]. What does not fit is no error here: the numbers
    /// say so.
    #[doc(alias(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuOccupancyMaxActiveClusters",
        "cuOccupancyMaxPotentialClusterSize"
    ))]
    pub fn fit(&self, context: &Context, config: LaunchConfig) -> Result<Fit> {
        if self.library().driver() != context.device().driver() {
            return Err(Error::DeviceMismatch { what: "the kernel and the context" });
        }
        // The null stream stands for the context that is current, as recorded.
        question(self, context, ptr::null_mut(), config).ask(|question| {
            let cluster = question.cluster()?;
            question.fit(cluster)
        })
    }
}

/// Refuses a cooperative or clustered launch for which the stream's context has no room. A captured
/// one would only show when the graph is launched: a cooperative node that does not fit never ends
/// (recorded on an H200, driver 580.159.04).
///
/// A launch that fitted once in this context is not asked about again.
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

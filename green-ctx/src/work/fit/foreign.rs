//! Fit queries for kernels that other libraries have loaded.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::CStr;
use std::ptr;

use green_ctx_sys::{Api, CUfunction};

use super::question::Question;
use super::{Fit, RawKernel};
use crate::handle::context::Context;
use crate::handle::error::{Error, Result, check};
use crate::work::launch::LaunchConfig;

impl RawKernel {
    /// Returns the number of blocks and clusters of this kernel that fit at the same time on a context's SMs, as
    /// [`Kernel::fit`](crate::Kernel::fit) does for kernels of this crate.
    ///
    /// A function of a module can be queried in any context of its device. From CUDA 12.3 on, the result contains the
    /// kernel's name as the driver reports it. Before CUDA 12.3, the result contains the handle's address as the
    /// name.
    ///
    /// # Errors
    ///
    /// The errors of [`Kernel::fit`](crate::Kernel::fit), and [`Error::InvalidRequest`] if the handle is null.
    ///
    /// # Safety
    ///
    /// The handle must be alive during the call, match the variant of [`RawKernel`], and belong to the context's
    /// driver. A function must belong to the context's device.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, fit::RawKernel, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 5.0 .target sm_52 .address_size 64 .visible .entry work() { ret; }";
    /// # let kernel = Library::from_ptx(&device, ptx)?.kernel("work")?;
    /// # let parts = device.partition([16])?;
    /// let foreign = RawKernel::Kernel(kernel.as_raw());
    /// // SAFETY: `kernel` keeps the handle alive, and the handle is a library's kernel.
    /// let fit = unsafe { foreign.fit(parts[0].context(), LaunchConfig::new(64, 1024)) }?;
    /// assert_eq!((fit.kernel.as_str(), fit.resident_blocks), ("work", 32));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuFuncGetAttribute", "cuFuncGetName", "cuKernelGetName"))]
    pub unsafe fn fit(self, context: &Context, config: LaunchConfig) -> Result<Fit> {
        if self.as_function().is_null() {
            return Err(Error::InvalidRequest("the kernel's handle is null".to_owned()));
        }
        let driver = context.device().driver();
        driver.check_process()?;
        let name = match self.name(driver.functions()?)? {
            Some(name) => name,
            None => format!("{:#x}", self.as_function().addr()),
        };
        // For the driver, the null stream is one of the current context (recorded on hardware).
        let stream = ptr::null_mut();
        Question { kernel: self, name: &name, context, stream, config }.ask(|question| {
            let cluster = question.cluster()?;
            question.fit(cluster)
        })
    }

    /// Returns the handle as a `CUfunction`, the type that launches take. The driver accepts a kernel as a function
    /// (cuda.h, `cuLaunchKernel`).
    pub(super) fn as_function(self) -> CUfunction {
        match self {
            RawKernel::Kernel(kernel) => kernel.cast(),
            RawKernel::Function(function) => function,
        }
    }

    /// Returns the name of a live kernel. Returns `None` before CUDA 12.3, since older drivers do not report the
    /// name.
    fn name(self, api: &Api) -> Result<Option<String>> {
        let mut name = ptr::null();
        let (call, status) = match self {
            RawKernel::Kernel(kernel) => {
                let Ok(get) = api.cuKernelGetName() else { return Ok(None) };
                // SAFETY: the kernel is alive by the contract of `fit`, and `name` is a live local.
                ("cuKernelGetName", unsafe { get(&raw mut name, kernel) })
            }
            RawKernel::Function(function) => {
                let Ok(get) = api.cuFuncGetName() else { return Ok(None) };
                // SAFETY: the function is alive by the contract of `fit`, and `name` is a live local.
                ("cuFuncGetName", unsafe { get(&raw mut name, function) })
            }
        };
        check(call, status)?;
        if name.is_null() {
            return Ok(None);
        }
        // SAFETY: the name ends with a NUL, and the driver keeps it in memory while the kernel is loaded.
        let name = unsafe { CStr::from_ptr(name) };
        Ok(Some(name.to_string_lossy().into_owned()))
    }
}

//! Kernels, and the libraries that contain them.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CString, c_void};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::Arc;

use green_ctx_sys::{CUfunction, CUkern_st, CUkernel, CUlib_st, CUlibrary, CUresult};

use crate::handle::capture::RelaxedCapture;
use crate::handle::context::Context;
use crate::handle::current::Scope;
use crate::handle::device::Device;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result, check};
use crate::handle::raw::Raw;
use crate::work::fit::known::KnownFits;

/// A library of kernels, loaded from one image. The kernels of a library belong to no context, and can run in any
/// context of the device.
///
/// The library is unloaded when all handles of the library and of its kernels have been dropped. Unloading waits for
/// kernels that were launched, but not for graphs in partitions (recorded on an H200, driver 580.159.04). Graphs that
/// were captured through this crate, and their executables, hold handles of the libraries of their kernels.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, Library, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let ptx = "
///     .version 5.0
///     .target sm_52
///     .address_size 64
///     .visible .entry nothing(.param .u64 pointer, .param .u32 count) { ret; }
/// ";
/// let library = Library::from_ptx(&device, ptx)?;
/// let kernel = library.kernel("nothing")?;
/// assert_eq!(kernel.name(), "nothing");
/// assert_eq!(kernel.parameter_sizes(), [8, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "CUlibrary")]
pub struct Library {
    inner: Arc<Inner>,
}

struct Inner {
    raw: Raw<CUlib_st>,
    driver: Driver,
    /// Keeps the device initialised. The parameter query needs a current context.
    context: Context,
}

impl Library {
    /// Loads PTX text. The driver compiles the text for the device on which a kernel first runs.
    ///
    /// The text must begin with `.version`, as every PTX module does. Only comments and white space may come before
    /// `.version`. For other formats, use [`from_image`](Library::from_image).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if the text does not begin as a PTX module does, or if it contains a NUL. The driver
    /// is not called with such a text. [`Error::Driver`] if the driver refuses the text. If the driver compiles
    /// lazily, [`kernel`](Library::kernel) reports mistakes in the text.
    #[doc(alias = "cuLibraryLoadData")]
    pub fn from_ptx(device: &Device, ptx: &str) -> Result<Library> {
        if !begins_as_ptx(ptx) {
            return Err(Error::InvalidRequest(
                "the text is not PTX: a PTX module begins with `.version`, after comments and \
                 white space only"
                    .to_owned(),
            ));
        }
        let text = CString::new(ptx)
            .map_err(|_| Error::InvalidRequest("the PTX text contains a NUL".to_owned()))?;
        // SAFETY: `text` ends with a NUL, and so the driver finds its end. The driver recognises other formats by
        // their first bytes (cuda.h, `cuModuleLoadData`). This assumes that no other format begins with a comment,
        // white space or `.version`: cubins and Tile IR begin with `0x7f`, fat binaries and bitcode with bytes that
        // are not UTF-8.
        unsafe { Library::from_image(device, text.as_ptr().cast()) }
    }

    /// Loads an image: PTX text that ends with a NUL, a cubin or a fat binary.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver cannot load the image.
    ///
    /// # Safety
    ///
    /// `image` must point to a complete image in one of these formats, since the driver does not receive its
    /// length.
    #[doc(alias = "cuLibraryLoadData")]
    pub unsafe fn from_image(device: &Device, image: *const c_void) -> Result<Library> {
        let context = device.primary_context()?;
        let driver = device.driver();
        let mut raw = ptr::null_mut();
        let (no_options, no_values) = (ptr::null_mut(), ptr::null_mut());
        // It is not recorded whether loading invalidates another thread's capture.
        let _relaxed = RelaxedCapture::enter(driver)?;
        // SAFETY: the image is complete by this function's contract, and no options are passed.
        unsafe {
            call!(
                driver.functions()?,
                cuLibraryLoadData(
                    &raw mut raw,
                    image,
                    no_options,
                    no_values,
                    0,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    0,
                )
            )
        }?;
        let raw = Raw::new(raw).ok_or_else(|| Error::null("cuLibraryLoadData"))?;
        Ok(Library { inner: Arc::new(Inner { raw, driver: driver.clone(), context }) })
    }

    /// Returns the kernel with this name. The name must be the kernel's name in the image: C++ names are mangled.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] if the library has no kernel of this name, [`Error::Driver`] if a driver call fails,
    /// and [`Error::Unsupported`] if the driver is older than CUDA 12.4 and cannot report a kernel's parameters.
    #[doc(alias = "cuLibraryGetKernel")]
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let api = self.inner.driver.functions()?;
        let text = CString::new(name)
            .map_err(|_| Error::InvalidRequest("the kernel's name contains a NUL".to_owned()))?;
        let mut raw = ptr::null_mut();
        // A driver may compile the text only now.
        let _relaxed = RelaxedCapture::enter(&self.inner.driver)?;
        // SAFETY: `self` keeps the library alive, and the name ends with a NUL.
        unsafe { call!(api, cuLibraryGetKernel(&raw mut raw, self.as_raw(), text.as_ptr())) }
            .map_err(|error| match error.status() {
                Some(CUresult::CUDA_ERROR_NOT_FOUND) => Error::InvalidRequest(format!(
                    "the library has no kernel named {name:?}; C++ names are mangled"
                )),
                _ => error,
            })?;
        let raw = Raw::new(raw).ok_or_else(|| Error::null("cuLibraryGetKernel"))?;
        let parameters = self.parameters(raw)?;
        let (name, library, fits) = (name.to_owned(), self.clone(), KnownFits::default());
        let inner = KernelInner { raw, name, parameters, library, fits };
        Ok(Kernel { inner: Arc::new(inner) })
    }

    /// Returns the size of each of a kernel's parameters in bytes.
    fn parameters(&self, kernel: Raw<CUkern_st>) -> Result<Vec<usize>> {
        let Inner { driver, context, .. } = &*self.inner;
        let function = driver.functions()?.cuKernelGetParamInfo()?;
        // The query fails without a current context (seen on an H200, driver 580.159.04).
        let _scope = Scope::enter(driver, context.as_raw())?;
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: `self` keeps the kernel's library loaded, and `offset` and `size` are live locals.
            let status =
                unsafe { function(kernel.as_ptr(), sizes.len(), &raw mut offset, &raw mut size) };
            match status {
                CUresult::CUDA_SUCCESS => sizes.push(size),
                // The index is past the last parameter (cuda.h).
                CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(sizes),
                status => check("cuKernelGetParamInfo", status)?,
            }
        }
    }

    /// Returns the driver that loaded the library.
    #[inline]
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Returns the driver's handle.
    #[must_use]
    pub fn as_raw(&self) -> CUlibrary {
        self.inner.raw.as_ptr()
    }
}

/// Returns whether a string begins as a PTX module does: with the directive `.version`, after comments and white
/// space (PTX ISA, "PTX Module Directives: .version" and "Comments").
fn begins_as_ptx(text: &str) -> bool {
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        let after = if let Some(line) = rest.strip_prefix("//") {
            line.split_once('\n')
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.split_once("*/")
        } else {
            break;
        };
        // A comment that does not end is the rest of the text.
        rest = after.map_or("", |(_, after)| after);
    }
    rest.strip_prefix(".version")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_whitespace()))
}

impl Inner {
    fn unload(&self) -> Result<()> {
        // SAFETY: `drop` is the only caller, and no handle of the library or of its kernels is left.
        unsafe { call!(self.driver.functions()?, cuLibraryUnload(self.raw.as_ptr())) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.driver.is_forked() {
            return;
        }
        self.driver.clean_up(|| self.unload());
    }
}

impl PartialEq for Library {
    fn eq(&self, other: &Library) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Library {}

impl Hash for Library {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("raw", &self.as_raw()).finish_non_exhaustive()
    }
}

/// A kernel of a [`Library`]. Launch it with [`Stream::launch`](crate::Stream::launch).
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, LaunchConfig, Library, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// # let ptx = ".version 5.0 .target sm_52 .address_size 64 .visible .entry work() { ret; }";
/// let kernel = Library::from_ptx(&device, ptx)?.kernel("work")?;
/// let parts = device.partition([16])?;
/// // SAFETY: the kernel has no parameters and accesses no memory.
/// unsafe { parts[0].stream().launch(&kernel, LaunchConfig::new(64, 256), ()) }?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "CUkernel")]
pub struct Kernel {
    inner: Arc<KernelInner>,
}

struct KernelInner {
    raw: Raw<CUkern_st>,
    name: String,
    parameters: Vec<usize>,
    library: Library,
    fits: KnownFits,
}

impl Kernel {
    /// Returns the kernel's name in its image.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the size of each parameter in bytes.
    #[inline]
    #[must_use]
    #[doc(alias = "cuKernelGetParamInfo")]
    pub fn parameter_sizes(&self) -> &[usize] {
        &self.inner.parameters
    }

    /// Returns the library that contains the kernel.
    #[must_use]
    pub fn library(&self) -> &Library {
        &self.inner.library
    }

    /// Returns the driver's handle.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> CUkernel {
        self.inner.raw.as_ptr()
    }

    /// Returns the launches that are known to fit.
    #[inline]
    pub(crate) fn known_fits(&self) -> &KnownFits {
        &self.inner.fits
    }

    /// Returns the handle as a `CUfunction`, the type that launches take. The driver accepts a kernel as a function,
    /// and runs it in the stream's context (cuda.h, `cuLaunchKernel`).
    #[inline]
    pub(crate) fn as_function(&self) -> CUfunction {
        self.as_raw().cast()
    }
}

/// Compares the raw handles, so that two objects are equal if they were obtained for the same kernel of the same
/// library.
impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        self.as_raw() == other.as_raw() && self.library() == other.library()
    }
}

impl Eq for Kernel {}

impl Hash for Kernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_raw().hash(state);
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name()).finish_non_exhaustive()
    }
}

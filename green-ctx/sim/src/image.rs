//! Kernel images: the input of `cuLibraryLoadData` and `cuModuleLoadData`.
//!
//! An image is PTX text, a cubin or a fat binary. The simulator reads the parts that a program can query:
//! the names, parameters and requirements of kernels. The simulator does not read instructions.

mod cubin;
mod fatbin;
mod ptx;
mod source;
mod tokens;

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use green_ctx_sys::CUresult;

use crate::Profile;
use crate::pointer::{Answer, refuse_if};

pub(crate) use source::{for_library, from_file, from_memory};

/// A kernel parameter: its offset and size in the parameter buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// A kernel as its image declares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelInfo {
    pub(crate) name: Arc<str>,
    /// The name as a C string.
    pub(crate) symbol: CString,
    pub(crate) params: Vec<Param>,
    /// The maximum number of threads per block (`.maxntid`). `.reqntid` does not set this maximum
    /// (recorded on hardware).
    pub(crate) max_threads: Option<u32>,
    /// The required block size (`.reqntid`).
    pub(crate) required_block: Option<[u32; 3]>,
    /// The required cluster size (`.reqnctapercluster`).
    pub(crate) required_cluster: Option<[u32; 3]>,
    /// Whether the kernel can be launched only in clusters (`.explicitcluster`).
    pub(crate) explicit_cluster: bool,
    /// The number of registers per thread; `None` for PTX text, which does not specify it.
    pub(crate) registers: Option<u32>,
    /// Static shared memory per block, in bytes.
    pub(crate) shared_bytes: u32,
    /// Local memory that the kernel declares per thread, in bytes.
    pub(crate) local_bytes: u32,
    /// The size of the constant variables of the image, in bytes.
    pub(crate) constant_bytes: u32,
    /// The architecture that the PTX was written for, as a number such as 52 for `sm_52`.
    pub(crate) virtual_architecture: u32,
}

impl KernelInfo {
    /// Creates a kernel with only a name; `None` if the name contains a null byte.
    fn named(name: &str) -> Option<KernelInfo> {
        let symbol = CString::new(name).ok()?;
        Some(KernelInfo { name: name.into(), symbol, ..KernelInfo::default() })
    }

    /// Sets the maximum number of threads per block to the product of `sides`.
    fn bound_block(&mut self, sides: [u32; 3]) {
        let threads = sides.iter().fold(1, |threads: u32, &side| threads.saturating_mul(side));
        self.max_threads = Some(threads);
    }

    /// Returns the size of the parameter buffer, in bytes.
    pub(crate) fn param_bytes(&self) -> usize {
        self.params.iter().map(|param| param.offset + param.size).max().unwrap_or(0)
    }
}

/// The contents of an image for one device.
#[derive(Debug, Default)]
pub(crate) struct Image {
    pub(crate) kernels: Vec<Arc<KernelInfo>>,
    /// The index of each kernel in `kernels`, by name.
    names: HashMap<Arc<str>, usize>,
}

impl Image {
    fn new(kernels: Vec<KernelInfo>) -> Image {
        let names =
            kernels.iter().enumerate().map(|(index, kernel)| (Arc::clone(&kernel.name), index));
        Image { names: names.collect(), kernels: kernels.into_iter().map(Arc::new).collect() }
    }

    /// Returns the index of the kernel with this name.
    pub(crate) fn kernel(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }
}

/// The device and the driver for which an image is read.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The compute capability as one number, such as 90 for 9.0.
    architecture: u32,
    /// The newest PTX version that the driver compiles, such as 90 for 9.0.
    ptx_version: u32,
}

impl Target {
    pub(crate) fn new(profile: &Profile, driver: u32) -> Target {
        let (major, minor) = profile.compute_capability;
        Target { architecture: major * 10 + minor, ptx_version: ptx_version(driver) }
    }
}

/// Returns the newest PTX version that a driver compiles. The release notes in the PTX manual name one PTX
/// version for each CUDA version up to 13.1. Each later minor version of CUDA is assumed to add one PTX
/// version.
fn ptx_version(driver: u32) -> u32 {
    match driver {
        ..12_050 => 84,
        12_050..12_070 => 85,
        12_070..12_080 => 86,
        12_080..12_090 => 87,
        12_090..13_000 => 88,
        _ => 90 + (driver - 13_000) / 10,
    }
}

/// Reads an image that was copied from the program.
pub(crate) fn read(bytes: &[u8], target: Target) -> Answer<Image> {
    if bytes.starts_with(&cubin::MAGIC) {
        return cubin::read(bytes, target);
    }
    if bytes.starts_with(&fatbin::MAGIC) {
        return fatbin::read(bytes, target);
    }
    // The compiler reports PTX for another target as plain invalid PTX (recorded on hardware).
    read_text(bytes, target)?.ok_or(CUresult::CUDA_ERROR_INVALID_PTX)
}

/// Reads the kernels of PTX text. Returns `CUDA_ERROR_INVALID_IMAGE` if the text does not contain
/// `.version` (recorded on hardware), and `None` if the text is written for other devices.
fn read_text(bytes: &[u8], target: Target) -> Answer<Option<Image>> {
    // Text ends at its first null byte; a file or a fat binary may have several.
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    if !bytes.windows(8).any(|word| word == b".version") {
        return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)?;
    let ptx = ptx::parse(text).ok_or(CUresult::CUDA_ERROR_INVALID_PTX)?;
    refuse_if(ptx.version > target.ptx_version, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION)?;
    let runs = ptx.target.runs_on(target.architecture);
    Ok(runs.then(|| Image::new(ptx.kernels)))
}

#[cfg(test)]
mod tests;

//! Images of kernels: what `cuLibraryLoadData` and `cuModuleLoadData` are given.
//!
//! An image is PTX text, a cubin or a fat binary. What a program can see of it is read (names,
//! parameters, what a kernel needs of an SM); the instructions are not.

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

/// One parameter of a kernel: where it lies in the parameter buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// A kernel as its image declares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelInfo {
    pub(crate) name: Arc<str>,
    /// The name for C.
    pub(crate) symbol: CString,
    pub(crate) params: Vec<Param>,
    /// The most threads that a block may have (`.maxntid`). `.reqntid` is no such bound, as recorded.
    pub(crate) max_threads: Option<u32>,
    /// The only block that it can be launched with (`.reqntid`).
    pub(crate) required_block: Option<[u32; 3]>,
    /// The only cluster that it can be launched with (`.reqnctapercluster`).
    pub(crate) required_cluster: Option<[u32; 3]>,
    /// Whether it can be launched in clusters only (`.explicitcluster`).
    pub(crate) explicit_cluster: bool,
    /// Registers of a thread, where the image says so: text does not.
    pub(crate) registers: Option<u32>,
    /// Shared memory of a block that is not asked for at the launch, in bytes.
    pub(crate) shared_bytes: u32,
    /// Memory of a thread that the kernel declares, in bytes.
    pub(crate) local_bytes: u32,
    /// Constant variables of the image, in bytes.
    pub(crate) constant_bytes: u32,
    /// The architecture that the text was written for, 52 for `sm_52`.
    pub(crate) virtual_architecture: u32,
}

impl KernelInfo {
    /// A kernel of which only the name is known; `None` for a name that C cannot have.
    fn named(name: &str) -> Option<KernelInfo> {
        let symbol = CString::new(name).ok()?;
        Some(KernelInfo { name: name.into(), symbol, ..KernelInfo::default() })
    }

    /// Notes the largest block, of which only the number of threads counts.
    fn bound_block(&mut self, sides: [u32; 3]) {
        let threads = sides.iter().fold(1, |threads: u32, &side| threads.saturating_mul(side));
        self.max_threads = Some(threads);
    }

    /// The size of the parameter buffer in bytes.
    pub(crate) fn param_bytes(&self) -> usize {
        self.params.iter().map(|param| param.offset + param.size).max().unwrap_or(0)
    }
}

/// What an image holds for one device.
#[derive(Debug, Default)]
pub(crate) struct Image {
    pub(crate) kernels: Vec<Arc<KernelInfo>>,
    /// Where each kernel is in `kernels`.
    names: HashMap<Arc<str>, usize>,
}

impl Image {
    fn new(kernels: Vec<KernelInfo>) -> Image {
        let names =
            kernels.iter().enumerate().map(|(index, kernel)| (Arc::clone(&kernel.name), index));
        Image { names: names.collect(), kernels: kernels.into_iter().map(Arc::new).collect() }
    }

    /// The place of the kernel of this name.
    pub(crate) fn kernel(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }
}

/// What an image is read for.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The compute capability as one number, 90 for 9.0.
    architecture: u32,
    /// The newest version of PTX that the driver compiles, 90 for 9.0.
    ptx_version: u32,
}

impl Target {
    pub(crate) fn new(profile: &Profile, driver: u32) -> Target {
        let (major, minor) = profile.compute_capability;
        Target { architecture: major * 10 + minor, ptx_version: ptx_version(driver) }
    }
}

/// The newest PTX that a driver compiles: the release notes in the manual of PTX name one for each
/// CUDA version up to 13.1; from then on one for each minor version is assumed.
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

/// Reads an image that was fetched.
pub(crate) fn read(bytes: &[u8], target: Target) -> Answer<Image> {
    if bytes.starts_with(&cubin::MAGIC) {
        return cubin::read(bytes, target);
    }
    if bytes.starts_with(&fatbin::MAGIC) {
        return fatbin::read(bytes, target);
    }
    // To the compiler a text for other devices is as wrong as any, as recorded.
    read_text(bytes, target)?.ok_or(CUresult::CUDA_ERROR_INVALID_PTX)
}

/// Reads the kernels of a PTX text; `CUDA_ERROR_INVALID_IMAGE` where nothing in it is PTX, as
/// recorded, and `None` where it is written for other devices than this one.
fn read_text(bytes: &[u8], target: Target) -> Answer<Option<Image>> {
    // Text ends at the first null byte, of which a file or a fat binary may have several.
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

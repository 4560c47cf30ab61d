//! What can go wrong between partitions and PyTorch.

use std::path::PathBuf;

use green_ctx::{Device, Error};

/// The result of an operation of this crate.
pub type Result<T, E = TorchError> = std::result::Result<T, E>;

/// Why an operation failed. Unless said otherwise, nothing was created or changed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TorchError {
    /// No PyTorch is loaded in this process.
    #[error("no PyTorch is loaded in this process: import torch first, or name libtorch's folder")]
    NotLoaded,
    /// There is no libtorch in a folder.
    #[error("there is no libtorch in {}: it is the folder with libtorch_cuda.so", folder.display())]
    NotFound {
        /// The folder that was given.
        folder: PathBuf,
    },
    /// The library is there and cannot be loaded.
    #[error("{} cannot be loaded", path.display())]
    NotALibrary {
        /// The library's path.
        path: PathBuf,
        /// What the system's loader said.
        source: libloading::Error,
    },
    /// PyTorch was built without CUDA.
    #[error(
        "this PyTorch was built without CUDA, it has no libtorch_cuda: install a build for CUDA, \
         where `torch.version.cuda` is not None"
    )]
    CpuBuild,
    /// PyTorch lacks a function that is needed.
    #[error("this PyTorch has no {function}: PyTorch {needs} or newer is needed")]
    TooOld {
        /// The function.
        function: &'static str,
        /// The version of PyTorch that has it.
        needs: &'static str,
    },
    /// A function of libtorch failed. It wrote the reason to standard error.
    #[error("{call} of PyTorch failed with {code}; PyTorch wrote the reason to standard error")]
    Call {
        /// The function.
        call: &'static str,
        /// Its answer.
        code: i32,
    },
    /// A partition was to be left that this thread has not entered.
    #[error(
        "this thread has not entered the partition: enter it first, and leave it once for that"
    )]
    NotEntered,
    /// A partition was to be left while another that was entered later is not left. Nothing was
    /// changed.
    #[error("this thread entered another partition later: leave that one first")]
    NotInnermost,
    /// Torch's current stream was to be put back while a guard that was made later lives.
    #[error("torch's current stream was changed again by a guard that still lives: end that first")]
    StreamOrder,
    /// A partition was to be left while a context that was made current later is current. Nothing
    /// was changed.
    #[error("another context was made current in the partition and still is: end that first")]
    ContextOrder,
    /// What was asked for cannot be.
    #[error("{0}")]
    InvalidRequest(String),
    /// The driver, or what green-ctx makes of it, failed.
    #[error(transparent)]
    Driver(#[from] Error),
}

green_ctx::sys::debug_as_text!(TorchError);

/// Refuses to go on in a process that was forked since the driver was loaded.
#[inline]
pub(crate) fn check_process(device: &Device) -> Result<()> {
    device.driver().device(device.ordinal())?;
    Ok(())
}

//! Errors of this crate.

use std::path::PathBuf;

use green_ctx::{Device, Error};

/// The result of an operation of this crate.
pub type Result<T, E = TorchError> = std::result::Result<T, E>;

/// An error of this crate. Unless the documentation of a function says otherwise, the failed call has created and
/// changed nothing.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TorchError {
    /// No PyTorch is loaded in this process.
    #[error("no PyTorch is loaded in this process: import torch first, or call Torch::load_from")]
    NotLoaded,
    /// The folder does not contain libtorch.
    #[error("there is no libtorch in {}: pass the folder of libtorch_cuda.so", folder.display())]
    NotFound {
        /// The folder that was passed.
        folder: PathBuf,
    },
    /// The library exists but cannot be loaded.
    #[error("{} cannot be loaded", path.display())]
    NotALibrary {
        /// The path of the library.
        path: PathBuf,
        /// The error of the system's loader.
        source: libloading::Error,
    },
    /// PyTorch was built without CUDA.
    #[error(
        "this PyTorch was built without CUDA: it has no libtorch_cuda; install a build in which \
         `torch.version.cuda` is not None"
    )]
    CpuBuild,
    /// This PyTorch is too old and lacks a function that the call needs.
    #[error("this PyTorch has no {function}: PyTorch {needs} or newer is needed")]
    TooOld {
        /// The name of the function.
        function: &'static str,
        /// The first version of PyTorch that has the function.
        needs: &'static str,
    },
    /// A function of libtorch failed. libtorch wrote the reason to standard error.
    #[error("PyTorch's {call} failed with code {code}; it wrote the reason to standard error")]
    Call {
        /// The name of the function.
        call: &'static str,
        /// The code that the function returned.
        code: i32,
    },
    /// This thread tried to leave a partition that it has not entered.
    #[error(
        "this thread has not entered the partition: enter it first; each enter allows one leave"
    )]
    NotEntered,
    /// This thread tried to leave a partition before it left another partition that it entered later. Nothing was
    /// changed.
    #[error("this thread entered another partition later: leave that one first")]
    NotInnermost,
    /// PyTorch's current stream cannot be restored while a guard that was created later exists.
    #[error("a later guard still sets torch's current stream: end that guard first")]
    StreamOrder,
    /// The partition cannot be left while a context that was made current inside the partition is still current.
    /// Nothing was changed.
    #[error("a context made current in the partition is still current: restore the previous one")]
    ContextOrder,
    /// The request can never be fulfilled.
    #[error("{0}")]
    InvalidRequest(String),
    /// An operation of green-ctx failed, most often a driver call.
    #[error(transparent)]
    Driver(#[from] Error),
}

green_ctx::sys::debug_as_text!(TorchError);

/// Returns an error if this process was forked after the driver was loaded.
#[inline]
pub(crate) fn check_process(device: &Device) -> Result<()> {
    device.driver().device(device.ordinal())?;
    Ok(())
}

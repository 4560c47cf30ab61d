//! Jobs for the tuner's tests.

use green_ctx::tune::{Job, JobError};
use green_ctx::{Device, Kernel, LaunchConfig, Stream};

use crate::common::kernels;

pub(crate) fn kernel(device: &Device) -> green_ctx::Result<Kernel> {
    kernels::plain(device, "step")
}

pub(crate) fn launch(kernel: &Kernel, stream: &Stream) -> Result<(), JobError> {
    // SAFETY: the kernel takes no parameters.
    Ok(unsafe { stream.launch(kernel, LaunchConfig::new(132, 128), ()) }?)
}

/// A job that launches one kernel.
pub(crate) fn job(device: &Device, name: &str) -> green_ctx::Result<Job> {
    let kernel = kernel(device)?;
    Ok(Job::new(name, move |stream| launch(&kernel, stream)))
}

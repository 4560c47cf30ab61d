//! Resources at three levels: of a device, a context or a stream.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::{CUdevResource, CUdevResourceType};

use super::sm::SmResource;
use super::workqueue::WorkqueueResource;
use crate::handle::context::Context;
use crate::handle::dev_resource;
use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::work::stream::Stream;

/// The resources of a device, or those that a context or a stream was provisioned with. Creating this value
/// makes no driver call; reading one of the resources does.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, StreamOptions, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let group = device.resources().sm()?.split([16])?.groups.remove(0);
/// let context = device.create_context(group)?;
/// let stream = context.create_stream(StreamOptions::default())?;
/// assert_eq!(device.resources().sm()?.sm_count(), 132);
/// assert_eq!(context.resources().sm()?.sm_count(), 16);
/// assert_eq!(stream.resources().sm()?.sm_count(), 16);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "resources do nothing until one of them is queried"]
#[doc(alias("CUdevResource"))]
pub struct Resources {
    of: Owner,
}

#[derive(Clone, Debug)]
enum Owner {
    Device(Device),
    Context(Context),
    Stream(Stream),
}

impl From<&Device> for Resources {
    fn from(device: &Device) -> Resources {
        Resources { of: Owner::Device(device.clone()) }
    }
}

impl From<&Context> for Resources {
    fn from(context: &Context) -> Resources {
        Resources { of: Owner::Context(context.clone()) }
    }
}

impl From<&Stream> for Resources {
    fn from(stream: &Stream) -> Resources {
        Resources { of: Owner::Stream(stream.clone()) }
    }
}

impl Resources {
    /// Returns the SMs: all SMs of a device, or those on which work of a context or stream runs. A primary context has
    /// all SMs of the device, or under a reserve those that are not reserved.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) before CUDA 12.4, and
    /// [`Error::Driver`](crate::Error::Driver) if the driver fails.
    #[doc(alias(
        "cuDeviceGetDevResource",
        "cuCtxGetDevResource",
        "cuGreenCtxGetDevResource",
        "cuStreamGetDevResource"
    ))]
    pub fn sm(&self) -> Result<SmResource> {
        if let Owner::Device(device) = &self.of {
            return SmResource::of_device(device);
        }
        let resource = self.fetch(CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM)?;
        SmResource::new(self.device(), *dev_resource::sm_part(&resource), self.is_green())
    }

    /// Returns the workqueues: all queues of a device, or the queues that a context was provisioned with. A
    /// stream uses the workqueues of its context.
    ///
    /// Needs CUDA 13.1 or newer; not yet run on hardware.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) before CUDA 13.1, and
    /// [`Error::Driver`](crate::Error::Driver) if the driver fails.
    #[doc(alias = "CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG")]
    pub fn workqueue(&self) -> Result<WorkqueueResource> {
        WorkqueueResource::read(self.device(), |kind| self.fetch(kind))
    }

    fn fetch(&self, kind: CUdevResourceType) -> Result<CUdevResource> {
        self.device().driver().check_process()?;
        match &self.of {
            Owner::Device(device) => {
                dev_resource::of_device(device.functions()?, device.as_raw(), kind)
            }
            Owner::Context(context) => context.dev_resource(kind),
            Owner::Stream(stream) => of_stream(stream, kind),
        }
    }

    fn device(&self) -> &Device {
        match &self.of {
            Owner::Device(device) => device,
            Owner::Context(context) => context.device(),
            Owner::Stream(stream) => stream.context().device(),
        }
    }

    fn is_green(&self) -> bool {
        match &self.of {
            Owner::Device(_) => false,
            Owner::Context(context) => context.is_green(),
            Owner::Stream(stream) => stream.context().is_green(),
        }
    }
}

impl Context {
    /// Returns the number of SMs on which the context's work runs, as the driver reports it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if the driver fails.
    #[doc(alias("cuCtxGetDevResource", "cuGreenCtxGetDevResource"))]
    pub fn sm_count(&self) -> Result<u32> {
        Ok(self.resources().sm()?.sm_count())
    }

    /// Returns the resources that the context was provisioned with: SMs, and workqueues (CUDA 13.1 or newer).
    pub fn resources(&self) -> Resources {
        Resources::from(self)
    }
}

impl Stream {
    /// Returns the resources that the stream's work runs on.
    pub fn resources(&self) -> Resources {
        Resources::from(self)
    }
}

/// Returns a resource of a stream. The header of CUDA 13.1 declares a call for a stream's SMs, but no call
/// for a stream's workqueues.
fn of_stream(stream: &Stream, kind: CUdevResourceType) -> Result<CUdevResource> {
    let api = stream.context().device().functions()?;
    if kind != CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM || api.cuStreamGetDevResource().is_err() {
        return stream.context().dev_resource(kind);
    }
    let mut resource = dev_resource::empty();
    // SAFETY: the handle of a `Stream` is valid while the `Stream` exists, and `resource` is a live local.
    unsafe { call!(api, cuStreamGetDevResource(stream.raw(), &raw mut resource, kind)) }?;
    Ok(resource)
}

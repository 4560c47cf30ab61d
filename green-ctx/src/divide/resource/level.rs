//! Resources at their three levels: of a device, of a context, of a stream.
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

/// What a device has, or what a context or a stream was provisioned with. Asking makes no driver call
/// until one of the resources is asked for.
///
/// # Example
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
#[must_use = "resources do nothing until one of them is asked for"]
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
    /// The SMs: of a device all that it has, of a context or a stream those that its work runs on. A
    /// primary context's are the device's.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver), and
    /// [`Error::Unsupported`](crate::Error::Unsupported) before CUDA 12.4.
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

    /// The workqueues: of a device its budget, of a context what it was provisioned with, of a stream
    /// its context's.
    ///
    /// CUDA 13.1 or newer; not yet run on hardware.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver), and
    /// [`Error::Unsupported`](crate::Error::Unsupported) before CUDA 13.1.
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
    /// How many SMs the context's work runs on, by the driver's own account.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    #[doc(alias("cuCtxGetDevResource", "cuGreenCtxGetDevResource"))]
    pub fn sm_count(&self) -> Result<u32> {
        Ok(self.resources().sm()?.sm_count())
    }

    /// What the context was provisioned with: SMs, and workqueues from CUDA 13.1 on.
    pub fn resources(&self) -> Resources {
        Resources::from(self)
    }
}

impl Stream {
    /// What the stream's work runs on.
    pub fn resources(&self) -> Resources {
        Resources::from(self)
    }
}

/// What a stream's work runs on. The header of 13.1 has a call for SMs and none for workqueues.
fn of_stream(stream: &Stream, kind: CUdevResourceType) -> Result<CUdevResource> {
    let api = stream.context().device().functions()?;
    if kind != CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM || api.cuStreamGetDevResource().is_err() {
        return stream.context().dev_resource(kind);
    }
    let mut resource = dev_resource::empty();
    // SAFETY: the stream is alive, the pointer is to a live structure.
    unsafe { call!(api, cuStreamGetDevResource(stream.raw(), &raw mut resource, kind)) }?;
    Ok(resource)
}

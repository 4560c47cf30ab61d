//! Resources at their three levels: of a device, of a context, of a stream.

use green_ctx_sys::{CUdevResource, CUdevResourceDesc, CUdevResourceType, CUgreenCtx_st};

use super::group::SmGroup;
use super::raw;
use super::sm::SmResource;
use super::workqueue::{self, Config, WorkqueueResource};
use crate::context::Context;
use crate::device::Device;
use crate::error::Result;
use crate::raw::Raw;
use crate::stream::Stream;

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
    of: Level,
}

#[derive(Clone, Debug)]
enum Level {
    Device(Device),
    Context(Context),
    Stream(Stream),
}

impl From<&Device> for Resources {
    fn from(device: &Device) -> Resources {
        Resources { of: Level::Device(device.clone()) }
    }
}

impl From<&Context> for Resources {
    fn from(context: &Context) -> Resources {
        Resources { of: Level::Context(context.clone()) }
    }
}

impl From<&Stream> for Resources {
    fn from(stream: &Stream) -> Resources {
        Resources { of: Level::Stream(stream.clone()) }
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
        let resource = self.fetch(CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM)?;
        SmResource::new(self.device(), &resource, self.is_green())
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
            Level::Device(device) => raw::of_device(device, kind),
            Level::Context(context) => raw::of_context(context, kind),
            Level::Stream(stream) => raw::of_stream(stream, kind),
        }
    }

    fn device(&self) -> &Device {
        match &self.of {
            Level::Device(device) => device,
            Level::Context(context) => context.device(),
            Level::Stream(stream) => stream.context().device(),
        }
    }

    fn is_green(&self) -> bool {
        match &self.of {
            Level::Device(_) => false,
            Level::Context(context) => context.is_green(),
            Level::Stream(stream) => stream.context().is_green(),
        }
    }
}

/// Generates the driver's descriptor of a group, with a workqueue of its own if it has one.
pub(crate) fn describe(group: &SmGroup, workqueue: Option<Config>) -> Result<CUdevResourceDesc> {
    let members = group.place().members.iter();
    let mut resources: Vec<CUdevResource> =
        members.map(|index| group.units().resource(*index)).collect();
    if let Some(config) = workqueue {
        resources.push(workqueue::provide(group.device(), config)?);
    }
    raw::describe(group.device(), resources)
}

/// How many SMs a green context has, by the driver's account. No other thread may use the handle
/// meanwhile.
pub(crate) fn provisioned(device: &Device, green: Raw<CUgreenCtx_st>) -> Result<u32> {
    let resource = raw::of_green(device.api(), green, CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM)?;
    Ok(raw::sm_part(&resource).smCount)
}

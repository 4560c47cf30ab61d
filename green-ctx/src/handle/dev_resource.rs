//! The driver's resource structures: asked for, read, and put together into descriptors.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem;
use std::ptr;

use green_ctx_sys::{
    Api, CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevSmResource,
    CUdevWorkqueueConfigResource, CUdevice, CUgreenCtx_st,
};

use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::raw::Raw;
use crate::ledger::UnitCounts;

/// A resource for the driver to fill in.
pub(crate) fn empty() -> CUdevResource {
    // SAFETY: integers, bytes and a pointer: all zeros is a value, the invalid resource.
    unsafe { mem::zeroed() }
}

/// The part of an SM resource about SMs.
pub(crate) fn sm_part(resource: &CUdevResource) -> &CUdevSmResource {
    // SAFETY: every member of the union is integers and bytes, so that any bytes are a value.
    unsafe { &resource.__bindgen_anon_1.sm }
}

/// The part of a workqueue configuration about queues.
pub(crate) fn workqueue_part(resource: &mut CUdevResource) -> &mut CUdevWorkqueueConfigResource {
    // SAFETY: as above.
    unsafe { &mut resource.__bindgen_anon_1.wqConfig }
}

/// A resource of the whole device.
pub(crate) fn of_device(
    api: &Api,
    device: CUdevice,
    kind: CUdevResourceType,
) -> Result<CUdevResource> {
    let mut resource = empty();
    // SAFETY: the pointer is to a live structure, of the size that it has on every driver; the driver
    // checks the device.
    unsafe { call!(api, cuDeviceGetDevResource(device, &raw mut resource, kind)) }?;
    Ok(resource)
}

/// What a context was provisioned with, whoever made it.
///
/// # Safety
///
/// The context must be alive, and one of the functions' driver.
pub(crate) unsafe fn of_raw_context(
    api: &Api,
    context: CUcontext,
    kind: CUdevResourceType,
) -> Result<CUdevResource> {
    let mut resource = empty();
    // SAFETY: the context is alive by this function's contract, the pointer is to a live structure.
    unsafe { call!(api, cuCtxGetDevResource(context, &raw mut resource, kind)) }?;
    Ok(resource)
}

/// How many SMs a context has, whoever made it.
///
/// # Safety
///
/// The context must be alive, and one of the functions' driver.
pub(crate) unsafe fn sm_count_of(api: &Api, context: CUcontext) -> Result<u32> {
    // SAFETY: this function's contract.
    let resource =
        unsafe { of_raw_context(api, context, CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM) }?;
    Ok(sm_part(&resource).smCount)
}

/// What a green context was provisioned with. No other thread may use the handle meanwhile.
pub(crate) fn of_green(
    api: &Api,
    green: Raw<CUgreenCtx_st>,
    kind: CUdevResourceType,
) -> Result<CUdevResource> {
    let mut resource = empty();
    // SAFETY: whoever has the handle keeps the green context; the pointer is to a live structure.
    unsafe { call!(api, cuGreenCtxGetDevResource(green.as_ptr(), &raw mut resource, kind)) }?;
    Ok(resource)
}

/// Generates the driver's descriptor of some resources. It is never freed: the driver has no call
/// for it.
pub(crate) fn describe(api: &Api, mut resources: Vec<CUdevResource>) -> Result<CUdevResourceDesc> {
    // There are few resources: a device has at most a few hundred SMs.
    let count = u32::try_from(resources.len()).unwrap_or(u32::MAX);
    let mut descriptor = ptr::null_mut();
    // SAFETY: as many live structures as the count says, each written by the driver.
    unsafe {
        call!(api, cuDevResourceGenerateDesc(&raw mut descriptor, resources.as_mut_ptr(), count))
    }?;
    if descriptor.is_null() {
        // A null descriptor would be accepted for a context (recorded on an H200).
        return Err(Error::null("cuDevResourceGenerateDesc"));
    }
    Ok(descriptor)
}

/// A device cut into pieces: the driver's resources, and what the ledger knows of them.
pub(crate) struct Units {
    resources: Box<[CUdevResource]>,
    counts: UnitCounts,
}

// SAFETY: a resource is bytes that the driver wrote and reads. Its one pointer links resources of a
// kind that these are not, and nothing here follows it.
unsafe impl Send for Units {}
// SAFETY: as above; nothing changes them after the cut.
unsafe impl Sync for Units {}

impl Units {
    /// There must be as many resources as counts.
    pub(crate) fn new(resources: Vec<CUdevResource>, counts: UnitCounts) -> Units {
        debug_assert_eq!(resources.len(), counts.counts().len());
        Units { resources: resources.into(), counts }
    }

    pub(crate) fn counts(&self) -> &UnitCounts {
        &self.counts
    }

    pub(crate) fn resource(&self, index: usize) -> CUdevResource {
        self.resources[index]
    }
}

//! The driver's resource structures: reading them, and combining them into descriptors.
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

/// Returns an invalid resource for the driver to overwrite.
pub(crate) fn empty() -> CUdevResource {
    // SAFETY: the structure has only integers, bytes and a pointer. All zeros is a valid value: the invalid resource.
    unsafe { mem::zeroed() }
}

/// Returns the SM fields of an SM resource.
pub(crate) fn sm_part(resource: &CUdevResource) -> &CUdevSmResource {
    // SAFETY: every member of the union has only integers and bytes, so any bytes are a valid value.
    unsafe { &resource.__bindgen_anon_1.sm }
}

/// Returns the fields of a workqueue configuration.
pub(crate) fn workqueue_part(resource: &mut CUdevResource) -> &mut CUdevWorkqueueConfigResource {
    // SAFETY: every member of the union has only integers and bytes, so any bytes are a valid value.
    unsafe { &mut resource.__bindgen_anon_1.wqConfig }
}

/// Returns a resource of the whole device.
pub(crate) fn of_device(
    api: &Api,
    device: CUdevice,
    kind: CUdevResourceType,
) -> Result<CUdevResource> {
    let mut resource = empty();
    // SAFETY: `resource` is a live local. The structure has the same size in every driver version. The driver checks
    // the device.
    unsafe { call!(api, cuDeviceGetDevResource(device, &raw mut resource, kind)) }?;
    Ok(resource)
}

/// Returns a resource of a context, whether or not this crate created the context.
///
/// # Safety
///
/// The context must be alive and belong to the same driver as `api`.
pub(crate) unsafe fn of_raw_context(
    api: &Api,
    context: CUcontext,
    kind: CUdevResourceType,
) -> Result<CUdevResource> {
    let mut resource = empty();
    // SAFETY: the context is alive, by this function's contract. `resource` is a live local that the driver writes.
    unsafe { call!(api, cuCtxGetDevResource(context, &raw mut resource, kind)) }?;
    Ok(resource)
}

/// Returns the number of SMs of a context, whether or not this crate created the context.
///
/// # Safety
///
/// The context must be alive and belong to the same driver as `api`.
pub(crate) unsafe fn sm_count_of(api: &Api, context: CUcontext) -> Result<u32> {
    // SAFETY: the context is alive and belongs to `api`'s driver, by this function's contract.
    let resource =
        unsafe { of_raw_context(api, context, CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM) }?;
    Ok(sm_part(&resource).smCount)
}

/// Returns a resource of a green context. No other thread may call the driver with the green context during the call.
pub(crate) fn of_green(
    api: &Api,
    green: Raw<CUgreenCtx_st>,
    kind: CUdevResourceType,
) -> Result<CUdevResource> {
    let mut resource = empty();
    // SAFETY: the caller keeps the green context alive, and `resource` is a live local that the driver writes.
    unsafe { call!(api, cuGreenCtxGetDevResource(green.as_ptr(), &raw mut resource, kind)) }?;
    Ok(resource)
}

/// Creates a descriptor of the resources. The descriptor is never freed, because the driver has no call to free a
/// descriptor.
pub(crate) fn describe(api: &Api, mut resources: Vec<CUdevResource>) -> Result<CUdevResourceDesc> {
    // Never saturates: a device has at most a few hundred SMs.
    let count = u32::try_from(resources.len()).unwrap_or(u32::MAX);
    let mut descriptor = ptr::null_mut();
    // SAFETY: `resources` has `count` live elements, and each was written by the driver.
    unsafe {
        call!(api, cuDevResourceGenerateDesc(&raw mut descriptor, resources.as_mut_ptr(), count))
    }?;
    if descriptor.is_null() {
        // The driver would accept a null descriptor for a context (recorded on an H200).
        return Err(Error::null("cuDevResourceGenerateDesc"));
    }
    Ok(descriptor)
}

/// The units that a device is cut into: the driver's resources, and their SM counts.
pub(crate) struct Units {
    resources: Box<[CUdevResource]>,
    counts: UnitCounts,
}

// SAFETY: a resource is data that only the driver writes and reads. The only pointer in a resource links resources of
// another type, and this crate does not follow that pointer.
unsafe impl Send for Units {}
// SAFETY: the argument for `Send` applies, and the resources do not change after the device is cut.
unsafe impl Sync for Units {}

impl Units {
    /// Creates the units from the driver's resources and their SM counts, one count per resource.
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

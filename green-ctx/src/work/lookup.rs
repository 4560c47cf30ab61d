//! Queries for the location of work.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::CUcontext;

use crate::handle::context::Context;
use crate::handle::dev_resource::sm_count_of;
use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::location::Location;

impl Location {
    /// Returns the location of work that runs in a raw context.
    ///
    /// # Safety
    ///
    /// The context must be alive and belong to this driver.
    pub(crate) unsafe fn of_raw(driver: &Driver, raw: CUcontext) -> Result<Location> {
        let known = driver.find_context(raw);
        let device = match &known {
            Some(context) => context.device().ordinal(),
            // SAFETY: the context is alive by this function's contract.
            None => unsafe { Context::device_of_raw(driver, raw) }?.ordinal(),
        };
        let context = known.as_ref().map_or("borrowed", Context::label).to_owned();
        let ours = |context: &Context| context.group().is_some() || !context.is_green();
        let foreign = !known.as_ref().is_some_and(ours);
        let mut context_id = 0;
        // SAFETY: the context is alive by this function's contract, and `context_id` is a live local.
        unsafe { call!(driver.functions()?, cuCtxGetId(raw, &raw mut context_id)) }?;
        // SAFETY: the context is alive by this function's contract.
        let sm_count = unsafe { sm_count_of(driver.functions()?, raw) }?;
        Ok(Location { device, context, context_id, sm_count, foreign })
    }

    pub(crate) fn of(context: &Context) -> Result<Location> {
        // SAFETY: `context` keeps the raw context alive.
        unsafe { Location::of_raw(context.device().driver(), context.raw()) }
    }
}

//! Settings of contexts and functions that change nothing which a simulation shows. Unless a comment
//! says otherwise, what they answer follows from the header and is not recorded.

use std::ffi::c_void;

use green_ctx_sys::{CUfunc_cache, CUfunc_st, CUresult};

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::profile::attribute;

/// `CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE`, and the largest value of its kind.
const FOUR_BYTE_BANKS: u32 = 1;
const EIGHT_BYTE_BANKS: u32 = 2;
/// `CU_EXEC_AFFINITY_TYPE_SM_COUNT`, the only type.
const SM_COUNT: u32 = 0;

/// No part that is simulated lets the banks of its shared memory be configured.
pub(crate) fn get_shared_memory_config(driver: &Driver, out: Ptr<u32>) -> Answer {
    driver.state().current()?;
    out.write(FOUR_BYTE_BANKS)
}

pub(crate) fn set_shared_memory_config(driver: &Driver, config: u32) -> Answer {
    driver.state().current()?;
    check_shared_memory_config(config)
}

/// The header names no error for a bad handle, which has the one of `cuFuncSetAttribute`.
pub(crate) fn set_function_shared_memory_config(
    driver: &Driver,
    function: Ptr<CUfunc_st>,
    config: u32,
) -> Answer {
    driver.state().function(function)?;
    check_shared_memory_config(config)
}

fn check_shared_memory_config(config: u32) -> Answer {
    invalid_if(config > EIGHT_BYTE_BANKS)
}

/// Refuses a preference that there is not.
pub(crate) fn check_cache_config(config: CUfunc_cache) -> Answer {
    invalid_if(config.0 > CUfunc_cache::CU_FUNC_CACHE_PREFER_EQUAL.0)
}

/// Caches are not simulated: what a device could make persist is as good as reset.
pub(crate) fn reset_persisting_l2_cache(driver: &Driver) -> Answer {
    let mut state = driver.state();
    state.current()?;
    match state.profile.attribute(attribute::MAX_PERSISTING_L2_CACHE_SIZE) {
        Some(1..) => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
}

/// Answers with the SMs of the context, although without MPS no context is limited to fewer. (How many
/// an H200 answers with is not recorded.) It answers for no green context.
pub(crate) fn get_exec_affinity(driver: &Driver, out: Ptr<c_void>, kind: u32) -> Answer {
    let mut state = driver.state();
    let context = state.current()?;
    refuse_if(state.contexts[&context].green, CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    out.given()?;
    refuse_if(kind != SM_COUNT, CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)?;
    out.cast().write([SM_COUNT, state.contexts[&context].sms.count])
}

//! Attributes of streams: the ones that say something in a simulation.

use green_ctx_sys::{
    CUlaunchAttributeID, CUlaunchAttributeValue, CUresult, CUstream_st, CUsynchronizationPolicy,
};

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if};
use crate::stream::Stream;

/// Which attribute is meant, with what it holds.
enum Attribute {
    Policy,
    Priority,
}

/// Finds an attribute. Others of streams are not simulated, those of launches are none of streams.
fn find(id: CUlaunchAttributeID) -> Answer<Attribute> {
    match id {
        CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => Ok(Attribute::Policy),
        CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => Ok(Attribute::Priority),
        CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
        | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN => {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn get(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    id: CUlaunchAttributeID,
    out: Ptr<CUlaunchAttributeValue>,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.capturing(handle)?;
    let stream = &state.streams[&handle];
    match find(id)? {
        Attribute::Policy => out.cast().write(stream.policy),
        Attribute::Priority => out.cast().write(stream.priority),
    }
}

pub(crate) fn set(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    id: CUlaunchAttributeID,
    value: Ptr<CUlaunchAttributeValue>,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    state.capturing(handle)?;
    let (least, greatest) = state.profile.stream_priorities;
    let attribute = find(id)?;
    let Some(stream) = state.streams.get_mut(&handle) else { return Ok(()) };
    match attribute {
        Attribute::Policy => {
            let policy: CUsynchronizationPolicy = value.followed().cast().read()?;
            let known = CUsynchronizationPolicy::CU_SYNC_POLICY_AUTO.0
                ..=CUsynchronizationPolicy::CU_SYNC_POLICY_BLOCKING_SYNC.0;
            invalid_if(!known.contains(&policy.0))?;
            stream.policy = policy;
        }
        Attribute::Priority => {
            let priority: i32 = value.cast().read()?;
            stream.priority = priority.clamp(greatest, least);
        }
    }
    Ok(())
}

/// Copies within a context: across contexts it is refused, as recorded.
pub(crate) fn copy(driver: &Driver, to: Ptr<CUstream_st>, from: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let (to, from) = (state.stream(to.address())?, state.stream(from.address())?);
    state.capturing(to)?;
    state.capturing(from)?;
    let Stream { context, policy, priority, .. } = state.streams[&from];
    invalid_if(state.streams[&to].context != context)?;
    if let Some(to) = state.streams.get_mut(&to) {
        to.policy = policy;
        to.priority = priority;
    }
    Ok(())
}

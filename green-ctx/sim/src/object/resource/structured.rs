//! Structured splits: groups of different sizes whose SMs are co-scheduled.
//!
//! None of this behaviour was recorded on hardware. The rules follow the header of CUDA 13.5; comments mark
//! cases that the header leaves open.

use green_ctx_sys::{
    CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY, CU_DEV_SM_RESOURCE_GROUP_PARAMS,
    CUdevResource, CUdevSmResourceGroup_flags, CUresult,
};

use super::{Bytes, Origin, Resource, Structure, read};
use crate::Profile;
use crate::clock::cost;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::sm_set::SmSet;
use crate::state::State;
use crate::topology::{GroupRequest, Locality};

const BACKFILL: u32 = CUdevSmResourceGroup_flags::CU_DEV_SM_RESOURCE_GROUP_BACKFILL.0;
const LOCALITY_DOMAIN: u32 =
    CUdevSmResourceGroup_flags::CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID.0;
const SUPPLEMENTAL_SMS: u32 =
    CUdevSmResourceGroup_flags::CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS.0;
/// The domain number that represents any domain, unsigned like the field that contains the number.
const ANY_DOMAIN: u32 = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY.cast_unsigned();
/// The flags of a group, with the versions that introduced them.
const FLAGS: [(u32, u32); 3] =
    [(BACKFILL, 13_010), (LOCALITY_DOMAIN, 13_040), (SUPPLEMENTAL_SMS, 13_050)];

const CONFIGURATION: CUresult = CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;

/// Returns the flags that a driver of this version knows.
fn known_flags(version: u32) -> u32 {
    let known = FLAGS.iter().filter(|(_, since)| *since <= version);
    known.fold(0, |flags, (flag, _)| flags | flag)
}

/// Reads the parameters of a group.
///
/// Unknown flags give `CUDA_ERROR_INVALID_VALUE`. A count that no device can satisfy gives
/// `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION`, as in a split by count. The header does not specify these
/// errors.
fn request(
    profile: &Profile,
    version: u32,
    params: &CU_DEV_SM_RESOURCE_GROUP_PARAMS,
) -> Answer<GroupRequest> {
    invalid_if(params.flags & !known_flags(version) != 0)?;
    let near = match params.flags & (LOCALITY_DOMAIN | SUPPLEMENTAL_SMS) {
        0 => profile.topology.all(),
        // This flag modifies another flag, which is missing. The header does not specify this case.
        SUPPLEMENTAL_SMS => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        flags => profile.topology.near(Locality {
            domain: (params.localityDomainId != ANY_DOMAIN).then_some(params.localityDomainId),
            supplemental: flags & SUPPLEMENTAL_SMS != 0,
        }),
    };
    // The device does not have this domain.
    refuse_if(near.is_empty(), CONFIGURATION)?;
    let pair = profile.topology.fine_unit;
    let coscheduled = match (params.coscheduledSmCount, params.smCount) {
        // From 13.4 on, discovery without a constraint finds every SM
        // (https://github.com/NVIDIA/cuda-python/pull/2389, and the first example in the header of 13.5).
        // That a requested count still uses the default was not recorded.
        (0, 0) if version >= 13_040 => pair,
        (0, _) => profile.topology.coarse_unit,
        (given, _) => given,
    };
    let most = if profile.compute_capability.0 >= 9 { 32 } else { 2 };
    // SMs come in pairs. That an odd size is refused was not recorded.
    refuse_if(!coscheduled.is_multiple_of(pair) || coscheduled > most, CONFIGURATION)?;
    let backfill = params.flags & BACKFILL != 0;
    // The choice of SMs checks whether the count is a multiple, if required, and whether enough SMs are
    // available.
    refuse_if(!params.smCount.is_multiple_of(2), CONFIGURATION)?;
    let count = (params.smCount != 0).then_some(params.smCount);
    // A preference that is not a multiple is rounded down. It is a hint, so no value is refused; the header
    // does not specify this.
    let preferred = params.preferredCoscheduledSmCount / coscheduled * coscheduled;
    Ok(GroupRequest { count, coscheduled, preferred: preferred.max(coscheduled), backfill, near })
}

impl State {
    /// Returns the bytes of one result of a structured split. `of` contains the values that all results of
    /// the split share.
    fn encode_structured(
        &mut self,
        of: Resource,
        origin: Origin,
        sms: SmSet,
        structure: Structure,
    ) -> Bytes {
        let topology = &self.profile.topology;
        // If the SMs lie more loosely than coarse units, a split by count divides a context of them in fine
        // units.
        let loose = structure.coscheduled < topology.coarse_unit || !topology.has_unit(sms);
        let (structure, count) = (Some(structure), sms.len());
        self.encode(Resource { origin, loose, structure, sms, count, ..of })
    }
}

pub(crate) fn split(
    driver: &Driver,
    result: Ptr<CUdevResource>,
    groups: u32,
    input: Ptr<CUdevResource>,
    remainder: Ptr<CUdevResource>,
    flags: u32,
    params: Ptr<CU_DEV_SM_RESOURCE_GROUP_PARAMS>,
) -> Answer {
    let mut state = driver.state();
    state.now += cost::LAUNCH / 2;
    invalid_if(groups == 0 || flags != 0)?;
    params.given()?;
    let input = state.decode(&read(input)?)?;
    refuse_if(input.origin == Origin::Part, CONFIGURATION)?;
    let asked = (0..groups as usize).map(|index| params.element(index).read());
    let mut asked = asked.collect::<Answer<Vec<_>>>()?;
    let requests = asked.iter().map(|asked| request(state.profile, state.version, asked));
    let requests = requests.collect::<Answer<Vec<_>>>()?;
    // Without room for results, only discovery is answered. A driver of 13.3 refused a count
    // (https://github.com/NVIDIA/cuda-python/issues/2765), although the header also allows a call that only
    // updates the parameters.
    if result.is_null() && requests.iter().any(|request| request.count.is_some()) {
        return Err(CONFIGURATION);
    }

    let mut free = input.sms;
    let mut chosen = Vec::new();
    for (request, asked) in requests.into_iter().zip(&mut asked) {
        let sms = state.profile.topology.gather(free, request).ok_or(CONFIGURATION)?;
        refuse_if(sms.is_empty() && !result.is_null(), CONFIGURATION)?;
        free = free.difference(sms);
        asked.smCount = sms.len();
        let domain = if asked.flags & LOCALITY_DOMAIN != 0 { asked.localityDomainId } else { 0 };
        let GroupRequest { coscheduled, .. } = request;
        chosen.push((sms, Structure { coscheduled, flags: asked.flags, domain }));
    }

    // A failed call writes nothing. A call without room for results writes no remainder, like the query of
    // a split by count. The header specifies neither.
    for (index, &updated) in asked.iter().enumerate() {
        params.element(index).write(updated)?;
    }
    if result.is_null() {
        return Ok(());
    }
    // The results of one call can be combined only with each other.
    let input = Resource { root: handle::next(), ..input };
    for (index, (sms, structure)) in chosen.into_iter().enumerate() {
        let bytes = state.encode_structured(input, Origin::Part, sms, structure);
        result.element(index).write_bytes(&bytes)?;
    }
    if remainder.is_null() {
        return Ok(());
    }
    // The header says only that the SMs of the remainder come in pairs. The alignment that a driver reports
    // for it was not recorded.
    let coscheduled = state.profile.topology.fine_unit;
    let structure = Structure { coscheduled, flags: 0, domain: 0 };
    let bytes = state.encode_structured(input, Origin::Rest, free, structure);
    remainder.write_bytes(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_came_one_by_one() {
        assert_eq!([13_010, 13_030, 13_040, 13_050].map(known_flags), [1, 1, 3, 7]);
    }
}

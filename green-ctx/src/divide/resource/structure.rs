//! Structured requests in the driver's form, from CUDA 13.1 on.

use green_ctx_sys::{
    CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY, CU_DEV_SM_RESOURCE_GROUP_PARAMS,
    CUdevSmResourceGroup_flags as Flags, Version,
};

use crate::ledger::{GroupParams, LocalityDomain, Structure};

/// The first driver with `cuDevSmResourceSplit`.
pub(super) const STRUCTURED: Version = Version::new(13, 1);
/// The first driver with locality domains.
pub(super) const LOCALITY: Version = Version::new(13, 4);
/// The first driver with SMs beyond those that it counts for each domain.
const SUPPLEMENTAL: Version = Version::new(13, 5);
/// The number that stands for any domain, unsigned as the fields that it goes into.
const ANY_DOMAIN: u32 = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY.cast_unsigned();

/// The first driver that can do what a structure asks for, and what it is that an older one lacks.
pub(super) fn needs(structure: &Structure) -> (Version, &'static str) {
    match (&structure.locality, &structure.supplemental) {
        (_, Some(_)) => (SUPPLEMENTAL, "cuDevSmResourceSplit with supplemental SMs"),
        (Some(_), None) => (LOCALITY, "cuDevSmResourceSplit with a locality domain"),
        (None, None) => (STRUCTURED, "cuDevSmResourceSplit"),
    }
}

/// One group as the driver takes it.
pub(super) fn params(group: GroupParams) -> CU_DEV_SM_RESOURCE_GROUP_PARAMS {
    let backfill = if group.backfill { Flags::CU_DEV_SM_RESOURCE_GROUP_BACKFILL.0 } else { 0 };
    let supplemental = match group.supplemental {
        true => Flags::CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS.0,
        false => 0,
    };
    let (local, domain) = match group.locality {
        None => (0, 0),
        Some(domain) => {
            let number = match domain {
                LocalityDomain::Any => ANY_DOMAIN,
                LocalityDomain::Id(number) => number,
            };
            (Flags::CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID.0, number)
        }
    };
    CU_DEV_SM_RESOURCE_GROUP_PARAMS {
        smCount: group.sm_count,
        coscheduledSmCount: group.coscheduled,
        preferredCoscheduledSmCount: group.preferred,
        flags: backfill | local | supplemental,
        localityDomainId: domain,
        reserved: [0; 11],
    }
}

/// The domain that a resource reports, if its flags say that it has one.
pub(super) fn locality_domain(flags: Flags, number: u32) -> Option<LocalityDomain> {
    let has = flags.0 & Flags::CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID.0 != 0;
    has.then_some(match number {
        ANY_DOMAIN => LocalityDomain::Any,
        number => LocalityDomain::Id(number),
    })
}

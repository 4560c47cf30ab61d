//! Guarantees of the generated types.

use green_ctx_sys::{
    CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUdevResource, CUdevResourceType, CUdevSmResource, CUresult,
    SYMBOLS, Version,
};

#[test]
fn known_values_print_by_name_and_unknown_ones_as_numbers() {
    assert_eq!(CUresult::CUDA_SUCCESS.to_string(), "CUDA_SUCCESS");
    assert_eq!(CUresult(915).name(), Some("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"));
    assert_eq!(CUresult(4242).name(), None);
    assert_eq!(CUresult(4242).to_string(), "4242");
    assert_eq!(format!("{:?}", CUdevResourceType(1000)), "CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG");
}

/// The layout in every driver since 12.4, according to the recorded raw bytes.
#[test]
fn resources_have_the_layout_of_the_driver() {
    assert_eq!(size_of::<CUdevResource>(), 144);
    assert_eq!(align_of::<CUdevResource>(), 8);
    assert_eq!(std::mem::offset_of!(CUdevResource, __bindgen_anon_1), 96);
    assert_eq!(std::mem::offset_of!(CUdevResource, nextResource), 136);
    assert_eq!(std::mem::offset_of!(CUdevSmResource, smCoscheduledAlignment), 8);
    assert_eq!(size_of::<CU_DEV_SM_RESOURCE_GROUP_PARAMS>(), 64);
}

#[test]
fn every_green_context_function_of_the_header_is_bound() {
    let listed = |name: &str| SYMBOLS.iter().find(|(symbol, _)| *symbol == name).map(|(_, v)| *v);
    assert_eq!(listed("cuGreenCtxCreate"), Some(12040));
    assert_eq!(listed("cuGreenCtxStreamCreate"), Some(12050));
    assert_eq!(listed("cuGreenCtxGetId"), Some(12090));
    assert_eq!(listed("cuDevSmResourceSplit"), Some(13010));
    assert_eq!(listed("cuStreamGetDevResource"), Some(13010));
    assert_eq!(listed("cuGetProcAddress"), Some(12000));
}

#[test]
fn versions_read_as_people_write_them() {
    assert_eq!(Version::from_number(13000), Version::new(13, 0));
    assert_eq!(Version::from_number(12040).to_string(), "12.4");
    assert!(Version::new(12, 9) < Version::new(13, 0));
}

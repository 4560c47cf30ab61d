//! The functions that the driver has at each version.

use std::ffi::CString;

use serde_json::{Map, Value, json};

use super::{Case, Needs};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::gpu::Gpu;

/// From before green contexts to newer than any recorded driver.
const VERSIONS: [i32; 8] = [12000, 12040, 12050, 12080, 12090, 13000, 13010, 13020];

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = green_ctx_sys::SYMBOLS
        .iter()
        .filter(|(name, _)| is_asked(name))
        .map(|(name, _)| symbol(name, name))
        .collect();
    cases.push(symbol("unknown-name", "cuGreenCtxNoSuchFunction"));
    cases.push(symbol("empty-name", ""));
    cases.push(Case::new("symbols/version-of-the-driver", version).needs(Needs::Init));
    cases.push(Case::new("symbols/odd-versions", odd_versions).needs(Needs::Init));
    cases
}

/// Functions of contexts and streams that the simulated driver lacks.
const NOT_SIMULATED: [&str; 18] = [
    "cuCtxDisablePeerAccess",
    "cuCtxEnablePeerAccess",
    "cuCtxGetApiVersion",
    "cuCtxGetCacheConfig",
    "cuCtxGetLimit",
    "cuCtxSetCacheConfig",
    "cuCtxSetLimit",
    "cuStreamAddCallback",
    "cuStreamBeginCaptureToGraph",
    "cuStreamCopyAttributes",
    "cuStreamGetAttribute",
    "cuStreamGetDevice",
    "cuStreamSetAttribute",
    "cuStreamUpdateCaptureDependencies",
    "cuStreamWaitValue32",
    "cuStreamWaitValue64",
    "cuStreamWriteValue32",
    "cuStreamWriteValue64",
];

/// Returns whether a function has a case: functions for contexts, streams and resources, and those that a
/// launch in a partition needs.
fn is_asked(name: &str) -> bool {
    if NOT_SIMULATED.contains(&name) {
        return false;
    }
    ["cuGreenCtx", "cuCtx", "cuStream", "cuDevSmResource", "cuDevResource"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || name.ends_with("GetDevResource")
        || ["cuKernelGetFunction", "cuLaunchKernelEx", "cuLibraryLoadData"].contains(&name)
}

/// A case with the answer of `cuGetProcAddress_v2` at each version.
fn symbol(case: &str, name: &str) -> Case {
    let name = CString::new(name).unwrap_or_default();
    let body = move |gpu: &Gpu, answer: &mut Answer<'_>| -> Outcome {
        for version in VERSIONS {
            answer.add(version.to_string(), look_up(gpu, &name, version));
        }
        Ok(())
    };
    Case::new(format!("symbols/{case}"), body).needs(Needs::Init)
}

fn look_up(gpu: &Gpu, name: &std::ffi::CStr, version: i32) -> Value {
    let reply = gpu.cuGetProcAddress(name, version);
    let (address, found) = reply.out;
    let query = if found.0 == u32::MAX { "not written".to_owned() } else { found.to_string() };
    json!({
        "status": reply.value(),
        "query": query,
        "null": address.is_null(),
    })
}

/// Looks up the function that the loader requests first, and adds its result.
fn version(gpu: &Gpu, answer: &mut Answer<'_>) -> Result<(), Failure> {
    for version in [2020, 12040, 13000, 13010] {
        answer.add(version.to_string(), look_up(gpu, c"cuDriverGetVersion", version));
    }
    answer.add("version", gpu.api.version().number());
    Ok(())
}

/// Looks up versions that no header has: older than the function, zero, negative, and far in the future.
fn odd_versions(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    for name in [c"cuInit", c"cuGreenCtxCreate"] {
        let mut versions = Map::new();
        for version in [-1, 0, 1000, 2000, 12041, 13001, 99990] {
            versions.insert(version.to_string(), look_up(gpu, name, version));
        }
        answer.add(name.to_string_lossy(), Value::Object(versions));
    }
    Ok(())
}

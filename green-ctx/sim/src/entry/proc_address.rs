//! Lookup of functions by name and version.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

use green_ctx_sys::{CUdriverProcAddressQueryResult as Found, CUresult, CUuuid};

use crate::driver::Driver;
use crate::functions::{FUNCTIONS, Function};
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`, the default.
const LEGACY_STREAM: u64 = 1;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_STREAM: u64 = 2;

/// Returns all versions of a function.
fn forms(name: &[u8]) -> &'static [&'static Function] {
    static FORMS: OnceLock<HashMap<&'static [u8], Vec<&'static Function>>> = OnceLock::new();
    let forms = FORMS.get_or_init(|| {
        let mut forms: HashMap<_, Vec<_>> = HashMap::new();
        // Functions that are not simulated are not found, so that a program can use an alternative.
        for function in FUNCTIONS.iter().filter(|function| function.is_simulated()) {
            forms.entry(function.name.as_bytes()).or_default().push(function);
        }
        forms
    });
    forms.get(name).map_or(&[], Vec::as_slice)
}

/// Finds the newest version of a function that is not newer than `version`, in a driver of version
/// `driver`. If `per_thread` is true, prefers the variant for the per-thread default stream.
fn find(
    name: &[u8],
    version: u32,
    driver: u32,
    per_thread: bool,
) -> Result<&'static Function, Found> {
    let forms = forms(name).iter().filter(|form| form.version <= driver);
    let mut known = forms.clone().peekable();
    if known.peek().is_none() {
        return Err(Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    }
    let fitting = forms
        .filter(|form| form.version <= version && (per_thread || !form.per_thread))
        .max_by_key(|form| (form.per_thread, form.version));
    fitting.copied().ok_or(Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)
}

/// Refuses every table. NVIDIA does not document these tables. An H200 returns the same error for an
/// unknown table.
pub(crate) fn get_export_table(_: &Driver, out: Ptr<*const c_void>, _: Ptr<CUuuid>) -> Answer {
    out.write_if_given(std::ptr::null());
    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Implements `cuGetProcAddress`. The version of CUDA 12.0 reports the reason for a failure in `status`;
/// the version of CUDA 11.3 has no `status`.
pub(crate) fn get(
    driver: &Driver,
    name: Ptr<c_char>,
    out: Ptr<*mut c_void>,
    version: i32,
    flags: u64,
    status: Option<Ptr<Found>>,
) -> Answer {
    out.write(std::ptr::null_mut())?;
    let name = name.followed().c_str()?;
    let newest = driver.spec.version();
    invalid_if(version > newest as i32)?;
    // A negative version is accepted and finds the newest version of the function (recorded on hardware).
    let version = version as u32;
    invalid_if(flags & !(LEGACY_STREAM | PER_THREAD_STREAM) != 0)?;
    let found = find(name.to_bytes(), version, newest, flags & PER_THREAD_STREAM != 0);
    let reason = found.err().unwrap_or(Found::CU_GET_PROC_ADDRESS_SUCCESS);
    match status {
        Some(status) => status.write_if_given(reason),
        None => refuse_if(found.is_err(), CUresult::CUDA_ERROR_NOT_FOUND)?,
    }
    out.write(found.map_or(std::ptr::null_mut(), |function| function.address(driver.slot)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answers for five versions, in the notation of the record: `no` if the driver lacks the
    /// symbol, `ver` if the symbol is not available at the version, and `y` if the symbol is found.
    fn answers(name: &str) -> [&'static str; 5] {
        [12_000, 12_040, 12_050, 12_080, 13_000].map(|version| {
            match find(name.as_bytes(), version, 13_000, false) {
                Ok(_) => "y",
                Err(Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) => "no",
                Err(_) => "ver",
            }
        })
    }

    #[test]
    fn symbols_appear_at_the_recorded_versions() {
        for name in [
            "cuDeviceGetDevResource",
            "cuCtxGetDevResource",
            "cuGreenCtxGetDevResource",
            "cuDevSmResourceSplitByCount",
            "cuDevResourceGenerateDesc",
            "cuGreenCtxCreate",
            "cuGreenCtxDestroy",
            "cuCtxFromGreenCtx",
            "cuGreenCtxRecordEvent",
            "cuGreenCtxWaitEvent",
            "cuStreamGetGreenCtx",
        ] {
            assert_eq!(answers(name), ["ver", "y", "y", "y", "y"], "{name}");
        }
        for name in ["cuGreenCtxStreamCreate", "cuCtxRecordEvent", "cuCtxWaitEvent"] {
            assert_eq!(answers(name), ["ver", "ver", "y", "y", "y"], "{name}");
        }
        for name in [
            "cuStreamGetCtx",
            "cuCtxGetId",
            "cuLaunchKernelEx",
            "cuKernelGetFunction",
            "cuLibraryLoadData",
        ] {
            assert_eq!(answers(name), ["y"; 5], "{name}");
        }
        for name in ["cuStreamGetDevResource", "cuDevSmResourceSplit", "cuNoSuchFunction", ""] {
            assert_eq!(answers(name), ["no"; 5], "{name}");
        }
        assert_eq!(answers("cuGreenCtxGetId"), ["ver", "ver", "ver", "ver", "y"]);
        assert!(find(b"cuGreenCtxGetId", 12_090, 13_000, false).is_ok());
    }

    #[test]
    fn a_request_gets_the_form_of_its_version() {
        for (name, version, form) in [
            ("cuStreamGetCtx", 12_040, 9_020),
            ("cuStreamGetCtx", 12_050, 12_050),
            ("cuCtxSynchronize", 12_080, 2_000),
            ("cuCtxSynchronize", 13_000, 13_000),
            ("cuCtxGetDevice", 13_000, 13_000),
            ("cuEventElapsedTime", 12_080, 12_080),
        ] {
            let found = find(name.as_bytes(), version, 13_000, false);
            let found = found.map(|function| function.version);
            assert_eq!(found.ok(), Some(form), "{name} at {version}");
        }
        let old = find(b"cuGreenCtxStreamCreate", 12_040, 12_040, false);
        let old = old.map(|function| function.version);
        assert_eq!(old, Err(Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
    }
}

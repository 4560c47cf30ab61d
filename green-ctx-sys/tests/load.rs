//! The errors of loading when there is no usable driver.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use green_ctx_sys::{Api, CUdriverProcAddressQueryResult, CUresult, LoadError, Version};

/// Loads a library and returns the error, which all of these tests expect.
fn refused(path: impl AsRef<Path>) -> LoadError {
    // SAFETY: none of the files in these tests runs its own code when it is opened.
    match unsafe { Api::load_from(path) } {
        Ok(api) => panic!("loaded a driver of version {}", api.version()),
        Err(error) => error,
    }
}

#[test]
fn a_missing_library_is_named() {
    let error = refused("/nowhere/libcuda.so.1");
    assert!(matches!(&error, LoadError::NotFound { path, .. } if path == "/nowhere/libcuda.so.1"));
    assert_eq!(error.to_string(), "no CUDA driver library /nowhere/libcuda.so.1");
    assert!(std::error::Error::source(&error).is_some());

    let error = refused("libcuda-of-no-machine.so.1");
    assert!(matches!(error, LoadError::NotFound { .. }), "{error}");
}

#[test]
fn a_file_that_does_not_load_is_told_from_a_missing_one() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/symbols.toml");
    let error = refused(text);
    assert!(matches!(&error, LoadError::Unloadable { path, .. } if path == text), "{error}");
    assert!(error.to_string().contains("symbols.toml"), "{error}");

    let error = refused(env!("CARGO_MANIFEST_DIR"));
    assert!(matches!(error, LoadError::Unloadable { .. }), "{error}");
}

/// The loader maps the segments of a file without comparing them with the file's length, and the first access to a
/// missing page ends the process.
#[test]
#[cfg(target_os = "linux")]
fn a_truncated_library_is_not_opened() {
    let program = std::fs::read(std::env::current_exe().expect("a path")).expect("a program");
    let library = format!("libtruncated-{}.so", std::process::id());
    let path = std::env::temp_dir().join(library);
    std::fs::write(&path, &program[..8192]).expect("it can be written");
    let error = refused(&path);
    std::fs::remove_file(&path).expect("it can be removed");
    assert!(matches!(error, LoadError::Truncated { found: 8192, .. }), "{error}");
    assert!(error.to_string().contains(&format!("{} is truncated", path.display())), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_without_the_entry_point_is_no_driver() {
    let error = refused("libm.so.6");
    assert!(matches!(&error, LoadError::NoEntryPoint { .. }), "{error}");
    assert!(error.to_string().contains("cuGetProcAddress_v2"), "{error}");
}

unsafe extern "C" fn version_12_3(version: *mut c_int) -> CUresult {
    // SAFETY: the loader passes a pointer to a live integer.
    unsafe { *version = 12030 };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn version_13_0(version: *mut c_int) -> CUresult {
    // SAFETY: the loader passes a pointer to a live integer.
    unsafe { *version = 13000 };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn version_fails(_: *mut c_int) -> CUresult {
    CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
}

/// A driver that can only report its version.
unsafe fn only(
    symbol: *const c_char,
    address: *mut *mut c_void,
    function: unsafe extern "C" fn(*mut c_int) -> CUresult,
) -> CUresult {
    // SAFETY: the loader passes a name that ends with a NUL.
    let name = unsafe { CStr::from_ptr(symbol) };
    let found =
        if name == c"cuDriverGetVersion" { function as *mut c_void } else { std::ptr::null_mut() };
    // SAFETY: the loader passes a pointer to a live address.
    unsafe { *address = found };
    CUresult::CUDA_SUCCESS
}

macro_rules! driver {
    ($name:ident, $version:ident) => {
        unsafe extern "C" fn $name(
            symbol: *const c_char,
            address: *mut *mut c_void,
            _: c_int,
            _: u64,
            _: *mut CUdriverProcAddressQueryResult,
        ) -> CUresult {
            // SAFETY: the loader passes a valid name and a valid pointer, as `only` requires.
            unsafe { only(symbol, address, $version) }
        }
    };
}
driver!(old, version_12_3);
driver!(bare, version_13_0);
driver!(broken, version_fails);

#[test]
fn a_driver_before_green_contexts_is_too_old() {
    // SAFETY: `old` behaves like the entry point of a driver with one function.
    let error = unsafe { Api::from_get_proc_address(old) }.expect_err("12.3 is too old");
    assert!(matches!(
        error,
        LoadError::TooOld { found, needs, .. }
            if found == Version::new(12, 3) && needs == Version::new(12, 4)
    ));
    assert_eq!(error.to_string(), "the driver supports CUDA 12.3, green contexts need 12.4");
}

#[test]
fn a_driver_without_a_required_function_is_refused() {
    // SAFETY: `bare` behaves like the entry point of a driver with one function.
    let error = unsafe { Api::from_get_proc_address(bare) }.expect_err("nothing but a version");
    assert!(matches!(&error, LoadError::Missing { symbol, .. } if symbol.starts_with("cu")));
}

#[test]
fn a_driver_that_cannot_report_its_version_is_refused() {
    // SAFETY: `broken` behaves like the entry point of a driver with one function.
    let error = unsafe { Api::from_get_proc_address(broken) }.expect_err("no version");
    assert_eq!(
        error.to_string(),
        "cuDriverGetVersion of the driver failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
    );
}

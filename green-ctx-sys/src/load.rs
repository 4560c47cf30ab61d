//! Opening the driver library and resolving its functions.

use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::path::{Path, PathBuf};

use crate::api::Table;
use crate::bindings::{CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, CUresult};
use crate::search;
use crate::version::Version;

/// The oldest driver with green contexts.
pub const OLDEST: Version = Version::new(12, 4);

/// The driver library's name where the system's loader finds it.
pub const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// The signature of `cuGetProcAddress_v2`, CUDA 12.0 and newer.
///
/// The library's symbol without `_v2` is an older function of four arguments.
pub type GetProcAddress = unsafe extern "C" fn(
    symbol: *const core::ffi::c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult;

/// A function that only a simulated driver library exports: it returns the name of the simulated device, as a
/// terminated string that stays valid, or null where there is none.
const SIMULATED_PROFILE: &CStr = c"greenCtxSimulatedProfile";

type SimulatedProfile = unsafe extern "C" fn() -> *const core::ffi::c_char;

type DriverGetVersion = unsafe extern "C" fn(version: *mut c_int) -> CUresult;

/// The functions of one CUDA driver.
///
/// Loading touches nothing but the library: `cuInit` is the caller's to call.
pub struct Api {
    pub(crate) table: Table,
    version: Version,
    entry: GetProcAddress,
    simulated_profile: Option<String>,
    /// Never unloaded: the driver starts threads and registers handlers that outlive any handle.
    _library: Option<ManuallyDrop<libloading::Library>>,
}

impl Api {
    /// Opens [`LIBRARY`] by name and resolves every function.
    ///
    /// # Errors
    ///
    /// As [`load_from`](Api::load_from).
    pub fn load() -> Result<Api, LoadError> {
        // SAFETY: the system's library of this name is the CUDA driver.
        unsafe { Api::load_from(Path::new(LIBRARY)) }
    }

    /// Opens the library at `path` and resolves every function. A path without a separator is
    /// looked for as the system's loader does.
    ///
    /// # Errors
    ///
    /// [`LoadError::NotFound`], [`LoadError::Unloadable`], [`LoadError::NoEntryPoint`],
    /// [`LoadError::TooOld`] and the rest of [`LoadError`], each with the path.
    ///
    /// # Safety
    ///
    /// The library must be a CUDA driver: opening it runs its code, and its functions are called with the
    /// signatures that `cuda.h` gives them.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Api, LoadError> {
        let path = path.as_ref();
        // SAFETY: opening a library runs its initialisers, and it is a CUDA driver by this function's
        // contract.
        let library = unsafe { libloading::Library::new(path) }.map_err(|source| {
            match search::existing(path, &source) {
                Some(path) => LoadError::Unloadable { path, source },
                None => LoadError::NotFound { path: path.to_owned(), source },
            }
        })?;
        // SAFETY: the symbol of this name has this signature in every driver that exports it
        // (cuda.h, CUDA 12.0 and newer).
        let entry = match unsafe { library.get::<GetProcAddress>(c"cuGetProcAddress_v2") } {
            Ok(symbol) => *symbol,
            Err(source) => return Err(no_entry_point(path, &library, source)),
        };
        // SAFETY: `entry` is that function, and the library stays loaded for good.
        let mut api = unsafe { Api::resolve(entry, Some(path)) }?;
        api.simulated_profile = simulated_profile(&library);
        api._library = Some(ManuallyDrop::new(library));
        Ok(api)
    }

    /// Resolves every function through a `cuGetProcAddress_v2` that the caller already has: that of
    /// a simulated driver, or of a host that loaded the library itself.
    ///
    /// # Errors
    ///
    /// [`LoadError::Missing`], [`LoadError::TooOld`] and [`LoadError::Driver`].
    ///
    /// # Safety
    ///
    /// `entry` must behave as `cuGetProcAddress_v2` of a CUDA driver, and it and the functions that
    /// it returns must stay valid for as long as the result or a function taken from it is used.
    pub unsafe fn from_get_proc_address(entry: GetProcAddress) -> Result<Api, LoadError> {
        // SAFETY: as this function's own contract.
        unsafe { Api::resolve(entry, None) }
    }

    /// # Safety
    ///
    /// As [`from_get_proc_address`](Api::from_get_proc_address).
    unsafe fn resolve(entry: GetProcAddress, path: Option<&Path>) -> Result<Api, LoadError> {
        // Asked first and at its own version, since no request may name a version above it.
        let resolver = Resolver { entry, path, version: Version::from_number(u32::MAX) };
        let address = resolver.required(c"cuDriverGetVersion", 2020)?;
        // SAFETY: this is the function's signature in every version (cuda.h).
        let get_version =
            unsafe { core::mem::transmute::<NonNull<c_void>, DriverGetVersion>(address) };
        // SAFETY: `get_version` is `cuDriverGetVersion`.
        let version = unsafe { ask_version(get_version) }.map_err(|status| LoadError::Driver {
            path: resolver.path(),
            call: "cuDriverGetVersion",
            status,
        })?;
        if version < OLDEST {
            return Err(LoadError::TooOld { path: resolver.path(), found: version, needs: OLDEST });
        }
        let resolver = Resolver { version, ..resolver };
        // SAFETY: as this function's own contract.
        let table = unsafe { Table::resolve(&resolver) }?;
        Ok(Api { table, version, entry, simulated_profile: None, _library: None })
    }

    /// The driver's version, the newest CUDA that it supports.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The entry point that the functions came from. Two `Api`s with the same one are the same
    /// driver.
    #[must_use]
    pub fn entry(&self) -> GetProcAddress {
        self.entry
    }

    /// The simulated device, `h200` for example, where the library says that it is simulated. NVIDIA's
    /// driver does not.
    #[must_use]
    pub fn simulated_profile(&self) -> Option<&str> {
        self.simulated_profile.as_deref()
    }

    #[cold]
    pub(crate) fn unsupported(&self, call: &'static str, needs: u32) -> Unsupported {
        Unsupported { call, needs: Version::from_number(needs), found: self.version }
    }
}

fn simulated_profile(library: &libloading::Library) -> Option<String> {
    // SAFETY: the simulated library exports the symbol with this signature. The name is this project's own,
    // and it is assumed that no other driver has it.
    let function = unsafe { library.get::<SimulatedProfile>(SIMULATED_PROFILE) }.ok()?;
    // SAFETY: it takes nothing.
    let name = NonNull::new(unsafe { function() }.cast_mut())?;
    // SAFETY: it returns a terminated string that stays valid, or null.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}

/// # Safety
///
/// `function` must be `cuDriverGetVersion`.
unsafe fn ask_version(function: DriverGetVersion) -> Result<Version, CUresult> {
    let mut number: c_int = 0;
    // SAFETY: the pointer is to a live integer; the call needs no `cuInit` (cuda.h).
    match unsafe { function(&raw mut number) } {
        CUresult::CUDA_SUCCESS => Ok(Version::from_number(u32::try_from(number).unwrap_or(0))),
        status => Err(status),
    }
}

/// Distinguishes a driver before CUDA 12.0, whose version it exports, from a library that is no
/// driver.
fn no_entry_point(
    path: &Path,
    library: &libloading::Library,
    source: libloading::Error,
) -> LoadError {
    // SAFETY: every driver exports the symbol of this name with this signature (cuda.h).
    let version = unsafe { library.get::<DriverGetVersion>(c"cuDriverGetVersion") }
        .ok()
        // SAFETY: it is that function.
        .and_then(|function| unsafe { ask_version(*function) }.ok());
    match version {
        Some(found) => LoadError::TooOld { path: path.to_owned(), found, needs: OLDEST },
        None => LoadError::NoEntryPoint { path: path.to_owned(), source },
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Asks a driver for its functions.
pub(crate) struct Resolver<'a> {
    entry: GetProcAddress,
    path: Option<&'a Path>,
    version: Version,
}

impl Resolver<'_> {
    /// The address of a function without which the library is no driver.
    pub(crate) fn required(&self, name: &CStr, version: u32) -> Result<NonNull<c_void>, LoadError> {
        NonNull::new(self.address(name, version)).ok_or_else(|| LoadError::Missing {
            path: self.path(),
            symbol: name.to_string_lossy().into_owned(),
        })
    }

    /// The address of a function that may be missing: null then.
    pub(crate) fn optional(&self, name: &CStr, version: u32) -> Result<*mut c_void, LoadError> {
        Ok(self.address(name, version))
    }

    fn address(&self, name: &CStr, version: u32) -> *mut c_void {
        let mut address = core::ptr::null_mut();
        let Ok(number) = c_int::try_from(version) else { return address };
        if Version::from_number(version) > self.version {
            // The driver would refuse the request, whatever the name.
            return address;
        }
        let mut found = CUdriverProcAddressQueryResult(0);
        let flags = u64::from(CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_DEFAULT.0);
        // SAFETY: a terminated name and two live places to write to; `entry` is
        // `cuGetProcAddress_v2` by the contract of `Api::resolve`.
        let status =
            unsafe { (self.entry)(name.as_ptr(), &raw mut address, number, flags, &raw mut found) };
        // A missing symbol is a success with a null address on a 13.0 driver.
        if status == CUresult::CUDA_SUCCESS { address } else { core::ptr::null_mut() }
    }

    fn path(&self) -> PathBuf {
        self.path.map(Path::to_owned).unwrap_or_default()
    }
}

crate::debug_as_text!(LoadError, Unsupported);

/// A function that this driver does not have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Unsupported {
    /// The function.
    pub call: &'static str,
    /// The version that it needs.
    pub needs: Version,
    /// The driver's version.
    pub found: Version,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} needs CUDA {}, the driver supports {}", self.call, self.needs, self.found)
    }
}

impl std::error::Error for Unsupported {}

/// Why no driver was loaded. Where there was no path, because the caller gave the entry point, the
/// path is empty.
#[non_exhaustive]
pub enum LoadError {
    /// There is no such file: no NVIDIA driver is installed, or the path is wrong.
    NotFound {
        /// The path or name that was tried.
        path: PathBuf,
        /// What the system's loader said.
        source: libloading::Error,
    },
    /// The library exists and cannot be loaded: the file is damaged, is for another machine or is not a
    /// library, or it needs another library that is missing.
    Unloadable {
        /// The file, or the name that was tried if the loader alone knows the file.
        path: PathBuf,
        /// What the system's loader said.
        source: libloading::Error,
    },
    /// The library exports neither `cuGetProcAddress_v2` nor a version: it is no CUDA driver.
    NoEntryPoint {
        /// The path that was tried.
        path: PathBuf,
        /// What the system's loader said.
        source: libloading::Error,
    },
    /// The entry point does not know a function that every driver has.
    Missing {
        /// The path that was tried.
        path: PathBuf,
        /// The function.
        symbol: String,
    },
    /// The driver is older than green contexts.
    TooOld {
        /// The path that was tried.
        path: PathBuf,
        /// The driver's version.
        found: Version,
        /// The oldest version that will do.
        needs: Version,
    },
    /// The driver answered a call with an error.
    Driver {
        /// The path that was tried.
        path: PathBuf,
        /// The function that failed.
        call: &'static str,
        /// Its answer.
        status: CUresult,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::NotFound { path, .. } => {
                write!(f, "no CUDA driver library {}", path.display())
            }
            LoadError::Unloadable { path, .. } => {
                write!(f, "the CUDA driver library {} exists but cannot be loaded", path.display())
            }
            LoadError::NoEntryPoint { path, .. } => write!(
                f,
                "{} does not export cuGetProcAddress_v2: it is not a CUDA driver",
                path.display()
            ),
            LoadError::Missing { path, symbol } => {
                write!(f, "the driver{} has no {symbol}", of(path))
            }
            LoadError::TooOld { path, found, needs } => write!(
                f,
                "the driver{} supports CUDA {found}, green contexts need {needs}",
                of(path)
            ),
            LoadError::Driver { path, call, status } => {
                write!(f, "{call} of the driver{} failed: {status}", of(path))
            }
        }
    }
}

/// Names a library that has a path.
fn of(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!(" {}", path.display()) }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::NotFound { source, .. }
            | LoadError::Unloadable { source, .. }
            | LoadError::NoEntryPoint { source, .. } => Some(source),
            LoadError::Missing { .. } | LoadError::TooOld { .. } | LoadError::Driver { .. } => None,
        }
    }
}

//! Opens the driver library and resolves its functions.

use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::path::{Path, PathBuf};

use crate::api::Table;
use crate::bindings::{
    CUcontext, CUdevice, CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, CUresult,
};
use crate::search;
use crate::version::Version;

/// The oldest CUDA version whose driver supports green contexts.
pub const OLDEST: Version = Version::new(12, 4);

/// The driver library's name, which the system's loader resolves.
pub const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// The signature of `cuGetProcAddress_v2`, in CUDA 12.0 and newer.
///
/// The driver library also exports `cuGetProcAddress` without `_v2`, which is an older function with four parameters.
pub type GetProcAddress = unsafe extern "C" fn(
    symbol: *const core::ffi::c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult;

/// The name of a function that only a simulated driver library exports. The function returns the name of the
/// simulated device as a static string that ends with a NUL, or null if the library could not create the simulated
/// driver.
const SIMULATED_PROFILE: &CStr = c"greenCtxSimulatedProfile";

type SimulatedProfile = unsafe extern "C" fn() -> *const core::ffi::c_char;

/// The function with which a library in front of the driver returns the entry point for partitions. The argument is an
/// entry point of either.
type ReserveEntry = unsafe extern "C" fn(entry: GetProcAddress) -> Option<GetProcAddress>;

/// The SMs and the context to which a library in front of the driver confines work outside of partitions. The numbers
/// of units are those of the smallest units that `cuDevSmResourceSplitByCount` makes with the flags 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// The number of SMs that this work may use.
    pub sms: u32,
    /// The number of reserved units. They are the first units of the device.
    pub first: u32,
    /// Whether the device's last unit, which has another size, is reserved too.
    pub odd_reserved: bool,
    /// The context in which this work runs, or null.
    pub context: CUcontext,
}

/// The function with which a library in front of the driver describes a device's rest.
type ReserveRest = unsafe extern "C" fn(device: CUdevice, make: bool, to: *mut Rest) -> CUresult;

type DriverGetVersion = unsafe extern "C" fn(version: *mut c_int) -> CUresult;

/// Returns two functions of a library that is in front of a driver and confines other callers: the entry point for
/// partitions, and the description of the rest. `entry` is the entry point of this library or of this driver. Returns
/// `None` if no such library is loaded.
#[cfg(target_os = "linux")]
fn front_of(entry: GetProcAddress) -> Option<(GetProcAddress, ReserveRest)> {
    use libloading::os::unix::{Library, RTLD_NOW};
    const RTLD_NOLOAD: c_int = 4;
    // SAFETY: with `RTLD_NOLOAD`, nothing is loaded or run.
    let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_NOLOAD) }.ok()?;
    // SAFETY: only this library exports this symbol, whose name contains the name of this project.
    let of = unsafe { library.get::<ReserveEntry>(b"greenCtxReserveEntry\0") };
    // SAFETY: as above.
    let rest = unsafe { library.get::<ReserveRest>(b"greenCtxReserveRest\0") };
    // SAFETY: `entry` is only compared.
    let entry = unsafe { (of.ok()?)(entry) }?;
    Some((entry, *rest.ok()?))
}

#[cfg(not(target_os = "linux"))]
fn front_of(_: GetProcAddress) -> Option<(GetProcAddress, ReserveRest)> {
    None
}

/// The functions of one CUDA driver.
///
/// Loading does not initialise the driver: the caller has to call `cuInit`.
pub struct Api {
    pub(crate) table: Table,
    version: Version,
    entry: GetProcAddress,
    simulated_profile: Option<String>,
    reserve_rest: Option<ReserveRest>,
    /// The library is never unloaded, since the driver starts threads and registers handlers that outlive every
    /// handle.
    _library: Option<ManuallyDrop<libloading::Library>>,
}

impl Api {
    /// Opens [`LIBRARY`] by name and resolves every function.
    ///
    /// # Errors
    ///
    /// As for [`load_from`](Api::load_from).
    pub fn load() -> Result<Api, LoadError> {
        // SAFETY: the system's library of this name is the CUDA driver.
        unsafe { Api::load_from(Path::new(LIBRARY)) }
    }

    /// Opens the library at `path` and resolves every function. If `path` has no separator, the system's loader
    /// searches its folders for a library of that name.
    ///
    /// # Errors
    ///
    /// A [`LoadError`] that contains the path, for example [`LoadError::NotFound`], [`LoadError::Unloadable`],
    /// [`LoadError::Truncated`], [`LoadError::NoEntryPoint`] or [`LoadError::TooOld`].
    ///
    /// # Safety
    ///
    /// The library must be a CUDA driver. Opening a library runs its initialisers, and this crate calls the library's
    /// functions with the signatures in `cuda.h`.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Api, LoadError> {
        let path = path.as_ref();
        if let Some(search::Truncated { path, found, needs }) = search::truncated(path) {
            return Err(LoadError::Truncated { path, found, needs });
        }
        // SAFETY: opening a library runs its initialisers. By this function's contract, the library is a CUDA driver.
        let library = unsafe { libloading::Library::new(path) }.map_err(|source| {
            match search::existing(path, &source) {
                Some(path) => LoadError::Unloadable { path, source },
                None => LoadError::NotFound { path: path.to_owned(), source },
            }
        })?;
        // SAFETY: every driver that exports this symbol gives it this signature (cuda.h, CUDA 12.0 and newer).
        let entry = match unsafe { library.get::<GetProcAddress>(c"cuGetProcAddress_v2") } {
            Ok(symbol) => *symbol,
            Err(source) => return Err(no_entry_point(path, &library, source)),
        };
        // SAFETY: `entry` is the library's `cuGetProcAddress_v2`, and the library is never unloaded (`_library`).
        let mut api = unsafe { Api::resolve(entry, Some(path)) }?;
        api.simulated_profile = simulated_profile(&library);
        api._library = Some(ManuallyDrop::new(library));
        Ok(api)
    }

    /// Resolves every function through the given `cuGetProcAddress_v2`, for example the one of a simulated driver or
    /// of a library that the caller has loaded.
    ///
    /// # Errors
    ///
    /// [`LoadError::Missing`], [`LoadError::TooOld`] or [`LoadError::Driver`].
    ///
    /// # Safety
    ///
    /// `entry` must behave like `cuGetProcAddress_v2` of a CUDA driver. `entry` and the functions that it returns
    /// must stay valid while the returned [`Api`], or a function obtained from that [`Api`], is in use.
    pub unsafe fn from_get_proc_address(entry: GetProcAddress) -> Result<Api, LoadError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Api::resolve(entry, None) }
    }

    /// # Safety
    ///
    /// As for [`from_get_proc_address`](Api::from_get_proc_address).
    unsafe fn resolve(entry: GetProcAddress, path: Option<&Path>) -> Result<Api, LoadError> {
        let front = front_of(entry);
        let entry = front.map_or(entry, |(entry, _)| entry);
        // Resolved first, and at its own version: the driver refuses every request for a version above its own.
        let resolver = Resolver { entry, path, version: Version::from_number(u32::MAX) };
        let address = resolver.required(c"cuDriverGetVersion", 2020)?;
        // SAFETY: every version of the function has this signature (cuda.h).
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
        // SAFETY: `entry` is a driver's `cuGetProcAddress_v2` by this function's contract.
        let table = unsafe { Table::resolve(&resolver) }?;
        Ok(Api {
            table,
            version,
            entry,
            simulated_profile: None,
            reserve_rest: front.map(|(_, rest)| rest),
            _library: None,
        })
    }

    /// Returns the driver's version, which is the newest CUDA version that it supports.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the entry point through which the functions were resolved. Two `Api`s with the same entry point use
    /// the same driver.
    #[must_use]
    pub fn entry(&self) -> GetProcAddress {
        self.entry
    }

    /// Returns the rest of a device, to which work outside of partitions is confined. Returns `None` if no SMs are
    /// reserved. If `make` is true, the first call for a device makes the context of the rest; otherwise, the context
    /// of the result is null. The function needs `cuInit`.
    pub fn rest(&self, device: CUdevice, make: bool) -> Option<Result<Rest, CUresult>> {
        let describe = self.reserve_rest?;
        let mut rest = core::mem::MaybeUninit::uninit();
        // SAFETY: the function writes to `rest`, unless it returns an error.
        Some(match unsafe { describe(device, make, rest.as_mut_ptr()) } {
            // SAFETY: the function has written to `rest`.
            CUresult::CUDA_SUCCESS => Ok(unsafe { rest.assume_init() }),
            status => Err(status),
        })
    }

    /// Returns the name of the simulated device, for example `h200`, if the library is a simulated driver. Returns
    /// `None` for NVIDIA's driver.
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
    // SAFETY: the simulated library exports this symbol with this signature. The code assumes that no other driver
    // exports a symbol with this name, which contains the name of this project.
    let function = unsafe { library.get::<SimulatedProfile>(SIMULATED_PROFILE) }.ok()?;
    // SAFETY: the function takes no arguments.
    let name = NonNull::new(unsafe { function() }.cast_mut())?;
    // SAFETY: the function returned a static string that ends with a NUL.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}

/// # Safety
///
/// `function` must be `cuDriverGetVersion`.
unsafe fn ask_version(function: DriverGetVersion) -> Result<Version, CUresult> {
    let mut number: c_int = 0;
    // SAFETY: `number` is a live local, and the function needs no `cuInit` (cuda.h).
    match unsafe { function(&raw mut number) } {
        CUresult::CUDA_SUCCESS => Ok(Version::from_number(u32::try_from(number).unwrap_or(0))),
        status => Err(status),
    }
}

/// Returns the error for a library without the entry point. A library that exports a working `cuDriverGetVersion` is
/// a driver older than CUDA 12.0. Any other library is not a CUDA driver.
fn no_entry_point(
    path: &Path,
    library: &libloading::Library,
    source: libloading::Error,
) -> LoadError {
    // SAFETY: every driver exports this symbol with this signature (cuda.h).
    let version = unsafe { library.get::<DriverGetVersion>(c"cuDriverGetVersion") }
        .ok()
        // SAFETY: `function` is `cuDriverGetVersion`.
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

/// Resolves the functions of a driver by name and version.
pub(crate) struct Resolver<'a> {
    entry: GetProcAddress,
    path: Option<&'a Path>,
    version: Version,
}

impl Resolver<'_> {
    /// Returns the address of a function that every driver must have.
    pub(crate) fn required(&self, name: &CStr, version: u32) -> Result<NonNull<c_void>, LoadError> {
        NonNull::new(self.address(name, version)).ok_or_else(|| LoadError::Missing {
            path: self.path(),
            symbol: name.to_string_lossy().into_owned(),
        })
    }

    /// Returns the address of a function, or null if the driver does not have it.
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
        // SAFETY: the name ends with a NUL, and `address` and `found` are live locals. `entry` is `cuGetProcAddress_v2`
        // by the contract of `Api::resolve`.
        let status =
            unsafe { (self.entry)(name.as_ptr(), &raw mut address, number, flags, &raw mut found) };
        // A 13.0 driver reports success with a null address for a missing symbol.
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
    /// The function's name.
    pub call: &'static str,
    /// The oldest CUDA version that has the function.
    pub needs: Version,
    /// The driver's version.
    pub found: Version,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} needs CUDA {}, but the driver supports only {}",
            self.call, self.needs, self.found
        )
    }
}

impl std::error::Error for Unsupported {}

/// The reason why no driver was loaded. The field `path` is empty if the caller passed an entry point instead of a
/// path.
#[non_exhaustive]
pub enum LoadError {
    /// The file does not exist. No NVIDIA driver is installed, or the path is wrong.
    NotFound {
        /// The path or name that was tried.
        path: PathBuf,
        /// The message of the system's loader.
        source: libloading::Error,
    },
    /// The library exists but cannot be loaded. The file may be damaged, built for another machine, or not a
    /// library, or it may need another library that is missing.
    Unloadable {
        /// The path of the file, or the name that was tried if only the system's loader knows the path.
        path: PathBuf,
        /// The message of the system's loader.
        source: libloading::Error,
    },
    /// The file is shorter than its segments, and loading it could end the process.
    Truncated {
        /// The path of the file.
        path: PathBuf,
        /// The length of the file, in bytes.
        found: u64,
        /// The length that the segments need, in bytes.
        needs: u64,
    },
    /// The library exports neither `cuGetProcAddress_v2` nor a working `cuDriverGetVersion`, so the library is not a
    /// CUDA driver.
    NoEntryPoint {
        /// The path that was tried.
        path: PathBuf,
        /// The message of the system's loader.
        source: libloading::Error,
    },
    /// The entry point does not resolve a function that every driver has.
    Missing {
        /// The path that was tried.
        path: PathBuf,
        /// The function's name.
        symbol: String,
    },
    /// The driver is too old for green contexts.
    TooOld {
        /// The path that was tried.
        path: PathBuf,
        /// The driver's version.
        found: Version,
        /// The oldest supported version.
        needs: Version,
    },
    /// A driver call failed.
    Driver {
        /// The path that was tried.
        path: PathBuf,
        /// The name of the function that failed.
        call: &'static str,
        /// The status that the function returned.
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
            LoadError::Truncated { path, found, needs } => write!(
                f,
                "the CUDA driver library {} is truncated: it has {found} bytes, but needs {needs}",
                path.display()
            ),
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

/// Returns the path with a space before it, or an empty string if there is no path.
fn of(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!(" {}", path.display()) }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::NotFound { source, .. }
            | LoadError::Unloadable { source, .. }
            | LoadError::NoEntryPoint { source, .. } => Some(source),
            LoadError::Truncated { .. }
            | LoadError::Missing { .. }
            | LoadError::TooOld { .. }
            | LoadError::Driver { .. } => None,
        }
    }
}

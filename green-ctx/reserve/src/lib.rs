//! Loads a library in front of the CUDA driver that confines work outside of partitions. `front/front.rs` is the
//! library, and explains the mechanism. Programs use it through the feature `reserve` of `green-ctx`.
#![cfg(target_os = "linux")]

use std::ffi::{CStr, c_int, c_uint};
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use green_ctx_sys::{GetProcAddress, LIBRARY};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// The library, and a library without functions that is named `libcuda.so` and needs the first one.
static FRONT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/front.so"));
static NAME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/name.so"));

/// The reason why no SMs can be reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver is in use already, or another library has opened it.
    #[error(
        "libcuda is loaded already, so it is too late to confine work outside of partitions: reserve SMs before \
         the program uses CUDA or imports a library that does, or set GREEN_CTX_RESERVE"
    )]
    Loaded,
    /// This process has reserved another amount.
    #[error("this process has reserved another number of SMs, which cannot be changed")]
    Other,
    /// The environment variable is not a number of SMs or a percentage.
    #[error("{VARIABLE}={0} is not a number of SMs such as 32, or a percentage such as 25%")]
    Variable(String),
    /// There is no driver.
    #[error("the system's loader finds no {LIBRARY}")]
    NotFound,
    /// The driver lacks a function.
    #[error("the driver {} lacks a function of green contexts; a reserve needs CUDA 12.5", .0.display())]
    Unsupported(PathBuf),
    /// The library cannot be written to memory, or is not carried with a long path.
    #[error("the library in front of the driver cannot be loaded from memory")]
    Memory(#[source] io::Error),
    /// The system's loader refuses the library.
    #[error("the library in front of the driver cannot be loaded")]
    Load(#[source] libloading::Error),
}

/// The environment variable that [`from_environment`] reads.
pub const VARIABLE: &str = "GREEN_CTX_RESERVE";

/// Reserves the amount in [`VARIABLE`], if it is set and not empty.
///
/// # Errors
///
/// As for [`reserve`], and [`Error::Variable`].
pub fn from_environment() -> Result<(), Error> {
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(());
    };
    let text = text.to_string_lossy();
    let (number, percent) = text.strip_suffix('%').map_or((&*text, false), |part| (part, true));
    match number.trim().parse() {
        Ok(amount) if amount > 0 && !(percent && amount > 100) => reserve(amount, percent),
        _ => Err(Error::Variable(text.into_owned())),
    }
}

type Start = unsafe extern "C" fn(GetProcAddress, c_uint, bool) -> c_int;

/// Confines all work of this process outside of partitions to the SMs that are not reserved. `amount` is a number of SMs
/// of each device, or a percentage. This makes no driver call, and takes effect on each device at the first use.
///
/// # Errors
///
/// [`Error`]. After an error, the process is as before.
pub fn reserve(amount: u32, percent: bool) -> Result<(), Error> {
    static LOADING: Mutex<()> = Mutex::new(());
    let _loading = LOADING.lock();
    if let Some(loaded) = loaded() {
        let start = symbol::<Start>(&loaded, c"greenCtxReserveStart").ok_or(Error::Loaded)?;
        let real =
            symbol::<GetProcAddress>(&loaded, c"cuGetProcAddress_v2").ok_or(Error::Loaded)?;
        // SAFETY: the library was started, so it only compares the amounts.
        return if unsafe { start(real, amount, percent) } == 0 {
            Ok(())
        } else {
            Err(Error::Other)
        };
    }
    let path = green_ctx_sys::find(Path::new(LIBRARY)).ok_or(Error::NotFound)?;
    let front = load(&patched(FRONT, &path)?)?;
    // SAFETY: the path is that of the driver, which the library above needs, so it is loaded already.
    let real = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(Error::Load)?;
    let entry = symbol::<GetProcAddress>(&real, c"cuGetProcAddress_v2");
    let start = symbol::<Start>(&front.library, c"greenCtxReserveStart");
    let (Some(entry), Some(start)) = (entry, start) else { return Err(Error::Unsupported(path)) };
    // SAFETY: `entry` is the driver's, and the library is in front of it.
    if unsafe { start(entry, amount, percent) } != 0 {
        return Err(Error::Unsupported(path));
    }
    let name = load(NAME)?;
    // They stay loaded, and their files open: another file with the same number would be taken for the same library.
    let _ = (ManuallyDrop::new(front), ManuallyDrop::new(name), ManuallyDrop::new(real));
    Ok(())
}

/// A library that was loaded from memory. Its file is closed after it is unloaded.
struct Loaded {
    library: Library,
    _file: File,
}

/// Returns the library that programs get by the driver's name, if one is loaded.
fn loaded() -> Option<Library> {
    // SAFETY: with `RTLD_NOLOAD`, nothing is loaded or run.
    unsafe { Library::open(Some(LIBRARY), RTLD_NOW | libc::RTLD_NOLOAD) }.ok()
}

fn symbol<T: Copy>(library: &Library, name: &CStr) -> Option<T> {
    // SAFETY: each caller gives the type that the function of this name has.
    unsafe { library.get::<T>(name.to_bytes_with_nul()) }.ok().map(|symbol| *symbol)
}

/// Returns a library with a path in place of the name of the library that it needs.
fn patched(library: &[u8], path: &Path) -> Result<Vec<u8>, Error> {
    let place = env!("GREEN_CTX_RESERVE_PLACE").parse().unwrap_or(0);
    let path = path.as_os_str().as_bytes();
    let wrong = || Error::Memory(io::ErrorKind::InvalidFilename.into());
    let begin = library.windows(place).position(|window| window.iter().all(|byte| *byte == b'X'));
    let begin = begin.filter(|_| path.len() < place && !path.contains(&0)).ok_or_else(wrong)?;
    let mut patched = library.to_vec();
    patched[begin..begin + place].fill(0);
    patched[begin..begin + path.len()].copy_from_slice(path);
    Ok(patched)
}

/// Loads a library from memory. Its functions come before those of libraries that are loaded later.
fn load(bytes: &[u8]) -> Result<Loaded, Error> {
    // SAFETY: the name ends with a NUL.
    let number = unsafe { libc::memfd_create(c"green-ctx-reserve".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(Error::Memory(io::Error::last_os_error()));
    }
    // SAFETY: the file was just opened, and nothing else closes it.
    let mut file = unsafe { File::from_raw_fd(number) };
    file.write_all(bytes).map_err(Error::Memory)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the library has no initialisers.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    Ok(Loaded { library: library.map_err(Error::Load)?, _file: file })
}

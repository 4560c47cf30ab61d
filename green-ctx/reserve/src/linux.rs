//! Loads the library from memory, and writes it for files.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use green_ctx_sys::{GetProcAddress, LIBRARY};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::{Amount, Error};

/// The library, and a library without functions that is named `libcuda.so` and needs the first one.
static FRONT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/front.so"));
static NAME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/name.so"));

/// The bytes before the amount in the library.
const MARK: &[u8] = b"green-ctx amount";

type Start = unsafe extern "C" fn(GetProcAddress, Amount) -> c_int;

/// Confines all work of this process outside of partitions to the SMs that are not reserved. This makes no driver call,
/// and takes effect on each device at the first use.
///
/// # Errors
///
/// [`Error`]. After an error, the process is as before.
pub fn reserve(amount: Amount) -> Result<(), Error> {
    static LOADING: Mutex<()> = Mutex::new(());
    let _loading = LOADING.lock();
    if let Some(loaded) = loaded() {
        return compare(&loaded, amount);
    }
    let path = green_ctx_sys::find(Path::new(LIBRARY)).ok_or(Error::NotFound)?;
    if is_front(&path) || crate::program::is_reserved() {
        // SAFETY: the library starts itself when it is loaded.
        let front = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) };
        return compare(&ManuallyDrop::new(front.map_err(Error::Load)?), amount);
    }
    // Both files, so that nothing is loaded if one of them cannot be written.
    let (front, name) = (in_memory(&patched(FRONT, &path)?)?, in_memory(NAME)?);
    let front = load(front)?;
    // SAFETY: the path is that of the driver, which the library above needs, so it is loaded already.
    let real = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(Error::Load)?;
    let entry = symbol::<GetProcAddress>(&real, c"cuGetProcAddress_v2");
    let start = symbol::<Start>(&front.library, c"greenCtxReserveStart");
    let (Some(entry), Some(start)) = (entry, start) else { return Err(Error::Unsupported(path)) };
    // SAFETY: `entry` is the driver's, and the library is in front of it.
    if unsafe { start(entry, amount) } != 0 {
        return Err(Error::Unsupported(path));
    }
    let name = load(name)?;
    // Another thread may have opened the driver in the meantime.
    compare(&loaded().ok_or(Error::Loaded)?, amount)?;
    // They stay loaded, and their files open: another file with the same number would be taken for the same library.
    let _ = (ManuallyDrop::new(front), ManuallyDrop::new(name), ManuallyDrop::new(real));
    Ok(())
}

/// Checks that the library that programs get by the driver's name is in front of it, with this amount.
fn compare(loaded: &Library, amount: Amount) -> Result<(), Error> {
    let start = symbol::<Start>(loaded, c"greenCtxReserveStart").ok_or(Error::Loaded)?;
    let entry = symbol::<GetProcAddress>(loaded, c"cuGetProcAddress_v2").ok_or(Error::Loaded)?;
    // SAFETY: the library was started, so it only compares the amounts.
    if unsafe { start(entry, amount) } == 0 { Ok(()) } else { Err(Error::Other) }
}

/// Returns whether a file is the library in front of the driver, which is small.
fn is_front(path: &Path) -> bool {
    let is_small = path.metadata().is_ok_and(|about| about.len() < 1 << 18);
    let read = || std::fs::read(path).unwrap_or_default();
    is_small && read().windows(MARK.len()).any(|window| window == MARK)
}

/// Returns the library as files, with their names. A program that finds them before the driver at `real`, for example
/// because their folder is the first in `LD_LIBRARY_PATH`, has this reserve from its start, and so have its children.
///
/// # Errors
///
/// [`Error::Memory`] if the path is too long, and [`Error::Other`] if the file is such a library itself.
pub fn files(real: &Path, amount: Amount) -> Result<[(&'static str, Vec<u8>); 2], Error> {
    if is_front(real) {
        return Err(Error::Other);
    }
    let mut front = patched(FRONT, real)?;
    let mark = FRONT.windows(MARK.len()).position(|window| window == MARK);
    let begin = mark.ok_or(Error::Memory(io::ErrorKind::InvalidData.into()))? + MARK.len();
    front[begin..begin + 4].copy_from_slice(&amount.number.to_ne_bytes());
    front[begin + 4..begin + 6].copy_from_slice(&[amount.percent.into(), amount.of_rest.into()]);
    Ok([(LIBRARY, front), ("libcuda.so", NAME.to_vec())])
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
    // The program may change its folder.
    let path = std::path::absolute(path).map_err(Error::Memory)?;
    let path = path.as_os_str().as_bytes();
    let wrong = || Error::Memory(io::ErrorKind::InvalidFilename.into());
    let begin = library.windows(place).position(|window| window.iter().all(|byte| *byte == b'X'));
    let begin = begin.filter(|_| path.len() < place && !path.contains(&0)).ok_or_else(wrong)?;
    let mut patched = library.to_vec();
    patched[begin..begin + place].fill(0);
    patched[begin..begin + path.len()].copy_from_slice(path);
    Ok(patched)
}

/// Writes a library to a file in memory.
fn in_memory(bytes: &[u8]) -> Result<File, Error> {
    // SAFETY: the name ends with a NUL.
    let number = unsafe { libc::memfd_create(c"green-ctx-reserve".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(Error::Memory(io::Error::last_os_error()));
    }
    // SAFETY: the file was just opened, and nothing else closes it.
    let mut file = unsafe { File::from_raw_fd(number) };
    file.write_all(bytes).map_err(Error::Memory)?;
    Ok(file)
}

/// Loads a library from a file in memory. Libraries that are loaded later find it by its name.
fn load(file: File) -> Result<Loaded, Error> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the library does nothing when it is loaded from memory.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    Ok(Loaded { library: library.map_err(Error::Load)?, _file: file })
}

//! Loads the library from memory, and writes it for files.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use green_ctx_sys::LIBRARY;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{Amount, Error};

/// The library, and a library without functions that is named `libcuda.so` and needs the first one.
static FRONT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/front.so"));
static NAME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/name.so"));

/// The bytes before the amount in the library.
const MARK: &[u8] = b"green-ctx amount";

/// The library's function that returns its amount.
type Held = extern "C" fn() -> Amount;

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
    let [(_, front), (_, name)] = files(&path, amount)?;
    let (front, name) = (in_memory(&front)?, in_memory(&name)?);
    let front = load(front)?;
    compare(&front.0, amount).map_err(|_| Error::Unsupported(path))?;
    let name = load(name)?;
    // Another thread may have opened the driver in the meantime.
    compare(&loaded().ok_or(Error::Loaded)?, amount)?;
    // They stay loaded, and their files open: another file with the same number would be taken for the same library.
    let _ = (ManuallyDrop::new(front), ManuallyDrop::new(name));
    Ok(())
}

/// Checks that the library that programs get by the driver's name is in front of it, with this amount.
fn compare(loaded: &Library, amount: Amount) -> Result<(), Error> {
    // SAFETY: only the library has this function, whose name contains the name of this project.
    let held = unsafe { loaded.get::<Held>(c"greenCtxReserveAmount") };
    let held = held.map_err(|_| Error::Loaded)?();
    match held == amount {
        true => Ok(()),
        // It has not started, or it limits a whole program and reserves nothing.
        false if held.number == 0 || held.of_rest => Err(Error::Loaded),
        false => Err(Error::Other(held)),
    }
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
/// [`Error::Memory`] if the path is too long, and [`Error::Loaded`] if the file is such a library itself.
pub fn files(real: &Path, amount: Amount) -> Result<[(&'static str, Vec<u8>); 2], Error> {
    if is_front(real) {
        return Err(Error::Loaded);
    }
    let mut front = patched(FRONT, real)?;
    let mark = FRONT.windows(MARK.len()).position(|window| window == MARK);
    let begin = mark.ok_or(Error::Memory(io::ErrorKind::InvalidData.into()))? + MARK.len();
    front[begin..begin + 4].copy_from_slice(&amount.number.to_ne_bytes());
    front[begin + 4..begin + 6].copy_from_slice(&[amount.percent.into(), amount.of_rest.into()]);
    Ok([(LIBRARY, front), ("libcuda.so", NAME.to_vec())])
}

/// Returns the library that programs get by the driver's name, if one is loaded.
fn loaded() -> Option<Library> {
    const RTLD_NOLOAD: i32 = 4;
    // SAFETY: with `RTLD_NOLOAD`, nothing is loaded or run.
    unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_NOLOAD) }.ok()
}

/// Returns a library with a path in place of the name of the library that it needs.
fn patched(library: &[u8], path: &Path) -> Result<Vec<u8>, Error> {
    let place = env!("GREEN_CTX_RESERVE_PLACE").parse().unwrap_or(0);
    // The program may change its folder.
    let path = std::path::absolute(path).map_err(Error::Memory)?;
    let path = path.as_os_str().as_bytes();
    let long = "the path of the driver is too long";
    let wrong = || Error::Memory(io::Error::new(io::ErrorKind::InvalidFilename, long));
    let begin = library.windows(place).position(|window| window.iter().all(|byte| *byte == b'X'));
    let begin = begin.filter(|_| path.len() < place && !path.contains(&0)).ok_or_else(wrong)?;
    let mut patched = library.to_vec();
    patched[begin..begin + place].fill(0);
    patched[begin..begin + path.len()].copy_from_slice(path);
    Ok(patched)
}

/// Writes a library to a file in memory.
fn in_memory(bytes: &[u8]) -> Result<File, Error> {
    let file = memfd_create(c"green-ctx-reserve", MemfdFlags::CLOEXEC).map(File::from);
    let mut file = file.map_err(|error| Error::Memory(error.into()))?;
    file.write_all(bytes).map_err(Error::Memory)?;
    Ok(file)
}

/// Loads a library from a file in memory, which is closed after it. Libraries that are loaded later find it by its name.
fn load(file: File) -> Result<(Library, File), Error> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the library starts itself when it is loaded.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    Ok((library.map_err(Error::Load)?, file))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_path_that_is_too_long_is_the_reason() {
        let amount = Amount { number: 16, percent: false, of_rest: false };
        let path = "/driver".repeat(200);
        let error = files(Path::new(&path), amount).expect_err("1400 bytes");
        assert_eq!(error.to_string(), "the library in front of the driver cannot be written");
        let reason = error.source().expect("the system's error").to_string();
        assert_eq!(reason, "the path of the driver is too long");
    }
}

//! Finding and loading libtorch.

use std::ffi::{CStr, c_void};
use std::mem;
use std::path::Path;
use std::ptr;

use libloading::{Library, library_filename};

use super::Torch;
use crate::error::{Result, TorchError};

/// The library that contains the functions (`CUDA`), and a library that every build of PyTorch has (`CPU`).
const CUDA: &str = "torch_cuda";
const CPU: &str = "torch_cpu";

/// A function that every libtorch with CUDA has.
const PROBE: &CStr = c"aoti_torch_get_current_cuda_stream";

/// Finds the libtorch of this process, as a loaded library or as a part of the program.
pub(super) fn find() -> Result<Torch> {
    if let Some(library) = loaded(CUDA) {
        return Ok(keep(library));
    }
    if let Some(program) = program().filter(|program| !symbol(program, PROBE).is_null()) {
        return Ok(keep(program));
    }
    // `_without_cuda` releases only the reference that `loaded` took.
    match loaded(CPU) {
        Some(_without_cuda) => Err(TorchError::CpuBuild),
        None => Err(TorchError::NotLoaded),
    }
}

/// Loads the libtorch in a folder or in its subfolder `lib`.
///
/// # Safety
///
/// The library must be libtorch.
pub(super) unsafe fn load_from(folder: &Path) -> Result<Torch> {
    let folders = [folder.to_owned(), folder.join("lib")];
    for folder in &folders {
        let path = folder.join(library_filename(CUDA));
        if path.exists() {
            // SAFETY: opening a library runs its initialisers. By this function's contract the library is libtorch.
            let library = unsafe { Library::new(&path) }
                .map_err(|source| TorchError::NotALibrary { path, source })?;
            return Ok(keep(library));
        }
    }
    if folders.iter().any(|folder| folder.join(library_filename(CPU)).exists()) {
        return Err(TorchError::CpuBuild);
    }
    Err(TorchError::NotFound { folder: folder.to_owned() })
}

/// Looks up the functions of a library. Keeps the library loaded until the process ends, because the library's threads
/// and streams outlive every handle. The callers pass libtorch only.
fn keep(library: Library) -> Torch {
    // SAFETY: the library is libtorch, so the symbols are its functions. `forget` below keeps it loaded.
    let torch = unsafe { Torch::from_lookup(|name| symbol(&library, name)) };
    mem::forget(library);
    torch
}

/// Returns a symbol's address, or null if there is none.
fn symbol(library: &Library, name: &CStr) -> *mut c_void {
    // SAFETY: the symbol is read as an address and is not dereferenced here.
    let found = unsafe { library.get::<*mut c_void>(name) };
    found.map_or(ptr::null_mut(), |symbol| *symbol)
}

/// Returns a library that is already loaded, without loading anything.
#[cfg(unix)]
fn loaded(name: &str) -> Option<Library> {
    use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

    let flags = RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD;
    // SAFETY: `RTLD_NOLOAD` loads no library, so no initialiser runs.
    let library = unsafe { Library::open(Some(library_filename(name)), flags) };
    library.ok().map(Into::into)
}

#[cfg(windows)]
fn loaded(name: &str) -> Option<Library> {
    use libloading::os::windows::Library;

    Library::open_already_loaded(library_filename(name)).ok().map(Into::into)
}

/// Returns the program itself, together with the libraries that the program loaded globally.
#[cfg(unix)]
fn program() -> Option<Library> {
    Some(libloading::os::unix::Library::this().into())
}

#[cfg(windows)]
fn program() -> Option<Library> {
    libloading::os::windows::Library::this().ok().map(Into::into)
}

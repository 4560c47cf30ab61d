//! Where libtorch is.

use std::ffi::{CStr, c_void};
use std::mem;
use std::path::Path;
use std::ptr;

use libloading::{Library, library_filename};

use super::Torch;
use crate::error::{Result, TorchError};

/// The library with the functions, and the one that every PyTorch has.
const CUDA: &str = "torch_cuda";
const CPU: &str = "torch_cpu";

/// A name that every libtorch with CUDA has.
const PROBE: &CStr = c"aoti_torch_get_current_cuda_stream";

/// The libtorch of this process: a library that is loaded, or a part of the program.
pub(super) fn find() -> Result<Torch> {
    if let Some(library) = loaded(CUDA) {
        return Ok(keep(library));
    }
    if let Some(program) = program().filter(|program| !symbol(program, PROBE).is_null()) {
        return Ok(keep(program));
    }
    // Not unloaded by being asked for.
    match loaded(CPU) {
        Some(_without_cuda) => Err(TorchError::CpuBuild),
        None => Err(TorchError::NotLoaded),
    }
}

/// # Safety
///
/// The library must be libtorch.
pub(super) unsafe fn load_from(folder: &Path) -> Result<Torch> {
    let folders = [folder.to_owned(), folder.join("lib")];
    for folder in &folders {
        let path = folder.join(library_filename(CUDA));
        if path.exists() {
            // SAFETY: opening a library runs its initialisers, and it is libtorch by this function's
            // contract.
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

/// Takes the functions of a library, which stays loaded for good: its threads and the streams that
/// it keeps outlive any handle.
fn keep(library: Library) -> Torch {
    // SAFETY: the functions are those of libtorch, under their names, and the library stays.
    let torch = unsafe { Torch::from_lookup(|name| symbol(&library, name)) };
    mem::forget(library);
    torch
}

/// A symbol's address, null where there is none.
fn symbol(library: &Library, name: &CStr) -> *mut c_void {
    // SAFETY: the address is only taken here.
    let found = unsafe { library.get::<*mut c_void>(name) };
    found.map_or(ptr::null_mut(), |symbol| *symbol)
}

/// A library that is loaded already, found without loading anything.
#[cfg(unix)]
fn loaded(name: &str) -> Option<Library> {
    use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

    let flags = RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD;
    // SAFETY: nothing is loaded and no initialiser runs.
    let library = unsafe { Library::open(Some(library_filename(name)), flags) };
    library.ok().map(Into::into)
}

#[cfg(windows)]
fn loaded(name: &str) -> Option<Library> {
    use libloading::os::windows::Library;

    Library::open_already_loaded(library_filename(name)).ok().map(Into::into)
}

/// The program itself, and what it has loaded for everybody.
#[cfg(unix)]
fn program() -> Option<Library> {
    Some(libloading::os::unix::Library::this().into())
}

#[cfg(windows)]
fn program() -> Option<Library> {
    libloading::os::windows::Library::this().ok().map(Into::into)
}

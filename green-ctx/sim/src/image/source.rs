//! The sources of images: a file, or memory of the program. The length of an image in memory follows from
//! the contents of the image.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use green_ctx_sys::CUresult;

use super::{cubin, fatbin};
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};

/// The maximum size of an image, in bytes. A larger size indicates a damaged header.
const MAX_BYTES: u64 = 1 << 31;

/// The magic number of the wrapper that the runtime library puts around a fat binary. In the wrapper, a
/// version and the address of the fat binary follow the magic number.
const WRAPPER_MAGIC: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
/// The index of the fat binary's address in the wrapper, counted in addresses.
const WRAPPED: usize = 1;

/// Copies an image for a library from the program's memory. The image may be wrapped.
pub(crate) fn for_library(image: Ptr<c_void>) -> Answer<Vec<u8>> {
    let image = image.given()?.cast::<u8>();
    if magic(image)? != WRAPPER_MAGIC {
        return from_memory(image.cast());
    }
    let wrapped = image.cast::<*mut u8>().element(WRAPPED).follow()?.given()?;
    refuse_if(magic(wrapped)? != fatbin::MAGIC, CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    fat_binary(wrapped)
}

/// Copies an image from the program's memory. Only libraries accept a wrapped image (recorded on hardware).
pub(crate) fn from_memory(image: Ptr<c_void>) -> Answer<Vec<u8>> {
    let image = image.given()?.cast::<u8>();
    match magic(image)? {
        cubin::MAGIC => {
            let end = cubin::len(|offset, out| {
                let offset =
                    usize::try_from(offset).map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?;
                image.element(offset).read_bytes(out)
            })?;
            copy(image, end)
        }
        fatbin::MAGIC => fat_binary(image),
        WRAPPER_MAGIC => Err(CUresult::CUDA_ERROR_INVALID_IMAGE),
        _ => Ok(image.cast::<c_char>().c_str()?.to_bytes().to_vec()),
    }
}

/// Reads an image from a file; `CUDA_ERROR_FILE_NOT_FOUND` if the file does not exist.
pub(crate) fn from_file(name: &CStr) -> Answer<Vec<u8>> {
    invalid_if(name.is_empty())?;
    let missing = |_| CUresult::CUDA_ERROR_FILE_NOT_FOUND;
    let file = File::open(OsStr::from_bytes(name.to_bytes())).map_err(missing)?;
    let kind = file.metadata().map_err(missing)?.file_type();
    // A directory can be opened like a file, but reports a length beyond all memory (recorded on hardware).
    refuse_if(kind.is_dir(), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    // Special files may have no end. The driver's answer for them was not recorded.
    refuse_if(!kind.is_file(), CUresult::CUDA_ERROR_FILE_NOT_FOUND)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(missing)?;
    refuse_if(bytes.is_empty(), CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    Ok(bytes)
}

/// Returns the first four bytes. The bytes are read one by one, because a short string may have fewer than
/// four bytes.
fn magic(image: Ptr<u8>) -> Answer<[u8; 4]> {
    let mut magic = [0; 4];
    for (index, byte) in magic.iter_mut().enumerate() {
        *byte = image.element(index).read()?;
        if *byte == 0 {
            break;
        }
    }
    Ok(magic)
}

fn fat_binary(image: Ptr<u8>) -> Answer<Vec<u8>> {
    let mut head = [0; fatbin::Head::LEN];
    image.read_bytes(&mut head)?;
    let total = fatbin::Head::read(&head).and_then(fatbin::Head::total);
    copy(image, total.ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)?)
}

fn copy(image: Ptr<u8>, len: u64) -> Answer<Vec<u8>> {
    let len = usize::try_from(len).ok().filter(|_| len <= MAX_BYTES);
    let len = len.ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    bytes.resize(len, 0);
    image.read_bytes(&mut bytes)?;
    Ok(bytes)
}

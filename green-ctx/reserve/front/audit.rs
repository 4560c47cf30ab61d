//! A library that glibc's loader asks for the file to open in place of a name (`LD_AUDIT`, rtld-audit(7)). Whenever a
//! program or a library asks for the CUDA driver, by its name or by a path, it names the library in front of the driver.
//!
//! The loader gives it a namespace of its own, in which there is no C library, so it calls no function. It asks for no
//! notice of calls between libraries (there is no `la_objopen`), so these stay as fast as they are.
#![no_std]
// Otherwise, the compiler could turn a loop over a string into a call of `strlen`.
#![no_builtins]

use core::ffi::{c_char, c_uint};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: the code has no arithmetic or index that can fail.
    loop {
        core::hint::spin_loop();
    }
}

/// `LA_SER_ORIG`: the name is the one that the program or the library asked for.
const AS_ASKED: c_uint = 1;

/// The path of the library in front, written after the mark into a copy of this library. It has `PLACE` bytes (build.rs).
#[repr(C)]
struct Written {
    mark: [u8; 16],
    front: [u8; 1000],
}

#[used]
static WRITTEN: Written = Written { mark: *b"green-ctx front:", front: [0; 1000] };

/// Accepts every version of the interface, because `la_objsearch` is the same in all of them.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: c_uint) -> c_uint {
    version
}

/// Returns the name of the file to open.
///
/// # Safety
///
/// `name` must end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(
    name: *const c_char,
    _asking: *mut usize,
    stage: c_uint,
) -> *const c_char {
    // SAFETY: by this function's contract.
    if stage == AS_ASKED && unsafe { is_driver(name.cast()) } {
        (&raw const WRITTEN.front).cast()
    } else {
        name
    }
}

/// Returns whether a name is one of the driver's, such as `libcuda.so`, or a path that ends with one.
///
/// # Safety
///
/// `name` must end with a NUL.
unsafe fn is_driver(name: *const u8) -> bool {
    let mut length = 0;
    // SAFETY: no byte after the NUL is read.
    let name = unsafe {
        while *name.add(length) != 0 {
            length += 1;
        }
        core::slice::from_raw_parts(name, length)
    };
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    // The library in front spells the path of the real driver in this way, and nothing else does.
    begins_with(file, b"libcuda.so") && !begins_with(name, b"/../../")
}

/// Compares byte by byte, because `starts_with` calls `memcmp`.
fn begins_with(text: &[u8], begin: &[u8]) -> bool {
    text.len() >= begin.len() && text.iter().zip(begin).all(|(a, b)| a == b)
}

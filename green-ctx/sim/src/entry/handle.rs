//! Handles: addresses that are the simulator's own and say nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The room that handles are taken from, in bytes.
const ROOM: usize = 1 << 36;
/// The distance between two handles, in bytes.
const STEP: usize = 16;

/// A new handle, unlike every one before it in this process.
///
/// Handles are addresses in a range that the simulator has reserved and that nobody can read or
/// write: they never equal a pointer of the program's own, and following one is a crash rather
/// than a silent mistake. After 2^32 handles the range is used again from its start.
pub(crate) fn next() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let offset = NEXT.fetch_add(STEP, Ordering::Relaxed) % (ROOM - STEP);
    base() + STEP + offset
}

fn base() -> usize {
    static BASE: OnceLock<usize> = OnceLock::new();
    *BASE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new private mapping at a place of the kernel's choosing touches no other
        // memory. It is never unmapped.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), ROOM, libc::PROT_NONE, flags, -1, 0) };
        // Where address space is limited the handles are numbers that no allocator hands out.
        if address == libc::MAP_FAILED { 1 << 46 } else { address.addr() }
    })
}

/// Objects by handle.
pub(crate) type Table<T> = HashMap<usize, T, BuildHasherDefault<AddressHasher>>;

/// Hashes addresses, which are distinct already: one multiplication spreads them.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// The handle as the pointer that a C function returns.
pub(crate) fn pointer<T>(handle: usize) -> *mut T {
    std::ptr::without_provenance_mut(handle)
}

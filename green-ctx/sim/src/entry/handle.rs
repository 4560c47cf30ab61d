//! Handles: addresses that are reserved but have no memory behind them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of the address range that is reserved for handles, in bytes.
const ROOM: usize = 1 << 36;
/// The distance between two handles, in bytes.
const STEP: usize = 16;

/// Returns a new handle, different from all earlier ones in this process.
///
/// Handles are addresses in a range that the simulator reserved without access rights. A handle never
/// equals a pointer of the program. Dereferencing a handle crashes the process instead of causing a silent
/// error. After 2^32 handles, the range is reused from its start.
pub(crate) fn next() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let offset = NEXT.fetch_add(STEP, Ordering::Relaxed) % (ROOM - STEP);
    base() + STEP + offset
}

fn base() -> usize {
    static BASE: OnceLock<usize> = OnceLock::new();
    *BASE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: `mmap` with a null address creates a new private mapping and does not affect existing
        // memory. The mapping is never removed, so its addresses stay reserved.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), ROOM, libc::PROT_NONE, flags, -1, 0) };
        // If address space is limited, handles are numbers that no allocator returns.
        if address == libc::MAP_FAILED { 1 << 46 } else { address.addr() }
    })
}

/// Objects by handle.
pub(crate) type Table<T> = HashMap<usize, T, BuildHasherDefault<AddressHasher>>;

/// Hashes addresses. Different addresses are distinct numbers already, so one multiplication is enough.
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

/// Converts a handle to the pointer that a C function returns.
pub(crate) fn pointer<T>(handle: usize) -> *mut T {
    std::ptr::without_provenance_mut(handle)
}

//! The contents of simulated memory, and the allocation of device addresses.
#![expect(unsafe_code, reason = "this module allocates raw memory and dereferences pointers")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::OnceLock;

use parking_lot::Mutex;

/// The alignment of addresses, and the minimum distance between allocations, in bytes.
pub(crate) const ALIGN: usize = 512;
/// The sizes that the simulator tries for the range of device addresses, in bytes, largest first.
const ROOMS: [u64; 3] = [1 << 44, 1 << 42, 1 << 40];

/// The bytes of one allocation. The simulator does not touch the bytes before the first use, so a large
/// allocation costs nothing.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    address: u64,
    owner: Owner,
}

enum Owner {
    /// The simulator owns the bytes. The program uses a device address, which the program cannot
    /// dereference.
    Device,
    /// The simulator owns the bytes. The program uses the same address as the simulator.
    Shared(Layout),
    /// The program owns the bytes, and registered them.
    Program,
}

// SAFETY: the memory is accessed only through this value, and by the program if the program shares the
// memory. The program must order its accesses with the accesses of the driver's work (cuda.h: asynchronous
// copies). None of these accesses depends on the thread.
unsafe impl Send for Memory {}

/// Allocates zeroed host memory.
fn zeroed(len: usize, align: usize) -> Option<(NonNull<u8>, Layout)> {
    let layout = Layout::from_size_align(len.max(1), align).ok()?;
    // SAFETY: the layout has at least one byte, because of `len.max(1)`.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    Some((start, layout))
}

/// The alignment, in bytes, of stored contents that the program cannot access directly.
const INNER_ALIGN: usize = 16;

impl Memory {
    /// Allocates device memory.
    pub(crate) fn device(len: usize) -> Option<Memory> {
        // With a large alignment, the allocator would write the whole memory.
        let (start, layout) = zeroed(len, INNER_ALIGN)?;
        let Some(address) = take_addresses(len) else {
            // SAFETY: `zeroed` allocated `start` with this layout, and no other copy of the pointer exists.
            unsafe { dealloc(start.as_ptr(), layout) };
            return None;
        };
        Some(Memory { start, len, address, owner: Owner::Device })
    }

    /// Allocates memory that the host and devices use at the same address.
    pub(crate) fn shared(len: usize) -> Option<Memory> {
        let (start, layout) = zeroed(len, ALIGN)?;
        let address = start.addr().get() as u64;
        Some(Memory { start, len, address, owner: Owner::Shared(layout) })
    }

    /// Wraps memory of the program. The program keeps the memory valid until the program unregisters the
    /// memory.
    pub(crate) fn of_program(start: NonNull<u8>, len: usize) -> Memory {
        let address = start.addr().get() as u64;
        Memory { start, len, address, owner: Owner::Program }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes as long as this value lives, and the slice
        // borrows from it. A program that shares the memory must not change it while work uses it (cuda.h:
        // asynchronous copies).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the pointer is valid for the reasons given in `bytes`, and `&mut self` excludes any other
        // slice of these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let layout = match self.owner {
            Owner::Program => return,
            Owner::Shared(layout) => layout,
            Owner::Device => {
                give_addresses_back(self.address, self.len);
                let Ok(layout) = Layout::from_size_align(self.len.max(1), INNER_ALIGN) else {
                    return;
                };
                layout
            }
        };
        // SAFETY: `zeroed` allocated `start` with this layout, and only this `drop` frees it.
        unsafe { dealloc(self.start.as_ptr(), layout) };
    }
}

/// Returns whether an address is a device address.
pub(crate) fn is_of_device(address: u64) -> bool {
    ROOM.get().is_some_and(|(start, end)| (*start..*end).contains(&address))
}

/// The range of device addresses.
static ROOM: OnceLock<(u64, u64)> = OnceLock::new();

/// The unused device addresses, as a map from the start of each free range to its end. All simulated
/// drivers in the process share this map, so an address of one driver is never valid in another driver.
static FREE: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Returns the size of an allocation's address range: slightly more than its length, so that no two
/// allocations touch.
fn extent(len: usize) -> Option<u64> {
    (len as u64).checked_next_multiple_of(ALIGN as u64)?.checked_add(ALIGN as u64)
}

/// Takes the lowest free address range that is large enough for `len` bytes. A program that frees and
/// allocates again gets the same addresses, as on a GPU.
fn take_addresses(len: usize) -> Option<u64> {
    let extent = extent(len)?;
    let mut free = FREE.lock();
    if ROOM.get().is_none() {
        let (start, end) = *ROOM.get_or_init(reserve);
        free.insert(start, end);
    }
    let (&start, &end) = free.iter().find(|&(&start, &end)| end - start > extent)?;
    free.remove(&start);
    free.insert(start + extent, end);
    Some(start)
}

fn give_addresses_back(start: u64, len: usize) {
    let Some(extent) = extent(len) else { return };
    let mut free = FREE.lock();
    let (mut start, mut end) = (start, start + extent);
    if let Some(next) = free.remove(&end) {
        end = next;
    }
    if let Some((&before, &its_end)) = free.range(..start).next_back()
        && its_end == start
    {
        free.remove(&before);
        start = before;
    }
    free.insert(start, end);
}

/// Reserves a range of addresses without access rights. Dereferencing a device address then crashes the
/// process, as with a GPU.
fn reserve() -> (u64, u64) {
    for room in ROOMS {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let Ok(len) = usize::try_from(room) else { continue };
        // SAFETY: `mmap` with a null address creates a new private mapping and does not affect existing
        // memory. The mapping is never removed, so its addresses stay reserved.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if start != libc::MAP_FAILED {
            let start = (start.addr() as u64).next_multiple_of(ALIGN as u64);
            return (start, start + room - ALIGN as u64);
        }
    }
    // If address space is limited, these are numbers that no allocator returns.
    (1 << 47, (1 << 47) + ROOMS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_apart_and_come_back() {
        let mut memory = [1, 511, 512, 513].map(|len| Memory::device(len).expect("there is room"));
        memory.sort_by_key(Memory::address);
        for pair in memory.windows(2) {
            let end = pair[0].address() + pair[0].len() as u64;
            assert!(end + 256 <= pair[1].address(), "a gap");
            assert_eq!(pair[1].address() % ALIGN as u64, 0);
        }
        assert!(Memory::device(usize::MAX).is_none());
    }

    #[test]
    fn bytes_are_zero_and_kept() {
        for mut memory in [Memory::device(100), Memory::shared(100)].into_iter().flatten() {
            assert_eq!(memory.bytes(), [0; 100]);
            memory.bytes_mut()[99] = 7;
            assert_eq!(memory.bytes()[98..], [0, 7]);
        }
    }
}

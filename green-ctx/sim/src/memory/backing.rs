//! The bytes behind addresses, and the addresses themselves.
#![expect(unsafe_code, reason = "it allocates memory lazily and follows the program's pointers")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::OnceLock;

use parking_lot::Mutex;

/// The alignment of addresses in bytes, and the least distance between allocations.
pub(crate) const ALIGN: usize = 512;
/// The room that device addresses are taken from, in bytes: the largest of these that there is.
const ROOMS: [u64; 3] = [1 << 44, 1 << 42, 1 << 40];

/// The bytes of one allocation. They are not touched before they are used, so that large allocations
/// cost nothing.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    address: u64,
    owner: Owner,
}

enum Owner {
    /// The simulator, behind an address that the program cannot follow.
    Device,
    /// The simulator, at the address that the program uses too.
    Shared(Layout),
    /// The program, which registered it.
    Program,
}

// SAFETY: the memory is reached through this value alone or, where the program has it too, by the
// program's own arrangement with the driver's work.
unsafe impl Send for Memory {}

/// Zeroed memory of the host.
fn zeroed(len: usize, align: usize) -> Option<(NonNull<u8>, Layout)> {
    let layout = Layout::from_size_align(len.max(1), align).ok()?;
    // SAFETY: the layout is not empty.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    Some((start, layout))
}

/// The alignment of bytes that no program sees.
const INNER_ALIGN: usize = 16;

impl Memory {
    /// Memory of a device.
    pub(crate) fn device(len: usize) -> Option<Memory> {
        // A large alignment would make the allocator write the whole memory.
        let (start, layout) = zeroed(len, INNER_ALIGN)?;
        let Some(address) = take_addresses(len) else {
            // SAFETY: just allocated with this layout, and nobody has it.
            unsafe { dealloc(start.as_ptr(), layout) };
            return None;
        };
        Some(Memory { start, len, address, owner: Owner::Device })
    }

    /// Memory that host and device use at one address.
    pub(crate) fn shared(len: usize) -> Option<Memory> {
        let (start, layout) = zeroed(len, ALIGN)?;
        let address = start.addr().get() as u64;
        Some(Memory { start, len, address, owner: Owner::Shared(layout) })
    }

    /// Memory of the program, which stays there until it is given back.
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
        // SAFETY: these bytes are initialised and borrowed as this value is. The program, where it
        // has them too, leaves them alone while work uses them (cuda.h: asynchronous copies).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and exclusively so.
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
        // SAFETY: allocated with this layout in `zeroed`, and given back here alone.
        unsafe { dealloc(self.start.as_ptr(), layout) };
    }
}

/// Whether an address is one of those that device memory is given.
pub(crate) fn is_of_device(address: u64) -> bool {
    ROOM.get().is_some_and(|(start, end)| (*start..*end).contains(&address))
}

/// Where device addresses are.
static ROOM: OnceLock<(u64, u64)> = OnceLock::new();

/// Device addresses that are not taken: the end of each range by its start. They are one process's,
/// so that what belongs to another driver is no address of this one.
static FREE: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// What an allocation takes of the addresses: a little more than it has, so that no two meet.
fn extent(len: usize) -> Option<u64> {
    (len as u64).checked_next_multiple_of(ALIGN as u64)?.checked_add(ALIGN as u64)
}

/// The lowest free addresses for so many bytes: who frees and allocates again gets the same ones, as
/// from a GPU.
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

/// A range that nobody can read or write: following a device address is a crash, as it is where there
/// is a GPU.
fn reserve() -> (u64, u64) {
    for room in ROOMS {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let Ok(len) = usize::try_from(room) else { continue };
        // SAFETY: a new private mapping at a place of the kernel's choosing touches no other
        // memory. It is never unmapped.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if start != libc::MAP_FAILED {
            let start = (start.addr() as u64).next_multiple_of(ALIGN as u64);
            return (start, start + room - ALIGN as u64);
        }
    }
    // Where address space is limited they are numbers that no allocator hands out.
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

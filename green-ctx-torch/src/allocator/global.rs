//! The global state of the C functions, whose callers pass no allocator. The allocator has no other global state.

use std::ffi::c_int;
use std::mem;
use std::ptr;

use std::sync::{Arc, OnceLock, Weak};

use green_ctx::driver::Process;
use green_ctx::sys::GetProcAddress;
use green_ctx::{Device, Driver};
use parking_lot::Mutex;

use super::{Allocator, AllocatorError, Inner, Result};

/// While this lock is held, no driver call is made and no handle is dropped.
static GLOBAL: Mutex<Global> =
    Mutex::new(Global { driver: None, kept: Vec::new(), known: Vec::new(), last_error: None });

struct Global {
    /// The driver of the C functions, or `None` before it is loaded or installed.
    driver: Option<Driver>,
    /// The allocators that the C functions have used.
    kept: Vec<Allocator>,
    /// Every live allocator.
    known: Vec<(Key, Weak<Inner>)>,
    last_error: Option<String>,
}

/// The key of a device: the driver's entry point and the device's ordinal. A key does not keep the driver alive.
#[derive(Clone, Copy)]
struct Key(GetProcAddress, u32);

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        ptr::fn_addr_eq(self.0, other.0) && self.1 == other.1
    }
}

/// Returns the allocator of a device.
pub(super) fn of(device: &Device) -> Allocator {
    let key = Key(device.driver().api().entry(), device.ordinal());
    let fresh = Allocator::new(device);
    let mut global = GLOBAL.lock();
    let known = global.known.iter().find(|(known, _)| *known == key);
    // Upgrade only the requested allocator. A handle of another one could become its last handle, and would be
    // dropped here under the lock.
    if let Some(inner) = known.and_then(|(_, inner)| inner.upgrade()) {
        drop(global);
        return Allocator { inner };
    }
    global.known.retain(|(_, inner)| inner.strong_count() > 0);
    global.known.push((key, Arc::downgrade(&fresh.inner)));
    fresh
}

/// Sets the driver of the C functions.
pub(super) fn install(driver: Option<&Driver>) -> Result<()> {
    let former = {
        let mut global = GLOBAL.lock();
        if global.driver.as_ref() == driver {
            return Ok(());
        }
        for allocator in &global.kept {
            // Blocks that wait do not count: their users have freed them.
            let blocks = allocator.inner.books.lock().blocks.len() as u64;
            if blocks > 0 {
                let device = allocator.device().ordinal();
                return Err(AllocatorError::InUse { device, blocks });
            }
        }
        let driver = driver.cloned();
        (mem::take(&mut global.kept), mem::replace(&mut global.driver, driver))
    };
    drop(former);
    Ok(())
}

/// Returns the allocator that the C functions use for a device.
pub(super) fn of_ordinal(ordinal: c_int) -> Result<Allocator> {
    let Ok(ordinal) = u32::try_from(ordinal) else {
        return Err(AllocatorError::InvalidRequest(format!("there is no device {ordinal}")));
    };
    let of_this = |allocator: &&Allocator| allocator.device().ordinal() == ordinal;
    loop {
        let installed = {
            let global = GLOBAL.lock();
            if let Some(allocator) = global.kept.iter().find(of_this) {
                return Ok(allocator.clone());
            }
            global.driver.clone()
        };
        let driver = installed.clone().map_or_else(Driver::load, Ok)?;
        let allocator = of(&driver.device(ordinal)?);
        let mut global = GLOBAL.lock();
        if global.driver != installed {
            // Another thread installed a driver in the meantime.
            continue;
        }
        global.driver.get_or_insert(driver);
        if !global.kept.iter().any(|kept| of_this(&kept)) {
            global.kept.push(allocator.clone());
        }
        return Ok(allocator);
    }
}

/// Returns the allocators that the C functions have used so far.
pub(super) fn all() -> Vec<Allocator> {
    GLOBAL.lock().kept.clone()
}

pub(super) fn driver() -> Option<Driver> {
    GLOBAL.lock().driver.clone()
}

pub(super) fn last_error() -> Option<String> {
    GLOBAL.lock().last_error.clone()
}

pub(super) fn set_last_error(text: String) {
    GLOBAL.lock().last_error = Some(text);
}

/// Returns whether this process was forked after the first call of a C function. In a forked process, a thread that no
/// longer exists may hold a lock forever.
pub(super) fn is_forked() -> bool {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(Process::watched).is_forked()
}

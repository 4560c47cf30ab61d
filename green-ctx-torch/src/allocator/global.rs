//! What the C functions work on, who are given nothing to know it by: the only global state of this
//! crate's allocator.

use std::ffi::c_int;
use std::mem;
use std::ptr;

use std::sync::{Arc, OnceLock, Weak};

use green_ctx::driver::Process;
use green_ctx::sys::GetProcAddress;
use green_ctx::{Device, Driver};
use parking_lot::Mutex;

use super::{Allocator, AllocatorError, Inner, Result};

/// Held for moments: no driver call and no drop of a handle happens under it.
static GLOBAL: Mutex<Global> =
    Mutex::new(Global { driver: None, kept: Vec::new(), known: Vec::new(), last_error: None });

struct Global {
    /// The driver of the C functions, once they have one.
    driver: Option<Driver>,
    /// The allocators that they use.
    kept: Vec<Allocator>,
    /// Every living allocator.
    known: Vec<(Key, Weak<Inner>)>,
    last_error: Option<String>,
}

/// A device, by what keeps nothing: the driver's entry point and the ordinal.
#[derive(Clone, Copy)]
struct Key(GetProcAddress, u32);

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        ptr::fn_addr_eq(self.0, other.0) && self.1 == other.1
    }
}

/// The allocator of a device.
pub(super) fn of(device: &Device) -> Allocator {
    let key = Key(device.driver().api().entry(), device.ordinal());
    let fresh = Allocator::new(device);
    let mut global = GLOBAL.lock();
    let known = global.known.iter().find(|(known, _)| *known == key);
    // Only the allocator that is looked for is touched: a handle of another, however short, could
    // become its last one.
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
            // Those that wait were freed by whoever had them.
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

/// The allocator that the C functions use for a device.
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
            // Another thread has installed one meanwhile.
            continue;
        }
        global.driver.get_or_insert(driver);
        if !global.kept.iter().any(|kept| of_this(&kept)) {
            global.kept.push(allocator.clone());
        }
        return Ok(allocator);
    }
}

/// The allocators that the C functions have used so far.
pub(super) fn all() -> Vec<Allocator> {
    GLOBAL.lock().kept.clone()
}

/// The driver of the C functions.
pub(super) fn driver() -> Option<Driver> {
    GLOBAL.lock().driver.clone()
}

pub(super) fn last_error() -> Option<String> {
    GLOBAL.lock().last_error.clone()
}

pub(super) fn set_last_error(text: String) {
    GLOBAL.lock().last_error = Some(text);
}

/// Whether this process was forked since the C functions were first called. Locks may be held for ever
/// then, by threads that are gone.
pub(super) fn is_forked() -> bool {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(Process::watched).is_forked()
}

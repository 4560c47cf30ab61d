//! Shared by the tests: a simulated driver behind the C functions, which use one driver at a time.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use green_ctx::sim::{Live, Sim};
use green_ctx::sys::CUstream;
use green_ctx::{Device, Driver, SplitRequest, Stream, StreamOptions, context::Context};
use green_ctx_torch::allocator::{Allocator, Usage, c};
use serde_json::Value;

/// The result of a test.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A simulated device (an H200 by default) whose memory the C functions allocate.
pub(crate) struct Machine {
    pub(crate) sim: Sim,
    pub(crate) device: Device,
    pub(crate) allocator: Allocator,
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    pub(crate) fn new() -> Result<Machine, Box<dyn std::error::Error>> {
        Machine::of("h200@13.0")
    }

    pub(crate) fn of(spec: &str) -> Result<Machine, Box<dyn std::error::Error>> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let sim = Sim::new(spec)?;
        let device = Driver::simulated(&sim)?.device(0)?;
        Allocator::install(device.driver())?;
        Ok(Machine { allocator: Allocator::of(&device), sim, device, _turn: turn })
    }

    pub(crate) fn partition(&self, name: &str, sms: u32) -> green_ctx::Result<Context> {
        let request = SplitRequest::new().group(name, sms);
        let group = self.device.resources().sm()?.split(request)?.groups.remove(0);
        Ok(self.device.create_context(group)?)
    }

    /// Creates a partition and a stream in it.
    pub(crate) fn stream(&self, name: &str, sms: u32) -> green_ctx::Result<Stream> {
        self.partition(name, sms)?.create_stream(StreamOptions::default())
    }

    /// Returns the usage of partitions with this name, which must have an account.
    pub(crate) fn usage(&self, name: &str) -> Usage {
        self.allocator.partition(name).expect("an account")
    }

    /// Checks that no blocks and no driver objects are left.
    pub(crate) fn end(self) -> Outcome {
        assert_eq!(self.allocator.usage().current_blocks, 0);
        let sim = self.sim.clone();
        self.device.release_idle();
        drop(self);
        assert_eq!(sim.live(), Live::default());
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A test that failed may leave blocks, which must not affect the next test.
        for block in self.allocator.snapshot().blocks {
            // SAFETY: no work uses the memory, and every context has a null stream.
            let _ = unsafe { self.allocator.free(block.address, ptr::null_mut()) };
        }
        let _ = self.allocator.empty_cache();
        let _ = Allocator::uninstall();
    }
}

pub(crate) fn alloc(size: usize, stream: CUstream) -> *mut c_void {
    alloc_on(0, size, stream)
}

pub(crate) fn alloc_on(device: c_int, size: usize, stream: CUstream) -> *mut c_void {
    // SAFETY: the tests keep their streams alive until the blocks are freed.
    unsafe { c::green_ctx_torch_alloc(size, device, stream) }
}

pub(crate) fn free(block: *mut c_void, stream: CUstream) {
    // SAFETY: as in `alloc_on`. Some tests free a block early on purpose, which is harmless in a simulation.
    unsafe { c::green_ctx_torch_free(block, 0, 0, stream) };
}

pub(crate) fn record(block: *mut c_void, stream: CUstream) {
    // SAFETY: as in `alloc_on`.
    unsafe { c::green_ctx_torch_record_stream(block, stream) };
}

pub(crate) fn limit_partition(name: &str, bytes: u64) -> c_int {
    let name = CString::new(name).expect("a name without zeros");
    // SAFETY: `name` is a terminated string.
    unsafe { c::green_ctx_torch_set_partition_limit(0, name.as_ptr(), bytes) }
}

/// Returns the text that one of the functions writes.
fn text(write: impl Fn(*mut i8, usize) -> usize) -> Option<String> {
    let mut buffer = vec![0x7f_u8; write(ptr::null_mut(), 0)];
    if buffer.is_empty() {
        return None;
    }
    // If the buffer is one byte too short, nothing is written.
    assert_eq!(write(buffer.as_mut_ptr().cast(), buffer.len() - 1), buffer.len());
    assert!(buffer.iter().all(|byte| *byte == 0x7f));
    assert_eq!(write(buffer.as_mut_ptr().cast(), buffer.len()), buffer.len());
    assert_eq!(buffer.pop(), Some(0), "the terminator");
    Some(String::from_utf8(buffer).expect("text"))
}

pub(crate) fn snapshot() -> Value {
    // SAFETY: `text` passes a buffer of `len` bytes, or null.
    let json = text(|buffer, len| unsafe { c::green_ctx_torch_snapshot(0, buffer.cast(), len) });
    serde_json::from_str(&json.expect("a snapshot")).expect("JSON")
}

pub(crate) fn last_error() -> String {
    // SAFETY: `text` passes a buffer of `len` bytes, or null.
    let error = text(|buffer, len| unsafe { c::green_ctx_torch_last_error(buffer.cast(), len) });
    error.unwrap_or_default()
}

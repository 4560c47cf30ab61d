//! In a forked child the allocator does nothing: CUDA does not survive a fork, and threads that no longer exist may
//! hold locks.
#![cfg(unix)]

use std::ptr::null_mut;

use green_ctx::sim::Sim;
use green_ctx::{Driver, Error, StreamOptions};
use green_ctx_torch::allocator::{Allocator, AllocatorError, c};

#[test]
fn a_forked_child_has_no_allocator() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new("h200")?;
    let device = Driver::simulated(&sim)?.device(0)?;
    Allocator::install(device.driver())?;
    let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    let allocator = Allocator::global(0)?;
    // SAFETY: the stream is alive.
    let block = unsafe { c::green_ctx_torch_alloc(64, 0, stream.as_raw()) };
    assert!(!block.is_null());
    // Leaves an error in the parent.
    assert_eq!(c::green_ctx_torch_set_limit(-1, 0), -1);

    // SAFETY: no other thread of this process does anything, because this is its only test. The child ends without
    // running the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let before = (sim.live(), sim.calls());
        // SAFETY: the function does not use the stream in a forked process.
        let given = unsafe { c::green_ctx_torch_alloc(64, 0, stream.as_raw()) };
        // SAFETY: the function does not use the block or the stream in a forked process.
        unsafe { c::green_ctx_torch_free(block, 64, 0, stream.as_raw()) };
        // SAFETY: the function does not use the block or the stream in a forked process.
        unsafe { c::green_ctx_torch_record_stream(block, null_mut()) };
        c::green_ctx_torch_reset();
        // SAFETY: the buffer is null, which the function allows.
        let error = unsafe { c::green_ctx_torch_last_error(null_mut(), 0) };
        // SAFETY: the function does not use the stream in a forked process.
        let refused = unsafe { allocator.allocate(64, stream.as_raw()) };
        let forked = matches!(refused, Err(AllocatorError::Driver(Error::Forked)));
        let right = [given.is_null(), error == 0, forked, (sim.live(), sim.calls()) == before];
        let wrong = right.iter().position(|right| !right).map_or(0, |step| step as i32 + 1);
        // SAFETY: the call ends the child immediately, without exit handlers.
        unsafe { libc::_exit(wrong) };
    }
    assert!(child > 0, "the fork failed");
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` is a live local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child ended with signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "step {}", libc::WEXITSTATUS(status));

    // The parent is not affected.
    // SAFETY: no work uses the block.
    unsafe { c::green_ctx_torch_free(block, 64, 0, stream.as_raw()) };
    assert_eq!(c::green_ctx_torch_current_bytes(0), 0);
    Ok(Allocator::uninstall()?)
}

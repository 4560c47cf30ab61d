//! A forked child's allocator does nothing: CUDA does not survive a fork, and locks may be held by
//! threads that are gone.
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
    // The parent has an error by now.
    assert_eq!(c::green_ctx_torch_set_limit(-1, 0), -1);

    // SAFETY: the child is one thread, as this test is the only one of its process that does
    // anything, and it ends without the handlers of the parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let before = (sim.live(), sim.calls());
        // SAFETY: nothing is done with the stream.
        let given = unsafe { c::green_ctx_torch_alloc(64, 0, stream.as_raw()) };
        // SAFETY: as above.
        unsafe { c::green_ctx_torch_free(block, 64, 0, stream.as_raw()) };
        // SAFETY: as above.
        unsafe { c::green_ctx_torch_record_stream(block, null_mut()) };
        c::green_ctx_torch_reset();
        // SAFETY: no buffer is given.
        let error = unsafe { c::green_ctx_torch_last_error(null_mut(), 0) };
        // SAFETY: nothing is done with the stream.
        let refused = unsafe { allocator.allocate(64, stream.as_raw()) };
        let forked = matches!(refused, Err(AllocatorError::Driver(Error::Forked)));
        let right = [given.is_null(), error == 0, forked, (sim.live(), sim.calls()) == before];
        let wrong = right.iter().position(|right| !right).map_or(0, |step| step as i32 + 1);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(wrong) };
    }
    assert!(child > 0, "the fork failed");
    let mut status = 0;
    // SAFETY: the child is ours, the pointer is to a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child ended with signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "step {}", libc::WEXITSTATUS(status));

    // The parent goes on.
    // SAFETY: nothing uses the block.
    unsafe { c::green_ctx_torch_free(block, 64, 0, stream.as_raw()) };
    assert_eq!(c::green_ctx_torch_current_bytes(0), 0);
    Ok(Allocator::uninstall()?)
}

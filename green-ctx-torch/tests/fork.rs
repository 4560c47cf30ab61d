//! CUDA does not survive a fork. In the child, calls return an error and inherited objects are dropped without a
//! call.
#![cfg(unix)]
#![allow(unsafe_code, reason = "forks")]

#[path = "torch/fake.rs"]
mod fake;

use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx::sim::Sim;
use green_ctx::{Driver, Error, StreamOptions};
use green_ctx_torch::{Torch, TorchError, runtime, scope};

/// True once a clean-up has failed.
static REPORTED: AtomicBool = AtomicBool::new(false);

#[test]
fn a_forked_child_gets_an_error() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new("h200")?;
    let device = Driver::simulated(&sim)?.device(0)?;
    // SAFETY: the functions behave like libtorch's, and are part of this program.
    let torch = unsafe { Torch::from_lookup(fake::lookup) };
    torch.on_cleanup_failure(|_| REPORTED.store(true, Ordering::Relaxed));
    let primary = device.primary_context()?;
    let stream = primary.create_stream(StreamOptions::default())?;
    let entered = scope::entered(&torch, &stream)?;
    let guard = torch.guard(&stream)?;

    // SAFETY: no other thread of this process does anything, because this is its only test. The child ends without
    // running the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        fake::take_calls();
        let before = sim.calls();
        let checks = [
            scope::enter(&torch, &stream).err(),
            scope::leave(&primary).err(),
            torch.guard(&stream).map(drop).err(),
            runtime::memory_info(&device).map(drop).err(),
            runtime::profiler_start(&device).err(),
            runtime::create_stream(&primary).map(drop).err(),
        ];
        let forked =
            |error: &Option<TorchError>| matches!(error, Some(TorchError::Driver(Error::Forked)));
        let wrong = checks.iter().position(|error| !forked(error));
        drop((guard, entered, stream, primary, device));
        let called = sim.calls() != before || !fake::take_calls().is_empty();
        let quiet = !called && !REPORTED.load(Ordering::Relaxed);
        let code = wrong.map_or(if quiet { 0 } else { 100 }, |step| step as i32 + 1);
        // SAFETY: the call ends the child immediately, without exit handlers.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "the fork failed");
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` is a live local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child ended with signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "step {}", libc::WEXITSTATUS(status));

    // The parent is not affected.
    drop((guard, entered));
    assert_eq!(fake::current(0), fake::DEFAULT);
    assert_eq!(scope::depth(), 0);
    assert!(!REPORTED.load(Ordering::Relaxed));
    Ok(())
}

//! What ends the process on hardware ends it here, with the same exit status.

use std::sync::Once;

/// Ends the process as an access to a wild pointer does: by SIGSEGV, exit status 139 in a shell.
pub(crate) fn segmentation_fault() {
    // Rust's own handler would take a signal that no memory access caused for a mistake and return.
    // SAFETY: the default action needs no handler.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    // SAFETY: raising a signal has no precondition.
    unsafe { libc::raise(libc::SIGSEGV) };
}

/// Ends the process by abort when it exits, as the double free of a destroyed green context's data
/// does: exit status 134 in a shell.
pub(crate) fn abort_at_exit() {
    extern "C" fn abort() {
        eprintln!("free(): double free detected in tcache 2");
        std::process::abort();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this program, which stays loaded, and does not
        // unwind. Without room for a handler the exit stays an ordinary one.
        unsafe { libc::atexit(abort) };
    });
}

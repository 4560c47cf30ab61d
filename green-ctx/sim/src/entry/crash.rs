//! Process crashes. The simulator ends the process in the same situations as the real driver does, and with
//! the same exit status.

use std::sync::Once;

/// Ends the process with SIGSEGV, as an access through an invalid pointer would. A shell reports exit
/// status 139.
pub(crate) fn segmentation_fault() {
    // Rust's own handler would return if no memory access caused the signal. SAFETY: `SIG_DFL` is a valid
    // action, and no code of this program runs as a signal handler.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    // SAFETY: `raise` has no precondition.
    unsafe { libc::raise(libc::SIGSEGV) };
}

/// Aborts the process at exit, as a double free of a destroyed green context's data would. A shell reports
/// exit status 134.
pub(crate) fn abort_at_exit() {
    extern "C" fn abort() {
        eprintln!("free(): double free detected in tcache 2");
        std::process::abort();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this program, which stays loaded, and the handler does not
        // unwind. If `atexit` cannot register the handler, the process exits normally.
        unsafe { libc::atexit(abort) };
    });
}

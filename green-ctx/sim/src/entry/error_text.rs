//! The names and messages of `CUresult` statuses.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use green_ctx_sys::CUresult;

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, valid};

/// Greater than every status of CUDA 13.5.
const END: u32 = 1000;

/// The driver's messages, for the statuses that the simulator returns.
const TEXTS: &[(u32, &CStr)] = &[
    (0, c"no error"),
    (1, c"invalid argument"),
    (2, c"out of memory"),
    (3, c"initialization error"),
    (4, c"driver shutting down"),
    (36, c"API call is not supported in the installed CUDA driver"),
    (100, c"no CUDA-capable device is detected"),
    (101, c"invalid device ordinal"),
    (200, c"device kernel image is invalid"),
    (201, c"invalid device context"),
    (209, c"no kernel image is available for execution on the device"),
    (215, c"limit is not supported on this architecture"),
    (218, c"a PTX JIT compilation failed"),
    (400, c"invalid resource handle"),
    (401, c"the operation cannot be performed in the present state"),
    (500, c"named symbol not found"),
    (600, c"device not ready"),
    (700, c"an illegal memory access was encountered"),
    (709, c"context is destroyed"),
    (720, c"too many blocks in cooperative launch"),
    (800, c"operation not permitted"),
    (801, c"operation not supported"),
    (900, c"operation not permitted when stream is capturing"),
    (901, c"operation failed due to a previous error during capture"),
    (902, c"operation would result in a merge of separate capture sequences"),
    (903, c"capture was not ended in the same stream as it began"),
    (904, c"capturing stream has unjoined work"),
    (905, c"dependency created on uncaptured work in another stream"),
    (906, c"operation would make the legacy stream depend on a capturing blocking stream"),
    (908, c"attempt to terminate a thread-local capture sequence from another thread"),
    (912, c"cluster misconfiguration"),
    (914, c"invalid resource type"),
    (915, c"one or more resources are insufficient or non-applicable for the operation"),
    (999, c"unknown error"),
];

/// Returns the name of a status as a C string.
fn name(status: CUresult) -> Option<&'static CStr> {
    static NAMES: OnceLock<HashMap<u32, CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let named = (0..END).filter_map(|number| {
            let name = CUresult(number).name()?;
            Some((number, CString::new(name).ok()?))
        });
        named.collect()
    });
    names.get(&status.0).map(CString::as_c_str)
}

fn give(out: Ptr<*const c_char>, text: Option<&'static CStr>) -> Answer {
    out.followed().write(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    valid(text.map(drop))
}

pub(crate) fn get_name(_driver: &Driver, status: CUresult, out: Ptr<*const c_char>) -> Answer {
    give(out, name(status))
}

/// Writes the driver's message for a status. If the message is not known, writes the name of the status.
pub(crate) fn get_string(_driver: &Driver, status: CUresult, out: Ptr<*const c_char>) -> Answer {
    let text = TEXTS.iter().find(|(number, _)| *number == status.0).map(|(_, text)| *text);
    give(out, text.or_else(|| name(status)))
}

//! The path of a C call into the simulator: the list of functions, the simulated driver that the call is
//! for, and the arguments of the call.

#[expect(unsafe_code, reason = "the module raises signals and registers an exit handler")]
pub(crate) mod crash;
pub(crate) mod driver;
pub(crate) mod error_text;
#[expect(unsafe_code, reason = "C code calls the functions of the module")]
pub(crate) mod functions;
#[expect(unsafe_code, reason = "the module reserves addresses")]
pub(crate) mod handle;
#[expect(unsafe_code, reason = "the module dereferences the pointers of C callers")]
pub(crate) mod pointer;
pub(crate) mod proc_address;
pub(crate) mod slot;
pub(crate) mod unsimulated;

//! The entry of C calls: the list of functions, the driver that a call is for, and the arguments.

#[expect(unsafe_code, reason = "it raises signals and registers an exit handler")]
pub(crate) mod crash;
pub(crate) mod driver;
pub(crate) mod error_text;
#[expect(unsafe_code, reason = "it is what C calls")]
pub(crate) mod functions;
#[expect(unsafe_code, reason = "it reserves addresses")]
pub(crate) mod handle;
#[expect(unsafe_code, reason = "it follows the pointers of C callers, so that nothing else has to")]
pub(crate) mod pointer;
pub(crate) mod proc_address;
pub(crate) mod slot;
pub(crate) mod unsimulated;

//! The execution of work: when it runs, and which effects it has.

pub(crate) mod builtin;
#[expect(unsafe_code, reason = "the module calls functions of the program")]
pub(crate) mod callback;
pub(crate) mod clock;
pub(crate) mod effects;
pub(crate) mod turn;
pub(crate) mod work;

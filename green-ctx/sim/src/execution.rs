//! Work: its timing and its effects.

pub(crate) mod builtin;
#[expect(unsafe_code, reason = "it calls the program back")]
pub(crate) mod callback;
pub(crate) mod clock;
pub(crate) mod effects;
pub(crate) mod turn;
pub(crate) mod work;

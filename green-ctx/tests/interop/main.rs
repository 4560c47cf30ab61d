//! Meeting other code: its handles, its default streams, its functions; and what is left when a
//! device fails.

#[path = "../common/mod.rs"]
mod common;

mod fault;
mod foreign;
mod quarantine;
mod raw;
#[cfg(feature = "serde")]
mod reports;
mod stream;

//! The ledger's source, file by file: it imports nothing but its own files.
#![allow(dead_code, unreachable_pub, reason = "the library uses what the scenarios do not")]

#[path = "../../src/ledger/account.rs"]
pub(crate) mod account;
#[path = "../../src/ledger/assign.rs"]
pub(crate) mod assign;
#[path = "../../src/ledger/choose.rs"]
mod choose;
#[path = "../../src/ledger/cut.rs"]
pub(crate) mod cut;
#[path = "../../src/ledger/fill.rs"]
mod fill;
#[path = "../../src/ledger/recycle.rs"]
pub(crate) mod recycle;
#[path = "../../src/ledger/refusal.rs"]
pub(crate) mod refusal;
#[path = "../../src/ledger/request.rs"]
pub(crate) mod request;
#[cfg(feature = "serde")]
#[path = "../../src/ledger/serialize.rs"]
mod serialize;
#[path = "../../src/ledger/share.rs"]
pub(crate) mod share;
#[path = "../../src/ledger/structure.rs"]
mod structure;

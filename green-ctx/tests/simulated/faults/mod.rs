//! Every public operation with each of its driver calls failed in turn: no panic, nothing leaked, the
//! ledger whole, and the same work succeeds afterwards.

mod fit;
mod foreign;
mod graph;
mod memory;
mod partition;
mod plans;
mod scenario;

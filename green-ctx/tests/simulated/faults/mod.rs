//! Every public operation, with each of its driver calls failing in turn. It must not panic or leak, the ledger
//! must stay consistent, and the same work must succeed afterwards.

mod fit;
mod foreign;
mod graph;
mod memory;
mod partition;
mod plans;
mod scenario;

//! Everything that runs in a context: streams, kernels and memory.

pub mod fit;
pub mod launch;
pub(crate) mod library;
mod lookup;
pub mod memory;
pub mod stream;

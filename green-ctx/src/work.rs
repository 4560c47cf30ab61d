//! What runs in a context: streams, kernels, memory.

pub mod fit;
pub mod launch;
pub(crate) mod library;
mod lookup;
pub mod memory;
pub mod stream;

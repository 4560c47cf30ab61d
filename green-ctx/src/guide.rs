//! The manual: one page a concept.
//!
//! 1. [`partitions`]: what a partition is, how a device is cut, what a partition does not promise.
//! 2. [`ownership`]: the ledger, groups and contexts, when SMs are free, contexts that are used again.
//! 3. [`plans`]: the same SMs divided in several ways, and switching between them.
//! 4. [`graphs`]: captured graphs that move to another partition, and what cannot be moved.
//! 5. [`explicit_model`]: why nothing depends on the current context, and how to meet code that does.
//! 6. [`fit`]: what a partition holds at once, and launches that would hang.
//! 7. [`escapes`]: finding work that runs outside of its partition.
//! 8. [`versions`]: what each driver from CUDA 12.4 on can do, and what an older one says instead.
//! 9. `testing`, with the feature `sim`: programs that use partitions, tested without a GPU.
//! 10. [`coming_from`]: call by call from the driver API, cuda.core, PyTorch, FlashInfer and cudarc.
//! 11. [`pitfalls`]: what surprises people, and when not to partition at all.
//!
//! What is said of the driver names its source: the header (`cuda.h`), NVIDIA's documentation, or a
//! record of hardware in `tests/conformance/records` of the repository.

pub mod coming_from;
pub mod escapes;
pub mod explicit_model;
pub mod fit;
pub mod graphs;
pub mod ownership;
pub mod partitions;
pub mod pitfalls;
pub mod plans;
#[cfg(feature = "sim")]
pub mod testing;
pub mod versions;

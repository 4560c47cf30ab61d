//! The manual: one page for each concept.
//!
//! 1. `first_program`, with the feature `sim`: partitions, a kernel, copies, an event and a graph in one program.
//! 2. [`partitions`]: what a partition is, how a device is cut, what a partition does not promise.
//! 3. [`shares`]: floors and ceilings, what is promised, when each form pays and when it hurts.
//! 4. [`plans`]: the same SMs divided in several ways, and switching between them.
//! 5. [`graphs`]: captured graphs that move to another partition, and what cannot be moved.
//! 6. [`fit`]: what a partition can hold at once, and launches that would hang.
//! 7. [`escapes`]: finding work that runs outside of its partition.
//! 8. [`explicit_model`]: why nothing depends on the current context, and how to work with code that does.
//! 9. [`ownership`]: the layer below: the ledger, groups and contexts, when SMs are free.
//! 10. [`errors`]: what each kind of error means, and what to do about it.
//! 11. [`versions`]: what each driver from CUDA 12.4 on can do, and what an older one returns instead.
//! 12. `testing`, with the feature `sim`: testing programs that use partitions without a GPU.
//! 13. [`green-ctx-tune`](https://docs.rs/green-ctx-tune), a crate of its own: which division is best, and whether to
//!     divide at all.
//! 14. [`when_it_pays`]: which jobs gain from partitions, which lose, and why.
//! 15. [`coming_from`]: call by call from the driver API, cuda.core, PyTorch, FlashInfer and cudarc.
//! 16. [`pitfalls`]: what surprises people, and when not to partition at all.
//!
//! Statements about the driver name their source: the header (`cuda.h`), NVIDIA's documentation, or a
//! record of hardware in `tests/conformance/records` of the repository.

#[doc = include_str!("../guide/coming_from.md")]
pub mod coming_from {}
#[doc = include_str!("../guide/errors.md")]
pub mod errors {}
#[doc = include_str!("../guide/escapes.md")]
pub mod escapes {}
#[doc = include_str!("../guide/explicit_model.md")]
pub mod explicit_model {}
#[cfg(feature = "sim")]
#[doc = include_str!("../guide/first_program.md")]
#[doc = "```rust"]
#[doc = include_str!("../examples/00-everything.rs")]
#[doc = "```"]
pub mod first_program {}
#[doc = include_str!("../guide/fit.md")]
pub mod fit {}
#[doc = include_str!("../guide/graphs.md")]
pub mod graphs {}
#[doc = include_str!("../guide/ownership.md")]
pub mod ownership {}
#[doc = include_str!("../guide/partitions.md")]
pub mod partitions {}
#[doc = include_str!("../guide/pitfalls.md")]
pub mod pitfalls {}
#[doc = include_str!("../guide/plans.md")]
pub mod plans {}
#[doc = include_str!("../guide/shares.md")]
pub mod shares {}
#[cfg(feature = "sim")]
#[doc = include_str!("../guide/testing.md")]
pub mod testing {}
#[doc = include_str!("../guide/versions.md")]
pub mod versions {}
#[doc = include_str!("../guide/when_it_pays.md")]
pub mod when_it_pays {}

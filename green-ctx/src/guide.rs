//! The manual: one page for each concept, in reading order.
//!
//! 1. [`choosing`]: streams, priorities, green contexts, MPS and MIG compared, and when not to use partitions.
//! 2. [`when_it_pays`]: which jobs gain from partitions, which lose, and why.
//! 3. `first_program`, with the feature `sim`: partitions, a kernel, copies, an event and a graph in one program.
//! 4. [`partitions`]: what a partition is, how a device is divided, and what a partition does not promise.
//! 5. [`shares`]: floors and ceilings, rounding, and what is promised.
//! 6. [`launching`]: how to obtain PTX and cubins, and how to use arguments, memory and events.
//! 7. [`explicit_model`]: why no call depends on the current context, and what this means for threads and forks.
//! 8. [`plans`]: several divisions of the same SMs, and switching between them.
//! 9. [`graphs`]: captured graphs that move to another partition, and what cannot be moved.
//! 10. [`fit`]: the number of blocks that fit in a partition at the same time, and launches that would hang.
//! 11. [`escapes`]: finding work that runs outside its partition.
//! 12. [`reserve`]: floors that hold against all other work of the process.
//! 13. [`ownership`]: the layer below partitions: groups, the ledger, when SMs are free, and what contexts cost.
//! 14. [`errors`]: what each kind of error means, and what to do about it.
//! 15. [`pitfalls`]: common surprises, listed by symptom.
//! 16. `testing`, with the feature `sim`: testing programs that use partitions without a GPU.
//! 17. [`versions`]: what each CUDA version adds, and what an older driver returns.
//! 18. [`coming_from`]: this crate compared with the driver API, cuda.core, torch, FlashInfer, SGLang, cudarc and
//!     cuda-core.
//! 19. [`glossary`]: the terms that the manual uses, with their meanings.
//!
//! The crate `green-ctx-tune` measures which division is best, and whether to divide
//! at all.
//!
//! Statements about the driver name their source: the header (`cuda.h`), NVIDIA's documentation, or a record of the
//! driver's behaviour on hardware, in `tests/conformance/records` of the repository.

#[doc = include_str!("../guide/choosing.md")]
pub mod choosing {}
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
#[doc = include_str!("../guide/glossary.md")]
pub mod glossary {}
#[doc = include_str!("../guide/graphs.md")]
pub mod graphs {}
#[doc = include_str!("../guide/launching.md")]
pub mod launching {}
#[doc = include_str!("../guide/ownership.md")]
pub mod ownership {}
#[doc = include_str!("../guide/partitions.md")]
pub mod partitions {}
#[doc = include_str!("../guide/pitfalls.md")]
pub mod pitfalls {}
#[doc = include_str!("../guide/plans.md")]
pub mod plans {}
#[doc = include_str!("../guide/reserve.md")]
pub mod reserve {}
#[doc = include_str!("../guide/shares.md")]
pub mod shares {}
#[cfg(feature = "sim")]
#[doc = include_str!("../guide/testing.md")]
pub mod testing {}
#[doc = include_str!("../guide/versions.md")]
pub mod versions {}
#[doc = include_str!("../guide/when_it_pays.md")]
pub mod when_it_pays {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

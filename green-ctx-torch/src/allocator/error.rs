//! Why an allocator refuses.

use green_ctx::Error;

use super::account::Owner;

/// Why an operation of an [`Allocator`](super::Allocator) failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// A limit would be passed. Nothing was allocated.
    #[error(
        "{bytes} bytes do not fit: {used} of the {limit} bytes of {} are in use; free some, or raise \
         the limit", whose(owner.as_ref())
    )]
    Limit {
        /// Whose limit it is; `None` for the allocator's.
        owner: Option<Owner>,
        /// The bytes that were asked for.
        bytes: u64,
        /// The bytes in use, those of blocks that are being allocated included.
        used: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// No block of the allocator's has this address.
    #[error("there is no block at {address:#x}; it was freed already, or is of another allocator")]
    UnknownBlock {
        /// The address.
        address: u64,
    },
    /// The block comes from a memory pool, of which the driver gives no IPC handle.
    #[error(
        "the block at {address:#x} comes from a memory pool, which has no IPC handles; make the \
         allocator shareable before the block is allocated"
    )]
    NotShareable {
        /// The address.
        address: u64,
    },
    /// A request that cannot be fulfilled, whatever is free.
    #[error("{0}")]
    InvalidRequest(String),
    /// The driver of the C functions was to be replaced while blocks of theirs are out.
    #[error("{blocks} blocks of device {device} are not freed yet; free them first")]
    InUse {
        /// The device.
        device: u32,
        /// How many blocks there are.
        blocks: u64,
    },
    /// The driver, or what is made with it, failed.
    #[error(transparent)]
    Driver(#[from] Error),
}

green_ctx::sys::debug_as_text!(AllocatorError);

impl AllocatorError {
    /// The error in the form that goes to the driver's clean-up hook.
    pub(super) fn into_cleanup(self) -> Error {
        match self {
            AllocatorError::Driver(error) => error,
            other => Error::InvalidRequest(other.to_string()),
        }
    }
}

fn whose(owner: Option<&Owner>) -> String {
    owner.map_or_else(|| "the allocator".to_owned(), Owner::to_string)
}

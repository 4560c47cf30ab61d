//! Errors of the allocator.

use green_ctx::Error;

use super::account::Owner;

/// An error of an [`Allocator`](super::Allocator).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// The request would exceed a limit. Nothing was allocated.
    #[error(
        "{bytes} bytes do not fit: {used} of the {limit} bytes of {} are in use; free some, or raise \
         the limit", whose(owner.as_ref())
    )]
    Limit {
        /// The owner whose limit would be exceeded, or `None` if the limit of the whole allocator would be exceeded.
        owner: Option<Owner>,
        /// The requested bytes.
        bytes: u64,
        /// The bytes in use, including blocks that are being allocated.
        used: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The allocator has no block at this address.
    #[error("there is no block at {address:#x}; it was freed, or belongs to another allocator")]
    UnknownBlock {
        /// The address.
        address: u64,
    },
    /// The block is in a memory pool, so the driver has no IPC handle for the block.
    #[error(
        "the block at {address:#x} comes from a memory pool, which has no IPC handles; make the \
         allocator shareable before the block is allocated"
    )]
    NotShareable {
        /// The address.
        address: u64,
    },
    /// The request can never be fulfilled, however much memory is free.
    #[error("{0}")]
    InvalidRequest(String),
    /// The driver of the C functions cannot be replaced while their blocks are in use.
    #[error("{blocks} blocks of device {device} are still in use; free them first")]
    InUse {
        /// The device's ordinal.
        device: u32,
        /// The number of blocks in use.
        blocks: u64,
    },
    /// An operation of green-ctx failed, most often a driver call.
    #[error(transparent)]
    Driver(#[from] Error),
}

green_ctx::sys::debug_as_text!(AllocatorError);

impl AllocatorError {
    /// Converts the error for the driver's clean-up hook.
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

//! Who destroys what is behind a raw handle.

use std::sync::Arc;

/// Whatever keeps a foreign handle alive.
pub(crate) type Owner = Arc<dyn Send + Sync>;

/// Whether an object destroys its handle when it goes.
pub(crate) enum Ownership {
    /// It does.
    Owned,
    /// Somebody else does, and not before the owner is dropped.
    Borrowed { _owner: Owner },
}

impl Ownership {
    pub(crate) fn borrowed(owner: impl Send + Sync + 'static) -> Ownership {
        Ownership::Borrowed { _owner: Arc::new(owner) }
    }

    pub(crate) fn is_owned(&self) -> bool {
        matches!(self, Ownership::Owned)
    }
}

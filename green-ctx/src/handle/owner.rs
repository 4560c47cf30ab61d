//! Ownership of raw handles.

use std::sync::Arc;

/// A value that keeps a foreign handle alive.
pub(crate) type Owner = Arc<dyn Send + Sync>;

/// The party that destroys an object's raw handle.
pub(crate) enum Ownership {
    /// The object destroys the handle when it is dropped.
    Owned,
    /// Foreign code destroys the handle, after the owner is dropped.
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

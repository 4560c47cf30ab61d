//! Owners of foreign handles.

use std::sync::Arc;

/// A value that keeps a foreign handle alive. Foreign code destroys the handle after the owner is dropped. An object
/// without an owner destroys its handle itself.
pub(crate) type Owner = Arc<dyn Send + Sync>;

//! Identities of contexts.

use std::fmt;
use std::sync::{Arc, Weak};

use super::{Context, Inner};

/// A weak reference, which identifies a context and does not keep it alive. The reference matches only handles of this
/// context, even if a later context reuses the driver's handle. If a close is refused
/// ([`Refused`](crate::error::Refused)), the context keeps its identity, so the reference still matches.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let first = device.partition([16])?;
/// let weak = first[0].context().weak();
/// assert!(weak.is(first[0].context()));
///
/// // The second partition reuses the driver's context of the first one, but it is another `Context`.
/// drop(first);
/// let second = device.partition([16])?;
/// assert!(!weak.is(second[0].context()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct WeakContext {
    pub(super) inner: Weak<Inner>,
}

impl Context {
    /// Returns a weak reference, which identifies the context and does not keep it alive. The reference stays valid
    /// after the last handle is dropped.
    #[must_use]
    pub fn weak(&self) -> WeakContext {
        WeakContext { inner: Arc::downgrade(&self.inner) }
    }
}

impl WeakContext {
    /// Returns whether `context` is a handle of this context.
    #[must_use]
    pub fn is(&self, context: &Context) -> bool {
        Weak::as_ptr(&self.inner) == Arc::as_ptr(&context.inner)
    }

    pub(crate) fn upgrade(&self) -> Option<Context> {
        self.inner.upgrade().map(Context::from_inner)
    }

    /// Returns whether the last handle of the context was dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.inner.strong_count() == 0
    }
}

impl fmt::Debug for WeakContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakContext").finish_non_exhaustive()
    }
}

//! The drop-in replacements for other libraries' green contexts, and the names that the replacements give to
//! contexts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The drop-in that a context belongs to. The name of each context in the ledger contains a unique number, because
/// the allocator keeps one account per name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropIn {
    GreenContext,
    FlashInfer,
    SgLang,
}

/// The number of names given out so far.
static NAMED: AtomicU64 = AtomicU64::new(0);

impl DropIn {
    pub(crate) const ALL: [DropIn; 3] = [DropIn::GreenContext, DropIn::FlashInfer, DropIn::SgLang];

    pub(crate) fn name(self) -> &'static str {
        match self {
            DropIn::GreenContext => "GreenContext",
            DropIn::FlashInfer => "flashinfer",
            DropIn::SgLang => "sglang",
        }
    }

    /// Returns a new name, which no context has had before.
    pub(crate) fn fresh_name(self) -> Arc<str> {
        let mut number = NAMED.fetch_add(1, Ordering::Relaxed) + 1;
        // Not with `format!`, which would add a fifth to the cost of reusing a context.
        let mut text = [b' '; 40];
        let mut begin = text.len();
        while number > 0 {
            begin -= 1;
            text[begin] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        let (name, end) = (self.name().as_bytes(), begin - 1);
        begin = end - name.len();
        text[begin..end].copy_from_slice(name);
        Arc::from(std::str::from_utf8(&text[begin..]).unwrap_or_default())
    }

    /// Returns the drop-in that gave this name to a context, if one did.
    pub(crate) fn of(name: &str) -> Option<DropIn> {
        let (of, number) = name.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        // Compared as text, because other spellings such as `01` parse to the same number.
        let was_given = (1..=NAMED.load(Ordering::Relaxed)).contains(&number)
            && name == format!("{of} {number}");
        DropIn::ALL.into_iter().find(|known| was_given && known.name() == of)
    }
}

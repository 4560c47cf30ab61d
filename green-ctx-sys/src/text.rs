//! Formatting of errors for `Debug`.

use core::error::Error;
use core::fmt;
use core::iter;

/// Writes an error's message and the messages of its sources, as `a: b: c`.
#[doc(hidden)]
pub fn write_with_sources(error: &dyn Error, to: &mut dyn fmt::Write) -> fmt::Result {
    write!(to, "{error}")?;
    let mut sources = iter::successors(error.source(), |error| (*error).source());
    sources.try_for_each(|source| write!(to, ": {source}"))
}

/// Returns the text of [`write_with_sources`].
#[doc(hidden)]
pub fn with_sources(error: &dyn Error) -> String {
    let mut text = String::new();
    // If a message cannot be formatted, the text ends there.
    let _ = write_with_sources(error, &mut text);
    text
}

/// Implements `Debug` for error types. The output consists of the error's message and the messages of its sources. A
/// program whose `main` returns the error shows this text.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_text {
    ($($error:ty),* $(,)?) => {
        $(
            impl ::core::fmt::Debug for $error {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    $crate::write_with_sources(self, f)
                }
            }
        )*
    };
}

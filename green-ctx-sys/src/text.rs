//! Formatting of errors for `Debug`.

use core::error::Error;
use core::iter;

/// Returns an error's message and the messages of its sources, as `a: b: c`.
#[doc(hidden)]
pub fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let sources = iter::successors(error.source(), |error| (*error).source());
    sources.for_each(|source| text.push_str(&format!(": {source}")));
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
                    f.write_str(&$crate::with_sources(self))
                }
            }
        )*
    };
}

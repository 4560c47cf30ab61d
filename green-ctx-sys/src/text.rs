//! Formatting of errors for `Debug`.

use core::error::Error;
use core::fmt;

/// Writes an error's message and the messages of its sources, as `a: b: c`.
#[doc(hidden)]
pub fn fmt_with_sources(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{error}")?;
    let mut source = error.source();
    while let Some(error) = source {
        write!(f, ": {error}")?;
        source = error.source();
    }
    Ok(())
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
                    $crate::fmt_with_sources(self, f)
                }
            }
        )*
    };
}

//! Formatting of C enum values.

use core::fmt;

/// Writes the name that the header gives to the value, or the value itself if the header has no name for it.
pub(crate) fn write(
    f: &mut fmt::Formatter<'_>,
    name: Option<&'static str>,
    value: i64,
) -> fmt::Result {
    match name {
        Some(name) => f.pad(name),
        None => fmt::Display::fmt(&value, f),
    }
}

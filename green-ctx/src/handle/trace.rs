//! Spans and events for the crate `tracing`. Without the feature `tracing`, the macros expand to nothing.

/// Opens a debug span that lasts until the end of the enclosing block.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($name:literal $(, $($field:tt)*)?) => {
        let _span = tracing::debug_span!(target: "green_ctx", $name $(, $($field)*)?).entered();
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($($anything:tt)*) => {};
}

/// Emits an event at the given level (`DEBUG` or `WARN`).
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($field:tt)*) => {
        tracing::event!(target: "green_ctx", tracing::Level::$level, $($field)*)
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($($anything:tt)*) => {};
}

pub(crate) use {event, span};

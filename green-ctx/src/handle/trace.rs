//! Spans and events for the crate `tracing`, nothing at all without the feature `tracing`.

/// A debug span that lasts until the end of the enclosing block.
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

/// An event of a level, `DEBUG` or `WARN`.
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

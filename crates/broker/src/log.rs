//! Log lines, if the feature `tracing` is on.

/// Warns about something that an operator should know.
#[cfg(feature = "tracing")]
pub(crate) fn warn(text: &str) {
    tracing::warn!("{text}");
}

/// Without the feature, warnings are dropped.
#[cfg(not(feature = "tracing"))]
pub(crate) fn warn(_: &str) {}

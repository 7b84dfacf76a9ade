//! Metrics behind the feature `metrics`, logs behind `tracing`. Never an id.

use redrive_store::window::WindowStats;

/// An id was claimed a second time.
pub(super) fn duplicate() {
    #[cfg(feature = "metrics")]
    {
        use redrive_core::names::{label, metric};
        metrics::counter!(metric::DUPLICATES, label::PLACE => "window").increment(1);
    }
}

/// Rows that cannot be read.
pub(super) fn damaged(rows: &[String]) {
    #[cfg(feature = "tracing")]
    for row in rows {
        tracing::error!(row, "damaged; redelivered messages with its ids run again");
    }
    #[cfg(not(feature = "tracing"))]
    let _ = rows;
}

/// Ids were evicted before their time; the first `before` were reported.
pub(super) fn evicted(before: u64, figures: &WindowStats) {
    let more = figures.evicted_early.saturating_sub(before);
    #[cfg(feature = "metrics")]
    if more > 0 {
        metrics::counter!(redrive_core::names::metric::WINDOW_EVICTED).increment(more);
    }
    #[cfg(feature = "tracing")]
    if more > 0 && before == 0 {
        let youngest_ms = figures.youngest_evicted.map_or(0, |age| age.as_millis());
        tracing::warn!(youngest_ms, "a window forgets ids early; raise its `count`");
    }
    #[cfg(not(any(feature = "metrics", feature = "tracing")))]
    let _ = more;
}

//! Counts (feature `metrics`) and logs (feature `tracing`) the outcomes of requests, as the engine does for events.
//! Never a body.

use redrive_http::idempotent::{LedgerObserver, RequestOutcome};

/// Counts and logs.
#[derive(Debug, Clone, Copy)]
pub(super) struct LedgerTelemetry;

#[cfg_attr(
    not(any(feature = "metrics", feature = "tracing")),
    expect(unused_variables, reason = "used by the features metrics and tracing only")
)]
impl LedgerObserver for LedgerTelemetry {
    fn became(&self, operation: &str, became: RequestOutcome) {
        #[cfg(feature = "metrics")]
        count(operation, became);
        #[cfg(feature = "tracing")]
        match became {
            RequestOutcome::Unknown => tracing::warn!(operation, "the outcome of a request is unknown"),
            RequestOutcome::Bypassed => tracing::warn!(operation, "a request ran without the ledger"),
            RequestOutcome::TakenOver => tracing::info!(operation, "a request runs again"),
            RequestOutcome::Mismatch => tracing::info!(operation, "a key was used for something else"),
            _ => {}
        }
    }

    fn rekeyed(&self, operation: &str) {
        #[cfg(feature = "metrics")]
        {
            use redrive_core::names::{label, metric};
            metrics::counter!(metric::LEDGER_SAME_BODY, label::ENDPOINT => operation.to_owned()).increment(1);
        }
        #[cfg(feature = "tracing")]
        tracing::info!(operation, "the same request repeats under new keys");
    }
}

#[cfg(feature = "metrics")]
fn count(operation: &str, became: RequestOutcome) {
    use redrive_core::names::{label, metric};

    let endpoint = operation.to_owned();
    metrics::counter!(metric::LEDGER, label::ENDPOINT => endpoint, label::RESULT => became.as_str())
        .increment(1);
    // The request was a repetition.
    if matches!(
        became,
        RequestOutcome::Replayed | RequestOutcome::InFlight | RequestOutcome::Gone | RequestOutcome::Unopened
    ) {
        metrics::counter!(metric::DUPLICATES, label::PLACE => "ledger").increment(1);
    }
}

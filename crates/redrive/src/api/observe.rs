//! What becomes of requests, counted with the feature `metrics` and logged with `tracing`: by itself, as that of events
//! is. Never a body.

use redrive_http::idempotent::{Became, Observer};

/// Counts and logs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told;

#[cfg_attr(
    not(any(feature = "metrics", feature = "tracing")),
    expect(unused_variables, reason = "there is nobody to tell")
)]
impl Observer for Told {
    fn became(&self, operation: &str, became: Became) {
        #[cfg(feature = "metrics")]
        count(operation, became);
        #[cfg(feature = "tracing")]
        match became {
            Became::Unknown => tracing::warn!(operation, "nobody knows whether a request happened"),
            Became::Bypassed => tracing::warn!(operation, "a request ran without the ledger"),
            Became::TakenOver => tracing::info!(operation, "a request runs again"),
            Became::Mismatch => tracing::info!(operation, "a key was used for something else"),
            _ => {}
        }
    }

    fn minted_again(&self, operation: &str) {
        #[cfg(feature = "metrics")]
        {
            use redrive_core::names::{label, metric};
            metrics::counter!(metric::LEDGER_SAME_BODY, label::ENDPOINT => operation.to_owned()).increment(1);
        }
        #[cfg(feature = "tracing")]
        tracing::info!(operation, "the same is asked under ever new keys");
    }
}

#[cfg(feature = "metrics")]
fn count(operation: &str, became: Became) {
    use redrive_core::names::{label, metric};

    let endpoint = operation.to_owned();
    metrics::counter!(metric::LEDGER, label::ENDPOINT => endpoint, label::RESULT => became.as_str())
        .increment(1);
    // What came a second time.
    if matches!(became, Became::Replayed | Became::InFlight | Became::Gone | Became::Unopened) {
        metrics::counter!(metric::DUPLICATES, label::PLACE => "ledger").increment(1);
    }
}

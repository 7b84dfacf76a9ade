//! Counts (feature `metrics`) and logs (feature `tracing`) the outcomes of requests, as the engine does for events.
//! Never a body.

use redrive_http::idempotent::{LedgerObserver, RequestDifference, RequestOutcome, RequestScope};

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
        if became == RequestOutcome::Bypassed {
            tracing::warn!(operation, "a request ran without the ledger");
        }
    }

    fn keyed(&self, scope: &RequestScope, became: RequestOutcome, differs: Option<RequestDifference>) {
        #[cfg(not(feature = "tracing"))]
        let _ = (scope, became, differs);
        #[cfg(feature = "tracing")]
        {
            let RequestScope { tenant, operation, .. } = scope;
            let (key, principal) = (scope.client_key(), scope.principal());
            match became {
                RequestOutcome::Unknown => {
                    tracing::warn!(operation, key, tenant, principal, "the outcome of a request is unknown");
                }
                RequestOutcome::TakenOver => {
                    tracing::info!(operation, key, tenant, principal, "a request runs again");
                }
                RequestOutcome::Mismatch => {
                    let differs = differs.map(tracing::field::display);
                    tracing::info!(
                        operation,
                        key,
                        tenant,
                        principal,
                        differs,
                        "a key was used for a different request"
                    );
                }
                _ => {}
            }
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

//! The meaning of a status.
//!
//! | status | means |
//! |---|---|
//! | 2xx | ok |
//! | 429, 503 | overload: retried out of a budget, and without one not at all |
//! | other 5xx | retry |
//! | 409 with `Retry-After` | retry: a request under the same key is still running |
//! | 1xx, 3xx, other 4xx | permanent |
//!
//! In all cases the effect is unknown. A status says how the other side ended, not what it did before: a handler that
//! charged a card and then relayed a downstream 429 looks like one that refused at once.
//!
//! A [`StatusMap`] overrides single statuses for one destination.

use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use redrive_core::classify::Classification;
use redrive_core::observe::Outcome;
use redrive_core::{Classify, Disposition, Executed, Fault, Report, StopReason};
use redrive_retry::drive::Judge;
use redrive_retry::scope;

use crate::ledger_status::is_replayed;
use crate::{propagation, retry_after};

/// The table above. `None` for 2xx.
pub(crate) fn by_default(status: StatusCode) -> Option<Fault> {
    if status.is_success() {
        return None;
    }
    Some(match status.as_u16() {
        429 | 503 => Fault::overload().executed(Executed::Unknown),
        500..=599 => Fault::transient(),
        _ => Fault::permanent(),
    })
}

/// The meaning of statuses for one destination: the table of this [module](self) with overrides.
///
/// ```
/// use http::StatusCode;
/// use redrive_core::{Disposition, Fault};
/// use redrive_http::StatusMap;
///
/// let statuses = StatusMap::default()
///     .set(StatusCode::CONFLICT, Fault::transient())
///     .set(StatusCode::GONE, Disposition::Ok);
/// assert!(matches!(statuses.disposition(StatusCode::CONFLICT), Disposition::Retry(_)));
/// assert_eq!(statuses.disposition(StatusCode::GONE), Disposition::Ok);
/// assert!(matches!(statuses.disposition(StatusCode::NOT_FOUND), Disposition::Permanent(_)));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusMap(Vec<(StatusCode, Disposition)>);

impl StatusMap {
    /// Overrides the meaning of a status. The last call counts.
    #[must_use]
    pub fn set(mut self, status: StatusCode, means: impl Into<Disposition>) -> Self {
        self.0.retain(|(known, _)| *known != status);
        self.0.push((status, means.into()));
        self
    }

    /// The meaning of a status.
    #[must_use]
    pub fn disposition(&self, status: StatusCode) -> Disposition {
        self.0
            .iter()
            .find(|(known, _)| *known == status)
            .map(|(_, means)| *means)
            .or_else(|| by_default(status).map(Into::into))
            .unwrap_or(Disposition::Ok)
    }

    /// The meaning of a response: its status, then its headers. `Retry-After` and gRPC's push-back are a lower bound
    /// for the wait; `redrive-no-retry` makes any failure final, and so does `idempotent-replayed: true`, because the
    /// same reply would come again.
    #[must_use]
    pub fn answer(&self, status: StatusCode, headers: &HeaderMap) -> Disposition {
        match self.disposition(status) {
            Disposition::Retry(again) if propagation::forbids_retry(headers) || is_replayed(headers) => {
                Disposition::Permanent(again.executed)
            }
            Disposition::Permanent(_) if status == StatusCode::CONFLICT && !self.has_override(status) => {
                let asked = retry_after::from_headers(headers);
                let again = asked.and_then(|asked| self.again(headers, Some(asked)));
                again.unwrap_or_else(|| self.disposition(status))
            }
            Disposition::Retry(mut again) => {
                again.not_before = retry_after::from_headers(headers).or(again.not_before);
                Disposition::Retry(again)
            }
            said => said,
        }
    }

    /// Whether this status has an override.
    pub(crate) fn has_override(&self, status: StatusCode) -> bool {
        self.0.iter().any(|(known, _)| *known == status)
    }

    /// A retry that the response asks for, after the longer of its headers' wait and `asked`. `None` if the headers
    /// forbid a retry.
    pub(crate) fn again(&self, headers: &HeaderMap, asked: Option<Duration>) -> Option<Disposition> {
        if propagation::forbids_retry(headers) || is_replayed(headers) {
            return None;
        }
        let wait = retry_after::from_headers(headers).max(asked);
        let fault = wait.map_or(Fault::transient(), |wait| Fault::transient().not_before(wait));
        Some(fault.into())
    }
}

/// Judges an HTTP answer by its status and headers, and a failure to get one by a classifier.
#[derive(Debug, Clone, Default)]
pub struct StatusJudge<C> {
    /// What statuses mean.
    pub statuses: StatusMap,
    /// What errors mean.
    pub errors: C,
}

impl<C> StatusJudge<C> {
    /// The meaning of a response. A final one is also final for every outer layer.
    pub(crate) fn judge_answer(&self, status: StatusCode, headers: &HeaderMap) -> Outcome {
        let said = self.statuses.answer(status, headers);
        if matches!(said, Disposition::Permanent(_)) && propagation::forbids_retry(headers) {
            scope::forbid_outer_retry(StopReason::Permanent);
        }
        Outcome::Classified(said)
    }
}

impl<B, E, C: Classify<E>> Judge<Response<B>, E> for StatusJudge<C> {
    fn judge(&self, result: &Result<Response<B>, E>) -> Outcome {
        match result {
            Ok(response) => self.judge_answer(response.status(), response.headers()),
            Err(error) => self.errors.classify(error).disposition().into(),
        }
    }

    /// The report travels in the response's extensions.
    fn note(&self, response: &mut Response<B>, report: &Report) {
        response.extensions_mut().insert(*report);
    }
}

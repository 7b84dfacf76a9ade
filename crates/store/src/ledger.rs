//! The ledger: the idempotency records of an HTTP API.
//!
//! Every call is one commit, and [`redrive_core::ledger`] makes its decision: a store reads the record, asks core, and
//! writes the answer in the same transaction, so two requests never decide from the same record. The end of a run is
//! fenced by its epoch, also inside the caller's own transaction ([`Tx::complete`](crate::Tx::complete)): a run that
//! was taken over rolls back with all its other writes. An operator's command resolves an unknown outcome
//! ([`What::Resolve`](crate::operate::OperatorAction::Resolve)).

use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{
    ClaimRequest, FencedRun, LedgerClaim, LedgerRecord, RecordPhase, RenewResult, RequestScope, Resolution,
    StoredReply,
};

use crate::operate::Refusal;
use crate::store::StoreFuture;

pub use redrive_core::ledger::RunEnding;

/// Which records to list: of one tenant, or of all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LedgerQuery {
    /// The tenant.
    pub tenant: Option<String>,
    /// Only requests that made this resource.
    pub resource: Option<String>,
    /// Only records in this phase, by its word.
    pub phase: Option<&'static str>,
    /// Only records after this one, in the order of scopes.
    pub after: Option<RequestScope>,
    /// How many at most; 0 for a hundred.
    pub limit: usize,
}

/// A page of records, in the order of scopes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LedgerPage {
    /// The records without the bodies of their answers: a stored body is listed as empty, a missing one as `None`.
    pub records: Vec<(RequestScope, LedgerRecord)>,
    /// The last record of this page; `None` at the end. A page ends after a bounded number of rows, and may have few
    /// records.
    pub next: Option<RequestScope>,
}

/// How many requests of a tenant's operation have an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownCount {
    /// The tenant.
    pub tenant: String,
    /// The operation.
    pub operation: String,
    /// How many.
    pub count: u64,
}

/// How many records are listed at most.
pub(crate) const RECORDS_MAX: usize = 1000;

impl LedgerQuery {
    /// How many to list.
    pub(crate) fn limit(&self) -> usize {
        if self.limit == 0 { 100 } else { self.limit.min(RECORDS_MAX) }
    }

    /// Whether a record matches.
    pub(crate) fn means(&self, scope: &RequestScope, record: &LedgerRecord) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == scope.tenant)
            && self.resource.as_ref().is_none_or(|resource| record.resource.as_ref() == Some(resource))
            && self.phase.is_none_or(|phase| phase == record.phase.as_str())
            && self.after.as_ref().is_none_or(|after| scope > after)
    }
}

/// The ledger of a store.
pub trait LedgerStore {
    /// Claims a request: decides what to do with it, and reserves it if it is to run.
    fn claim(&self, scope: RequestScope, ask: ClaimRequest, at: Moment) -> StoreFuture<LedgerClaim>;

    /// Renews the lease of a run. `Ok(Ok(TooLong))` if the run has reached its time limit.
    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
        at: Moment,
    ) -> StoreFuture<Result<RenewResult, Option<FencedRun>>>;

    /// Ends a run. Refused if the run was taken over: with the present record, if there is one.
    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
        at: Moment,
    ) -> StoreFuture<Result<(), Option<FencedRun>>>;

    /// The record of a request.
    fn record(&self, scope: RequestScope, at: Moment) -> StoreFuture<Option<LedgerRecord>>;

    /// A page of records, in the order of scopes.
    fn records(&self, records: LedgerQuery, at: Moment) -> StoreFuture<LedgerPage>;

    /// How many outcomes are unknown, by tenant and operation: each waits for an operator.
    fn unknown(&self) -> StoreFuture<Vec<UnknownCount>>;
}

/// A record as it is listed: a stored body is empty.
pub(crate) fn listed(record: &LedgerRecord) -> LedgerRecord {
    let phase = match &record.phase {
        RecordPhase::Completed { reply: StoredReply { status, headers, body }, at } => {
            let body = body.as_ref().map(|_| Vec::new());
            RecordPhase::Completed {
                reply: StoredReply { status: *status, headers: headers.clone(), body },
                at: *at,
            }
        }
        other => other.clone(),
    };
    let LedgerRecord { print, first, epoch, attempt, retention, ref resource, .. } = *record;
    LedgerRecord { print, first, epoch, attempt, phase, retention, resource: resource.clone() }
}

/// An operator resolves an unknown outcome: a command, in one commit with its line in the audit.
pub(crate) fn resolved(
    record: Option<LedgerRecord>,
    resolution: Resolution,
    at: Moment,
) -> Result<LedgerRecord, Refusal> {
    let record = record.and_then(|record| redrive_core::ledger::age(record, at)).ok_or(Refusal::NoRequest)?;
    redrive_core::ledger::resolve(record, resolution, at)
        .map_err(|fenced| Refusal::NotUnknown { is: fenced.0.phase.as_str() })
}

/// The record after the end of its run.
pub(crate) fn ended(
    record: LedgerRecord,
    epoch: u64,
    end: RunEnding,
    at: Moment,
) -> Result<Option<LedgerRecord>, FencedRun> {
    use redrive_core::ledger;

    match end {
        RunEnding::Completed { reply, resource } => {
            ledger::complete(record, epoch, reply, resource, at).map(Some)
        }
        RunEnding::Retriable(not_before) => ledger::fail(record, epoch, not_before, at).map(Some),
        RunEnding::Unknown => ledger::hold(record, epoch, at).map(Some),
        RunEnding::Nothing => ledger::release(record, epoch, at),
    }
}

/// The record to be written for a claim, if there is one.
pub(crate) const fn kept(claim: &LedgerClaim) -> Option<&LedgerRecord> {
    match claim {
        LedgerClaim::Run(record) | LedgerClaim::Probe(record) | LedgerClaim::Hold(record) => Some(record),
        LedgerClaim::Say(_) => None,
    }
}

//! The ledger: what is remembered of requests under their idempotency keys.
//!
//! Every verb is one commit, and what it decides is [`redrive_core::ledger`]'s: a store reads the record, asks, and
//! writes the answer in the same transaction, so that two requests never decide from the same record. What a run says
//! at its end is fenced by its epoch; inside the caller's own transaction too ([`Tx::complete`](crate::Tx::complete)),
//! where a run that was taken over rolls back with everything else that it did. What is unknown is resolved by an
//! operator's order ([`What::Resolve`](crate::operate::What::Resolve)).

use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{Ask, Claim, Fenced, Phase, Record, Renewed, Reply, Resolution, Scope};

use crate::operate::Refusal;
use crate::store::Answer;

pub use redrive_core::ledger::End;

/// Which records to list. Those of one tenant, or of all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    /// Whose.
    pub tenant: Option<String>,
    /// Only those that made this.
    pub resource: Option<String>,
    /// Only those in this phase, by its word.
    pub phase: Option<&'static str>,
    /// Those after this one, in the order of scopes.
    pub after: Option<Scope>,
    /// How many at most; a hundred where it is 0.
    pub limit: usize,
}

/// A page of records, in the order of scopes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recorded {
    /// They, without the bodies of their answers: one that is kept is empty here, one that is not is none.
    pub records: Vec<(Scope, Record)>,
    /// After which to go on; none where that is all. A page ends where enough was looked at, and may have few.
    pub next: Option<Scope>,
}

/// How many records are listed at most.
pub(crate) const RECORDS_MAX: usize = 1000;

impl Records {
    /// How many are to be listed.
    pub(crate) fn limit(&self) -> usize {
        if self.limit == 0 { 100 } else { self.limit.min(RECORDS_MAX) }
    }

    /// Whether a record is one of them.
    pub(crate) fn means(&self, scope: &Scope, record: &Record) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == scope.tenant)
            && self.resource.as_ref().is_none_or(|resource| record.resource.as_ref() == Some(resource))
            && self.phase.is_none_or(|phase| phase == record.phase.as_str())
            && self.after.as_ref().is_none_or(|after| scope > after)
    }
}

/// The ledger of a store.
pub trait Ledger {
    /// Asks what to do with a request, and has it, where it is to run.
    fn claim(&self, scope: Scope, ask: Ask, at: Moment) -> Answer<Claim>;

    /// Has a run go on. `Ok(Ok(TooLong))` where it has run for as long as it may.
    fn renew(
        &self,
        scope: Scope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
        at: Moment,
    ) -> Answer<Result<Renewed, Option<Fenced>>>;

    /// Says how a run ended. Refused where it was taken over: with the record as it is, if there is one.
    fn end(&self, scope: Scope, epoch: u64, end: End, at: Moment) -> Answer<Result<(), Option<Fenced>>>;

    /// What is remembered of a request.
    fn record(&self, scope: Scope, at: Moment) -> Answer<Option<Record>>;

    /// A page of records, in the order of scopes.
    fn records(&self, records: Records, at: Moment) -> Answer<Recorded>;

    /// How many outcomes are unknown, by operation: each waits for a person.
    fn unknown(&self) -> Answer<Vec<(String, u64)>>;
}

/// A record as it is listed: the body of its answer is empty where there is one.
pub(crate) fn listed(record: &Record) -> Record {
    let phase = match &record.phase {
        Phase::Completed { reply: Reply { status, headers, body }, at } => {
            let body = body.as_ref().map(|_| Vec::new());
            Phase::Completed { reply: Reply { status: *status, headers: headers.clone(), body }, at: *at }
        }
        other => other.clone(),
    };
    let Record { print, first, epoch, attempt, retention, ref resource, .. } = *record;
    Record { print, first, epoch, attempt, phase, retention, resource: resource.clone() }
}

/// A person resolves what is unknown: an order, so that it is one commit with its line in the audit.
pub(crate) fn resolved(
    record: Option<Record>,
    resolution: Resolution,
    at: Moment,
) -> Result<Record, Refusal> {
    let record = record.and_then(|record| redrive_core::ledger::age(record, at)).ok_or(Refusal::NoRequest)?;
    redrive_core::ledger::resolve(record, resolution, at)
        .map_err(|fenced| Refusal::NotUnknown { is: fenced.0.phase.as_str() })
}

/// What an end makes of a record.
pub(crate) fn ended(record: Record, epoch: u64, end: End, at: Moment) -> Result<Option<Record>, Fenced> {
    use redrive_core::ledger;

    match end {
        End::Completed { reply, resource } => ledger::complete(record, epoch, reply, resource, at).map(Some),
        End::Retriable(not_before) => ledger::fail(record, epoch, not_before, at).map(Some),
        End::Unknown => ledger::hold(record, epoch, at).map(Some),
        End::Nothing => ledger::release(record, epoch, at),
    }
}

/// A request claimed: the record to be written, if there is one.
pub(crate) const fn kept(claim: &Claim) -> Option<&Record> {
    match claim {
        Claim::Run(record) | Claim::Probe(record) | Claim::Hold(record) => Some(record),
        Claim::Say(_) => None,
    }
}

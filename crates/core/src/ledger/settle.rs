//! How a run ends, and how a record ages.
//!
//! Every report of a run is fenced by its epoch: a run that was taken over changes nothing.

use std::time::Duration;

use super::record::{LedgerRecord, RecordPhase, StoredReply};
use crate::moment::Moment;

/// The run was taken over or has ended: it may not change the record. Holds the record as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct FencedRun(pub Box<LedgerRecord>);

/// The result of a renewal.
#[derive(Debug, Clone, PartialEq)]
pub enum RenewResult {
    /// The lease is extended.
    On(LedgerRecord),
    /// The run has reached its longest duration and must end.
    TooLong,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnding {
    /// With a reply, which is replayed from now on.
    Completed {
        /// The reply.
        reply: StoredReply,
        /// The resource that the request created, so that an operator can find the request by it.
        resource: Option<String>,
    },
    /// The request may run again, not before this moment.
    Retriable(Option<Moment>),
    /// The outcome is unknown.
    Unknown,
    /// The run certainly had no effect.
    Nothing,
}

/// How an operator resolves an unknown outcome.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    /// The effect happened, and this is the reply.
    Completed(StoredReply),
    /// The effect did not happen: the next request runs.
    Retriable,
}

/// Whether this epoch still owns the record. A run whose outcome was held as unknown may still end it.
fn own(record: LedgerRecord, epoch: u64) -> Result<LedgerRecord, FencedRun> {
    let runs = matches!(record.phase, RecordPhase::InFlight { .. } | RecordPhase::Unknown { .. });
    if record.epoch == epoch && runs { Ok(record) } else { Err(FencedRun(Box::new(record))) }
}

/// Extends the run's lease.
///
/// # Errors
/// [`FencedRun`] if the run was taken over.
pub fn renew(
    record: LedgerRecord,
    epoch: u64,
    lease: Duration,
    run_max: Duration,
    now: Moment,
) -> Result<RenewResult, FencedRun> {
    let record = own(record, epoch)?;
    let RecordPhase::InFlight { began, .. } = record.phase else { return Err(FencedRun(Box::new(record))) };
    let end = began + run_max;
    if now >= end {
        return Ok(RenewResult::TooLong);
    }
    let until = (now + lease).min(end);
    Ok(RenewResult::On(LedgerRecord { phase: RecordPhase::InFlight { began, until }, ..record }))
}

/// Completes the run with a reply to replay.
///
/// # Errors
/// [`FencedRun`] if the run was taken over.
pub fn complete(
    record: LedgerRecord,
    epoch: u64,
    reply: StoredReply,
    resource: Option<String>,
    now: Moment,
) -> Result<LedgerRecord, FencedRun> {
    let record = own(record, epoch)?;
    let resource = resource.or(record.resource);
    Ok(LedgerRecord { phase: RecordPhase::Completed { reply, at: now }, resource, ..record })
}

/// Ends the run without effect, or as repeatable: the next request runs it again.
///
/// # Errors
/// [`FencedRun`] if the run was taken over.
pub fn fail(
    record: LedgerRecord,
    epoch: u64,
    not_before: Option<Moment>,
    now: Moment,
) -> Result<LedgerRecord, FencedRun> {
    let record = own(record, epoch)?;
    Ok(LedgerRecord { phase: RecordPhase::Retriable { not_before, since: now }, ..record })
}

/// Marks the outcome as unknown. The epoch stays, so that a late report of the run still counts.
///
/// # Errors
/// [`FencedRun`] if the run was taken over.
pub fn hold(record: LedgerRecord, epoch: u64, now: Moment) -> Result<LedgerRecord, FencedRun> {
    let record = own(record, epoch)?;
    Ok(LedgerRecord { phase: RecordPhase::Unknown { since: now }, ..record })
}

/// Ends a run that certainly had no effect, as if the request had never arrived. `None` means: delete the
/// record. A record with an earlier run stays as retriable, because the earlier run may have had its effect.
///
/// # Errors
/// [`FencedRun`] if the run was taken over.
pub fn release(record: LedgerRecord, epoch: u64, now: Moment) -> Result<Option<LedgerRecord>, FencedRun> {
    let record = own(record, epoch)?;
    if record.attempt <= 1 {
        return Ok(None);
    }
    Ok(Some(LedgerRecord { phase: RecordPhase::Retriable { not_before: None, since: now }, ..record }))
}

/// An operator resolves an unknown outcome. The epoch grows, so that a later report of the run is fenced off.
///
/// # Errors
/// [`FencedRun`] if the outcome is not unknown.
pub fn resolve(record: LedgerRecord, resolution: Resolution, now: Moment) -> Result<LedgerRecord, FencedRun> {
    if !matches!(record.phase, RecordPhase::Unknown { .. }) {
        return Err(FencedRun(Box::new(record)));
    }
    let phase = match resolution {
        Resolution::Completed(reply) => RecordPhase::Completed { reply, at: now },
        Resolution::Retriable => RecordPhase::Retriable { not_before: None, since: now },
    };
    Ok(LedgerRecord { phase, epoch: record.epoch + 1, ..record })
}

/// The record as of `now`; `None` if it has expired. A record in flight or unknown does not expire.
#[must_use]
pub fn age(record: LedgerRecord, now: Moment) -> Option<LedgerRecord> {
    let (answer, remembered) = (record.retention.answer, record.retention.record());
    let (status, location, ended) = match &record.phase {
        RecordPhase::InFlight { .. } | RecordPhase::Unknown { .. } => return Some(record),
        RecordPhase::Completed { reply, at } if *at + answer <= now => {
            (Some(reply.status), reply.location(), *at)
        }
        RecordPhase::Retriable { since, .. } if *since + answer <= now => (None, None, *since),
        RecordPhase::Completed { .. } | RecordPhase::Retriable { .. } => return Some(record),
        RecordPhase::Tombstone { until, .. } => return (*until > now).then_some(record),
    };
    let until = ended + remembered;
    let phase = RecordPhase::Tombstone { status, location, until };
    (until > now).then_some(LedgerRecord { phase, ..record })
}

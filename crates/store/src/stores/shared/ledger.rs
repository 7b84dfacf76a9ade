//! The ledger's records, as columns.
//!
//! A row has the time at which its record expires (`ends`), so that expiry is a walk along one index. A record that is
//! in flight or unknown has none, and stays.
//!
//! The body of an answer may be large, and only a replay needs it. So it has a checksum of its own, which the row's
//! checksum covers, and listing and expiry check a row without it.

use redrive_core::ledger::{
    LedgerRecord, RecordPhase, RequestFingerprint, RequestScope, Retention, StoredReply,
};

use super::cells::{Cells, Damage};
use super::numbers::{bits, column, from_moment, nanos, signed, to_duration, to_moment};
use super::params::Param;
use super::rows::Sum;

/// The columns of a record, in order.
macro_rules! record_columns {
    () => {
        "tenant, operation, key, version, print, first, epoch, attempt, phase, retention, phase_at, phase_until, status, headers, \
         body_crc, place, resource, ends, crc"
    };
}
pub(in crate::stores) use record_columns;

/// The columns that depend on the phase: two moments, an answer with the checksum of its body, and the resource that
/// was made.
pub(in crate::stores) struct Columns {
    pub(in crate::stores) phase: &'static str,
    pub(in crate::stores) phase_at: Option<i64>,
    pub(in crate::stores) phase_until: Option<i64>,
    pub(in crate::stores) status: Option<i64>,
    pub(in crate::stores) headers: Option<String>,
    pub(in crate::stores) body_crc: Option<i64>,
    pub(in crate::stores) place: Option<String>,
    pub(in crate::stores) ends: Option<i64>,
}

/// The columns of a record.
pub(in crate::stores) fn columns(record: &LedgerRecord) -> Columns {
    let none = |phase: &'static str| Columns {
        phase,
        phase_at: None,
        phase_until: None,
        status: None,
        headers: None,
        body_crc: None,
        place: None,
        ends: None,
    };
    let answer = record.retention.answer;
    match &record.phase {
        RecordPhase::InFlight { began, until } => {
            let (phase_at, phase_until) = (Some(from_moment(*began)), Some(from_moment(*until)));
            Columns { phase_at, phase_until, ..none("in_flight") }
        }
        RecordPhase::Retriable { not_before, since } => Columns {
            phase_at: Some(from_moment(*since)),
            phase_until: not_before.map(from_moment),
            ends: Some(from_moment(*since + answer)),
            ..none("retriable")
        },
        RecordPhase::Unknown { since } => Columns { phase_at: Some(from_moment(*since)), ..none("unknown") },
        RecordPhase::Completed { reply, at } => Columns {
            phase_at: Some(from_moment(*at)),
            status: Some(i64::from(reply.status)),
            // Names and bytes: this does not fail.
            headers: serde_json::to_string(&reply.headers).ok(),
            body_crc: reply.body.as_deref().map(sum_of_body),
            ends: Some(from_moment(*at + answer)),
            ..none("completed")
        },
        RecordPhase::Tombstone { status, location, until } => Columns {
            phase_at: Some(from_moment(*until)),
            status: status.map(i64::from),
            place: location.clone(),
            ends: Some(from_moment(*until)),
            ..none("tombstone")
        },
    }
}

fn sum_of_body(body: &[u8]) -> i64 {
    Sum::new().bytes(body).end()
}

/// The stored body of the answer.
pub(in crate::stores) fn body_of(record: &LedgerRecord) -> Option<&[u8]> {
    match &record.phase {
        RecordPhase::Completed { reply, .. } => reply.body.as_deref(),
        _ => None,
    }
}

/// The key columns of a record, in order.
pub(in crate::stores) const SCOPE_COLUMNS: &str = "tenant, operation, key";

/// All columns of a record that are written, in order: [`record_columns`] and the body.
macro_rules! written_record_columns {
    () => {
        concat!($crate::stores::shared::ledger::record_columns!(), ", body")
    };
}
pub(in crate::stores) use written_record_columns;

/// How many [`written_record_columns`] there are.
const WRITTEN_COLUMNS: usize = 20;

/// The values of [`written_record_columns`].
pub(in crate::stores) fn record_params<'a>(
    scope: &'a RequestScope,
    record: &'a LedgerRecord,
    columns: &'a Columns,
) -> [Param<'a>; WRITTEN_COLUMNS] {
    [
        scope.tenant.as_str().into(),
        scope.operation.as_str().into(),
        scope.key.as_str().into(),
        i64::from(record.print.version).into(),
        record.print.hash.as_slice().into(),
        from_moment(record.first).into(),
        signed(record.epoch).into(),
        i64::from(record.attempt).into(),
        columns.phase.into(),
        column(nanos(record.retention.answer)).into(),
        columns.phase_at.into(),
        columns.phase_until.into(),
        columns.status.into(),
        columns.headers.as_deref().into(),
        columns.body_crc.into(),
        columns.place.as_deref().into(),
        record.resource.as_deref().into(),
        columns.ends.into(),
        record_sum(scope, record, columns).into(),
        body_of(record).into(),
    ]
}

/// The checksum of a record.
pub(in crate::stores) fn record_sum(scope: &RequestScope, record: &LedgerRecord, columns: &Columns) -> i64 {
    let Columns { phase, phase_at, phase_until, status, headers, body_crc, place, ends } = columns;
    Sum::new()
        .text(&scope.tenant)
        .text(&scope.operation)
        .text(&scope.key)
        .number(i64::from(record.print.version))
        .bytes(&record.print.hash)
        .number(from_moment(record.first))
        .number(signed(record.epoch))
        .number(i64::from(record.attempt))
        .text(phase)
        .number(column(nanos(record.retention.answer)))
        .maybe_number(*phase_at)
        .maybe_number(*phase_until)
        .maybe_number(*status)
        .maybe(headers.as_deref().map(str::as_bytes))
        .maybe_number(*body_crc)
        .maybe(place.as_deref().map(str::as_bytes))
        .maybe(record.resource.as_deref().map(str::as_bytes))
        .maybe_number(*ends)
        .end()
}

/// Reads a row of [`record_columns`] and its body behind them.
pub(in crate::stores) fn whole(row: &impl Cells) -> Result<(RequestScope, LedgerRecord), Damage> {
    let (scope, mut record) = without_body(row)?;
    let body = row.maybe_bytes(19)?;
    if body.as_deref().map(sum_of_body) != row.maybe_number(14)? {
        return Err(Damage);
    }
    if let RecordPhase::Completed { reply, .. } = &mut record.phase {
        reply.body = body;
    }
    Ok((scope, record))
}

/// Reads a row of [`record_columns`], with an empty body if it has one. Must not be written back as it is.
pub(in crate::stores) fn without_body(row: &impl Cells) -> Result<(RequestScope, LedgerRecord), Damage> {
    let moment = |at: usize| row.number(at).map(to_moment);
    let maybe = |at: usize| row.maybe_number(at).map(|number| number.map(to_moment));
    let status = || row.maybe_number(12)?.map(|status| u16::try_from(status).map_err(|_| Damage)).transpose();
    let small = |at: usize| row.number(at).and_then(|number| u32::try_from(number).map_err(|_| Damage));
    let word = row.text(8)?;
    let phase = match RecordPhase::WORDS.into_iter().find(|phase| *phase == word).ok_or(Damage)? {
        "in_flight" => RecordPhase::InFlight { began: moment(10)?, until: moment(11)? },
        "retriable" => RecordPhase::Retriable { since: moment(10)?, not_before: maybe(11)? },
        "unknown" => RecordPhase::Unknown { since: moment(10)? },
        "completed" => {
            let headers = serde_json::from_str(&row.text(13)?).map_err(|_| Damage)?;
            let status = status()?.ok_or(Damage)?;
            let body = row.maybe_number(14)?.map(|_| Vec::new());
            RecordPhase::Completed { reply: StoredReply { status, headers, body }, at: moment(10)? }
        }
        _ => RecordPhase::Tombstone { status: status()?, location: row.maybe_text(15)?, until: moment(10)? },
    };
    let record = LedgerRecord {
        print: RequestFingerprint {
            version: u8::try_from(row.number(3)?).map_err(|_| Damage)?,
            hash: row.hash(4)?,
        },
        first: moment(5)?,
        epoch: bits(row.number(6)?),
        attempt: small(7)?,
        phase,
        retention: Retention { answer: to_duration(row.number(9)?) },
        resource: row.maybe_text(16)?,
    };
    let scope = RequestScope { tenant: row.text(0)?, operation: row.text(1)?, key: row.text(2)? };
    let stored = Columns { body_crc: row.maybe_number(14)?, ends: row.maybe_number(17)?, ..columns(&record) };
    if record_sum(&scope, &record, &stored) == row.number(18)? { Ok((scope, record)) } else { Err(Damage) }
}

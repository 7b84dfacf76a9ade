//! The ledger's records, as columns.
//!
//! A row has when time will change it (`ends`), so that forgetting is a walk along one index. What is in flight or
//! unknown has none, and stays.
//!
//! The body of an answer may be large, and only who is to give the answer again needs it. So it has a sum of its own,
//! which the row's sum covers, and listing and forgetting check a row without it.

use redrive_core::ledger::{Phase, Print, Record, Reply, Retention, Scope};

use super::cells::{Cells, Damage};
use super::numbers::{bits, column, from_moment, nanos, signed, to_duration, to_moment};
use super::rows::Sum;

/// The columns of a record, in order.
macro_rules! record_columns {
    () => {
        "tenant, operation, key, version, print, first, epoch, attempt, phase, retention, one, two, status, headers, \
         body_crc, place, resource, ends, crc"
    };
}
pub(in crate::stores) use record_columns;

/// What a row has beside what every record has: two moments, an answer with the sum of its body, and where what
/// was made is.
pub(in crate::stores) struct Columns {
    pub(in crate::stores) phase: &'static str,
    pub(in crate::stores) one: Option<i64>,
    pub(in crate::stores) two: Option<i64>,
    pub(in crate::stores) status: Option<i64>,
    pub(in crate::stores) headers: Option<String>,
    pub(in crate::stores) body_crc: Option<i64>,
    pub(in crate::stores) place: Option<String>,
    pub(in crate::stores) ends: Option<i64>,
}

/// The columns of a record.
pub(in crate::stores) fn columns(record: &Record) -> Columns {
    let none = |phase: &'static str| Columns {
        phase,
        one: None,
        two: None,
        status: None,
        headers: None,
        body_crc: None,
        place: None,
        ends: None,
    };
    let answer = record.retention.answer;
    match &record.phase {
        Phase::InFlight { began, until } => {
            let (one, two) = (Some(from_moment(*began)), Some(from_moment(*until)));
            Columns { one, two, ..none("in_flight") }
        }
        Phase::Retriable { not_before, since } => Columns {
            one: Some(from_moment(*since)),
            two: not_before.map(from_moment),
            ends: Some(from_moment(*since + answer)),
            ..none("retriable")
        },
        Phase::Unknown { since } => Columns { one: Some(from_moment(*since)), ..none("unknown") },
        Phase::Completed { reply, at } => Columns {
            one: Some(from_moment(*at)),
            status: Some(i64::from(reply.status)),
            // Names and bytes: this does not fail.
            headers: serde_json::to_string(&reply.headers).ok(),
            body_crc: reply.body.as_deref().map(sum_of_body),
            ends: Some(from_moment(*at + answer)),
            ..none("completed")
        },
        Phase::Tombstone { status, location, until } => Columns {
            one: Some(from_moment(*until)),
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

/// The body of the answer that is kept.
pub(in crate::stores) fn body_of(record: &Record) -> Option<&[u8]> {
    match &record.phase {
        Phase::Completed { reply, .. } => reply.body.as_deref(),
        _ => None,
    }
}

/// The checksum of a record.
pub(in crate::stores) fn record_sum(scope: &Scope, record: &Record, columns: &Columns) -> i64 {
    let Columns { phase, one, two, status, headers, body_crc, place, ends } = columns;
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
        .maybe_number(*one)
        .maybe_number(*two)
        .maybe_number(*status)
        .maybe(headers.as_deref().map(str::as_bytes))
        .maybe_number(*body_crc)
        .maybe(place.as_deref().map(str::as_bytes))
        .maybe(record.resource.as_deref().map(str::as_bytes))
        .maybe_number(*ends)
        .end()
}

/// Reads a row of [`record_columns`] and its body behind them.
pub(in crate::stores) fn whole(row: &impl Cells) -> Result<(Scope, Record), Damage> {
    let (scope, mut record) = without_body(row)?;
    let body = row.maybe_bytes(19)?;
    if body.as_deref().map(sum_of_body) != row.maybe_number(14)? {
        return Err(Damage);
    }
    if let Phase::Completed { reply, .. } = &mut record.phase {
        reply.body = body;
    }
    Ok((scope, record))
}

/// Reads a row of [`record_columns`], with an empty body where it has one. Not to be written back as it is.
pub(in crate::stores) fn without_body(row: &impl Cells) -> Result<(Scope, Record), Damage> {
    let moment = |at: usize| row.number(at).map(to_moment);
    let maybe = |at: usize| row.maybe_number(at).map(|number| number.map(to_moment));
    let status = || row.maybe_number(12)?.map(|status| u16::try_from(status).map_err(|_| Damage)).transpose();
    let small = |at: usize| row.number(at).and_then(|number| u32::try_from(number).map_err(|_| Damage));
    let word = row.text(8)?;
    let phase = match Phase::WORDS.into_iter().find(|phase| *phase == word).ok_or(Damage)? {
        "in_flight" => Phase::InFlight { began: moment(10)?, until: moment(11)? },
        "retriable" => Phase::Retriable { since: moment(10)?, not_before: maybe(11)? },
        "unknown" => Phase::Unknown { since: moment(10)? },
        "completed" => {
            let headers = serde_json::from_str(&row.text(13)?).map_err(|_| Damage)?;
            let status = status()?.ok_or(Damage)?;
            let body = row.maybe_number(14)?.map(|_| Vec::new());
            Phase::Completed { reply: Reply { status, headers, body }, at: moment(10)? }
        }
        _ => Phase::Tombstone { status: status()?, location: row.maybe_text(15)?, until: moment(10)? },
    };
    let record = Record {
        print: Print { version: u8::try_from(row.number(3)?).map_err(|_| Damage)?, hash: row.hash(4)? },
        first: moment(5)?,
        epoch: bits(row.number(6)?),
        attempt: small(7)?,
        phase,
        retention: Retention { answer: to_duration(row.number(9)?) },
        resource: row.maybe_text(16)?,
    };
    let scope = Scope { tenant: row.text(0)?, operation: row.text(1)?, key: row.text(2)? };
    let stored = Columns { body_crc: row.maybe_number(14)?, ends: row.maybe_number(17)?, ..columns(&record) };
    if record_sum(&scope, &record, &stored) == row.number(18)? { Ok((scope, record)) } else { Err(Damage) }
}

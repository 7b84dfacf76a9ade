//! The ledger's records, as rows of `redrive_request`.
//!
//! A row has when time will change it (`ends`), so that forgetting is a walk along one index. What is in flight or
//! unknown has none, and stays.

use redrive_core::Moment;
use redrive_core::ledger::{
    self, Ask, Claim, Fenced, Phase, Print, Record, Renewed, Reply, Resolution, Retention,
};
use redrive_core::ledger::{Scope, age};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;

use super::Sqlite;
use super::desk::Desk;
use super::faults::{Fault, Step};
use super::numbers::{bits, column, from_moment, nanos, signed, to_duration, to_moment};
use super::rows::{Damage, Sum};
use crate::error::StoreError;
use crate::ledger::{End, Ledger, Recorded, Records, ended, kept, resolved};
use crate::operate::Refusal;
use crate::store::Answer;

/// How many records are looked at for a page.
const LOOKED_MAX: usize = 10_000;

/// How many records are aged in a call.
const AGED_MAX: i64 = 1000;

macro_rules! record_columns {
    () => {
        "tenant, operation, key, version, print, first, epoch, attempt, phase, retention, one, two, status, headers, \
         body, place, resource, ends, crc"
    };
}

impl Ledger for Sqlite {
    fn claim(&self, scope: Scope, ask: Ask, at: Moment) -> Answer<Claim> {
        self.write(256, 1, move |desk| {
            let record = read(&desk.conn, &scope)?;
            let claim = ledger::claim(record.as_ref(), &ask, at);
            if let Some(record) = kept(&claim) {
                desk.disk.check()?;
                write(&desk.conn, &scope, record)?;
            }
            Ok(claim)
        })
    }

    fn renew(
        &self,
        scope: Scope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
        at: Moment,
    ) -> Answer<Result<Renewed, Option<Fenced>>> {
        self.write(0, 1, move |desk| {
            let Some(record) = read(&desk.conn, &scope)? else { return Ok(Err(None)) };
            let renewed = ledger::renew(record, epoch, lease, run_max, at);
            if let Ok(Renewed::On(record)) = &renewed {
                write(&desk.conn, &scope, record)?;
            }
            Ok(renewed.map_err(Some))
        })
    }

    fn end(&self, scope: Scope, epoch: u64, end: End, at: Moment) -> Answer<Result<(), Option<Fenced>>> {
        let bytes = match &end {
            End::Completed { reply, .. } => reply.body.as_ref().map_or(0, Vec::len) + 512,
            _ => 0,
        };
        self.write(bytes, 1, move |desk| desk.end_request(&scope, epoch, end.clone(), at))
    }

    fn record(&self, scope: Scope, at: Moment) -> Answer<Option<Record>> {
        self.look(move |eye| Ok(read(&eye.conn, &scope)?.and_then(|record| age(record, at))))
    }

    fn records(&self, records: Records, at: Moment) -> Answer<Recorded> {
        self.look(move |eye| list(&eye.conn, &records, at))
    }

    fn unknown(&self) -> Answer<Vec<(String, u64)>> {
        self.look(move |eye| {
            let mut select = eye.conn.prepare_cached(
                "SELECT operation, count(*) FROM redrive_request WHERE phase = 'unknown' \
                 GROUP BY operation ORDER BY operation",
            )?;
            let counts = select.query_map([], |row| Ok((row.get(0)?, bits(row.get(1)?))))?;
            Ok(counts.collect::<Result<_, _>>()?)
        })
    }
}

impl Desk {
    /// Does what a person says of an unknown outcome.
    pub(super) fn resolve(
        &self,
        scope: &Scope,
        resolution: &Resolution,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        Ok(match resolved(read(&self.conn, scope)?, resolution.clone(), at) {
            Ok(record) => Ok(write(&self.conn, scope, &record)?),
            Err(refusal) => Err(refusal),
        })
    }

    /// Ends a run, under its fence.
    pub(super) fn end_request(
        &self,
        scope: &Scope,
        epoch: u64,
        end: End,
        at: Moment,
    ) -> Step<Result<(), Option<Fenced>>> {
        let Some(record) = read(&self.conn, scope)? else { return Ok(Err(None)) };
        match ended(record, epoch, end, at) {
            Ok(Some(record)) => write(&self.conn, scope, &record)?,
            Ok(None) => take_away(&self.conn, scope)?,
            Err(fenced) => return Ok(Err(Some(fenced))),
        }
        Ok(Ok(()))
    }

    /// Has time do its work on some of the records.
    pub(super) fn forget_records(&self, now: Moment) -> Step<usize> {
        let due: Vec<Scope> = self
            .conn
            .prepare_cached(
                "SELECT tenant, operation, key FROM redrive_request WHERE ends <= ?1 ORDER BY ends LIMIT ?2",
            )?
            .query_map(params![from_moment(now), AGED_MAX], scope_of)?
            .collect::<Result<_, _>>()?;
        for scope in &due {
            // One that is damaged stays, and is told to whoever asks for it.
            let Ok(Some(record)) = read(&self.conn, scope) else { continue };
            match age(record, now) {
                Some(record) => write(&self.conn, scope, &record)?,
                None => take_away(&self.conn, scope)?,
            }
        }
        Ok(due.len())
    }
}

fn scope_of(row: &Row<'_>) -> rusqlite::Result<Scope> {
    Ok(Scope { tenant: row.get(0)?, operation: row.get(1)?, key: row.get(2)? })
}

fn read(conn: &Connection, scope: &Scope) -> Step<Option<Record>> {
    let found = conn
        .prepare_cached(concat!(
            "SELECT ",
            record_columns!(),
            " FROM redrive_request WHERE tenant = ?1 AND operation = ?2 AND key = ?3"
        ))?
        .query_row(params![scope.tenant, scope.operation, scope.key], |row| Ok(from_row(row)))
        .optional()?;
    match found {
        None => Ok(None),
        Some(Ok((_, record))) => Ok(Some(record)),
        Some(Err(Damage)) => {
            let row = format!("redrive_request {}/{}/{}", scope.tenant, scope.operation, scope.key);
            Err(Fault::Refused(StoreError::Damaged { row }))
        }
    }
}

fn list(conn: &Connection, records: &Records, at: Moment) -> Step<Recorded> {
    // Each has an index of its own; the rest is left to the filter, because time may have changed what stands here.
    let by = match (&records.resource, records.phase) {
        (Some(_), _) => "resource = ?5",
        (None, Some("unknown")) => "phase = 'unknown'",
        (None, _) => "true",
    };
    let whose = if records.tenant.is_some() { "tenant = ?4" } else { "?4 IS NULL" };
    let after = records.after.clone().unwrap_or(Scope {
        tenant: records.tenant.clone().unwrap_or_default(),
        operation: String::new(),
        key: String::new(),
    });
    let mut select = conn.prepare_cached(&format!(
        "SELECT {} FROM redrive_request WHERE (tenant, operation, key) > (?1, ?2, ?3) AND {whose} \
         AND (?5 IS NULL OR resource = ?5) AND {by} ORDER BY tenant, operation, key",
        record_columns!()
    ))?;
    let mut rows =
        select.query(params![after.tenant, after.operation, after.key, records.tenant, records.resource])?;
    let (mut page, mut looked, mut last) = (Recorded::default(), 0, None);
    while let Some(row) = rows.next()? {
        if page.records.len() == records.limit() || looked == LOOKED_MAX {
            page.next = last;
            break;
        }
        looked += 1;
        last = Some(scope_of(row)?);
        let Ok((scope, record)) = from_row(row) else { continue };
        let Some(record) = age(record, at) else { continue };
        if records.means(&scope, &record) {
            page.records.push((scope, record));
        }
    }
    Ok(page)
}

/// Looks at all of them, and names those that are damaged, by their place: what is in a damaged row may be anything.
pub(super) fn check_all(conn: &Connection, mut damaged: impl FnMut(i64)) -> rusqlite::Result<()> {
    let mut select = conn.prepare(concat!("SELECT ", record_columns!(), ", rowid FROM redrive_request"))?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        if from_row(row).is_err() {
            damaged(row.get(19)?);
        }
    }
    Ok(())
}

fn take_away(conn: &Connection, scope: &Scope) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM redrive_request WHERE tenant = ?1 AND operation = ?2 AND key = ?3")?
        .execute(params![scope.tenant, scope.operation, scope.key])
        .map(drop)
}

/// What a row has beside what every record has: two moments, an answer, and where what was made is.
struct Columns {
    phase: &'static str,
    one: Option<i64>,
    two: Option<i64>,
    status: Option<i64>,
    headers: Option<String>,
    body: Option<Vec<u8>>,
    place: Option<String>,
    ends: Option<i64>,
}

fn columns(record: &Record) -> Columns {
    let none = |phase: &'static str| Columns {
        phase,
        one: None,
        two: None,
        status: None,
        headers: None,
        body: None,
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
            body: reply.body.clone(),
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

fn sum(scope: &Scope, record: &Record, columns: &Columns) -> i64 {
    let Columns { phase, one, two, status, headers, body, place, ends } = columns;
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
        .maybe(body.as_deref())
        .maybe(place.as_deref().map(str::as_bytes))
        .maybe(record.resource.as_deref().map(str::as_bytes))
        .maybe_number(*ends)
        .end()
}

fn write(conn: &Connection, scope: &Scope, record: &Record) -> rusqlite::Result<()> {
    let columns = columns(record);
    let crc = sum(scope, record, &columns);
    let Columns { phase, one, two, status, headers, body, place, ends } = columns;
    conn.prepare_cached(concat!(
        "INSERT INTO redrive_request (",
        record_columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19) \
         ON CONFLICT (tenant, operation, key) DO UPDATE SET version = ?4, print = ?5, first = ?6, epoch = ?7, \
         attempt = ?8, phase = ?9, retention = ?10, one = ?11, two = ?12, status = ?13, headers = ?14, body = ?15, \
         place = ?16, resource = ?17, ends = ?18, crc = ?19"
    ))?
    .execute(params![
        scope.tenant,
        scope.operation,
        scope.key,
        record.print.version,
        record.print.hash.as_slice(),
        from_moment(record.first),
        signed(record.epoch),
        record.attempt,
        phase,
        column(nanos(record.retention.answer)),
        one,
        two,
        status,
        headers,
        body,
        place,
        record.resource,
        ends,
        crc
    ])
    .map(drop)
}

fn from_row(row: &Row<'_>) -> Result<(Scope, Record), Damage> {
    let (scope, record, crc) = unchecked(row).map_err(|_| Damage)?;
    if sum(&scope, &record, &columns(&record)) == crc { Ok((scope, record)) } else { Err(Damage) }
}

fn unchecked(row: &Row<'_>) -> rusqlite::Result<(Scope, Record, i64)> {
    let wrong = |at: usize, what: &'static str| {
        rusqlite::Error::FromSqlConversionFailure(at, Type::Text, what.into())
    };
    let moment = |at: usize| row.get::<_, i64>(at).map(to_moment);
    let maybe = |at: usize| row.get::<_, Option<i64>>(at).map(|number| number.map(to_moment));
    let word: String = row.get(8)?;
    let status = |at: usize| row.get::<_, Option<u16>>(at);
    let phase = match Phase::WORDS
        .into_iter()
        .find(|phase| *phase == word)
        .ok_or_else(|| wrong(8, "no such phase"))?
    {
        "in_flight" => Phase::InFlight { began: moment(10)?, until: moment(11)? },
        "retriable" => Phase::Retriable { since: moment(10)?, not_before: maybe(11)? },
        "unknown" => Phase::Unknown { since: moment(10)? },
        "completed" => {
            let headers: String = row.get(13)?;
            let headers = serde_json::from_str(&headers).map_err(|_| wrong(13, "no headers"))?;
            let status = status(12)?.ok_or_else(|| wrong(12, "no status"))?;
            Phase::Completed { reply: Reply { status, headers, body: row.get(14)? }, at: moment(10)? }
        }
        _ => Phase::Tombstone { status: status(12)?, location: row.get(15)?, until: moment(10)? },
    };
    let record = Record {
        print: Print { version: row.get(3)?, hash: row.get(4)? },
        first: moment(5)?,
        epoch: bits(row.get(6)?),
        attempt: row.get(7)?,
        phase,
        retention: Retention { answer: row.get(9).map(to_duration)? },
        resource: row.get(16)?,
    };
    Ok((scope_of(row)?, record, row.get(18)?))
}

//! The ledger's records, as rows of `redrive_request`.
//!
//! A row has when time will change it (`ends`), so that forgetting is a walk along one index. What is in flight or
//! unknown has none, and stays.
//!
//! The body of an answer may be large, and only who is to give the answer again needs it. So it has a sum of its own,
//! which the row's sum covers, and listing and forgetting check a row without it.

use redrive_core::Moment;
use redrive_core::ledger::{self, Ask, Claim, Fenced, Record, Renewed, Resolution, Scope, age};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;

use super::Sqlite;
use super::desk::Desk;
use super::faults::{Fault, Step};
use super::forget::{FORGOTTEN_MAX, LOOKED_AT_MAX, REQUESTS};
use super::numbers::{bits, column, from_moment, nanos, signed};
use super::rows::Damage;
use crate::error::StoreError;
use crate::ledger::{End, Ledger, Recorded, Records, ended, kept, resolved};
use crate::operate::Refusal;
use crate::store::Answer;
use crate::stores::shared::record::{
    Columns, body_of, columns, record_columns, record_sum, whole, without_body,
};

/// How many records are looked at for a page.
const LOOKED_MAX: usize = 10_000;

/// How many bytes of bodies are let go of in a call: their pages are walked through, in the one transaction that
/// everybody who writes waits for.
const AGED_BYTES_MAX: i64 = 16 * 1024 * 1024;

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

    /// Has time do its work on some of the records, and says on how many.
    pub(super) fn forget_records(&mut self, now: Moment) -> Step<usize> {
        let from_start = self.cursor.request == REQUESTS;
        let (mut ends, mut place) = self.cursor.request;
        let (mut due, mut looked_at, mut bytes) = (Vec::new(), 0, 0);
        {
            let mut select = self.conn.prepare_cached(concat!(
                "SELECT ",
                record_columns!(),
                ", rowid, length(body) FROM redrive_request WHERE ends <= ?1 AND (ends, rowid) > (?2, ?3) \
                 ORDER BY ends, rowid LIMIT ?4"
            ))?;
            let mut rows = select.query(params![from_moment(now), ends, place, LOOKED_AT_MAX])?;
            while due.len() < FORGOTTEN_MAX && bytes < AGED_BYTES_MAX {
                let Some(row) = rows.next()? else { break };
                looked_at += 1;
                (ends, place) = (row.get(17)?, row.get(19)?);
                // One that is damaged stays, is told to whoever asks for it, and holds up no other.
                let Ok((scope, record)) = without_body(row) else { continue };
                let aged = age(record.clone(), now);
                if aged.as_ref() != Some(&record) {
                    bytes += row.get::<_, Option<i64>>(20)?.unwrap_or_default();
                    due.push((scope, aged));
                }
            }
        }
        for (scope, aged) in &due {
            match aged {
                Some(record) => write(&self.conn, scope, record)?,
                None => take_away(&self.conn, scope)?,
            }
        }
        let at_end = looked_at < LOOKED_AT_MAX && due.len() < FORGOTTEN_MAX && bytes < AGED_BYTES_MAX;
        self.cursor.request = if at_end { REQUESTS } else { (ends, place) };
        // The end came before anything was found: what there is may be before the place where the walk began.
        if at_end && due.is_empty() && !from_start { self.forget_records(now) } else { Ok(due.len()) }
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
            ", body FROM redrive_request WHERE tenant = ?1 AND operation = ?2 AND key = ?3"
        ))?
        .query_row(params![scope.tenant, scope.operation, scope.key], |row| Ok(whole(row)))
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
        let Ok((scope, record)) = without_body(row) else { continue };
        let Some(record) = age(record, at) else { continue };
        if records.means(&scope, &record) {
            page.records.push((scope, record));
        }
    }
    Ok(page)
}

/// Looks at all of them, and names those that are damaged, by their place: what is in a damaged row may be anything.
pub(super) fn check_all(conn: &Connection, mut damaged: impl FnMut(i64)) -> rusqlite::Result<()> {
    let columns = concat!("SELECT ", record_columns!(), ", body, rowid FROM redrive_request");
    let mut select = conn.prepare(columns)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        if whole(row).is_err() {
            damaged(row.get(20)?);
        }
    }
    Ok(())
}

fn take_away(conn: &Connection, scope: &Scope) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM redrive_request WHERE tenant = ?1 AND operation = ?2 AND key = ?3")?
        .execute(params![scope.tenant, scope.operation, scope.key])
        .map(drop)
}

fn write(conn: &Connection, scope: &Scope, record: &Record) -> rusqlite::Result<()> {
    let columns = columns(record);
    let crc = record_sum(scope, record, &columns);
    let Columns { phase, one, two, status, headers, body_crc, place, ends } = columns;
    conn.prepare_cached(concat!(
        "INSERT INTO redrive_request (",
        record_columns!(),
        ", body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20) \
         ON CONFLICT (tenant, operation, key) DO UPDATE SET version = ?4, print = ?5, first = ?6, epoch = ?7, \
         attempt = ?8, phase = ?9, retention = ?10, one = ?11, two = ?12, status = ?13, headers = ?14, \
         body_crc = ?15, place = ?16, resource = ?17, ends = ?18, crc = ?19, body = ?20"
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
        body_crc,
        place,
        record.resource,
        ends,
        crc,
        body_of(record)
    ])
    .map(drop)
}

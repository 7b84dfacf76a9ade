//! The ledger's records, as rows of `redrive_request`.
//!
//! A row has the time at which its record expires (`ends`), so that expiry is a walk along one index. A record that is
//! in flight or unknown has none, and stays.
//!
//! The body of an answer may be large, and only a replay needs it. So it has a checksum of its own, which the row's
//! checksum covers, and listing and expiry check a row without it.

use std::sync::LazyLock;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{
    self, ClaimRequest, FencedRun, LedgerClaim, LedgerRecord, RenewResult, RequestScope, Resolution, age,
};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::Sqlite;
use super::events::fresh::Damage;
use super::faults::{Fault, Step};
use super::forget::{LOOKED_AT_MAX, REQUESTS};
use super::writer::tx::WriterTx;
use crate::error::StoreError;
use crate::ledger::{LedgerPage, LedgerQuery, LedgerStore, RunEnding, UnknownCount, ended, kept, resolved};
use crate::operate::Refusal;
use crate::store::StoreFuture;
use crate::stores::rows::retention::FORGOTTEN_MAX;
use crate::stores::shared::ledger::{
    SCOPE_COLUMNS, columns, record_columns, record_params, whole, without_body, written_record_columns,
};
use crate::stores::shared::numbers::{bits, from_moment};
use crate::stores::shared::params::{assignments, behind_key, placeholders};

/// How many records are read for a page.
const LOOKED_MAX: usize = 10_000;

/// How many bytes of bodies one call deletes: it walks through their pages, in the one transaction that all writes wait
/// for.
const AGED_BYTES_MAX: i64 = 16 * 1024 * 1024;

impl LedgerStore for Sqlite {
    fn claim(&self, scope: RequestScope, ask: ClaimRequest, at: Moment) -> StoreFuture<LedgerClaim> {
        self.write(256, 1, move |tx| {
            let record = read(&tx.conn, &scope)?;
            let claim = ledger::claim(record.as_ref(), &ask, at);
            if let Some(record) = kept(&claim) {
                tx.disk.check()?;
                write(&tx.conn, &scope, record)?;
            }
            Ok(claim)
        })
    }

    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
        at: Moment,
    ) -> StoreFuture<Result<RenewResult, Option<FencedRun>>> {
        self.write(0, 1, move |tx| {
            let Some(record) = read(&tx.conn, &scope)? else { return Ok(Err(None)) };
            let renewed = ledger::renew(record, epoch, lease, run_max, at);
            if let Ok(RenewResult::On(record)) = &renewed {
                write(&tx.conn, &scope, record)?;
            }
            Ok(renewed.map_err(Some))
        })
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
        at: Moment,
    ) -> StoreFuture<Result<(), Option<FencedRun>>> {
        let bytes = match &end {
            RunEnding::Completed { reply, .. } => reply.body.as_ref().map_or(0, Vec::len) + 512,
            _ => 0,
        };
        self.write(bytes, 1, move |tx| tx.end_request(&scope, epoch, end.clone(), at))
    }

    fn record(&self, scope: RequestScope, at: Moment) -> StoreFuture<Option<LedgerRecord>> {
        self.look(move |reader| Ok(read(&reader.conn, &scope)?.and_then(|record| age(record, at))))
    }

    fn records(&self, records: LedgerQuery, at: Moment) -> StoreFuture<LedgerPage> {
        self.look(move |reader| list(&reader.conn, &records, at))
    }

    fn unknown(&self) -> StoreFuture<Vec<UnknownCount>> {
        self.look(move |reader| {
            let mut select = reader.conn.prepare_cached(
                "SELECT tenant, operation, count(*) FROM redrive_request WHERE phase = 'unknown' \
                 GROUP BY tenant, operation ORDER BY tenant, operation",
            )?;
            let counts = select.query_map([], |row| {
                Ok(UnknownCount { tenant: row.get(0)?, operation: row.get(1)?, count: bits(row.get(2)?) })
            })?;
            Ok(counts.collect::<Result<_, _>>()?)
        })
    }
}

impl WriterTx {
    /// Carries out an operator's resolution of an unknown outcome.
    pub(super) fn resolve(
        &self,
        scope: &RequestScope,
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
        scope: &RequestScope,
        epoch: u64,
        end: RunEnding,
        at: Moment,
    ) -> Step<Result<(), Option<FencedRun>>> {
        let Some(record) = read(&self.conn, scope)? else { return Ok(Err(None)) };
        match ended(record, epoch, end, at) {
            Ok(Some(record)) => write(&self.conn, scope, &record)?,
            Ok(None) => take_away(&self.conn, scope)?,
            Err(fenced) => return Ok(Err(Some(fenced))),
        }
        Ok(Ok(()))
    }

    /// Applies the passage of time to some of the records, and returns to how many.
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
                // A damaged record stays, and does not stop the others; a caller that asks for it learns of the damage.
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
        // The walk reached the end and found nothing: there may be expired rows before the position where it began.
        if at_end && due.is_empty() && !from_start { self.forget_records(now) } else { Ok(due.len()) }
    }
}

fn scope_of(row: &Row<'_>) -> rusqlite::Result<RequestScope> {
    Ok(RequestScope { tenant: row.get(0)?, operation: row.get(1)?, key: row.get(2)? })
}

fn read(conn: &Connection, scope: &RequestScope) -> Step<Option<LedgerRecord>> {
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

fn list(conn: &Connection, records: &LedgerQuery, at: Moment) -> Step<LedgerPage> {
    // Each has an index of its own; the filter does the rest, because time may have changed the stored record.
    let by = match (&records.resource, records.phase) {
        (Some(_), _) => "resource = ?5",
        (None, Some("unknown")) => "phase = 'unknown'",
        (None, _) => "true",
    };
    let whose = if records.tenant.is_some() { "tenant = ?4" } else { "?4 IS NULL" };
    let after = records.after.clone().unwrap_or(RequestScope {
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
    let (mut page, mut looked, mut last) = (LedgerPage::default(), 0, None);
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

/// Checks all of them, and lists damaged ones by row number: a damaged row may contain anything.
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

fn take_away(conn: &Connection, scope: &RequestScope) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM redrive_request WHERE tenant = ?1 AND operation = ?2 AND key = ?3")?
        .execute(params![scope.tenant, scope.operation, scope.key])
        .map(drop)
}

fn write(conn: &Connection, scope: &RequestScope, record: &LedgerRecord) -> rusqlite::Result<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        let columns = written_record_columns!();
        let (values, changes) = (placeholders(columns, '?', 1), assignments(behind_key(columns, 3), '?', 4));
        format!(
            "INSERT INTO redrive_request ({columns}) VALUES ({values}) \
             ON CONFLICT ({SCOPE_COLUMNS}) DO UPDATE SET {changes}"
        )
    });
    let columns = columns(record);
    let params = record_params(scope, record, &columns);
    conn.prepare_cached(&SQL)?.execute(params_from_iter(params)).map(drop)
}

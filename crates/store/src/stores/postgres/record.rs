//! The ledger's records, as rows of `request`.
//!
//! What is decided is `core`'s, between the lock on the row and its update. For a request that nobody knows there is no
//! row to lock: the unique index lets one of those who come together insert it, and the others then find it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::Moment;
use redrive_core::ledger::{self, Ask, Claim, Fenced, Record, Renewed, Resolution, Scope, age};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::desk::{DeskAt, maybe, rows, run};
use super::faults::{Fault, Step};
use super::office::{Doing, Office};
use super::once::{Earlier, numbers};
use super::rows::Damage;
use crate::error::StoreError;
use crate::ledger::{End, Ledger, Recorded, Records, ended, kept, resolved};
use crate::operate::Refusal;
use crate::store::Answer;
use crate::stores::shared::numbers::{bits, column, from_moment, nanos, signed};
use crate::stores::shared::record::{
    Columns, body_of, columns, record_columns, record_sum, whole, without_body,
};

/// How often somebody who was not answered asks whether a request was claimed.
const LET_GO_AGAIN: Duration = Duration::from_millis(500);
/// How many records are aged in a call.
const AGED_MAX: i64 = 1000;
/// How many records are looked at for a page.
const LOOKED_MAX: usize = 10_000;
/// How many are fetched at once.
const FETCHED: i64 = 500;

fn scope_of(row: &PgRow) -> sqlx::Result<Scope> {
    Ok(Scope { tenant: row.try_get(0)?, operation: row.try_get(1)?, key: row.try_get(2)? })
}

impl Ledger for Postgres {
    fn claim(&self, scope: Scope, ask: Ask, at: Moment) -> Answer<Claim> {
        let asked = Arc::new((scope, ask));
        let office = Arc::clone(&self.office);
        self.call(async move {
            let claimed = office
                .write_or_leave(|desk| -> Doing<'_, Claim> {
                    let asked = Arc::clone(&asked);
                    Box::pin(async move { desk.claim(&asked.0, &asked.1, at).await })
                })
                .await;
            claimed.map_err(|(error, left)| {
                if !left.is_empty() {
                    tokio::spawn(let_go(Arc::clone(&office), Arc::clone(&asked), left, at));
                }
                error
            })
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
        let scope = Arc::new(scope);
        self.write(move |desk| {
            let scope = Arc::clone(&scope);
            Box::pin(async move {
                let Some(record) = desk.record(&scope).await? else { return Ok(Err(None)) };
                let renewed = ledger::renew(record, epoch, lease, run_max, at);
                if let Ok(Renewed::On(record)) = &renewed {
                    desk.write_record(&scope, record, false).await?;
                }
                Ok(renewed.map_err(Some))
            })
        })
    }

    fn end(&self, scope: Scope, epoch: u64, end: End, at: Moment) -> Answer<Result<(), Option<Fenced>>> {
        let told = Arc::new((scope, end));
        self.write(move |desk| {
            let told = Arc::clone(&told);
            Box::pin(async move { desk.end_request(&told.0, epoch, told.1.clone(), at).await })
        })
    }

    fn record(&self, scope: Scope, at: Moment) -> Answer<Option<Record>> {
        let scope = Arc::new(scope);
        self.look(move |desk| {
            let scope = Arc::clone(&scope);
            Box::pin(async move { Ok(desk.record(&scope).await?.and_then(|record| age(record, at))) })
        })
    }

    fn unknown(&self) -> Answer<Vec<(String, u64)>> {
        self.look(|desk| Box::pin(desk.unknown()))
    }

    fn records(&self, records: Records, at: Moment) -> Answer<Recorded> {
        let records = Arc::new(records);
        self.look(move |desk| {
            let records = Arc::clone(&records);
            Box::pin(async move { desk.list_records(&records, at).await })
        })
    }
}

/// Lets go of a request that was claimed, perhaps, by whoever was told that nobody knows: nothing was run for it, and
/// nobody is to wait until its lease is over.
async fn let_go(office: Arc<Office>, asked: Arc<(Scope, Ask)>, left: Vec<Earlier<Claim>>, at: Moment) {
    let began = Instant::now();
    let claimed = loop {
        if let Ok(found) = office.find_out(&numbers(&left)).await {
            break found.and_then(|at| left.get(at));
        }
        if office.check().is_err() || began.elapsed() > asked.1.lease {
            return;
        }
        tokio::time::sleep(LET_GO_AGAIN).await;
    };
    let Some(Earlier { did: Claim::Run(record) | Claim::Probe(record), .. }) = claimed else { return };
    let epoch = record.epoch;
    let ended = office
        .write(|desk| -> Doing<'_, Result<(), Option<Fenced>>> {
            let asked = Arc::clone(&asked);
            Box::pin(async move { desk.end_request(&asked.0, epoch, End::Nothing, at).await })
        })
        .await;
    // Where it fails, the lease ends it.
    drop(ended);
}

impl DeskAt<'_> {
    async fn claim(&mut self, scope: &Scope, ask: &Ask, at: Moment) -> Step<Claim> {
        loop {
            let record = self.record(scope).await?;
            let claim = ledger::claim(record.as_ref(), ask, at);
            let Some(kept) = kept(&claim) else { return Ok(claim) };
            // Where somebody else was quicker, it is theirs by now, and the answer is another one.
            if self.write_record(scope, kept, record.is_none()).await? {
                return Ok(claim);
            }
        }
    }

    /// Ends a run, under its fence.
    pub(super) async fn end_request(
        &mut self,
        scope: &Scope,
        epoch: u64,
        end: End,
        at: Moment,
    ) -> Step<Result<(), Option<Fenced>>> {
        let Some(record) = self.record(scope).await? else { return Ok(Err(None)) };
        match ended(record, epoch, end, at) {
            Ok(Some(record)) => drop(self.write_record(scope, &record, false).await?),
            Ok(None) => self.take_away(scope).await?,
            Err(fenced) => return Ok(Err(Some(fenced))),
        }
        Ok(Ok(()))
    }

    /// How many outcomes are unknown, by operation.
    async fn unknown(&mut self) -> Step<Vec<(String, u64)>> {
        let found = rows!(
            self,
            "SELECT operation, count(*) FROM redrive.request WHERE phase = 'unknown' GROUP BY operation \
             ORDER BY operation"
        )?;
        let counts = found.iter().map(|row| Ok((row.try_get(0)?, bits(row.try_get(1)?))));
        Ok(counts.collect::<sqlx::Result<_>>()?)
    }

    /// Does what a person says of an unknown outcome.
    pub(super) async fn resolve(
        &mut self,
        scope: &Scope,
        resolution: &Resolution,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        match resolved(self.record(scope).await?, resolution.clone(), at) {
            Ok(record) => {
                self.write_record(scope, &record, false).await?;
                Ok(Ok(()))
            }
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// Has time do its work on some of the records.
    pub(super) async fn forget_records(&mut self, now: Moment) -> Step<usize> {
        let due = rows!(
            self,
            "SELECT tenant, operation, key FROM redrive.request WHERE ends <= $1 ORDER BY ends LIMIT $2 \
             FOR UPDATE SKIP LOCKED",
            from_moment(now),
            AGED_MAX
        )?;
        let due: Vec<Scope> = due.iter().map(scope_of).collect::<sqlx::Result<_>>()?;
        for scope in &due {
            let record = match self.record(scope).await {
                Ok(Some(record)) => record,
                // One that is damaged stays, and is told to whoever asks for it.
                Ok(None) | Err(Fault::Refused(_)) => continue,
                Err(fault) => return Err(fault),
            };
            match age(record, now) {
                Some(record) => drop(self.write_record(scope, &record, false).await?),
                None => self.take_away(scope).await?,
            }
        }
        Ok(due.len())
    }

    async fn record(&mut self, scope: &Scope) -> Step<Option<Record>> {
        let select = if self.writes {
            concat!(
                "SELECT ",
                record_columns!(),
                ", body FROM redrive.request WHERE tenant = $1 AND operation = $2 AND key = $3 FOR UPDATE"
            )
        } else {
            concat!(
                "SELECT ",
                record_columns!(),
                ", body FROM redrive.request WHERE tenant = $1 AND operation = $2 AND key = $3"
            )
        };
        let found = maybe!(self, select, &scope.tenant, &scope.operation, &scope.key)?;
        match found.map(|row| whole(&row)) {
            None => Ok(None),
            Some(Ok((_, record))) => Ok(Some(record)),
            Some(Err(Damage)) => {
                let row = format!("request {}/{}/{}", scope.tenant, scope.operation, scope.key);
                Err(Fault::Refused(StoreError::Damaged { row }))
            }
        }
    }

    async fn list_records(&mut self, records: &Records, at: Moment) -> Step<Recorded> {
        let mut after = records.after.clone().unwrap_or(Scope {
            tenant: records.tenant.clone().unwrap_or_default(),
            operation: String::new(),
            key: String::new(),
        });
        let (mut page, mut looked) = (Recorded::default(), 0);
        loop {
            let found = rows!(
                self,
                concat!(
                    "SELECT ",
                    record_columns!(),
                    " FROM redrive.request WHERE (tenant, operation, key) > ($1, $2, $3) \
                     AND ($4::text IS NULL OR tenant = $4) AND ($5::text IS NULL OR resource = $5) \
                     AND (NOT $6 OR phase = 'unknown') ORDER BY tenant, operation, key LIMIT $7"
                ),
                &after.tenant,
                &after.operation,
                &after.key,
                &records.tenant,
                &records.resource,
                records.phase == Some("unknown"),
                FETCHED
            )?;
            for row in &found {
                if page.records.len() == records.limit() || looked == LOOKED_MAX {
                    page.next = Some(after);
                    return Ok(page);
                }
                looked += 1;
                after = scope_of(row)?;
                let Ok((scope, record)) = without_body(row) else { continue };
                let Some(record) = age(record, at) else { continue };
                if records.means(&scope, &record) {
                    page.records.push((scope, record));
                }
            }
            if column(found.len() as u64) < FETCHED {
                return Ok(page);
            }
        }
    }

    async fn take_away(&mut self, scope: &Scope) -> sqlx::Result<()> {
        let delete = "DELETE FROM redrive.request WHERE tenant = $1 AND operation = $2 AND key = $3";
        run!(self, delete, &scope.tenant, &scope.operation, &scope.key).map(drop)
    }

    /// Writes a record: a new one, which is `false` where there is one already, or over what is locked.
    async fn write_record(&mut self, scope: &Scope, record: &Record, is_new: bool) -> sqlx::Result<bool> {
        let columns = columns(record);
        let crc = record_sum(scope, record, &columns);
        let Columns { phase, one, two, status, headers, body_crc, place, ends } = columns;
        let write = if is_new {
            concat!(
                "INSERT INTO redrive.request (",
                record_columns!(),
                ", body) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20) \
                 ON CONFLICT DO NOTHING"
            )
        } else {
            "UPDATE redrive.request SET version = $4, print = $5, first = $6, epoch = $7, attempt = $8, phase = $9, \
             retention = $10, one = $11, two = $12, status = $13, headers = $14, body_crc = $15, place = $16, \
             resource = $17, ends = $18, crc = $19, body = $20 WHERE tenant = $1 AND operation = $2 AND key = $3"
        };
        let written = run!(
            self,
            write,
            &scope.tenant,
            &scope.operation,
            &scope.key,
            i64::from(record.print.version),
            record.print.hash.as_slice(),
            from_moment(record.first),
            signed(record.epoch),
            i64::from(record.attempt),
            phase,
            column(nanos(record.retention.answer)),
            one,
            two,
            status,
            headers,
            body_crc,
            place,
            &record.resource,
            ends,
            crc,
            body_of(record)
        )?;
        Ok(written == 1)
    }
}

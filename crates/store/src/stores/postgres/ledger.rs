//! The ledger's records, as rows of `request`.
//!
//! `core` decides, between the lock on the row and its update. For an unknown request there is no row to lock: the
//! unique index lets one of several callers insert it, and the others then find it.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redrive_core::Moment;
use redrive_core::ledger::{
    self, ClaimRequest, FencedRun, LedgerClaim, LedgerRecord, RenewResult, RequestScope, Resolution, age,
};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::database::commit_ids::{Earlier, numbers};
use super::database::{Database, TxFuture};
use super::events::fresh::Damage;
use super::events::tracked::bind_all;
use super::faults::{Fault, Step};
use super::tx::{PgTx, maybe, rows, run};
use crate::error::StoreError;
use crate::ledger::{LedgerPage, LedgerQuery, LedgerStore, RunEnding, UnknownCount, ended, kept, resolved};
use crate::operate::Refusal;
use crate::store::StoreFuture;
use crate::stores::shared::ledger::{
    SCOPE_COLUMNS, columns, record_columns, record_params, whole, without_body, written_record_columns,
};
use crate::stores::shared::numbers::{bits, column, from_moment};
use crate::stores::shared::params::{assignments, behind_key, placeholders};

/// How often a caller without an answer checks whether its request was claimed.
const LET_GO_AGAIN: Duration = Duration::from_millis(500);
/// How many records one call ages.
const AGED_MAX: i64 = 1000;
/// How many records are read for a page.
const LOOKED_MAX: usize = 10_000;
/// How many are fetched at once.
const FETCHED: i64 = 500;

fn scope_of(row: &PgRow) -> sqlx::Result<RequestScope> {
    Ok(RequestScope { tenant: row.try_get(0)?, operation: row.try_get(1)?, key: row.try_get(2)? })
}

impl LedgerStore for Postgres {
    fn claim(&self, scope: RequestScope, ask: ClaimRequest, at: Moment) -> StoreFuture<LedgerClaim> {
        let asked = Arc::new((scope, ask));
        let db = Arc::clone(&self.db);
        self.call(async move {
            let claimed = db
                .write_or_leave(|tx| -> TxFuture<'_, LedgerClaim> {
                    let asked = Arc::clone(&asked);
                    Box::pin(async move { tx.claim(&asked.0, &asked.1, at).await })
                })
                .await;
            claimed.map_err(|(error, left)| {
                if !left.is_empty() {
                    tokio::spawn(let_go(Arc::clone(&db), Arc::clone(&asked), left, at));
                }
                error
            })
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
        let scope = Arc::new(scope);
        self.write(move |tx| {
            let scope = Arc::clone(&scope);
            Box::pin(async move {
                let Some(record) = tx.record(&scope).await? else { return Ok(Err(None)) };
                let renewed = ledger::renew(record, epoch, lease, run_max, at);
                if let Ok(RenewResult::On(record)) = &renewed {
                    tx.write_record(&scope, record, false).await?;
                }
                Ok(renewed.map_err(Some))
            })
        })
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
        at: Moment,
    ) -> StoreFuture<Result<(), Option<FencedRun>>> {
        let told = Arc::new((scope, end));
        self.write(move |tx| {
            let told = Arc::clone(&told);
            Box::pin(async move { tx.end_request(&told.0, epoch, told.1.clone(), at).await })
        })
    }

    fn record(&self, scope: RequestScope, at: Moment) -> StoreFuture<Option<LedgerRecord>> {
        let scope = Arc::new(scope);
        self.look(move |tx| {
            let scope = Arc::clone(&scope);
            Box::pin(async move { Ok(tx.record(&scope).await?.and_then(|record| age(record, at))) })
        })
    }

    fn unknown(&self) -> StoreFuture<Vec<UnknownCount>> {
        self.look(|tx| Box::pin(tx.unknown()))
    }

    fn records(&self, records: LedgerQuery, at: Moment) -> StoreFuture<LedgerPage> {
        let records = Arc::new(records);
        self.look(move |tx| {
            let records = Arc::clone(&records);
            Box::pin(async move { tx.list_records(&records, at).await })
        })
    }
}

/// Releases a request that this caller may have claimed, after its claim ended with an unknown outcome: nothing ran
/// for it, and other callers need not wait until its lease runs out.
async fn let_go(
    db: Arc<Database>,
    asked: Arc<(RequestScope, ClaimRequest)>,
    left: Vec<Earlier<LedgerClaim>>,
    at: Moment,
) {
    let began = Instant::now();
    let claimed = loop {
        if let Ok(found) = db.find_out(&numbers(&left)).await {
            break found.and_then(|at| left.get(at));
        }
        if db.check().is_err() || began.elapsed() > asked.1.lease {
            return;
        }
        tokio::time::sleep(LET_GO_AGAIN).await;
    };
    let Some(Earlier { did: LedgerClaim::Run(record) | LedgerClaim::Probe(record), .. }) = claimed else {
        return;
    };
    let epoch = record.epoch;
    let ended = db
        .write(|tx| -> TxFuture<'_, Result<(), Option<FencedRun>>> {
            let asked = Arc::clone(&asked);
            Box::pin(async move { tx.end_request(&asked.0, epoch, RunEnding::Nothing, at).await })
        })
        .await;
    // If it fails, the lease runs out by itself.
    drop(ended);
}

impl PgTx<'_> {
    async fn claim(&mut self, scope: &RequestScope, ask: &ClaimRequest, at: Moment) -> Step<LedgerClaim> {
        loop {
            let record = self.record(scope).await?;
            let claim = ledger::claim(record.as_ref(), ask, at);
            let Some(kept) = kept(&claim) else { return Ok(claim) };
            // If another run came first, it owns the request now, and the answer is another one.
            if self.write_record(scope, kept, record.is_none()).await? {
                return Ok(claim);
            }
        }
    }

    /// Ends a run, under its fence.
    pub(super) async fn end_request(
        &mut self,
        scope: &RequestScope,
        epoch: u64,
        end: RunEnding,
        at: Moment,
    ) -> Step<Result<(), Option<FencedRun>>> {
        let Some(record) = self.record(scope).await? else { return Ok(Err(None)) };
        match ended(record, epoch, end, at) {
            Ok(Some(record)) => drop(self.write_record(scope, &record, false).await?),
            Ok(None) => self.take_away(scope).await?,
            Err(fenced) => return Ok(Err(Some(fenced))),
        }
        Ok(Ok(()))
    }

    /// How many outcomes are unknown, by tenant and operation.
    async fn unknown(&mut self) -> Step<Vec<UnknownCount>> {
        let found = rows!(
            self,
            "SELECT tenant, operation, count(*) FROM redrive.request WHERE phase = 'unknown' \
             GROUP BY tenant, operation ORDER BY tenant, operation"
        )?;
        let counts = found.iter().map(|row| {
            let (tenant, operation) = (row.try_get(0)?, row.try_get(1)?);
            Ok(UnknownCount { tenant, operation, count: bits(row.try_get(2)?) })
        });
        Ok(counts.collect::<sqlx::Result<_>>()?)
    }

    /// Carries out an operator's resolution of an unknown outcome.
    pub(super) async fn resolve(
        &mut self,
        scope: &RequestScope,
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

    /// Applies the passage of time to some of the records.
    pub(super) async fn forget_records(&mut self, now: Moment) -> Step<usize> {
        let due = rows!(
            self,
            "SELECT tenant, operation, key FROM redrive.request WHERE ends <= $1 ORDER BY ends LIMIT $2 \
             FOR UPDATE SKIP LOCKED",
            from_moment(now),
            AGED_MAX
        )?;
        let due: Vec<RequestScope> = due.iter().map(scope_of).collect::<sqlx::Result<_>>()?;
        for scope in &due {
            let record = match self.record(scope).await {
                Ok(Some(record)) => record,
                // A damaged record stays; a caller that asks for it learns of the damage.
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

    async fn record(&mut self, scope: &RequestScope) -> Step<Option<LedgerRecord>> {
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

    async fn list_records(&mut self, records: &LedgerQuery, at: Moment) -> Step<LedgerPage> {
        let mut after = records.after.clone().unwrap_or(RequestScope {
            tenant: records.tenant.clone().unwrap_or_default(),
            operation: String::new(),
            key: String::new(),
        });
        let (mut page, mut looked) = (LedgerPage::default(), 0);
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

    async fn take_away(&mut self, scope: &RequestScope) -> sqlx::Result<()> {
        let delete = "DELETE FROM redrive.request WHERE tenant = $1 AND operation = $2 AND key = $3";
        run!(self, delete, &scope.tenant, &scope.operation, &scope.key).map(drop)
    }

    /// Writes a record: a new one (`false` if it exists), or over the locked one.
    async fn write_record(
        &mut self,
        scope: &RequestScope,
        record: &LedgerRecord,
        is_new: bool,
    ) -> sqlx::Result<bool> {
        static INSERT: LazyLock<String> = LazyLock::new(|| {
            let columns = written_record_columns!();
            let values = placeholders(columns, '$', 1);
            format!("INSERT INTO redrive.request ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING")
        });
        static UPDATE: LazyLock<String> = LazyLock::new(|| {
            let changes = assignments(behind_key(written_record_columns!(), 3), '$', 4);
            format!("UPDATE redrive.request SET {changes} WHERE ({SCOPE_COLUMNS}) = ($1, $2, $3)")
        });
        let columns = columns(record);
        let write = self.sql(if is_new { &INSERT } else { &UPDATE });
        let query = sqlx::query(write).persistent(self.keeps());
        let params = record_params(scope, record, &columns);
        let written = bind_all(query, params).execute(&mut *self.conn).await?.rows_affected();
        Ok(written == 1)
    }
}

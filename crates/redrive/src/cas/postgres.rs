//! A row of the caller's own PostgreSQL database, with a version column.
//!
//! ```no_run
//! use redrive::cas::postgres::{PgVersionedRow, create};
//! use redrive::cas::{Cas, VersionColumn};
//! use redrive::postgres::sqlx::PgPool;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PgPool::connect("postgres://shop@localhost/shop").await?;
//! create(&pool).await?; // `redrive_version` and `redrive_operation`, once
//! let columns = VersionColumn::new("stock", "article", "pieces", "version")?;
//! let mut row = PgVersionedRow::<_, i64>::new(pool, columns, "teapot".to_owned());
//! Cas::new("order-17").change(&mut row, |pieces| pieces - 1).await?;
//! # Ok(())
//! # }
//! ```

use std::fmt::Display;
use std::marker::PhantomData;
use std::time::Duration;

use redrive_core::Fault;
use redrive_core::ladder::cas::{CasPromise, Versions};
use redrive_retry::cas::{CasFailure, CasStored, CasTarget};
use redrive_retry::classify;
use redrive_store::postgres::sqlx;
use sqlx::{AssertSqlSafe, Encode, Executor, PgPool, Postgres, Row, Type};

use super::VersionColumn;

/// The next version: one sequence for the whole database.
const NEXT: &str = "nextval('redrive_version')";

const CREATE: &str = "CREATE SEQUENCE IF NOT EXISTS redrive_version;
CREATE TABLE IF NOT EXISTS redrive_operation (
  target TEXT NOT NULL, id TEXT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (target, id)
)";

/// How many operations one call of [`forget`] deletes at most, so that it holds no lock for long.
const FORGET_MAX: i64 = 10_000;

/// Creates the sequence of versions and the table of operations, where they are missing.
///
/// # Errors
/// If the database refuses it.
pub async fn create(pool: &PgPool) -> sqlx::Result<()> {
    pool.execute(sqlx::raw_sql(CREATE)).await.map(drop)
}

/// Forgets operations that are older than `age`, a bounded number; returns how many. Keep them for longer than any
/// caller repeats one.
///
/// # Errors
/// If the database refuses it.
pub async fn forget(pool: &PgPool, age: Duration) -> sqlx::Result<u64> {
    let old = "DELETE FROM redrive_operation WHERE ctid = ANY(ARRAY(SELECT ctid FROM redrive_operation \
               WHERE at < clock_timestamp() - make_interval(secs => $1) LIMIT $2))";
    let done = sqlx::query(old).bind(age.as_secs_f64()).bind(FORGET_MAX).execute(pool).await?;
    Ok(done.rows_affected())
}

/// One row with a version.
#[derive(Debug, Clone)]
pub struct PgVersionedRow<K, V> {
    pool: PgPool,
    columns: VersionColumn,
    key: K,
    remembers: bool,
    versions: Versions,
    value: PhantomData<fn() -> V>,
}

impl<K, V> PgVersionedRow<K, V>
where
    K: for<'q> Encode<'q, Postgres> + Type<Postgres> + Clone + Display + Send + Sync + 'static,
    V: for<'q> Encode<'q, Postgres> + Type<Postgres> + Clone + Send + Sync + 'static,
{
    /// The row with this key. It remembers operations, and its versions are monotonic.
    #[must_use]
    pub const fn new(pool: PgPool, columns: VersionColumn, key: K) -> Self {
        let (remembers, versions) = (true, Versions::Monotonic);
        Self { pool, columns, key, remembers, versions, value: PhantomData }
    }

    /// Stores with one statement and remembers no operation: a conflict after a lost answer is unknown.
    #[must_use]
    pub const fn forgetting(mut self) -> Self {
        self.remembers = false;
        self
    }

    /// Other writers give versions of their own, which may return.
    #[must_use]
    pub const fn opaque(mut self) -> Self {
        self.versions = Versions::Opaque;
        self
    }

    /// Inserts the row with a version that none had before, not even an earlier row of this key.
    ///
    /// # Errors
    /// If the database refuses it.
    pub async fn insert(&self, value: V) -> sqlx::Result<()> {
        let insert = sqlx::query(AssertSqlSafe(self.columns.insert(NEXT)));
        insert.bind(self.key.clone()).bind(value).execute(&self.pool).await.map(drop)
    }

    async fn update<'e>(
        &self,
        on: impl Executor<'e, Database = Postgres>,
        seen: i64,
        value: &V,
    ) -> sqlx::Result<bool> {
        let update = sqlx::query(AssertSqlSafe(self.columns.store(NEXT)));
        let update = update.bind(value.clone()).bind(self.key.clone()).bind(seen);
        Ok(update.execute(on).await?.rows_affected() == 1)
    }

    /// The operation and the change in one commit. The insert waits for a commit of the same operation whose answer
    /// was lost, and then knows how it ended.
    async fn remembered(&self, seen: i64, value: &V, operation: &str) -> sqlx::Result<CasStored> {
        let mut tx = self.pool.begin().await?;
        let remember = "INSERT INTO redrive_operation (target, id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let target = format!("{}/{}", self.columns.table, self.key);
        let first = sqlx::query(remember).bind(target).bind(operation).execute(&mut *tx).await?;
        if first.rows_affected() == 0 {
            return Ok(CasStored::Already);
        }
        if !self.update(&mut *tx, seen, value).await? {
            return Ok(CasStored::Conflict);
        }
        tx.commit().await?;
        Ok(CasStored::Written)
    }
}

impl<K, V> CasTarget for PgVersionedRow<K, V>
where
    K: for<'q> Encode<'q, Postgres> + Type<Postgres> + Clone + Display + Send + Sync + 'static,
    V: for<'q> Encode<'q, Postgres> + for<'r> sqlx::Decode<'r, Postgres> + Type<Postgres>,
    V: Clone + Send + Sync + 'static,
{
    type Value = V;
    type Version = i64;
    type Error = sqlx::Error;

    fn promise(&self) -> CasPromise {
        CasPromise { versions: self.versions, remembers: self.remembers }
    }

    async fn load(&mut self) -> Result<(V, i64), CasFailure<sqlx::Error>> {
        let load = sqlx::query(AssertSqlSafe(self.columns.load())).bind(self.key.clone());
        let row = load.fetch_one(&self.pool).await.map_err(failure)?;
        let read = || Ok((row.try_get(0)?, row.try_get(1)?));
        read().map_err(failure)
    }

    async fn store(
        &mut self,
        seen: &i64,
        value: &V,
        operation: &str,
    ) -> Result<CasStored, CasFailure<sqlx::Error>> {
        if self.remembers {
            return self.remembered(*seen, value, operation).await.map_err(failure);
        }
        let written = self.update(&self.pool, *seen, value).await.map_err(failure)?;
        Ok(if written { CasStored::Written } else { CasStored::Conflict })
    }
}

fn failure(error: sqlx::Error) -> CasFailure<sqlx::Error> {
    let fault = classify::sqlx(&error).unwrap_or(Fault::permanent());
    CasFailure { error, fault }
}

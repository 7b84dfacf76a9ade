//! The tables, as numbered steps, in a schema of their own.
//!
//! A step is one transaction with its number in it, under an advisory lock: two processes that open at once wait for
//! each other, and a step that was interrupted did not happen. A database with a number that this program does not
//! know is left alone.
//!
//! Statements here are prepared for nobody, so that a pooler may be in between.
//!
//! The SQL of this store names the schema `redrive` everywhere. Where it is called otherwise, [`Schema::sql`] puts the
//! name in its place, once for each statement.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr, SqlStr};

use super::settings::Settings;
use crate::error::StoreError;

/// The number of the last step that this program knows.
pub(super) const KNOWN: i64 = 1;

/// The steps. A step that was released is never changed.
const STEPS: [&str; 1] = [concat!(
    include_str!("schema/1.sql"),
    include_str!("schema/1-publish.sql"),
    include_str!("schema/1-at-once.sql")
)];

/// What the schema is called in all statements here.
const WRITTEN: &str = "redrive.";

/// A schema, by its name.
#[derive(Debug)]
pub(super) struct Schema {
    name: String,
    /// Statements with the name in them; none where the name is the one they are written with.
    known: Option<RwLock<HashMap<&'static str, Arc<str>>>>,
}

impl Schema {
    pub(super) fn new(name: &str) -> Self {
        let is_other = format!("{name}.") != WRITTEN;
        Self { name: name.to_owned(), known: is_other.then(RwLock::default) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A statement, with the name of this schema.
    pub(super) fn sql(&self, written: &'static str) -> SqlStr {
        let Some(known) = &self.known else { return written.into_sql_str() };
        let found = known.read().unwrap_or_else(PoisonError::into_inner).get(written).cloned();
        let named = found.unwrap_or_else(|| {
            let named: Arc<str> = self.named(written).into();
            let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(written).or_insert(named))
        });
        // The name was checked to be letters, digits and `_`.
        AssertSqlSafe(named).into_sql_str()
    }

    fn named(&self, written: &str) -> String {
        written.replace(WRITTEN, &format!("{}.", self.name))
    }

    /// Brings the tables up to date, and gives the number of shards.
    pub(super) async fn migrate(&self, conn: &mut PgConnection, settings: &Settings) -> sqlx::Result<Found> {
        let mut tx = conn.begin().await?;
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 8462017))")
            .persistent(false)
            .bind(format!("redrive {}", self.name))
            .execute(&mut *tx)
            .await?;
        let mut found = self.number(&mut tx).await?;
        if found > KNOWN {
            return Ok(Found::Newer(found));
        }
        if found == 0 {
            sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA IF NOT EXISTS {}", self.name)))
                .execute(&mut *tx)
                .await?;
        }
        while let Some(step) = usize::try_from(found).ok().and_then(|done| STEPS.get(done)) {
            sqlx::raw_sql(AssertSqlSafe(self.named(step))).execute(&mut *tx).await?;
            if found == 0 {
                self.begin(&mut tx, settings).await?;
            }
            found += 1;
            let raise = self.sql("UPDATE redrive.meta SET schema = $1");
            sqlx::query(raise).persistent(false).bind(found).execute(&mut *tx).await?;
        }
        let shards = sqlx::query(self.sql("SELECT shards FROM redrive.meta")).persistent(false);
        let shards = shards.fetch_one(&mut *tx).await?;
        let shards = u32::try_from(shards.try_get::<i64, _>(0)?).unwrap_or(1);
        tx.commit().await?;
        Ok(Found::Current { shards })
    }

    /// The first rows of a new store.
    async fn begin(&self, conn: &mut PgConnection, settings: &Settings) -> sqlx::Result<()> {
        let meta = "INSERT INTO redrive.meta (one, schema, shards, orders) VALUES (1, 0, $1, 0)";
        let shards = i64::from(settings.shards);
        sqlx::query(self.sql(meta)).persistent(false).bind(shards).execute(&mut *conn).await?;
        let begin = "WITH life AS MATERIALIZED (SELECT \
                     ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint AS incarnation) \
                     INSERT INTO redrive.shard (id, incarnation, epoch) \
                     SELECT n, incarnation, 0 FROM life, generate_series(0, $1 - 1) n";
        sqlx::query(self.sql(begin)).persistent(false).bind(shards).execute(&mut *conn).await?;
        Ok(())
    }

    async fn number(&self, conn: &mut PgConnection) -> sqlx::Result<i64> {
        let there = sqlx::query("SELECT to_regclass($1) IS NOT NULL")
            .persistent(false)
            .bind(format!("{}.meta", self.name))
            .fetch_one(&mut *conn)
            .await?;
        if !there.try_get::<bool, _>(0)? {
            return Ok(0);
        }
        let number = sqlx::query(self.sql("SELECT schema FROM redrive.meta")).persistent(false);
        number.fetch_one(conn).await?.try_get(0)
    }
}

/// What was found, and is now there.
pub(super) enum Found {
    Current { shards: u32 },
    Newer(i64),
}

impl Found {
    /// The number of shards, unless a newer program wrote it.
    pub(super) fn shards(self, place: &str) -> Result<u32, StoreError> {
        match self {
            Self::Current { shards } => Ok(shards),
            Self::Newer(found) => Err(StoreError::Newer {
                path: place.into(),
                found: u32::try_from(found).unwrap_or(u32::MAX),
                known: u32::try_from(KNOWN).unwrap_or(u32::MAX),
            }),
        }
    }
}

//! The tables, as numbered steps, in a schema of their own.
//!
//! A step is in one transaction with its number, under an advisory lock: two processes that open at once wait for each
//! other, and a step that was interrupted did not happen.
//!
//! Programs of two versions may run side by side. A step says how many steps a program has to know to work with what it
//! makes ([`Step::least`]), and that is kept beside the number: a program that knows fewer steps than there are opens
//! where it knows at least so many, and leaves the database alone where not.
//!
//! A step takes locks that all who write need. It waits for them shortly, lets everybody go on, and tries again: a
//! transaction that is left open somewhere holds up the step, and nobody else.
//!
//! Statements here are prepared for nobody, so that a pooler may be in between.
//!
//! The SQL of this store names the schema `redrive` everywhere. Where it is called otherwise, [`Schema::sql`] puts the
//! name in its place, once for each statement.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr, SqlStr};
use tokio::time::Instant;

use super::at_once::says;
use super::faults::{Kind, kind};
use super::settings::Settings;
use super::writer::LOCKED;
use crate::error::StoreError;

/// A step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// What it does.
    pub(super) sql: &'static str,
    /// How many steps a program has to know, to work with what this one makes. 1 where it only adds.
    pub(super) least: u32,
}

/// The steps. A step that was released is never changed.
pub(super) const STEPS: &[Step] = &[Step {
    sql: concat!(
        include_str!("schema/1.sql"),
        include_str!("schema/1-publish.sql"),
        include_str!("schema/1-at-once.sql"),
        include_str!("schema/1-arrivals.sql")
    ),
    least: 1,
}];

/// How long a step waits for the lock of a table: whoever comes meanwhile waits behind it.
const STEP_WAIT: Duration = Duration::from_millis(300);
/// For how long it then lets the others go on.
const STEP_PAUSE: Duration = Duration::from_millis(200);

/// What the schema is called in all statements here.
const WRITTEN: &str = "redrive.";

/// A schema, by its name.
#[derive(Debug)]
pub(super) struct Schema {
    name: String,
    steps: &'static [Step],
    /// Statements with the name in them; none where the name is the one they are written with.
    known: Option<RwLock<HashMap<&'static str, Arc<str>>>>,
}

impl Schema {
    pub(super) fn new(name: &str, steps: &'static [Step]) -> Self {
        let is_other = format!("{name}.") != WRITTEN;
        Self { name: name.to_owned(), steps, known: is_other.then(RwLock::default) }
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

    /// Brings the tables up to date, and says what is there then.
    pub(super) async fn migrate(&self, conn: &mut PgConnection, settings: &Settings) -> sqlx::Result<Found> {
        let until = Instant::now() + settings.patience;
        loop {
            match self.try_to_migrate(conn, settings).await {
                Err(error) if is_held_up(&error) && Instant::now() < until => {}
                done => return done,
            }
            tokio::time::sleep(STEP_PAUSE).await;
        }
    }

    async fn try_to_migrate(&self, conn: &mut PgConnection, settings: &Settings) -> sqlx::Result<Found> {
        let mut tx = conn.begin().await?;
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 8462017))")
            .persistent(false)
            .bind(format!("redrive {}", self.name))
            .execute(&mut *tx)
            .await?;
        let mut number = self.number(&mut tx).await?;
        if number == 0 {
            sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA IF NOT EXISTS {}", self.name)))
                .execute(&mut *tx)
                .await?;
        }
        while let Some(step) = usize::try_from(number).ok().and_then(|done| self.steps.get(done)) {
            let wait = format!("SET LOCAL lock_timeout = {};\n", STEP_WAIT.as_millis());
            sqlx::raw_sql(AssertSqlSafe(wait + &self.named(step.sql))).execute(&mut *tx).await?;
            if number == 0 {
                self.begin(&mut tx, settings).await?;
            }
            number += 1;
            let raise = self.sql("UPDATE redrive.meta SET schema = $1, least = greatest(least, $2)");
            let raise = sqlx::query(raise).persistent(false).bind(number).bind(i64::from(step.least));
            raise.execute(&mut *tx).await?;
        }
        let found = sqlx::query(self.sql("SELECT shards, least FROM redrive.meta")).persistent(false);
        let found = found.fetch_one(&mut *tx).await?;
        let [shards, least] = [found.try_get::<i64, _>(0)?, found.try_get(1)?];
        tx.commit().await?;
        let known = i64::try_from(self.steps.len()).unwrap_or(i64::MAX);
        Ok(Found { shards: u32::try_from(shards).unwrap_or(1), number, least, known })
    }

    /// The first rows of a new store.
    async fn begin(&self, conn: &mut PgConnection, settings: &Settings) -> sqlx::Result<()> {
        let meta = "INSERT INTO redrive.meta (one, schema, least, shards, orders) VALUES (1, 0, 1, $1, 0)";
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

/// Whether somebody else was in the way.
fn is_held_up(error: &sqlx::Error) -> bool {
    says(error, LOCKED) || kind(error) == Kind::Again
}

/// What is there, after all steps that this program knows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    shards: u32,
    /// How many steps were done.
    number: i64,
    /// How many of them a program has to know.
    least: i64,
    /// How many of them this one knows.
    known: i64,
}

impl Found {
    /// The number of shards, for whoever works with what it knows. Not where that is too little.
    pub(super) fn shards(self, place: &str) -> Result<u32, StoreError> {
        if self.least > self.known { Err(self.newer(place)) } else { Ok(self.shards) }
    }

    /// The same for whoever has to know all that there is.
    pub(super) fn shards_of_all(self, place: &str) -> Result<u32, StoreError> {
        if self.number > self.known { Err(self.newer(place)) } else { Ok(self.shards) }
    }

    fn newer(self, place: &str) -> StoreError {
        let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
        StoreError::Newer { path: place.into(), found: number(self.number), known: number(self.known) }
    }
}

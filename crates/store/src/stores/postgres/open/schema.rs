//! The tables, as numbered steps, in a schema of their own.
//!
//! A step is in one transaction with its number, under an advisory lock: two processes that open at once wait for each
//! other, and an interrupted step did not happen.
//!
//! Programs of two versions may run side by side. A step says how many steps a program must know to work with its
//! result ([`Step::least`]), and that is stored beside the number: a program that knows fewer steps than there are
//! opens the database if it knows at least as many, and refuses it otherwise.
//!
//! A step takes locks that all writers need. It waits for them briefly, lets the writers go on, and tries again: a
//! transaction that is left open somewhere delays the step, and no writer.
//!
//! Statements here are not prepared, so that a pooler may be in between.
//!
//! The SQL of this store names the schema `redrive` everywhere. For another name, [`Schema::sql`] replaces it, once
//! for each statement.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr, SqlStr};
use tokio::time::Instant;

use super::settings::PostgresSettings;
use crate::error::StoreError;
use crate::stores::postgres::faults::{Kind, kind};
use crate::stores::postgres::publish::fast::says;
use crate::stores::postgres::writer::LOCKED;

/// A step.
#[derive(Debug, Clone, Copy)]
pub(in crate::stores::postgres) struct Step {
    /// Its SQL.
    pub(in crate::stores::postgres) sql: &'static str,
    /// How many steps a program must know to work with the result of this one. 1 if it only adds.
    pub(in crate::stores::postgres) least: u32,
}

/// The steps. A step that was released is never changed.
pub(in crate::stores::postgres) const STEPS: &[Step] = &[Step {
    sql: concat!(
        include_str!("schema/1.sql"),
        include_str!("schema/1-publish.sql"),
        include_str!("schema/1-fast.sql"),
        include_str!("schema/1-arrivals.sql")
    ),
    least: 1,
}];

/// How long a step waits for the lock of a table: writers that come meanwhile wait behind it.
const STEP_WAIT: Duration = Duration::from_millis(300);
/// How long it then lets the others go on.
const STEP_PAUSE: Duration = Duration::from_millis(200);

/// The name of the schema in all statements here.
const WRITTEN: &str = "redrive.";

/// A schema, by its name.
#[derive(Debug)]
pub(in crate::stores::postgres) struct Schema {
    name: String,
    steps: &'static [Step],
    /// Statements with the name inserted; `None` for the default name.
    known: Option<RwLock<HashMap<&'static str, Arc<str>>>>,
}

impl Schema {
    pub(in crate::stores::postgres) fn new(name: &str, steps: &'static [Step]) -> Self {
        let is_other = format!("{name}.") != WRITTEN;
        Self { name: name.to_owned(), steps, known: is_other.then(RwLock::default) }
    }

    pub(in crate::stores::postgres) fn name(&self) -> &str {
        &self.name
    }

    /// A statement, with the name of this schema.
    pub(in crate::stores::postgres) fn sql(&self, written: &'static str) -> SqlStr {
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

    /// Brings the tables up to date, and returns what is there then.
    pub(in crate::stores::postgres) async fn migrate(
        &self,
        conn: &mut PgConnection,
        settings: &PostgresSettings,
    ) -> sqlx::Result<Found> {
        let until = Instant::now() + settings.patience;
        loop {
            match self.try_to_migrate(conn, settings).await {
                Err(error) if is_held_up(&error) && Instant::now() < until => {}
                done => return done,
            }
            tokio::time::sleep(STEP_PAUSE).await;
        }
    }

    async fn try_to_migrate(
        &self,
        conn: &mut PgConnection,
        settings: &PostgresSettings,
    ) -> sqlx::Result<Found> {
        let mut tx = conn.begin().await?;
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 8462017))")
            .persistent(false)
            .bind(format!("redrive {}", self.name))
            .execute(&mut *tx)
            .await?;
        self.make_and_check(&mut tx).await?;
        let mut number = self.number(&mut tx).await?;
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

    /// Creates the schema if there is none. Refuses one that another role can change, before anything in it is read or
    /// called: a view or a function of that role would run with the rights of this one.
    async fn make_and_check(&self, conn: &mut PgConnection) -> sqlx::Result<()> {
        let there =
            sqlx::query("SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1::name)");
        let there = there.persistent(false).bind(&self.name).fetch_one(&mut *conn).await?;
        if !there.try_get::<bool, _>(0)? {
            let make = format!("CREATE SCHEMA IF NOT EXISTS {}", self.name);
            sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut *conn).await?;
        }
        // No function of another schema is called in place of a built-in one.
        sqlx::raw_sql("SET LOCAL search_path = pg_catalog").execute(&mut *conn).await?;
        let finding = sqlx::query(include_str!("schema/owner.sql")).persistent(false).bind(&self.name);
        let finding = finding.fetch_optional(&mut *conn).await?;
        sqlx::raw_sql("SET LOCAL search_path TO DEFAULT").execute(&mut *conn).await?;
        match finding {
            None => Ok(()),
            Some(row) => Err(sqlx::Error::Configuration(Box::new(ForeignSchema(row.try_get(0)?)))),
        }
    }

    /// The first rows of a new store.
    async fn begin(&self, conn: &mut PgConnection, settings: &PostgresSettings) -> sqlx::Result<()> {
        let meta =
            "INSERT INTO redrive.meta (singleton, schema, least, shards, orders) VALUES (1, 0, 1, $1, 0)";
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

/// A schema that another role can change.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}, which could read and change every event; make this user its owner (ALTER SCHEMA … OWNER TO …), revoke CREATE \
     from PUBLIC, or choose another schema"
)]
pub(in crate::stores::postgres) struct ForeignSchema(String);

/// Whether a concurrent transaction was in the way.
fn is_held_up(error: &sqlx::Error) -> bool {
    says(error, LOCKED) || kind(error) == Kind::Again
}

/// What is there, after all steps that this program knows.
#[derive(Debug, Clone, Copy)]
pub(in crate::stores::postgres) struct Found {
    shards: u32,
    /// How many steps were done.
    number: i64,
    /// How many of them a program must know.
    least: i64,
    /// How many of them this program knows.
    known: i64,
}

impl Found {
    /// The number of shards, for a process that works with the schema it knows. Fails if that is too old.
    pub(in crate::stores::postgres) fn shards(self, place: &str) -> Result<u32, StoreError> {
        if self.least > self.known { Err(self.newer(place)) } else { Ok(self.shards) }
    }

    /// The same, for a process that must know the whole schema.
    pub(in crate::stores::postgres) fn shards_of_all(self, place: &str) -> Result<u32, StoreError> {
        if self.number > self.known { Err(self.newer(place)) } else { Ok(self.shards) }
    }

    fn newer(self, place: &str) -> StoreError {
        let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
        StoreError::Newer { path: place.into(), found: number(self.number), known: number(self.known) }
    }
}

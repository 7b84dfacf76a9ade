//! The store in a PostgreSQL database keeps every guarantee.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_store::postgres::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use redrive_store::postgres::{self, PostgresSettings};
use redrive_store::{Postgres, Store, Tx};
use redrive_testkit::conformance::Subject;
use redrive_testkit::postgres::{Server, a_name};

struct InDatabase {
    store: Arc<Postgres>,
    schema: String,
}

impl InDatabase {
    async fn open(schema: String) -> Self {
        let mut settings = PostgresSettings::default();
        settings.schema.clone_from(&schema);
        settings.shards = 3;
        settings.connections = 8;
        // The user's own tables are first in the search path.
        let url = format!("{}&options[search_path]={schema}", Server::shared().url());
        Self { store: Arc::new(Postgres::open(&url, settings).await.unwrap()), schema }
    }

    async fn raw(&self, sql: String) -> Vec<sqlx::postgres::PgRow> {
        let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut conn).await.unwrap()
    }
}

impl Subject for InDatabase {
    async fn fresh() -> Self {
        let fresh = Self::open(a_name("store")).await;
        fresh.raw(format!("CREATE TABLE {}.effect (name TEXT)", fresh.schema)).await;
        fresh
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    /// The process stops renewing its lease, which runs out: another process opens the same database.
    async fn crash_and_reopen(self) -> Self {
        self.raw(format!("UPDATE {}.node SET until = clock_timestamp() - interval '1 s'", self.schema)).await;
        let Self { store, schema } = self;
        drop(store);
        Self::open(schema).await
    }

    fn effect(tx: &mut dyn Tx, name: &str) {
        let insert = sqlx::query("INSERT INTO effect VALUES ($1)").bind(name.to_owned());
        postgres::with(tx, async |conn| insert.execute(conn).await).unwrap().unwrap();
    }

    async fn effects(&self) -> usize {
        self.raw(format!("SELECT name FROM {}.effect", self.schema)).await.len()
    }
}

redrive_testkit::conformance_tests!(InDatabase);

//! The server of a run, and a database for each turn.

use redrive_testkit::postgres::{Disk, Server};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::runtime::Runtime;

use crate::Fallible;

/// What the server is set to beyond what it ships with: room for the tables in its memory, and no checkpoint in the
/// middle of a turn because a log is full. The same for all who take part.
const SETTINGS: [&str; 2] = ["shared_buffers=512MB", "max_wal_size=8GB"];

/// A server that is up.
pub(crate) struct PgServer {
    server: Server,
    runtime: Runtime,
}

/// A transaction that is open, as long as this is.
pub(crate) struct HeldOpen {
    _conn: PgConnection,
}

impl PgServer {
    pub(crate) fn start() -> Fallible<Self> {
        let server = Server::start_with(Disk::Synced, &SETTINGS)?;
        Ok(Self { server, runtime: Runtime::new()? })
    }

    /// What it is, and what it is set to.
    pub(crate) fn conditions(&self) -> Fallible<String> {
        let version: String = self.runtime.block_on(async {
            let mut conn = PgConnection::connect(&self.server.url()).await?;
            sqlx::query_scalar("SELECT current_setting('server_version')").fetch_one(&mut conn).await
        })?;
        Ok(format!("PostgreSQL {version}, fsync and synchronous_commit on, {}", SETTINGS.join(", ")))
    }

    /// Makes a database: its URL.
    pub(crate) fn make(&self, name: &str) -> Fallible<String> {
        self.say(&format!("CREATE DATABASE {name}"))?;
        Ok(self.server.url().replace("/postgres?", &format!("/{name}?")))
    }

    /// Drops a database with its connections, and flushes the rest before the next turn.
    pub(crate) fn remove(&self, name: &str) -> Fallible<()> {
        self.say(&format!("DROP DATABASE {name} WITH (FORCE)"))?;
        self.say("CHECKPOINT")
    }

    /// Opens a transaction that has a number and a view, and leaves it open: vacuum may take nothing away that was
    /// there since.
    pub(crate) fn hold_open(&self, url: &str) -> Fallible<HeldOpen> {
        self.runtime.block_on(async {
            let mut conn = PgConnection::connect(url).await?;
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()";
            sqlx::raw_sql(begin).execute(&mut conn).await?;
            Ok(HeldOpen { _conn: conn })
        })
    }

    fn say(&self, what: &str) -> Fallible<()> {
        self.runtime.block_on(async {
            let mut conn = PgConnection::connect(&self.server.url()).await?;
            sqlx::raw_sql(AssertSqlSafe(what.to_owned())).execute(&mut conn).await?;
            conn.close().await?;
            Ok(())
        })
    }
}

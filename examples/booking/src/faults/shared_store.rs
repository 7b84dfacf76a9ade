//! The store shared by the API's processes: a file, or a database on a server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use redrive::postgres::sqlx::{self, AssertSqlSafe, Connection, PgConnection, Row};
use redrive::rusqlite::{self, OpenFlags};

use super::audit::Per;
use crate::booking_request::BookingRequest;

/// The file, in the folder of the programs.
const FILE: &str = "booking.db";

const BOOKINGS: &str = "SELECT guest, cabin, count(*) FROM booking GROUP BY guest, cabin";

/// Its contents.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    pub(crate) bookings: Per,
    /// Keys of requests, by where they are.
    pub(crate) keys: BTreeMap<String, u32>,
    /// Events of the outbox that have not gone through.
    pub(crate) outbox: u32,
}

/// Its location.
#[derive(Debug, Clone)]
pub(crate) enum Shared {
    File(PathBuf),
    Database(String),
}

impl Shared {
    /// A new one: in the folder, or on the server with this URL.
    pub(crate) async fn make(folder: &Path, server: Option<&str>) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Some(server) = server else { return Ok(Self::File(folder.join(FILE))) };
        let name = format!("booking_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut conn = PgConnection::connect(server).await.context("the server")?;
        let create = format!("CREATE DATABASE {name}");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut conn).await.context("a database of its own")?;
        Ok(Self::Database(named(server, &name)?))
    }

    /// Its address for the API.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::File(path) => format!("sqlite:{}", path.display()),
            Self::Database(url) => url.clone(),
        }
    }

    /// The process that runs the outbox, if any: its number is in a file beside the store.
    pub(crate) fn owner(&self) -> anyhow::Result<Option<u32>> {
        let Self::File(path) = self else { return Ok(None) };
        let pid = std::fs::read_to_string(path.with_extension("db-owner"))?;
        Ok(Some(pid.trim().parse()?))
    }

    /// Reads it. Reading is possible while the programs run.
    pub(crate) async fn read(&self) -> anyhow::Result<Stored> {
        match self {
            Self::File(path) => read_file(path),
            Self::Database(url) => read_database(url).await,
        }
    }
}

/// The URL of another database of the same server.
fn named(server: &str, name: &str) -> anyhow::Result<String> {
    let (front, more) = server.split_once('?').map_or((server, None), |(front, more)| (front, Some(more)));
    let (front, _) = front.rsplit_once('/').context("a URL ends with the name of a database")?;
    Ok(format!("{front}/{name}{}", more.map(|more| format!("?{more}")).unwrap_or_default()))
}

fn read_file(path: &Path) -> anyhow::Result<Stored> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = rusqlite::Connection::open_with_flags(path, flags).context("the store")?;
    db.busy_timeout(Duration::from_secs(5))?;
    let mut select = db.prepare(BOOKINGS)?;
    let rows = select
        .query_map([], |row| Ok((BookingRequest { guest: row.get(0)?, cabin: row.get(1)? }, row.get(2)?)))?;
    let bookings = rows.collect::<Result<_, _>>()?;
    let mut select = db.prepare("SELECT phase, count(*) FROM redrive_request GROUP BY phase")?;
    let keys = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let outbox = db.query_row(
        "SELECT (SELECT count(*) FROM redrive_fresh) + (SELECT count(*) FROM redrive_tracked)",
        [],
        |row| row.get(0),
    )?;
    Ok(Stored { bookings, keys, outbox })
}

async fn read_database(url: &str) -> anyhow::Result<Stored> {
    let mut conn = PgConnection::connect(url).await.context("the store")?;
    let count = |row: &sqlx::postgres::PgRow, at: usize| -> anyhow::Result<u32> {
        Ok(u32::try_from(row.try_get::<i64, _>(at)?)?)
    };
    let mut stored = Stored::default();
    for row in sqlx::query(BOOKINGS).fetch_all(&mut conn).await? {
        stored
            .bookings
            .insert(BookingRequest { guest: row.try_get(0)?, cabin: row.try_get(1)? }, count(&row, 2)?);
    }
    let keys = "SELECT phase, count(*) FROM redrive.request GROUP BY phase";
    for row in sqlx::query(keys).fetch_all(&mut conn).await? {
        stored.keys.insert(row.try_get(0)?, count(&row, 1)?);
    }
    let outbox = "SELECT (SELECT count(*) FROM redrive.fresh) + (SELECT count(*) FROM redrive.tracked)";
    stored.outbox = count(&sqlx::query(outbox).fetch_one(&mut conn).await?, 0)?;
    conn.close().await?;
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_of_the_same_server_has_the_same_url_but_for_its_name() {
        let server = "postgres://redrive@localhost/postgres?host=/tmp/a";
        assert_eq!(named(server, "b").unwrap(), "postgres://redrive@localhost/b?host=/tmp/a");
        assert_eq!(named("postgres://localhost:1/x", "b").unwrap(), "postgres://localhost:1/b");
    }
}

//! The raw line: what SQLite itself gives a plain loop on this disk, with rows of the same size, and as many of them in a
//! commit as there are connections.
//!
//! No callers, no queue, no HTTP, no threads: one connection and prepared statements. A request is two writes in two
//! commits, as it has to be where the handler runs in between: that it began, and how it ended. All that come at once
//! share both, which is the best that any server with so many connections could have.

use std::path::Path;
use std::time::{Duration, Instant};

use redrive_benches::turn::WARM_UP;
use rusqlite::{Connection, params};

use crate::CONNECTIONS;

/// What the handler answers.
pub(crate) const ANSWER: &str =
    r#"{"id":"0000000017","cabin":"A-117","state":"confirmed","price":{"amount":1284.50,"currency":"EUR"}}"#;

/// Key and fingerprint, times and numbers, and later the answer.
const TABLE: &str = "
    CREATE TABLE request (
        tenant TEXT NOT NULL, operation TEXT NOT NULL, key TEXT NOT NULL, print BLOB NOT NULL, first INTEGER NOT NULL,
        epoch INTEGER NOT NULL, attempt INTEGER NOT NULL, phase INTEGER NOT NULL, one INTEGER, two INTEGER,
        status INTEGER, headers BLOB, body BLOB, ends INTEGER, PRIMARY KEY (tenant, operation, key)
    ) WITHOUT ROWID;
    CREATE INDEX request_ends ON request (ends) WHERE ends IS NOT NULL;
";

/// Requests a second.
pub(crate) fn rate(folder: &Path, time: Duration) -> Result<f64, String> {
    measure(folder, time).map_err(|error| format!("raw: {error}"))
}

fn measure(folder: &Path, time: Duration) -> rusqlite::Result<f64> {
    let mut connection = Connection::open(folder.join("raw.db"))?;
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch(TABLE)?;
    let mut turn = 0;
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        batch(&mut connection, &mut turn)?;
    }
    let (began, before) = (Instant::now(), turn);
    while began.elapsed() < time {
        batch(&mut connection, &mut turn)?;
    }
    let took = began.elapsed();
    let rows: i64 =
        connection.query_row("SELECT count(*) FROM request WHERE body IS NOT NULL", [], |row| row.get(0))?;
    let all = CONNECTIONS as u64 * u64::from(turn);
    assert_eq!(rows.unsigned_abs(), all, "a loop that lost rows on the way measured something else");
    #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
    let done = (CONNECTIONS as u64 * u64::from(turn - before)) as f64;
    Ok(done / took.as_secs_f64())
}

/// A request of every connection.
fn batch(connection: &mut Connection, turn: &mut u32) -> rusqlite::Result<()> {
    let now = i64::from(*turn);
    let keys: Vec<String> = (0..CONNECTIONS).map(|number| format!("{number:04}-{turn:012}")).collect();
    let begin = connection.transaction()?;
    {
        let mut insert = begin.prepare_cached(
            "INSERT INTO request (tenant, operation, key, print, first, epoch, attempt, phase, one, two)
             VALUES ('acme', 'POST /bookings', ?1, ?2, ?3, ?3, 1, 1, ?3, ?3)",
        )?;
        for key in &keys {
            insert.execute(params![key, [7_u8; 32], now])?;
        }
    }
    begin.commit()?;
    let end = connection.transaction()?;
    {
        let mut update = end.prepare_cached(
            "UPDATE request SET phase = 2, status = 201, headers = ?2, body = ?3, ends = ?4
             WHERE tenant = 'acme' AND operation = 'POST /bookings' AND key = ?1 AND epoch = ?4",
        )?;
        for key in &keys {
            update.execute(params![key, [b'h'; 80], ANSWER.as_bytes(), now])?;
        }
    }
    end.commit()?;
    *turn += 1;
    Ok(())
}

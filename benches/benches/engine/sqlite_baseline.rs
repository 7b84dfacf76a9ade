//! The raw line: what SQLite itself gives a plain loop on this disk, with the same rows and the same batches.
//!
//! No callers, no queue, no handler, no threads: one connection, prepared statements, a transaction of B
//! writes and its sync. An engine cannot be faster than that at the same batch; how near it comes is what it
//! costs itself.

use std::time::Instant;

use redrive_benches::turn::{self, Outcome, PAYLOAD_BYTES, Turn, WARM_UP, Work, id};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

/// A receipt that stays, by which a repeated event is known, and the event itself.
const TABLES: &str = "
    CREATE TABLE receipt (id TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE event (number INTEGER PRIMARY KEY, id TEXT NOT NULL, payload BLOB NOT NULL);
";

/// As it is called on the command line.
pub(crate) const NAME: &str = "raw";

/// Measures one turn.
pub(crate) fn measure(turn: &Turn) -> Result<Outcome, String> {
    run(turn).map_err(|error| format!("raw: {error}"))
}

fn run(turn: &Turn) -> rusqlite::Result<Outcome> {
    let mut connection = Connection::open(turn.folder.join("raw.db"))?;
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch(TABLES)?;

    let mut line = Baseline { next: 1, transactions: 0 };
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        line.batch(&mut connection, turn)?;
    }
    let (from, began, before) = (turn::now(), Instant::now(), line);
    while began.elapsed() < turn.time {
        line.batch(&mut connection, turn)?;
    }
    let to = turn::now();

    let done = u64::try_from(line.next - before.next).unwrap_or_default();
    let writes = if turn.work == Work::Life { 2 * done } else { done };
    let transactions = line.transactions - before.transactions;
    let settings = settings(&connection)?;
    check(&connection, turn.work, line.next - 1)?;
    Ok(Outcome { done, from, to, transactions, writes, p50_us: None, settings })
}

/// How far the loop is.
#[derive(Clone, Copy)]
struct Baseline {
    next: i64,
    transactions: u64,
}

impl Baseline {
    /// B events through what is measured of their lives.
    fn batch(&mut self, connection: &mut Connection, turn: &Turn) -> rusqlite::Result<()> {
        let events = self.next..self.next + i64::try_from(turn.batch).unwrap_or(i64::MAX);
        self.commit(connection, |transaction| publish(transaction, events.clone()))?;
        if turn.work == Work::Life {
            self.commit(connection, |transaction| settle(transaction, events.clone()))?;
        }
        self.next = events.end;
        Ok(())
    }

    fn commit(
        &mut self,
        connection: &mut Connection,
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        write(&transaction)?;
        self.transactions += 1;
        transaction.commit()
    }
}

fn publish(transaction: &Transaction<'_>, events: std::ops::Range<i64>) -> rusqlite::Result<()> {
    let mut receipt = transaction.prepare_cached("INSERT INTO receipt VALUES (?1, ?2, ?3)")?;
    let mut event = transaction.prepare_cached("INSERT INTO event VALUES (?1, ?2, ?3)")?;
    for number in events {
        let id = id(number.unsigned_abs());
        receipt.execute(params![id, [7_u8; 16], number])?;
        event.execute(params![number, id, [b'x'; PAYLOAD_BYTES]])?;
    }
    Ok(())
}

fn settle(transaction: &Transaction<'_>, events: std::ops::Range<i64>) -> rusqlite::Result<()> {
    let mut event = transaction.prepare_cached("DELETE FROM event WHERE number = ?1")?;
    for number in events {
        event.execute([number])?;
    }
    Ok(())
}

fn settings(connection: &Connection) -> rusqlite::Result<String> {
    let journal: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let level: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    let level = if level == 2 { "FULL".to_owned() } else { level.to_string() };
    Ok(format!("journal_mode={journal}, synchronous={level}"))
}

/// A loop that lost rows on the way measured something else.
fn check(connection: &Connection, work: Work, published: i64) -> rusqlite::Result<()> {
    let count = |table| connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
    let (receipts, events): (i64, i64) = (count("receipt")?, count("event")?);
    let expected = if work == Work::Life { 0 } else { published };
    assert_eq!((receipts, events), (published, expected), "rows of the raw line");
    Ok(())
}

//! Both sides in a SQLite file of the caller's own. Open the transaction with `BEGIN IMMEDIATE`.
//!
//! ```
//! use redrive_core::ladder::sequence::SequenceVerdict;
//! use redrive_store::sequence::sqlite;
//! use rusqlite::{Connection, TransactionBehavior};
//!
//! # fn main() -> rusqlite::Result<()> {
//! let mut file = Connection::open_in_memory()?;
//! sqlite::create(&file)?;
//! file.execute_batch("CREATE TABLE payment (cents INTEGER)")?;
//! let shop = sqlite::enrol(&file, "payments", "shop")?;
//!
//! for number in [1, 1, 2] {
//!     let tx = file.transaction_with_behavior(TransactionBehavior::Immediate)?;
//!     if sqlite::accept(&tx, "payments", "shop", shop.epoch, number)? == SequenceVerdict::Apply {
//!         tx.execute("INSERT INTO payment VALUES (100)", [])?;
//!     }
//!     tx.commit()?;
//! }
//! let paid: i64 = file.query_row("SELECT sum(cents) FROM payment", [], |row| row.get(0))?;
//! assert_eq!(paid, 200, "1 came twice");
//! # Ok(())
//! # }
//! ```

use redrive_core::ladder::sequence::{NumberedMessage, OpenedProducer, ProducerState, SequenceVerdict};
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::{signed, unsigned};

const CREATE: &str = "CREATE TABLE IF NOT EXISTS redrive_receiver_epoch (last INTEGER NOT NULL);
INSERT INTO redrive_receiver_epoch (last) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM redrive_receiver_epoch);
CREATE TABLE IF NOT EXISTS redrive_producer (
  stream TEXT NOT NULL, producer TEXT NOT NULL, epoch INTEGER NOT NULL, last INTEGER NOT NULL,
  at INTEGER NOT NULL DEFAULT (unixepoch()), PRIMARY KEY (stream, producer)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS redrive_producer_log (
  stream TEXT NOT NULL, producer TEXT NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (stream, producer)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS redrive_numbered (
  stream TEXT NOT NULL, producer TEXT NOT NULL, number INTEGER NOT NULL, payload BLOB,
  PRIMARY KEY (stream, producer, number)
) WITHOUT ROWID";

/// Creates the tables of both sides, where they are missing.
///
/// # Errors
/// If SQLite refuses it.
pub fn create(file: &Connection) -> Result<()> {
    file.execute_batch(CREATE)
}

/// Receiver: makes a producer known, unless it is, and opens it. For its very first start.
///
/// # Errors
/// If SQLite refuses it.
pub fn enrol(file: &Connection, stream: &str, producer: &str) -> Result<OpenedProducer> {
    let insert = "INSERT INTO redrive_producer (stream, producer, epoch, last) VALUES (?1, ?2, 0, 0) \
                  ON CONFLICT DO NOTHING";
    file.execute(insert, [stream, producer])?;
    open(file, stream, producer)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// Receiver: opens a known producer under a new epoch; `None` if it is not known, and then an operator has to decide.
///
/// # Errors
/// If SQLite refuses it.
pub fn open(file: &Connection, stream: &str, producer: &str) -> Result<Option<OpenedProducer>> {
    file.execute("UPDATE redrive_receiver_epoch SET last = last + 1", [])?;
    let update = "UPDATE redrive_producer SET epoch = (SELECT last FROM redrive_receiver_epoch), at = unixepoch() \
                  WHERE stream = ?1 AND producer = ?2 RETURNING epoch, last";
    let read = |row: &rusqlite::Row<'_>| {
        Ok(OpenedProducer { epoch: unsigned(row.get(0)?), last: unsigned(row.get(1)?) })
    };
    file.query_row(update, [stream, producer], read).optional()
}

/// Receiver: judges a message, and takes its number if it is to be applied. The first statement of the effect's
/// transaction; commit it only together with the effect.
///
/// # Errors
/// If SQLite refuses it.
pub fn accept(
    tx: &Connection,
    stream: &str,
    producer: &str,
    epoch: u64,
    number: u64,
) -> Result<SequenceVerdict> {
    let take = "UPDATE redrive_producer SET last = ?4, at = unixepoch() \
                WHERE stream = ?1 AND producer = ?2 AND epoch = ?3 AND last = ?4 - 1";
    let taken = tx.prepare_cached(take)?.execute(params![stream, producer, signed(epoch), signed(number)])?;
    if taken == 1 {
        return Ok(SequenceVerdict::Apply);
    }
    let known = "SELECT epoch, last FROM redrive_producer WHERE stream = ?1 AND producer = ?2";
    let read = |row: &rusqlite::Row<'_>| {
        Ok(ProducerState { epoch: unsigned(row.get(0)?), last: unsigned(row.get(1)?) })
    };
    let state = tx.query_row(known, [stream, producer], read).optional()?;
    Ok(state.map_or(SequenceVerdict::UnknownProducer, |state| state.judge(epoch, number)))
}

/// Receiver: forgets producers that sent nothing for `age`; returns how many. Their messages are refused from then on.
///
/// # Errors
/// If SQLite refuses it.
pub fn forget(file: &Connection, age: std::time::Duration) -> Result<usize> {
    let secs = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    file.execute("DELETE FROM redrive_producer WHERE at <= unixepoch() - ?1", [secs])
}

/// Producer: gives a message its number, in the transaction that decides to send it.
///
/// # Errors
/// If SQLite refuses it.
pub fn assign(tx: &Connection, stream: &str, producer: &str, payload: &[u8]) -> Result<u64> {
    let next = "INSERT INTO redrive_producer_log (stream, producer, last) VALUES (?1, ?2, 1) \
                ON CONFLICT DO UPDATE SET last = last + 1 RETURNING last";
    let number: i64 = tx.query_row(next, [stream, producer], |row| row.get(0))?;
    let store = "INSERT INTO redrive_numbered (stream, producer, number, payload) VALUES (?1, ?2, ?3, ?4)";
    tx.execute(store, params![stream, producer, number, payload])?;
    Ok(unsigned(number))
}

/// Producer: gives a message up; its number is sent as a void. `false` if it is confirmed already.
///
/// # Errors
/// If SQLite refuses it.
pub fn abandon(tx: &Connection, stream: &str, producer: &str, number: u64) -> Result<bool> {
    let void = "UPDATE redrive_numbered SET payload = NULL WHERE stream = ?1 AND producer = ?2 AND number = ?3 \
                AND payload IS NOT NULL";
    Ok(tx.execute(void, params![stream, producer, signed(number)])? == 1)
}

/// Producer: the receiver opened it. What was applied is confirmed, and numbers go on behind it.
///
/// # Errors
/// If SQLite refuses it.
pub fn opened(tx: &Connection, stream: &str, producer: &str, opened: OpenedProducer) -> Result<()> {
    let at_least = "INSERT INTO redrive_producer_log (stream, producer, last) VALUES (?1, ?2, ?3) \
                    ON CONFLICT DO UPDATE SET last = max(last, excluded.last)";
    tx.execute(at_least, params![stream, producer, signed(opened.last)])?;
    confirm(tx, stream, producer, opened.last)
}

/// Producer: everything up to this number is applied.
///
/// # Errors
/// If SQLite refuses it.
pub fn confirm(tx: &Connection, stream: &str, producer: &str, number: u64) -> Result<()> {
    let done = "DELETE FROM redrive_numbered WHERE stream = ?1 AND producer = ?2 AND number <= ?3";
    tx.execute(done, params![stream, producer, signed(number)]).map(drop)
}

/// Producer: up to `limit` messages to send, in order, from this number.
///
/// # Errors
/// If SQLite refuses it.
pub fn pending(
    file: &Connection,
    stream: &str,
    producer: &str,
    from: u64,
    limit: u32,
) -> Result<Vec<NumberedMessage>> {
    let next = "SELECT number, payload FROM redrive_numbered \
                WHERE stream = ?1 AND producer = ?2 AND number >= ?3 ORDER BY number LIMIT ?4";
    let mut statement = file.prepare_cached(next)?;
    let read =
        |row: &rusqlite::Row<'_>| Ok(NumberedMessage { number: unsigned(row.get(0)?), payload: row.get(1)? });
    statement.query_map(params![stream, producer, signed(from), limit], read)?.collect()
}
